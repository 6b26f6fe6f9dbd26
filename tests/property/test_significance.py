"""Properties of the tests of significance, for any returns."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles import significance as oracle
from stormsail.evaluation.stats import figures, sharpe
from stormsail.evaluation.stats.overfitting import overfitting_logits, probability_of_overfitting

RETURN = st.floats(-0.2, 0.2).map(lambda x: round(x, 6))


@st.composite
def series(draw, low=20, high=60):
    values = np.array(draw(st.lists(RETURN, min_size=low, max_size=high)))
    assume(np.ptp(values) > 1e-4)
    return values


@st.composite
def tried(draw):
    blocks = draw(st.sampled_from([2, 4, 6]))
    bars = draw(st.integers(2 * blocks, 30))
    columns = draw(st.integers(2, 5))
    rows = st.lists(RETURN, min_size=columns, max_size=columns)
    return np.array(draw(st.lists(rows, min_size=bars, max_size=bars))), blocks


@given(series(), st.floats(-0.5, 0.5))
def test_the_probability_equals_its_definition(x, benchmark):
    assert sharpe.probabilistic_sharpe(x, benchmark=benchmark) == pytest.approx(
        oracle.probabilistic_sharpe(x.tolist(), benchmark), abs=1e-9
    )


@given(series(), st.floats(0.01, 100.0))
def test_leverage_changes_no_probability(x, factor):
    assert sharpe.probabilistic_sharpe(factor * x) == pytest.approx(
        sharpe.probabilistic_sharpe(x), abs=1e-9
    )
    assert figures.per_bar_sharpe(factor * x) == pytest.approx(
        float(figures.per_bar_sharpe(x)), abs=1e-9
    )


@given(series())
def test_losing_what_was_won_turns_the_probability_round(x):
    assert sharpe.probabilistic_sharpe(-x) == pytest.approx(
        1.0 - sharpe.probabilistic_sharpe(x), abs=1e-9
    )


@given(series(), st.floats(-0.3, 0.3), st.floats(0.001, 0.3))
def test_more_is_harder_to_beat(x, benchmark, step):
    harder = sharpe.probabilistic_sharpe(x, benchmark=benchmark + step)
    assert harder <= sharpe.probabilistic_sharpe(x, benchmark=benchmark)


RATIOS = st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=20)


@given(series(), RATIOS, RATIOS, st.integers(0, 50))
def test_more_trials_never_make_a_result_more_likely(x, ratios, others, failed):
    count = len(ratios)
    fewer = sharpe.deflated_sharpe(x, trial_sharpes=ratios)
    assert sharpe.deflated_sharpe(x, trial_sharpes=ratios, trials=count + failed) <= fewer
    # Whatever the others were, and wherever they stand among them.
    more = sharpe.deflated_sharpe(x, trial_sharpes=[*others, *ratios])
    assert more <= fewer + 1e-12
    assert sharpe.deflated_sharpe(x, trial_sharpes=[*ratios, *[0.0] * failed]) <= fewer + 1e-12
    # One trial has no selection at all; two or more start above nothing.
    assert fewer <= sharpe.probabilistic_sharpe(x) + 1e-12


@given(series(), st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=20), st.integers(1, 50))
def test_the_paper_never_says_less_and_only_counts_failures_alike(x, ratios, failed):
    count = len(ratios)
    paper = sharpe.deflated_sharpe(x, trial_sharpes=ratios, form="paper")
    assert sharpe.deflated_sharpe(x, trial_sharpes=ratios) <= paper + 1e-12
    assert (
        sharpe.deflated_sharpe(x, trial_sharpes=ratios, trials=count + failed, form="paper")
        <= paper
    )


@given(series())
def test_at_the_minimum_track_record_the_probability_is_the_confidence(x):
    ratio = float(figures.per_bar_sharpe(x))
    assume(ratio > 0.02)
    bars = sharpe.minimum_track_record(x, confidence=0.9)
    shape = {"skew": figures.skew(x), "kurtosis": figures.kurtosis(x)}
    z = 1.2815515655446004
    assert ratio / sharpe.sharpe_error(ratio, bars=int(bars), **shape) >= z - 1e-9
    if bars > 2:
        assert ratio / sharpe.sharpe_error(ratio, bars=int(bars) - 1, **shape) < z + 1e-9


@given(tried())
def test_overfitting_equals_its_definition(case):
    returns, blocks = case
    expected = oracle.overfitting_logits(returns.tolist(), blocks)
    assert overfitting_logits(returns, blocks=blocks) == pytest.approx(expected, abs=1e-9)


@given(tried(), st.randoms(use_true_random=False))
def test_the_order_of_strategies_does_not_matter_without_ties(case, random):
    returns, blocks = case
    noise = np.random.Generator(np.random.PCG64(0)).standard_normal(returns.shape)
    returns = returns + 1e-3 * noise
    order = list(range(returns.shape[1]))
    random.shuffle(order)
    assert probability_of_overfitting(
        returns[:, order], blocks=blocks
    ) == probability_of_overfitting(returns, blocks=blocks)


@given(series())
def test_a_drawdown_lies_between_its_own_places(x):
    equity = np.concatenate(([1.0], np.cumprod(1.0 + x)))
    drawdown = figures.drawdown_of(equity)
    worst = min(
        equity[later] / equity[early] - 1.0
        for early in range(equity.size)
        for later in range(early, equity.size)
    )
    assert drawdown.depth == pytest.approx(worst, abs=1e-15)
    assert drawdown.peak <= drawdown.trough
    assert equity[drawdown.trough] / equity[drawdown.peak] - 1.0 == drawdown.depth
    if drawdown.recovery is not None and drawdown.depth < 0.0:
        assert equity[drawdown.recovery] >= equity[drawdown.peak]
        assert np.all(equity[drawdown.trough : drawdown.recovery] < equity[drawdown.peak])


@given(series(), st.floats(0.01, 1.0))
def test_the_tail_is_no_better_than_its_edge_nor_than_the_mean(x, alpha):
    tail = figures.cvar(x, alpha=alpha)
    assert tail <= figures.value_at_risk(x, alpha=alpha) + 1e-12
    assert tail <= x.mean() + 1e-12
    assert tail >= x.min() - 1e-12
    assert math.isfinite(tail)
