"""Gaps in bars, repeated bars, and blocks of bars shifted by a time zone.

A gap or a repetition alone is missing or doubled data; both together, of the same length, are a
shifted block.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.market.checks.report import Collector
from stormsail.market.interval import Interval

_HOUR_MS = 3_600_000
_QUARTER_MS = 900_000
_LARGEST_SHIFT_MS = 14 * _HOUR_MS  # no time zone is further from UTC
_MOST_RUNS = 1_000  # repeated stretches that are matched one by one
_SETTLEMENT_MS = 8 * _HOUR_MS  # longest time between two funding settlements

Differ = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]


def find_gaps(
    ts: NDArray[np.int64], interval: Interval
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the bars before gaps, and the number of bars missing in each."""
    missing = interval.steps(ts) // interval.milliseconds - 1
    at = np.flatnonzero(missing > 0)
    return at, missing[at]


def check_funding_gaps(
    collector: Collector, ts: NDArray[np.int64], rows: NDArray[np.int64]
) -> None:
    """Report missing funding settlements.

    Venues settle every 8 hours at most, some perpetuals more often and at changing intervals, so a
    gap is only what lasts longer than 12 hours.
    """
    step = np.diff(ts)
    late = step > 1.5 * _SETTLEMENT_MS
    lost = int((np.round(step[late] / _SETTLEMENT_MS) - 1).sum())
    collector.add("gap", rows[1:][late], detail=f"{lost} settlements of 8 hours missing")


def check_gaps(
    collector: Collector,
    ts: NDArray[np.int64],
    rows: NDArray[np.int64],
    repeated: NDArray[np.int64],
    interval: Interval,
    differ: Differ,
    spans: list[tuple[int, int]],
) -> NDArray[np.int64]:
    """Report gaps, duplicates, hours of daylight saving and shifted blocks.

    A block that was shifted forward leaves a gap where it begins and doubles as many bars, with
    other values, where it ends; shifted backward, the other way round. So a doubled stretch of k
    bars is matched with the nearest gap of k bars, if k bars are whole quarters of an hour and at
    most 14 hours. Clean data have no doubled bars and cannot be reported. Local time with daylight
    saving is the same picture at fixed places: one hour, on one of a few Sundays.

    Args:
        collector: where findings go.
        ts: times in order, each once.
        rows: their row numbers.
        repeated: pairs (first row, repeated row), in the order of time, [n, 2].
        interval: length of the bars.
        differ: returns for pairs of rows which have different values.
        spans: stretches of bars of another length, in which a longer step is no gap.

    Returns:
        Rows that repeat a time and are explained by a shift.
    """
    gaps, missing = find_gaps(ts, interval)
    regular = np.ones(len(gaps), bool)
    for span in spans:
        first, last = np.searchsorted(ts[gaps], span)
        regular[first:last] = False
    gaps, missing = gaps[regular], missing[regular]
    doubled = _doubled(collector, repeated, differ)
    runs = _runs(collector.ts[doubled[:, 0]], interval)
    explained, used = [np.empty(0, np.int64)], np.zeros(len(gaps), bool)
    for first, last in runs[:_MOST_RUNS]:
        again = doubled[first:last, 1]
        start, count = int(collector.ts[again[0]]), last - first
        if _is_clock_hour(start, count, interval, autumn=True):
            collector.add("dst-duplicate", again)
        else:
            partner = _partner(ts, gaps, missing, start, count, interval)
            if partner is None:
                continue
            used[partner] = True
            gap_row = int(rows[gaps[partner] + 1])
            forward = int(ts[gaps[partner]]) < start
            at = gap_row if forward else int(again[0])
            hours = count * interval.milliseconds / _HOUR_MS * (1 if forward else -1)
            collector.add("shifted-block", np.array([at]), detail=f"by {hours:+g} hours")
        explained.append(again)
    known = np.concatenate(explained)
    different = doubled[~np.isin(doubled[:, 1], known)] if len(known) else doubled
    earlier = dict(zip(different[:, 1].tolist()[:100], different[:, 0].tolist(), strict=False))
    rest = different[:, 1]
    collector.add("duplicate-different", rest, lambda row: f"also row {earlier.get(row, '')}")
    _report_gaps(collector, ts, rows, (gaps[~used], missing[~used]), interval)
    return known


def _doubled(
    collector: Collector, repeated: NDArray[np.int64], differ: Differ
) -> NDArray[np.int64]:
    """Report identical repetitions; return the pairs that differ."""
    if len(repeated) == 0:
        return repeated
    different = differ(repeated[:, 0], repeated[:, 1])
    collector.add("duplicate-same", repeated[~different, 1], lambda _: "repeats a row")
    return repeated[different]


def _runs(times: NDArray[np.int64], interval: Interval) -> list[tuple[int, int]]:
    """Return the stretches [first, last) of doubled bars that follow one another."""
    if len(times) == 0:
        return []
    cuts = np.flatnonzero(interval.steps(times) != interval.milliseconds) + 1
    edges = [0, *cuts[:_MOST_RUNS].tolist(), len(times)]
    return list(pairwise(edges))


def _partner(
    ts: NDArray[np.int64],
    gaps: NDArray[np.int64],
    missing: NDArray[np.int64],
    start: int,
    count: int,
    interval: Interval,
) -> int | None:
    """Return the nearest gap with as many bars as are doubled, if that can be a time zone."""
    length = count * interval.milliseconds
    if length % _QUARTER_MS or length > _LARGEST_SHIFT_MS:
        return None
    same = np.flatnonzero(missing == count)
    if len(same) == 0:
        return None
    return int(same[np.argmin(np.abs(ts[gaps[same]] - start))])


def _report_gaps(
    collector: Collector,
    ts: NDArray[np.int64],
    rows: NDArray[np.int64],
    gaps: tuple[NDArray[np.int64], NDArray[np.int64]],
    interval: Interval,
) -> None:
    """Report gaps; those of exactly the hour that clocks skip are reported as such."""
    at, missing = gaps
    if len(at) == 0:
        return
    length = interval.milliseconds
    spring = np.zeros(len(at), bool)
    hour = np.flatnonzero(missing * length == _HOUR_MS)
    for i in hour[:10_000]:
        spring[i] = _is_clock_hour(int(ts[at[i]]) + length, int(missing[i]), interval, autumn=False)
    collector.add("dst-hole", rows[at[spring] + 1], lambda _: "after a missing hour")
    at, missing = at[~spring], missing[~spring]
    after = dict(zip(rows[at + 1][:100].tolist(), zip(at, missing, strict=True), strict=False))

    def words(row: int) -> str:
        before, count = after[row]
        return f"{count} missing from {iso(int(interval.after(ts[before])))}"

    if len(at):
        longest = int(np.argmax(missing))
        start = iso(int(interval.after(ts[at[longest]])))
        detail = f"{int(missing.sum())} bars missing, at most {int(missing[longest])} from {start}"
        collector.add("gap", rows[at + 1], words, detail=detail)


def _is_clock_hour(start_ms: int, count: int, interval: Interval, *, autumn: bool) -> bool:
    """Return whether a stretch is the hour that a clock skips in spring or repeats in autumn.

    Europe changes on the last Sundays of March and October (the local hour is 1, 2 or 3, from
    Lisbon to Athens), North America on the second Sunday of March (hour 2) and the first of
    November (hour 1).
    """
    if count * interval.milliseconds != _HOUR_MS or not 0 < start_ms < 4e12:
        return False
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=start_ms)
    if at.weekday() != 6 or at.minute:
        return False
    europe = at.month == (10 if autumn else 3) and at.day > 24 and at.hour in (1, 2, 3)
    if autumn:
        return europe or (at.month == 11 and at.day <= 7 and at.hour == 1)
    return europe or (at.month == 3 and 8 <= at.day <= 14 and at.hour == 2)
