"""First screen of a report: verdict, equity at equal volatility, four figures, deciding rules.

Below it all rules in one table, and one box for everything that has too little data or was not
measured.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stormsail.evaluation.report.charts import verdict_figure
from stormsail.evaluation.report.html import NONE, badge, chart, escape, prose, section, table
from stormsail.evaluation.report.sections import heading, reasons
from stormsail.evaluation.report.series import rolling_needs
from stormsail.evaluation.report.words import (
    DECISION_KINDS,
    FIGURES,
    FINE_PERCENT,
    HOLDS_KINDS,
    MARKS,
    PERCENT,
    RATIO,
    calibration_gap,
    evidence,
    figure,
    summary_words,
    worst_first,
)
from stormsail.evaluation.saved import Result, flat, mapping, statement_of
from stormsail.evaluation.stats.equal_tail import EqualTail, TailLimit, equal_tail
from stormsail.evaluation.stats.figures import bars_per_year
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.verdict import Reason

DECIDING = 3
"""Rules that stand on the first screen."""

_FIRST = {
    "mean_return": ("mean return a year", PERCENT),
    "sharpe": ("Sharpe ratio", RATIO),
    "max_drawdown": ("max drawdown", PERCENT),
    "cvar": ("CVaR 5 %, one bar", FINE_PERCENT),
}
"""The four figures, with the intervals of the bootstrap where there are any."""

_PARTS = ("baselines", "calibration", "costs", "performance", "significance", "stress")


def verdict_section(results: Sequence[Result]) -> str:
    """Return the first screen; of several results one card each below a common chart."""
    words = (
        "Return since the start after all costs, and drawdown; baselines scaled to the same "
        "volatility. Dragging zooms, a double click resets; arrow keys read values."
    )
    picture = chart("verdict-chart", verdict_figure(results), height=330, caption=words)
    if len(results) == 1:
        result = results[0]
        body = (
            f"{_decision(result)}"
            f'<div class="first"><div>{picture}</div>'
            f"<div>{_tiles(result)}{_deciding(result)}</div></div>"
        )
    else:
        cards = "".join(
            f'<div class="card">{heading(result, place)}{_decision(result)}'
            f"{_tiles(result)}{_deciding(result)}</div>"
            for place, result in enumerate(results)
        )
        body = f'{picture}<div class="cards">{cards}</div>{_limits(results)}'
    return section("verdict", "Verdict", body)


def _limits(results: Sequence[Result]) -> str:
    """Return what limits on the tail buy beside a smaller position of the first result."""
    first, *others = results
    tails = [tail for other in others if (tail := tail_beside(first, other)) is not None]
    return "".join(
        f'<p class="words">What the limit buys. {prose(tail.words)}.</p>' for tail in tails
    )


def tail_beside(first: Result, second: Result) -> EqualTail | None:
    """Return what the limit of the second result buys; None without one or on other bars."""
    limit = TailLimit.of(flat(mapping(second.document.get("training"))))
    data = [mapping(each.document.get("hashes")).get("data") for each in (first, second)]
    if limit is None or data[0] != data[1] or not np.array_equal(first.ts, second.ts):
        return None
    own, other = first.returns, second.returns
    return equal_tail(first.name, own, second.name, other, limit, bar_ms=first.bar_ms)


def _decision(result: Result) -> str:
    """Return the verdict in one sentence, and what was earned in another."""
    verdict = result.verdict
    if verdict is None:
        mark, words = (
            badge("no verdict"),
            "One backtest proves nothing: `stormsail validate` decides.",
        )
    else:
        mark = badge(verdict.decision, kind=DECISION_KINDS[verdict.decision])
        words = verdict.words
    lead = f'<p class="lead">{prose(summary_words(result))}</p>'
    return f'<p class="words">{mark} {prose(words)}</p>{lead}{_final(result)}'


def _final(result: Result) -> str:
    """Return the verdict on the final test span, where it was opened."""
    verdict = result.final_verdict
    if verdict is None:
        return ""
    mark = badge(verdict.decision, kind=DECISION_KINDS[verdict.decision])
    return f'<p class="words">On the final test span {mark} {prose(verdict.words)}</p>'


def _tiles(result: Result) -> str:
    tiles = []
    for name, (title, form) in _FIRST.items():
        shown = figure(first_figure(result, name), form)
        kind = "figure" if shown.known else "figure none"
        interval = shown.interval or ("" if not shown.known else "no interval")
        tiles.append(
            f'<div class="tile"><div class="name">{escape(title)}</div>'
            f'<div class="{kind}">{escape(shown.text if shown.known else NONE)}</div>'
            f'<div class="range">{escape(interval)}</div></div>'
        )
    return f'<div class="tiles four">{"".join(tiles)}</div>'


def first_figure(result: Result, name: str) -> Statement | None:
    """Return a figure with the interval of the bootstrap, or without one where it has none.

    The mean return is that of a year, arithmetic: the mean of a bar times the bars of a year.
    """
    intervals = mapping((result.part("significance") or {}).get("intervals"))
    resampled = statement_of(intervals.get(name))
    if name != "mean_return":
        known = resampled is not None and resampled.value is not None
        return resampled if known else result.metrics.get(name)
    per_year = bars_per_year(result.bar_ms)
    if resampled is None or resampled.value is None:
        bars = len(result.returns)
        return Statement(per_year * float(result.returns.mean())) if bars else None
    low, high = (None if end is None else per_year * end for end in (resampled.low, resampled.high))
    return Statement(per_year * resampled.value, low, high)


def ruled(result: Result) -> list[Reason]:
    """Return all rules of a verdict, or the evidence of a backtest: failed ones first.

    What could not be decided stands before what holds.
    """
    verdict = result.verdict
    if verdict is None:
        return evidence(result)
    return worst_first([*verdict.reasons, *verdict.conditions])


def _deciding(result: Result) -> str:
    """Return the rules that decided: those that failed, then the open ones."""
    return reasons(ruled(result)[:DECIDING])


def rules_section(results: Sequence[Result]) -> str:
    """Return every rule in a compact table, failed ones first."""
    body = ""
    for place, result in enumerate(results):
        rows = ruled(result)
        if not rows:
            continue
        head = heading(result, place) if len(results) > 1 else ""
        cells = [[f"{MARKS[row.holds]} {row.name}", row.words] for row in rows]
        kinds = [HOLDS_KINDS[row.holds] for row in rows]
        body += head + table(["rule", ""], cells, kinds=kinds, classes="rules words-table")
        body += _conditions(result)
    lead = "✗ does not hold, ? could not be decided, ✓ holds."
    return section("rules", "Rules", body, lead=lead) if body else ""


def _conditions(result: Result) -> str:
    """Return the share of the capital and the explanations of a verdict, where there are any."""
    verdict = result.verdict
    if verdict is None:
        return ""
    lines = [f"{name}: explained as “{text}”" for name, text in verdict.explanations.items()]
    if 0.0 < verdict.capital_share < 1.0:
        lines.append(f"While a condition is open, at most {verdict.capital_share:.0%} is traded.")
    return "".join(f'<p class="note warn">{prose(line)}</p>' for line in lines)


def gaps_section(results: Sequence[Result]) -> str:
    """Return, once, what has too little data and what was not measured; empty where nothing."""
    body = ""
    for place, result in enumerate(results):
        short = list(_short(result))
        lines = []
        if short:
            lines.append(f"Too little data for {'; '.join(short)}.")
        absent = [part for part in _PARTS if result.part(part) is None]
        if absent:
            options = " ".join(f"`--{part}`" for part in absent)
            lines.append(
                f"Not measured: {', '.join(absent)}"
                + (
                    f"; run with {options}."
                    if result.kind == "backtest"
                    else "; switched off in this validation."
                )
            )
        if lines:
            head = heading(result, place) if len(results) > 1 else ""
            body += head + "".join(f'<p class="missing">{prose(line)}</p>' for line in lines)
    return section("gaps", "What is not here", body) if body else ""


def _short(result: Result) -> Iterator[str]:
    """Yield what has too little data, with what it needs and what there is."""
    needs: dict[str, list[str]] = {}
    for name, (title, _) in FIGURES.items():
        statement = result.metrics.get(name)
        if statement is not None and not statement.enough:
            key = f"{statement.needed:,} {statement.unit}, found {statement.found:,}"
            needs.setdefault(key, []).append(title)
    bars = len(result.returns)
    if bars < rolling_needs():
        needs.setdefault(f"{rolling_needs():,} bars, found {bars:,}", []).append("rolling risk")
    for key, titles in needs.items():
        yield f"{', '.join(titles)} (needs {key})"
    gap = calibration_gap(result)
    if gap:
        yield f"calibration ({gap})"
