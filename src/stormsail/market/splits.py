"""Time splits and walk-forward folds with an embargo between training and test.

Rules, all counted in rows of the given open times, so that missing bars widen a gap and never
narrow it:

- A decision on bar t reads the bars t − lookback … t, and is filled and marked on bar t + 1.
- A recurrent memory is warmed up on `burn_in` bars before the first decision of a span.
- So a span whose first bar is f reads back to bar f − burn_in − lookback, and one whose last bar is
  e reads on to bar e + 1. Between two spans lie at least lookback + burn_in bars, and at least one.
  The default, one bar more than lookback + burn_in, leaves no bar that both sides read.

For several symbols pass the open times that all of them have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import DataError, RangeError
from stormsail.market.interval import Interval

Times = NDArray[np.int64]

FILL_BARS = 1
"""A decision is filled and marked this many bars later."""

_FEWEST_BARS = 2  # one to decide on and one to be filled on


@dataclass(frozen=True)
class Span:
    """The bars that open in [start, end), UTC milliseconds."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise RangeError(
                wrong="a span must start before it ends",
                found=f"{iso(self.start_ms)} to {iso(self.end_ms)}",
                remedy="Exchange the two, or leave more bars between them.",
            )

    def __str__(self) -> str:
        return f"{iso(self.start_ms)} to {iso(self.end_ms)}"

    def rows(self, ts: Times) -> slice:
        """Return the rows of the open times that lie in the span."""
        first, last = np.searchsorted(ts, (self.start_ms, self.end_ms))
        return slice(int(first), int(last))

    def count(self, ts: Times) -> int:
        """Return how many bars lie in the span."""
        rows = self.rows(ts)
        return int(rows.stop - rows.start)

    def contains(self, time_ms: int) -> bool:
        """Return whether a bar that opens then is in the span."""
        return self.start_ms <= time_ms < self.end_ms

    def overlaps(self, other: "Span") -> bool:
        """Return whether some instant is in both."""
        return self.start_ms < other.end_ms and other.start_ms < self.end_ms

    def with_history(self, ts: Times, *, bars: int) -> "Span":
        """Return the span begun `bars` rows earlier, for warm-up, or at the first row there is."""
        first = self.rows(ts).start
        return Span(min(self.start_ms, int(ts[max(first - bars, 0)])), self.end_ms)


@dataclass(frozen=True)
class HoledSpan(Span):
    """A span without the bars of some others inside it: nothing may be learned from those."""

    without: tuple[Span, ...] = ()


def rows_without(ts: Times, without: Sequence[Span]) -> NDArray[np.bool_]:
    """Return which rows of the open times lie in none of the spans, [T]."""
    free = np.ones(len(ts), dtype=np.bool_)
    for span in without:
        free[span.rows(ts)] = False
    return free


@dataclass(frozen=True)
class Split:
    """Training, validation and test, in this order of time."""

    train: Span
    validation: Span
    test: Span


@dataclass(frozen=True)
class Fold:
    """One step of a walk forward."""

    number: int
    train: Span
    test: Span


def split_by_time(
    ts: Times,
    interval: Interval,
    *,
    fractions: tuple[float, float, float] | None = None,
    dates: tuple[int, int] | None = None,
    lookback_bars: int,
    burn_in_bars: int,
    embargo_bars: int | None = None,
) -> Split:
    """Cut open times into training, validation and test with a gap before each of the latter.

    The gap is taken from the end of the earlier span, so validation and test begin exactly where
    the fractions or dates say.

    Args:
        ts: open times, sorted.
        interval: length of a bar; the last span ends where the last bar does.
        fractions: shares of the rows, adding up to 1; 0.7, 0.15, 0.15 if nothing is given.
        dates: instead, where validation and where test begins, UTC milliseconds.
        lookback_bars: bars before its own that a feature reads.
        burn_in_bars: bars on which a memory is warmed up.
        embargo_bars: bars between spans; lookback + burn-in + 1 if not given.

    Raises:
        RangeError: if the embargo is too small, or fractions and dates do not fit each other.
        DataError: if a span would hold fewer than 2 bars.
    """
    times = _checked(ts)
    gap = embargo(lookback_bars, burn_in_bars, embargo_bars)
    if dates is None:
        cuts = _cuts_of_fractions(len(times), (0.7, 0.15, 0.15) if fractions is None else fractions)
    elif fractions is None:
        cuts = _cuts_of_dates(times, dates)
    else:
        raise RangeError(
            wrong="a split must be given by `fractions` or by `dates`",
            found="both",
            remedy="Leave one of the two out.",
        )
    first, second = cuts
    edges = {
        "train": (0, first - gap),
        "validation": (first, second - gap),
        "test": (second, len(times)),
    }
    return Split(**{name: _span(times, interval, name, *rows) for name, rows in edges.items()})


def walk_forward(
    ts: Times,
    interval: Interval,
    *,
    train_bars: int,
    test_bars: int,
    step_bars: int | None = None,
    lookback_bars: int,
    burn_in_bars: int,
    embargo_bars: int | None = None,
    anchored: bool = False,
) -> Iterator[Fold]:
    """Yield folds that train on the past and test on what follows, one step later each time.

    Fold k tests on the rows from train_bars + gap + k·step_bars on and trains on the `train_bars`
    rows that end one gap before that; anchored, on all rows up to there. With `step_bars` equal to
    `test_bars`, as by default, the tests follow one another without a hole. A rest at the end that
    is no whole test is left out.

    Args:
        ts: open times, sorted.
        interval: length of a bar.
        train_bars: rows to train on in the first fold, and in every one unless anchored.
        test_bars: rows to test on.
        step_bars: rows from one test to the next, at least `test_bars`.
        lookback_bars: bars before its own that a feature reads.
        burn_in_bars: bars on which a memory is warmed up.
        embargo_bars: bars between training and test; lookback + burn-in + 1 if not given.
        anchored: whether training always begins at the first row.

    Raises:
        RangeError: if a size is too small, or tests would overlap.
        DataError: if not even one fold fits.
    """
    times = _checked(ts)
    gap = embargo(lookback_bars, burn_in_bars, embargo_bars)
    step = test_bars if step_bars is None else step_bars
    for name, value, least in (
        ("train_bars", train_bars, _FEWEST_BARS),
        ("test_bars", test_bars, _FEWEST_BARS),
        ("step_bars", step, test_bars),
    ):
        _at_least(name, value, least)
    needed = train_bars + gap + test_bars
    if needed > len(times):
        raise DataError(
            "data-span",
            wrong=f"a fold needs {needed} bars: {train_bars} to train, {gap} between, {test_bars}"
            " to test",
            found=_described(times),
            remedy="Shorten `train_bars` or `test_bars`, or bring more data.",
        )
    # The checks above run at the call, before the returned generator is used.
    starts = range(train_bars + gap, len(times) - test_bars + 1, step)
    return (
        Fold(
            number,
            _span(
                times, interval, "train", 0 if anchored else start - gap - train_bars, start - gap
            ),
            _span(times, interval, "test", start, start + test_bars),
        )
        for number, start in enumerate(starts)
    )


def _checked(ts: Times) -> Times:
    times = np.asarray(ts, dtype=np.int64)
    if times.ndim != 1 or len(times) == 0 or not bool((np.diff(times) > 0).all()):
        raise DataError(
            "data-order",
            wrong="open times must be sorted without duplicates, and there must be one",
            found=f"{len(times)} times of {times.ndim} dimensions, sorted or not",
            remedy="Pass `bars.ts`.",
        )
    return times


def embargo(lookback_bars: int, burn_in_bars: int, embargo_bars: int | None = None) -> int:
    """Return the bars between training and test: the given number, or lookback + burn-in + 1.

    Args:
        lookback_bars: bars before its own that a feature reads.
        burn_in_bars: bars on which a memory is warmed up.
        embargo_bars: bars wanted; None for the default.

    Raises:
        RangeError: if it is below lookback + burn-in, or below 1.
    """
    _at_least("lookback_bars", lookback_bars, 0)
    _at_least("burn_in_bars", burn_in_bars, 0)
    reach = lookback_bars + burn_in_bars
    if embargo_bars is None:
        return reach + FILL_BARS
    least = max(reach, FILL_BARS)
    if embargo_bars < least:
        raise RangeError(
            wrong=f"`embargo_bars` must be at least {least}, the {lookback_bars} bars that features"
            f" look back plus the {burn_in_bars} of burn-in, and one for the last fill",
            found=str(embargo_bars),
            remedy="Leave it out, or raise it.",
        )
    return embargo_bars


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise RangeError(
            wrong=f"`{name}` must be at least {least}", found=str(value), remedy=f"Raise `{name}`."
        )


def _cuts_of_fractions(count: int, fractions: Sequence[float]) -> tuple[int, int]:
    train, validation, test = fractions
    if min(fractions) <= 0.0 or abs(train + validation + test - 1.0) > 1e-9:
        raise RangeError(
            wrong="`fractions` must be three positive shares that add up to 1",
            found=", ".join(f"{share:g}" for share in fractions),
            remedy="Pass for example (0.7, 0.15, 0.15).",
        )
    return round(count * train), round(count * (train + validation))


def _cuts_of_dates(times: Times, dates: tuple[int, int]) -> tuple[int, int]:
    validation_ms, test_ms = dates
    if not times[0] < validation_ms < test_ms <= times[-1]:
        raise DataError(
            "data-span",
            wrong="validation and test must begin inside the data, in this order",
            found=f"{iso(validation_ms)} and {iso(test_ms)} in {_described(times)}",
            remedy="Choose dates between the two.",
        )
    first, second = np.searchsorted(times, dates)
    return int(first), int(second)


def _span(times: Times, interval: Interval, name: str, start: int, end: int) -> Span:
    """Return the rows [start, end) as a span: up to the next row, or the close of the last bar."""
    if end - start < _FEWEST_BARS:
        raise DataError(
            "data-span",
            wrong=f"the {name} span must hold at least {_FEWEST_BARS} bars after the embargo",
            found=f"{max(end - start, 0)} of {_described(times)}",
            remedy="Bring more data, a larger share, or a shorter lookback or burn-in.",
        )
    last = int(times[end - 1]) + interval.milliseconds
    return Span(int(times[start]), last)


def _described(times: Times) -> str:
    return f"{len(times)} bars from {iso(int(times[0]))} to {iso(int(times[-1]))}"
