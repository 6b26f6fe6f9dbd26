"""Bars of one symbol: an Arrow table with fixed columns, and what every reader may rely on."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.errors import DataError
from stormsail.market.interval import Interval

REQUIRED = ("ts", "open", "high", "low", "close", "volume")
"""Columns of every bar. `ts` is the UTC open time in milliseconds."""

OPTIONAL = ("quote_volume", "trades", "taker_buy_base", "taker_buy_quote")
"""Columns that some sources have; absent means absent, never zero."""

PRICES = ("open", "high", "low", "close")
INTEGERS = ("ts", "trades")

_SYMBOL = re.compile(r"[A-Z0-9]{1,20}/[A-Z0-9]{1,20}(:[A-Z0-9]{1,20})?")


def column_type(name: str) -> pa.DataType:
    """Return the Arrow type of a column: int64 for times and counts, float64 for the rest."""
    return pa.int64() if name in INTEGERS else pa.float64()


def check_symbol(symbol: str) -> str:
    """Return a symbol written as ccxt does: `BTC/USDT`, or `BTC/USDT:USDT` for a perpetual.

    Raises:
        DataError: if it is written otherwise.
    """
    if not _SYMBOL.fullmatch(symbol):
        raise DataError(
            "data-symbol",
            wrong="a symbol must be written as BASE/QUOTE or BASE/QUOTE:SETTLE",
            found=f"`{symbol}`",
            remedy="Write `BTC/USDT` for spot and `BTC/USDT:USDT` for the perpetual.",
        )
    return symbol


@dataclass(frozen=True)
class Bars:
    """Bars of one symbol and interval, sorted by open time, one per open time.

    The constructor checks form (columns, types, order, uniqueness), not plausibility: that is the
    validator's work (`market.validate`), which must be able to look at implausible bars. Missing
    bars are simply not there.
    """

    symbol: str
    interval: Interval
    table: pa.Table
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_symbol(self.symbol)
        object.__setattr__(self, "table", canonical(self.table, place=self.symbol))
        ts = self.ts
        if len(ts) > 1 and not bool((np.diff(ts) > 0).all()):
            row = int(np.argmax(np.diff(ts) <= 0)) + 1
            raise DataError(
                "data-order",
                wrong="bars must be sorted by open time without duplicates",
                found=f"{self.symbol} row {row} at {ts[row]} after {ts[row - 1]}",
                remedy="Run `stormsail check` on the source; it lists every such row.",
            )

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are here."""
        return tuple(self.table.column_names)

    @property
    def ts(self) -> NDArray[np.int64]:
        """Open times in UTC milliseconds."""
        return np.asarray(self.table["ts"].to_numpy(), dtype=np.int64)

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one column as float64.

        Raises:
            DataError: if the source had no such column.
        """
        if name not in self.table.column_names:
            raise DataError(
                "data-column",
                wrong=f"`{name}` must be a column of {self.symbol} {self.interval}",
                found=f"{', '.join(self.columns)}",
                remedy="Import a source that has it, or drop the features that need it.",
            )
        return np.asarray(self.table[name].to_numpy(), dtype=np.float64)

    def between(self, start_ms: int, end_ms: int) -> "Bars":
        """Return the bars that open in [start, end)."""
        first, last = np.searchsorted(self.ts, (start_ms, end_ms))
        return replace(self, table=self.table.slice(int(first), int(last - first)))

    def digest(self) -> str:
        """Return the SHA-256 of symbol, interval and every value, whatever file they came from."""
        digest = hashlib.sha256(f"bars-1 {self.symbol} {self.interval}\n".encode())
        for name in self.table.column_names:
            values = np.ascontiguousarray(self.table[name].to_numpy())
            digest.update(f"{name} {len(values)}\n".encode())
            digest.update(values.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Funding:
    """Funding rates of one perpetual: settlement time in UTC milliseconds, rate as a fraction.

    A positive rate is paid by longs to shorts.
    """

    symbol: str
    table: pa.Table

    def __post_init__(self) -> None:
        check_symbol(self.symbol)
        wanted = {"ts": pa.int64(), "funding_rate": pa.float64()}
        object.__setattr__(self, "table", _cast(self.table, wanted, place=self.symbol))
        if len(self.ts) > 1 and not bool((np.diff(self.ts) > 0).all()):
            raise DataError(
                "data-order",
                wrong="funding rates must be sorted by settlement time without duplicates",
                found=f"{self.symbol}, {len(self.ts)} rows",
                remedy="Run `stormsail check` on the source; it lists every such row.",
            )

    @property
    def ts(self) -> NDArray[np.int64]:
        """Settlement times in UTC milliseconds."""
        return np.asarray(self.table["ts"].to_numpy(), dtype=np.int64)

    @property
    def rate(self) -> NDArray[np.float64]:
        """Funding rates as fractions of the notional."""
        return np.asarray(self.table["funding_rate"].to_numpy(), dtype=np.float64)


def canonical(table: pa.Table, *, place: str) -> pa.Table:
    """Return the known columns in their order and types; unknown columns are dropped.

    Raises:
        DataError: if a required column is missing or a value does not fit its type.
    """
    present = [name for name in (*REQUIRED, *OPTIONAL) if name in table.column_names]
    missing = [name for name in REQUIRED if name not in table.column_names]
    if missing:
        raise DataError(
            "data-column",
            wrong=f"{place} must have the columns {', '.join(REQUIRED)}",
            found=f"{', '.join(table.column_names) or 'no column'}; {', '.join(missing)} missing",
            remedy="Rename the source's columns, or name them with `--columns`.",
        )
    return _cast(table, {name: column_type(name) for name in present}, place=place)


def _cast(table: pa.Table, types: Mapping[str, pa.DataType], *, place: str) -> pa.Table:
    missing = [name for name in types if name not in table.column_names]
    if missing:
        raise DataError(
            "data-column",
            wrong=f"{place} must have the columns {', '.join(types)}",
            found=f"{', '.join(table.column_names) or 'no column'}; {', '.join(missing)} missing",
            remedy="Rename the source's columns.",
        )
    columns = []
    for name, kind in types.items():
        try:
            columns.append(table[name].cast(kind).combine_chunks())
        except pa.ArrowInvalid as error:
            raise DataError(
                "data-type",
                wrong=f"column `{name}` of {place} must hold {kind} values",
                found=str(error).split("\n")[0],
                remedy="Run `stormsail check` on the source; it lists every such row.",
            ) from error
    return pa.Table.from_arrays(columns, names=list(types))


def from_columns(symbol: str, interval: Interval, columns: Mapping[str, Iterable[float]]) -> Bars:
    """Return bars from plain columns, for tests and generators."""
    return Bars(symbol, interval, pa.table(dict(columns)))
