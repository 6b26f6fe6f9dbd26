"""The difference of two Sharpe ratios: by hand, by oracle, and how often it errs."""

import math

import numpy as np
import pytest

from oracles import significance as oracle
from stormsail.core.errors import ShapeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.sharpe_difference import (
    compare_sharpe,
    influence,
    long_run_error,
)

SEEDS = pytest.mark.parametrize("seed", range(4))


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def pair(seed, bars=160, carried=0.4):
    """Two correlated series, each of which repeats a part of its last return."""
    z = stream(seed).standard_t(5, (bars, 2))
    z[:, 1] = 0.5 * z[:, 0] + z[:, 1]
    for t in range(1, bars):
        z[t] += carried * z[t - 1]
    return 0.01 * z[:, 0] + 0.001, 0.01 * z[:, 1]


def test_the_influence_by_hand():
    # Returns 0 and 2: mean 1, mean square 2, deviation 1. 2 (r - 1) - (r² - 2) / 2.
    assert influence(np.array([0.0, 2.0])).tolist() == [-1.0, 1.0]
    assert influence(np.full(4, 0.1)).tolist() == [0.0] * 4


def test_the_error_of_independent_values_is_the_usual_one():
    x = stream(1).standard_normal(4_000)
    x -= x.mean()
    assert long_run_error(x) == pytest.approx(x.std() / math.sqrt(4_000), rel=0.05)
    # Each repeats 60 % of the last: the error is (1 + .6) / (1 - .6) times as large, squared.
    y = x.copy()
    for t in range(1, y.size):
        y[t] += 0.6 * y[t - 1]
    y -= y.mean()
    assert long_run_error(y) == pytest.approx(2.0 * y.std() / math.sqrt(4_000), rel=0.15)


@SEEDS
def test_the_oracle_finds_the_same_difference_and_error(seed):
    one, two = pair(seed)
    difference, error = oracle.sharpe_difference(one.tolist(), two.tolist())
    assert long_run_error(influence(one) - influence(two)) == pytest.approx(error, rel=1e-10)
    found = compare_sharpe(one, two, per_year=1.0, generator=stream(0), repetitions=9)
    assert found.sharpe.value == pytest.approx(difference, abs=1e-14)


@SEEDS
def test_interval_and_probability_are_those_of_the_loops(seed):
    one, two = pair(seed)
    found = compare_sharpe(one, two, per_year=4.0, generator=stream(9), repetitions=39, block=8)
    starts = stream(9).integers(0, 160, (39, 20))
    draws = oracle.studentised_differences(one.tolist(), two.tolist(), starts.tolist(), 8)
    difference, error = oracle.sharpe_difference(one.tolist(), two.tolist())
    beyond = sum(draw >= difference / error for draw in draws)
    assert found.p_value.value == (1 + beyond) / 40
    upper, lower = np.quantile(draws, (0.975, 0.025))
    ends = [2.0 * (difference - error * end) for end in (upper, lower)]
    assert [found.sharpe.low, found.sharpe.high] == pytest.approx(ends, rel=1e-9)
    volatility = 2.0 * one.std(ddof=1)
    assert found.annual_return.value == pytest.approx(volatility * 2.0 * difference, rel=1e-12)
    assert found.annual_return.low == pytest.approx(volatility * ends[0], rel=1e-9)


def test_leverage_of_either_changes_nothing():
    one, two = pair(5)
    usual, lifted = (
        compare_sharpe(one, scale * two, per_year=8_760.0, generator=stream(3), repetitions=99)
        for scale in (1.0, 7.0)
    )
    assert lifted.sharpe.value == pytest.approx(usual.sharpe.value, rel=1e-12)
    assert lifted.p_value == usual.p_value


def test_at_equal_volatility_the_difference_is_that_of_mean_returns():
    one, two = pair(6)
    found = compare_sharpe(one, two, per_year=100.0, generator=stream(3), repetitions=19)
    levered = two * one.std(ddof=1) / two.std(ddof=1)
    assert found.annual_return.value == pytest.approx(100.0 * (one - levered).mean(), rel=1e-12)


def test_a_benchmark_that_never_moved_has_the_ratio_0():
    one, _ = pair(7)
    found = compare_sharpe(one, np.zeros(160), per_year=1.0, generator=stream(3), repetitions=19)
    assert found.sharpe.value == pytest.approx(float(figures.per_bar_sharpe(one)), rel=1e-12)


@pytest.mark.parametrize("kind", ["repeating", "heavy"])
def test_equal_ratios_are_told_apart_about_as_often_as_said(kind):
    # 200 pairs of equal true ratios, 400 bars: 10 rejections at 5 % are expected, 18 is the 99 %
    # bound of chance. Every return repeats 40 % of the last, or has tails of 5 degrees of freedom.
    rejected = covered = 0
    for seed in range(200):
        if kind == "repeating":
            one, two = pair(seed, bars=400)
            one = one - 0.001
        else:
            one, two = 0.01 * stream(900 + seed).standard_t(5, (2, 400))
        found = compare_sharpe(one, two, per_year=1.0, generator=stream(seed), repetitions=99)
        rejected += found.p_value.value <= 0.05
        covered += found.sharpe.low <= 0.0 <= found.sharpe.high
    assert rejected <= 18
    assert covered >= 180


def test_what_cannot_be_compared_says_why():
    one, two = pair(8)
    few = compare_sharpe(one[:99], two[:99], per_year=1.0, generator=stream(3))
    assert few.p_value.reason == "not enough data: needs 100 bars, found 99"
    same = compare_sharpe(one, 3.0 * one, per_year=1.0, generator=stream(3))
    assert same.sharpe.reason == "the two are the same strategy"
    flat = compare_sharpe(np.zeros(160), two, per_year=1.0, generator=stream(3))
    assert flat.p_value.reason == "all returns are equal"


@pytest.mark.refusal
def test_other_bars_are_refused():
    one, two = pair(9)
    with pytest.raises(ShapeError, match="one return for each of the 160 bars; found 159"):
        compare_sharpe(one, two[1:], per_year=1.0, generator=stream(3))
