"""`Bars`, `Funding` and `Mark` of one symbol: Arrow tables with fixed columns, types and order."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.notebook import html_table, short_repr
from stormsail.market.interval import Interval

REQUIRED = ("ts", "open", "high", "low", "close", "volume")
"""Columns of every bar. `ts` is the UTC open time in milliseconds."""

OPTIONAL = ("quote_volume", "trades", "taker_buy_base", "taker_buy_quote")
"""Columns that some sources have; absent means absent, never zero."""

PRICES = ("open", "high", "low", "close")
MARKED = ("open", "high", "low")
"""Columns of a mark price by which positions are liquidated."""
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
    work of `market.checks`, which must be able to read implausible bars. Missing bars have no row.
    """

    symbol: str
    interval: Interval
    table: pa.Table
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_symbol(self.symbol)
        object.__setattr__(self, "table", canonical(self.table, place=self.symbol))
        # A copy: later changes of the caller's mapping must not change these bars.
        object.__setattr__(self, "notes", dict(self.notes))
        _check_order(self.ts, what="bars", by="open time", place=self.symbol)

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

    def _shown(self) -> dict[str, object]:
        ends = [iso(int(self.ts[row])) for row in (0, -1)] if len(self) else []
        return {
            "symbol": self.symbol,
            "interval": self.interval,
            "bars": len(self),
            **dict(zip(("first", "last"), ends, strict=False)),
            "columns": " ".join(self.columns),
        }

    def __repr__(self) -> str:
        return short_repr("Bars", self._shown())

    def _repr_html_(self) -> str:
        return html_table("Bars", self._shown())

    def between(self, start_ms: int, end_ms: int) -> "Bars":
        """Return the bars that open in [start, end)."""
        first, last = np.searchsorted(self.ts, (start_ms, end_ms))
        return replace(self, table=self.table.slice(int(first), max(0, int(last - first))))

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
        _check_order(self.ts, what="funding rates", by="settlement time", place=self.symbol)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def ts(self) -> NDArray[np.int64]:
        """Settlement times in UTC milliseconds."""
        return np.asarray(self.table["ts"].to_numpy(), dtype=np.int64)

    @property
    def rate(self) -> NDArray[np.float64]:
        """Funding rates as fractions of the notional."""
        return np.asarray(self.table["funding_rate"].to_numpy(), dtype=np.float64)


@dataclass(frozen=True)
class Mark:
    """Mark prices of one perpetual: open, high, low and close by open time, without volumes.

    An exchange computes them from an index of several venues, so that a single print on its own
    does not liquidate anybody.
    """

    symbol: str
    interval: Interval
    table: pa.Table

    def __post_init__(self) -> None:
        check_symbol(self.symbol)
        wanted = {name: column_type(name) for name in ("ts", *PRICES)}
        object.__setattr__(self, "table", _cast(self.table, wanted, place=self.symbol))
        _check_order(self.ts, what="mark prices", by="open time", place=self.symbol)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def ts(self) -> NDArray[np.int64]:
        """Open times in UTC milliseconds."""
        return np.asarray(self.table["ts"].to_numpy(), dtype=np.int64)

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one of the prices."""
        return np.asarray(self.table[name].to_numpy(), dtype=np.float64)


def canonical(table: pa.Table, *, place: str) -> pa.Table:
    """Return the known columns in their order and types; unknown columns are dropped.

    Raises:
        DataError: if a required column is missing or a value does not fit its type.
    """
    present = [name for name in OPTIONAL if name in table.column_names]
    return _cast(table, {name: column_type(name) for name in (*REQUIRED, *present)}, place=place)


def _check_order(ts: NDArray[np.int64], *, what: str, by: str, place: str) -> None:
    late = np.flatnonzero(ts[1:] <= ts[:-1])
    if len(late):
        row = int(late[0]) + 1
        raise DataError(
            "data-order",
            wrong=f"{what} must be sorted by {by} without duplicates",
            found=f"{place} row {row} at {iso(ts[row])} after {iso(ts[row - 1])}",
            remedy="Run `stormsail check` on the source; it lists every such row.",
        )


def _cast(table: pa.Table, types: Mapping[str, pa.DataType], *, place: str) -> pa.Table:
    names = table.column_names
    missing = [name for name in types if name not in names]
    double = [name for name in types if names.count(name) > 1]
    if missing or double:
        state = f"{', '.join(missing)} missing" if missing else f"{', '.join(double)} twice"
        raise DataError(
            "data-column",
            wrong=f"{place} must have each of the columns {', '.join(types)} once",
            found=f"{', '.join(names) or 'no column'}; {state}",
            remedy="Rename the source's columns, or name them with `--columns`.",
        )
    columns = [_cast_column(table[name], kind, name, place) for name, kind in types.items()]
    return pa.Table.from_arrays(columns, names=list(types))


def _cast_column(column: pa.ChunkedArray, kind: pa.DataType, name: str, place: str) -> pa.Array:
    types, own = pa.types, column.type
    problem = None
    if types.is_boolean(own) or types.is_temporal(own) or (name == "ts" and _is_text(own)):
        # Arrow would turn microseconds into an integer without a word about their unit.
        problem = f"a column of type {own}"
    elif name == "ts" and column.null_count:
        problem = f"{column.null_count} rows without a time"
    if problem is None:
        try:
            cast = column if column.type == kind else column.cast(kind)
            return cast.chunk(0) if cast.num_chunks == 1 else cast.combine_chunks()
        except pa.ArrowException as error:
            problem = str(error).split("\n")[0]
    raise DataError(
        "data-type",
        wrong=f"column `{name}` of {place} must hold {kind} values",
        found=problem,
        remedy="Run `stormsail check` on the source; it lists every such row.",
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def from_columns(symbol: str, interval: Interval, columns: Mapping[str, Iterable[float]]) -> Bars:
    """Return bars from plain columns, for tests and generators."""
    return Bars(symbol, interval, pa.table(dict(columns)))
