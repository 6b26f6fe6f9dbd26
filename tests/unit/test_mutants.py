"""The table of planted bugs fits the code it is planted in."""

import pytest

from mutants.harness import PACKAGE
from mutants.table import MUTANTS

by_name = pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])


@by_name
def test_the_snippet_stands_exactly_once_in_its_file(mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.old) == 1


@by_name
def test_the_bug_is_a_change(mutant):
    assert mutant.new != mutant.old
    assert mutant.tests


def test_names_are_unique():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
