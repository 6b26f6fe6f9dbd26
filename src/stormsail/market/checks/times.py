"""Checks of open times: unit, interval, alignment, order, bars that have not closed."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stormsail.market.bars import OPTIONAL, REQUIRED
from stormsail.market.checks.columns import Columns
from stormsail.market.checks.gaps import check_gaps
from stormsail.market.checks.report import Collector
from stormsail.market.checks.stamps import BINANCE_SWITCH_MS, MILLISECONDS, TYPED, UNITS, Stamps
from stormsail.market.interval import Interval

_COARSE_RUN = 16
"""Steps of one same multiple of the interval in a row that make another interval. Where bars are
missing at random, a step of k intervals has a probability of at most 1/4; 16 of them in a row
happen by chance once in 4e9 rows."""

_FINE_RUN = 3
"""Steps of one same fraction of the interval in a row. Bars of the right length cannot be closer
than the interval, so a few are enough to tell another interval from a single misplaced bar."""

_MOST = 0.9
_LEAP_MS = 1000


@dataclass(frozen=True)
class Order:
    """Rows in the order of time: of each time the number of its first row, and the time."""

    rows: NDArray[np.int64]
    ts: NDArray[np.int64]


def check_times(
    collector: Collector,
    columns: Columns,
    interval: Interval,
    now_ms: int | None,
    *,
    dump: bool = False,
) -> Order:
    """Report every defect of the times, gaps included; return the rows in order.

    `dump` says whether the columns are those of Binance's dumps, whose unit is documented.
    """
    stamps = columns.stamps
    rows = None if stamps.valid.all() else np.flatnonzero(stamps.valid)
    ts = stamps.ms if rows is None else stamps.ms[rows]
    _check_units(collector, stamps, dump=dump)
    _check_present(collector, stamps, interval, now_ms)
    order, repeated = _in_order(ts, rows)
    spans = _check_interval(collector, order, interval)
    _check_alignment(collector, columns, interval, spans)
    explained = check_gaps(
        collector, order.ts, order.rows, repeated, interval, partial(_differ, columns), spans
    )
    if len(ts) > 1 and (len(repeated) or len(explained) or not _rising(ts)):
        _check_order(collector, ts, rows, explained)
    return order


def _check_units(collector: Collector, stamps: Stamps, *, dump: bool) -> None:
    if stamps.naive:
        collector.whole("naive-time", "no zone is named")
    if stamps.leap is not None:
        collector.mark("leap-second", stamps.leap, lambda _: "written with second 60")
    counted = stamps.valid & (stamps.unit != TYPED)
    unit = stamps.unit if counted.all() else stamps.unit[counted]
    if len(unit) == 0 or (unit[0] == MILLISECONDS and bool((unit == MILLISECONDS).all())):
        return
    counts = np.bincount(unit, minlength=len(UNITS))
    if np.count_nonzero(counts) == 1:
        switched = UNITS[unit[0]] == "us" and bool((stamps.ms[counted] >= BINANCE_SWITCH_MS).all())
        collector.add(
            "time-unit",
            np.flatnonzero(counted),
            lambda row: f"a time in {UNITS[stamps.unit[row]]}",
            detail=f"all times in {UNITS[unit[0]]}",
            severity="warning" if dump and switched else None,
        )
        return
    shares = ", ".join(f"{count} in {UNITS[i]}" for i, count in enumerate(counts) if count)
    odd = counted & (stamps.unit != unit[0])
    collector.mark("mixed-time-units", odd, lambda row: UNITS[stamps.unit[row]], detail=shares)


def _check_present(
    collector: Collector, stamps: Stamps, interval: Interval, now_ms: int | None
) -> None:
    """Report bars that had not closed, and bars that had not even opened."""
    if now_ms is None:
        return
    ts, valid = stamps.ms, stamps.valid
    late = valid & (interval.after(ts) > now_ms)
    if not late.any():
        return
    from_future = late & (ts > now_ms)
    collector.mark("future-time", from_future)
    collector.mark("unclosed-bar", late & ~from_future)


def _rising(ts: NDArray[np.int64]) -> bool:
    return bool((ts[1:] > ts[:-1]).all())


def _in_order(
    ts: NDArray[np.int64], rows: NDArray[np.int64] | None
) -> tuple[Order, NDArray[np.int64]]:
    """Return the rows in order, and pairs (first row, repeated row) of equal times, [n, 2]."""
    rows = np.arange(len(ts)) if rows is None else rows
    none = np.empty((0, 2), np.int64)
    if len(ts) < 2 or _rising(ts):
        return Order(rows, ts), none
    sorting = np.argsort(ts, kind="stable")
    rows, ts = rows[sorting], ts[sorting]
    again = np.concatenate(([False], ts[1:] == ts[:-1]))
    if not again.any():
        return Order(rows, ts), none
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(ts))))
    pairs = np.stack([rows[first[again]], rows[again]], axis=1)
    return Order(rows[~again], ts[~again]), pairs


def _differ(columns: Columns, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where two rows differ in any value."""
    different = np.zeros(len(a), bool)
    for name in (*REQUIRED[1:], *OPTIONAL):
        if name in columns.values:
            x, y = columns.values[name][a], columns.values[name][b]
            different |= (x != y) & ~(np.isnan(x) & np.isnan(y))
    return different


def _check_order(
    collector: Collector,
    ts: NDArray[np.int64],
    rows: NDArray[np.int64] | None,
    explained: NDArray[np.int64],
) -> None:
    highest = np.maximum.accumulate(ts)
    late = np.flatnonzero(ts < highest)
    late = late if rows is None else rows[late]
    late = late[~np.isin(late, explained)] if len(explained) else late
    collector.add("out-of-order", late, lambda _: "older than an earlier row")


def _check_interval(
    collector: Collector, order: Order, interval: Interval
) -> list[tuple[int, int]]:
    """Report stretches of bars of another length; return their spans of time."""
    length = interval.milliseconds
    step = interval.steps(order.ts)
    if len(step) == 0 or bool((step == length).all()):
        return []
    edges = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    runs = np.diff(np.concatenate((edges, [len(step)])))
    size = step[edges]
    coarse = (size > length) & (size % length == 0) & (runs >= _COARSE_RUN)
    coarse |= (size > length) & (runs >= max(_FINE_RUN, 0.5 * len(step)))
    fine = (size < length) & (length % np.maximum(size, 1) == 0) & (runs >= _FINE_RUN)
    other = np.flatnonzero(coarse | fine)
    if len(other) == 0:
        return []
    rows = np.concatenate(
        [np.arange(edges[i] + int(i > 0), edges[i] + runs[i] + 1) for i in other[:10_000]]
    )
    lengths = {int(edges[i]): int(size[i]) for i in other[:10_000]}
    words = ", ".join(sorted({_length(size) for size in lengths.values()})[:5])
    collector.add("mixed-intervals", np.sort(order.rows[rows]), detail=f"steps of {words}")
    return [(int(order.ts[edges[i]]), int(order.ts[edges[i] + runs[i]])) for i in other[:10_000]]


def _length(step_ms: int) -> str:
    return str(Interval(step_ms)) if step_ms % 60_000 == 0 else f"{step_ms} ms"


def _check_alignment(
    collector: Collector, columns: Columns, interval: Interval, spans: list[tuple[int, int]]
) -> None:
    """Report bars that open between two ticks of the interval's clock.

    Labels by the last millisecond and leap seconds have offsets of their own, and are told apart.
    """
    stamps = columns.stamps
    offset = interval.offset(stamps.ms)
    if not offset.any():
        return
    length = interval.after(stamps.ms - offset) - (stamps.ms - offset)
    odd = stamps.valid & (offset != 0)
    for start, end in spans:
        odd &= (stamps.ms < start) | (stamps.ms > end)
    closing = odd & (offset == length - 1)
    if int(closing.sum()) >= _MOST * max(int(stamps.valid.sum()), 1):
        collector.mark("close-labels", closing)
        odd &= ~closing
    leap = odd & ((offset == _LEAP_MS) | (offset == length - _LEAP_MS))
    if stamps.leap is None:
        collector.mark("leap-second", leap, lambda _: "one second off")
    odd &= ~leap
    collector.mark("misaligned-bar", odd, lambda row: f"{int(offset[row])} ms after a tick")


def in_order(values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return values in the order of rows, without a copy where they already are."""
    whole = len(rows) == len(values) and (len(rows) == 0 or bool((rows[1:] > rows[:-1]).all()))
    return values if whole else values[rows]
