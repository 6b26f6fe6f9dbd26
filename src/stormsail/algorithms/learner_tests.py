"""Two questions to a learner whose answers are known, with the very settings that are validated.

The same network, steps, costs and rules learn two synthetic worlds (`docs/synthetic-worlds.md`):

- `oracle`, where a column tells the next return. The best that anybody can do who sees it is known
  by dynamic programming. A learner that earns less than `ORACLE_SHARE` of its growth cannot learn
  with these settings, and what it did on other bars says nothing.
- `noise`, where nothing can be known. The agent's decisions are traded without costs; then each
  return has mean 0 exactly, whatever was decided, and so has the return of all accounts together.
  A mean that is significantly above 0 means that something looked ahead.

Each world has a later part that no training and no choice has seen; there the agent is judged.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import special

from stormsail.algorithms.config import DataConfig, TrainConfig
from stormsail.algorithms.fit import OnRun, during, train_agent
from stormsail.algorithms.run.tasks import market_panel
from stormsail.algorithms.run.trials import LEDGER
from stormsail.core.clock import Clock
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.run import backtest, replay
from stormsail.evaluation.robustness.costs import cost_sweep
from stormsail.evaluation.robustness.hindsight import (
    ProportionalCosts,
    best_policy,
    drifted,
    leaked_chain,
)
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.market.features import FeatureSet, FeatureSpec, default_features
from stormsail.market.features.tensors import BarTensors
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.splits import Span
from stormsail.market.synthetic.oracle import LEAK, OracleConfig

ORACLE_SHARE = 0.5
"""Least share of the best log growth where the next return is told: most of it."""

NOISE_LEVEL = 1e-3
"""An edge in noise counts as found below this one-sided probability. Small, because the test is
repeated with every validation; a look ahead is many standard errors away."""

BARS = 8_000
"""Bars of each world, and more where episodes or lookbacks are long."""

JUDGED_SHARE = 0.25
"""Share of them, the last, that judges."""

_AHEAD = 32
"""Bars that the best policy plans for; how the last of them are valued no longer matters."""


class Judged(NamedTuple):
    """An agent's pass over bars that it has never seen, and what it was trained by."""

    config: TrainConfig
    panel: Panel
    own: Backtest


def learner_tests(
    config: TrainConfig,
    *,
    workspace: Path | str,
    name: str,
    on_progress: OnRun | None = None,
    clock: Clock | None = None,
) -> tuple[SelfTest, ...]:
    """Train on both worlds and return what came out.

    Runs lie in `<workspace>/<name>/learner-<world>`, and are found again. They are trials on worlds
    of their own and stand in a ledger of their own beside them: what a learner earns where the next
    return is told says nothing about how much the tries on a market differ.

    Args:
        config: of the training that is validated.
        workspace: folder that holds the validation's.
        name: of the validation.
        on_progress: called after each update with the name of the run.
        clock: for the times of events; None writes none.

    Raises:
        Interrupted: if a signal came; the same call goes on.
        StormsailError: as `fitting.train_agent` says.
    """
    asked: dict[str, Callable[[Judged], SelfTest]] = {"oracle": oracle_test, "noise": noise_test}
    found = []
    for world, ask in asked.items():
        own = world_config(config, world)
        panel = market_panel(own)
        seen, judged = _parts(panel, own)
        agent = train_agent(
            during(own, seen),
            Path(workspace) / name / f"learner-{world}",
            ledger=Path(workspace) / name / LEDGER,
            data_hash=panel.digest(),
            on_progress=on_progress,
            clock=clock,
        )
        passed = backtest(agent, panel, BacktestConfig().during(judged))
        found.append(ask(Judged(own, panel, passed)))
    return tuple(found)


def world_config(config: TrainConfig, world: str) -> TrainConfig:
    """Return the same training on a synthetic world; in `oracle` the told return is a feature."""
    market, data = config.task.market, config.task.data
    interval = Interval.parse(data.interval)
    chosen = (
        default_features(interval)
        if market.features is None
        else FeatureSet(market.features, interval=interval)
    )
    drawn = DataConfig(
        interval=data.interval,
        world=world,
        world_bars=max(BARS, 16 * market.episode_bars, 8 * chosen.lookback),
        world_seed=config.seed,
        validation_share=data.validation_share,
    )
    changed = config.replace(**{"task.data": drawn.model_dump()})
    panel = market_panel(changed)
    there = chosen.available(set(BarTensors.of(panel).columns) - {LEAK})
    specs = [
        FeatureSpec(name=one.feature.name, parameters=dict(one.parameters)) for one in there.bound
    ]
    if world == "oracle":
        specs.append(FeatureSpec(name=LEAK))
    return changed.replace(**{"task.market.features": [one.model_dump() for one in specs]})


def _parts(panel: Panel, config: TrainConfig) -> tuple[Span, Span]:
    """Return the bars to learn from and, behind an embargo, those that judge."""
    features = FeatureSet(config.task.market.features or (), interval=panel.interval)
    rows = len(panel.ts)
    first = int(rows * (1.0 - JUDGED_SHARE))
    gap = features.lookback + BacktestConfig().burn_in + 1
    length = panel.interval.milliseconds
    seen = Span(int(panel.ts[0]), int(panel.ts[first - gap - 1]) + length)
    return seen, Span(int(panel.ts[first]), int(panel.ts[-1]) + length)


def oracle_test(judged: Judged) -> SelfTest:
    """Compare an agent that is told the next return with the best that can be done with it."""
    best = replay(informed_weights(judged.panel, judged.config), judged.panel, judged.own.config)
    own, most = _growth(judged.own), _growth(best)
    name = "learner, told"
    if most <= 0.0:
        words = (
            "At these costs not even someone who is told the next return earns anything: "
            f"{most:+.4f} log growth. Nothing can be asked."
        )
        return SelfTest(name, None, words)
    share = own / most
    words = (
        f"Where the next return is told, the same training earned {own:+.4f} log growth on unseen "
        f"bars, {share:.0%} of the {most:+.4f} of the best policy under fee and spread; at least "
        f"{ORACLE_SHARE:.0%} must be reached."
    )
    return SelfTest(name, share >= ORACLE_SHARE, words)


def noise_test(judged: Judged) -> SelfTest:
    """Ask whether decisions in a world without anything to know earned more than 0 before costs."""
    name = "learner, noise"
    free = cost_sweep(judged.own, judged.panel, costs_bp=(0.0,))[0.0]
    returns = free.returns
    error = float(returns.std(ddof=1)) / math.sqrt(len(returns))
    if error == 0.0:
        words = f"In noise the same training learned to hold nothing in all {len(returns)} bars."
        return SelfTest(name, holds=True, words=words)
    mean = float(returns.mean())
    p = float(special.stdtr(len(returns) - 1, -mean / error))
    words = (
        f"In noise the same training's decisions earned {1e4 * mean:+.3f} ± {1e4 * error:.3f} "
        f"basis points a bar before costs, in {len(returns)} unseen bars: p {p:.3f}, and below "
        f"{NOISE_LEVEL:g} it would be an edge where there is none."
    )
    return SelfTest(name, p >= NOISE_LEVEL, words)


def informed_weights(panel: Panel, config: TrainConfig) -> Array:
    """Return the best weights of someone who sees the leak and the own account, [T, S].

    By dynamic programming under the law of `oracle`, with fee and half spread. It does not know
    impact, limits and stops, so that under them somebody else may do better.
    """
    market, data = config.task.market, config.task.data
    world = OracleConfig.from_mapping(data.world_parameters)
    costs = ProportionalCosts(market.costs.taker_fee, market.costs.half_spread)
    policy = best_policy(leaked_chain(world.volatility), _levels(market), costs, bars=_AHEAD)
    seen = panel.optional[LEAK].double().numpy()
    moved = torch.zeros_like(panel.close)
    moved[:-1] = panel.close[1:] / panel.open[1:] - 1.0
    weights, held = np.empty(panel.shape), np.zeros(panel.shape[1])
    for row, growth in enumerate(moved.double().numpy()):
        weights[row] = policy.levels[policy.choose(held, seen[row], bars_left=_AHEAD)]
        _, held = drifted(weights[row], growth)
    return weights


def _levels(market: MarketConfig) -> tuple[float, ...]:
    if market.action == "levels":
        return market.levels
    low, high = market.weight_range
    return tuple(sorted({low, 0.0, high}))


def _growth(found: Backtest) -> float:
    return math.log(max(1.0 + found.total_return, 1e-12))
