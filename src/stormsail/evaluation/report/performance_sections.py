"""Section of a report about performance: calendar, drawdowns, benchmarks, costs, regimes, capacity.

The tables are those of `Frames`, so that page, command line and notebook show the same numbers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.charts import capacity_figure
from stormsail.evaluation.report.html import NONE, chart, note, section, table
from stormsail.evaluation.report.sections import heading
from stormsail.evaluation.report.words import FINE_PERCENT, MONEY, PERCENT, RATIO
from stormsail.evaluation.saved import Document, Result, items, mapping, number
from stormsail.evaluation.stats.frames import Frames

DRAWDOWNS = 5
"""Largest drawdowns that are shown."""

YEARS = 12
"""Newest years that are shown."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SHORT = "{:+.1%}"


def performance_section(results: Sequence[Result]) -> str:
    """Return the tables of performance, result by result."""
    body = ""
    for place, result in enumerate(results):
        if len(result.returns):
            head = heading(result, place) if len(results) > 1 else ""
            body += head + _performance(result, place)
    lead = (
        "Calendar by the opening of bars, UTC. Alpha is a year's, against the baseline as it was "
        "traded; brackets are 95 % intervals. Gross less every cost is net, to the last cent."
    )
    return section("performance", "Performance", body, lead=lead) if body else ""


def _performance(result: Result, place: int) -> str:
    frames = result.frames
    pairs = [
        (_drawdowns(frames), _exposure(result)),
        (_costs(result), _regimes(result)),
        (_capacity(result, place), _folds(result)),
    ]
    body = _months(frames) + _benchmarks(frames)
    for parts in pairs:
        shown = [part for part in parts if part]
        if shown:
            body += f'<div class="pair">{"".join(f"<div>{part}</div>" for part in shown)}</div>'
    return body


def _months(frames: Frames) -> str:
    """Return a row for each year with the return of each month; parts of months count too."""
    years: dict[int, dict[int, float]] = {}
    for row in frames.table("monthly").to_pylist():
        years.setdefault(row["year"], {})[row["month"]] = row["return"]
    whole = {row["year"]: row["return"] for row in frames.table("yearly").to_pylist()}
    rows = [
        [
            str(year),
            *(_SHORT.format(months[month]) if month in months else NONE for month in range(1, 13)),
            _SHORT.format(whole[year]),
        ]
        for year, months in list(years.items())[-YEARS:]
    ]
    return "<h3>Monthly returns</h3>" + table(["", *_MONTHS, "year"], rows, classes="dense")


def _drawdowns(frames: Frames) -> str:
    rows = [
        [
            PERCENT.format(row["depth"]),
            _day(row["peak"]),
            _day(row["trough"]),
            "lasts" if row["recovery"] is None else _day(row["recovery"]),
            f"{row['bars']:,}",
        ]
        for row in frames.table("drawdowns").slice(0, DRAWDOWNS).to_pylist()
    ]
    titles = ["drawdown", "peak", "trough", "recovery", "bars"]
    return "<h3>Largest drawdowns</h3>" + table(titles, rows, classes="nowrap") if rows else ""


def _day(time: Any) -> str:  # noqa: ANN401 - what pyarrow makes of a time
    return str(time.strftime("%Y-%m-%d"))


def _benchmarks(frames: Frames) -> str:
    table_ = frames.tables().get("benchmarks")
    if table_ is None:
        return ""
    rows = []
    for row in table_.to_pylist():
        if row["benchmark"] in ("flat", "clairvoyant", "random") or np.isnan(row["beta"]):
            continue
        rows.append(
            [
                row["benchmark"],
                f"{row['alpha']:+.1%} [{row['alpha_low']:+.1%}, {row['alpha_high']:+.1%}]",
                f"{row['beta']:.2f} [{row['beta_low']:.2f}, {row['beta_high']:.2f}]",
                f"{row['correlation']:.2f}",
                f"{row['tracking_error']:.1%}",
                RATIO.format(row["information_ratio"]),
            ]
        )
    titles = [
        "against",
        "alpha a year",
        "beta",
        "correlation",
        "tracking error",
        "information ratio",
    ]
    return "<h3>Alpha and beta</h3>" + table(titles, rows, classes="nowrap") if rows else ""


def _costs(result: Result) -> str:
    """Return gross to net, of the long and the short leg and of both; costs are negative."""
    rows = _rows(mapping((result.part("performance") or {}).get("attribution")).get("costs"))
    gross = next((_value(row, "both") for row in rows if row.get("item") == "gross"), 0.0)
    lines = []
    for row in rows:
        name = str(row.get("item"))
        sign = 1.0 if name in ("gross", "net") else -1.0
        values = [sign * _value(row, leg) + 0.0 for leg in ("long", "short", "both")]
        share = f"{values[2] / gross:.1%}" if gross > 0.0 else NONE
        lines.append([name.replace("_", " "), *map(MONEY.format, values), share])
    titles = ["money", "long", "short", "both", "of gross"]
    return "<h3>Gross to net</h3>" + table(titles, lines) if lines else ""


def _exposure(result: Result) -> str:
    rows = _rows(mapping((result.part("performance") or {}).get("attribution")).get("exposure"))
    titles = {
        "gross": "mean gross", "net": "mean net", "long": "mean long", "short": "mean short",
        "largest": "largest gross", "time": "exposure time",
    }  # fmt: skip
    lines = [
        [titles.get(str(row.get("exposure")), ""), f"{_value(row, 'value'):.1%}"] for row in rows
    ]
    return "<h3>Exposure</h3>" + table(["share of equity", ""], lines) if lines else ""


def _regimes(result: Result) -> str:
    lines = [
        [
            f"{row.get('kind')}: {row.get('regime')}",
            f"{row.get('bars'):,}",
            _form(row.get("total_return"), PERCENT),
            _form(row.get("mean_return"), FINE_PERCENT),
            _form(mapping(row.get("sharpe")).get("value"), RATIO),
        ]
        for row in _rows((result.part("performance") or {}).get("regimes"))
    ]
    titles = ["regime", "bars", "return", "a bar", "Sharpe"]
    return "<h3>By regime of the 64 bars before</h3>" + table(titles, lines) if lines else ""


def _capacity(result: Result, place: int) -> str:
    document = result.part("performance") or {}
    points = _rows(document.get("capacity"))
    if not points:
        return ""
    rows = [
        [
            f"{number(point.get('capital')) or 0.0:,.0f}",
            _form(point.get("total_return"), PERCENT),
            _form(point.get("gain"), "{:+,.0f}"),
            _form(point.get("impact"), "{:,.0f}"),
        ]
        for point in points
    ]
    body = "<h3>Capacity: the same decisions with other capital</h3>"
    if not number(document.get("impact")):
        body += note("The market's impact is set to 0: no account is too large for it.")
    else:
        numbers = [
            {key: number(point.get(key)) or 0.0 for key in ("capital", "total_return")}
            for point in points
        ]
        body += chart(f"capacity-{place}", capacity_figure(numbers), height=220)
    return body + table(["capital", "return", "gain", "paid for impact"], rows)


def _folds(result: Result) -> str:
    """Return the figures of each fold, and how far they agree."""
    folds = _rows((result.part("performance") or {}).get("folds"))
    names = ("total_return", "sharpe", "volatility", "max_drawdown")
    values = [[number(mapping(fold.get(name)).get("value")) for name in names] for fold in folds]
    if not values:
        return ""
    forms = (PERCENT, RATIO, "{:.1%}", PERCENT)
    rows = [
        [str(place), *(_form(value, form) for value, form in zip(row, forms, strict=True))]
        for place, row in enumerate(values)
    ]
    returns = np.array([row[0] or 0.0 for row in values])
    words = (
        f"{int((returns > 0.0).sum())} of {len(returns)} folds gained; worst {returns.min():+.2%}"
    )
    if len(returns) > 1:
        words += f", median {np.median(returns):+.2%}, deviation {returns.std(ddof=1):.2%}"
    titles = ["fold", "return", "Sharpe", "volatility", "max drawdown"]
    return "<h3>Stability over folds</h3>" + table(titles, rows) + note(f"{words}.")


def _rows(value: JsonValue) -> list[Document]:
    return [mapping(row) for row in items(value)]


def _value(row: Document, name: str) -> float:
    return number(row.get(name)) or 0.0


def _form(value: JsonValue, form: str) -> str:
    known = number(value)
    return NONE if known is None else form.format(known)
