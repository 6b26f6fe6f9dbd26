"""Folds of a walk-forward validation: training spans, embargo, test spans, final test span.

In order of time: folds, an embargo, the final test span. The folds trade bars that follow one
another without a hole. A backtest that begins at bar f decides first at the close of f, so the
backtest of one fold goes on to the close at which the next one begins: `FoldPlan.traded` is one bar
longer than `FoldPlan.test`, but for the last fold. `market.splits.embargo` computes the embargo.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.evaluation.stats.statement import MINIMUM_BARS
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.market.interval import Interval
from stormsail.market.splits import Span, embargo, walk_forward

Times = NDArray[np.int64]

LEAST_FOLD_BARS = MINIMUM_BARS
"""Bars that a fold, and the final test span, must trade: fewer say nothing about it."""


@dataclass(frozen=True)
class FoldPlan:
    """One training and what its agents trade."""

    number: int
    train: Span
    test: Span
    """Bars that belong to this fold alone."""
    traded: Span
    """Bars of its backtest: those of the test, and the first of the next one, where it ends."""

    def marks(self, ts: Times, interval: Interval) -> Times:
        """Return the close times at which equity is marked, the start included."""
        return np.asarray(ts[self.traded.rows(ts)] + interval.milliseconds)


@dataclass(frozen=True)
class Plan:
    """All spans of a validation."""

    folds: tuple[FoldPlan, ...]
    final: FoldPlan
    """The final test span, and the training that may be tested on it."""
    embargo: int
    lookback: int
    burn_in: int
    development: Span
    """All bars that are read while the final test span stays closed."""

    @property
    def purged(self) -> str:
        """What lies between a training and what is traded, in words."""
        return (
            f"{self.embargo} bars before each test are left out of its training: {self.lookback} "
            f"that features look back, {self.burn_in} of burn-in, and those for the last fill"
        )


def plan_folds(ts: Times, interval: Interval, config: ValidationConfig, *, lookback: int) -> Plan:
    """Return the folds and the final test span of bars with these sorted open times.

    `lookback` counts the bars before its own that a feature reads.

    Raises:
        DataError: if there are too few bars; it says how many are needed.
        RangeError: if the embargo is too small.
    """
    burn_in = config.burn_in_bars
    gap = embargo(lookback, burn_in, config.embargo_bars)
    count = len(ts)
    _check_enough(ts, config, gap)
    last = count - _final(count, config) - gap
    train, test = _sizes(last, config, gap)
    offset = last - (train + gap + config.folds * test)
    splits = walk_forward(
        ts[offset:last],
        interval,
        train_bars=train,
        test_bars=test,
        lookback_bars=lookback,
        burn_in_bars=burn_in,
        embargo_bars=gap,
        anchored=config.train_bars is None,
    )
    spans = list(splits)
    ends = _ends([fold.test for fold in spans], ts, interval)
    folds = tuple(
        FoldPlan(fold.number, fold.train, fold.test, Span(fold.test.start_ms, end))
        for fold, end in zip(spans, ends, strict=True)
    )
    begin = 0 if config.train_bars is None else last - train
    closed = Span(int(ts[last + gap]), int(ts[-1]) + interval.milliseconds)
    before = Span(int(ts[begin]), int(ts[last - 1]) + interval.milliseconds)
    final = FoldPlan(config.folds, before, closed, closed)
    development = Span(int(ts[0]), before.end_ms)
    return Plan(folds, final, gap, lookback, burn_in, development)


def _check_enough(ts: Times, config: ValidationConfig, gap: int) -> None:
    """Refuse too few bars, and say how many it takes."""
    count = len(ts)
    if not _fits(count, config, gap):
        raise DataError(
            "data-span",
            wrong=f"a validation with {config.folds} folds must have at least "
            f"{_needed(config, gap)} bars: {LEAST_FOLD_BARS} to trade in each fold and in the "
            f"final test span, {gap} before each of them, and what is trained on",
            found=f"{count} bars from {iso(int(ts[0]))} to {iso(int(ts[-1]))}" if count else "none",
            remedy="Bring more data, fewer folds, a smaller `train_bars` or a shorter lookback.",
        )


def _ends(tests: list[Span], ts: Times, interval: Interval) -> Iterator[int]:
    """Yield where each backtest ends: at the close at which the next one begins."""
    for following in tests[1:]:
        first = following.rows(ts).start
        yield int(ts[first]) + interval.milliseconds
    yield tests[-1].end_ms


def _final(count: int, config: ValidationConfig) -> int:
    return round(count * config.test_share)


def _sizes(count: int, config: ValidationConfig, gap: int) -> tuple[int, int]:
    """Return bars to train on, in the first fold, and to trade in each."""
    left = count - gap
    if config.train_bars is not None:
        return config.train_bars, (left - config.train_bars) // config.folds
    test = left // (2 * config.folds)
    return left - config.folds * test, test


def _fits(count: int, config: ValidationConfig, gap: int) -> bool:
    final = _final(count, config)
    _, test = _sizes(count - final - gap, config, gap)
    return min(final, test) >= LEAST_FOLD_BARS


def _needed(config: ValidationConfig, gap: int) -> int:
    """Return the least number of bars that fits; more always fit as well."""
    traded = config.folds * LEAST_FOLD_BARS
    trained = traded if config.train_bars is None else config.train_bars
    share = config.test_share
    kept = (2 * gap + trained + traded - 1) / (1.0 - share)  # rounding may add half a bar
    count = max(1, int(max(kept, (LEAST_FOLD_BARS - 1) / share)) - 1)
    while not _fits(count, config, gap):
        count += 1
    return count
