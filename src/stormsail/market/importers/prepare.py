"""From a raw table to bars: rename columns, read times, repair, check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormsail.core.clock import Clock, iso
from stormsail.core.errors import DataError
from stormsail.market.bars import OPTIONAL, PRICES, REQUIRED, Bars, Funding, Mark, column_type
from stormsail.market.checks import Loaded, check_funding_table, check_table, repair
from stormsail.market.checks.files import rate_is_open
from stormsail.market.checks.report import Collector, Finding
from stormsail.market.checks.units import Times, TimeUnit, to_milliseconds
from stormsail.market.importers.columns import FUNDING_COLUMNS, check_complete, match
from stormsail.market.importers.files import MARKS
from stormsail.market.interval import Interval

_SHOWN = 3
_VOLUME = "volume"


@dataclass(frozen=True)
class Options:
    """Settings of an import.

    Args:
        columns: our column names to the source's, where they differ from the usual ones.
        time_unit: what times count; None lets their size decide.
        repair: names of the repair rules of `market.checks` that are applied.
        clock: the present, to leave out a bar that has not closed; None trusts the source.
        mark: the files hold mark prices of perpetuals, which have no volumes.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: TimeUnit | None = None
    repair: Sequence[str] = ()
    clock: Clock | None = None
    mark: bool = False


@dataclass(frozen=True)
class Raw:
    """Rows of one symbol under our column names, not yet checked."""

    table: pa.Table
    names: tuple[str, ...]
    units: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    time_error: DataError | None = None
    """Why times could not be read with certainty; then `ts` is as the source has it."""
    findings: tuple[Finding, ...] = ()
    """What the reader of the files warns of."""


def named_bars(file: Loaded, options: Options, *, spot: bool) -> Raw:
    """Return the columns of bars under our names, times in milliseconds if they are certain.

    Raises:
        DataError: if a column is missing or ambiguous, or times name no zone.
    """
    place, names = file.path.name, _names(file)
    if file.binance and options.columns:
        raise DataError(
            "data-column",
            wrong=f"the columns of {place} must be left as they are: it is a dump of Binance's",
            found=", ".join(f"`{ours}={theirs}`" for ours, theirs in options.columns.items()),
            remedy="Leave `--columns` out, or import this file on its own.",
        )
    matched = match(names, (*REQUIRED, *OPTIONAL), options.columns, place=place)
    check_complete(matched, names, place)
    raw = _timed(file, matched, options, binance_spot=file.binance and spot)
    extra = [name for name in names if name not in matched.values()]
    if extra and not file.binance:
        words = ", ".join(name or "a column without a name" for name in extra)
        raw = replace(raw, notes=(*raw.notes, f"{place}: not read: {words}"))
    return raw


def _names(file: Loaded) -> list[str]:
    return [] if file.table is None else list(file.table.column_names)


def named_marks(file: Loaded, options: Options) -> Raw:
    """Return times and prices like those of bars; whatever stands for a volume is left out.

    Raises:
        DataError: if a column is missing or ambiguous, or times name no zone.
    """
    table = file.table
    if table is not None and not any(name.lower() == _VOLUME for name in table.column_names):
        table = table.append_column(_VOLUME, pa.array(np.ones(table.num_rows)))
    raw = named_bars(replace(file, table=table), options, spot=False)
    priced = raw.table.select(["ts", *PRICES])
    priced = priced.append_column(_VOLUME, pa.array(np.ones(priced.num_rows)))  # for the checks
    return replace(raw, table=priced)


def named_funding(file: Loaded, options: Options) -> Raw:
    """Return settlement times and rates; freqtrade's older files keep the rate under `open`.

    Raises:
        DataError: if a column is missing or times are not certain.
    """
    place, names = file.path.name, _names(file)
    matched = match(names, FUNDING_COLUMNS, options.columns, place=place)
    if "funding_rate" not in matched and rate_is_open(file.path, names):
        matched["funding_rate"] = "open"
    missing = [name for name in FUNDING_COLUMNS if name not in matched]
    if missing:
        raise DataError(
            "data-column",
            wrong=f"{place} must have columns for the settlement time and the funding rate",
            found=f"{', '.join(names) or 'no column'}; {', '.join(missing)} missing",
            remedy="Name them with `--columns ts=NAME,funding_rate=NAME`.",
        )
    raw = _timed(file, matched, options, binance_spot=False)
    if raw.time_error is not None:
        raise raw.time_error
    return raw


def _timed(
    file: Loaded, matched: Mapping[str, str], options: Options, *, binance_spot: bool
) -> Raw:
    place = file.path.name
    names = _names(file)
    twice = [theirs for theirs in matched.values() if names.count(theirs) > 1]
    if file.table is None or twice:
        raise DataError(
            "data-column",
            wrong=f"{place} must have each column once",
            found=f"`{', '.join(twice)}` more than once",
            remedy="Drop or rename one of them.",
        )
    columns = {ours: file.table[theirs] for ours, theirs in matched.items()}
    time_error: DataError | None = None
    try:
        times = to_milliseconds(
            columns["ts"], unit=options.time_unit, place=place, binance_spot=binance_spot
        )
    except DataError as error:
        if options.time_unit is not None or error.code == "data-time-zone":
            raise
        times, time_error = Times(columns["ts"], "unknown"), error
    columns["ts"] = times.column
    remarks = (*(f"{place}: {remark}" for remark in file.remarks), *times.notes)
    findings = tuple(file.collector.findings)
    return Raw(pa.table(columns), (place,), (times.unit,), remarks, time_error, findings)


def joined(parts: Sequence[Raw]) -> Raw:
    """Return the rows of several files, one behind the other, as they are."""
    first = parts[0]
    for other in parts[1:]:
        if set(other.table.column_names) != set(first.table.column_names):
            raise DataError(
                "data-column",
                wrong="files of one symbol must have the same columns",
                found=f"{', '.join(first.table.column_names)} in {first.names[0]} and "
                f"{', '.join(other.table.column_names)} in {other.names[0]}",
                remedy="Import them one by one, or leave one of them out.",
            )
    time_error = next((part.time_error for part in parts if part.time_error), None)
    if time_error is not None and len(parts) > 1:
        raise time_error  # rows of several files cannot be checked in several units
    tables = [part.table.select(first.table.column_names) for part in parts]
    return Raw(
        _stacked(tables) if len(tables) > 1 else tables[0],
        tuple(name for part in parts for name in part.names),
        tuple(dict.fromkeys(unit for part in parts for unit in part.units)),
        tuple(note for part in parts for note in part.notes),
        time_error,
        tuple(finding for part in parts for finding in part.findings),
    )


def _stacked(tables: Sequence[pa.Table]) -> pa.Table:
    """Stack tables; a column with text in one of them becomes text, so that nothing is lost."""
    fields = []
    for name in tables[0].column_names:
        kinds = [table.schema.field(name).type for table in tables]
        text = any(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds)
        same = len(set(kinds)) == 1
        kind = kinds[0] if same else pa.string() if text else column_type(name)
        fields.append(pa.field(name, kind))
    schema = pa.schema(fields)
    return pa.concat_tables([table.replace_schema_metadata(None).cast(schema) for table in tables])


def checked_bars(
    raw: Raw, symbol: str, interval: Interval, options: Options
) -> tuple[Bars, list[str]]:
    """Return bars that pass the data checks, and lines on what was dropped or repaired."""
    now_ms = None if options.clock is None else options.clock.now_ns() // 1_000_000
    table, lines = raw.table, list[str]()
    notes = {"source": _sources(raw.names), "time_unit": " and ".join(raw.units)}
    if options.repair:
        report = check_table(table, symbol=symbol, interval=interval, now_ms=now_ms)
        table, log = repair(table, report, list(options.repair), interval=interval)
        lines += [f"repaired: {line}" for line in log]
        notes |= {"repaired": "; ".join(log)} if log else {}
    # After the repairs: only then are times in order and in one unit.
    if now_ms is not None and (raw.time_error is None or options.repair):
        table, dropped = _without_unclosed(raw, table, symbol, interval, now_ms)
        lines += dropped
    collector = Collector(findings=list(raw.findings))
    report = check_table(
        table, symbol=symbol, interval=interval, now_ms=now_ms, collector=collector
    )
    errors = [finding for finding in report.errors if finding.name != "naive-time"]
    if errors or (report.errors and raw.time_error is None):
        raise _defects(f"{symbol} {interval}", raw, [str(finding) for finding in report.errors])
    if raw.time_error is not None and not options.repair:
        raise raw.time_error
    lines += [f"warning: {finding}" for finding in report.warnings]
    notes |= {"remarks": "; ".join(raw.notes)} if raw.notes else {}
    return Bars(symbol, interval, table, notes), lines


def _defects(what: str, raw: Raw, errors: Sequence[str]) -> DataError:
    errors = [text.rstrip(MARKS) for text in errors]  # the message puts its own full stop
    more = f" ... and {len(errors) - _SHOWN} more kinds" if len(errors) > _SHOWN else ""
    return DataError(
        "data-defects",
        wrong=f"{what} must be free of defects before it is stored",
        found=f"in {_sources(raw.names)}: {' | '.join(errors[:_SHOWN])}{more}",
        remedy="Run `stormsail check FILE` for the whole list, mend the source, or name a repair "
        "with `--repair`.",
    )


def _sources(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}, {len(names)} files"


def _without_unclosed(
    raw: Raw, table: pa.Table, symbol: str, interval: Interval, now_ms: int
) -> tuple[pa.Table, list[str]]:
    """Leave out bars that have not closed, wherever they are; refuse those that have not opened."""
    if not table.num_rows or not pa.types.is_integer(table.schema.field("ts").type):
        return table, []
    last = pc.max(table["ts"]).as_py()
    if last is None or int(interval.after(np.array(last))) <= now_ms:
        return table, []
    ts, now = table["ts"].fill_null(0).to_numpy(), iso(now_ms, timespec="seconds")
    future = np.flatnonzero(ts > now_ms)
    if len(future):
        row = int(future[0])
        problem = f"row {row} at {iso(ts[row])}, which is after {now}; {len(future)} such rows"
        raise _defects(f"{symbol} {interval}", raw, [problem])
    is_open = interval.after(ts) > now_ms
    if not is_open.any():
        return table, []
    lines = [
        f"dropped: the bar of {iso(when)}, which closes after {now}"
        for when in np.unique(ts[is_open])
    ]
    return table.filter(pa.array(~is_open)), lines


def checked_marks(
    raw: Raw, symbol: str, interval: Interval, options: Options
) -> tuple[Mark, list[str]]:
    """Return mark prices that pass the data checks of bars, and lines like theirs."""
    bars, lines = checked_bars(raw, symbol, interval, options)
    return Mark(symbol, interval, bars.table), lines


def checked_funding(raw: Raw, symbol: str) -> tuple[Funding, list[str]]:
    """Return funding rates that pass the data checks, and the warnings."""
    collector = Collector(findings=list(raw.findings))
    report = check_funding_table(raw.table, symbol=symbol, collector=collector)
    if report.errors:
        raise _defects(f"the funding of {symbol}", raw, [str(finding) for finding in report.errors])
    return Funding(symbol, raw.table), [f"warning: {finding}" for finding in report.warnings]
