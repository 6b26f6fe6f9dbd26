"""The report of backtests and validations: one HTML page, the verdict first, then the evidence.

It is a function of saved results, runs (`evaluation.saved`), populations and searches alone: the
same input gives the same bytes, without a time of day in it, and the page loads nothing.
"""

from collections.abc import Sequence

from stormsail.core.errors import RangeError
from stormsail.evaluation.populations import SavedPopulation
from stormsail.evaluation.report.attack_section import attack_section
from stormsail.evaluation.report.html import escape, header, page
from stormsail.evaluation.report.parity_section import parity_section
from stormsail.evaluation.report.performance_sections import performance_section
from stormsail.evaluation.report.population_section import population_section
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
from stormsail.evaluation.report.search_section import search_section
from stormsail.evaluation.report.sections import (
    drawing_words,
    equity_section,
    figures_section,
    position_section,
    returns_section,
    rolling_section,
)
from stormsail.evaluation.report.verdict_sections import (
    gaps_section,
    rules_section,
    verdict_section,
)
from stormsail.evaluation.saved import Result, SavedAttack, SavedParity, TrainingRun
from stormsail.evaluation.searches import SavedSearch

ATTACKED, BRED, SEARCHED, TRAINED = "robustness", "population", "search", "training"
TRADED = "parity"

CONTENTS = (
    ("verdict", "Verdict", verdict_section),
    ("rules", "Rules", rules_section),
    ("figures", "Figures", figures_section),
    ("performance", "Performance", performance_section),
    ("equity", "Equity", equity_section),
    ("folds", "Folds", folds_section),
    ("position", "Position", position_section),
    ("returns", "Returns", returns_section),
    ("calibration", "Calibration", calibration_section),
    ("rolling", "Rolling risk", rolling_section),
    ("costs", "Costs", costs_section),
    ("stress", "Stress", stress_section),
    ("significance", "Significance", significance_section),
    (ATTACKED, "Robustness", None),
    (TRADED, "Parity", None),
    (SEARCHED, "Search", None),
    (BRED, "Population", None),
    (TRAINED, "Training", None),
    ("trades", "Trades", trades_section),
    ("gaps", "Gaps", gaps_section),
    ("origin", "Origin", origin_section),
)
"""Sections in order: identifier, title in the menu, and builder from results. Robustness is built
from attacks, parity from traded accounts, search from searches, population from populations and
training from runs."""


def report_page(
    results: Sequence[Result],
    runs: Sequence[TrainingRun] = (),
    attacks: Sequence[SavedAttack] = (),
    populations: Sequence[SavedPopulation] = (),
    searches: Sequence[SavedSearch] = (),
    parities: Sequence[SavedParity] = (),
) -> str:
    """Return the page of one result, of several on the same axes, or of other folders alone.

    Args:
        results: backtests and validations; the first that has baselines shows them. Without any,
            the sections about results are left out.
        runs: trainings whose curves are shown.
        attacks: robustness curves; without any there is no such section.
        populations: whose lineage is shown; without any there is no such section.
        searches: whose trials are shown; without any there is no such section.
        parities: traded accounts beside their backtests; without any there is no such section.

    Raises:
        RangeError: if there is no result, population, search, run or parity.
    """
    if not (results or populations or searches or runs or parities):
        raise RangeError(
            wrong="a report must have at least one result, population, search or run",
            found="none",
            remedy="Pass what `read_results`, `read_population`, `read_search` or `read_run` "
            "returns.",
        )
    sections = {name: build(results) for name, _, build in CONTENTS if build and results}
    sections |= {ATTACKED: attack_section(attacks), BRED: population_section(populations)}
    sections[SEARCHED], sections[TRADED] = search_section(searches), parity_section(parities)
    sections[TRAINED] = training_section(runs) if runs else ""
    shown = [(name, title) for name, title, _ in CONTENTS if sections.get(name)]
    searched = [*(each.name for each in populations), *(each.name for each in searches)]
    names = [each.name for each in results] or searched or [each.name for each in runs]
    names = names or [each.name for each in parities]
    title = " · ".join(names)
    other = "population-based training" if populations else "training"
    other = other if populations or not searches else "search over settings"
    top = header(title, _subtitle(results) if results else other, shown)
    foot = f"<footer><p>{escape(_footer(results))}</p></footer>"
    body = f"{top}<main>{''.join(sections[name] for name, _ in shown)}</main>{foot}"
    return page(f"{title} · stormsail report", body)


def _subtitle(results: Sequence[Result]) -> str:
    first = results[0]
    symbols = ", ".join(first.symbols[:4]) + (" and more" if len(first.symbols) > 4 else "")
    kinds = " and ".join(dict.fromkeys(result.kind for result in results))
    start, end = str(first.document.get("first_bar"))[:10], str(first.document.get("end"))[:10]
    return f"{kinds} · {symbols} · {first.document.get('interval')} bars · {start} to {end}"


def _footer(results: Sequence[Result]) -> str:
    words = "Made by stormsail from saved results alone; this page loads nothing from anywhere. "
    return words + drawing_words(results)
