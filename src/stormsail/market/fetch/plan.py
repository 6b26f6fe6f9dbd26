"""Time spans of a fetch: missing, requested before, and gaps in the stored bars."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.market.checks.gaps import find_gaps
from stormsail.market.interval import Interval

REQUESTED = "requested"
"""Note of the stored bars: the spans for which the exchange gave all it has, as JSON pairs."""

GAPS = "gaps"
"""Note of the stored bars: the gaps between the first and the last bar, as JSON."""


@dataclass(frozen=True, order=True)
class Span:
    """Times from `start` up to, but without, `end`, in UTC milliseconds."""

    start: int
    end: int


@dataclass(frozen=True)
class Gap:
    """Missing bars between two stored ones.

    Attributes:
        start: open time of the first missing bar.
        count: how many are missing in a row.
        confirmed: whether they were requested twice and the exchange returned nothing; otherwise
            the gap came with bars from elsewhere and was never requested.
    """

    start: int
    count: int
    confirmed: bool


def bar_at_or_after(ms: int, interval: Interval) -> int:
    """Return the first open time of the grid that is not before `ms`."""
    return interval.origin_ms - (interval.origin_ms - ms) // interval.milliseconds * (
        interval.milliseconds
    )


def closed_end(now_ms: int, interval: Interval) -> int:
    """Return the open time of the bar that is still forming at `now_ms`."""
    return now_ms - (now_ms - interval.origin_ms) % interval.milliseconds


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same times as the fewest spans, sorted; empty spans vanish."""
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.start < span.end):
        if joined and span.start <= joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def missing(wanted: Span, covered: Iterable[Span]) -> list[Span]:
    """Return what of `wanted` no covered span holds."""
    result, cursor = [], wanted.start
    for span in union(covered):
        if cursor < min(span.start, wanted.end):
            result.append(Span(cursor, min(span.start, wanted.end)))
        cursor = max(cursor, span.end)
    if cursor < wanted.end:
        result.append(Span(cursor, wanted.end))
    return result


def gaps(ts: NDArray[np.int64], interval: Interval, requested: Iterable[Span]) -> list[Gap]:
    """Return the gaps between the first and the last bar, and which of them are confirmed."""
    step, known = interval.milliseconds, union(requested)
    result = []
    for row, count in zip(*find_gaps(ts, interval), strict=True):
        start = int(ts[row]) + step
        end = start + int(count) * step
        confirmed = any(span.start <= start and end <= span.end for span in known)
        result.append(Gap(start, int(count), confirmed))
    return result


def requested_note(spans: Iterable[Span]) -> str:
    """Return the spans as the text of a note."""
    return json.dumps([[span.start, span.end] for span in union(spans)])


def gaps_note(gaps: Iterable[Gap]) -> str:
    """Return the gaps as the text of a note."""
    return json.dumps([asdict(gap) for gap in gaps])


def read_requested(notes: Mapping[str, str]) -> list[Span]:
    """Return the spans of the note `requested`; none if it is absent or in another form."""
    try:
        pairs = json.loads(notes.get(REQUESTED, "[]"))
        return union(Span(int(start), int(end)) for start, end in pairs)
    except (TypeError, ValueError):
        return []
