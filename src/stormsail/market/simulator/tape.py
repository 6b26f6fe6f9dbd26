"""A panel laid out for the simulator: one short row of numbers for each bar and symbol.

A step reads everything it needs of the market with one gather, and no environment has a copy.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.functional.market import rolling
from stormsail.market.bars import MARKED
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig, NoTrade, minutes_of_day

_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS
_FUNDING_MS = 8 * 60 * _MINUTE_MS


class Bar(NamedTuple):
    """The bar in which an order fills, for each environment, [B]."""

    open: Tensor
    high: Tensor
    """Of the mark price where there is one: only margin depends on it."""
    low: Tensor
    """Likewise."""
    close: Tensor
    rate: Tensor
    """Funding that settles at its open."""
    notional: Tensor
    """Mean notional of the bars before it."""
    may_trade: Tensor
    """Whether an order can be sent at its open, bool."""
    new_day: Tensor
    """Whether it is the first of a UTC day, bool."""
    mark_open: Tensor | None
    """Open of the mark price, or of the bar where there is none; None if no symbol has marks."""
    delisted: Tensor | None
    """Whether it is the first after the last that the symbol was traded in, bool; None if no symbol
    is delisted."""

    def expand(self, shape: tuple[int, ...]) -> "Bar":
        """Return the same bars in another shape."""
        return Bar(*(None if part is None else part.expand(shape) for part in self))  # type: ignore[arg-type]


_COLUMNS = ("open", "high", "low", "close", "rate", "notional", "mark_open", "kind")
"""Eight numbers a row, so that a GPU reads a bar of float32 as one sector of 32 bytes."""

_CLOSED, _OPEN, _DELISTED = 1.0, 2.0, 3.0
"""Size of `kind`; it is negative on the first bar of a UTC day."""


@dataclass(frozen=True, eq=False)
class Tape:
    """Bars of all symbols as rows [S * T, columns]; row t of symbol s is at s * T + t.

    The next bar of a symbol is the next row: an account moves through memory as through time.
    """

    rows: Tensor
    length: int
    """T."""
    marks: bool = False
    """Whether there are mark prices."""
    delists: bool = False
    """Whether a symbol is delisted."""

    @classmethod
    def of(
        cls, panel: Panel, config: MarketConfig, *, device: torch.device, dtype: torch.dtype
    ) -> "Tape":
        """Lay out a panel. Everything is computed in float64 and cast once."""
        notional = torch.zeros_like(panel.close, dtype=torch.float64)
        notional[1:] = trailing_notional(panel, window=config.costs.impact_window)[:-1]
        day = panel.ts // _DAY_MS
        first = torch.zeros_like(day, dtype=torch.bool)
        first[1:] = day[1:] != day[:-1]
        row = torch.arange(len(panel.ts), device=day.device)[:, None]
        kind = torch.where(may_trade(panel, config), _OPEN, _CLOSED)
        delisted = row == delisting_rows(panel, config)
        kind = torch.where(delisted, _DELISTED, kind)
        margin = margin_prices(panel)
        columns = {
            "open": panel.open,
            "high": margin["high"],
            "low": margin["low"],
            "close": panel.close,
            "rate": paid_rates(panel, config),
            "notional": notional,
            "mark_open": margin["open"],
            "kind": torch.where(first[:, None], -kind, kind),
        }
        table = torch.stack([columns[name].double() for name in _COLUMNS], -1)
        rows = table.transpose(0, 1).reshape(-1, len(_COLUMNS)).to(device=device, dtype=dtype)
        marks, delists = panel.mark is not None, bool(delisted.any())
        return cls(rows, len(panel.ts), marks=marks, delists=delists)

    def bar(self, row: Tensor, symbol: Tensor) -> Bar:
        """Return one bar for each environment."""
        columns = self.rows[symbol * self.length + row].unbind(-1)
        open_, high, low, close, rate, notional, mark_open, kind = columns
        size = kind.abs()
        return Bar(
            open=open_,
            high=high,
            low=low,
            close=close,
            rate=rate,
            notional=notional,
            may_trade=size == _OPEN,
            new_day=kind < 0.0,
            mark_open=mark_open if self.marks else None,
            delisted=size == _DELISTED if self.delists else None,
        )

    def close(self, row: Tensor, symbol: Tensor) -> Tensor:
        """Return one close for each environment."""
        return self.rows[symbol * self.length + row, _COLUMNS.index("close")]


def traded(panel: Panel, config: MarketConfig) -> Tensor:
    """Return where there is a bar in which something was traded, bool [T, S].

    A bar without volume is a frozen price: an exchange that is down, a market that nobody trades
    in, a coin that is dead. Nobody would take the other side of an order.
    """
    return panel.tradable if config.trade_without_volume else panel.tradable & (panel.volume > 0.0)


def may_trade(panel: Panel, config: MarketConfig) -> Tensor:
    """Return where an order at the open of a row can fill, bool [T, S]."""
    return traded(panel, config) & ~closed_times(panel.ts, config.no_trade)[:, None]


def delisting_rows(panel: Panel, config: MarketConfig) -> Tensor:
    """Return the row at which positions in each symbol are closed, int64 [S]; T where none are.

    It is the first row after the last traded bar, if the data go on for `silent_days` after that
    bar: a shorter silence may be an outage, or a symbol that was fetched a little earlier. Where
    the terms of a symbol say when it was delisted, any silence will do. A symbol that was never
    traded is not delisted.
    """
    length = len(panel.ts)
    row = torch.arange(length, device=panel.ts.device)[:, None]
    last = torch.where(traded(panel, config), row, -1).amax(0)
    silent = panel.ts[-1] - panel.ts[last.clamp(min=0)]
    stated = [panel.instruments.get(symbol) for symbol in panel.symbols]
    known = torch.tensor([own is not None and own.terms.delisted is not None for own in stated])
    least = torch.where(known.to(silent.device), 1.0, config.delisting.silent_days * _DAY_MS)
    return torch.where((last >= 0) & (silent >= least), last + 1, length)


def margin_prices(panel: Panel) -> dict[str, Tensor]:
    """Return open, high and low by which margin is watched: the mark price's, or the bar's own."""
    own = {name: getattr(panel, name) for name in MARKED}
    if panel.mark is None:
        return own
    marks = dict(zip(MARKED, panel.mark.unbind(-1), strict=True))
    return {name: torch.where(marks[name].isnan(), own[name], marks[name]) for name in MARKED}


def paid_rates(panel: Panel, config: MarketConfig) -> Tensor:
    """Return the funding rate that settles at each row, with the one assumed where it is not known.

    [T, S]; 0 everywhere where no funding is paid.
    """
    if not config.funding:
        return torch.zeros_like(panel.funding)
    if isinstance(config.funding_missing, str) or panel.rates_missing is None:
        return panel.funding
    return panel.funding + config.funding_missing * panel.rates_missing.to(panel.funding.dtype)


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


def trailing_notional(panel: Panel, *, window: int) -> Tensor:
    """Return the mean notional of the last `window` bars of each row, of those that there are."""
    quoted = panel.optional.get("quote_volume")
    notional = (panel.close * panel.volume if quoted is None else quoted).double()
    counted = torch.where(panel.listed, notional, 0.0)
    pad = counted.new_zeros((window - 1, counted.shape[1]))
    total = rolling.window_sum(torch.cat((pad, counted)), window=window)
    count = rolling.window_sum(torch.cat((pad, panel.listed.double())), window=window)
    return total / count.clamp(min=1.0)
