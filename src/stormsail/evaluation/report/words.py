"""Texts of a report: formatted metrics with their intervals, and evidence for and against a result.

A metric without enough data is never shown as a number: a table has a dash in its place, and one
box of the page (`verdict_sections.gaps_section`) says how much data it needs and has.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.html import NONE
from stormsail.evaluation.report.series import TAIL
from stormsail.evaluation.saved import (
    Document,
    Result,
    column,
    items,
    mapping,
    number,
    statement_of,
)
from stormsail.evaluation.stats.figures import DAY_MS
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement, needed_for_tail
from stormsail.evaluation.walk_forward.verdict import Reason

PERCENT, FINE_PERCENT, RATIO, MONEY = "{:+,.2%}", "{:+.3%}", "{:,.2f}", "{:,.2f}"
SHARE = "{:.1%}"

FIGURES: Mapping[str, tuple[str, str]] = {
    "total_return": ("total return", PERCENT),
    "annual_return": ("annual return", PERCENT),
    "volatility": ("volatility a year", SHARE),
    "sharpe": ("Sharpe ratio", RATIO),
    "sortino": ("Sortino ratio", RATIO),
    "calmar": ("Calmar ratio", RATIO),
    "max_drawdown": ("max drawdown", PERCENT),
    "value_at_risk": ("value at risk 5 %, one bar", FINE_PERCENT),
    "cvar": ("CVaR 5 %, one bar", FINE_PERCENT),
    "skew": ("skew", RATIO),
    "turnover": ("turnover a day", "{:.2f}"),
    "exposure": ("mean exposure", SHARE),
    "exposure_time": ("exposure time", SHARE),
    "fees": ("fees", MONEY),
    "funding": ("funding paid", MONEY),
    "slippage": ("slippage", MONEY),
    "win_rate": ("win rate, Wilson", SHARE),
    "win_rate_exact": ("win rate, Clopper-Pearson", SHARE),
    "profit_factor": ("profit factor", RATIO),
}
"""Title and format of every metric, in the order of the table."""

SIGNIFICANCE: Mapping[str, tuple[str, str]] = {
    "probabilistic": ("probability that the true Sharpe ratio is above 0", SHARE),
    "deflated": ("the same after the number of trials (deflated)", SHARE),
    "expected_maximum": (
        "Sharpe ratio a bar that the best of as many random strategies reaches",
        "{:.4f}",
    ),
    "track_record": ("bars needed to believe the Sharpe ratio at 95 %", "{:,.0f}"),
    "overfitting": ("probability of backtest overfitting, among seeds", SHARE),
    "configurations": ("the same, among the configurations tried", SHARE),
    "superiority": ("p-value against buy and hold (SPA)", "{:.3f}"),
}
INTERVALS: Mapping[str, tuple[str, str]] = {
    "mean_return": ("mean return of a bar", "{:+.5%}"),
    "sharpe": ("Sharpe ratio a year", RATIO),
    "cvar": ("CVaR 5 %, one bar", FINE_PERCENT),
    "max_drawdown": ("max drawdown", PERCENT),
}

DECISION_KINDS = {"promote": "good", "not proven": "warn", "reject": "bad"}
"""CSS class of each decision of a verdict."""

MARKS = {True: "✓", False: "✗", None: "?"}
"""Sign of a reason that holds, does not hold, or is not known."""

HOLDS_KINDS = {True: "good", False: "bad", None: "warn"}
"""CSS class of a reason that holds, does not hold, or is not known."""

_SURE = 0.95
_TWICE = 2.0
_BP = 1e4


class Figure(NamedTuple):
    """One metric as text."""

    text: str
    """The number, or why there is none."""
    interval: str
    """Empty where none was computed."""
    known: bool


def figure(statement: Statement | None, form: str) -> Figure:
    """Return a statement as text."""
    if statement is None:
        return Figure("not measured", "", known=False)
    if statement.value is None:
        return Figure(statement.reason, "", known=False)
    text = form.format(statement.value)
    if statement.low is None and statement.high is None:
        return Figure(text, "", known=True)
    ends = ["…" if end is None else form.format(end) for end in (statement.low, statement.high)]
    return Figure(text, f"[{ends[0]}, {ends[1]}]", known=True)


def cell(statement: Statement | None, form: str) -> str:
    """Return a statement as one text, with its interval; a dash without enough data."""
    if statement is not None and not statement.enough:
        return NONE
    shown = figure(statement, form)
    return f"{shown.text} {shown.interval}" if shown.interval else shown.text


def brief(statement: Statement | None, form: str) -> str:
    """Return a statement as one short text, for tables of many columns."""
    if statement is not None and not statement.enough:
        return NONE
    return figure(statement, form).text


def plain_figure(value: JsonValue, form: str) -> str:
    """Return a number that was saved without its data."""
    known = number(value)
    return "not defined" if known is None else form.format(known)


def kept_figure(metrics: Document, name: str, form: str) -> str:
    """Return one metric of a baseline or a stress scenario.

    Metrics of those are saved as plain numbers without reasons, but with the number of bars, from
    which follows whether there was enough data.
    """
    bars = number(metrics.get("bars"))
    needed = {"sharpe": MINIMUM_BARS, "cvar": needed_for_tail(TAIL)}.get(name, 1)
    if metrics.get(name) is None and bars is not None and bars < needed:
        return NONE
    return plain_figure(metrics.get(name), form)


def calibration_gap(result: Result) -> str:
    """Return why the critic's predictions cannot be judged; empty where they can, or were not.

    They can where at least one level of the predicted quantiles has enough windows.
    """
    document = result.part("calibration")
    if document is None:
        return ""
    if document.get("reason"):
        return str(document["reason"])
    shares = [
        statement_of(mapping(level).get("share")) for level in items(document.get("coverage"))
    ]
    known = [share for share in shares if share is not None]
    mean = statement_of(mapping(document.get("value")).get("realised"))
    if any(share.value is not None for share in known) or (not known and mean is not None):
        return ""
    short = [share for share in known if not share.enough]
    least = min(short, key=lambda share: share.needed, default=None)
    if least is None:
        return "no window has an outcome"
    return f"needs {least.needed:,} {least.unit}, found {least.found:,}"


def named(results: Sequence[Result], result: Result, text: str) -> str:
    """Return a text about one result, with its name in front where there are several."""
    return f"{result.name}: {text}" if len(results) > 1 else text


def hour(time: JsonValue) -> str:
    """Return an ISO time to the minute, with a blank for the `T`."""
    return str(time)[:16].replace("T", " ")


def worst_first(reasons: Iterable[Reason]) -> list[Reason]:
    """Return reasons in order: those that fail, those that are not known, those that hold."""
    return sorted(reasons, key=lambda reason: {False: 0, None: 1, True: 2}[reason.holds])


def summary_words(result: Result) -> str:
    """Return return, max drawdown and the return of buy and hold in one sentence or two."""
    total = _value(result, "total_return")
    if total is None:
        return "Nothing can be said: there is not a single bar."
    days = len(result.returns) * result.bar_ms / DAY_MS
    verb = "earned" if total > 0.0 else "lost"
    traded = _listed(result.symbols)
    drawdown = figure(result.metrics.get("max_drawdown"), "{:.2%}")
    words = (
        f"Over {len(result.returns):,} bars ({days:,.1f} days) of {traded} it {verb} "
        f"{abs(total):.2%} after all costs; the max drawdown was {drawdown.text.lstrip('-')}."
    )
    words += policy_words(result.document)
    holding = _baseline(result, "buy and hold", "total_return")
    return words if holding is None else f"{words} Buying and holding made {holding:+.2%}."


def policy_words(document: Document) -> str:
    """Return how the agents decided in one sentence; nothing where the document does not say."""
    runs = [mapping(run).get("policy") for run in items(document.get("runs"))]
    drawn = "sampled" in (*runs, document.get("policy"))
    likeliest = "greedy" in (*runs, document.get("policy"))
    if drawn and likeliest:
        count = runs.count("sampled")
        return f" {count} of {count + runs.count('greedy')} agents drew their actions, as judged."
    if drawn:
        return " Actions were drawn (sampled policy)."
    return " Actions were the likeliest ones (greedy policy)." if likeliest else ""


def charged_bp(result: Result) -> float | None:
    """Return the cost of trading in basis points of the traded notional; None without trades."""
    if not result.trades.num_rows:
        return None
    notional = float(
        np.abs(column(result.trades, "quantity") * column(result.trades, "price")).sum()
    )
    paid = float((column(result.trades, "fee") + column(result.trades, "slippage")).sum())
    return _BP * paid / notional if notional > 0.0 else None


def evidence(result: Result) -> list[Reason]:
    """Return what speaks for and against a backtest, which has no verdict of its own."""
    total = _value(result, "total_return") or 0.0
    return worst_first(
        [
            Reason("return", total > 0.0, f"Total return after costs: {total:+.2%}."),
            *_provenance(result),
            _against_holding(result),
            _significance(result),
            _after_costs(result),
            _tail(result),
        ]
    )


def _provenance(result: Result) -> list[Reason]:
    """Return what the span, the symbols and the ends of the accounts say against a backtest."""
    document = result.document
    texts = []
    if document.get("overlaps_training"):
        texts.append("The span overlaps the training span: this is no test.")
    if document.get("overlaps_validation"):
        texts.append("The span overlaps the bars on which the agent was chosen: it flatters.")
    if (number(document.get("liquidations")) or 0.0) > 0.0:
        texts.append(f"Liquidated {document.get('liquidations')} times.")
    if stopped := items(document.get("stopped_symbols")):
        texts.append(f"Stopped before the end: {_listed(stopped)}.")
    reasons = [Reason("provenance", holds=False, words=text) for text in texts]
    if delisted := items(document.get("delisted_symbols")):
        reasons.append(Reason("provenance", None, f"Delisted before the end: {_listed(delisted)}."))
    if unseen := items(document.get("unseen_symbols")):
        reasons.append(Reason("provenance", None, f"Not trained on: {_listed(unseen)}."))
    return reasons


def _against_holding(result: Result) -> Reason:
    own = _value(result, "total_return")
    holding = _baseline(result, "buy and hold", "total_return")
    if own is None or holding is None:
        return Reason("baselines", None, "Baselines: not measured; run with `--baselines`.")
    words = f"Against buy and hold: {own:+.2%} to {holding:+.2%}."
    return Reason("baselines", own > holding, words)


def _significance(result: Result) -> Reason:
    name = "significance"
    document = result.part(name)
    if document is None:
        return Reason(name, None, "Significance: not measured; run with `--significance`.")
    deflated = statement_of(document.get("deflated"))
    words = (
        f"Probability that the true Sharpe ratio is above 0 after {document.get('trials')} trials: "
        f"{figure(deflated, SHARE).text} (needed {_SURE:.0%})."
    )
    value = None if deflated is None else deflated.value
    return Reason(name, None if value is None else value >= _SURE, words)


def _after_costs(result: Result) -> Reason:
    costs = result.part("costs")
    charged = charged_bp(result)
    if costs is None:
        return Reason("costs", None, "Costs: not measured; run with `--costs`.")
    if charged is None:
        return Reason("costs", None, "Costs: nothing was traded.")
    even = mapping(mapping(costs.get("replay")).get("break_even"))
    most = number(even.get("cost_bp"))
    if most is None:
        low = number(even.get("low_bp")) or 0.0
        words = f"Break-even cost: {even.get('reason')}; charged {charged:.1f} bp."
        return Reason("costs", low >= _TWICE * charged, words)
    words = (
        f"Break-even cost {most:.1f} bp of notional; charged {charged:.1f} bp "
        f"(needed {_TWICE:g} times that)."
    )
    return Reason("costs", most >= _TWICE * charged, words)


def _tail(result: Result) -> Reason:
    document = result.part("calibration")
    if document is None:
        return Reason("tail", None, "Predicted tail: not measured; run with `--calibration`.")
    tail = mapping(document.get("tail"))
    gap = statement_of(tail.get("gap"))
    if gap is None or gap.value is None or gap.high is None:
        return Reason("tail", None, f"Predicted tail: {figure(gap, '{:+.3f}').text}.")
    realised, predicted = (
        figure(statement_of(tail.get(key)), FINE_PERCENT).text for key in ("realised", "predicted")
    )
    worse = gap.high < 0.0
    words = f"CVaR of a window: predicted {predicted}, realised {realised}"
    return Reason("tail", not worse, f"{words}; {'' if worse else 'not '}worse than predicted.")


def _value(result: Result, metric: str) -> float | None:
    statement = result.metrics.get(metric)
    return None if statement is None else statement.value


def _baseline(result: Result, name: str, metric: str) -> float | None:
    """Return a metric of a baseline, None where it was not measured."""
    baselines = result.part("baselines") or {}
    metrics = baselines.get(name) or baselines.get(name.replace(" ", "_"))
    return number(mapping(metrics).get(metric))


def _listed(names: Sequence[JsonValue] | Sequence[str]) -> str:
    """Return names in a row; many are counted."""
    most = 4
    shown = [str(name) for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
