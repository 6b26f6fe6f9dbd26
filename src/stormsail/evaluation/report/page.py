"""The report of backtests and validations: one HTML page, the verdict first, then the evidence.

It is a function of saved results and runs (`evaluation.saved`) alone: the same input gives the same
bytes, without a time of day in it, and the page loads nothing.
"""

from collections.abc import Sequence

from stormsail.core.errors import RangeError
from stormsail.evaluation.report.html import escape, header, page, plotly_script
from stormsail.evaluation.report.provenance_sections import (
    origin_section,
    trades_section,
    training_section,
)
from stormsail.evaluation.report.robustness_sections import (
    calibration_section,
    costs_section,
    folds_section,
    significance_section,
    stress_section,
)
from stormsail.evaluation.report.sections import (
    drawing_words,
    equity_section,
    figures_section,
    position_section,
    returns_section,
    rolling_section,
    verdict_section,
)
from stormsail.evaluation.saved import Result, TrainingRun

CONTENTS = (
    ("verdict", "Verdict"),
    ("figures", "Figures"),
    ("equity", "Equity"),
    ("folds", "Folds"),
    ("position", "Position"),
    ("returns", "Returns"),
    ("calibration", "Calibration"),
    ("rolling", "Rolling risk"),
    ("costs", "Costs"),
    ("stress", "Stress"),
    ("significance", "Significance"),
    ("training", "Training"),
    ("trades", "Trades"),
    ("origin", "Origin"),
)
"""Sections in order: identifier and title in the menu."""


def report_page(results: Sequence[Result], runs: Sequence[TrainingRun] = ()) -> str:
    """Return the page of one result, or of several on the same axes.

    Args:
        results: backtests and validations, at least one; the first that has baselines shows them.
        runs: trainings whose curves are shown.

    Raises:
        RangeError: if there is no result.
    """
    if not results:
        raise RangeError(
            wrong="a report must have at least one result",
            found="none",
            remedy="Pass what `read_results` returns.",
        )
    sections = {
        "verdict": verdict_section(results),
        "figures": figures_section(results),
        "equity": equity_section(results),
        "folds": folds_section(results),
        "position": position_section(results),
        "returns": returns_section(results),
        "calibration": calibration_section(results),
        "rolling": rolling_section(results),
        "costs": costs_section(results),
        "stress": stress_section(results),
        "significance": significance_section(results),
        "training": training_section(runs),
        "trades": trades_section(results),
        "origin": origin_section(results),
    }
    shown = [(name, title) for name, title in CONTENTS if sections[name]]
    title = " · ".join(result.name for result in results)
    top = header(title, _subtitle(results), shown)
    foot = f"<footer><p>{escape(_footer(results))}</p></footer>"
    body = f"{top}<main>{''.join(sections[name] for name, _ in shown)}</main>{foot}"
    return page(f"{title} · stormsail report", body, scripts=[plotly_script()])


def _subtitle(results: Sequence[Result]) -> str:
    first = results[0]
    symbols = ", ".join(first.symbols[:4]) + (" and more" if len(first.symbols) > 4 else "")
    kinds = " and ".join(dict.fromkeys(result.kind for result in results))
    start, end = str(first.document.get("first_bar"))[:10], str(first.document.get("end"))[:10]
    return f"{kinds} · {symbols} · {first.document.get('interval')} bars · {start} to {end}"


def _footer(results: Sequence[Result]) -> str:
    words = "Made by stormsail from saved results alone; this page loads nothing from anywhere. "
    return words + drawing_words(results)
