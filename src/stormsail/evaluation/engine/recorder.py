"""Collect the bars of the loop as columns, and cut them into one backtest for each cost setting."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.evaluation.engine.loop import BarRecord, Decider, run_scenarios
from stormsail.evaluation.engine.result import ENGINE_COLUMNS, FLAGS, MONEY, Backtest, TradeLog
from stormsail.evaluation.engine.scenario import Scenario
from stormsail.market.simulator.config import MarketConfig

Columns = Mapping[str, NDArray[np.generic]]

_OF_FILL = {"traded": "order", "fee_total": "fee"}
"""Columns whose names in `Fill` differ."""
_TAKEN = tuple(name for name in MONEY if name != "weight")
_BLOCK = 64
"""Bars that are buffered before they are copied into the tables; the rest is released then."""


class PreparedRun(NamedTuple):
    """A scenario with its decider, ready to run."""

    scenario: Scenario
    decider: Decider
    whole: bool = True
    """Otherwise the last bar alone is kept: equity at the start and at the end, and the position.
    """


class Recorder:
    """Collects what the loop yields, then cuts it into one backtest for each cost setting.

    Args:
        runs: in the order of the batch.
    """

    def __init__(self, runs: Sequence[PreparedRun]) -> None:
        self._runs = runs
        self._buffer: dict[str, list[Tensor]] = {}
        self._tables: list[dict[str, Tensor]] = [{} for _ in runs]
        self._critic: list[dict[str, list[Tensor]]] = [{} for _ in runs]
        self._done = 0

    def add(self, bar: BarRecord) -> None:
        """Take one bar."""
        fill = bar.fill
        columns = {name: getattr(fill, _OF_FILL.get(name, name)) for name in (*_TAKEN, *FLAGS)}
        columns |= {"requested": bar.requested, "decided": bar.weight, "weight": bar.held}
        columns |= {"stopped": bar.stopped, "transfer": bar.transfer, "reason": fill.reason}
        buffered = self._buffer.get("requested")
        if buffered and (len(buffered) == _BLOCK or len(buffered[0]) != len(bar.requested)):
            self._flush()
        for name, column in columns.items():
            self._buffer.setdefault(name, []).append(column)
        for tables, decision in zip(self._critic, bar.decisions, strict=False):  # some have ended
            if decision.distribution is not None and decision.value is not None:
                tables.setdefault("distribution", []).append(decision.distribution)
                tables.setdefault("value", []).append(decision.value)

    def _flush(self) -> None:
        """Copy the buffered bars into the tables of their runs."""
        count = len(self._buffer["requested"])
        for name, rows in self._buffer.items():
            block, start = torch.stack(rows), 0
            for tables, run in zip(self._tables, self._runs, strict=True):
                accounts, steps = run.scenario.accounts, run.scenario.steps
                own = block[:, start : start + accounts]
                start += accounts
                if not run.whole and self._done < steps <= self._done + count:
                    tables[name] = own[steps - 1 - self._done :][:1].clone()
                elif run.whole and self._done < steps:
                    table = tables.setdefault(name, own.new_empty((steps, own.shape[1])))
                    table[self._done : self._done + count] = own
        self._buffer, self._done = {}, self._done + count

    def results(self) -> list[list[Backtest]]:
        """Return one backtest for each cost setting of each run."""
        self._flush()
        results = []
        for run, tables, critic in zip(self._runs, self._tables, self._critic, strict=True):
            if run.whole:
                tables |= {name: torch.stack(rows) for name, rows in critic.items()}
            results.append(_by_costs(run, tables))
        return results


def run_all(runs: Sequence[PreparedRun]) -> list[list[Backtest]]:
    """Run to the end; return one backtest for each cost setting of each run.

    Runs under the same rules share a batch.
    """
    groups: list[list[int]] = []
    for number, run in enumerate(runs):
        for group in groups:
            if runs[group[0]].scenario.rules == run.scenario.rules:
                group.append(number)
                break
        else:
            groups.append([number])
    results: dict[int, list[Backtest]] = {}
    for group in groups:
        order = sorted(group, key=lambda number: -runs[number].scenario.steps)
        batch = [runs[number] for number in order]
        recorder = Recorder(batch)
        for bar in run_scenarios([run.scenario for run in batch], [run.decider for run in batch]):
            recorder.add(bar)
        results |= zip(order, recorder.results(), strict=True)
    return [results[number] for number in range(len(runs))]


def _by_costs(run: PreparedRun, tables: Mapping[str, Tensor]) -> list[Backtest]:
    scenario, width = run.scenario, len(run.scenario.symbols)
    cut = _whole if run.whole else _end
    results = []
    for number, costs in enumerate(scenario.costs):
        own = slice(number * width, (number + 1) * width)
        columns = {name: table[:, own].numpy() for name, table in tables.items()}
        market = scenario.market.replace(costs=costs.model_dump())
        results.append(cut(scenario, columns, market))
    return results


def _whole(scenario: Scenario, columns: Columns, market: MarketConfig) -> Backtest:
    rows = scenario.ts[scenario.first : scenario.last + 1]
    bars = {name: np.asarray(columns[name], np.float64) for name in (*MONEY, *ENGINE_COLUMNS)}
    flags = {name: np.asarray(columns[name], np.bool_) for name in (*FLAGS, "stopped")}
    reasons = np.asarray(columns["reason"], np.int64)
    start = np.full((1, len(scenario.symbols)), market.initial_equity)
    sleeves = np.concatenate((start, bars["equity"]))
    distribution, value = (
        np.asarray(columns[name], np.float64) if name in columns else None
        for name in ("distribution", "value")
    )
    log = TradeLog(scenario.symbols, market, rows[1:], bars, flags, reasons)
    return Backtest(
        symbols=scenario.symbols,
        interval=scenario.interval,
        market=market,
        config=scenario.config,
        ts=rows + scenario.interval.milliseconds,
        equity=sleeves.sum(1),
        sleeves=sleeves,
        trades=tuple(log.trades()),
        bars=bars,
        flags=flags,
        reasons=reasons,
        value=value,
        distribution=distribution,
    )


def _end(scenario: Scenario, columns: Columns, market: MarketConfig) -> Backtest:
    """Return a run as one long bar: its start, its end, and no trades."""
    shape = (1, len(scenario.symbols))
    bars = {name: np.zeros(shape) for name in (*MONEY, *ENGINE_COLUMNS)}
    for name in ("equity", "weight"):
        bars[name] = np.asarray(columns[name], np.float64)
    sleeves = np.concatenate((np.full(shape, market.initial_equity), bars["equity"]))
    return Backtest(
        symbols=scenario.symbols,
        interval=scenario.interval,
        market=market,
        config=scenario.config,
        ts=scenario.ts[[scenario.first, scenario.last]] + scenario.interval.milliseconds,
        equity=sleeves.sum(1),
        sleeves=sleeves,
        trades=(),
        bars=bars,
        flags={name: np.zeros(shape, np.bool_) for name in (*FLAGS, "stopped")},
        reasons=np.zeros(shape, np.int64),
    )
