"""`BarWindow`: the newest closed bars of all symbols, as a panel of fixed length that rolls on.

Features read a window as they read a whole history, and give the same bits (`FeatureSet`), as long
as it holds their lookback. What a backtest knows of a bar beside its prices is known here as well:
missing bars repeat the last close and are not tradable, funding goes to the first row at or after
its settlement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.execution.venue import Rates
from stormsail.market.bars import OPTIONAL, PRICES, Bars, Funding
from stormsail.market.instruments import Instrument
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.settlements import SETTLEMENT_JITTER_MS

Row = Mapping[str, float]
"""Columns of one bar by name, without its time."""


class BarWindow:
    """The last N rows of a panel.

    Args:
        bars: history of each symbol, all closed, of one interval.
        rates: funding rates by symbol; empty for spot.
        instruments: terms by symbol.
        rows: N.
        max_missing_share: of the bars of a symbol in the window.

    Raises:
        DataError: if there are fewer rows, a symbol has no bar or too many holes.
    """

    def __init__(
        self,
        bars: Sequence[Bars],
        rates: Mapping[str, Rates],
        instruments: Mapping[str, Instrument],
        *,
        rows: int,
        max_missing_share: float = 1.0,
    ) -> None:
        known = {symbol: _funding(symbol, pairs) for symbol, pairs in rates.items() if pairs}
        panel = Panel.from_bars(bars, known, instruments=instruments)
        if len(panel.ts) < rows:
            raise DataError(
                "data-span",
                wrong=f"{rows} closed bars must be known before the first decision",
                found=f"{len(panel.ts)} from {iso(int(panel.ts[0]))}",
                remedy="Wait until the market has that much history, or choose another symbol.",
            )
        first = int(panel.ts[-rows])
        plain = replace(panel, settlements=None, rates_missing=None)
        self.panel = plain.between(first, int(panel.ts[-1]) + 1)
        self._perpetual = torch.tensor([":" in symbol for symbol in panel.symbols])
        self._check_holes(max_missing_share)

    def _check_holes(self, most: float) -> None:
        panel = self.panel
        share = (~panel.tradable).double().mean(0)
        worst = int(share.argmax())
        late = ~panel.tradable[-1]
        if float(share[worst]) > most or bool(late.any()):
            symbol = panel.symbols[int(late.int().argmax()) if bool(late.any()) else worst]
            count = int((~panel.tradable[:, panel.index(symbol)]).sum())
            raise DataError(
                "bars-stale",
                wrong=f"the last {len(panel.ts)} bars of {symbol} must be there, the newest at "
                f"{iso(int(panel.ts[-1]))} among them",
                found=f"{count} missing",
                remedy="Wait until the exchange shows them, or leave the symbol out.",
            )

    @property
    def interval(self) -> Interval:
        """Length of the bars."""
        return self.panel.interval

    @property
    def newest(self) -> int:
        """Open time of the newest closed bar."""
        return int(self.panel.ts[-1])

    def newest_of(self, symbol: str) -> int:
        """Return the open time of the newest bar of a symbol that came.

        A row that only repeats the last close is no bar. Where there is none, it is older than the
        window.
        """
        came = self.panel.ts[self.panel.tradable[:, self.panel.index(symbol)]]
        return int(came[-1]) if len(came) else int(self.panel.ts[0]) - self.interval.milliseconds

    def append(self, rows: Mapping[str, Row], rates: Mapping[str, Rates]) -> None:
        """Take the next bar of each symbol; one that has none repeats its last close."""
        panel = self.panel
        ts = self.newest + self.interval.milliseconds
        here = torch.tensor([symbol in rows for symbol in panel.symbols])
        last = panel.close[-1].tolist()
        columns: dict[str, list[float]] = {}
        for name in (*PRICES, "volume", *panel.optional):
            columns[name] = [
                rows[symbol][name] if symbol in rows else (last[column] if name in PRICES else 0.0)
                for column, symbol in enumerate(panel.symbols)
            ]
        funding = [settled_at(rates.get(symbol, ()), ts, self.interval) for symbol in panel.symbols]

        def rolled(old: Tensor, new: Sequence[float] | Tensor) -> Tensor:
            return torch.cat((old[1:], torch.as_tensor(new, dtype=old.dtype)[None]))

        self.panel = replace(
            panel,
            ts=rolled(panel.ts, torch.tensor(ts)),
            tradable=rolled(panel.tradable, here),
            listed=rolled(panel.listed, panel.listed[-1] | here),
            funding=rolled(panel.funding, funding),
            has_funding=panel.has_funding | (self._perpetual & (torch.tensor(funding) != 0.0)),
            optional={
                name: rolled(column, columns[name]) for name, column in panel.optional.items()
            },
            open=rolled(panel.open, columns["open"]),
            high=rolled(panel.high, columns["high"]),
            low=rolled(panel.low, columns["low"]),
            close=rolled(panel.close, columns["close"]),
            volume=rolled(panel.volume, columns["volume"]),
        )


def settled_at(rates: Rates, ts: int, interval: Interval) -> float:
    """Return the sum of the rates that settle at the row that opens at `ts`, as a panel does."""
    jitter = min(SETTLEMENT_JITTER_MS, interval.milliseconds - 1)
    after = ts - interval.milliseconds + jitter
    return sum(rate for settled, rate in rates if after < settled <= ts + jitter)


def bar_rows(bars: Bars) -> list[tuple[int, Row]]:
    """Return each bar as its open time and its columns."""
    names = [name for name in (*PRICES, "volume", *OPTIONAL) if name in bars.columns]
    table = {name: bars.column(name).tolist() for name in names}
    return [
        (ts, {name: table[name][row] for name in names}) for row, ts in enumerate(bars.ts.tolist())
    ]


def _funding(symbol: str, pairs: Rates) -> Funding:
    ts, rate = zip(*pairs, strict=True)
    columns = {"ts": np.array(ts, dtype=np.int64), "funding_rate": np.array(rate, dtype=np.float64)}
    return Funding(symbol, pa.table(columns))
