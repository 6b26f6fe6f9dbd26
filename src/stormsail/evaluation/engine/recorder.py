"""From the bars of a walk to backtests: columns put in place as they come, then cut by scenario."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.evaluation.engine.loop import Decider, Moment, walk
from stormsail.evaluation.engine.result import FLAGS, MONEY, OWN, Backtest, Told
from stormsail.evaluation.engine.scenario import Course
from stormsail.market.simulator.config import MarketConfig


class Pass(NamedTuple):
    """A course, who decides, and how much of it is wanted."""

    course: Course
    decider: Decider
    whole: bool = True
    """Otherwise the last bar alone: equity at the start and at the end, and what is held."""


class Recorder:
    """Collects what a walk yields, then cuts it into one backtest for each scenario.

    Args:
        passes: in the order of the walk.
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self._rows: dict[str, list[Tensor]] = {}
        self._tables: list[dict[str, Tensor]] = [{} for _ in passes]
        self._laws: list[dict[str, list[Tensor]]] = [{} for _ in passes]
        self._done = 0

    def add(self, moment: Moment) -> None:
        """Take one bar."""
        fill = moment.fill
        found = {name: getattr(fill, _FILLED.get(name, name)) for name in (*_TAKEN, *FLAGS)}
        found |= {"asked": moment.asked, "decided": moment.weight, "weight": moment.held}
        found |= {"stopped": moment.stopped, "moved": moment.moved, "reason": fill.reason}
        waiting = self._rows.get("asked")
        if waiting and (len(waiting) == _BLOCK or len(waiting[0]) != len(moment.asked)):
            self._settle()
        for name, column in found.items():
            self._rows.setdefault(name, []).append(column)
        for laws, decided in zip(self._laws, moment.decided, strict=False):  # some have ended
            if decided.distribution is not None and decided.value is not None:
                laws.setdefault("distribution", []).append(decided.distribution)
                laws.setdefault("value", []).append(decided.value)

    def _settle(self) -> None:
        """Put the rows that wait into the tables of their passes."""
        count = len(self._rows["asked"])
        for name, rows in self._rows.items():
            block, start = torch.stack(rows), 0
            for tables, one in zip(self._tables, self._passes, strict=True):
                own, steps = block[:, start : start + one.course.batch], one.course.steps
                start += one.course.batch
                if not one.whole and self._done < steps <= self._done + count:
                    tables[name] = own[steps - 1 - self._done :][:1].clone()
                elif one.whole and self._done < steps:
                    table = tables.setdefault(name, own.new_empty((steps, own.shape[1])))
                    table[self._done : self._done + count] = own
        self._rows, self._done = {}, self._done + count

    def results(self) -> list[list[Backtest]]:
        """Return one backtest for each scenario of each pass."""
        self._settle()
        found = []
        for one, tables, laws in zip(self._passes, self._tables, self._laws, strict=True):
            if one.whole:
                tables |= {name: torch.stack(rows) for name, rows in laws.items()}
            found.append(_results(one, tables))
        return found


_FILLED = {"traded": "order", "fee_total": "fee"}
_TAKEN = tuple(name for name in MONEY if name != "weight")
_BLOCK = 64
"""Bars that are kept as they come; then they are put in place, and what nobody wants is let go."""


def results(passes: Sequence[Pass]) -> list[list[Backtest]]:
    """Walk to the end; return one backtest for each scenario of each pass.

    Passes whose rules are the same are walked together.
    """
    found: list[list[Backtest]] = [[] for _ in passes]
    groups: list[list[int]] = []
    for number, one in enumerate(passes):
        for group in groups:
            if passes[group[0]].course.rules == one.course.rules:
                group.append(number)
                break
        else:
            groups.append([number])
    for group in groups:
        order = sorted(group, key=lambda number: -passes[number].course.steps)
        chosen = [passes[number] for number in order]
        recorder = Recorder(chosen)
        for moment in walk([one.course for one in chosen], [one.decider for one in chosen]):
            recorder.add(moment)
        for number, told in zip(order, recorder.results(), strict=True):
            found[number] = told
    return found


def _results(one: Pass, tables: Mapping[str, Tensor]) -> list[Backtest]:
    course, width = one.course, len(one.course.symbols)
    told = []
    for number, costs in enumerate(course.scenarios):
        own = slice(number * width, (number + 1) * width)
        found = {name: table[:, own].numpy() for name, table in tables.items()}
        market = course.market.replace(costs=costs.model_dump())
        told.append(_whole(course, found, market) if one.whole else _end(course, found, market))
    return told


def _whole(course: Course, found: dict[str, NDArray[np.generic]], market: MarketConfig) -> Backtest:
    rows = course.ts[course.first : course.last + 1]
    bars = {name: np.asarray(found[name], np.float64) for name in (*MONEY, *OWN)}
    flags = {name: np.asarray(found[name], np.bool_) for name in (*FLAGS, "stopped")}
    reasons = np.asarray(found["reason"], np.int64)
    start = np.full((1, len(course.symbols)), market.initial_equity)
    sleeves = np.concatenate((start, bars["equity"]))
    law, value = (
        np.asarray(found[name], np.float64) if name in found else None
        for name in ("distribution", "value")
    )
    told = Told(course.symbols, market, rows[1:], bars, flags, reasons)
    return Backtest(
        symbols=course.symbols,
        interval=course.interval,
        market=market,
        config=course.config,
        ts=rows + course.interval.milliseconds,
        equity=sleeves.sum(1),
        sleeves=sleeves,
        trades=tuple(told.trades()),
        bars=bars,
        flags=flags,
        reasons=reasons,
        value=value,
        distribution=law,
    )


def _end(course: Course, found: dict[str, NDArray[np.generic]], market: MarketConfig) -> Backtest:
    """Return a pass as one long bar: where it began, where it ended, and nothing of its trades."""
    names = (*MONEY, *OWN)
    bars = {name: np.zeros((1, len(course.symbols))) for name in names}
    for name in ("equity", "weight"):
        bars[name] = np.asarray(found[name], np.float64)
    flags = {name: np.zeros((1, len(course.symbols)), np.bool_) for name in (*FLAGS, "stopped")}
    start = np.full((1, len(course.symbols)), market.initial_equity)
    sleeves = np.concatenate((start, bars["equity"]))
    return Backtest(
        symbols=course.symbols,
        interval=course.interval,
        market=market,
        config=course.config,
        ts=course.ts[[course.first, course.last]] + course.interval.milliseconds,
        equity=sleeves.sum(1),
        sleeves=sleeves,
        trades=(),
        bars=bars,
        flags=flags,
        reasons=np.zeros((1, len(course.symbols)), np.int64),
    )
