"""Raw columns of any type as numbers, with a report of every cell that is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stormsail.market.bars import OPTIONAL, PRICES, REQUIRED
from stormsail.market.checks.report import Collector
from stormsail.market.checks.stamps import Stamps, read_stamps

KNOWN = (*REQUIRED, *OPTIONAL)

ALIASES: Mapping[str, tuple[str, ...]] = {
    "ts": (
        *("timestamp", "time", "date", "datetime", "open_time", "opentime", "unix"),
        *("calc_time", "funding_time", "fundingtime"),
    ),
    "open": ("o",),
    "high": ("h",),
    "low": ("l",),
    "close": ("c",),
    "volume": ("v", "vol"),
    "quote_volume": ("quote_asset_volume",),
    "trades": ("count", "number_of_trades", "trade_count"),
    "taker_buy_base": ("taker_buy_volume", "taker_buy_base_asset_volume", "taker_buy_base_volume"),
    "taker_buy_quote": ("taker_buy_quote_volume", "taker_buy_quote_asset_volume"),
    "funding_rate": ("fundingrate", "last_funding_rate"),
}
"""Names under which common sources keep our columns, in lower case with underscores."""

INDEX = ("", "unnamed:_0", "__index_level_0__")
"""Names under which pandas writes an index that has none; it holds times if no column does."""

IGNORED = ("close_time", "ignore")
"""Columns of Binance's own dumps that hold nothing which the other columns do not."""

BINANCE: tuple[str, ...] = (
    *REQUIRED,
    *("close_time", "quote_volume", "trades", "taker_buy_base", "taker_buy_quote", "ignore"),
)
"""Columns of Binance's kline dumps, in their order; old ones have no header."""

_NUMBER = r"^\s*[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|nan|inf|infinity)\s*$"
_COMMA = r"^\s*[-+]?\d+,\d+\s*$"
_ENOUGH = 20  # values that are needed to tell
_MOST_DECIMALS = 8  # of prices, on any exchange


@dataclass(frozen=True)
class Columns:
    """A table as numbers: NaN wherever there was none."""

    stamps: Stamps
    values: dict[str, NDArray[np.float64]]
    header: NDArray[np.bool_] | None = None
    """Rows that repeat the header, None if there are none."""

    def __len__(self) -> int:
        return len(self.stamps.ms)

    def has(self, *names: str) -> bool:
        """Return whether all these columns are here."""
        return all(name in self.values for name in names)


def tidy(name: str) -> str:
    """Return a column name in lower case with underscores."""
    return "_".join(name.strip().strip("\"'").lower().replace("-", "_").split())


def plain_name(name: str) -> str:
    """Return the name of a column in this package, or a tidied form of the name it has."""
    name = tidy(name)
    return next((ours for ours, theirs in ALIASES.items() if name == ours or name in theirs), name)


def likely(names: Sequence[str], ours: str) -> list[str]:
    """Return the names that can mean one of our columns; more than one is for people to decide.

    Our own name, written exactly, outranks names that merely mean the same.
    """
    theirs = [name for name in dict.fromkeys(names) if plain_name(name) == ours]
    theirs = [name for name in theirs if name == ours] or theirs
    if ours == "ts" and not theirs:
        theirs = [name for name in dict.fromkeys(names[:1]) if tidy(name) in INDEX]
        theirs = theirs or [name for name in dict.fromkeys(names) if tidy(name) == INDEX[-1]]
    return theirs


def rename(table: pa.Table, chosen: Mapping[str, str] | None = None) -> pa.Table:
    """Return the table with the names of this package where its own are known to mean them.

    Where several could mean the same, the first is renamed; `check_meanings` reports them.

    Args:
        table: columns under the names of its source.
        chosen: our names to the source's, where a person has decided.
    """
    names = table.column_names
    chosen = dict(chosen or {})
    free = [name for name in names if name not in chosen.values()]
    means = {theirs: ours for ours, theirs in chosen.items()}
    for ours in ALIASES:
        if ours not in chosen:
            means |= dict.fromkeys(likely(free, ours)[:1], ours)
    return table.rename_columns([means.get(name, name) for name in names])


def check_meanings(
    collector: Collector, names: Sequence[str], chosen: Mapping[str, str] | None = None
) -> None:
    """Report names of a source of which several could be the same column of ours."""
    free = [name for name in names if name not in (chosen or {}).values()]
    for ours in KNOWN:
        theirs = likely(free, ours)
        if len(theirs) > 1 and ours not in (chosen or {}):
            words = " and ".join(f"`{name}`" for name in theirs)
            collector.whole("duplicate-header", f"{words} could each be `{ours}`")


def check_names(collector: Collector, names: list[str]) -> bool:
    """Report missing, extra, repeated and reordered names; return whether bars can be read."""
    for name in sorted({name for name in names if names.count(name) > 1}):
        collector.whole("duplicate-header", f"`{name}` occurs {names.count(name)} times")
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        collector.whole("missing-column", ", ".join(missing))
    extra = [name for name in names if name not in (*KNOWN, *IGNORED)]
    if extra:
        collector.whole("extra-column", ", ".join(name or "one without a name" for name in extra))
    known = list(dict.fromkeys(name for name in names if name in KNOWN))
    if known != [name for name in KNOWN if name in known]:
        collector.whole("reordered-columns", ", ".join(known))
    return "ts" in names and all(name in names for name in PRICES)


def read_columns(collector: Collector, table: pa.Table) -> Columns:
    """Return the numbers of a table and report every cell that is none."""
    names = list(dict.fromkeys(name for name in table.column_names if name in KNOWN))
    cells = {name: _plain(table.column(table.column_names.index(name))) for name in names}
    header = _header_rows(cells)
    stamps = read_stamps(cells["ts"])
    collector.ts, collector.has_time = stamps.ms, stamps.valid
    if header is not None:
        collector.mark("duplicate-header", header, lambda row: cells["ts"][row].as_py())
    _report_bad(collector, "ts", cells["ts"], stamps.text, stamps.missing, header)
    values = {
        name: _read_numbers(collector, name, column, header)
        for name, column in cells.items()
        if name != "ts"
    }
    _check_precision(collector, table, values)
    return Columns(stamps, values, header)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.num_chunks == 1:  # combining would copy it
        return column.chunk(0)
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _header_rows(cells: dict[str, pa.Array]) -> NDArray[np.bool_] | None:
    """Return where a header stands among the rows: the cell under `ts` reads like its name."""
    column = cells["ts"]
    if not _is_text(column.type):
        return None
    letters = pc.match_substring_regex(column, r"^\s*[A-Za-z_\"' ]{1,40}\s*$").fill_null(
        fill_value=False
    )
    mask = np.array(letters.to_numpy(zero_copy_only=False), dtype=bool)
    for row in np.flatnonzero(mask)[:1_000_000]:
        mask[row] = plain_name(column[int(row)].as_py()) == "ts"
    return mask if mask.any() else None


def _read_numbers(
    collector: Collector, name: str, column: pa.Array, header: NDArray[np.bool_] | None
) -> NDArray[np.float64]:
    """Return a column as float64 and report text, decimal commas, empty cells and infinities."""
    values, text = numbers(column)
    if text is not None and _is_text(column.type):
        comma = _matches(column, _COMMA) & text
        collector.mark("decimal-comma", comma, lambda row: f"{name}={column[row].as_py()}")
        text = text & ~comma
    else:
        comma = None
    missing = np.isnan(values)
    if missing.any():
        for other in (text, comma):
            missing = missing if other is None else missing & ~other
        _report_bad(collector, name, column, text, missing, header)
    collector.mark("infinite-value", np.isinf(values), lambda row: f"{name}={values[row]}")
    return values


def numbers(column: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Return float64 values with NaN where there is none, and where that was because of text."""
    kind = column.type
    fits = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    if fits or pa.types.is_null(kind):
        return _to_numpy(column.cast(pa.float64(), safe=False)), None
    if not _is_text(kind):
        return np.full(len(column), np.nan), ~_nulls(column)
    try:
        return _to_numpy(column.cast(pa.float64())), None
    except pa.ArrowInvalid:
        good = _matches(column, _NUMBER)
    text = ~good & ~_nulls(column)
    kept = pc.if_else(pa.array(good), column, pa.scalar(None, kind))
    return _to_numpy(pc.utf8_trim_whitespace(kept).cast(pa.float64())), text


def _to_numpy(column: pa.Array) -> NDArray[np.float64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _matches(column: pa.Array, pattern: str) -> NDArray[np.bool_]:
    matched = pc.match_substring_regex(column, pattern, ignore_case=True).fill_null(
        fill_value=False
    )
    return np.asarray(matched.to_numpy(zero_copy_only=False), dtype=bool)


def _report_bad(
    collector: Collector,
    name: str,
    column: pa.Array,
    text: NDArray[np.bool_] | None,
    missing: NDArray[np.bool_] | None,
    header: NDArray[np.bool_] | None,
) -> None:
    """Report text and empty cells of one column, apart from rows that repeat the header."""
    for defect, mask in (("text-value", text), ("missing-value", missing)):
        if mask is not None:
            rows = mask if header is None else mask & ~header
            collector.mark(defect, rows, lambda row: f"{name}={column[row].as_py()}")


def _check_precision(
    collector: Collector, table: pa.Table, values: dict[str, NDArray[np.float64]]
) -> None:
    """Report prices that went through single precision.

    A price such as 7123.4 is stored by float64 within 1e-12 of itself, by float32 as
    7123.39990234375. A column is reported if every value is a float32 exactly *and* at least half
    of them differ from the shortest decimals that give the same float32. Whole numbers, quarters
    and even 1/128 are float32 exactly, too, but they are their own decimals and say nothing.
    """
    for name in PRICES:
        kind = table.schema.types[table.column_names.index(name)]
        if pa.types.is_float32(kind) or pa.types.is_float16(kind):
            collector.whole("float32-values", f"`{name}` is stored as {kind}")
        elif _is_single(values[name]):
            collector.whole("float32-values", f"`{name}`, first {values[name][0]!r}")


def _is_single(values: NDArray[np.float64]) -> bool:
    for part in (values[:4096], values):  # the first rows decide nearly always
        usable = part[np.isfinite(part) & (np.abs(part) < 1e30)]
        single = usable.astype(np.float32)
        if len(usable) < _ENOUGH or not bool((single == usable).all()):
            return False
        if not _has_lost_digits(usable, single):
            return False
    return True


def _has_lost_digits(values: NDArray[np.float64], single: NDArray[np.float32]) -> bool:
    for decimals in range(_MOST_DECIMALS + 1):
        written = np.round(values, decimals)
        if bool((written.astype(np.float32) == single).all()):
            return float(np.mean(written != values)) >= 0.5
    return True
