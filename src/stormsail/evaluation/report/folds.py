"""The section of a report about how a validation was made: folds, seeds, self-tests, test span."""

from collections.abc import Sequence

from stormsail.evaluation.report.html import NONE, missing, note, section, table
from stormsail.evaluation.report.results import Result, items, mapping
from stormsail.evaluation.report.sections import heading, reasons
from stormsail.evaluation.report.words import FIGURES, Reason, brief

_SHOWN = ("total_return", "sharpe", "drawdown", "cvar")
_TITLES = ("fold", "seed", "tested on", "return", "Sharpe", "deepest fall", "CVaR", "status")


def folds_section(results: Sequence[Result]) -> str:
    """Return folds, seeds and self-tests of the validations; empty where there is none."""
    body = ""
    for place, one in enumerate(results):
        if one.kind == "validation":
            head = heading(one, place) if len(results) > 1 else ""
            body += f"{head}{_runs(one)}{note(_test_span(one))}<h3>Self-tests</h3>{_proofs(one)}"
    lead = "Every fold was trained anew on the bars before it; nothing here was seen in training."
    return section("folds", "Folds, seeds and self-tests", body, lead=lead) if body else ""


def _runs(result: Result) -> str:
    """Return a row for each fold and seed."""
    folds = [mapping(one) for one in items(result.document.get("folds"))]
    tested = {one.get("number"): items(one.get("test")) for one in folds}
    rows, kinds = [], []
    for run in (mapping(one) for one in items(result.document.get("runs"))):
        finished = run.get("status") == "finished"
        metrics = mapping(run.get("metrics"))
        found = [
            brief(metrics.get(name), FIGURES[name][1]) if finished else NONE for name in _SHOWN
        ]
        when = " to ".join(str(day)[:10] for day in tested.get(run.get("fold"), []))
        status = "finished" if finished else f"failed: {run.get('reason')}"
        rows.append([f"{run.get('fold')}", f"{run.get('seed')}", when, *found, status])
        kinds.append("" if finished else "bad")
    return table(_TITLES, rows, kinds=kinds, classes="nowrap")


def _test_span(result: Result) -> str:
    told = result.document
    span = mapping(told.get("test_span"))
    days = " to ".join(str(span.get(end))[:10] for end in ("start", "end"))
    opened = f"opened {span.get('openings')} time(s)" if span.get("opened") else "never opened"
    embargo = f"Embargo: {told.get('embargo_bars')} bars. {told.get('purged') or ''}"
    return f"Final test span: {days}, {span.get('bars')} bars, {opened}. {embargo}"


def _proofs(result: Result) -> str:
    found = []
    for one in (mapping(each) for each in items(result.document.get("self_tests"))):
        held = one.get("holds")
        words = f"{one.get('name')}: {one.get('words')}"
        found.append(Reason(held if isinstance(held, bool) else None, words))
    return reasons(found) or missing("no self-test was run")
