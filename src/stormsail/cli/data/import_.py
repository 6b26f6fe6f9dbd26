"""`stormsail import`: import bars and funding rates from files of other sources."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stormsail.core.clock import Clock
    from stormsail.market.bars import Bars, Funding
    from stormsail.market.interval import Interval
    from stormsail.market.store import Store


def import_bars(
    sources: Annotated[list[str], typer.Argument(help="Files, folders or quoted patterns.")],
    store: Annotated[Path, typer.Option(help="Folder of the store.")] = Path("data"),
    symbol: Annotated[str | None, typer.Option(help="Such as BTC/USDT:USDT.")] = None,
    interval: Annotated[str | None, typer.Option(help="Such as 1h.")] = None,
    market: Annotated[
        Literal["spot", "perp"] | None, typer.Option(help="What a name like BTCUSDT means.")
    ] = None,
    resample: Annotated[
        list[str] | None, typer.Option(help="Also store longer bars, such as 4h; repeatable.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Unusual column names: ts=time,open=o,...")
    ] = None,
    time_unit: Annotated[
        Literal["s", "ms", "us", "ns", "iso"] | None,
        typer.Option(help="What times count; `iso` also reads times without a zone as UTC."),
    ] = None,
    repair: Annotated[
        list[str] | None, typer.Option(help="Rule of `stormsail check` to apply; repeatable.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what is stored; else rows are added to it.")
    ] = False,
    now: Annotated[
        str | None, typer.Option(help="The present, in UTC; else the machine's clock says it.")
    ] = None,
) -> None:
    """Import bars or funding rates; nothing is repaired unless a rule is named."""
    from stormsail.market.bars import Bars
    from stormsail.market.importers import Options, import_files
    from stormsail.market.importers.columns import parse_columns
    from stormsail.market.interval import Interval
    from stormsail.market.resample import check_multiple
    from stormsail.market.store import Store

    lengths = [Interval.parse(text) for text in resample or []]
    options = Options(
        columns=parse_columns(columns) if columns else {},
        time_unit=time_unit,
        repair=tuple(repair or ()),
        clock=_clock(now),
    )
    imported = import_files(
        sources,
        options,
        symbol=symbol,
        interval=Interval.parse(interval) if interval else None,
        market=market,
    )
    for new in imported:
        if isinstance(new.data, Bars):
            for length in lengths:
                check_multiple(new.data, length)
    # Everything is read, checked and merged before the first file is written; and nobody else
    # writes between the reading of what is stored and the writing of what it was merged into.
    target = Store(store)
    with target.writing("stormsail import"):
        results = []
        for new in imported:
            data, more = _with_stored(target, new.data, replace=replace)
            results.append(((*new.lines, *more), _all_lengths(data, lengths)))
        for lines, items in results:
            for line in lines:
                typer.echo(line)
            for item in items:
                if isinstance(item, Bars):
                    joined = f" ({item.notes['resampled']})" if "resampled" in item.notes else ""
                    typer.echo(f"wrote {len(item)} bars to {target.write(item)}{joined}")
                else:
                    typer.echo(f"wrote {len(item)} rates to {target.write_funding(item)}")


def _clock(now: str | None) -> "Clock":
    from datetime import UTC, datetime, timedelta

    from stormsail.cli.times import utc_time
    from stormsail.core.clock import ManualClock, SystemClock

    if now is None:
        return SystemClock()
    since = utc_time("--now", now) - datetime(1970, 1, 1, tzinfo=UTC)
    return ManualClock(since // timedelta(microseconds=1) * 1_000)


def _with_stored(
    store: "Store", new: "Bars | Funding", *, replace: bool
) -> "tuple[Bars | Funding, list[str]]":
    """Return new rows together with those in the store, or alone if they shall replace them."""
    from stormsail.core.errors import DataError
    from stormsail.market.bars import Funding
    from stormsail.market.importers.merge import span, with_stored

    what = "rates" if isinstance(new, Funding) else "bars"
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


def _stored(store: "Store", new: "Bars | Funding") -> "Bars | Funding | None":
    from stormsail.market.bars import Funding

    if isinstance(new, Funding):
        return store.read_funding(new.symbol)
    if not os.path.lexists(store.path(new.symbol, new.interval)):
        return None
    return store.read(new.symbol, new.interval)


def _all_lengths(
    data: "Bars | Funding", lengths: "Sequence[Interval]"
) -> "list[Bars] | list[Funding]":
    """Return bars as they are and in every longer interval of `lengths`."""
    from stormsail.market.bars import Funding
    from stormsail.market.resample import resample

    if isinstance(data, Funding):
        return [data]
    return [data, *(resample(data, length) for length in lengths)]
