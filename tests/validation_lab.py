"""Worlds, agents and settings for tests of the validation: small, and trained by nobody."""

from collections.abc import Callable
from typing import Any

import torch

from backtest_lab import FEATURES, LEVELS, LOOKBACK
from stormsail.core.task import DiscreteActions
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.functional import statistics
from stormsail.market import MarketConfig, Panel
from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, FeatureSpec, Scaler
from stormsail.market.interval import Interval
from stormsail.market.splits import Span
from stormsail.market.synthetic import generate
from stormsail.market.terms import bound_terms
from stormsail.modules import Agent, AgentSpec, CriticConfig, NetworkConfig
from stormsail.modules.agent import ActionSpec

HOUR = Interval.parse("1h")
BURN_IN = 5
GAP = LOOKBACK - 1 + BURN_IN + 1
"""Embargo that follows from features and burn-in."""


def world(rows: int = 400, *, seed: int = 1, symbols: int = 1, name: str = "garch_jump") -> Panel:
    """Return a synthetic market."""
    drawn = generate(name, symbols=symbols, bars=rows, interval=HOUR, seed=seed)
    return Panel.from_bars(drawn.bars, drawn.funding)


def market(**changes: Any) -> MarketConfig:
    """Return levels, costs and an episode of 16 bars."""
    plain = {
        "levels": LEVELS,
        "episode_bars": 16,
        "features": tuple(one.model_dump() for one in FEATURES),
        "costs.impact": 0.0,
    }
    return MarketConfig().replace(**{**plain, **changes})


def settings(**changes: Any) -> ValidationConfig:
    """Return three folds, two seeds and a short burn-in, without stress."""
    plain: dict[str, Any] = {
        "folds": 3,
        "seeds": (0, 1),
        "stress": False,
        "backtest": {"burn_in": BURN_IN, "market": market().model_dump()},
    }
    return ValidationConfig.from_mapping(plain).replace(**changes)


def untrained(
    panel: Panel,
    span: Span,
    seed: int,
    *,
    rules: MarketConfig | None = None,
    specs: tuple[FeatureSpec, ...] = FEATURES,
    validation_span: Span | None = None,
    train_span: Span | None = None,
    gain: float = 40.0,
    **bound: Any,
) -> Agent:
    """Return an untrained agent bound to a span; its scaler has read nothing else."""
    rules = rules or market()
    features = FeatureSet(specs, interval=panel.interval)
    own = panel.between(span.start_ms, span.end_ms)
    scaler = Scaler.fit(features.compute(own), (0, len(own.ts)), schema=features.schema())
    names = (*features.names, *ACCOUNT_FEATURES)
    spec = AgentSpec(
        observation_names=names,
        unscaled=tuple(ACCOUNT_FEATURES),
        actions=ActionSpec.of(DiscreteActions(len(rules.levels))),
        network=NetworkConfig(encoder_sizes=(8,), lstm_hidden_size=6, head_sizes=(8,)),
        critic=CriticConfig(num_quantiles=5),
    )
    terms = bound_terms(
        rules,
        features,
        scaler,
        symbols=panel.symbols,
        train_span=train_span or span,
        validation_span=validation_span,
    )
    generator = torch.Generator().manual_seed(seed)
    agent = Agent(spec, generator, binding={**terms, **bound})
    agent.observation_scale.commit(
        statistics.moments(torch.randn(50, len(names), generator=generator))
    )
    with torch.no_grad():
        agent.network.actor_last.weight.mul_(gain)
    return agent


def fitter(panel: Panel, **changes: Any) -> Callable[[ValidationConfig, Span, int], Agent]:
    """Return a `fit` that trains nothing."""

    def fit(config: ValidationConfig, span: Span, seed: int) -> Agent:
        return untrained(panel, span, seed, rules=config.backtest.market, **changes)

    return fit


class Knowing(Agent):
    """An agent that follows the sign of its first column."""

    def decide(self, observation, memory, *, deterministic, generator=None):
        made = super().decide(observation, memory, deterministic=deterministic, generator=generator)
        up = observation[:, 0] > 0.0
        last = self.spec.actions.count - 1
        return made._replace(action=torch.where(up, last, 0))


def knowing(panel: Panel, **changes: Any) -> Callable[[ValidationConfig, Span, int], Agent]:
    """Return a `fit` whose agents follow the leak of the world `oracle`."""

    def fit(config: ValidationConfig, span: Span, seed: int) -> Agent:
        agent = untrained(panel, span, seed, rules=config.backtest.market, specs=LEAK, **changes)
        agent.__class__ = Knowing
        return agent

    return fit


LEAK = (FeatureSpec(name="leak"),)


def oracle_world(rows: int, *, seed: int = 2) -> Panel:
    """Return a market whose column `leak` tells the next return."""
    drawn = generate("oracle", symbols=1, bars=rows, interval=HOUR, seed=seed)
    return Panel.from_bars(drawn.bars, drawn.funding, signals=drawn.features)
