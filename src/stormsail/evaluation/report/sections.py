"""Sections of a report about what happened: verdict, figures, equity, positions, returns, risk."""

from collections.abc import Callable, Sequence

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.charts import (
    MOST_MARKERS,
    chosen_fills,
    colour_of,
    equity_figure,
    position_figure,
    returns_figure,
    rivals_of,
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
from stormsail.evaluation.report.results import Result, mapping, texts
from stormsail.evaluation.report.robustness_charts import foretold, foretold_figure
from stormsail.evaluation.report.series import (
    MOST_POINTS,
    ROLLING_DAYS,
    Rolling,
    position_of,
    rolling,
    rolling_needs,
)
from stormsail.evaluation.report.words import (
    FIGURES,
    FINE_PERCENT,
    MONEY,
    PERCENT,
    RATIO,
    TILES,
    Reason,
    cell,
    figure,
    hour,
    kept_figure,
    named,
    not_measured,
    summary_words,
    told_verdict,
    verdict_of,
)
from stormsail.evaluation.stats.statement import MINIMUM_BARS

OPEN_SYMBOLS = 4
"""Symbols whose charts are open from the start; those of more open with a click."""

SIDE_BY_SIDE = {
    "total_return": ("return", PERCENT),
    "sharpe": ("Sharpe", RATIO),
    "drawdown": ("deepest fall", PERCENT),
    "cvar": ("CVaR 5 %, a bar", FINE_PERCENT),
    "turnover": ("turnover a day", RATIO),
    "fees": ("fees", MONEY),
}
"""Figures that are kept of baselines and scenarios."""


def per_result(results: Sequence[Result], part: Callable[[Result, int], str]) -> str:
    """Return a part for each result, side by side where there are several."""
    if len(results) == 1:
        return part(results[0], 0)
    cards = "".join(
        f'<div class="card">{heading(one, place)}{part(one, place)}</div>'
        for place, one in enumerate(results)
    )
    return f'<div class="cards">{cards}</div>'


def heading(result: Result, place: int) -> str:
    """Return the name of a result beside its colour."""
    return f'<h3><span class="swatch {colour_of(place)}"></span>{escape(result.name)}</h3>'


def verdict_section(results: Sequence[Result]) -> str:
    """Return what a reader should take away, before any chart."""
    return section("verdict", "Verdict", per_result(results, lambda one, _: _verdict(one)))


def _verdict(result: Result) -> str:
    found = verdict_of(result)
    said = f'<p class="words">{prose(found.words)}</p>'
    if result.kind == "validation":
        said += f'<p class="lead">{prose(summary_words(result))}</p>'
    return (
        f"<div>{badge(found.decision, kind=found.kind)}</div>{said}"
        f"{_tiles(result)}{reasons(found.reasons)}{_final(result)}"
    )


def _final(result: Result) -> str:
    """Return the verdict on the final test span, where it was opened."""
    test = mapping(result.document.get("test"))
    if not test:
        return ""
    found = told_verdict(mapping(test.get("verdict")))
    head = f"<h3>On the final test span {badge(found.decision, kind=found.kind)}</h3>"
    return f'{head}<p class="words">{prose(found.words)}</p>{reasons(found.reasons)}'


def reasons(found: Sequence[Reason]) -> str:
    """Return what speaks for and against, each with a sign."""
    lines = "".join(f'<li class="{one.kind}">{prose(one.words)}</li>' for one in found)
    return f'<ul class="reasons">{lines}</ul>' if found else ""


def _tiles(result: Result) -> str:
    tiles = []
    for name in TILES:
        title, form = FIGURES[name]
        told = figure(result.metrics.get(name), form)
        kind = "figure" if told.known else "figure none"
        tiles.append(
            f'<div class="tile"><div class="name">{escape(title)}</div>'
            f'<div class="{kind}">{escape(told.text)}</div>'
            f'<div class="range">{escape(told.interval)}</div></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def figures_section(results: Sequence[Result]) -> str:
    """Return every figure, a column for each result, and the rivals on the same ledger."""
    rows = [
        [title, *(cell(one.metrics.get(name), form) for one in results)]
        for name, (title, form) in FIGURES.items()
        if any(name in one.metrics for one in results)
    ]
    span = [
        ["bars", *(f"{len(one.returns):,}" for one in results)],
        ["trades", *(f"{one.trades.num_rows:,}" for one in results)],
        ["from", *(hour(one.document.get("first_bar")) for one in results)],
        ["to", *(hour(one.document.get("end")) for one in results)],
    ]
    titles = ["", *(one.name for one in results)]
    lines = [*span, *rows]
    if len(results) == 1:  # one column of figures would leave most of a wide page empty
        half = (len(lines) + 1) // 2
        halves = (table(["", ""], part) for part in (lines[:half], lines[half:]))
        shown = '<div class="pair">{}{}</div>'.format(*halves)
    else:
        shown = table(titles, lines)
    body = _comparable(results) + shown
    body += "<h3>Against baselines on the same bars, costs and rules</h3>"
    for place, one in enumerate(results):
        body += (heading(one, place) if len(results) > 1 else "") + _rivals(one)
    lead = (
        "Annualised for a market that never closes. Brackets are 95 % intervals. "
        "A figure without enough data says what it needs."
    )
    return section("figures", "Figures", body, lead=lead)


def _comparable(results: Sequence[Result]) -> str:
    """Return a warning where results are not about the same thing."""
    odd = []
    for words, told in (
        ("spans", [(one.document.get("first_bar"), one.document.get("end")) for one in results]),
        ("symbols", [tuple(one.symbols) for one in results]),
        ("bars", [one.document.get("interval") for one in results]),
        ("data", [mapping(one.document.get("hashes")).get("data") for one in results]),
    ):
        if len({str(one) for one in told}) > 1:
            odd.append(words)
    if not odd:
        return ""
    return note(f"These results differ in {', '.join(odd)}: compare with care.", kind="warn")


def _rivals(result: Result) -> str:
    told = result.part("baselines")
    if told is None:
        return missing(not_measured(result, "baselines"))
    own: dict[str, JsonValue] = {"bars": len(result.returns)}
    own |= {name: mapping(result.metrics.get(name)).get("value") for name in SIDE_BY_SIDE}
    rows = [
        [name.replace("_", " "), *(kept_figure(one, key, form) for key, (_, form) in _forms())]
        for name, one in (("agent", own), *((name, mapping(each)) for name, each in told.items()))
    ]
    titles = ["", *(title for _, (title, _) in _forms())]
    return table(titles, rows) + (
        '<p class="lead">The clairvoyant knows the future: a bound, no rival.</p>'
        if "clairvoyant" in told
        else ""
    )


def _forms() -> list[tuple[str, tuple[str, str]]]:
    return list(SIDE_BY_SIDE.items())


def equity_section(results: Sequence[Result]) -> str:
    """Return growth and falls, with rivals."""
    rivals = rivals_of(results)
    words = "Above: return since the start, after all costs. Below: how far under the last peak."
    if any(name == "clairvoyant" for name, _, _ in rivals):
        words += " A click in the legend shows or hides a line; the clairvoyant is hidden at first."
    body = chart("equity-chart", equity_figure(results), height=460, caption=words)
    if not rivals:
        body += missing(f"baselines: {not_measured(results[0], 'baselines')}")
    elif len(results) > 1:
        owner = next(one for one in results if "baselines.parquet" in one.tables)
        body += note(f"Baselines are those of {owner.name}.")
    for place, one in enumerate(results):
        if one.equity.num_columns > 3:
            what = "Seeds" if one.kind == "validation" else "Accounts"
            name = what if len(results) == 1 else f"{what} of {one.name}"
            body += folded(name, chart(f"sleeves-{place}", sleeves_figure(one), height=340))
    return section("equity", "Equity and drawdown", body)


def position_section(results: Sequence[Result]) -> str:
    """Return price, fills and weight, a chart for each symbol."""
    symbols = list(dict.fromkeys(symbol for one in results for symbol in one.symbols))
    parts = []
    for place, symbol in enumerate(symbols):
        trading = [one for one in results if symbol in one.symbols]
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
    known = any(np.isfinite(position_of(one, symbol).price).any() for one in results)
    words = (
        "Results hold no bars: the price is known while a position is held, and at fills."
        if known
        else "The price is known at fills; between them a dotted line."
    )
    for one in results:
        count = int(np.count_nonzero(texts(one.trades, "symbol") == symbol))
        if count > len(chosen_fills(one, symbol)):
            words += f" Of {count:,} fills of {one.name} the {MOST_MARKERS:,} largest are marked."
    return words


def returns_section(results: Sequence[Result]) -> str:
    """Return how returns spread, and the predicted law over what came."""
    short = [one for one in results if np.count_nonzero(one.returns) < MINIMUM_BARS]
    body = "".join(
        missing(
            named(
                results,
                one,
                f"not enough data: needs {MINIMUM_BARS} bars with a gain or a loss, "
                f"found {np.count_nonzero(one.returns)}",
            )
        )
        for one in short
    )
    enough = [one for one in results if one not in short]
    if enough:
        idle = ", ".join(
            f"{np.mean(one.returns == 0.0):.0%}" + (f" ({one.name})" if len(enough) > 1 else "")
            for one in enough
        )
        words = f"Bars without gain or loss are left out: {idle}. The outer cells hold all beyond."
        body += chart("returns-chart", returns_figure(enough), height=320, caption=words)
    body += "<h3>The predicted tail</h3>"
    body += per_result(results, _foretold)
    return section("returns", "Distribution of returns", body)


def _foretold(result: Result, place: int) -> str:
    told = result.part("calibration")
    if told is None:
        return missing(not_measured(result, "calibration"))
    if told.get("reason"):
        return missing(str(told["reason"]))
    tail = mapping(told.get("tail"))
    rows = [
        [name, cell(tail.get(key), FINE_PERCENT)]
        for name, key in (
            ("CVaR predicted", "predicted"),
            ("CVaR realised", "realised"),
            ("realised minus predicted", "gap"),
        )
    ]
    found = foretold(result)
    if found is None:
        picture = missing("The law itself is drawn for backtests with a distributional critic.")
    else:
        words = (
            f"Growth over {told.get('horizon_bars')} bars, discounted by {told.get('discount')} a "
            "bar as the critic does: what came, and the mean of the laws it predicted for it."
        )
        picture = chart(
            f"foretold-{place}", foretold_figure(found, tail, place), height=300, caption=words
        )
    return picture + table(["of a window", "value and 95 % interval"], rows)


def rolling_section(results: Sequence[Result]) -> str:
    """Return volatility and CVaR along the way."""
    found: list[Rolling | None] = [rolling(one) for one in results]
    body = "".join(
        missing(
            named(
                results,
                one,
                f"not enough data: needs {rolling_needs()} bars, found {len(one.returns)}",
            )
        )
        for one, risk in zip(results, found, strict=True)
        if risk is None
    )
    known = [risk for risk in found if risk is not None]
    if known:
        bars = ", ".join(dict.fromkeys(f"{risk.window:,}" for risk in known))
        words = (
            f"Over the last {bars} bars at each time ({ROLLING_DAYS} days where the data reach); "
            "CVaR is the mean of the worst 5 % of them."
        )
        body += chart("rolling-chart", rolling_figure(results, found), height=380, caption=words)
    return section("rolling", "Rolling risk", body)


def drawing_words(results: Sequence[Result]) -> str:
    """Return what the reader must know of how long series are drawn; empty where none is long."""
    longest = max((len(one.ts) for one in results), default=0)
    if longest <= MOST_POINTS:
        return ""
    return (
        f"Series of up to {longest:,} points are drawn with {MOST_POINTS:,}: of every stretch the "
        "lowest and the highest point, at their own times. Figures use all of them."
    )
