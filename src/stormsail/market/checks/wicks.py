"""Highs and lows against neighbouring bars, and against the mark price or another venue.

A wick is how far a high lies above open and close, or a low below them. Long wicks are real: of
380,000 hourly bars of seven coins 132 had one of more than 10 %, and all but one of these less than
30 %. But what is real is not alone. A crash moves its neighbours, has a body, and is traded: the
range of a bar grows about as the root of its volume. A wrong price has none of that, and it decides
all the same: it liquidates whoever it reaches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.market.bars import PRICES, Bars
from stormsail.market.checks.columns import Columns
from stormsail.market.checks.report import Collector
from stormsail.market.checks.times import Order, in_order

_LEAST = 1.1  # factor of the shortest wick that is looked at
_SLIPPED = 9.0  # factor from which on a decimal point has slipped
_SCORE = 4.0  # usual ranges that a wick must exceed
_SIDE = 24  # bars on either side whose ranges are usual
_NEAR = 2  # bars on either side whose bodies may explain a wick
_BODY = 0.5  # share of the largest body near it that counts as a usual range
_MEAN = 0.5  # share of the mean range: where most bars do not move, the median is zero
_PART = 16_384  # candidates that are scored at once

LEVERAGES = (2, 3, 5, 10, 20)
"""Leverages of the positions that are tried against a suspicious wick."""

BEFORE = 168
"""Bars before a suspicious wick at whose closes those positions are opened."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """Highs and lows of the same market elsewhere: the mark price, or another venue."""

    ts: NDArray[np.int64]
    high: _Floats
    low: _Floats


@dataclass(frozen=True)
class _Bars:
    """Possible bars in the order of time."""

    rows: NDArray[np.int64]
    ts: NDArray[np.int64]
    open: _Floats
    high: _Floats
    low: _Floats
    close: _Floats
    volume: _Floats | None

    def at(self, kept: NDArray[np.bool_]) -> "_Bars":
        """Return some of the bars."""
        volume = None if self.volume is None else self.volume[kept]
        prices = self.open[kept], self.high[kept], self.low[kept], self.close[kept]
        return _Bars(self.rows[kept], self.ts[kept], *prices, volume)

    def mirrored(self) -> "_Bars":
        """Return the bars of 1 / price: lows become highs."""
        prices = 1.0 / self.open, 1.0 / self.low, 1.0 / self.high, 1.0 / self.close
        return _Bars(self.rows, self.ts, *prices, self.volume)


def check_wicks(
    collector: Collector, columns: Columns, order: Order, reference: Reference | None = None
) -> None:
    """Report highs and lows that their neighbours, or a reference, do not bear out.

    From a factor of nine on a decimal point has slipped: that is a spike, whatever else is known.
    Below, a wick of log length `w` of at least log 1.1 is suspicious where

        w > 4 s sqrt(max(1, v / V)),    s = max(median r, mean r / 2, max b / 2),

    with ranges r = log(high / low) and median volume V of the 24 bars on either side, and bodies
    b = |log(close / open)| of the bar and two on either side. *Ours*; the figures are measured in
    `docs/evidence.md`. Where a reference has the bar, it decides instead: suspicious is what lies
    by more than a factor of 1.1 outside its high or low.

    Args:
        collector: where findings go.
        columns: the rows as numbers.
        order: their order in time.
        reference: highs and lows of the same market, known at some of the times.
    """
    bars = _possible(columns.values, order)
    for name in ("high", "low"):
        upward = name == "high"
        side, slipped, at = _outside(bars, reference, upward=upward)
        prices, close = columns.values[name], columns.values["close"]
        words = {
            int(row): f"{name}={prices[row]:g} close={close[row]:g}" for row in bars.rows[slipped]
        }
        collector.add("spike", bars.rows[slipped], words.get)
        _report(collector, side, at, upward=upward)


def suspicious_rows(bars: Bars, reference: Reference | None = None) -> NDArray[np.int64]:
    """Return the rows of all highs and lows that `check_wicks` would report, in order."""
    order = Order(np.arange(len(bars)), bars.ts)
    names = [name for name in (*PRICES, "volume") if name in bars.columns]
    possible = _possible({name: bars.column(name) for name in names}, order)
    sides = [_outside(possible, reference, upward=upward)[1:] for upward in (True, False)]
    return np.unique(possible.rows[np.concatenate([rows for pair in sides for rows in pair])])


def _outside(
    bars: _Bars, reference: Reference | None, *, upward: bool
) -> tuple[_Bars, NDArray[np.int64], NDArray[np.int64]]:
    """Return the bars as seen upward, highs whose decimal point slipped, and suspicious ones."""
    none = np.empty(0, np.int64)
    at = _candidates(bars, upward=upward)
    if len(at) == 0 or len(bars.rows) < 2 * _NEAR + 2:
        return bars, none, none
    side = bars if upward else bars.mirrored()
    factor = side.high[at] / np.maximum(side.open[at], side.close[at])
    slipped = factor > _SLIPPED
    rest = at[~slipped]
    known = _known(reference, side, rest, upward=upward)
    return side, at[slipped], rest[_suspicious(side, rest, np.log(factor[~slipped]), known)]


def _possible(values: Mapping[str, _Floats], order: Order) -> _Bars:
    o, h, low, c = (in_order(values[name], order.rows) for name in PRICES)
    flow = in_order(values["volume"], order.rows) if "volume" in values else None
    kept = np.isfinite(h) & (low > 0) & (low <= np.minimum(o, c)) & (h >= np.maximum(o, c))
    bars = _Bars(order.rows, order.ts, o, h, low, c, flow)
    return bars if kept.all() else bars.at(kept)


def _candidates(bars: _Bars, *, upward: bool) -> NDArray[np.int64]:
    if upward:
        long = bars.high > _LEAST * np.maximum(bars.open, bars.close)
    else:
        long = np.minimum(bars.open, bars.close) > _LEAST * bars.low
    return np.flatnonzero(long)


def _known(
    reference: Reference | None, bars: _Bars, at: NDArray[np.int64], *, upward: bool
) -> _Floats:
    """Return the high that a reference has at these bars, NaN where it has none."""
    known = np.full(len(at), np.nan)
    if reference is None or len(reference.ts) == 0:
        return known
    place = np.minimum(np.searchsorted(reference.ts, bars.ts[at]), len(reference.ts) - 1)
    there = reference.ts[place] == bars.ts[at]
    high = reference.high if upward else 1.0 / reference.low
    known[there] = high[place[there]]
    return known


def _suspicious(
    bars: _Bars, at: NDArray[np.int64], length: _Floats, known: _Floats
) -> NDArray[np.bool_]:
    parts = [slice(i, i + _PART) for i in range(0, len(at), _PART)]
    usual = [_usual(bars, at[part]) for part in parts]
    alone = length > _SCORE * (np.concatenate(usual) if usual else np.empty(0))
    return np.where(np.isnan(known), alone, bars.high[at] > _LEAST * known)


def _usual(bars: _Bars, at: NDArray[np.int64]) -> _Floats:
    """Return the range that a bar's neighbours, bodies and volume make usual."""
    count = len(bars.rows)
    width = min(2 * _SIDE + 1, count)
    start = np.clip(at - _SIDE, 0, count - width)
    around = start[:, None] + np.arange(width)
    others = around != at[:, None]
    ranges = np.where(others, np.log(bars.high[around] / bars.low[around]), np.nan)
    near = np.clip(at[:, None] + np.arange(-_NEAR, _NEAR + 1), 0, count - 1)
    body = np.abs(np.log(bars.close[near] / bars.open[near])).max(axis=1)
    usual = np.maximum(np.nanmedian(ranges, axis=1), _MEAN * np.nanmean(ranges, axis=1))
    usual = np.maximum(usual, _BODY * body)
    if bars.volume is None:
        return np.asarray(usual)
    typical = np.nanmedian(np.where(others, bars.volume[around], np.nan), axis=1)
    traded = np.divide(bars.volume[at], typical, out=np.ones(len(at)), where=typical > 0)
    return np.asarray(usual * np.sqrt(np.fmax(1.0, traded)))


def _report(collector: Collector, bars: _Bars, at: NDArray[np.int64], *, upward: bool) -> None:
    if len(at) == 0:
        return
    leverage = np.array(LEVERAGES, dtype=np.float64)
    # In the mirror a long from price p is a short from 1 / p that is gone at 1 / (p - p / L).
    gone = 1.0 + 1.0 / leverage if upward else 1.0 / (1.0 - 1.0 / leverage)
    hinging = {int(bars.rows[i]): _liquidations(bars, int(i), gone) for i in at}
    factor = bars.high[at] / np.maximum(bars.open[at], bars.close[at])
    times = dict(zip(bars.rows[at].tolist(), factor.tolist(), strict=True))
    name, which = ("high", "shorts") if upward else ("low", "longs")
    collector.add(
        "false-wick",
        bars.rows[at],
        lambda row: f"{name} {times[row]:.4g} times off open and close; {hinging[row]} {which}",
        detail=f"{sum(hinging.values())} liquidations of {which} hinge on {name}s",
    )


def _liquidations(bars: _Bars, at: int, gone: _Floats) -> int:
    """Return how many positions a high alone would liquidate.

    Positions are opened at the closes of the 168 bars before, each at 2, 3, 5, 10 and 20 times
    leverage. A short of leverage L from price p is gone at p (1 + 1 / L), a long at p (1 - 1 / L).
    Counted are those that are alive until the bar, and that its open and close leave alive. *Ours.*

    Args:
        bars: as seen upward.
        at: the bar.
        gone: price at which a position ends, as a multiple of its own, for each leverage.
    """
    first = max(0, at - BEFORE)
    entry = bars.close[first:at]
    later = np.append(bars.high[first + 1 : at], 0.0)
    highest = np.maximum.accumulate(later[::-1])[::-1]  # after the entry, before `at`
    highest = np.maximum(highest, max(bars.open[at], bars.close[at]))
    limits = entry * gone[:, None]
    return int(np.count_nonzero((highest < limits) & (limits <= bars.high[at])))
