"""A repaired file beside its source, and the log of what was changed."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from stormsail.core.errors import DataError
from stormsail.core.files import atomic
from stormsail.market.bars import column_type
from stormsail.market.checks.columns import KNOWN
from stormsail.market.checks.files import check_loaded, interval_of, load_file
from stormsail.market.checks.repair import repair
from stormsail.market.interval import Interval


def repair_file(
    source: Path,
    target: Path,
    rules: Sequence[str],
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    now_ms: int | None = None,
) -> list[str]:
    """Write the repaired rows of a file to another one; return a line for every change.

    The lines are also written to a file of the target's name with `.repairs.txt` behind it.

    Raises:
        DataError: if the source has no rows, is the target, or the target cannot be written.
    """
    if target.suffix not in (".csv", ".parquet") or _same(source, target):
        raise DataError(
            "data-repair",
            wrong="repaired rows must go to another file that ends in .csv or .parquet",
            found=f"{source} to {target}",
            remedy="Name such a file with `--out`.",
        )
    loaded = load_file(source)
    length = interval or interval_of(source, loaded)
    table = loaded.table
    notes = {key: text for key, text in loaded.notes.items() if key != "seal"}  # of other values
    report = check_loaded(loaded, source, symbol=symbol, interval=length, now_ms=now_ms)
    if table is None:
        raise DataError(
            "data-repair",
            wrong=f"{source} must have rows that can be read to be repaired",
            found=", ".join(report.numbers),
            remedy="Mend the source.",
        )
    repaired, log = repair(table, report, rules, interval=length)
    metadata = {b"stormsail." + key.encode(): text.encode() for key, text in notes.items()}
    _write(target, _numbers(repaired).replace_schema_metadata(metadata), log)
    return log


def _same(source: Path, target: Path) -> bool:
    """Return whether both names mean one file, however they are written or linked."""
    try:
        return source.resolve() == target.resolve() or source.samefile(target)
    except (OSError, RuntimeError):  # one of them is not there, or links run in a circle
        return False


def _numbers(table: pa.Table) -> pa.Table:
    """Return the table with text as numbers in every known column that holds nothing else."""
    for index, name in enumerate(table.column_names):
        if name in KNOWN and pa.types.is_string(table.schema.types[index]):
            try:
                column = table.column(index).cast(column_type(name))
            except pa.ArrowInvalid:
                continue
            table = table.set_column(index, name, column)
    return table


def _write(target: Path, table: pa.Table, log: list[str]) -> None:
    sink = pa.BufferOutputStream()
    if target.suffix == ".csv":
        plain = not any(pa.types.is_string(kind) for kind in table.schema.types)
        style = "none" if plain else "needed"  # text may hold separators, numbers never do
        sink.write(",".join(_quoted(name) for name in table.column_names).encode() + b"\n")
        options = pacsv.WriteOptions(include_header=False, quoting_style=style)
        pacsv.write_csv(table, sink, options)
    else:
        pq.write_table(table, sink, compression="zstd")
    lines = "".join(f"{line}\n" for line in log).encode()
    try:
        atomic.make_folders(target.parent)
        with atomic.locked_folder(target.parent) as folder:
            atomic.replace_file(folder, target.name, sink.getvalue().to_pybytes())
            atomic.replace_file(folder, f"{target.name}.repairs.txt", lines)
    except (OSError, atomic.FolderBusyError) as error:
        raise DataError(
            "data-write",
            wrong=f"{target} must be written completely before it counts as stored",
            found=str(error) or type(error).__name__,
            remedy="Free space or permissions and run it again; what was stored is untouched.",
        ) from error


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
