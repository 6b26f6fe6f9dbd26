"""A report from folders: each is read as what it is, and the page is made of all of them."""

from collections.abc import Sequence
from pathlib import Path

from stormsail.evaluation.attack.files import KIND as ATTACK
from stormsail.evaluation.populations import is_population, read_population
from stormsail.evaluation.report.page import report_page
from stormsail.evaluation.saved import (
    PARITY,
    RUN,
    kind_of,
    names_of,
    read_attack,
    read_parity,
    read_results,
    read_run,
)
from stormsail.evaluation.searches import is_search, read_search


def report_of(folders: Sequence[Path], runs: Sequence[Path] = ()) -> str:
    """Return the page about saved results.

    Args:
        folders: of backtests, validations, populations, searches, attacks, parities and runs.
        runs: further folders of runs, for their curves and alarms.

    Raises:
        ArtifactError: if a folder is missing, damaged, or something else.
        DataError: if the metrics or the events of a run cannot be read.
        RangeError: if there are only attacks.
    """
    trained = [*runs, *(path for path in folders if kind_of(path) == RUN)]
    attacked = [path for path in folders if kind_of(path) == ATTACK]
    bred = [path for path in folders if is_population(path)]
    searched = [path for path in folders if is_search(path)]
    traded = [path for path in folders if kind_of(path) == PARITY]
    others = (*trained, *attacked, *bred, *searched, *traded)
    judged = [path for path in folders if path not in others]
    return report_page(
        read_results(judged),
        [read_run(path, name=name) for path, name in zip(trained, names_of(trained), strict=True)],
        [read_attack(*pair) for pair in zip(attacked, names_of(attacked), strict=True)],
        [read_population(*pair) for pair in zip(bred, names_of(bred), strict=True)],
        [read_search(*pair) for pair in zip(searched, names_of(searched), strict=True)],
        [read_parity(*pair) for pair in zip(traded, names_of(traded), strict=True)],
    )
