"""Learner tests: the settings of a validation trained on two worlds with known answers.

The same network, steps, costs and rules are trained on two synthetic worlds
(`docs/synthetic_worlds.md`):

- `oracle`, where a column holds the next return. The best possible policy with that information is
  known by dynamic programming. A learner that earns less than `ORACLE_SHARE` of its growth cannot
  learn with these settings, and its result on other bars says nothing.
- `noise`, where nothing is predictable. The agent's decisions are traded without costs; then each
  return has mean 0 exactly, whatever was decided, and so has the return of all accounts together.
  A mean that is significantly above 0 means a look ahead.

Each world has a later part that neither training nor the choice of the best agent has used; the
tests are made there.
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
"""Least share of the best log growth in `oracle`."""

NOISE_LEVEL = 1e-3
"""One-sided significance level of the edge in `noise`. Small, because the test is repeated with
every validation; a look ahead is many standard errors away."""

BARS = 8_000
"""Bars of each world, and more where episodes or lookbacks are long."""

TEST_SHARE = 0.25
"""Share of them, the last, that is tested on."""

_AHEAD = 32
"""Horizon of the best policy in bars; a longer one changes nothing."""


class HeldOut(NamedTuple):
    """Backtest of a trained agent on held-out bars, and the configuration of its training."""

    config: TrainConfig
    panel: Panel
    backtest: Backtest


def learner_tests(
    config: TrainConfig,
    *,
    workspace: Path | str,
    name: str,
    on_progress: OnRun | None = None,
    clock: Clock | None = None,
) -> tuple[SelfTest, ...]:
    """Train on both worlds and return the results of the tests.

    Runs lie in `<workspace>/<name>/learner-<world>`, and are used again. They are trials on worlds
    of their own and stand in a ledger of their own beside them: what a learner earns where the next
    return is known says nothing about how much the trials on a market differ.

    Args:
        config: of the validated training.
        workspace: folder that holds the validation's.
        name: of the validation.
        on_progress: called after each update with the name of the run.
        clock: for the times of events; None writes none.

    Raises:
        Interrupted: if a signal came; the same call continues.
        StormsailError: as `fit.train_agent` says.
    """
    tests: dict[str, Callable[[HeldOut], SelfTest]] = {
        "oracle": oracle_test,
        "noise": noise_test,
    }
    results = []
    for world, test in tests.items():
        own = world_config(config, world)
        panel = market_panel(own)
        seen, unseen = _parts(panel, own)
        agent = train_agent(
            during(own, seen),
            Path(workspace) / name / f"learner-{world}",
            ledger=Path(workspace) / name / LEDGER,
            data_hash=panel.digest(),
            on_progress=on_progress,
            clock=clock,
        )
        result = backtest(agent, panel, BacktestConfig().during(unseen))
        results.append(test(HeldOut(own, panel, result)))
    return tuple(results)


def world_config(config: TrainConfig, world: str) -> TrainConfig:
    """Return the same training on a synthetic world; in `oracle` the next return is a feature."""
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
    # terms and order steps are those of other symbols
    own: dict[str, object] = {"task.market.instruments": {}, "task.market.symbol_filters": {}}
    changed = config.replace(**{"task.data": drawn.model_dump()}, **own)
    panel = market_panel(changed)
    there = chosen.available(set(BarTensors.of(panel).columns) - {LEAK})
    specs = [
        FeatureSpec(name=bound.feature.name, parameters=dict(bound.parameters))
        for bound in there.bound
    ]
    if world == "oracle":
        specs.append(FeatureSpec(name=LEAK))
    return changed.replace(**{"task.market.features": [spec.model_dump() for spec in specs]})


def _parts(panel: Panel, config: TrainConfig) -> tuple[Span, Span]:
    """Return the training bars and, behind an embargo, the test bars."""
    features = FeatureSet(config.task.market.features or (), interval=panel.interval)
    rows = len(panel.ts)
    first = int(rows * (1.0 - TEST_SHARE))
    gap = features.lookback + BacktestConfig().burn_in + 1
    length = panel.interval.milliseconds
    seen = Span(int(panel.ts[0]), int(panel.ts[first - gap - 1]) + length)
    return seen, Span(int(panel.ts[first]), int(panel.ts[-1]) + length)


def oracle_test(tested: HeldOut) -> SelfTest:
    """Compare an agent that knows the next return with the best policy that knows it."""
    weights = informed_weights(tested.panel, tested.config)
    best = replay(weights, tested.panel, tested.backtest.config)
    own, most = _growth(tested.backtest), _growth(best)
    name = "learner, oracle"
    if most <= 0.0:
        words = (
            "At these costs not even a policy that knows the next return earns anything: "
            f"{most:+.4f} log growth. Nothing can be tested."
        )
        return SelfTest(name, None, words)
    share = own / most
    words = (
        f"Where the next return is known, the same training earned {own:+.4f} log growth on unseen "
        f"bars, {share:.0%} of the {most:+.4f} of the best policy under fee and spread; at least "
        f"{ORACLE_SHARE:.0%} must be reached."
    )
    return SelfTest(name, share >= ORACLE_SHARE, words)


def noise_test(tested: HeldOut) -> SelfTest:
    """Test whether decisions in a world of noise earned significantly more than 0 before costs."""
    name = "learner, noise"
    free = cost_sweep(tested.backtest, tested.panel, costs_bp=(0.0,))[0.0]
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
    """Return the best weights of a policy that knows the next return and its account, [T, S].

    By dynamic programming under the process of `oracle`, with fee and half spread. It ignores
    impact, limits and stops, so that under them another policy may do better.
    """
    market, data = config.task.market, config.task.data
    world = OracleConfig.from_mapping(data.world_parameters)
    fee = min(map(market.fee_of, panel.symbols))
    costs = ProportionalCosts(fee, market.costs.half_spread)
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
        return market.offered_levels
    low, high = market.offered_range
    return tuple(sorted({low, 0.0, high}))


def _growth(result: Backtest) -> float:
    return math.log(max(1.0 + result.total_return, 1e-12))
