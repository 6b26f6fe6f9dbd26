"""Reading of data files as Arrow tables, with the column names of the source."""

import glob
import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from stormsail.core.errors import DataError
from stormsail.market.checks.columns import BINANCE, tidy
from stormsail.market.importers.columns import is_binance

_TEXT = (".csv", ".txt", ".tsv")
_TABLES = (".parquet", ".feather", ".arrow")
SUFFIXES = (*_TEXT, *(f"{suffix}.gz" for suffix in _TEXT), ".zip", *_TABLES)
"""Ends of the names of files that can be imported."""

MARKS = ".?! "
"""Marks at the end of other packages' messages, which our sentences would double."""

_REPAIR_LOG = ".repairs.txt"  # what `stormsail check` writes beside a mended file
_DELIMITERS = ",;\t|"
_HEAD = 1 << 16
_BLOCK = 1 << 24
_MAX_BYTES = 1 << 33
_MAX_ROWS = 200_000_000  # 380 years of one-minute bars
_FREE_GROWTH = 1 << 26
_MAX_GROWTH = 200  # real dumps shrink 3 to 20 times; deflate can claim 1,000


@dataclass(frozen=True)
class RawFile:
    """A table as the file holds it."""

    path: PurePath
    table: pa.Table
    binance: bool = False
    """Whether the columns are those of Binance's dumps, under our names."""
    notes: tuple[str, ...] = field(default=())


def find_files(sources: Iterable[str | Path]) -> list[Path]:
    """Return the files behind paths, folders and patterns, sorted by name, each once.

    Raises:
        DataError: if a source is not there, or a folder holds nothing that can be imported.
    """
    paths: dict[Path, None] = {}
    listed = list(sources)
    for source in listed:
        path = Path(source)
        if path.is_dir():
            files = [file for file in path.iterdir() if _is_source(file)]
        elif path.exists():
            if path.name.lower().endswith(_REPAIR_LOG) and len(listed) > 1:
                continue  # the shell put it among the others
            files = [path]
        else:
            files = [Path(name) for name in glob.glob(str(source), recursive=True)]  # noqa: PTH207
            files = [file for file in files if _is_source(file)]
        if not files:
            raise DataError(
                "data-source",
                wrong="a source must be a CSV, zip, gz, Parquet or Feather file, a folder of "
                "them, or a pattern",
                found=f"nothing of that kind at `{source}`",
                remedy="Check the path, and quote a pattern so that the shell leaves it alone.",
            )
        paths.update(dict.fromkeys(files))
    return sorted(paths, key=lambda path: (path.name, str(path)))


def _is_source(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith(SUFFIXES) and not name.endswith(_REPAIR_LOG)


def read_files(path: Path) -> Iterator[RawFile]:
    """Read a file, or each table inside an archive.

    Raises:
        DataError: if it cannot be read completely, or is of an unknown kind.
    """
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(
            "data-source",
            wrong="a source must be a CSV, zip, gz, Parquet or Feather file",
            found=f"{path}",
            remedy="Convert it to one of these, or rename it if only its ending is wrong.",
        )
    try:
        if name.endswith(_TABLES):
            yield RawFile(path, _read_table(path))
            return
        data = _read_bytes(path)
        members = _unzipped(data) if name.endswith(".zip") else [(path, data)]
        for member, raw in members:
            text = _gunzipped(raw) if member.name.lower().endswith(".gz") else raw
            yield _read_text(PurePath(member), text)
    except _PROBLEMS as error:
        raise _unreadable(path, str(error).split("\n")[0] or type(error).__name__) from error


_PROBLEMS = (
    *(OSError, EOFError, MemoryError, ValueError, NotImplementedError, RuntimeError),
    *(pa.ArrowException, zlib.error, zipfile.BadZipFile),
)
"""What damaged files make the readers raise; RuntimeError comes from encrypted archives."""


def _unreadable(path: PurePath, found: str) -> DataError:
    return DataError(
        "data-unreadable",
        wrong=f"{path} must be a whole file of the kind that its name says",
        found=found.rstrip(MARKS),
        remedy="Download or export it again, and let `stormsail check` look at it.",
    )


def _read_bytes(path: Path) -> bytes:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES >> 30} GiB; split it")
    return path.read_bytes()


def _limit(packed: int) -> int:
    return max(_FREE_GROWTH, _MAX_GROWTH * packed)


def _bounded(stream: io.BufferedIOBase, packed: int) -> bytes:
    """Read a compressed stream, refusing one that unpacks to too many bytes."""
    limit = _limit(packed)
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{packed} bytes that unpack to more than {limit}")
    return data


def _gunzipped(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        return _bounded(stream, len(data))


def _unzipped(data: bytes) -> list[tuple[PurePath, bytes]]:
    """Return the text files of an archive; nothing is ever written where its names point."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = sorted(name for name in archive.namelist() if name.lower().endswith(_TEXT))
        if not names:
            raise ValueError("an archive without a CSV file")
        members = []
        for name in names:
            with archive.open(name) as stream:
                members.append((PurePath(PurePath(name).name), _bounded(stream, len(data))))  # type: ignore[arg-type]
    return members


def _read_table(path: Path) -> pa.Table:
    if path.suffix.lower() == ".parquet":
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > _MAX_ROWS:
                raise ValueError(f"a claim of {file.metadata.num_rows} rows")
            schema = file.schema_arrow
            table = file.read(columns=[schema.names[index] for index in _flat(schema)])
    else:
        with pa.OSFile(os.fspath(path)) as source, pa.ipc.open_file(source) as reader:
            table = reader.read_all()
        table = table.select(_flat(table.schema))
    table.validate(full=True)
    return table


def _flat(schema: pa.Schema) -> list[int]:
    """Return the positions of columns that are not nested: bars have no nested values."""
    return [index for index, kind in enumerate(schema.types) if not pa.types.is_nested(kind)]


def _read_text(path: PurePath, data: bytes) -> RawFile:
    """Read delimited text with or without a header; a repeated one at the top is skipped."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data[:_HEAD]:
        raise ValueError("text that is not UTF-8")
    lines = _head_lines(data)
    if not lines:
        raise ValueError("an empty file")
    delimiter = max(_DELIMITERS, key=lines[0].count)
    names = [name.strip().strip('"') for name in lines[0].split(delimiter)]
    skip = 0
    notes: tuple[str, ...] = ()
    if _is_number(names[0]):
        if len(names) != len(BINANCE):
            raise ValueError(f"no header, and {len(names)} columns instead of Binance's 12")
        names, binance = list(BINANCE), True
    else:
        skip = next((i for i, line in enumerate(lines) if line != lines[0]), len(lines))
        binance = is_binance(names)
        names = list(BINANCE) if binance else names
        if skip > 1:
            notes = (f"{path.name}: header line {skip} times at the top, read once",)
    table = _parse(_after_lines(data, skip), names, delimiter)
    return RawFile(path, table, binance, notes)


def _head_lines(data: bytes) -> list[str]:
    head = data[:_HEAD].decode("utf-8", errors="ignore" if len(data) > _HEAD else "strict")
    lines = [line for line in head.splitlines()[:4] if line.strip()]
    return [line.strip() for line in lines]


def _after_lines(data: bytes, count: int) -> pa.Buffer:
    """Return what follows the first `count` lines that are not empty."""
    start = 0
    while count:
        ends = [end for end in (data.find(b"\n", start), data.find(b"\r", start)) if end >= 0]
        end = min(ends, default=len(data) - 1)
        count -= bool(data[start:end].strip())
        start = end + 1
        if start >= len(data):
            break
    return pa.py_buffer(data).slice(start)


def _parse(data: pa.Buffer, names: list[str], delimiter: str) -> pa.Table:
    if not bytes(memoryview(data)[:_HEAD]).strip():
        return pa.table({name: pa.array([], pa.float64()) for name in dict.fromkeys(names)})
    # Only an empty field is "not there": `N/A` is text, and the data checks shall see it.
    convert = pcsv.ConvertOptions(null_values=[""], strings_can_be_null=True)
    return pcsv.read_csv(
        pa.BufferReader(data),
        # Arrow's reading threads may outlive an error and abort the interpreter at its exit.
        read_options=pcsv.ReadOptions(column_names=names, use_threads=False, block_size=_BLOCK),
        parse_options=pcsv.ParseOptions(delimiter=delimiter),
        convert_options=convert,
    )


def _is_number(text: str) -> bool:
    try:
        float(tidy(text))
    except ValueError:
        return False
    return True
