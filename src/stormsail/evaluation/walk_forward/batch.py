"""Passes of a judgement that are walked together before anybody asks for them.

Each part of a judgement names the passes that it needs. They are traded in as few walks as can be,
and each part finds its own again by what was asked: the same weights or agent, the same bars, the
same settings. What was not traded beforehand is traded when it is asked for, so that the desk
changes how long a judgement takes and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.run import Decides, Given, trade_all
from stormsail.evaluation.robustness.costs import MOST_BP, SWEEP_BP, cost_pass, first_costs
from stormsail.evaluation.robustness.self_tests import (
    ORACLE,
    Asked,
    fee_passes,
    later_passes,
    noise_passes,
    oracle_pass,
    permuted_passes,
)
from stormsail.evaluation.robustness.stress import by_name, stress_passes
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.pool import Run
from stormsail.market.panel import Panel
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent


def finished(runs: Sequence[Run]) -> list[Backtest]:
    """Return the passes of the trainings that did not fail."""
    return [one.backtest for one in runs if one.backtest is not None]


def busiest(runs: Sequence[Run]) -> tuple[Agent, Backtest] | None:
    """Return the pass with the most trades and its agent; None where no training finished."""
    known = [
        (one.agent, one.backtest)
        for one in runs
        if one.backtest is not None and one.agent is not None
    ]
    return max(known, key=lambda pair: len(pair[1].trades)) if known else None


class Desk:
    """Trades ahead, and hands out what was traded, once."""

    def __init__(self) -> None:
        self._found: dict[str, Backtest] = {}
        self._agents: list[Agent] = []

    def trade(
        self,
        passes: Sequence[Given | Decides],
        *,
        ahead: Sequence[Asked | Decides] = (),
    ) -> list[list[Backtest]]:
        """Return what comes of some passes, and keep what comes of others.

        Args:
            passes: whose backtests are returned, one for each of the costs.
            ahead: what `replay` and `backtest` will be asked for.
        """
        later = [one if isinstance(one, Decides) else Given(*one) for one in ahead]
        found = trade_all([*passes, *later])
        for one, told in zip(ahead, found[len(passes) :], strict=True):
            key = self._decides(*_parts(one)) if isinstance(one, Decides) else _given(*one)
            self._found[key] = told[0]
        return found[: len(passes)]

    def replay(self, weights: Array, panel: Panel, config: BacktestConfig) -> Backtest:
        """Return what `backtesting.replay` does."""
        known = self._found.pop(_given(weights, panel, config), None)
        return trade_all([Given(weights, panel, config)])[0][0] if known is None else known

    def backtest(self, agent: Agent, panel: Panel, config: BacktestConfig) -> Backtest:
        """Return what `backtesting.backtest` does."""
        known = self._found.pop(self._decides(agent, panel, config), None)
        return trade_all([Decides(agent, panel, config)])[0][0] if known is None else known

    def _decides(self, agent: Agent, panel: Panel, config: BacktestConfig) -> str:
        places = [number for number, one in enumerate(self._agents) if one is agent]
        if not places:
            self._agents.append(agent)
            places = [len(self._agents) - 1]
        return f"agent {places[0]} {panel.digest()} {config.config_hash()}"


def _parts(one: Decides) -> tuple[Agent, Panel, BacktestConfig]:
    return one.agent, one.panel, one.config


def _given(weights: Array, panel: Panel, config: BacktestConfig) -> str:
    asked = sha256(np.ascontiguousarray(weights).tobytes()).hexdigest()
    return f"weights {asked} {panel.digest()} {config.config_hash()}"


@dataclass(frozen=True, eq=False)
class Walked:
    """What was traded side by side."""

    desk: Desk
    """With what the self-tests will ask for."""
    rivals: Mapping[str, Backtest]
    swept: Sequence[Sequence[Backtest]]
    """Of each pass that finished, the backtest at each cost of the sweep."""
    ends: Sequence[Sequence[Backtest]]
    """The same at the first costs of the search for the break-even, ends alone."""
    stressed: Sequence[Mapping[str, Backtest]]
    """Of each run, what went wrong by name."""


def walk_ahead(
    runs: Sequence[Run],
    panel: Panel,
    config: ValidationConfig,
    *,
    rivals: Mapping[str, Given],
    span: Span,
) -> Walked:
    """Trade what a judgement needs and what can be named without knowing more.

    Args:
        runs: of all folds and seeds.
        panel: bars.
        config: what is asked.
        rivals: baselines by name.
        span: from the first to the last bar of all folds.
    """
    swept = at_costs(runs, panel, SWEEP_BP) if config.costs else []
    ends = at_costs(runs, panel, first_costs(MOST_BP), whole=False) if config.costs else []
    stressed = _stressed(runs, panel) if config.stress else []
    troubles = [one for passes in stressed for one in passes.values()]
    desk = Desk()
    ahead = _self_test_passes(runs, panel, config, rivals, span)
    found = iter(desk.trade([*rivals.values(), *swept, *ends, *troubles], ahead=ahead))
    return Walked(
        desk=desk,
        rivals={name: next(found)[0] for name in rivals},
        swept=[next(found) for _ in swept],
        ends=[next(found) for _ in ends],
        stressed=[by_name(passes, [next(found) for _ in passes]) for passes in stressed],
    )


def at_costs(
    runs: Sequence[Run], panel: Panel, costs_bp: Sequence[float], *, whole: bool = True
) -> list[Given]:
    """Return the decisions of all passes, to be traded at several costs."""
    return [cost_pass(one, panel, costs_bp, whole=whole) for one in finished(runs)]


def _stressed(runs: Sequence[Run], panel: Panel) -> list[dict[tuple[str, ...], Decides]]:
    return [
        {}
        if one.agent is None or one.backtest is None
        else stress_passes(one.agent, panel, one.backtest)
        for one in runs
    ]


def _self_test_passes(
    runs: Sequence[Run],
    panel: Panel,
    config: ValidationConfig,
    rivals: Mapping[str, Given],
    span: Span,
) -> list[Asked | Decides]:
    found: list[Asked | Decides] = []
    if ORACLE in rivals:
        own = rivals[ORACLE]
        found.append(oracle_pass(np.asarray(own.weights, np.float64), panel, own.config))
    asked = busiest(runs)
    if asked is None:
        return found
    agent, result = asked
    return [
        *found,
        *noise_passes(result, panel, seed=config.seed, span=span),
        *permuted_passes(result, panel, seed=config.seed),
        *fee_passes(result, panel),
        *later_passes(agent, result, panel).values(),
    ]
