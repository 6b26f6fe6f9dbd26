"""Settlements of a perpetual's funding: when they are due, and which of them have no known rate."""

import numpy as np
from numpy.typing import NDArray

from stormsail.market.bars import Bars, Funding

SETTLEMENT_MS = 8 * 3_600_000
"""Perpetuals settle at 00, 08 and 16 UTC; some of them more often, none less."""

LEAST_COVERAGE = 0.99
"""Share of the settlements of a span whose rates must be known."""

_MINUTE_MS = 60_000
_NEIGHBOURS = 10


def is_perpetual(symbol: str) -> bool:
    """Return whether a symbol pays funding: `BTC/USDT:USDT` names the currency it settles in."""
    return ":" in symbol


SETTLEMENT_JITTER_MS = 15_000
"""Exchanges stamp a settlement a few milliseconds, and at most some seconds, after its hour."""


def count_settlements(
    bars: Bars, funding: Funding | None, *, jitter_ms: int = SETTLEMENT_JITTER_MS
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the times of the settlements that concern these bars, with and without a known rate.

    A spot symbol has none.
    """
    nothing = np.zeros(0, dtype=np.int64)
    if funding is None and not is_perpetual(bars.symbol):
        return nothing, nothing
    first, last = settled_span(bars)
    known = nothing if funding is None else funding.ts
    known = known[(known > first + jitter_ms) & (known <= last + jitter_ms)]
    return known, missing_settlements(funding, (first, last))


def settled_span(bars: Bars) -> tuple[int, int]:
    """Return the first and the last open between which a position can be held.

    Funding that settles after the first and up to the last of them is due: a position is opened at
    the second bar at the earliest, and the last one that counts is the last with volume.
    """
    traded = np.flatnonzero(bars.column("volume") > 0.0)
    return int(bars.ts[0]), int(bars.ts[traded[-1] if len(traded) else -1])


def missing_settlements(funding: Funding | None, span: tuple[int, int]) -> NDArray[np.int64]:
    """Return the times within a span at which funding settled and no rate is known, ascending.

    Rates tell how often they settle: between two of them as often as the median distance of the
    rates around says, and never less often than every 8 hours. Without any, at 00, 08 and 16 UTC.

    Args:
        funding: known rates, or None.
        span: times after the first and up to the last, in UTC milliseconds.
    """
    first, last = span
    if funding is None or not len(funding):
        earliest = -(-(first + 1) // SETTLEMENT_MS) * SETTLEMENT_MS
        return np.arange(earliest, last + 1, SETTLEMENT_MS, dtype=np.int64)
    known = (funding.ts + _MINUTE_MS // 2) // _MINUTE_MS * _MINUTE_MS
    gaps = np.diff(known)
    if len(gaps):
        padded = np.pad(gaps, _NEIGHBOURS, mode="reflect" if len(gaps) > _NEIGHBOURS else "edge")
        around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOURS + 1)
        usual = np.median(around, axis=1)
    else:
        usual = np.array([SETTLEMENT_MS])
    period = np.clip(np.round(usual / _MINUTE_MS) * _MINUTE_MS, _MINUTE_MS, SETTLEMENT_MS)
    period = period.astype(np.int64)
    before = np.arange(known[0] - period[0], first, -period[0], dtype=np.int64)[::-1]
    after = np.arange(known[-1] + period[-1], last + 1, period[-1], dtype=np.int64)
    count = np.maximum(np.round(gaps / period[: len(gaps)]).astype(np.int64) - 1, 0)
    holes = np.repeat(np.arange(len(gaps)), count)
    step = 1 + np.arange(len(holes)) - np.repeat(np.cumsum(count) - count, count)
    inside = known[:-1][holes] + step * period[: len(gaps)][holes] if len(gaps) else known[:0]
    due: NDArray[np.int64] = np.concatenate((before, inside, after))
    return due[(due > first) & (due <= last)]
