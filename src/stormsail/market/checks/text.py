"""Reading of CSV files: encoding, line ends, separators, headers, broken lines."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from stormsail.market.bars import REQUIRED
from stormsail.market.checks.columns import BINANCE
from stormsail.market.checks.report import Collector

_MOST_COLUMNS = 1_000
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEADER = re.compile(rb"^[\s\"']*[A-Za-z_#]")
_BLOCK = 1 << 24


def read_text(data: bytes, collector: Collector) -> pa.Table | None:
    """Return the rows of a CSV file as text columns; None if there is nothing to read."""
    data = _line_ends(_decoded(data, collector), collector)
    if not data.strip():
        collector.whole("empty-file", "no line")
        return None
    first = data.lstrip(b"\n").split(b"\n", 1)[0]
    separator = max(b",;\t|", key=lambda byte: first.count(byte))
    names, skip = _names(first, chr(separator), collector)
    if names is None:
        return None
    data = _whole_lines(data, chr(separator), len(names), collector)
    return _parsed(data, chr(separator), names, skip, collector)


def _decoded(data: bytes, collector: Collector) -> bytes:
    """Return UTF-8 bytes without a byte-order mark."""
    if data.startswith(_WIDE_MARKS):
        collector.whole("encoding", "UTF-16")
        return data.decode("utf-16", errors="replace").encode()
    if data.startswith(b"\xef\xbb\xbf"):
        collector.whole("encoding", "UTF-8 with a byte-order mark", severity="warning")
        data = data[3:]
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        line = data.count(b"\n", 0, error.start) + 1
        collector.whole("encoding", f"line {line} has the byte 0x{byte:02x}, which is no UTF-8")
        return data.decode("latin-1").replace("\0", "?").encode()
    if b"\0" in data:
        collector.whole("encoding", "there are zero bytes")
        return data.replace(b"\0", b"?")
    return data


def _line_ends(data: bytes, collector: Collector) -> bytes:
    count = data.count(b"\r")
    if count == 0:
        return data
    collector.whole("crlf", f"{count} carriage returns")
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _names(first: bytes, separator: str, collector: Collector) -> tuple[list[str] | None, int]:
    """Return the names of the columns and how many lines they take."""
    fields = [cell.strip().strip("\"'") for cell in first.decode().split(separator)]
    if len(fields) > _MOST_COLUMNS:
        collector.whole("ragged-row", f"a first line of {len(fields)} fields")
        return None, 0
    if _HEADER.match(first):
        return fields, 1
    for known in (REQUIRED, BINANCE):
        if len(fields) == len(known):
            return list(known), 0
    words = (
        f"there is no header, and {len(fields)} fields are not {len(REQUIRED)} or {len(BINANCE)}"
    )
    collector.whole("missing-column", words)
    return None, 0


def _whole_lines(data: bytes, separator: str, columns: int, collector: Collector) -> bytes:
    """Return the data without a last line that was cut off."""
    if data.endswith(b"\n"):
        return data
    start = data.rfind(b"\n") + 1
    last = data[start:]
    if start == 0 or last.count(separator.encode()) + 1 >= columns:
        return data + b"\n"
    collector.whole("truncated-file", f"the last line ends early: {last.decode(errors='replace')}")
    return data[:start]


def _parsed(
    data: bytes, separator: str, names: list[str], skip: int, collector: Collector
) -> pa.Table | None:
    ragged: list[tuple[int, int]] = []

    def skip_row(row: pacsv.InvalidRow) -> str:
        number = -1 if row.number is None else int(row.number) - 1 - skip
        ragged.append((number, row.actual_columns))
        return "skip"

    unique = [f"{i}" for i in range(len(names))]  # Arrow looks types up by name, ours may repeat
    try:
        table = pacsv.read_csv(
            pa.BufferReader(data.lstrip(b"\n")),
            read_options=pacsv.ReadOptions(
                column_names=unique, skip_rows=skip, use_threads=False, block_size=_BLOCK
            ),
            parse_options=pacsv.ParseOptions(delimiter=separator, invalid_row_handler=skip_row),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(unique, pa.string()),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            collector.whole("empty-file", "a header and no row")
        else:
            collector.whole("ragged-row", str(error).splitlines()[0])
        return None
    _report_ragged(collector, ragged, len(names), separator)
    return table.rename_columns(names)


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
