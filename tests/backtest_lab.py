"""Agents and panels for tests of the backtest."""

from collections.abc import Iterator
from typing import Any

import torch

from simulator_lab import settings, wild_panel
from stormsail.core.task import ContinuousActions, DiscreteActions, Step
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Backtest
from stormsail.functional import statistics
from stormsail.market import MarketConfig, Panel, Simulator
from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, FeatureSpec, Scaler
from stormsail.market.simulator import Info
from stormsail.market.splits import Span
from stormsail.market.terms import bound_terms
from stormsail.modules import Agent, AgentSpec, CriticConfig, NetworkConfig
from stormsail.modules.agent import ActionSpec

FEATURES = (
    FeatureSpec(name="log_return", parameters={"horizon": 1}),
    FeatureSpec(name="realised_volatility", parameters={"window": 6}),
)
LOOKBACK = 7
STEPS = {"lot": 0.001, "tick": 0.01, "min_notional": 5.0}
LEVELS = (-1.0, -0.4, 0.0, 0.3, 1.0)


def rules(**changes: Any) -> MarketConfig:
    """Return a market with levels, costs and an episode of 16 bars."""
    chosen = {
        "action": "levels",
        "levels": LEVELS,
        "episode_bars": 16,
        "costs__taker_fee": 0.0005,
        "costs__half_spread": 0.0002,
        "features": tuple(feature.model_dump() for feature in FEATURES),
    }
    return settings(**{**chosen, **changes})


def features_of(panel: Panel) -> FeatureSet:
    return FeatureSet(FEATURES, interval=panel.interval)


def agent_for(
    panel: Panel,
    market: MarketConfig | None = None,
    *,
    seed: int = 0,
    gain: float = 40.0,
    critic: CriticConfig | None = None,
    symbols: tuple[str, ...] | None = None,
    **network: Any,
) -> Agent:
    """Return an untrained agent whose decisions vary, bound as a trainer binds one.

    The first layers of a policy are made small, so that all actions are nearly as likely; `gain`
    makes the greedy action depend on what is seen.
    """
    market = market or rules()
    features = features_of(panel)
    count = len(panel.ts) // 2
    scaler = Scaler.fit(features.compute(panel), (0, count), schema=features.schema())
    actions = (
        DiscreteActions(len(market.levels))
        if market.action == "levels"
        else ContinuousActions((market.weight_range[0],), (market.weight_range[1],))
    )
    names = (*features.names, *ACCOUNT_FEATURES)
    sizes = {"encoder_sizes": (8,), "lstm_hidden_size": 6, "head_sizes": (8,)}
    spec = AgentSpec(
        observation_names=names,
        unscaled=tuple(ACCOUNT_FEATURES),
        actions=ActionSpec.of(actions),
        network=NetworkConfig(**{**sizes, **network}),
        critic=critic or CriticConfig(num_quantiles=5),
    )
    bound = bound_terms(
        market,
        features,
        scaler,
        symbols=symbols or panel.symbols,
        train_span=Span(int(panel.ts[0]), int(panel.ts[count])),
        validation_span=Span(int(panel.ts[-20]), int(panel.ts[-1])),
    )
    generator = torch.Generator().manual_seed(seed)
    agent = Agent(spec, generator, binding=bound)
    agent.observation_scale.commit(
        statistics.moments(torch.randn(50, len(names), generator=generator))
    )
    with torch.no_grad():
        agent.network.actor_last.weight.mul_(gain)
    return agent


def plain(**changes: Any) -> BacktestConfig:
    """Return a short burn-in and exact order steps."""
    return BacktestConfig.from_mapping({"burn_in": 5, "filters": STEPS, **changes})


def panel(rows: int = 90, *, seed: int = 3, symbols: int = 3, calm: bool = True) -> Panel:
    return wild_panel(seed, rows=rows, symbols=symbols, calm=calm)


def simulated(result: Backtest, bars: Panel) -> Iterator[Step[Info]]:
    """Yield the steps of a simulator that is given the weights of a pass: a second way to it."""
    sight = FeatureSet(["log_return"], interval=bars.interval)
    ones = torch.ones(1, dtype=torch.float64)
    simulator = Simulator(
        bars.to(dtype=torch.float64),
        result.market,
        batch=len(bars.symbols),
        dtype=torch.float64,
        features=sight,
        scaler=Scaler(sight.schema(), ones * 0.0, ones),
    )
    first = int(torch.searchsorted(bars.ts, result.span.start_ms))
    symbols = torch.arange(len(bars.symbols))
    last = torch.full_like(symbols, first + len(result.returns))
    state, _ = simulator.place(symbols, torch.full_like(symbols, first), last_row=last)
    generator = torch.Generator().manual_seed(0)
    for weight, transfer in zip(result.weights, result.bars["transfer"], strict=True):
        cash = torch.tensor(transfer)
        state = state._replace(
            cash=state.cash + cash,
            equity=state.equity + cash,
            peak_equity=state.peak_equity + cash,
            day_start_equity=state.day_start_equity + cash,
            done=torch.zeros_like(state.done),  # a pass does not start again after an end
        )
        state, step = simulator.transition(state, torch.tensor(weight), simulator.draw(generator))
        yield step
