"""`stormsail check`: find defects in market data, or look-ahead in features."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.data.import_ import Columns, TimeUnit
from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output
from stormsail.cli.plugins import Plugins

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from stormsail.market.checks import Reading, Report
    from stormsail.market.interval import Interval


def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files, or folders: then every file in them.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="A store: all its bars and rates.")] = None,
    symbol: Annotated[str | None, typer.Option(help="Whose data they are.")] = None,
    interval: Annotated[str | None, typer.Option(help="Length of a bar, like `1h`.")] = None,
    repair: Annotated[
        list[str] | None, typer.Option(help="Repair by this rule; may be named several times.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the repaired rows go: .parquet or .csv."),
    ] = None,
    columns: Columns = None,
    time_unit: TimeUnit = None,
    reference: Annotated[
        Path | None, typer.Option(help="Mark price or another venue, to judge highs and lows by.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Check features for look-ahead instead: default, or a file; with `--store` also "
            "on your own bars."
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """List the defects of market data; exit with 1 if an error refuses them.

    Nothing is changed. With `--repair RULE --out FILE` one file is repaired into another, and every
    change is written to FILE.repairs.txt.
    """
    if features is not None or plugin:
        from stormsail.cli.data.check_features import run

        raise typer.Exit(
            run(features, interval=interval, store=store, symbol=symbol, plugins=plugin or [])
        )
    from rich.console import Console

    from stormsail.core.clock import SystemClock
    from stormsail.market.checks import Reading, check_file, read_reference
    from stormsail.market.importers.columns import parse_columns
    from stormsail.market.interval import Interval

    reading = Reading(
        parse_columns(columns) if columns else {},
        time_unit,
        None if reference is None else read_reference(reference),
    )
    files = _files([*(paths or []), *([store] if store else [])])
    length = None if interval is None else Interval.parse(interval)
    now_ms = SystemClock().now_ns() // 1_000_000
    console = Console(soft_wrap=True, highlight=False)
    if repair:
        reports = [_repaired(files, repair, out, symbol, length, now_ms, reading, console)]
    else:
        reports = []
        for path in files:
            report = check_file(
                path, symbol=symbol, interval=length, now_ms=now_ms, reading=reading
            )
            reports.append(report)
            _show(console, reports[-1])
    _finish(console, reports)


def _files(paths: list[Path]) -> list[Path]:
    """Return the files that are meant, sorted; hidden ones and other kinds are left out."""
    from stormsail.core.errors import DataError
    from stormsail.market.checks import SUFFIXES

    files: list[Path] = []
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else [path]
        files += [
            file
            for file in sorted(inside)
            if not path.is_dir()
            or (not file.is_dir() and _is_data(file.relative_to(path), SUFFIXES))
        ]
    if not files:
        raise DataError(
            "data-missing",
            wrong="there must be files to check",
            found=", ".join(str(path) for path in paths) or "no path",
            remedy="Name files, folders, or a store with `--store`.",
        )
    return files


def _is_data(inside: Path, suffixes: "Collection[str]") -> bool:
    """Return whether a file of a folder is meant; `.fetch-1h/` holds parts of a fetch, not bars."""
    return (
        inside.suffix.lower() in suffixes
        and not inside.name.endswith(".repairs.txt")
        and not any(part.startswith(".") for part in inside.parts)
        and inside.parent.name not in ("features", "mark")  # beside bars, and sealed by the store
    )


def _repaired(
    files: list[Path],
    rules: list[str],
    out: Path | None,
    symbol: str | None,
    interval: "Interval | None",
    now_ms: int,
    reading: "Reading",
    console: "Console",
) -> "Report":
    """Repair one file into another; return the report about the result."""
    from stormsail.core.errors import ArgumentError
    from stormsail.market.checks import check_file, repair_file

    if out is None or len(files) != 1:
        raise ArgumentError(
            "missing-argument",
            wrong="`--repair` must have one file to read and `--out` to write",
            found=f"{len(files)} files and {'no `--out`' if out is None else f'`{out}`'}",
            remedy="Repair files one by one; a file is never changed in place.",
        )
    is_source = False  # which is refused below
    with contextlib.suppress(OSError):
        is_source = out.samefile(files[0])
    if not is_source:
        checked_output(out)
    log = repair_file(
        files[0],
        out,
        rules,
        symbol=symbol,
        interval=interval,
        now_ms=now_ms,
        reading=reading,
    )
    for line in log:
        console.print(line, markup=False)
    console.print(f"{len(log)} changes, {files[0]} to {out}", markup=False)
    report = check_file(out, symbol=symbol, interval=interval, now_ms=now_ms)
    _show(console, report)
    return report


def _show(console: "Console", report: "Report") -> None:
    """Print a report: a verdict, and for every finding counts, places and what to do."""
    from rich.markup import escape

    colour = "green" if report.ok else "red"
    word = "good" if report.ok else "refused"
    console.print(
        f"[{colour}]{word}[/{colour}] {escape(report.what)}: {report.rows} rows, "
        f"{len(report.errors)} errors, {len(report.warnings)} warnings"
    )
    for finding in report.findings:
        colour = "red" if finding.severity == "error" else "yellow"
        detail = f" ({finding.detail})" if finding.detail else ""
        head = f"{finding.number} {finding.name} [{colour}]{finding.severity}[/{colour}]"
        console.print(f"  {head} {finding.count}x{escape(detail)}")
        for place in finding.places:
            console.print(f"      {place}", markup=False)
        if finding.count > len(finding.places):
            console.print(f"      and {finding.count - len(finding.places)} more")
        rule = f" Or: --repair {finding.defect.rule}" if finding.defect.rule else ""
        console.print(f"    {finding.defect.remedy}{rule}", markup=False)


def _finish(console: "Console", reports: "list[Report]") -> None:
    refused = sum(not report.ok for report in reports)
    warned = sum(report.ok and bool(report.warnings) for report in reports)
    if len(reports) > 1:
        rows = sum(report.rows for report in reports)
        console.print(
            f"{len(reports)} files, {rows} rows: {refused} refused, {warned} with warnings only"
        )
    publish(reports=[report.as_dict() for report in reports], refused=refused, warned=warned)
    raise typer.Exit(1 if refused else 0)
