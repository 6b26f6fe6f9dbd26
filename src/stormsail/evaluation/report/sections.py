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
    rolling_ratio_figure,
    sleeves_figure,
)
from stormsail.evaluation.report.html import (
    chart,
    escape,
    folded,
    note,
    prose,
    section,
    table,
)
from stormsail.evaluation.report.series import (
    MOST_POINTS,
    ROLLING_DAYS,
    Rolling,
    position_of,
    rolling,
)
from stormsail.evaluation.report.words import (
    FIGURES,
    FINE_PERCENT,
    HOLDS_KINDS,
    MONEY,
    PERCENT,
    RATIO,
    cell,
    hour,
    kept_figure,
)
from stormsail.evaluation.saved import Result, mapping, number, texts
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


def reasons(rows: Sequence[Reason]) -> str:
    """Return reasons as a list, each marked as held, failed or unknown."""
    lines = "".join(f'<li class="{HOLDS_KINDS[row.holds]}">{prose(row.words)}</li>' for row in rows)
    return f'<ul class="reasons">{lines}</ul>' if rows else ""


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
    known = [result for result in results if result.part("baselines") is not None]
    if known:
        body += "<h3>Against baselines on the same bars, costs and rules</h3>"
    for result in known:
        place = list(results).index(result)
        body += (heading(result, place) if len(results) > 1 else "") + _baselines(result)
    lead = (
        "Annualised for a market that never closes. Brackets are 95 % intervals. A dash has too "
        "little data."
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
    """Return the main metrics of the agent and of each baseline, best Sharpe ratio first.

    The clairvoyant, who is no baseline, stands last.
    """
    baselines, metrics = result.part("baselines") or {}, result.metrics
    own: dict[str, JsonValue] = {"bars": len(result.returns)}
    own |= {name: metrics[name].value for name in SIDE_BY_SIDE if name in metrics}
    named_rows = {"agent": own, **{name: mapping(each) for name, each in baselines.items()}}

    def order(name: str) -> tuple[bool, float]:
        ratio = number(named_rows[name].get("sharpe"))
        return name == "clairvoyant", -(-np.inf if ratio is None else ratio)

    ranked = sorted(named_rows, key=order)
    rows = [[name.replace("_", " "), *kept_figures(dict(named_rows[name]))] for name in ranked]
    kinds = ["own" if name == "agent" else "" for name in ranked]
    titles = ["", *(title for title, _ in SIDE_BY_SIDE.values())]
    return table(titles, rows, kinds=kinds) + (
        '<p class="lead">Sorted by Sharpe ratio. The clairvoyant knows the future: an upper bound, '
        "no baseline.</p>"
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
    if baselines and len(results) > 1:
        owner = next(result for result in results if "baselines.parquet" in result.tables)
        body += note(f"Baselines are those of {owner.name}.")
    for place, result in enumerate(results):
        if result.equity.num_columns > 3:
            what = "Seeds" if result.kind == "validation" else "Accounts"
            name = what if len(results) == 1 else f"{what} of {result.name}"
            picture = chart(f"sleeves-{place}", sleeves_figure(result), height=340)
            body += folded(name, picture, paper=False)
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
            shown = place < OPEN_SYMBOLS
            parts.append(folded(symbol, picture, opened=shown, paper=shown))
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
    """Return the histogram of returns, and the predicted distribution where it can be judged."""
    enough = [result for result in results if np.count_nonzero(result.returns) >= MINIMUM_BARS]
    body = ""
    if enough:
        idle = ", ".join(
            f"{np.mean(result.returns == 0.0):.0%}"
            + (f" ({result.name})" if len(enough) > 1 else "")
            for result in enough
        )
        words = f"Bars without gain or loss are left out: {idle}. The outer cells hold all beyond."
        body += chart("returns-chart", returns_figure(enough), height=280, caption=words)
    return section("returns", "Distribution of returns", body) if body else ""


def rolling_section(results: Sequence[Result]) -> str:
    """Return the charts of rolling volatility, CVaR, Sharpe ratio and beta; empty without data."""
    risks: list[Rolling | None] = [rolling(result) for result in results]
    known = [risk for risk in risks if risk is not None]
    if not known:
        return ""
    bars = ", ".join(dict.fromkeys(f"{risk.window:,}" for risk in known))
    words = (
        f"Over the last {bars} bars at each time ({ROLLING_DAYS} days where the data reach); "
        "CVaR is the mean of the worst 5 % of them."
    )
    risk = chart("rolling-chart", rolling_figure(results, risks), height=320, caption=words)
    beta = " beta is that on buy and hold." if any(r.beta is not None for r in known) else ""
    ratio = chart(
        "ratio-chart",
        rolling_ratio_figure(results, risks),
        height=320,
        caption=f"The same windows;{beta}" if beta else "The same windows.",
    )
    body = f'<div class="pair"><div>{risk}</div><div>{ratio}</div></div>'
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
