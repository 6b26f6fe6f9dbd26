"""Checks of tables: bars from any source, and funding rates."""

import numpy as np
import pyarrow as pa

from stormsail.market.bars import Bars, Funding
from stormsail.market.checks.columns import (
    BINANCE,
    check_meanings,
    check_names,
    numbers,
    read_columns,
    rename,
)
from stormsail.market.checks.gaps import check_funding_gaps
from stormsail.market.checks.levels import check_levels
from stormsail.market.checks.prices import check_prices
from stormsail.market.checks.report import Collector, Report
from stormsail.market.checks.stamps import read_stamps
from stormsail.market.checks.times import check_times
from stormsail.market.checks.wicks import Reference, check_wicks
from stormsail.market.interval import Interval

_LARGE_RATE = 0.003
"""Median absolute funding rate above which it cannot be a fraction per settlement. The base rate of
most venues is 0.0001; the same in percent is 0.01. Single rates are capped near 0.03 by venues."""

_LARGEST_RATE = 0.1


def check_table(
    table: pa.Table,
    *,
    symbol: str,
    interval: Interval,
    now_ms: int | None = None,
    what: str | None = None,
    collector: Collector | None = None,
    reference: Reference | None = None,
) -> Report:
    """Check raw rows of any order and type; nothing is changed.

    Args:
        table: columns `ts, open, high, low, close, volume` and optional ones, also as text.
        symbol: whose bars they are.
        interval: how long a bar is.
        now_ms: the present in UTC milliseconds; without it, nothing can be unclosed or too new.
        what: name of the table in the report; symbol and interval, if None.
        collector: holds the findings of the reader of a file, which the report includes.
        reference: highs and lows of the mark price or another venue, to judge wicks by.
    """
    collector = Collector() if collector is None else collector
    check_meanings(collector, table.column_names)
    table = rename(table)
    whole = check_names(collector, table.column_names)
    rows = table.num_rows
    if rows == 0 and not collector.findings:
        collector.whole("empty-file", "no row")
    elif rows == 1:
        collector.whole("one-row", "1 row")
    if whole and rows:
        with np.errstate(all="ignore"):  # NaN and infinities are expected here
            _check_rows(collector, table, interval, now_ms, reference)
    return collector.report(
        what or f"{symbol} {interval}",
        rows,
        symbol=symbol,
        interval=str(interval),
        now_ms=now_ms,
    )


def _check_rows(
    collector: Collector,
    table: pa.Table,
    interval: Interval,
    now_ms: int | None,
    reference: Reference | None,
) -> None:
    columns = read_columns(collector, table)
    names = table.column_names
    dump = len(names) == len(BINANCE) and {"close_time", "ignore"} <= {*names}
    order = check_times(collector, columns, interval, now_ms, dump=dump)
    if check_prices(collector, columns, order):
        check_levels(collector, columns, order, interval)
        check_wicks(collector, columns, order, reference)


def check_bars(
    bars: Bars, *, now_ms: int | None = None, reference: Reference | None = None
) -> Report:
    """Check bars whose form is right already: gaps, ranges, volumes, levels, wicks."""
    return check_table(
        bars.table,
        symbol=bars.symbol,
        interval=bars.interval,
        now_ms=now_ms,
        reference=reference,
    )


def check_funding(funding: Funding, *, now_ms: int | None = None) -> Report:
    """Check funding rates: values, order, missing settlements, size."""
    return check_funding_table(funding.table, symbol=funding.symbol, now_ms=now_ms)


def check_funding_table(
    table: pa.Table,
    *,
    symbol: str,
    now_ms: int | None = None,
    what: str | None = None,
    collector: Collector | None = None,
) -> Report:
    """Check raw funding rates, `ts` and `funding_rate`."""
    collector = Collector() if collector is None else collector
    table = rename(table)
    missing = [name for name in ("ts", "funding_rate") if name not in table.column_names]
    if missing:
        collector.whole("missing-column", ", ".join(missing))
    elif table.num_rows == 0:
        collector.whole("empty-file", "no row")
    else:
        with np.errstate(all="ignore"):
            _check_rates(collector, table, now_ms)
    rows = table.num_rows
    return collector.report(what or f"{symbol} funding", rows, symbol=symbol, now_ms=now_ms)


def _check_rates(collector: Collector, table: pa.Table, now_ms: int | None) -> None:
    cells = {name: table.column(name).combine_chunks() for name in ("ts", "funding_rate")}
    stamps = read_stamps(cells["ts"])
    collector.ts, collector.has_time = stamps.ms, stamps.valid
    rate, text = numbers(cells["funding_rate"])
    if text is not None:
        collector.mark("text-value", text)
    collector.mark("missing-value", (np.isnan(rate) & (text is None or ~text)) | ~stamps.valid)
    collector.mark("infinite-value", np.isinf(rate))
    usable = np.abs(rate[np.isfinite(rate)])
    if len(usable) and float(np.median(usable)) > _LARGE_RATE:
        collector.whole("funding-rate", f"the median is {float(np.median(usable)):.4g}")
    large = np.isfinite(rate) & (np.abs(rate) > _LARGEST_RATE)
    collector.mark("funding-rate", large, lambda row: f"{rate[row]:.4g}")
    if now_ms is not None:
        collector.mark("future-time", stamps.valid & (stamps.ms > now_ms))
    ts = stamps.ms[stamps.valid]
    rows = np.flatnonzero(stamps.valid)
    step = np.diff(ts)
    collector.add("out-of-order", rows[1:][step < 0])
    collector.add("duplicate-different", rows[1:][step == 0])
    check_funding_gaps(collector, ts, rows)
