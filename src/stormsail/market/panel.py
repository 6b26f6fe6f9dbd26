"""`Panel`: bars of several symbols on one time grid, as tensors."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.arguments import wrong_type
from stormsail.core.clock import iso
from stormsail.core.errors import ArgumentError, ChoiceError, DataError, DtypeError, nearest
from stormsail.core.files import documents
from stormsail.core.notebook import html_table, several, short_repr
from stormsail.market.bars import MARKED, OPTIONAL, PRICES, Bars, Funding, Mark
from stormsail.market.instruments import Instrument
from stormsail.market.interval import Interval
from stormsail.market.resample import check_alignment
from stormsail.market.settlements import SETTLEMENT_JITTER_MS, count_settlements
from stormsail.market.store import Store

_IF_GIVEN = ("settlements", "rates_missing", "mark")


@dataclass(frozen=True, eq=False)
class Panel:
    """Bars of S symbols on one regular grid of T open times.

    Where a symbol has no bar, open, high, low and close all repeat its last close, volumes are 0
    and `tradable` is false. Before a symbol's first bar nothing is known: `listed` is false there
    and the prices are the first open, a placeholder that keeps arithmetic finite and that no
    decision may read. Both masks at row t depend on rows up to t only: a delisting shows as
    `tradable` going false, never as `listed` going false beforehand.
    """

    symbols: tuple[str, ...]
    interval: Interval
    ts: Tensor
    """Open times in UTC milliseconds, int64 [T]."""
    open: Tensor
    high: Tensor
    low: Tensor
    close: Tensor
    volume: Tensor
    """Base currency, [T, S]."""
    tradable: Tensor
    """Whether there is a bar, bool [T, S]."""
    listed: Tensor
    """Whether the symbol has had its first bar, bool [T, S]."""
    funding: Tensor
    """Sum of the rates that settle after the previous row's open and up to this one's, [T, S]."""
    has_funding: Tensor
    """Whether rates were given for a symbol, bool [S]."""
    funding_outside: tuple[int, ...]
    """Rates of each symbol that settle before the first row or after the last, and are not used."""
    settlements: Tensor | None = None
    """Funding settlements that were due at each row, int64 [T, S]; None where nobody counted."""
    rates_missing: Tensor | None = None
    """How many of them have no known rate, int64 [T, S]; they add nothing to `funding`."""
    mark: Tensor | None = None
    """Open, high and low of the mark price, [T, S, 3]; NaN where it is not known."""
    optional: Mapping[str, Tensor] = field(default_factory=dict)
    """Further columns, [T, S], only those that every symbol has."""
    instruments: Mapping[str, Instrument] = field(default_factory=dict)
    """Stored terms by symbol; a symbol without an entry has none."""

    @classmethod
    def from_bars(
        cls,
        bars: Sequence[Bars],
        funding: Mapping[str, Funding] | None = None,
        *,
        marks: Mapping[str, Mark] | None = None,
        signals: Mapping[str, Mapping[str, NDArray[np.float64]]] | None = None,
        instruments: Mapping[str, Instrument] | None = None,
        dtype: torch.dtype = torch.float64,
        settlement_jitter_ms: int = SETTLEMENT_JITTER_MS,
    ) -> "Panel":
        """Align bars on the grid from the earliest to the latest open time.

        Args:
            bars: one element a symbol, all of one interval.
            funding: rates by symbol; a symbol without an entry pays none, and all settlements of a
                perpetual without one are counted as missing.
            marks: mark prices by symbol, of the same interval; those between the bars are used.
            signals: further columns by symbol and name, row by row beside its bars, such as the
                leak of a synthetic world; 0 where there is no bar.
            instruments: stored terms by symbol. Bars that end before its listing, or open at or
                after its delisting, are not tradable.
            dtype: type of prices, volumes and rates.
            settlement_jitter_ms: a settlement at most this long after a row's open counts for that
                row. Without it, a rate stamped 08:00:00.003 would be paid a whole bar late.

        Raises:
            DataError: if there is no bar, intervals differ, a symbol comes twice, a bar lies off
                the grid or holds a number that is not finite.
            ChoiceError: if rates or marks are given for a symbol that has no bars.
        """
        if not dtype.is_floating_point:
            raise DtypeError(
                wrong="`dtype` must be a floating point type",
                found=str(dtype),
                remedy="Pass torch.float64 or torch.float32.",
            )
        interval = _common_interval(bars)
        symbols = tuple(part.symbol for part in bars)
        rates = dict(funding or {})
        _check_funding(rates, symbols)
        start = min(int(part.ts[0]) for part in bars)
        end = max(int(part.ts[-1]) for part in bars)
        ts = np.arange(start, end + 1, interval.milliseconds, dtype=np.int64)
        rows = [(part.ts - start) // interval.milliseconds for part in bars]
        fields = _fields(bars, rows, len(ts))
        extra = _signals(bars, rows, len(ts), signals or {})
        jitter = min(settlement_jitter_ms, interval.milliseconds - 1)
        placed = [_settled(rates.get(name), ts, interval, jitter) for name in symbols]
        due = [_due(part, rates.get(part.symbol), ts, interval, jitter) for part in bars]
        marked = _marks(marks or {}, symbols, ts, interval)

        def real(columns: Sequence[NDArray[np.float64]]) -> Tensor:
            return torch.from_numpy(np.stack(columns, axis=1)).to(dtype)

        return cls(
            symbols=symbols,
            interval=interval,
            ts=torch.from_numpy(ts),
            tradable=torch.from_numpy(np.stack([columns["tradable"] for columns in fields], 1) > 0)
            & _open_for_trade(symbols, ts, interval, instruments or {}),
            listed=torch.from_numpy(np.stack([columns["listed"] for columns in fields], 1) > 0),
            funding=real([rate for rate, _ in placed]),
            has_funding=torch.tensor([name in rates for name in symbols]),
            funding_outside=tuple(outside for _, outside in placed),
            settlements=torch.from_numpy(np.stack([counted for counted, _ in due], 1)),
            rates_missing=torch.from_numpy(np.stack([missing for _, missing in due], 1)),
            mark=None if marked is None else torch.from_numpy(marked).to(dtype),
            optional={
                name: real([columns[name] for columns in fields])
                for name in OPTIONAL
                if name in fields[0]
            }
            | {name: real(columns) for name, columns in extra.items()},
            instruments={name: own for name, own in (instruments or {}).items() if name in symbols},
            **{name: real([columns[name] for columns in fields]) for name in (*PRICES, "volume")},
        )

    @property
    def shape(self) -> tuple[int, int]:
        """T rows and S symbols."""
        return len(self.ts), len(self.symbols)

    def _shown(self) -> dict[str, object]:
        return {
            "symbols": several(self.symbols),
            "interval": self.interval,
            "bars": len(self.ts),
            "first": iso(int(self.ts[0])),
            "last": iso(int(self.ts[-1])),
            "missing": int((self.listed & ~self.tradable).sum()),
        }

    def __repr__(self) -> str:
        return short_repr("Panel", self._shown())

    def _repr_html_(self) -> str:
        return html_table("Panel", self._shown())

    def index(self, symbol: str) -> int:
        """Return the column of a symbol.

        Raises:
            ChoiceError: if it is not here.
        """
        _check_known(symbol, self.symbols)
        return self.symbols.index(symbol)

    def between(self, start_ms: int, end_ms: int) -> "Panel":
        """Return the rows that open in [start, end), as views of these tensors.

        `funding_outside` stays that of the whole panel.
        """
        where = torch.tensor([start_ms, end_ms], dtype=torch.int64, device=self.ts.device)
        first, last = torch.searchsorted(self.ts, where).tolist()
        return self._each(lambda tensor: tensor[first:last], timed_only=True)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Panel":
        """Return the panel on another device or with another type of floating point numbers."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return self._each(moved)

    def digest(self) -> str:
        """Return the SHA-256 of symbols, interval and every value, on whatever device they are.

        Stored terms are part of it, whoever stated them; a panel without any has the hash that it
        had before there were terms.
        """
        digest = hashlib.sha256(f"panel-1 {self.interval} {' '.join(self.symbols)}\n".encode())
        for symbol in self.symbols:
            if symbol in self.instruments:
                terms = self.instruments[symbol].terms.document()
                digest.update(f"terms {symbol} ".encode() + documents.encode(terms) + b"\n")
        read = {**self._tensors(), **self.optional}
        read.pop("settlements", None)  # a count; only what is missing can change money
        if self.rates_missing is not None and not self.rates_missing.any():
            del read["rates_missing"]  # complete rates need no word
        for name, tensor in sorted(read.items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        names = (*PRICES, "ts", "volume", "tradable", "listed", "funding", "has_funding")
        given = {name: getattr(self, name) for name in (*names, *_IF_GIVEN)}
        return {name: tensor for name, tensor in given.items() if tensor is not None}

    def _each(self, change: Callable[[Tensor], Tensor], *, timed_only: bool = False) -> "Panel":
        tensors = {
            name: tensor if timed_only and name == "has_funding" else change(tensor)
            for name, tensor in self._tensors().items()
        }
        optional = {name: change(tensor) for name, tensor in self.optional.items()}
        return replace(self, optional=optional, **tensors)  # type: ignore[arg-type]


def _no_bars(value: object) -> ArgumentError:
    remedy = "Write `Panel.from_bars([bars])`, or read a store with `stormsail.load_bars`."
    return wrong_type(
        value, name="bars", must="a list of `Bars`, one for each symbol", remedy=remedy
    )


def _common_interval(bars: Sequence[Bars]) -> Interval:
    """Check what a panel can be made of; return the one interval of all bars."""
    given: object = bars
    if not isinstance(given, Sequence):
        raise _no_bars(given)
    for part in given:
        if not isinstance(part, Bars):
            raise _no_bars(part)
    empty = [part.symbol for part in bars if not len(part)]
    if empty or not bars:
        raise DataError(
            "data-missing",
            wrong="a panel must have at least one symbol, and each at least one bar",
            found=f"no bar of {', '.join(empty)}" if empty else "no symbol",
            remedy="Import or fetch bars first, or leave the symbol out.",
        )
    intervals = {str(part.interval): part.symbol for part in bars}
    if len(intervals) > 1:
        raise DataError(
            "data-interval",
            wrong="all symbols of a panel must have one interval",
            found=", ".join(f"{symbol} {interval}" for interval, symbol in intervals.items()),
            remedy="Resample the shorter ones with `market.resample`.",
        )
    bars[0].interval.check_fixed("a panel")
    symbols = [part.symbol for part in bars]
    twice = sorted({symbol for symbol in symbols if symbols.count(symbol) > 1})
    if twice:
        raise DataError(
            "data-symbol",
            wrong="a symbol must come once in a panel",
            found=f"{', '.join(twice)} more than once",
            remedy="Pass each symbol's bars once.",
        )
    for part in bars:
        check_alignment(part)
        _check_finite(part)
    return bars[0].interval


def _check_finite(bars: Bars) -> None:
    for name in bars.columns[1:]:
        bad = np.flatnonzero(~np.isfinite(bars.column(name)))
        if len(bad):
            raise DataError(
                "data-defects",
                wrong=f"`{name}` of {bars.symbol} must hold finite numbers only",
                found=f"{bars.column(name)[bad[0]]} in row {bad[0]} at {iso(bars.ts[bad[0]])}",
                remedy="Run `stormsail check` on the source, and import it again.",
            )


def _check_known(symbol: str, symbols: Sequence[str]) -> None:
    if symbol not in symbols:
        near = nearest(symbol, symbols)
        raise ChoiceError(
            wrong="a symbol must be one of the panel's",
            found=f"`{symbol}` and a panel of {', '.join(symbols)}",
            remedy=f"Did you mean `{near}`?" if near else "Write it as the panel does.",
        )


def _check_funding(rates: Mapping[str, Funding], symbols: Sequence[str]) -> None:
    for symbol, funding in rates.items():
        _check_known(symbol, symbols)
        if funding.symbol != symbol or not np.isfinite(funding.rate).all():
            raise DataError(
                "data-defects",
                wrong=f"the funding of {symbol} must be its own, with finite rates",
                found=f"rates of {funding.symbol}, "
                f"{int((~np.isfinite(funding.rate)).sum())} of them not finite",
                remedy="Import the rates of the perpetual whose bars are used.",
            )


def _fields(
    bars: Sequence[Bars], rows: Sequence[NDArray[np.int64]], length: int
) -> list[dict[str, NDArray[np.float64]]]:
    """Return every column of every symbol, filled up to the grid."""
    shared = [name for name in OPTIONAL if all(name in part.columns for part in bars)]
    filled = []
    for part, row in zip(bars, rows, strict=True):
        here = np.zeros(length)
        here[row] = 1.0
        last = np.full(length, -1)
        last[row] = np.arange(len(part))
        there = last >= 0
        last = np.maximum.accumulate(last)  # the newest bar at or before each row
        columns = {"tradable": here, "listed": (last >= 0).astype(np.float64)}
        carried = np.where(last >= 0, part.column("close")[last], part.column("open")[0])
        for name in PRICES:
            columns[name] = np.where(there, part.column(name)[last], carried)
        for name in ("volume", *shared):
            columns[name] = np.where(there, part.column(name)[last], 0.0)
        filled.append(columns)
    return filled


def _open_for_trade(
    symbols: Sequence[str],
    ts: NDArray[np.int64],
    interval: Interval,
    instruments: Mapping[str, Instrument],
) -> Tensor:
    """Return which rows lie between listing and delisting, bool [T, S]; all where not known."""
    inside = np.ones((len(ts), len(symbols)), dtype=np.bool_)
    for column, symbol in enumerate(symbols):
        if symbol not in instruments:
            continue
        terms = instruments[symbol].terms
        if terms.listed is not None:
            inside[:, column] &= ts + interval.milliseconds > 1000 * terms.listed.timestamp()
        if terms.delisted is not None:
            inside[:, column] &= ts < 1000 * terms.delisted.timestamp()
    return torch.from_numpy(inside)


def _signals(
    bars: Sequence[Bars],
    rows: Sequence[NDArray[np.int64]],
    length: int,
    signals: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> dict[str, list[NDArray[np.float64]]]:
    """Return the columns beside the bars that every symbol has, on the grid."""
    for symbol in signals:
        _check_known(symbol, tuple(part.symbol for part in bars))
    own = [signals.get(part.symbol, {}) for part in bars]
    names = [name for name in own[0] if name != "ts" and all(name in columns for columns in own)]
    placed: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
    for part, row, columns in zip(bars, rows, own, strict=True):
        for name in names:
            if len(columns[name]) != len(part):
                raise DataError(
                    "data-mismatch",
                    wrong=f"signal `{name}` of {part.symbol} must have a value for each of "
                    "its bars",
                    found=f"{len(columns[name])} values beside {len(part)} bars",
                    remedy="Draw or write bars and signals together.",
                )
            column = np.zeros(length)
            column[row] = columns[name]
            placed[name].append(column)
    return placed


def load_panel(
    store: Store,
    symbols: Sequence[str],
    interval: Interval,
    *,
    dtype: torch.dtype = torch.float64,
) -> Panel:
    """Return the panel of stored symbols with their funding, mark prices, signals and terms.

    Raises:
        DataError: if something is not in the store, cannot be read or does not fit.
    """
    bars = [store.read(symbol, interval) for symbol in symbols]
    rates = {symbol: store.read_funding(symbol) for symbol in symbols}
    marks = {symbol: store.read_mark(symbol, interval) for symbol in symbols}
    terms = {symbol: store.read_terms(symbol) for symbol in symbols}
    return Panel.from_bars(
        bars,
        {symbol: rate for symbol, rate in rates.items() if rate is not None},
        marks={symbol: mark for symbol, mark in marks.items() if mark is not None},
        signals={part.symbol: store.read_signals(part) for part in bars},
        instruments={symbol: own for symbol, own in terms.items() if own is not None},
        dtype=dtype,
    )


def _settled(
    funding: Funding | None, ts: NDArray[np.int64], interval: Interval, jitter: int
) -> tuple[NDArray[np.float64], int]:
    """Return the rate that settles at each row, and how many rates lie outside the grid."""
    rate = np.zeros(len(ts))
    if funding is None:
        return rate, 0
    row = _settling_row(funding.ts, ts, interval, jitter)
    inside = (row >= 0) & (row < len(ts))
    np.add.at(rate, row[inside], funding.rate[inside])
    return rate, int((~inside).sum())


def _settling_row(
    settled: NDArray[np.int64], ts: NDArray[np.int64], interval: Interval, jitter: int
) -> NDArray[np.int64]:
    """Return the first row that opens at or after each settlement, but for the jitter."""
    row: NDArray[np.int64] = -((ts[0] + jitter - settled) // interval.milliseconds)
    return row


def _due(
    bars: Bars, funding: Funding | None, ts: NDArray[np.int64], interval: Interval, jitter: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the settlements of each row that were due, and those without a known rate."""
    due, missing = np.zeros((2, len(ts)), dtype=np.int64)
    known, unknown = count_settlements(bars, funding, jitter_ms=jitter)
    for times, counts in ((known, (due,)), (unknown, (due, missing))):
        row = _settling_row(times, ts, interval, jitter)
        for count in counts:
            np.add.at(count, row, 1)
    return due, missing


def _marks(
    marks: Mapping[str, Mark], symbols: Sequence[str], ts: NDArray[np.int64], interval: Interval
) -> NDArray[np.float64] | None:
    """Return open, high and low of the mark prices on the grid, or None if there are none."""
    for symbol, mark in marks.items():
        _check_known(symbol, symbols)
        if mark.symbol != symbol or mark.interval != interval:
            raise DataError(
                "data-mismatch",
                wrong=f"the mark prices of {symbol} must be its own, of {interval}",
                found=f"{mark.symbol} {mark.interval}",
                remedy="Import the mark prices of the same symbol and interval.",
            )
    if not marks:
        return None
    placed = np.full((len(ts), len(symbols), len(MARKED)), np.nan)
    for column, symbol in enumerate(symbols):
        if symbol in marks:
            row, off = np.divmod(marks[symbol].ts - ts[0], interval.milliseconds)
            there = (row >= 0) & (row < len(ts)) & (off == 0)
            for place, name in enumerate(MARKED):
                placed[row[there], column, place] = marks[symbol].column(name)[there]
    return placed
