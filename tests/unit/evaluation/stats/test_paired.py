"""The interval beside a score and the paired test, by hand, by oracle and under the null."""

import math

import numpy as np
import pytest
from scipy import stats

from oracles import paired as oracle
from stormsail.core.errors import ShapeError
from stormsail.evaluation.stats import paired

SEEDS = pytest.mark.parametrize("seed", range(4))


def stream(seed):
    return np.random.Generator(np.random.PCG64(seed))


def test_the_level_and_the_confidence_are_those_that_are_documented():
    assert (paired.LEVEL, paired.CONFIDENCE) == (0.05, 0.95)


def test_the_interval_by_hand():
    # 1 to 5: mean 3, s² = (4 + 1 + 0 + 1 + 4) / 4 = 2.5, t of 4 degrees of freedom at .975 is
    # 2.776445, half = 2.776445 * sqrt(2.5 / 5) = 1.963243. With n instead of n - 1 it were 1.756.
    low, high = paired.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low, high) == pytest.approx((3.0 - 1.963243, 3.0 + 1.963243), abs=1e-6)
    # Two values, 1 degree of freedom: tan(.475 pi) = 12.7062 times |x - y| / 2.
    low, high = paired.mean_interval([0.0, 2.0])
    assert (low, high) == pytest.approx((1.0 - 12.706205, 1.0 + 12.706205), abs=1e-6)
    # At 50 %: tan(.25 pi) = 1.
    assert paired.mean_interval([0.0, 2.0], confidence=0.5) == pytest.approx((0.0, 2.0))


def test_the_interval_of_equal_values_is_a_point_and_a_single_value_has_none():
    assert paired.mean_interval([0.1] * 7) == pytest.approx((0.1, 0.1), abs=1e-16)
    assert all(map(math.isnan, paired.mean_interval([3.0])))
    assert all(map(math.isnan, paired.mean_interval([3.0, math.inf])))
    assert all(map(math.isnan, paired.mean_interval([3.0, math.nan, 1.0])))


def test_the_p_value_by_hand():
    # d = (-1, 1, 3): mean 1, s = 2, t = 1 / (2 / sqrt 3) = .866025; with 2 degrees of freedom
    # P(T >= t) = 1/2 - t / (2 sqrt(2 + t²)) = .5 - .866025 / (2 sqrt 2.75) = .238884.
    first, second = [5.0, 7.0, -2.0], [4.0, 8.0, 1.0]
    assert paired.paired_p_value(first, second) == pytest.approx(0.238884, abs=1e-6)
    assert paired.paired_p_value(second, first) == pytest.approx(1.0 - 0.238884, abs=1e-6)


def test_a_p_value_is_never_below_that_of_equal_signs():
    # d = (0, 1, 2): t = sqrt 3, P = 1/2 - sqrt 3 / (2 sqrt 5) = .1127 < 2^-3. Four pairs give 1/16
    # at best, five 1/32: so significance at 5 % takes five.
    assert paired.paired_p_value([0.0] * 3, [0.0, 1.0, 2.0]) == 0.125
    assert paired.paired_p_value([0.0] * 4, [9.0, 9.1, 9.0, 9.1]) == 0.0625
    assert paired.paired_p_value([0.0] * 5, [9.0, 9.1, 9.0, 9.1, 9.0]) == 0.03125
    assert paired.paired_p_value([0.0] * 4, [9.0] * 4) > paired.LEVEL
    assert paired.paired_p_value([0.0] * 5, [9.0] * 5) < paired.LEVEL


def test_differences_without_spread():
    assert paired.paired_p_value([1.0, 2.0], [2.0, 3.0]) == 0.25
    assert paired.paired_p_value([0.1] * 9, [0.4] * 9) == 2.0**-9
    assert paired.paired_p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired.paired_p_value([1.0, 2.0], [0.0, 1.0]) == 1.0


def test_too_few_pairs_or_what_is_no_number_has_no_p_value():
    assert math.isnan(paired.paired_p_value([1.0], [2.0]))
    assert math.isnan(paired.paired_p_value([], []))
    assert math.isnan(paired.paired_p_value([1.0, math.nan], [2.0, 3.0]))
    assert math.isnan(paired.paired_p_value([-math.inf, 1.0], [-math.inf, 3.0]))
    assert not math.nan < paired.LEVEL  # so nothing is significant there


@pytest.mark.refusal
def test_values_that_are_no_pairs_are_refused():
    with pytest.raises(ShapeError, match="found 3 and 2 values"):
        paired.paired_p_value([1.0, 2.0, 3.0], [1.0, 2.0])


@SEEDS
@pytest.mark.parametrize("count", [6, 17, 64])
def test_interval_and_p_value_are_those_of_the_oracle(seed, count):
    source = stream(seed)
    first = 3.0 * source.standard_normal(count) + 1.0
    second = first + source.standard_normal(count) + 0.2 * seed
    expected = oracle.mean_interval(first.tolist(), 0.95)
    assert paired.mean_interval(first) == pytest.approx(expected, rel=1e-9)
    p_value = oracle.paired_p_value(first.tolist(), second.tolist())
    assert paired.paired_p_value(first, second) == pytest.approx(p_value, abs=1e-9)


@SEEDS
def test_the_p_value_is_that_of_scipy(seed):
    source = stream(seed)
    first, second = source.standard_t(4, (2, 40))
    expected = stats.ttest_rel(second, first, alternative="greater").pvalue
    assert paired.paired_p_value(first, second) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [5, 16, 64])
@pytest.mark.parametrize("draw", ["normal", "heavy"])
def test_equal_policies_are_called_different_in_five_per_cent(count, draw):
    """The two of a pair share their start, whose spread is ten times that of the policies."""
    source, runs = stream(1), 4000
    starts = 10.0 * source.standard_normal((runs, count))
    noise = source.standard_normal if draw == "normal" else lambda size: source.standard_t(5, size)
    first, second = (starts + noise((runs, count)) for _ in range(2))
    p_values = [paired.paired_p_value(a, b) for a, b in zip(first, second, strict=True)]
    worse = np.mean(np.array(p_values) < paired.LEVEL)
    assert worse == pytest.approx(0.05, abs=4.0 * math.sqrt(0.05 * 0.95 / runs))


def test_the_interval_holds_the_true_mean_in_ninety_five_per_cent():
    source, runs = stream(2), 4000
    values = 7.0 + 3.0 * source.standard_normal((runs, 8))
    ends = np.array([paired.mean_interval(row) for row in values])
    held = np.mean((ends[:, 0] < 7.0) & (ends[:, 1] > 7.0))
    assert held == pytest.approx(0.95, abs=4.0 * math.sqrt(0.05 * 0.95 / runs))


def test_pairing_sees_what_unpaired_values_hide():
    source = stream(3)
    starts = 100.0 * source.standard_normal(64)
    better = starts + 1.0 + source.standard_normal(64)
    assert paired.paired_p_value(starts, better) < 1e-6
    assert stats.ttest_ind(better, starts, alternative="greater", equal_var=False).pvalue > 0.4
