"""Repairs of raw rows and of files by named rules, with a log of every change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import ChoiceError, DataError, nearest
from stormsail.core.files import atomic
from stormsail.core.files.outputs import check_output
from stormsail.core.files.regular import other_kind
from stormsail.market.bars import PRICES, column_type
from stormsail.market.checks.columns import KNOWN, Columns, read_columns, rename
from stormsail.market.checks.files import Reading, check_loaded, interval_of, load_file
from stormsail.market.checks.report import Collector, Report
from stormsail.market.checks.stamps import MILLISECONDS, TYPED, UNITS
from stormsail.market.interval import Interval
from stormsail.market.store import Store, symbol_of

_AGAINST_SORTING = ("shifted-block", "dst-duplicate", "dst-hole")


@dataclass
class _Work:
    """Rows under repair: the table, where each row came from, and what was done."""

    table: pa.Table
    rows: NDArray[np.int64]
    interval: Interval
    report: Report
    log: list[str] = field(default_factory=list)

    def columns(self) -> Columns:
        return read_columns(Collector(), self.table)

    def write(self, rule: str, at: int, columns: Columns, what: str) -> None:
        stamps = columns.stamps
        time = iso(int(stamps.ms[at])) if stamps.valid[at] else "no time"
        self.log.append(f"{rule}: row {int(self.rows[at])} {time} {what}")

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self.table, self.rows = self.table.filter(pa.array(mask)), self.rows[mask]

    def set_times(self, ms: NDArray[np.int64], valid: NDArray[np.bool_]) -> None:
        index = self.table.column_names.index("ts")
        times = pa.array(ms, pa.int64(), mask=~valid)
        self.table = self.table.set_column(index, "ts", times)


def repair(
    table: pa.Table, report: Report, rules: Sequence[str], *, interval: Interval
) -> tuple[pa.Table, list[str]]:
    """Return the table with the named repairs, and one line for every change.

    Rules take effect in the order in which they are listed in `RULES`, whatever order they are
    named in. Rows in the log are those of the table that was given. Gaps are never filled and
    prices never changed, so there are no rules for that.

    Args:
        table: raw rows, as they were checked.
        report: of `check_table` or `check_file` about them.
        rules: names out of `RULES`.
        interval: how long a bar is.

    Raises:
        ChoiceError: if there is no such rule.
        DataError: if a rule would hide another defect, or the table has no readable bars.
    """
    for rule in rules:
        if rule not in RULES:
            close = nearest(rule, RULES)
            raise ChoiceError(
                wrong=f"a repair rule must be one of {', '.join(RULES)}",
                found=f"`{rule}`" + (f", did you mean `{close}`?" if close else ""),
                remedy="Name one of them; there are none that fill gaps or change prices.",
            )
    table = rename(table)
    missing = [name for name in ("ts", *PRICES) if name not in table.column_names]
    if missing:
        raise DataError(
            "data-repair",
            wrong=f"{report.what} must have times and prices to be repaired",
            found=f"no column {', '.join(missing)}",
            remedy="Mend the source; columns are never made up.",
        )
    work = _Work(table, np.arange(table.num_rows), interval, report)
    for rule, apply in RULES.items():
        if rule in rules and work.table.num_rows:
            apply(work)
    return work.table, work.log


def _drop(work: _Work, rule: str, bad: NDArray[np.bool_], columns: Columns) -> None:
    for at in np.flatnonzero(bad):
        what = " ".join(f"{name}={_old(work.table, name, int(at))}" for name in columns.values)
        work.write(rule, int(at), columns, f"dropped, was {what}")
    work.keep(~bad)


def _old(table: pa.Table, name: str, at: int) -> object:
    return table.column(table.column_names.index(name))[at].as_py()


def _drop_duplicate_header(work: _Work) -> None:
    columns = work.columns()
    if columns.header is not None:
        _drop(work, "drop-duplicate-header", columns.header, columns)


def _time_unit(work: _Work) -> None:
    """Convert every time that is not in milliseconds; one line for each stretch of one unit."""
    columns = work.columns()
    stamps = columns.stamps
    wrong = stamps.valid & (stamps.unit != MILLISECONDS) & (stamps.unit != TYPED)
    if not wrong.any():
        return
    kind = np.where(wrong, stamps.unit, -1)
    starts = np.flatnonzero(np.concatenate(([True], kind[1:] != kind[:-1])))
    ends = np.append(starts[1:], len(kind))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if wrong[start]:
            old = _old(work.table, "ts", start)
            what = f"to row {int(work.rows[end - 1])}: {UNITS[kind[start]]} to ms, was {old}"
            work.write("time-unit", start, columns, what)
    work.set_times(stamps.ms, stamps.valid)


def _close_to_open(work: _Work) -> None:
    """Move labels at the last millisecond of a bar to its open time."""
    columns = work.columns()
    stamps = columns.stamps
    opening = stamps.ms - work.interval.offset(stamps.ms)
    closing = stamps.valid & (stamps.ms == work.interval.after(opening) - 1)
    for at in np.flatnonzero(closing):
        work.write("close-to-open", int(at), columns, f"was {int(stamps.ms[at])}")
    if closing.any():
        work.set_times(np.where(closing, opening, stamps.ms), stamps.valid)


def _drop_invalid_rows(work: _Work) -> None:
    columns = work.columns()
    values = columns.values
    bad = ~columns.stamps.valid
    for name, column in values.items():
        limit = 0.0 if name in PRICES else -np.finfo(float).tiny
        bad |= ~np.isfinite(column) | (column <= limit)
    o, h, low, c = (values[name] for name in PRICES)
    bad |= (h < np.maximum(o, c)) | (low > np.minimum(o, c)) | (h < low)
    _drop(work, "drop-invalid-rows", bad, columns)


def _sort(work: _Work) -> None:
    against = [name for name in _AGAINST_SORTING if work.report.has(name)]
    if against:
        raise DataError(
            "data-repair",
            wrong=f"{work.report.what} must not be sorted while its times are wrong",
            found=", ".join(against),
            remedy="Export the file in UTC first; sorting would mix shifted rows with the others.",
        )
    columns = work.columns()
    stamps = columns.stamps
    times = np.where(stamps.valid, stamps.ms, np.iinfo(np.int64).max)
    order = np.argsort(times, kind="stable")
    for at in np.flatnonzero(times < np.maximum.accumulate(times)):
        work.write("sort", int(at), columns, "moved to its place in time")
    work.table, work.rows = work.table.take(pa.array(order)), work.rows[order]


def _drop_duplicates(work: _Work) -> None:
    """Drop rows that repeat the time and every value of an earlier row."""
    columns = work.columns()
    keys = [columns.stamps.ms, *columns.values.values()]
    order = np.lexsort(keys[::-1])
    same = columns.stamps.valid[order].copy()
    same[:1] = False
    for key in keys:
        here, before = key[order][1:], key[order][:-1]
        same[1:] &= (here == before) | ((here != here) & (before != before))
    repeated = np.zeros(len(order), bool)
    repeated[order] = same  # lexsort is stable: the first of equal rows stays
    _drop(work, "drop-duplicates", repeated, columns)


def _drop_last_unclosed(work: _Work) -> None:
    now = work.report.now_ms
    columns = work.columns()
    stamps = columns.stamps
    if now is None or not stamps.valid.any():
        return
    open_still = stamps.valid & (stamps.ms <= now)
    open_still &= work.interval.after(stamps.ms) > now
    _drop(work, "drop-last-unclosed", open_still, columns)


RULES: dict[str, Callable[[_Work], None]] = {
    "drop-duplicate-header": _drop_duplicate_header,
    "time-unit": _time_unit,
    "close-to-open": _close_to_open,
    "drop-invalid-rows": _drop_invalid_rows,
    "sort": _sort,
    "drop-duplicates": _drop_duplicates,
    "drop-last-unclosed": _drop_last_unclosed,
}
"""Every repair there is, in the order in which they are done."""


def repair_file(
    source: Path,
    target: Path,
    rules: Sequence[str],
    *,
    symbol: str | None = None,
    interval: Interval | None = None,
    now_ms: int | None = None,
    reading: Reading | None = None,
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
    kind = other_kind(target)
    if kind is not None:
        raise DataError(
            "data-repair",
            wrong=f"{target} must be a file, or not exist yet",
            found=kind,
            remedy="Name such a file with `--out`.",
        )
    reading = reading or Reading()
    loaded = load_file(source, chosen=reading.columns, every=True)
    length = interval or interval_of(source, loaded, reading.columns)
    table = None if loaded.table is None else rename(loaded.table, reading.columns)
    notes = {key: text for key, text in loaded.notes.items() if key != "seal"}  # of other values
    report = check_loaded(
        loaded, source, symbol=symbol, interval=length, now_ms=now_ms, reading=reading
    )
    if table is None:
        raise DataError(
            "data-repair",
            wrong=f"{source} must have rows that can be read to be repaired",
            found=", ".join(report.numbers),
            remedy="Mend the source.",
        )
    repaired, log = repair(table, report, rules, interval=length)
    if not repaired.num_rows:
        raise DataError(
            "data-repair",
            wrong=f"{source} must keep at least one row when it is repaired",
            found=f"{table.num_rows} rows, of which the rules {', '.join(rules)} keep none",
            remedy="Mend the source; a file without a good row is refused, not made empty.",
        )
    metadata = {b"stormsail." + key.encode(): text.encode() for key, text in notes.items()}
    _write_repaired(target, _numbers(repaired).replace_schema_metadata(metadata), log)
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


def _write_repaired(target: Path, table: pa.Table, log: list[str]) -> None:
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
    with Store(_owner(target)).writing("stormsail check --repair"):
        try:
            target = check_output(target, replace=True)  # behind links, which stay
            atomic.make_folders(target.parent)
            with atomic.open_folder(target.parent, follow=True) as folder:
                atomic.replace_file(folder, target.name, sink.getvalue().to_pybytes())
                atomic.replace_file(folder, f"{target.name}.repairs.txt", lines)
        except OSError as error:
            raise DataError(
                "data-write",
                wrong=f"{target} must be written completely before it counts as stored",
                found=str(error) or type(error).__name__,
                remedy="Free space or permissions and run it again; what was stored is untouched.",
            ) from error


def _owner(target: Path) -> Path:
    """Return the root of the store in which a file lies, or else its folder."""
    target = target.absolute()
    try:
        symbol_of(target.parent.name)
    except DataError:
        return target.parent
    return target.parent.parent


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
