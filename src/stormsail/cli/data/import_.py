"""`stormsail import`: import bars, funding rates and mark prices from files of other sources."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.cli.output import publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stormsail.core.clock import Clock
    from stormsail.market.bars import Bars, Funding, Mark
    from stormsail.market.interval import Interval
    from stormsail.market.store import Store


Columns = Annotated[str | None, typer.Option(help="Unusual column names: ts=time,open=o,...")]
"""Option of every command that reads files of bars."""

TimeUnit = Annotated[
    Literal["s", "ms", "us", "ns", "iso"] | None,
    typer.Option(help="What times count; `iso` also reads times without a zone as UTC."),
]
"""As above."""


def import_bars(
    sources: Annotated[
        list[str] | None, typer.Argument(help="Files, folders or quoted patterns.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Folder of the store.")] = Path("data"),
    symbol: Annotated[str | None, typer.Option(help="Such as BTC/USDT:USDT.")] = None,
    interval: Annotated[str | None, typer.Option(help="Such as 1h.")] = None,
    market: Annotated[
        Literal["spot", "perp"] | None, typer.Option(help="What a name like BTCUSDT means.")
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="The files hold mark prices of perpetuals.")
    ] = False,
    resample: Annotated[
        list[str] | None, typer.Option(help="Also store longer bars, such as 4h; repeatable.")
    ] = None,
    columns: Columns = None,
    time_unit: TimeUnit = None,
    repair: Annotated[
        list[str] | None, typer.Option(help="Rule of `stormsail check` to apply; repeatable.")
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(help="TOML or JSON file with a table of terms for each symbol.")
    ] = None,
    term: Annotated[
        list[str] | None,
        typer.Option(help="name=value for every symbol of this import: lot=0.001; repeatable."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what is stored; else rows are added to it.")
    ] = False,
    now: Annotated[
        str | None, typer.Option(help="The present, in UTC; else the machine's clock says it.")
    ] = None,
) -> None:
    """Import bars, funding rates, mark prices and instrument terms.

    Nothing is repaired unless a rule is named. Without sources the terms alone are stored, beside
    bars that are there already.
    """
    from stormsail.cli.data.terms import given_terms, write_terms
    from stormsail.core.errors import ArgumentError
    from stormsail.market.bars import Bars
    from stormsail.market.importers import Options, import_files
    from stormsail.market.importers.columns import parse_columns
    from stormsail.market.interval import Interval
    from stormsail.market.resample import check_multiple
    from stormsail.market.store import Store

    target, given = Store(store), given_terms(sources, terms, term or [])
    lengths = [Interval.parse(text) for text in resample or []]
    if mark and lengths:
        raise ArgumentError(
            "config-inconsistent",
            wrong="`--resample` must be left out with `--mark`",
            found=f"`--resample {lengths[0]}`",
            remedy="Import mark prices of the interval that is traded.",
        )
    options = Options(
        columns=parse_columns(columns) if columns else {},
        time_unit=time_unit,
        repair=tuple(repair or ()),
        clock=_clock(now),
        mark=mark,
    )
    length = Interval.parse(interval) if interval else None
    imported = (
        import_files(sources, options, symbol=symbol, interval=length, market=market)
        if sources
        else []
    )
    for new in imported:
        if isinstance(new.data, Bars):
            for longer in lengths:
                check_multiple(new.data, longer)
    # Everything is read, checked and merged before the first file is written; and nobody else
    # writes between the reading of what is stored and the writing of what it was merged into.
    symbols = [new.data.symbol for new in imported] or [name for name, _ in target.contents()]
    given.check(symbols)
    written: list[dict[str, object]] = []
    with target.writing("stormsail import"):
        instruments = given.instruments(target, list(dict.fromkeys(symbols)), replace=replace)
        results = []
        for new in imported:
            data, more = _with_stored(target, new.data, replace=replace)
            results.append(((*new.lines, *more), _all_lengths(data, lengths)))
        for lines, items in results:
            written += _write(target, lines, items)
        terms_written = write_terms(target, instruments)
    notes = [line for lines, _ in results for line in lines]
    publish(store=store, written=written, terms=terms_written, notes=notes)


def _write(
    target: "Store", lines: "Sequence[str]", items: "Sequence[Bars | Funding | Mark]"
) -> list[dict[str, object]]:
    """Write what was imported, say what was read and where it went, and return the latter."""
    from stormsail.market.bars import Bars, Mark

    for line in lines:
        typer.echo(line)
    written: list[dict[str, object]] = []
    for item in items:
        joined = ""
        if isinstance(item, Bars):
            what, path = "bars", target.write(item)
            joined = f" ({item.notes['resampled']})" if "resampled" in item.notes else ""
        elif isinstance(item, Mark):
            what, path = "mark prices", target.write_mark(item)
        else:
            what, path = "rates", target.write_funding(item)
        typer.echo(f"wrote {len(item)} {what} to {path}{joined}")
        written.append({"symbol": item.symbol, "what": what, "rows": len(item), "file": path})
    return written


def _clock(now: str | None) -> "Clock":
    from datetime import UTC, datetime, timedelta

    from stormsail.cli.times import utc_time
    from stormsail.core.clock import ManualClock, SystemClock

    if now is None:
        return SystemClock()
    since = utc_time("--now", now) - datetime(1970, 1, 1, tzinfo=UTC)
    return ManualClock(since // timedelta(microseconds=1) * 1_000)


def _with_stored(
    store: "Store", new: "Bars | Funding | Mark", *, replace: bool
) -> "tuple[Bars | Funding | Mark, list[str]]":
    """Return new rows together with those in the store, or alone if they shall replace them."""
    from stormsail.core.errors import DataError
    from stormsail.market.bars import Bars, Funding
    from stormsail.market.importers.merge import span, with_stored

    what = "rates" if isinstance(new, Funding) else "bars"
    what = what if isinstance(new, Bars | Funding) else "mark prices"
    try:
        stored = _stored(store, new)
    except DataError as error:
        if not replace:
            remedy = "Pass `--replace` to replace it, or import into another store."
            raise DataError(
                error.code, wrong=error.wrong, found=error.found, remedy=remedy
            ) from error
        return new, [f"replaced: stored {what} that could not be read"]
    if stored is None:
        return new, []
    if replace:
        return new, [f"replaced: {len(stored)} {what}, {span(stored.ts)}"]
    return with_stored(new, stored)


def _stored(store: "Store", new: "Bars | Funding | Mark") -> "Bars | Funding | Mark | None":
    from stormsail.market.bars import Funding, Mark

    if isinstance(new, Funding):
        return store.read_funding(new.symbol)
    if isinstance(new, Mark):
        return store.read_mark(new.symbol, new.interval)
    if not os.path.lexists(store.path(new.symbol, new.interval)):
        return None
    return store.read(new.symbol, new.interval)


def _all_lengths(
    data: "Bars | Funding | Mark", lengths: "Sequence[Interval]"
) -> "Sequence[Bars | Funding | Mark]":
    """Return bars as they are and in every longer interval of `lengths`."""
    from stormsail.market.bars import Bars
    from stormsail.market.resample import resample

    if not isinstance(data, Bars):
        return [data]
    return [data, *(resample(data, length) for length in lengths)]
