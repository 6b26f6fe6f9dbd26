"""Sections of a report about performance.

Verdict, figures against baselines, equity and drawdown, positions, returns, rolling risk.
"""

from collections.abc import Callable, Sequence

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.charts import (
    MOST_MARKERS,
    baselines_of,
    chosen_fills,
    colour_of,
    equity_figure,
    position_figure,
    returns_figure,
    rolling_figure,
    sleeves_figure,
)
from stormsail.evaluation.report.html import (
    badge,
    chart,
    escape,
    folded,
    missing,
    note,
    prose,
    section,
    table,
)
from stormsail.evaluation.report.robustness_charts import forecast_figure, forecast_of
from stormsail.evaluation.report.series import (
    MOST_POINTS,
    ROLLING_DAYS,
    Rolling,
    position_of,
    rolling,
    rolling_needs,
)
from stormsail.evaluation.report.words import (
    DECISION_KINDS,
    FIGURES,
    FINE_PERCENT,
    HOLDS_KINDS,
    MONEY,
    PERCENT,
    RATIO,
    TILES,
    cell,
    evidence,
    figure,
    hour,
    kept_figure,
    named,
    not_measured,
    summary_words,
    worst_first,
)
from stormsail.evaluation.saved import Result, mapping, statement_of, texts
from stormsail.evaluation.stats.statement import MINIMUM_BARS
from stormsail.evaluation.walk_forward.verdict import Reason

OPEN_SYMBOLS = 4
"""Symbols whose charts are unfolded at first."""

SIDE_BY_SIDE = {
    "total_return": ("return", PERCENT),
    "sharpe": ("Sharpe", RATIO),
    "max_drawdown": ("max drawdown", PERCENT),
    "cvar": ("CVaR 5 %, a bar", FINE_PERCENT),
    "turnover": ("turnover a day", RATIO),
    "fees": ("fees", MONEY),
}
"""Metrics that are saved of baselines and stress scenarios."""


def per_result(results: Sequence[Result], part: Callable[[Result, int], str]) -> str:
    """Return a part for each result, side by side where there are several."""
    if len(results) == 1:
        return part(results[0], 0)
    cards = "".join(
        f'<div class="card">{heading(result, place)}{part(result, place)}</div>'
        for place, result in enumerate(results)
    )
    return f'<div class="cards">{cards}</div>'


def heading(result: Result, place: int) -> str:
    """Return the name of a result beside its colour."""
    return f'<h3><span class="swatch {colour_of(place)}"></span>{escape(result.name)}</h3>'


def verdict_section(results: Sequence[Result]) -> str:
    """Return the verdict with its reasons and the main metrics, before any chart."""
    return section("verdict", "Verdict", per_result(results, lambda result, _: _verdict(result)))


def _verdict(result: Result) -> str:
    """Return the verdict of a validation; for a backtest the evidence without a verdict."""
    verdict = result.verdict
    if verdict is None:
        words = (
            f"{summary_words(result)} One backtest proves nothing by itself: `stormsail validate` "
            "retrains, tests out of sample and decides."
        )
        head = f'<div>{badge("no verdict")}</div><p class="words">{prose(words)}</p>'
        return f"{head}{_tiles(result)}{reasons(evidence(result))}"
    mark = badge(verdict.decision, kind=DECISION_KINDS[verdict.decision])
    return (
        f'<div>{mark}</div><p class="words">{prose(verdict.words)}</p>'
        f'<p class="lead">{prose(summary_words(result))}</p>'
        f"{_tiles(result)}{reasons(worst_first(verdict.reasons))}{_final(result)}"
    )


def _final(result: Result) -> str:
    """Return the verdict on the final test span, where it was opened."""
    verdict = result.final_verdict
    if verdict is None:
        return ""
    mark = badge(verdict.decision, kind=DECISION_KINDS[verdict.decision])
    words = f'<p class="words">{prose(verdict.words)}</p>'
    return f"<h3>On the final test span {mark}</h3>{words}{reasons(worst_first(verdict.reasons))}"


def reasons(rows: Sequence[Reason]) -> str:
    """Return reasons as a list, each marked as held, failed or unknown."""
    lines = "".join(f'<li class="{HOLDS_KINDS[row.holds]}">{prose(row.words)}</li>' for row in rows)
    return f'<ul class="reasons">{lines}</ul>' if rows else ""


def _tiles(result: Result) -> str:
    tiles = []
    for name in TILES:
        title, form = FIGURES[name]
        shown = figure(result.metrics.get(name), form)
        kind = "figure" if shown.known else "figure none"
        tiles.append(
            f'<div class="tile"><div class="name">{escape(title)}</div>'
            f'<div class="{kind}">{escape(shown.text)}</div>'
            f'<div class="range">{escape(shown.interval)}</div></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def figures_section(results: Sequence[Result]) -> str:
    """Return every metric, one column a result, and those of the baselines on the same bars."""
    measured = [result.metrics for result in results]
    rows = [
        [title, *(cell(metrics.get(name), form) for metrics in measured)]
        for name, (title, form) in FIGURES.items()
        if any(name in metrics for metrics in measured)
    ]
    span = [
        ["bars", *(f"{len(result.returns):,}" for result in results)],
        ["trades", *(f"{result.trades.num_rows:,}" for result in results)],
        ["from", *(hour(result.document.get("first_bar")) for result in results)],
        ["to", *(hour(result.document.get("end")) for result in results)],
    ]
    titles = ["", *(result.name for result in results)]
    lines = [*span, *rows]
    if len(results) == 1:  # one column of figures would leave most of a wide page empty
        half = (len(lines) + 1) // 2
        halves = (table(["", ""], part) for part in (lines[:half], lines[half:]))
        shown = '<div class="pair">{}{}</div>'.format(*halves)
    else:
        shown = table(titles, lines)
    body = _comparable(results) + shown
    body += "<h3>Against baselines on the same bars, costs and rules</h3>"
    for place, result in enumerate(results):
        body += (heading(result, place) if len(results) > 1 else "") + _baselines(result)
    lead = (
        "Annualised for a market that never closes. Brackets are 95 % intervals. "
        "A figure without enough data says what it needs."
    )
    return section("figures", "Figures", body, lead=lead)


def _comparable(results: Sequence[Result]) -> str:
    """Return a warning where results are not about the same thing."""
    odd = []
    documents = [result.document for result in results]
    for words, values in (
        ("spans", [(each.get("first_bar"), each.get("end")) for each in documents]),
        ("symbols", [tuple(result.symbols) for result in results]),
        ("bars", [each.get("interval") for each in documents]),
        ("data", [mapping(each.get("hashes")).get("data") for each in documents]),
    ):
        if len({str(value) for value in values}) > 1:
            odd.append(words)
    if not odd:
        return ""
    return note(f"These results differ in {', '.join(odd)}: compare with care.", kind="warn")


def _baselines(result: Result) -> str:
    """Return the main metrics of the agent and of each baseline."""
    baselines = result.part("baselines")
    if baselines is None:
        return missing(not_measured(result, "baselines"))
    metrics = result.metrics
    own: dict[str, JsonValue] = {"bars": len(result.returns)}
    own |= {name: metrics[name].value for name in SIDE_BY_SIDE if name in metrics}
    rows = [["agent", *kept_figures(own)]]
    rows += [[name.replace("_", " "), *kept_figures(each)] for name, each in baselines.items()]
    titles = ["", *(title for title, _ in SIDE_BY_SIDE.values())]
    return table(titles, rows) + (
        '<p class="lead">The clairvoyant knows the future: an upper bound, no baseline.</p>'
        if "clairvoyant" in baselines
        else ""
    )


def kept_figures(metrics: JsonValue) -> list[str]:
    """Return the main metrics of a baseline or a stress scenario as texts."""
    return [kept_figure(mapping(metrics), key, form) for key, (_, form) in SIDE_BY_SIDE.items()]


def equity_section(results: Sequence[Result]) -> str:
    """Return the chart of equity and drawdown, with baselines."""
    baselines = baselines_of(results)
    words = "Above: return since the start, after all costs. Below: drawdown from the last peak."
    if any(name == "clairvoyant" for name, _, _ in baselines):
        words += " A click in the legend shows or hides a line; the clairvoyant is hidden at first."
    body = chart("equity-chart", equity_figure(results), height=460, caption=words)
    if not baselines:
        body += missing(f"baselines: {not_measured(results[0], 'baselines')}")
    elif len(results) > 1:
        owner = next(result for result in results if "baselines.parquet" in result.tables)
        body += note(f"Baselines are those of {owner.name}.")
    for place, result in enumerate(results):
        if result.equity.num_columns > 3:
            what = "Seeds" if result.kind == "validation" else "Accounts"
            name = what if len(results) == 1 else f"{what} of {result.name}"
            body += folded(name, chart(f"sleeves-{place}", sleeves_figure(result), height=340))
    return section("equity", "Equity and drawdown", body)


def position_section(results: Sequence[Result]) -> str:
    """Return price, fills and weight, a chart for each symbol."""
    symbols = list(dict.fromkeys(symbol for result in results for symbol in result.symbols))
    parts = []
    for place, symbol in enumerate(symbols):
        trading = [result for result in results if symbol in result.symbols]
        picture = chart(
            f"position-{place}",
            position_figure(trading, symbol),
            height=400,
            caption=_position_words(trading, symbol),
        )
        if len(symbols) == 1:
            parts.append(f"<h3>{escape(symbol)}</h3>{picture}")
        else:
            parts.append(folded(symbol, picture, opened=place < OPEN_SYMBOLS))
    lead = "What was held at each close as a share of the account's equity, and every fill."
    return section("position", "Position and price", "".join(parts), lead=lead)


def _position_words(results: Sequence[Result], symbol: str) -> str:
    known = any(np.isfinite(position_of(result, symbol).price).any() for result in results)
    words = (
        "Results hold no bars: the price is known while a position is held, and at fills."
        if known
        else "The price is known at fills; between them a dotted line."
    )
    for result in results:
        count = int(np.count_nonzero(texts(result.trades, "symbol") == symbol))
        if count > len(chosen_fills(result, symbol)):
            words += (
                f" Of {count:,} fills of {result.name} the {MOST_MARKERS:,} largest are marked."
            )
    return words


def returns_section(results: Sequence[Result]) -> str:
    """Return the histogram of returns, and the predicted distribution over the realised one."""
    body = ""
    enough = []
    for result in results:
        moved = np.count_nonzero(result.returns)
        if moved >= MINIMUM_BARS:
            enough.append(result)
            continue
        needs = f"needs {MINIMUM_BARS} bars with a gain or a loss, found {moved}"
        body += missing(named(results, result, f"not enough data: {needs}"))
    if enough:
        idle = ", ".join(
            f"{np.mean(result.returns == 0.0):.0%}"
            + (f" ({result.name})" if len(enough) > 1 else "")
            for result in enough
        )
        words = f"Bars without gain or loss are left out: {idle}. The outer cells hold all beyond."
        body += chart("returns-chart", returns_figure(enough), height=320, caption=words)
    body += "<h3>The predicted tail</h3>"
    body += per_result(results, _forecast)
    return section("returns", "Distribution of returns", body)


def _forecast(result: Result, place: int) -> str:
    """Return predicted against realised returns of windows: chart and CVaR."""
    calibration = result.part("calibration")
    if calibration is None:
        return missing(not_measured(result, "calibration"))
    if calibration.get("reason"):
        return missing(str(calibration["reason"]))
    tail = mapping(calibration.get("tail"))
    rows = [
        [name, cell(statement_of(tail.get(key)), FINE_PERCENT)]
        for name, key in (
            ("CVaR predicted", "predicted"),
            ("CVaR realised", "realised"),
            ("realised minus predicted", "gap"),
        )
    ]
    forecast = forecast_of(result)
    if forecast is None:
        picture = missing("The distribution is drawn for backtests with a distributional critic.")
    else:
        words = (
            f"Growth over {calibration.get('horizon_bars')} bars, discounted by "
            f"{calibration.get('discount')} a bar as the critic does: realised, and the mean of "
            "the distributions that the critic predicted."
        )
        picture = chart(
            f"forecast-{place}", forecast_figure(forecast, tail, place), height=300, caption=words
        )
    return picture + table(["of a window", "value and 95 % interval"], rows)


def rolling_section(results: Sequence[Result]) -> str:
    """Return the charts of rolling volatility and CVaR."""
    risks: list[Rolling | None] = [rolling(result) for result in results]
    body = ""
    for result, risk in zip(results, risks, strict=True):
        if risk is None:
            needs = f"needs {rolling_needs()} bars, found {len(result.returns)}"
            body += missing(named(results, result, f"not enough data: {needs}"))
    known = [risk for risk in risks if risk is not None]
    if known:
        bars = ", ".join(dict.fromkeys(f"{risk.window:,}" for risk in known))
        words = (
            f"Over the last {bars} bars at each time ({ROLLING_DAYS} days where the data reach); "
            "CVaR is the mean of the worst 5 % of them."
        )
        body += chart("rolling-chart", rolling_figure(results, risks), height=380, caption=words)
    return section("rolling", "Rolling risk", body)


def drawing_words(results: Sequence[Result]) -> str:
    """Return how long series are downsampled for drawing; empty where none is long."""
    longest = max((len(result.ts) for result in results), default=0)
    if longest <= MOST_POINTS:
        return ""
    return (
        f"Series of up to {longest:,} points are drawn with {MOST_POINTS:,}: of every stretch the "
        "lowest and the highest point, at their own times. Figures use all of them."
    )
