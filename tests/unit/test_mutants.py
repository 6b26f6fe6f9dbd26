"""The table of planted bugs fits the code it is planted in."""

from collections import Counter
from dataclasses import replace

from mutants.harness import PACKAGE, functions
from mutants.table import MUTANTS


def exists(test):
    path, _, name = test.partition("::")
    return name.partition("[")[0] in functions(path)


def problems_of(mutant):
    """Return why a mutant could not be planted or would prove nothing."""
    path = PACKAGE / mutant.file
    places = path.read_text().count(mutant.old) if path.is_file() else 0
    faults = {
        f"there is no {mutant.file}": not path.is_file(),
        f"its snippet stands {places} times in {mutant.file}": places != 1,
        "it changes nothing": mutant.new == mutant.old,
        "it names no test": not mutant.tests,
    } | {f"there is no {test}": not exists(test) for test in mutant.tests}
    return [f"{mutant.name}: {fault}" for fault, holds in faults.items() if holds]


def test_every_mutant_stands_exactly_once_in_its_file_and_is_a_change():
    problems = [problem for mutant in MUTANTS for problem in problems_of(mutant)]
    assert not problems, "\n".join(problems)


def test_names_are_unique():
    names = Counter(mutant.name for mutant in MUTANTS)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_mutant_that_does_not_fit_is_noticed():
    good = MUTANTS[0]
    assert problems_of(good) == []
    for change, problem in (
        ({"file": "nowhere.py"}, "there is no nowhere.py"),
        ({"old": "not a line of this file"}, f"its snippet stands 0 times in {good.file}"),
        ({"old": good.new}, "it changes nothing"),
        ({"tests": ()}, "it names no test"),
        ({"tests": ("tests/conftest.py::test_it",)}, "there is no tests/conftest.py::test_it"),
        ({"tests": ("tests/none.py::test_it",)}, "there is no tests/none.py::test_it"),
    ):
        assert f"{good.name}: {problem}" in problems_of(replace(good, **change))
