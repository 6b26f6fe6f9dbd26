"""A limit on CVaR is kept in a world whose figures are exact, and was not by the earlier form."""

import pytest

from stormsail.bench.bets import bets
from stormsail.bench.bets.bets_worlds import KNOWN

WORLD = KNOWN["one-bet-10"]
"""One bet that loses 1 at 10 % and wins 1 otherwise: all of it has a CVaR of -1 at 5 %, and the
share of half an even bet the limit of -0.5."""


def trained(*changes):
    return bets.run(bets.Job(WORLD, 1, bets.Plan(updates=60, changes=changes)))


def test_the_values_of_all_actions_keep_the_limit_and_more_than_half_of_the_best_mean():
    row = trained()
    assert row.cvar >= WORLD.limit * 1.15
    assert row.mean >= 0.5 * row.best
    assert row.best == pytest.approx(0.2)


def test_the_form_budget_bets_all():
    row = trained("risk.form=budget")
    assert row.cvar == pytest.approx(-1.0, abs=0.01)
    assert row.mean == pytest.approx(0.8, abs=0.01)
