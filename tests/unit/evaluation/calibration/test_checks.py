"""Predicted distributions against realised returns."""

import math

import numpy as np
import pytest
from scipy import stats

from oracles import calibration as oracle
from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.calibration.checks import (
    calibrate,
    calibrate_by_regime,
    coverage,
    pit_histogram,
    tail_check,
)
from stormsail.evaluation.calibration.windows import cell_weights, windows
from stormsail.evaluation.stats import figures


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def midpoints(n):
    return (np.arange(n) + 0.5) / n


def normal_quantiles(count, n, *, scale=1.0, seed=0):
    """Exact quantiles of N(0, 1), and outcomes of N(0, scale²)."""
    quantiles = np.tile(stats.norm.ppf(midpoints(n)), (count, 1))
    return quantiles, scale * stream(seed).standard_normal(count)


def test_windows_that_share_bars_count_once():
    quantiles, realised = normal_quantiles(10, 3)
    assert windows(quantiles, realised).independent == 10
    assert windows(quantiles, realised, horizon=4).independent == 3  # 0, 4, 8
    assert windows(quantiles, realised, horizon=4).disjoint().tolist() == [0, 4, 8]
    starts = [0, 1, 5, 6, 7, 20, 20, 23, 24, 30]
    assert windows(quantiles, realised, horizon=4, starts=starts).disjoint().tolist() == [
        0,
        2,
        5,
        8,
        9,
    ]


def test_coverage_by_hand():
    # Levels 1/4 and 3/4 with quantiles -1 and 1. Outcomes at or below -1: 2 of 5; below 1: 4 of 5.
    quantiles = np.tile([-1.0, 1.0], (100, 1))
    realised = np.tile([-2.0, -1.0, 0.0, 1.0, 3.0], 20)
    low, high = coverage(windows(quantiles, realised))
    assert (low.level, low.share.value) == (0.25, 0.4)
    assert (high.level, high.share.value) == (0.75, 0.8)
    assert (low.share.low, low.share.high) == figures.binomial_interval(40, 100, method="exact")
    assert (low.holds, high.holds) == (False, True)


def test_shared_bars_widen_the_interval_and_leave_the_share():
    quantiles, realised = normal_quantiles(1_200, 4)
    (alone, *_), (shared, *_) = (
        coverage(windows(quantiles, realised)),
        coverage(windows(quantiles, realised, horizon=10)),
    )
    assert alone.share.value == shared.share.value
    assert (alone.share.found, shared.share.found) == (1_200, 120)
    few = math.floor(shared.share.value * 120)
    assert shared.share.low == figures.binomial_interval(few, 120, method="exact")[0]
    assert shared.share.high == figures.binomial_interval(few + 1, 120, method="exact")[1]


def test_intervals_for_shared_bars_keep_their_coverage():
    # Sums of 8 normal bars at every bar, quantiles exact: of 100 intervals at 90 % 96 hold. If
    # every window counted as its own, 53 would.
    kept = naive = 0
    for seed in range(100):
        bars = stream(seed).standard_normal(807)
        realised = np.convolve(bars, np.ones(8), "valid")
        quantiles = np.tile([stats.norm.ppf(0.25, scale=math.sqrt(8.0))], (800, 1))
        kept += coverage(windows(quantiles, realised, levels=[0.25], horizon=8), confidence=0.9)[
            0
        ].holds
        naive += coverage(windows(quantiles, realised, levels=[0.25]), confidence=0.9)[0].holds
    assert kept == 96
    assert naive == 53


def test_a_level_needs_ten_independent_outcomes_on_its_rarer_side():
    quantiles, realised = normal_quantiles(199, 10)
    result = coverage(windows(quantiles, realised))
    assert result[0].share.reason == (
        "not enough data: needs 200 windows that share no bar, found 199"
    )
    assert result[0].holds is None
    assert result[9].share.value is None
    assert result[1].share.value is not None  # level 0.15 needs 67


def test_the_histogram_by_hand():
    # Ten levels at 0.05, 0.15, ...; two cells end at 0.45: expected 0.45 and 0.55.
    quantiles = np.tile(np.arange(10.0), (20, 1))
    realised = np.array([4.0] * 12 + [4.5] * 8)  # at or below the quantile of 0.45, and above it
    result = pit_histogram(windows(quantiles, realised), cells=2)
    assert result.edges.tolist() == [0.0, 0.45, 1.0]
    assert result.expected == pytest.approx([0.45, 0.55])
    assert result.share.tolist() == [0.6, 0.4]
    # 20 (0.15² / 0.45 + 0.15² / 0.55) = 1.8182, one degree of freedom.
    assert result.uniformity.value == pytest.approx(
        math.erfc(math.sqrt(20 * 0.0225 * (1 / 0.45 + 1 / 0.55) / 2)), abs=1e-12
    )


def test_the_histogram_needs_five_outcomes_in_its_smallest_cell():
    quantiles, realised = normal_quantiles(49, 20)
    result = pit_histogram(windows(quantiles, realised), cells=10).uniformity
    assert result.reason == (
        f"not enough data: needs {result.needed} windows that share no bar, found 49"
    )
    # Cells of midpoints of 20: the smallest is 0.075 wide.
    assert result.needed == 67


def test_uniformity_of_a_calibrated_critic_is_uniform_and_of_another_is_not():
    values = []
    for seed in range(200):
        quantiles, realised = normal_quantiles(300, 32, seed=seed)
        values.append(pit_histogram(windows(quantiles, realised)).uniformity.value)
    # Of 200 p-values 20 are expected below 0.1; 25 are, one standard deviation more.
    assert np.count_nonzero(np.array(values) < 0.1) == 25
    quantiles, realised = normal_quantiles(300, 32, scale=1.5)
    assert pit_histogram(windows(quantiles, realised)).uniformity.value < 1e-4


def test_uniformity_counts_only_windows_that_share_no_bar():
    quantiles = np.tile(np.arange(10.0), (60, 1))
    realised = np.tile([4.0] * 12 + [4.5] * 8, 3)
    result = pit_histogram(windows(quantiles, realised, horizon=3), cells=2)
    # The shares of the test by hand, and 20 independent windows of 60.
    assert result.uniformity.found == 20
    assert result.uniformity.value == pytest.approx(
        math.erfc(math.sqrt(20 * 0.0225 * (1 / 0.45 + 1 / 0.55) / 2)), abs=1e-12
    )


def test_the_tail_by_hand():
    # Quantiles (-4, -2, 0, 2), alpha 1/2: value at risk -2, CVaR -3. Outcomes -6, -2, 1, ... give
    # -2 + 2 (-4) = -10, -2 and -2: mean -14/3.
    quantiles = np.tile([-4.0, -2.0, 0.0, 2.0], (60, 1))
    result = tail_check(windows(quantiles, np.tile([-6.0, -2.0, 1.0], 20)), alpha=0.5)
    assert result.predicted.value == -3.0
    assert result.realised.value == pytest.approx(-14 / 3, abs=1e-12)
    assert result.gap.value == pytest.approx(-5 / 3, abs=1e-12)
    # Deviation of (-10, -2, -2) twenty times: sqrt(60/59 * 128/9), over sqrt(60), times 1.96.
    reach = 1.959963984540054 * math.sqrt(128 / 9 / 59)
    assert result.gap.low == pytest.approx(-5 / 3 - reach, abs=1e-12)
    assert result.realised.high == pytest.approx(-14 / 3 + reach, abs=1e-12)


def test_a_true_tail_holds_and_a_mild_one_does_not():
    quantiles, realised = normal_quantiles(4_000, 101)
    true = tail_check(windows(quantiles, realised), alpha=0.05)
    # CVaR of N(0, 1) at 5 % is -2.0627.
    assert true.predicted.value == pytest.approx(-2.0627, abs=0.03)
    assert true.realised.low < -2.0627 < true.realised.high
    quantiles, realised = normal_quantiles(4_000, 101, scale=1.4)
    assert tail_check(windows(quantiles, realised), alpha=0.05).gap.high < -0.3


def test_each_window_is_measured_against_its_own_distribution():
    # Calm and storm by turns: pooled, the worst 5 % are storms alone, and a perfect critic would
    # seem too mild.
    scale = np.tile([0.2, 3.0], 2_000)[:, None]
    quantiles, realised = normal_quantiles(4_000, 101)
    result = tail_check(windows(quantiles * scale, realised * scale[:, 0]), alpha=0.05)
    assert result.predicted.value == pytest.approx(-2.0627 * 1.6, abs=0.05)
    assert result.gap.low < 0.0 < result.gap.high
    pooled = figures.cvar(realised * scale[:, 0], alpha=0.05)
    assert pooled < 1.2 * result.predicted.value


def test_intervals_of_a_tail_cover():
    # 300 samples of 600 normal outcomes at 95 %: 281 contain the true -1.755 at 10 %.
    true = -stats.norm.pdf(stats.norm.ppf(0.1)) / 0.1
    kept = 0
    predicted = np.tile(stats.norm.ppf(midpoints(200)), (600, 1))
    for seed in range(300):
        realised = tail_check(windows(predicted, stream(seed).standard_normal(600)), alpha=0.1)
        kept += realised.realised.low <= true <= realised.realised.high
    assert kept == 281


def test_fewer_independent_outcomes_widen_the_tail():
    quantiles, realised = normal_quantiles(800, 10)
    alone = tail_check(windows(quantiles, realised), alpha=0.1).realised
    shared = tail_check(windows(quantiles, realised, horizon=4), alpha=0.1).realised
    assert (alone.found, shared.found) == (800, 200)
    assert alone.value == shared.value
    at_risk = np.full((800, 10), np.sort(realised)[79])  # the true value at risk of the sample
    exact = tail_check(windows(at_risk, realised), alpha=0.1).realised
    assert exact.value == pytest.approx(figures.cvar(realised, alpha=0.1), rel=1e-12)
    assert shared.high - shared.value == pytest.approx(2.0 * (alone.high - alone.value), rel=1e-12)
    short = tail_check(windows(quantiles[:396], realised[:396], horizon=4), alpha=0.1).realised
    assert short.reason == "not enough data: needs 100 windows that share no bar, found 99"


def test_regimes_are_judged_apart():
    quantiles, realised = normal_quantiles(800, 11)
    storm = np.arange(800) >= 500
    realised = np.where(storm, 3.0 * realised, realised)
    result = calibrate_by_regime(
        windows(quantiles, realised), np.where(storm, "storm", "calm").tolist(), alpha=0.1
    )
    assert list(result) == ["calm", "storm"]
    assert (result["calm"].windows, result["storm"].windows) == (500, 300)
    assert result["storm"].tail.gap.high < -1.0
    assert result["calm"].tail.gap.high > -0.3
    alone = calibrate(
        windows(quantiles[storm], realised[storm], starts=np.flatnonzero(storm)), alpha=0.1
    )
    assert alone.coverage == result["storm"].coverage
    assert alone.tail == result["storm"].tail


def test_too_few_windows_claim_nothing():
    quantiles, realised = normal_quantiles(20, 11)
    result = calibrate(windows(quantiles, realised))
    assert {entry.share.value for entry in result.coverage} == {None}
    assert result.tail.gap.reason == (
        "not enough data: needs 200 windows that share no bar, found 20"
    )
    assert result.histogram.uniformity.value is None


def test_crossing_quantiles_are_sorted():
    quantiles = np.array([[2.0, -1.0, 0.5]] * 3)
    assert windows(quantiles, np.zeros(3)).quantiles[0].tolist() == [-1.0, 0.5, 2.0]


@pytest.mark.refusal
def test_other_shapes_are_refused():
    quantiles, realised = normal_quantiles(10, 3)
    with pytest.raises(ShapeError, match=r"`quantiles` must have the shape \[9, N\]"):
        windows(quantiles, realised[:9])
    with pytest.raises(ShapeError, match=r"`levels` must have the shape \[3\]"):
        windows(quantiles, realised, levels=[0.5])
    with pytest.raises(RangeError, match=r"levels must ascend inside \(0, 1\)"):
        windows(quantiles, realised, levels=[0.5, 0.4, 0.6])
    with pytest.raises(RangeError, match="starts must not descend"):
        windows(quantiles, realised, starts=[*range(9), 3])
    with pytest.raises(ShapeError, match="`regimes` must have one label for each of the 10"):
        calibrate_by_regime(windows(quantiles, realised), ["a"])


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_says_the_same(seed):
    draws = stream(seed)
    quantiles, realised = (
        np.round(draws.standard_normal((250, 12)), 1),
        np.round(draws.standard_normal(250), 1),
    )
    given = windows(quantiles, realised)
    levels = given.levels.tolist()
    for column, entry in enumerate(coverage(windows(quantiles, realised))):
        if entry.share.value is not None:
            assert entry.share.value == oracle.coverage(
                quantiles.tolist(), realised.tolist(), column
            )
    result = pit_histogram(given, cells=5)
    assert result.share.tolist() == oracle.cell_shares(
        quantiles.tolist(), realised.tolist(), levels, result.edges.tolist()
    )
    predicted, tail = oracle.tail(quantiles.tolist(), realised.tolist(), 0.2)
    check = tail_check(given, alpha=0.2)
    assert check.predicted.value == pytest.approx(np.mean(predicted), abs=1e-12)
    assert check.realised.value == pytest.approx(np.mean(tail), abs=1e-12)


def test_cells_of_unequal_mass_are_read_from_their_levels():
    # Cells [0, .05], [.05, .25], [.25, .5], [.5, 1].
    assert cell_weights(np.array([0.025, 0.15, 0.375, 0.75])) == pytest.approx(
        [0.05, 0.2, 0.25, 0.5]
    )
    assert cell_weights(midpoints(51)) is None  # equal ones
    assert cell_weights(np.array([0.1, 0.15, 0.9])) is None  # no middles of cells
    assert cell_weights(np.array([0.1, 0.3])) is None  # cells that end at .4


def test_the_predicted_tail_goes_by_the_mass_of_the_levels():
    # At alpha = .1: (.05 * -10 + .05 * -1) / .1 = -5.5, and the value at risk is -1. Of equal atoms
    # both would be -10.
    quantiles = np.tile([-10.0, -1.0, 0.0, 2.0], (400, 1))
    realised = np.where(np.arange(400) % 40 == 0, -5.0, 1.0)
    levels = [0.025, 0.15, 0.375, 0.75]
    result = tail_check(windows(quantiles, realised, levels=levels), alpha=0.1)
    assert result.predicted.value == pytest.approx(-5.5, rel=1e-12)
    # mean of -1 + min(y + 1, 0) / .1: one window of 40 has -1 - 40
    assert result.realised.value == pytest.approx(-1.0 - 40.0 / 40.0, rel=1e-12)
