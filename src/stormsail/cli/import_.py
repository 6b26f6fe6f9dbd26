"""`stormsail import`: bring bars and funding rates from other people's files into the store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stormsail.core.clock import Clock
    from stormsail.market.bars import Bars, Funding
    from stormsail.market.interval import Interval


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
    now: Annotated[
        str | None, typer.Option(help="The present, in UTC; else the machine's clock says it.")
    ] = None,
) -> None:
    """Import bars or funding rates; nothing is repaired unless a rule is named."""
    from stormsail.market.bars import Bars
    from stormsail.market.importers import Options, import_files
    from stormsail.market.importers.columns import parse_columns
    from stormsail.market.interval import Interval
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
    # Everything is read, judged and joined before the first file is written.
    results = [(one.lines, _all_lengths(one.data, lengths)) for one in imported]
    target = Store(store)
    for lines, data in results:
        for line in lines:
            typer.echo(line)
        for item in data:
            if isinstance(item, Bars):
                joined = f" ({item.notes['resampled']})" if "resampled" in item.notes else ""
                typer.echo(f"wrote {len(item)} bars to {target.write(item)}{joined}")
            else:
                typer.echo(f"wrote {len(item)} rates to {target.write_funding(item)}")


def _clock(now: str | None) -> "Clock":
    import numpy as np

    from stormsail.core.clock import ManualClock, SystemClock
    from stormsail.core.errors import DataError

    if now is None:
        return SystemClock()
    try:
        return ManualClock(int(np.datetime64(now.removesuffix("Z"), "ns").astype(np.int64)))
    except ValueError as error:
        raise DataError(
            "data-time-unit",
            wrong="the present must be written as ISO 8601 in UTC",
            found=f"`{now}`",
            remedy="Write it as `2024-01-01T00:00:00Z`.",
        ) from error


def _all_lengths(
    data: "Bars | Funding", lengths: "Sequence[Interval]"
) -> "list[Bars] | list[Funding]":
    """Return bars as they are and in every longer interval that was asked for."""
    from stormsail.market.bars import Funding
    from stormsail.market.resample import resample

    if isinstance(data, Funding):
        return [data]
    return [data, *(resample(data, length) for length in lengths)]
