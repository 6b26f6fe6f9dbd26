"""Checks of data files: CSV (plain, zipped, gzipped), Parquet and Feather, treated as hostile."""

import io
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding
from stormsail.market.checks.columns import rename
from stormsail.market.checks.report import Collector, Report
from stormsail.market.checks.stamps import read_stamps
from stormsail.market.checks.table import check_funding_table, check_table
from stormsail.market.checks.text import read_text
from stormsail.market.interval import Interval
from stormsail.market.settlements import LEAST_COVERAGE, count_settlements
from stormsail.market.store import FUNDING, Store, symbol_of

MOST_ROWS = 100_000_000
"""More rows than any bar file has: ten years of seconds are 300 million, of minutes 5 million."""

_RATIO = 200
_FLOOR = 1 << 26
"""Unpacked bytes may be 64 MiB, or 200 times the packed ones: digits pack 3 to 10 times."""

_META = b"stormsail."
_NAMED_INTERVAL = re.compile(r"(?:^|[-_. ])(\d{1,4}[mhdw])(?=[-_. ]|$)")
SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".zip", ".parquet", ".pq", ".feather", ".arrow")


@dataclass
class Loaded:
    """Rows of a file, and the defects that were found while reading it."""

    table: pa.Table | None = None
    collector: Collector = field(default_factory=Collector)
    notes: dict[str, str] = field(default_factory=dict)


def check_file(
    path: Path | str,
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    now_ms: int | None = None,
) -> Report:
    """Check a file of bars or funding rates; nothing is changed.

    Args:
        path: CSV (also zipped or gzipped), Parquet or Feather, told apart by content.
        symbol: whose data they are; else what the file, its folder or its name says.
        interval: how long a bar is; else what the file or its name says, or its usual step.
        now_ms: the present in UTC milliseconds.

    Raises:
        DataError: if there is no such file or it cannot be opened.
    """
    path = Path(path)
    return check_loaded(load_file(path), path, symbol=symbol, interval=interval, now_ms=now_ms)


def check_loaded(
    loaded: Loaded,
    path: Path,
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    now_ms: int | None = None,
) -> Report:
    """Check what `load_file` read."""
    symbol = symbol or _symbol(path, loaded.notes)
    if loaded.table is None:
        return loaded.collector.report(str(path), 0, symbol=symbol, now_ms=now_ms)
    table = rename(loaded.table)
    if "funding_rate" in table.column_names and "open" not in table.column_names:
        return check_funding_table(
            table, symbol=symbol, now_ms=now_ms, what=str(path), collector=loaded.collector
        )
    interval = interval or interval_of(path, loaded)
    return check_table(
        table,
        symbol=symbol,
        interval=interval,
        now_ms=now_ms,
        what=str(path),
        collector=loaded.collector,
    )


def load_file(path: Path) -> Loaded:
    """Return the rows of a file; defects of the file itself are in `collector`.

    Raises:
        DataError: if there is no such file or it cannot be opened.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            "data-missing",
            wrong=f"{path} must be a file that can be read",
            found=str(error.strerror or error),
            remedy="Check the path and its permissions.",
        ) from error
    loaded = Loaded()
    if not data:
        loaded.collector.whole("empty-file", "0 bytes")
        return loaded
    content = _unpack(data, path, loaded.collector)
    if content is not None:
        _read(content, path, loaded)
    if "seal" in loaded.notes:
        _check_seal(path.absolute(), loaded.collector)
    return loaded


def _check_seal(path: Path, collector: Collector) -> None:
    """Report a file of a store that the store itself would refuse: changed, or put elsewhere."""
    store = Store(path.parent.parent)
    try:
        symbol = symbol_of(path.parent.name)
        interval = None if path.stem == FUNDING else Interval.parse(path.stem)
    except DataError:  # a copy outside of a store has a seal but no place to belong to
        return
    try:
        if interval is not None and store.path(symbol, interval) == path:
            _check_coverage(store.read(symbol, interval), store.read_funding(symbol), collector)
        elif interval is None and store.funding_path(symbol) == path:
            store.read_funding(symbol)
    except DataError as error:
        collector.whole("truncated-file", f"not as the store wrote it: {error.found}")


def _check_coverage(bars: Bars, funding: Funding | None, collector: Collector) -> None:
    """Report a stored perpetual whose funding is not known well enough to trade it."""
    known, missing = (len(times) for times in count_settlements(bars, funding))
    if missing and known < LEAST_COVERAGE * (known + missing):
        share = known / (known + missing)
        collector.whole(
            "funding-coverage", f"rates for {known} of {known + missing} settlements, {share:.1%}"
        )


def interval_of(path: Path, loaded: Loaded) -> Interval:
    """Return the interval that a file says it has, or the usual step between its rows."""
    named = loaded.notes.get("interval") or next(iter(_NAMED_INTERVAL.findall(path.name)), None)
    if named is not None:
        try:
            return Interval.parse(named)
        except DataError:
            pass
    table = None if loaded.table is None else rename(loaded.table)
    if table is not None and "ts" in table.column_names and table.num_rows > 1:
        stamps = read_stamps(table.column("ts").slice(0, 10_000).combine_chunks())
        steps = np.diff(np.unique(stamps.ms[stamps.valid]))
        usual = int(np.median(steps)) if len(steps) else 0
        if usual >= 60_000:
            return Interval(usual)
    return Interval(60_000)


def _symbol(path: Path, notes: dict[str, str]) -> str:
    if "symbol" in notes:
        return notes["symbol"]
    try:
        return symbol_of(path.parent.name)
    except DataError:
        return re.split(r"[_.]|-\d", path.name)[0]


def _unpack(data: bytes, path: Path, collector: Collector) -> bytes | None:
    """Return the bytes inside a zip or gzip file, or the bytes themselves."""
    limit = max(_FLOOR, _RATIO * len(data))
    if data[:2] == b"\x1f\x8b":
        return _gunzip(data, limit, collector)
    if data[:2] == b"PK":
        return _unzip(data, limit, path, collector)
    if path.suffix.lower() in (".gz", ".zip"):
        collector.whole("truncated-file", f"the content is no {path.suffix[1:]} file")
        return None
    return data


def _gunzip(data: bytes, limit: int, collector: Collector) -> bytes | None:
    parts, size = [], 0
    while data:
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(data, limit - size + 1)
        except zlib.error as error:
            collector.whole("truncated-file", str(error))
            return None
        size += len(part)
        if size > limit:
            collector.whole("row-claim", f"unpacks to more than {limit} bytes")
            return None
        if not stream.eof:
            collector.whole("truncated-file", f"the compressed data end after {size} bytes")
            return None
        parts.append(part)
        data = stream.unused_data.lstrip(b"\0")  # padding behind the end is allowed
    return b"".join(parts)


def _unzip(data: bytes, limit: int, path: Path, collector: Collector) -> bytes | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) != 1:
                raise DataError(
                    "data-unreadable",
                    wrong=f"{path} must hold one file",
                    found=f"{len(members)} of them",
                    remedy="Unpack it and check the files one by one.",
                )
            if members[0].file_size > limit:
                collector.whole("row-claim", f"claims to unpack to {members[0].file_size} bytes")
                return None
            with archive.open(members[0]) as stream:
                return stream.read(limit)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        collector.whole("truncated-file", str(error) or type(error).__name__)
    except (NotImplementedError, RuntimeError) as error:  # another compression, or a password
        collector.whole("truncated-file", str(error))
    return None


def _read(data: bytes, path: Path, loaded: Loaded) -> None:
    if data[:4] == b"PAR1" or path.suffix.lower() in (".parquet", ".pq"):
        _read_arrow(data, loaded, parquet=True)
    elif data[:6] == b"ARROW1" or path.suffix.lower() in (".feather", ".arrow"):
        _read_arrow(data, loaded, parquet=False)
    else:
        loaded.table = read_text(data, loaded.collector)


def _read_arrow(data: bytes, loaded: Loaded, *, parquet: bool) -> None:
    """Read a columnar file; every damage that Arrow notices is a truncated file."""
    source = pa.BufferReader(data)
    try:
        if parquet:
            file = pq.ParquetFile(source)
            if not _plausible(file.metadata, len(data), loaded.collector):
                return
            table = file.read(use_threads=False)
        else:
            table = pyarrow.feather.read_table(source, use_threads=False)
        if table.num_rows > MOST_ROWS:
            loaded.collector.whole("row-claim", f"{table.num_rows} rows")
            return
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        words = str(error).splitlines()
        loaded.collector.whole("truncated-file", words[0] if words else type(error).__name__)
        return
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
