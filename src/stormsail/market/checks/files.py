"""Checks of data files: CSV (plain, zipped, gzipped), Parquet and Feather, treated as hostile.

This is the one reader of files: `check` reports what it finds, and `import` refuses the same.
"""

import gzip
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from stormsail.core.errors import DataError
from stormsail.core.files.regular import check_regular, open_regular
from stormsail.market.bars import Bars, Funding, Mark
from stormsail.market.checks.columns import BINANCE, IGNORED, likely, plain_name, rename
from stormsail.market.checks.report import Collector, Report
from stormsail.market.checks.stamps import read_stamps
from stormsail.market.checks.table import check_funding_table, check_table
from stormsail.market.checks.text import Opener, TooLargeError, read_text
from stormsail.market.checks.units import TimeUnit, to_milliseconds
from stormsail.market.checks.wicks import Reference
from stormsail.market.interval import Interval
from stormsail.market.settlements import LEAST_COVERAGE, count_settlements
from stormsail.market.store import FUNDING, Store, symbol_of

MOST_ROWS = 100_000_000
"""More rows than any bar file has: ten years of seconds are 300 million, of minutes 5 million."""

_MOST_BYTES = 1 << 33
_RATIO = 200
_FLOOR = 1 << 26
"""Unpacked bytes may be 64 MiB, or 200 times the packed ones: digits pack 3 to 10 times."""

_SHORT_MONTH_MS, _LONG_MONTH_MS = 28 * 86_400_000, 31 * 86_400_000
_META = b"stormsail."
_NAMED_INTERVAL = re.compile(r"(?:^|[-_. ])(\d{1,4}(?:mo|[smhdwM]))(?=[-_. ]|$)")
TEXT_SUFFIXES = (".csv", ".txt", ".tsv")
_Rows = tuple[pa.Table | None, tuple[str, ...]]
SUFFIXES = (*TEXT_SUFFIXES, ".gz", ".zip", ".parquet", ".pq", ".feather", ".arrow")
"""Ends of the names of data files."""

_DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, MemoryError),
    *(NotImplementedError, RuntimeError),  # another compression, or a password
    *(pa.ArrowException, zlib.error, zipfile.BadZipFile),
)
"""What damaged files make the readers raise."""


@dataclass
class Loaded:
    """Rows of a file, and the defects that were found while reading it."""

    table: pa.Table | None = None
    collector: Collector = field(default_factory=Collector)
    notes: dict[str, str] = field(default_factory=dict)
    """What a file of a store says about itself."""
    path: PurePath = field(default_factory=PurePath)
    """The file, or the name of its text inside an archive."""
    remarks: tuple[str, ...] = ()
    """What a person should know about how it was read."""
    reference: Reference | None = None
    """Mark prices that lie in the store beside the bars."""

    @property
    def binance(self) -> bool:
        """Whether the columns are those of Binance's dumps."""
        names = [] if self.table is None else [plain_name(n) for n in self.table.column_names]
        return len(names) == len(BINANCE) and {"ts", *IGNORED} <= {*names}


@dataclass(frozen=True)
class Reading:
    """How a person says that a file is to be read.

    Args:
        columns: our column names to the source's, where they differ from the usual ones.
        time_unit: what times count; `iso` also reads times without a zone as UTC.
        reference: highs and lows of the mark price or another venue, to judge wicks by.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: TimeUnit | None = None
    reference: Reference | None = None


def check_file(
    path: Path | str,
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    now_ms: int | None = None,
    reading: Reading | None = None,
) -> Report:
    """Check a file of bars or funding rates; nothing is changed.

    Args:
        path: CSV (also zipped or gzipped), Parquet or Feather, told apart by content.
        symbol: whose data they are; else what the file, its folder or its name says.
        interval: how long a bar is; else what the file or its name says, or its usual step.
        now_ms: the present in UTC milliseconds.
        reading: columns, unit of times and reference.

    Raises:
        DataError: if there is no such file or it cannot be opened.
    """
    path = Path(path)
    loaded = load_file(path, chosen=reading.columns if reading else None)
    return check_loaded(
        loaded, path, symbol=symbol, interval=interval, now_ms=now_ms, reading=reading
    )


def check_loaded(
    loaded: Loaded,
    path: Path,
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    now_ms: int | None = None,
    reading: Reading | None = None,
) -> Report:
    """Check what `load_file` read."""
    reading = reading or Reading()
    symbol = symbol or _symbol(path, loaded.notes)
    collector = loaded.collector
    if loaded.table is None:
        return collector.report(str(path), 0, symbol=symbol, now_ms=now_ms)
    table = _named(loaded, path, reading.columns)
    funding = "funding_rate" in table.column_names and "open" not in table.column_names
    length = interval or interval_of(path, loaded, reading.columns)
    table, problem = _in_milliseconds(
        table, collector, reading.time_unit, path.name, spot=loaded.binance and ":" not in symbol
    )
    if funding:
        report = check_funding_table(
            table, symbol=symbol, now_ms=now_ms, what=str(path), collector=collector
        )
    else:
        report = check_table(
            table,
            symbol=symbol,
            interval=length,
            now_ms=now_ms,
            what=str(path),
            collector=collector,
            reference=reading.reference or loaded.reference,
        )
    if problem is None or report.errors:
        return report
    # An import would refuse the times, though no check of a row has a name for what is wrong.
    naive = problem.code == "data-time-zone"
    collector.whole("naive-time" if naive else "misaligned-bar", problem.found)
    facts = {"symbol": symbol, "interval": report.interval, "now_ms": now_ms}
    return collector.report(str(path), report.rows, **facts)


def _named(loaded: Loaded, path: Path, chosen: Mapping[str, str]) -> pa.Table:
    """Return the table with those columns under our names that a person chose or names tell."""
    table = cast("pa.Table", loaded.table)
    names = table.column_names
    chosen = dict(chosen)
    if rate_is_open(path, names):
        chosen |= {"funding_rate": "open"}
    absent = [theirs for theirs in chosen.values() if theirs not in names]
    if absent:
        raise DataError(
            "data-column",
            wrong=f"{path.name} must have the columns that `--columns` names",
            found=f"no `{absent[0]}` among {', '.join(names)}",
            remedy="Name columns that are there.",
        )
    means = {theirs: ours for ours, theirs in chosen.items()}
    ours = {name for name in chosen if chosen[name] != name}
    # What is called like a chosen column, and is another one, must not be taken for it.
    return table.rename_columns(
        [means.get(name, f"other {name}" if plain_name(name) in ours else name) for name in names]
    )


def rate_is_open(path: PurePath, names: list[str]) -> bool:
    """Return whether a file of funding rates keeps them under `open`: freqtrade's older files."""
    has_rate = bool(likely(names, "funding_rate"))
    return "funding" in path.name.lower() and not has_rate and {"open", "volume"} <= {*names}


def _in_milliseconds(
    table: pa.Table, collector: Collector, unit: TimeUnit | None, place: str, *, spot: bool
) -> tuple[pa.Table, DataError | None]:
    """Return the table with certain times in milliseconds, as an import has it; else why not."""
    names = likely(table.column_names, "ts")
    if len(names) != 1 or table.column_names.count(names[0]) != 1 or not table.num_rows:
        return table, None
    index = table.column_names.index(names[0])
    try:
        times = to_milliseconds(table.column(index), unit=unit, place=place, binance_spot=spot)
    except DataError as error:
        return table, error
    if times.unit not in ("ms", "iso"):
        collector.whole("time-unit", f"times in {times.unit}, read as such", severity="warning")
    for remark in times.notes:
        collector.whole(
            "naive-time" if "zone" in remark else "mixed-time-units", remark, severity="warning"
        )
    if times.unit == "iso" and not times.notes:
        return table, None  # the checks tell leap seconds and missing zones apart themselves
    return table.set_column(index, names[0], times.column), None


def read_reference(path: Path) -> Reference:
    """Return the highs and lows of a file: the mark price, or the market on another venue.

    Raises:
        DataError: if it cannot be read, or has no times, highs and lows that are certain.
    """
    loaded = load_file(path)
    table = None if loaded.table is None else rename(loaded.table)
    names = [] if table is None else table.column_names
    if table is None or not {"ts", "high", "low"} <= {*names}:
        raise DataError(
            "data-column",
            wrong=f"{path} must have columns for time, high and low to be a reference",
            found=", ".join(names) or "no row that can be read",
            remedy="Name a file of bars of the mark price or of another venue.",
        )
    times = to_milliseconds(table["ts"], unit=None, place=path.name)
    high, low = (
        np.asarray(table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)
        for name in ("high", "low")
    )
    ts = np.asarray(times.column.fill_null(-1).to_numpy(), dtype=np.int64)
    order = np.argsort(ts, kind="stable")
    return Reference(ts[order], high[order], low[order])


def load_file(
    path: Path, *, chosen: Mapping[str, str] | None = None, every: bool = False
) -> Loaded:
    """Return the rows of a file; defects of the file itself are in `collector`.

    Args:
        path: of a file with one table.
        chosen: our column names to the source's, where a person has decided.
        every: keep the cells of columns that nobody reads, too.

    Raises:
        DataError: if there is no such file, it cannot be opened or it holds several tables.
    """
    files = load_files(path, chosen=chosen, every=every)
    if len(files) != 1:
        raise DataError(
            "data-unreadable",
            wrong=f"{path} must hold one file",
            found=f"{len(files)} of them",
            remedy="Unpack it and check the files one by one.",
        )
    return files[0]


def load_files(
    path: Path, *, chosen: Mapping[str, str] | None = None, every: bool = False
) -> list[Loaded]:
    """Return the rows of a file, or of each text in an archive.

    Links are followed. A pipe, a device, a socket or a folder is refused, and nothing is waited
    for.

    Raises:
        DataError: if there is no such file or it cannot be opened.
    """
    try:
        size = check_regular(path).st_size
        with open_regular(path) as stream:
            mark = stream.read(6)
    except OSError as error:
        raise DataError(
            "data-missing",
            wrong=f"{path} must be a file that can be read",
            found=str(error.strerror or error),
            remedy="Check the path and its permissions.",
        ) from error
    read = partial(read_text, chosen=chosen, every=every)
    loaded = Loaded(path=path)
    try:
        if mark[:2] == b"PK" and size <= _MOST_BYTES:
            return _unzipped(path, size, read)
        _read(path, size, mark, loaded, read)
    except _DAMAGED as error:
        lines = str(error).splitlines()
        loaded.collector.whole("truncated-file", lines[0] if lines else type(error).__name__)
        loaded.table = None
    if "seal" in loaded.notes:
        _check_seal(path.absolute(), loaded)
    return [loaded]


def _read(path: Path, size: int, mark: bytes, loaded: Loaded, read: "partial[_Rows]") -> None:
    """Read a file of any kind but archives, told by its first bytes and its name."""
    suffix = path.suffix.lower()
    if not size:
        loaded.collector.whole("empty-file", "0 bytes")
    elif size > _MOST_BYTES:
        loaded.collector.whole("row-claim", f"more than {_MOST_BYTES >> 30} GiB; split it")
    elif mark[:2] == b"\x1f\x8b":
        limit = max(_FLOOR, _RATIO * size)
        _read_text(lambda: cast("BinaryIO", gzip.GzipFile(path)), limit, loaded, read)
    elif suffix in (".gz", ".zip"):
        loaded.collector.whole("truncated-file", f"the content is no {suffix[1:]} file")
    elif mark[:4] == b"PAR1" or suffix in (".parquet", ".pq"):
        _read_arrow(path, size, loaded, parquet=True)
    elif mark == b"ARROW1" or suffix in (".feather", ".arrow"):
        _read_arrow(path, size, loaded, parquet=False)
    else:
        _read_text(lambda: open_regular(path), size, loaded, read)


def _read_text(opened: Opener, limit: int, loaded: Loaded, read: "partial[_Rows]") -> None:
    try:
        loaded.table, loaded.remarks = read(opened, loaded.collector, limit=limit)
    except TooLargeError as error:
        loaded.collector.whole("row-claim", str(error))


def _unzipped(path: Path, size: int, read: "partial[_Rows]") -> list[Loaded]:
    """Return each text of an archive; nothing is ever written where its names point."""
    files = []
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(TEXT_SUFFIXES)]
        if not names:
            raise ValueError("an archive without a CSV file")
        for name in sorted(names):
            loaded = Loaded(path=PurePath(PurePath(name).name))
            limit = max(_FLOOR, _RATIO * size)
            claimed = archive.getinfo(name).file_size
            if claimed > limit:
                words = f"claims to unpack to {claimed} bytes"
                loaded.collector.whole("row-claim", words)
            else:
                _read_text(_member(archive, name), limit, loaded, read)
            files.append(loaded)
    return files


def _member(archive: zipfile.ZipFile, name: str) -> Opener:
    return lambda: cast("BinaryIO", archive.open(name))


def _check_seal(path: Path, loaded: Loaded) -> None:
    """Report a file of a store that the store itself would refuse: changed, or put elsewhere."""
    store = Store(path.parent.parent)
    try:
        symbol = symbol_of(path.parent.name)
        interval = None if path.stem == FUNDING else Interval.parse(path.stem)
    except DataError:  # a copy outside of a store has a seal but no place to belong to
        return
    try:
        if interval is not None and store.path(symbol, interval) == path:
            bars, funding = store.read(symbol, interval), store.read_funding(symbol)
            _check_coverage(bars, funding, loaded.collector)
            loaded.reference = _marks(store.read_mark(symbol, interval))
        elif interval is None and store.funding_path(symbol) == path:
            store.read_funding(symbol)
    except DataError as error:
        loaded.collector.whole("truncated-file", f"not as the store wrote it: {error.found}")


def _marks(mark: Mark | None) -> Reference | None:
    """Return mark prices as what highs and lows are judged by."""
    return None if mark is None else Reference(mark.ts, mark.column("high"), mark.column("low"))


def _check_coverage(bars: Bars, funding: Funding | None, collector: Collector) -> None:
    """Report a stored perpetual whose funding is not known well enough to trade it."""
    known, missing = (len(times) for times in count_settlements(bars, funding))
    if missing and known < LEAST_COVERAGE * (known + missing):
        share = known / (known + missing)
        collector.whole(
            "funding-coverage", f"rates for {known} of {known + missing} settlements, {share:.1%}"
        )


def interval_of(path: Path, loaded: Loaded, columns: Mapping[str, str] | None = None) -> Interval:
    """Return the interval that a file says it has, or the usual step between its rows."""
    named = loaded.notes.get("interval") or next(iter(_NAMED_INTERVAL.findall(path.name)), None)
    if named is not None:
        try:
            return Interval.parse(named)
        except DataError:
            pass
    table = None if loaded.table is None else rename(loaded.table, columns)
    if table is not None and "ts" in table.column_names and table.num_rows > 1:
        stamps = read_stamps(table.column("ts").slice(0, 10_000).combine_chunks())
        steps = np.diff(np.unique(stamps.ms[stamps.valid]))
        usual = int(np.median(steps)) if len(steps) else 0
        if _SHORT_MONTH_MS <= usual <= _LONG_MONTH_MS:
            return Interval.parse("1mo")
        if usual >= 1_000:
            return Interval(usual)
    return Interval(60_000)


def _symbol(path: Path, notes: dict[str, str]) -> str:
    if "symbol" in notes:
        return notes["symbol"]
    try:
        return symbol_of(path.parent.name)
    except DataError:
        return re.split(r"[_.]|-\d", path.name)[0]


def _read_arrow(path: Path, size: int, loaded: Loaded, *, parquet: bool) -> None:
    """Read a columnar file; every damage that Arrow notices is a truncated file."""
    if parquet:
        with pq.ParquetFile(path) as file:
            if not _plausible(file.metadata, size, loaded.collector):
                return
            table = file.read(use_threads=False)
    else:
        table = pyarrow.feather.read_table(path, use_threads=False, memory_map=False)
    if table.num_rows > MOST_ROWS:
        loaded.collector.whole("row-claim", f"{table.num_rows} rows")
        return
    table.validate(full=True)
    metadata = table.schema.metadata or {}
    loaded.notes = {
        key.removeprefix(_META).decode(errors="replace"): text.decode(errors="replace")
        for key, text in metadata.items()
        if key.startswith(_META)
    }
    loaded.table = table


def _plausible(metadata: pq.FileMetaData, size: int, collector: Collector) -> bool:
    """Report a Parquet file whose footer claims more than its bytes can hold."""
    claimed = sum(
        max(metadata.row_group(i).total_byte_size, 0) for i in range(metadata.num_row_groups)
    )
    if metadata.num_rows > MOST_ROWS:
        collector.whole("row-claim", f"claims {metadata.num_rows} rows")
        return False
    if metadata.num_rows < 0 or claimed > max(_FLOOR, _RATIO * size):
        collector.whole("row-claim", f"claims {claimed} bytes in a file of {size}")
        return False
    return True
