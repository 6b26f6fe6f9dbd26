"""Words of a report: figures with their intervals, verdicts, and what speaks for and against.

A figure without enough data is never shown as a number: it says how much it needs and how much
there is.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.report.results import Document, Result, column, items, mapping, number
from stormsail.evaluation.report.series import TAIL
from stormsail.evaluation.stats.figures import DAY_MS
from stormsail.evaluation.stats.statement import MINIMUM_BARS, needed_for_tail

PERCENT, FINE_PERCENT, RATIO, MONEY = "{:+,.2%}", "{:+.3%}", "{:,.2f}", "{:,.2f}"
SHARE = "{:.1%}"

FIGURES: Mapping[str, tuple[str, str]] = {
    "total_return": ("total return", PERCENT),
    "annual_return": ("annual return", PERCENT),
    "volatility": ("volatility a year", SHARE),
    "sharpe": ("Sharpe ratio", RATIO),
    "sortino": ("Sortino ratio", RATIO),
    "calmar": ("Calmar ratio", RATIO),
    "drawdown": ("deepest fall", PERCENT),
    "value_at_risk": ("value at risk 5 %, one bar", FINE_PERCENT),
    "cvar": ("CVaR 5 %, one bar", FINE_PERCENT),
    "skew": ("skew", RATIO),
    "turnover": ("turnover a day", "{:.2f}"),
    "exposure": ("mean exposure", SHARE),
    "time_in_market": ("time in the market", SHARE),
    "fees": ("fees", MONEY),
    "funding": ("funding paid", MONEY),
    "slippage": ("slippage", MONEY),
    "win_rate": ("win rate, Wilson", SHARE),
    "win_rate_exact": ("win rate, Clopper-Pearson", SHARE),
    "profit_factor": ("profit factor", RATIO),
}
"""Title and form of every metric, in the order of the table."""

TILES = ("total_return", "sharpe", "drawdown", "cvar", "turnover", "fees")
"""Figures that stand at the top."""

LUCK: Mapping[str, tuple[str, str]] = {
    "probabilistic": ("probability that the true Sharpe ratio is above 0", SHARE),
    "deflated": ("the same after the number of trials (deflated)", SHARE),
    "expected_maximum": ("Sharpe ratio a bar that the best of as many blanks reaches", "{:.4f}"),
    "track_record": ("bars needed to believe the Sharpe ratio at 95 %", "{:,.0f}"),
    "overfitting": ("probability of backtest overfitting", SHARE),
    "superiority": ("p-value against buy and hold (SPA)", "{:.3f}"),
}
INTERVALS: Mapping[str, tuple[str, str]] = {
    "mean_return": ("mean return of a bar", "{:+.5%}"),
    "sharpe": ("Sharpe ratio a year", RATIO),
    "cvar": ("CVaR 5 %, one bar", FINE_PERCENT),
    "drawdown": ("deepest fall", PERCENT),
}

_SURE = 0.95
_TWICE = 2.0
_BP = 1e4


class Figure(NamedTuple):
    """One figure in words."""

    text: str
    """The number, or why there is none."""
    interval: str
    """Empty where none was computed."""
    known: bool


def figure(statement: JsonValue, form: str) -> Figure:
    """Return a saved statement in words."""
    if statement is None:
        return Figure("not measured", "", known=False)
    told = mapping(statement)
    value = number(told.get("value"))
    if value is None:
        reason = told.get("reason")
        return Figure(str(reason) if reason else "not defined for this data", "", known=False)
    low, high = number(told.get("low")), number(told.get("high"))
    if low is None and high is None:
        return Figure(form.format(value), "", known=True)
    ends = ["…" if end is None else form.format(end) for end in (low, high)]
    return Figure(form.format(value), f"[{ends[0]}, {ends[1]}]", known=True)


def cell(statement: JsonValue, form: str) -> str:
    """Return a saved statement as one text, with its interval."""
    told = figure(statement, form)
    return f"{told.text} {told.interval}" if told.interval else told.text


def brief(statement: JsonValue, form: str) -> str:
    """Return a saved statement as one short text, for tables of many columns."""
    told = mapping(statement)
    needed, found = number(told.get("needed")), number(told.get("found"))
    if told.get("value") is None and needed is not None and found is not None and found < needed:
        return f"needs {needed:.0f}, has {found:.0f}"
    return figure(statement, form).text


def plain_figure(value: JsonValue, form: str) -> str:
    """Return a number that came without its data."""
    known = number(value)
    return "not defined" if known is None else form.format(known)


def kept_figure(found: Document, name: str, form: str) -> str:
    """Return one of the figures that are kept of a baseline or a scenario, with its bars.

    They are kept without their reasons, but what each needs is known.
    """
    bars = number(found.get("bars"))
    needed = {"sharpe": MINIMUM_BARS, "cvar": needed_for_tail(TAIL)}.get(name, 1)
    if found.get(name) is None and bars is not None and bars < needed:
        return f"needs {needed} bars, found {bars:.0f}"
    return plain_figure(found.get(name), form)


def not_measured(result: Result, part: str) -> str:
    """Return what stands where a document is missing, and how to get it."""
    if result.kind == "validation":
        return f"not measured: `{part}` was switched off in this validation"
    return f"not measured: run with `--{part}`"


def named(results: Sequence[Result], result: Result, text: str) -> str:
    """Return words about one result; with others beside it, they begin with its name."""
    return f"{result.name}: {text}" if len(results) > 1 else text


def hour(time: JsonValue) -> str:
    """Return an ISO time to the minute, as it is read best."""
    return str(time)[:16].replace("T", " ")


class Reason(NamedTuple):
    """One thing that speaks for or against a result."""

    holds: bool | None
    """None where it is not known."""
    words: str

    @property
    def kind(self) -> str:
        """Class of its look."""
        return {True: "good", False: "bad", None: "warn"}[self.holds]


class Verdict(NamedTuple):
    """What a reader should take away."""

    decision: str
    kind: str
    words: str
    reasons: tuple[Reason, ...]


_LOOKS = {"promote": "good", "not proven": "warn", "reject": "bad"}


def told_verdict(document: Document) -> Verdict:
    """Return the verdict of a validation, as it was decided there."""
    decision = str(document.get("decision", "not known"))
    reasons = []
    for one in items(document.get("reasons")):
        entry = mapping(one)
        holds = entry.get("holds")
        words = f"{entry.get('words', '')}" or str(entry.get("name", ""))
        reasons.append(Reason(holds if isinstance(holds, bool) else None, words))
    return Verdict(
        decision,
        _LOOKS.get(decision, "info"),
        str(document.get("words", "")),
        tuple(sorted(reasons, key=lambda one: {False: 0, None: 1, True: 2}[one.holds])),
    )


def verdict_of(result: Result) -> Verdict:
    """Return the verdict of a validation; of a backtest, what it says and that it is none."""
    if result.kind == "validation":
        return told_verdict(mapping(result.document.get("verdict")))
    return Verdict(
        "no verdict",
        "info",
        f"{summary_words(result)} One backtest proves nothing by itself: `stormsail validate` "
        "retrains, tests out of sample and decides.",
        tuple(_evidence(result)),
    )


def summary_words(result: Result) -> str:
    """Return in one sentence or two what was earned and risked."""
    total = number(mapping(result.metrics.get("total_return")).get("value"))
    if total is None:
        return "Nothing can be said: there is not a single bar."
    days = len(result.returns) * result.bar_ms / DAY_MS
    verb = "earned" if total > 0.0 else "lost"
    traded = _listed(result.symbols)
    fall = figure(result.metrics.get("drawdown"), "{:.2%}")
    words = (
        f"Over {len(result.returns):,} bars ({days:,.1f} days) of {traded} it {verb} "
        f"{abs(total):.2%} after all costs; the deepest fall was {fall.text.lstrip('-')}."
    )
    holding = _rival(result, "buy and hold", "total_return")
    return words if holding is None else f"{words} Buying and holding made {holding:+.2%}."


def charged_bp(result: Result) -> float | None:
    """Return what trading cost, in basis points of the traded notional; None without trades."""
    if not result.trades.num_rows:
        return None
    notional = float(
        np.abs(column(result.trades, "quantity") * column(result.trades, "price")).sum()
    )
    paid = float((column(result.trades, "fee") + column(result.trades, "slippage")).sum())
    return _BP * paid / notional if notional > 0.0 else None


def _evidence(result: Result) -> list[Reason]:
    """Return what speaks for and against a backtest."""
    total = number(mapping(result.metrics.get("total_return")).get("value")) or 0.0
    reasons = [Reason(total > 0.0, f"Total return after costs: {total:+.2%}.")]
    reasons += [*_origin(result), _against_holding(result), _by_luck(result)]
    reasons += [_after_costs(result), _tail(result)]
    return sorted(reasons, key=lambda one: {False: 0, None: 1, True: 2}[one.holds])


def _origin(result: Result) -> list[Reason]:
    told = result.document
    found = []
    if told.get("overlaps_training"):
        found.append(
            Reason(holds=False, words="The span overlaps the training span: this is no test.")
        )
    if told.get("overlaps_validation"):
        found.append(
            Reason(
                holds=False,
                words="The span overlaps the bars on which the agent was chosen: it flatters.",
            )
        )
    if (number(told.get("liquidations")) or 0.0) > 0.0:
        found.append(Reason(holds=False, words=f"Liquidated {told.get('liquidations')} times."))
    if stopped := items(told.get("stopped_symbols")):
        found.append(Reason(holds=False, words=f"Stopped before the end: {_listed(stopped)}."))
    if unseen := items(told.get("unseen_symbols")):
        found.append(Reason(None, f"Not trained on: {_listed(unseen)}."))
    return found


def _against_holding(result: Result) -> Reason:
    own = number(mapping(result.metrics.get("total_return")).get("value"))
    holding = _rival(result, "buy and hold", "total_return")
    if own is None or holding is None:
        return Reason(None, "Rivals: not measured; run with `--baselines`.")
    return Reason(own > holding, f"Against buy and hold: {own:+.2%} to {holding:+.2%}.")


def _by_luck(result: Result) -> Reason:
    luck = result.part("luck")
    if luck is None:
        return Reason(None, "Luck: not measured; run with `--luck`.")
    told = figure(luck.get("deflated"), SHARE)
    words = (
        f"Probability that the Sharpe ratio is no luck after {luck.get('trials')} trials: "
        f"{told.text} (needed {_SURE:.0%})."
    )
    value = number(mapping(luck.get("deflated")).get("value"))
    return Reason(None if value is None else value >= _SURE, words)


def _after_costs(result: Result) -> Reason:
    costs = result.part("costs")
    charged = charged_bp(result)
    if costs is None:
        return Reason(None, "Costs: not measured; run with `--costs`.")
    if charged is None:
        return Reason(None, "Costs: nothing was traded.")
    even = mapping(mapping(costs.get("replay")).get("break_even"))
    most = number(even.get("cost_bp"))
    if most is None:
        words = str(even.get("reason"))
        low = number(even.get("low_bp")) or 0.0
        return Reason(
            low >= _TWICE * charged, f"Break-even cost: {words}; charged {charged:.1f} bp."
        )
    return Reason(
        most >= _TWICE * charged,
        f"Break-even cost {most:.1f} bp of notional; charged {charged:.1f} bp "
        f"(needed {_TWICE:g} times that).",
    )


def _tail(result: Result) -> Reason:
    told = result.part("calibration")
    if told is None:
        return Reason(None, "Predicted tail: not measured; run with `--calibration`.")
    tail = mapping(told.get("tail"))
    gap = mapping(tail.get("gap"))
    high = number(gap.get("high"))
    if number(gap.get("value")) is None or high is None:
        reason = figure(tail.get("gap"), "{:+.3f}").text
        return Reason(None, f"Predicted tail: {reason}.")
    came, promised = (
        figure(tail.get(name), FINE_PERCENT).text for name in ("realised", "predicted")
    )
    worse = high < 0.0
    words = f"CVaR of a window: predicted {promised}, realised {came}"
    return Reason(
        not worse, f"{words}; {'worse than promised' if worse else 'not worse than promised'}."
    )


def _rival(result: Result, name: str, metric: str) -> float | None:
    rivals = result.part("baselines")
    if rivals is None:
        return None
    found = rivals.get(name) or rivals.get(name.replace(" ", "_"))
    return number(mapping(found).get(metric))


def _listed(names: Sequence[JsonValue] | Sequence[str]) -> str:
    """Return names in a row; many are counted."""
    most = 4
    shown = [str(one) for one in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
