"""Reading of CSV files: encoding, line ends, separators, headers, broken lines.

The file is read in blocks, twice: once to see whether it is whole text, once to parse it. Where all
known columns hold numbers, as they nearly always do, they are parsed as such and take 8 bytes a
cell; otherwise every cell is kept as text, so that the checks can show what stands there.
"""

import codecs
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from stormsail.market.checks.columns import BINANCE, KNOWN, likely
from stormsail.market.checks.report import Collector

Opener = Callable[[], BinaryIO]
"""Opens a text from its beginning, as often as it is called."""

_MOST_COLUMNS = 1_000
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
_MARK = b"\xef\xbb\xbf"
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+|nan|inf)\s*", re.IGNORECASE)
_WHOLE = re.compile(r"\s*[-+]?\d{1,19}\s*")
_STAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,3})?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?"
)
_HEAD = 1 << 16
_SCANNED = 1 << 22
_BLOCK = 1 << 22


class TooLargeError(ValueError):
    """A text that is longer than its packed form allows."""


@dataclass
class _Scan:
    """What a first pass over the bytes shows."""

    size: int = 0
    lines: int = 0
    returns: int = 0
    strange: bool = False
    """Whether the text is not UTF-8, or has zero bytes."""
    head: bytes = b""
    tail: bytes = b""


@dataclass(frozen=True)
class _Layout:
    """Where the rows lie and what their columns are called."""

    names: list[str]
    separator: str
    start: int
    end: int
    lines: int
    """As many rows as there can be."""
    first: list[str] = field(default_factory=list)
    """Cells of the first row, if there is one."""


def read_text(
    opened: Opener,
    collector: Collector,
    *,
    limit: int,
    chosen: Mapping[str, str] | None = None,
    every: bool = False,
) -> tuple[pa.Table | None, tuple[str, ...]]:
    """Return the rows of a CSV file, None if there is nothing to read; and remarks on it.

    Args:
        opened: opens the text.
        collector: where defects of the file go.
        limit: bytes that it may have.
        chosen: our column names to the source's, where a person has decided.
        every: keep the cells of unknown columns, too, as text; else they are empty.

    Raises:
        TooLargeError: if it is longer.
    """
    scan = _scanned(opened, limit)
    if scan.strange:
        with opened() as stream:
            data = _decoded(stream.read(), collector)
        text = partial(io.BytesIO, data)
        return read_text(text, collector, limit=len(data), chosen=chosen, every=every)
    if scan.head.startswith(_MARK):
        collector.whole("encoding", "UTF-8 with a byte-order mark", severity="warning")
    if scan.returns:
        collector.whole("crlf", f"{scan.returns} carriage returns")
    layout, remarks = _layout(scan, collector)
    if layout is None:
        return None, ()
    kinds = _kinds(layout, chosen or {}, every=every)
    return _parsed(opened, layout, kinds, collector), remarks


def _scanned(opened: Opener, limit: int) -> _Scan:
    scan, decoder = _Scan(), codecs.getincrementaldecoder("utf-8")()
    pending = False
    with opened() as stream:
        while block := stream.read(_SCANNED):
            scan.size += len(block)
            if scan.size > limit:
                raise TooLargeError(f"unpacks to more than {limit} bytes")
            scan.head += block[: max(0, _HEAD - len(scan.head))]
            scan.tail = (scan.tail + block)[-_HEAD:]
            returns = block.count(b"\r")
            scan.returns += returns
            scan.lines += block.count(b"\n") + returns
            if not scan.strange and (pending or not block.isascii()):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError:
                    scan.strange = True
                pending = decoder.getstate()[0] != b""
            scan.strange |= b"\0" in block
    scan.strange |= pending or scan.head.startswith(_WIDE_MARKS)
    return scan


def _decoded(data: bytes, collector: Collector) -> bytes:
    """Return what can be read of a text that is not UTF-8, as UTF-8."""
    if data.startswith(_WIDE_MARKS):
        collector.whole("encoding", "UTF-16")
        text = data.decode("utf-16", errors="replace").replace("\0", "?")
        return text.encode("utf-8", errors="replace")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        line = data.count(b"\n", 0, error.start) + 1
        collector.whole("encoding", f"line {line} has the byte 0x{byte:02x}, which is no UTF-8")
        return data.decode("latin-1").replace("\0", "?").encode()
    collector.whole("encoding", "there are zero bytes")
    return data.replace(b"\0", b"?")


def _layout(scan: _Scan, collector: Collector) -> tuple[_Layout | None, tuple[str, ...]]:
    """Return names, separator and place of the rows, and remarks; report what is wrong with it."""
    lines = _lines(scan.head, 0 if not scan.head.startswith(_MARK) else len(_MARK))
    if not lines:
        if scan.size <= _HEAD:
            collector.whole("empty-file", "no line")
        else:
            collector.whole("ragged-row", f"a first line of more than {_HEAD} bytes")
        return None, ()
    first = lines[0][1]
    separator = max(_DELIMITERS, key=first.count)
    names = [cell.strip().strip("\"'") for cell in first.split(separator)]
    if len(names) > _MOST_COLUMNS:
        collector.whole("ragged-row", f"a first line of {len(names)} fields")
        return None, ()
    headers = 0
    remarks: tuple[str, ...] = ()
    if any(_NUMBER.fullmatch(name) for name in names):
        if len(names) != len(BINANCE):
            words = f"there is no header, and {len(names)} fields are not Binance's {len(BINANCE)}"
            collector.whole("missing-column", words)
            return None, ()
        names = list(BINANCE)
    else:
        headers = next((i for i, line in enumerate(lines) if line[1] != first), len(lines))
        if headers > 1:
            remarks = (f"header line {headers} times at the top, read once",)
            collector.whole("duplicate-header", remarks[0], severity="warning")
    start = lines[headers][0] if headers < len(lines) else scan.size
    cells = lines[headers][1].split(separator) if headers < len(lines) else []
    end = _end(scan, start, separator, len(names), collector)
    return _Layout(names, separator, start, end, scan.lines + 1, cells), remarks


def _lines(head: bytes, start: int) -> list[tuple[int, str]]:
    """Return the first lines that are not empty, each with its place; a broken one is left out."""
    lines = []
    for match in re.finditer(rb"([^\r\n]*)(\r\n|\n|\r|$)", head[start:]):
        cut = not match[2] and len(head) == _HEAD  # the line goes on behind the head
        if match[1].strip() and not cut:
            lines.append((start + match.start(), match[1].decode("utf-8", errors="replace")))
        if len(lines) == 8:
            break
    return lines


def _end(scan: _Scan, start: int, separator: str, columns: int, collector: Collector) -> int:
    """Return where the rows end: before a last line that was cut off."""
    if scan.tail.endswith((b"\n", b"\r")):
        return scan.size
    last = re.split(rb"[\r\n]", scan.tail)[-1]
    whole = last.count(separator.encode()) + 1 >= columns
    if whole or start >= scan.size or len(last) == len(scan.tail):
        return scan.size
    collector.whole("truncated-file", f"the last line ends early: {last.decode(errors='replace')}")
    return scan.size - len(last)


def _parsed(
    opened: Opener, layout: _Layout, kinds: dict[int, pa.DataType], collector: Collector
) -> pa.Table | None:
    if layout.start >= layout.end:
        return _empty(layout)
    ragged: list[tuple[int, int]] = []

    def skip_row(number: int, fields: int) -> None:
        ragged.append((number, fields))

    try:
        table = _numeric_table(opened, layout, kinds)
        if table is None:
            table = _text_table(opened, layout, kinds, skip_row)
    except pa.ArrowInvalid as error:
        collector.whole("ragged-row", str(error).splitlines()[0])
        return None
    _report_ragged(collector, ragged, len(layout.names), layout.separator)
    return table


def _empty(layout: _Layout) -> pa.Table:
    return pa.table({name: pa.array([], pa.float64()) for name in dict.fromkeys(layout.names)})


def _kinds(layout: _Layout, chosen: Mapping[str, str], *, every: bool) -> dict[int, pa.DataType]:
    """Return the type of every column that is read, by its place."""
    names = layout.names
    ours = {*KNOWN, "funding_rate"} - {*chosen}
    wanted = {*chosen.values()}.union(*(likely(names, name) for name in ours))
    times = {chosen["ts"]} if "ts" in chosen else {*likely(names, "ts")}
    read = {}
    for place, name in enumerate(names):
        if name in times:
            cell = layout.first[place] if place < len(layout.first) else ""
            read[place] = _time_kind(cell)
        elif name in wanted or every:
            read[place] = pa.float64() if name in wanted else pa.string()
    return read


def _time_kind(cell: str) -> pa.DataType:
    if _WHOLE.fullmatch(cell):
        return pa.int64()
    written = _STAMP.fullmatch(cell)
    if written is None:
        return pa.string()
    return pa.timestamp("ms", "UTC" if written["zone"] else None)


def _numeric_table(
    opened: Opener, layout: _Layout, kinds: dict[int, pa.DataType]
) -> pa.Table | None:
    """Return the rows with numbers as numbers; None where a cell is none, or a line is broken."""
    cells = layout.first
    for place, kind in kinds.items():
        cell = cells[place].strip() if place < len(cells) else "?"
        if kind == pa.float64() and cell and not _NUMBER.fullmatch(cell):
            return None
    try:
        return _filled(opened, layout, kinds)
    except pa.ArrowInvalid:
        return None


def _filled(opened: Opener, layout: _Layout, kinds: dict[int, pa.DataType]) -> pa.Table | None:
    """Return the rows, block by block put into arrays of the size that the lines ask for.

    Each number is in memory once. None where a cell is empty: text tells what is not there.
    """
    arrays = {
        place: np.empty(layout.lines, np.int64 if kind != pa.float64() else np.float64)
        for place, kind in kinds.items()
        if kind != pa.string()
    }
    texts: dict[int, list[pa.ChunkedArray]] = {place: [] for place in kinds if place not in arrays}
    rows = 0
    for table in _tables(opened, layout, kinds, None):
        for place, column in zip(kinds, table.columns, strict=True):
            if place in texts:
                texts[place].append(column)
                continue
            if column.null_count:
                return None
            whole = column if kinds[place] == pa.float64() else column.cast(pa.int64())
            arrays[place][rows : rows + len(column)] = whole.to_numpy()
        rows += table.num_rows
    pa.default_memory_pool().release_unused()  # blocks of text, which nobody needs any more
    columns = []
    for place in range(len(layout.names)):
        if place in arrays:
            columns.append(pa.array(arrays[place][:rows]).cast(kinds[place]))
        elif place in texts:
            chunks = [chunk for column in texts[place] for chunk in column.chunks]
            columns.append(pa.chunked_array(chunks, kinds[place]))
        else:
            columns.append(pa.nulls(rows))
    return pa.Table.from_arrays(columns, names=layout.names)


def _tables(
    opened: Opener,
    layout: _Layout,
    kinds: dict[int, pa.DataType],
    skip_row: Callable[[int, int], None] | None,
) -> Iterator[pa.Table]:
    """Yield the rows block by block; `skip_row` gets number and width of each line left out.

    Arrow reads ahead in threads of its own, also without `use_threads`, and a thread that wants the
    interpreter while that ends aborts the process. So it never gets a Python stream, but one block
    at a time in its own memory, and asks about broken lines in the thread that calls it.
    """
    # Arrow looks types up by name, ours may repeat.
    names = [str(place) for place in range(len(layout.names))]
    # Only an empty field is "not there": `N/A` is text, and the data checks shall see it.
    convert = pacsv.ConvertOptions(
        column_types={names[place]: kind for place, kind in kinds.items()},
        include_columns=[names[place] for place in kinds] or names[:1],
        strings_can_be_null=True,
        null_values=[""],
    )
    before = 0  # rows of earlier blocks, broken ones among them
    skipped = 0

    def skip(row: pacsv.InvalidRow) -> str:
        nonlocal skipped
        skipped += 1
        if skip_row is not None:
            skip_row(before + int(row.number) - 1, row.actual_columns)
        return "skip"

    with opened() as stream:
        for block in _blocks(stream, layout.start, layout.end):
            skipped = 0
            native = pa.BufferOutputStream()
            native.write(block)
            buffer = native.getvalue()
            table = pacsv.read_csv(
                pa.BufferReader(buffer),
                read_options=pacsv.ReadOptions(
                    column_names=names, use_threads=False, block_size=max(len(block), 1 << 10)
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=layout.separator,
                    invalid_row_handler=skip if skip_row is not None else None,
                ),
                convert_options=convert,
            )
            before += table.num_rows + skipped
            yield table


def _blocks(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes from start to end in blocks of whole lines."""
    left = end - start
    while start > 0 and (passed := stream.read(min(start, _SCANNED))):
        start -= len(passed)
    rest = b""
    while left > 0 and (data := stream.read(min(left, _BLOCK))):
        left -= len(data)
        data = rest + data
        # A return at the very end may be the first half of a line end.
        cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        rest = data[cut:]
        if len(rest) > _BLOCK:
            raise pa.ArrowInvalid(f"a line of more than {_BLOCK} bytes")
        if cut and data[:cut].strip():
            yield data[:cut]
    if rest.strip():
        yield rest


def _text_table(
    opened: Opener,
    layout: _Layout,
    kinds: dict[int, pa.DataType],
    skip_row: Callable[[int, int], None],
) -> pa.Table:
    """Return the rows as text, but columns of numbers alone as numbers; broken lines are left out.

    Columns that were not read are empty, under their names.
    """
    text = dict.fromkeys(kinds, pa.string())
    tables = list(_tables(opened, layout, text, skip_row))
    if not tables:
        return _empty(layout)
    read = pa.concat_tables(tables)
    columns = dict(zip(kinds, read.columns, strict=False))
    none = pa.nulls(read.num_rows)
    whole = [columns.get(place, none) for place in range(len(layout.names))]
    return _with_numbers(pa.Table.from_arrays(whole, names=layout.names), kinds)


def _with_numbers(table: pa.Table, kinds: dict[int, pa.DataType]) -> pa.Table:
    """Return text columns as numbers where all of their cells are."""
    for place, kind in kinds.items():
        if pa.types.is_timestamp(kind):
            continue  # the checks read written times themselves
        for wanted in (kind, pa.float64()) if kind == pa.int64() else (kind,):
            try:
                column = table.column(place).cast(wanted)
            except pa.ArrowInvalid:
                continue
            table = table.set_column(place, table.field(place).name, column)
            break
    return table


def _report_ragged(
    collector: Collector, ragged: list[tuple[int, int]], columns: int, separator: str
) -> None:
    """Report lines with a wrong number of fields.

    Decimal commas in a file that separates by commas give every broken number two fields: lines
    with up to twice as many fields, all alike, are reported as that.
    """
    if not ragged:
        return
    rows = np.array([number for number, _ in ragged], np.int64)
    fields = dict(ragged)
    longer = all(columns < actual <= 2 * columns for actual in fields.values())
    comma = separator == "," and longer and len(rows) > 1
    collector.add(
        "decimal-comma" if comma else "ragged-row",
        rows,
        lambda row: f"{fields[row]} fields instead of {columns}",
    )
