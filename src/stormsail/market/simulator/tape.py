"""A panel laid out for the simulator: one short row of numbers for each bar and symbol.

A step reads everything it needs of the market with one gather, and no environment has a copy.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.functional.market import rolling
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig, NoTrade, minutes_of_day

_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS
_FUNDING_MS = 8 * 60 * _MINUTE_MS


class Bar(NamedTuple):
    """The bar in which an order fills, for each environment, [B]."""

    open: Tensor
    high: Tensor
    low: Tensor
    close: Tensor
    rate: Tensor
    """Funding that settles at its open."""
    notional: Tensor
    """Mean notional of the bars before it."""
    may_trade: Tensor
    """Whether an order can be sent at its open, bool."""
    new_day: Tensor
    """Whether it is the first of a UTC day, bool."""


@dataclass(frozen=True, eq=False)
class Tape:
    """Bars of all symbols as rows [S * T, columns]; row t of symbol s is at s * T + t.

    The next bar of a symbol is the next row: an account moves through memory as through time.
    """

    rows: Tensor
    length: int
    """T."""

    @classmethod
    def of(
        cls, panel: Panel, config: MarketConfig, *, device: torch.device, dtype: torch.dtype
    ) -> "Tape":
        """Lay out a panel. Everything is computed in float64 and cast once."""
        notional = torch.zeros_like(panel.close, dtype=torch.float64)
        notional[1:] = _trailing_notional(panel, window=config.costs.impact_window)[:-1]
        day = panel.ts // _DAY_MS
        first = torch.zeros_like(day, dtype=torch.bool)
        first[1:] = day[1:] != day[:-1]
        open_ = panel.tradable & ~closed_times(panel.ts, config.no_trade)[:, None]
        columns = Bar(
            open=panel.open,
            high=panel.high,
            low=panel.low,
            close=panel.close,
            rate=panel.funding if config.funding else torch.zeros_like(panel.funding),
            notional=notional,
            may_trade=open_,
            new_day=first[:, None].expand(panel.shape),
        )
        table = torch.stack([column.double() for column in columns], -1)
        rows = table.transpose(0, 1).reshape(-1, len(columns)).to(device=device, dtype=dtype)
        return cls(rows, len(panel.ts))

    def bar(self, row: Tensor, symbol: Tensor) -> Bar:
        """Return one bar for each environment."""
        columns = self.rows[symbol * self.length + row].unbind(-1)
        open_, high, low, close, rate, notional, may_trade, new_day = columns
        return Bar(open_, high, low, close, rate, notional, may_trade > 0.5, new_day > 0.5)

    def close(self, row: Tensor, symbol: Tensor) -> Tensor:
        """Return one close for each environment."""
        return self.rows[symbol * self.length + row, Bar._fields.index("close")]


def closed_times(ts: Tensor, windows: NoTrade) -> Tensor:
    """Return where an order at that time would fall into a no-trade window, bool [T]."""
    closed = torch.zeros_like(ts, dtype=torch.bool)
    minute = ts % _DAY_MS // _MINUTE_MS
    for window in windows.daily:
        start, end = minutes_of_day(window)
        after, before = minute >= start, minute < end
        closed |= after & before if start < end else after | before
    for begin, finish in windows.ranges:
        start, end = (round(1000 * edge.timestamp()) for edge in (begin, finish))
        closed |= (ts >= start) & (ts < end)
    if windows.around_funding_minutes:
        since = ts % _FUNDING_MS
        distance = torch.minimum(since, _FUNDING_MS - since)
        closed |= distance <= windows.around_funding_minutes * _MINUTE_MS
    return closed


def _trailing_notional(panel: Panel, *, window: int) -> Tensor:
    """Return the mean notional of the last `window` bars of each row, of those that there are."""
    quoted = panel.optional.get("quote_volume")
    notional = (panel.close * panel.volume if quoted is None else quoted).double()
    counted = torch.where(panel.listed, notional, 0.0)
    pad = counted.new_zeros((window - 1, counted.shape[1]))
    total = rolling.window_sum(torch.cat((pad, counted)), window=window)
    count = rolling.window_sum(torch.cat((pad, panel.listed.double())), window=window)
    return total / count.clamp(min=1.0)
