"""Import of bars and funding rates from files and data frames of other sources.

An importer recognises columns, units and names, and refuses what it cannot recognise. It repairs
nothing by itself: rows go to `market.checks` as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import pyarrow as pa

from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding, Mark, check_symbol
from stormsail.market.checks import Loaded
from stormsail.market.checks.units import TimeUnit
from stormsail.market.importers.files import find_files, read_files
from stormsail.market.importers.merge import span
from stormsail.market.importers.names import (
    Kind,
    Market,
    Named,
    read_name,
    resolve_interval,
    resolve_symbol,
)
from stormsail.market.importers.prepare import (
    Options,
    Raw,
    checked_bars,
    checked_funding,
    checked_marks,
    joined,
    named_bars,
    named_funding,
    named_marks,
)
from stormsail.market.interval import Interval

__all__ = ["Imported", "Options", "from_frame", "import_files"]


@dataclass(frozen=True)
class Imported:
    """Imported data of one symbol, and lines for the user about how they were read."""

    data: Bars | Funding | Mark
    lines: tuple[str, ...]


@dataclass(frozen=True)
class _Group:
    symbol: str
    interval: Interval | None
    """None for funding rates."""
    parts: tuple[tuple[Loaded, Named], ...]


def from_frame(
    frame: object,
    *,
    symbol: str,
    interval: Interval,
    columns: Mapping[str, str] | None = None,
    time_unit: TimeUnit | None = None,
) -> Bars:
    """Return bars from an Arrow table, or a pandas or polars frame.

    Args:
        frame: anything with the Arrow C stream interface; a pandas index is a column, too.
        symbol: as ccxt writes it.
        interval: length of the bars.
        columns: our column names to the frame's, where they differ from the usual ones.
        time_unit: what times count; None lets type and size decide. `iso` reads times without
            a zone as UTC.

    Raises:
        DataError: if columns are missing, times are not certain, or rows have defects.
    """
    if isinstance(frame, pa.Table | pa.RecordBatch) or hasattr(frame, "__arrow_c_stream__"):
        table = pa.table(frame)
    else:
        raise DataError(
            "data-source",
            wrong="a frame must offer its columns to Arrow",
            found=type(frame).__name__,
            remedy="Pass a pyarrow table, or a pandas or polars frame.",
        )
    file = Loaded(table, path=PurePath("frame"))
    options = Options(columns or {}, time_unit)
    raw = named_bars(file, options, spot=False)
    return checked_bars(raw, check_symbol(symbol), interval, options)[0]


def import_files(
    sources: Sequence[str | Path],
    options: Options | None = None,
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    market: Market | None = None,
) -> list[Imported]:
    """Read files, folders and patterns; return one element per symbol and interval.

    Args:
        sources: paths, folders, patterns. Files of one symbol are put one behind the other in
            the order of their names.
        options: columns, units, repairs, clock.
        symbol: of all the files, where their names do not state it or are wrong.
        interval: of all the files, where their names do not state it.
        market: what `BTCUSDT` means: `spot` (also if left out) or `perp`.

    Raises:
        DataError: whatever is wrong with the first file that is not right.
    """
    options = options or Options()
    paths = find_files(sources)
    left_out: list[str] = []
    if options.mark:
        market = "perp"
    else:
        paths, left_out = _usable(paths)
    groups = _groups(paths, options, symbol=symbol, interval=interval, market=market)
    imported = [_imported(group, options) for group in groups]
    imported[0] = replace(imported[0], lines=(*left_out, *imported[0].lines))
    return imported


def _usable(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files that are not named as something else, and lines about those that are."""
    other = [path for path in paths if read_name(path).kind == "other"]
    if len(other) == len(paths):
        raise DataError(
            "data-source",
            wrong="a source must hold bars of trades, or funding rates",
            found=f"{other[0].name}, which is named as something else",
            remedy="Leave it out; rename it if its name is wrong.",
        )
    lines = [f"left out: {path.name}, which is named as neither bars nor funding" for path in other]
    return [path for path in paths if path not in other], lines


def _groups(
    paths: Sequence[Path],
    options: Options,
    *,
    symbol: str | None,
    interval: Interval | None,
    market: Market | None,
) -> list[_Group]:
    parts: dict[tuple[str, Interval | None], list[tuple[Loaded, Named]]] = {}
    for path in paths:
        for file in read_files(path, options.columns):
            named = _named(path, file)
            place = file.path.name
            owner = resolve_symbol(named, symbol=symbol, market=market, place=place)
            length = None
            if options.mark or named.kind == "bars":
                length = resolve_interval(named, interval=interval, place=place)
            parts.setdefault((owner, length), []).append((file, named))
    groups = [_Group(*key, tuple(files)) for key, files in parts.items()]
    for group in groups:
        _check_one_pair(group)
    return groups


def _named(path: Path, file: Loaded) -> Named:
    """Return what the file's name says, or that of its archive where it says nothing."""
    named = read_name(path)
    if file.path != path:
        inner = read_name(file.path)
        named = inner if inner.pair and inner.interval else named
    kind: Kind = named.kind
    table = file.table
    names = set() if table is None else {name.lower() for name in table.column_names}
    if kind == "bars" and "funding_rate" in names | {name.replace("last_", "") for name in names}:
        kind = "funding" if "open" not in names else kind
    return replace(named, kind=kind)


def _check_one_pair(group: _Group) -> None:
    pairs = sorted({named.pair for _, named in group.parts if named.pair})
    if len(pairs) > 1:
        raise DataError(
            "data-symbol",
            wrong=f"all files for {group.symbol} must be of one symbol",
            found=f"names that tell of {', '.join(pairs)}",
            remedy="Import each symbol on its own, or leave `--symbol` out.",
        )


def _check_perpetual(symbol: str) -> None:
    if ":" not in symbol:
        raise DataError(
            "data-symbol",
            wrong="funding rates and mark prices must belong to a perpetual",
            found=f"`{symbol}`",
            remedy=f"Write `--symbol {symbol}:{symbol.partition('/')[2]}`, or leave it out.",
        )


def _imported(group: _Group, options: Options) -> Imported:
    if group.interval is None:
        _check_perpetual(group.symbol)
        raw = joined([named_funding(file, options) for file, _ in group.parts])
        funding, lines = checked_funding(raw, group.symbol)
        head = _read_line(raw, f"{group.symbol} funding", funding)
        return Imported(funding, (head, *raw.notes, *lines))
    if options.mark:
        _check_perpetual(group.symbol)
        raw = joined([named_marks(file, options) for file, _ in group.parts])
        mark, lines = checked_marks(raw, group.symbol, group.interval, options)
        head = _read_line(raw, f"{group.symbol} {group.interval} mark prices", mark)
        return Imported(mark, (head, *raw.notes, *lines))
    spot = ":" not in group.symbol
    raw = joined([named_bars(file, options, spot=spot) for file, _ in group.parts])
    bars, lines = checked_bars(raw, group.symbol, group.interval, options)
    head = _read_line(raw, f"{group.symbol} {group.interval}", bars)
    pair = next((named.pair for _, named in group.parts if named.pair), None)
    if pair and pair != group.symbol.partition(":")[0]:
        lines.append(f"note: the file's name says {pair}")
    return Imported(bars, (head, *raw.notes, *lines))


def _read_line(raw: Raw, what: str, data: Bars | Funding | Mark) -> str:
    units = " and ".join(raw.units)
    files = "1 file" if len(raw.names) == 1 else f"{len(raw.names)} files"
    return f"{what}: read {raw.table.num_rows} rows from {files}, {span(data.ts)}, times in {units}"
