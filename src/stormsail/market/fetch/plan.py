"""What is missing, what was asked for, and where the holes are: arithmetic on times, no I/O."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.market.interval import Interval

ASKED = "asked"
"""Note of the stored bars: the spans for which the exchange gave all it has, as JSON pairs."""

GAPS = "gaps"
"""Note of the stored bars: the holes between the first and the last bar, as JSON."""


@dataclass(frozen=True, order=True)
class Span:
    """Times from `start` up to, but without, `end`, in UTC milliseconds."""

    start: int
    end: int


@dataclass(frozen=True)
class Gap:
    """Bars that are not there.

    Attributes:
        start: open time of the first missing bar.
        count: how many are missing in a row.
        confirmed: whether the exchange was asked twice and returned nothing; otherwise the hole
            came with bars from elsewhere and nobody asked.
    """

    start: int
    count: int
    confirmed: bool


def iso(ms: int) -> str:
    """Return a time as `2021-01-01T00:00:00Z`, with milliseconds only where there are some."""
    value = np.datetime64(int(ms), "ms")
    return f"{value.astype('datetime64[s]') if ms % 1000 == 0 else value}Z"


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


def gaps(ts: NDArray[np.int64], interval: Interval, asked: Iterable[Span]) -> list[Gap]:
    """Return the holes between the first and the last bar."""
    step, known = interval.milliseconds, union(asked)
    found = []
    for row in np.flatnonzero(np.diff(ts) > step):
        hole = Span(int(ts[row]) + step, int(ts[row + 1]))
        confirmed = any(span.start <= hole.start and hole.end <= span.end for span in known)
        found.append(Gap(hole.start, (hole.end - hole.start) // step, confirmed))
    return found


def asked_note(spans: Iterable[Span]) -> str:
    """Return the spans as the text of a note."""
    return json.dumps([[span.start, span.end] for span in union(spans)])


def gaps_note(holes: Iterable[Gap]) -> str:
    """Return the holes as the text of a note."""
    return json.dumps([asdict(hole) for hole in holes])


def read_asked(notes: Mapping[str, str]) -> list[Span]:
    """Return the spans of a note; a note that is absent or not ours means nothing was asked."""
    try:
        pairs = json.loads(notes.get(ASKED, "[]"))
        return union(Span(int(start), int(end)) for start, end in pairs)
    except (TypeError, ValueError):
        return []
