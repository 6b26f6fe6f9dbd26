"""Sections of a report about robustness: folds, calibration, costs, stress, significance."""

from collections.abc import Sequence

from stormsail.evaluation.report.html import (
    NONE,
    chart,
    escape,
    folded,
    missing,
    note,
    section,
    table,
)
from stormsail.evaluation.report.robustness_charts import (
    MODES,
    costs_figure,
    coverage_figure,
    fan_figure,
    forecast_figure,
    forecast_of,
    pit_figure,
    stress_figure,
)
from stormsail.evaluation.report.sections import (
    SIDE_BY_SIDE,
    heading,
    kept_figures,
    per_result,
    reasons,
)
from stormsail.evaluation.report.words import (
    FIGURES,
    FINE_PERCENT,
    INTERVALS,
    SIGNIFICANCE,
    brief,
    calibration_gap,
    cell,
    charged_bp,
    named,
    plain_figure,
)
from stormsail.evaluation.saved import Document, Result, items, mapping, number, statement_of
from stormsail.evaluation.walk_forward.verdict import Reason

_RUN_METRICS = ("total_return", "sharpe", "max_drawdown", "cvar")
_RUN_TITLES = ("fold", "seed", "tested on", "return", "Sharpe", "max drawdown", "CVaR", "status")


def folds_section(results: Sequence[Result]) -> str:
    """Return folds, seeds and self-tests of the validations; empty where there is none."""
    body = ""
    for place, result in enumerate(results):
        if result.kind == "validation":
            head = heading(result, place) if len(results) > 1 else ""
            body += f"{head}{_runs(result)}{note(_test_span(result))}<h3>Self-tests</h3>"
            body += _self_tests(result) or missing("no self-test was run")
    lead = "Every fold was trained anew on the bars before it; nothing here was seen in training."
    return section("folds", "Folds, seeds and self-tests", body, lead=lead) if body else ""


def _runs(result: Result) -> str:
    """Return a row for each fold and seed."""
    folds = [mapping(fold) for fold in items(result.document.get("folds"))]
    tested = {fold.get("number"): items(fold.get("test")) for fold in folds}
    rows, kinds = [], []
    for run in (mapping(each) for each in items(result.document.get("runs"))):
        finished = run.get("status") == "finished"
        metrics = mapping(run.get("metrics"))
        cells = [
            brief(statement_of(metrics.get(name)), FIGURES[name][1]) if finished else NONE
            for name in _RUN_METRICS
        ]
        when = " to ".join(str(day)[:10] for day in tested.get(run.get("fold"), []))
        status = "finished" if finished else f"failed: {run.get('reason')}"
        rows.append([f"{run.get('fold')}", f"{run.get('seed')}", when, *cells, status])
        kinds.append("" if finished else "bad")
    return table(_RUN_TITLES, rows, kinds=kinds, classes="nowrap")


def _test_span(result: Result) -> str:
    document = result.document
    span = mapping(document.get("test_span"))
    days = " to ".join(str(span.get(end))[:10] for end in ("start", "end"))
    opened = f"opened {span.get('openings')} time(s)" if span.get("opened") else "never opened"
    embargo = f"Embargo: {document.get('embargo_bars')} bars. {document.get('purged') or ''}"
    return f"Final test span: {days}, {span.get('bars')} bars, {opened}. {embargo}"


def _self_tests(result: Result) -> str:
    return reasons(
        [Reason(test.name, test.holds, f"{test.name}: {test.words}") for test in result.self_tests]
    )


def _with(results: Sequence[Result], part: str) -> list[tuple[str, int, Document]]:
    """Return name, place and document of the results that have it."""
    parts = ((result.name, place, result.part(part)) for place, result in enumerate(results))
    return [(name, place, document) for name, place, document in parts if document is not None]


def calibration_section(results: Sequence[Result]) -> str:
    """Return the calibration of predictions, drawn where there are windows enough to judge it.

    Where there are too few, one box says so; empty where nothing was measured.
    """
    known = _with(results, "calibration")
    if not known:
        return ""
    judged, body = [], ""
    for name, place, document in known:
        gap = calibration_gap(results[place])
        if gap:
            words = f"The critic's predictions cannot be judged: {gap}."
            body += missing(named(results, results[place], words))
        else:
            judged.append((name, place, document))
    covered, spread = coverage_figure(judged), pit_figure(judged)
    charts = ""
    if len(covered["data"]) > 1:
        words = (
            "On the dashed line the critic is right; below it, outcomes were better than predicted."
        )
        charts += f"<div>{chart('coverage-chart', covered, height=280, caption=words)}</div>"
    if judged and spread["data"]:
        words = (
            "Level of each outcome in the predicted distribution (PIT): flat at 1 if it is right."
        )
        charts += f"<div>{chart('pit-chart', spread, height=280, caption=words)}</div>"
    body += f'<div class="pair">{charts}</div>' if charts else ""
    for name, place, document in judged:
        title = f"<h3>{escape(name)}</h3>" if len(results) > 1 else ""
        body += title + _forecast(results[place], document, place) + _calibration(document)
    lead = (
        "Does the critic know its own tail? Predicted distributions against outcomes it never saw."
    )
    return section("calibration", "Calibration", body, lead=lead)


def _forecast(result: Result, calibration: Document, place: int) -> str:
    """Return the predicted against the realised distribution of windows, where it is known."""
    forecast = forecast_of(result)
    if forecast is None:
        return ""
    words = (
        f"Growth over {calibration.get('horizon_bars')} bars, discounted by "
        f"{calibration.get('discount')} a bar as the critic does: realised, and the mean of "
        "the distributions that the critic predicted."
    )
    picture = forecast_figure(forecast, mapping(calibration.get("tail")), place)
    return chart(f"forecast-{place}", picture, height=260, caption=words)


def _calibration(document: Document) -> str:
    by_regime = mapping(document.get("by_regime"))
    regimes = {"all": document, **{name: mapping(each) for name, each in by_regime.items()}}
    rows = []
    for name, regime in regimes.items():
        tail, pit = mapping(regime.get("tail")), mapping(regime.get("pit"))
        tails = [
            cell(statement_of(tail.get(key)), FINE_PERCENT)
            for key in ("predicted", "realised", "gap")
        ]
        counts = [plain_figure(regime.get(key), "{:,.0f}") for key in ("windows", "independent")]
        rows.append([name, *counts, *tails, cell(statement_of(pit.get("uniformity")), "{:.3f}")])
    titles = [
        "regime",
        "windows",
        "independent",
        "CVaR predicted",
        "realised at the predicted VaR",
        "gap",
        "p of a flat PIT",
    ]
    explained = [document.get("what"), document.get("regimes")]
    notes = "".join(note(str(text)) for text in explained if text)
    described = folded("What is compared", notes, paper=False)
    return table(titles, rows) + described + _conformal(document)


def _conformal(document: Document) -> str:
    """Return the conformal correction of each quantile, where one was fitted."""
    conformal = mapping(document.get("conformal"))
    if not conformal:
        return ""
    levels, shifts = items(conformal.get("levels")), items(conformal.get("shifts"))
    rows = [
        [f"{number(level) or 0.0:.3g}", cell(statement_of(shift), "{:+.5f}")]
        for level, shift in zip(levels, shifts, strict=False)
    ]
    return folded(
        f"Conformal correction, fitted on {conformal.get('windows')} windows",
        table(["level", "add to the quantile"], rows),
    )


def costs_section(results: Sequence[Result]) -> str:
    """Return the total return at other costs, and the break-even cost."""
    known, body = _with(results, "costs"), ""
    charged = [charged_bp(result) for result in results]
    picture = costs_figure([(name, place, costs, charged[place]) for name, place, costs in known])
    if picture["data"]:
        words = "Total return if every fill had cost this much, all in."
        body += chart("costs-chart", picture, height=280, caption=words)
    rows = []
    for name, place, costs in known:
        for mode, words in MODES.items():
            if mode not in costs:
                continue
            even = mapping(mapping(costs[mode]).get("break_even"))
            at, paid = number(even.get("cost_bp")), charged[place]
            rows.append(
                [
                    f"{name}: {words}" if len(results) > 1 else words,
                    f"{at:.2f} bp" if at is not None else str(even.get("reason")),
                    "nothing traded" if paid is None else f"{paid:.2f} bp",
                ]
            )
    if rows:
        body += table(["", "break-even cost", "charged on average"], rows)
    return section("costs", "Costs", body) if body else ""


def stress_section(results: Sequence[Result]) -> str:
    """Return the total return and the main metrics of each stress scenario."""
    known, body = _with(results, "stress"), ""
    if known:
        rows = max(len(scenarios) for _, _, scenarios in known) * len(known)
        body += chart("stress-chart", stress_figure(known), height=70 + 24 * rows)
        for name, _, scenarios in known:
            if len(results) > 1:
                body += f"<h3>{escape(name)}</h3>"
            lines = [[scenario, *kept_figures(each)] for scenario, each in scenarios.items()]
            body += table(["scenario", *(title for title, _ in SIDE_BY_SIDE.values())], lines)
    lead = "Crashes, wider spreads, late orders and bad data; the agent sees it and decides anew."
    return section("stress", "Stress", body, lead=lead) if body else ""


def significance_section(results: Sequence[Result]) -> str:
    """Return tests of significance: bootstrap, deflated Sharpe ratio, benchmark, overfitting."""
    lead = (
        "Bars are resampled in blocks, in other orders: the fan shows where equity could as well "
        "have gone. More trials make a good result less significant."
    )
    known = [result for result in results if result.part("significance") is not None]
    if not known:
        return ""
    body = per_result(known, _significance)
    return section("significance", "Significance", body, lead=lead)


def _significance(result: Result, place: int) -> str:
    document = result.part("significance") or {}
    fan = mapping(document.get("fan"))
    if items(fan.get("ts")):
        picture = chart(f"fan-{place}", fan_figure(result, fan, place), height=280)
    else:
        picture = ""
    rows = [
        [title, cell(statement_of(document.get(name)), form)]
        for name, (title, form) in SIGNIFICANCE.items()
    ]
    intervals = mapping(document.get("intervals"))
    rows += [
        [f"{title}, resampled", cell(statement_of(intervals.get(name)), form)]
        for name, (title, form) in INTERVALS.items()
        if name in intervals
    ]
    rows.append(["number of trials", f"{document.get('trials')}"])
    block = number(intervals.get("block"))
    if block is not None:
        rows.append(["mean length of a block", f"{block:,.4g} bars"])
    return picture + table(["", "value and 95 % interval"], rows)
