"""The power of a validation: by hand, and held by the simulation that goes through the verdict."""

import math

import numpy as np
import pytest
from scipy import stats

from stormsail.bench.promotions import Case, Row, rates, simulate, verdicts
from stormsail.core.errors import ChoiceError
from stormsail.evaluation.stats.sharpe_difference import (
    bars_of_block,
    influence,
    long_run_error,
)
from stormsail.evaluation.walk_forward.config import VerdictRules
from stormsail.evaluation.walk_forward.ledger import EarlierTrials
from stormsail.evaluation.walk_forward.power import plan_power

RULES = VerdictRules()


def alternating(score, bars=400):
    """Returns whose Sharpe ratio is exactly `score` standard errors, and independent."""
    sign = np.random.Generator(np.random.PCG64(3)).permutation(np.tile([1.0, -1.0], bars // 2))
    return 0.01 * (sign + score / math.sqrt(bars) * sign.std(ddof=1))


def power(*, folds=(100,) * 4, seeds=1, earlier=None, baselines=None, **more):
    traded = {"buy and hold": alternating(0.0)} if baselines is None else baselines
    return plan_power(
        folds,
        per_year=400.0,
        seeds=seeds,
        earlier=earlier or EarlierTrials(),
        baselines=traded,
        rules=RULES,
        **more,
    )


def test_a_plan_by_hand():
    # One year of 400 bars, so scores are annual ratios. Against a baseline at 0 the difference has
    # the error sqrt(2): 1.645 sqrt(2) = 2.326 must be measured; the mean asks for 1.960, one trial
    # for 1.645 (1 + x² / 800). 92 % of the time 2.326 is reached from 2.326 + 1.405 = 3.731; then
    # more than half of four folds earn with a probability so near 1 that it adds a hundredth.
    found = power()
    assert found.needed["better than buy and hold"] == pytest.approx(2.326, abs=0.03)
    assert found.needed["mean return"] == pytest.approx(1.960, abs=0.02)
    assert found.needed["deflated Sharpe"] == pytest.approx(1.650, abs=0.005)
    assert found.sharpe == pytest.approx(3.74, abs=0.05)
    assert (found.bars, found.years, found.folds, found.trials) == (400, 1.0, 4, 1)


def test_a_better_baseline_and_more_trials_ask_for_more():
    strong = power(baselines={"buy and hold": alternating(1.0)})
    # 1 more, and what t has more than the normal distribution at as many blocks as there are
    steady = alternating(1.0)
    blocks = 400 // bars_of_block(influence(steady))
    wider = max(1.0, long_run_error(influence(steady)) * 20.0 / influence(steady).std())
    asked = 1.0 + math.sqrt(2.0) * wider * stats.t.ppf(0.95, blocks - 1)
    assert asked > 3.326
    assert strong.needed["better than buy and hold"] == pytest.approx(asked, abs=1e-9)
    assert strong.sharpe == pytest.approx(asked + 1.405 * wider, abs=0.05)
    # 100 trials without a ratio: 2.531 + 1.645 standard errors, a little more for their own size
    many = power(earlier=EarlierTrials(99))
    assert many.needed["deflated Sharpe"] == pytest.approx(2.531 + 1.645, abs=0.04)
    assert many.sharpe == pytest.approx(many.needed["deflated Sharpe"] + 1.405, abs=0.04)


def test_four_times_the_bars_halve_the_ratio():
    longer = power(folds=(400,) * 4, baselines={"buy and hold": alternating(0.0, 1_600)})
    assert longer.sharpe == pytest.approx(power().sharpe / 2, abs=0.04)


def test_what_cannot_be_decided_is_said():
    assert power(tail_horizon=50).undecided == (
        "tail over 50 bars: 8 of 200 windows, a condition beside the verdict",
    )
    assert power(tail_horizon=2).undecided == ()
    without = power(baselines={})
    assert (without.sharpe, without.undecided) == (
        None,
        ("better than the baselines: they are not traded",),
    )
    assert power(folds=(20,) * 4).sharpe is None


def test_a_ratio_that_would_have_to_be_explained_is_told():
    # A quarter of a year: ratios twice as high, and one of 2 * 3.17 has its lower end above 4.75 in
    # no more than a few cases; at twice that it always has.
    assert power().suspicious is False
    short = power(baselines={"buy and hold": alternating(6.0)})
    assert short.suspicious is True
    assert "losing year: a result that high must be explained in writing" in short.summary


def test_noise_is_not_promoted_and_planned_skill_is():
    # A few draws of each: `stormsail bench promotions` has the whole table.
    noise = [simulate(Case("clustered", 0.0, 365, 50), seed, repetitions=60) for seed in range(8)]
    skill = [simulate(Case("normal", None, 730), seed, repetitions=60) for seed in range(8)]
    assert sum(row.promoted for row in noise) == 0
    assert all("deflated Sharpe" in row.broken for row in noise)
    assert sum(row.promoted for row in skill) >= 5
    assert all(row.planned and 2.0 < row.sharpe < 8.0 for row in skill)


def test_claims_are_judged_by_what_chance_explains():
    def rows(promoted, runs, sharpe, *, planned):
        return [
            Row("normal", sharpe, planned, 365, 1, seed, seed < promoted, "")
            for seed in range(runs)
        ]

    # 5 of 100 is the claim, and 10 the 99 % bound: 5 + 2.33 * 2.18 = 10.1
    for promoted, passed in ((10, True), (11, False)):
        (claim,) = verdicts(rates(rows(promoted, 100, 0.0, planned=False)))
        assert (claim.passed, claim.measured) == (passed, f"{promoted} of 100")
    # 80 of 100, and 70.7 the bound
    for promoted, passed in ((71, True), (70, False)):
        (claim,) = verdicts(rates(rows(promoted, 100, 2.0, planned=True)))
        assert claim.passed is passed
    assert verdicts(rates(rows(5, 10, 2.0, planned=False))) == []


@pytest.mark.refusal
def test_a_process_that_does_not_exist_is_refused():
    with pytest.raises(ChoiceError, match="a process must be one of normal, clustered, repeating"):
        simulate(Case("levy", 0.0, 365), 0)
