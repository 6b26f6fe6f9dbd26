"""Running moments, drift, explained variance and slopes against numbers worked out by hand."""

import math

import pytest
import torch

from stormsail.core.errors import DtypeError, RangeError, ShapeError
from stormsail.functional import statistics

NAN, INF = math.nan, math.inf
NEVER = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def numbers(moments):
    return float(moments.count), moments.mean.tolist(), moments.m2.tolist()


def test_moments_by_hand():
    # Feature 0: (1, 3, 5): mean 3, squares 4 + 0 + 4 = 8. Feature 1 is constant.
    x = torch.tensor([[1.0, 7.0], [3.0, 7.0], [5.0, 7.0]])

    actual = statistics.moments(x)

    assert numbers(actual) == (3.0, [3.0, 7.0], [8.0, 0.0])
    assert actual.mean.dtype == torch.float64
    assert actual.m2.dtype == torch.float64
    assert actual.count.dtype == torch.float64


def test_weighted_moments_by_hand_ignore_rows_of_weight_zero():
    # w = (1, 3), x = (0, 4): count 4, mean 3, m2 = 1 * 9 + 3 * 1 = 12; the NaN row has weight 0.
    x = torch.tensor([[0.0], [NAN], [4.0]], dtype=torch.float64)

    actual = statistics.moments(x, weight=double(1.0, 0.0, 3.0))

    assert numbers(actual) == (4.0, [3.0], [12.0])


def test_variance_divides_by_the_count_minus_ddof():
    parts = statistics.Moments(torch.tensor(4.0, dtype=torch.float64), double(3.0), double(12.0))

    assert statistics.variance(parts).tolist() == [3.0]
    assert statistics.variance(parts, ddof=1).tolist() == [4.0]


@pytest.mark.spec("T-O2", "S1-N1", "2.10")
def test_merge_is_cumulative_and_not_an_exponential_average():
    # (0, 2): count 2, mean 1, m2 2. (10): count 1, mean 10, m2 0. Together (0, 2, 10): mean 4,
    # m2 = 16 + 4 + 36 = 56 = 2 + 0 + 9^2 * 2 * 1 / 3.
    first = statistics.moments(torch.tensor([[0.0], [2.0]]))
    second = statistics.moments(torch.tensor([[10.0]]))

    merged = statistics.merge(first, second)

    count, mean, m2 = numbers(merged)
    assert count == 3.0
    assert mean == pytest.approx([4.0], rel=1e-15)
    assert m2 == pytest.approx([56.0], rel=1e-15)


@pytest.mark.spec("T-O2")
def test_a_late_rollout_moves_the_mean_by_its_share_of_the_count():
    # 1,000 rows of 0 and 10 rows of 1: mean 10 / 1010. A moving average of weight .01 or .1 or a
    # plain average of the two means gives something else.
    history = statistics.moments(torch.zeros(1000, 1))
    rollout = statistics.moments(torch.ones(10, 1))

    merged = statistics.merge(history, rollout)

    assert merged.mean.item() == pytest.approx(10.0 / 1010.0, rel=1e-14)
    # p (1 - p) of a 0/1 variable.
    assert statistics.variance(merged).item() == pytest.approx(1e4 / 1010.0**2, rel=1e-12)


@pytest.mark.spec("T-O2")
def test_merging_with_nothing_is_the_identity_from_both_sides():
    some = statistics.moments(torch.tensor([[1.0, -2.0], [4.0, 5.0]]))
    nothing = statistics.moments(torch.full((3, 2), NAN), weight=torch.zeros(3))

    assert float(nothing.count) == 0.0
    for merged in (statistics.merge(some, nothing), statistics.merge(nothing, some)):
        assert numbers(merged) == numbers(some)
    both = statistics.merge(nothing, nothing)
    assert float(both.count) == 0.0
    # A later merge must not meet a NaN left behind by 0 / 0.
    assert numbers(statistics.merge(both, some)) == numbers(some)


def test_merge_keeps_counts_that_differ_between_features():
    first = statistics.Moments(double(2.0, 0.0), double(1.0, 0.0), double(2.0, 0.0))
    second = statistics.Moments(double(1.0, 3.0), double(10.0, 5.0), double(0.0, 6.0))

    merged = statistics.merge(first, second)

    torch.testing.assert_close(merged.count, double(3.0, 3.0))
    torch.testing.assert_close(merged.mean, double(4.0, 5.0))
    torch.testing.assert_close(merged.m2, double(56.0, 6.0))


def test_moments_survive_a_large_offset():
    # E[x^2] - E[x]^2 would give 0 or worse at 1e8 in float64.
    x = double(-1.0, 1.0, -1.0, 1.0).unsqueeze(-1) + 1e8

    assert statistics.variance(statistics.moments(x)).item() == pytest.approx(1.0, rel=1e-12)


def moments_of(mean, std, count=100.0):
    variance = torch.tensor(std, dtype=torch.float64).square()
    return statistics.Moments(
        torch.tensor(count, dtype=torch.float64), double(*mean), count * variance
    )


@pytest.mark.spec("T-O3", "S2-1", "S2-opt1")
def test_drift_of_a_planted_shift_is_exact():
    # Shifts (.5, -3) over deviations (1, 2) are (.5, 1.5), mean 1. Ratios (2, 1/4): |log 2| and
    # |log 1/4| = 2 log 2, mean 1.5 log 2. Signs must not cancel, and the old deviation divides.
    before = moments_of((0.0, 10.0), (1.0, 2.0))
    after = moments_of((0.5, 7.0), (2.0, 0.5), count=250.0)

    mean_drift, std_drift = statistics.drift(before, after)

    assert float(mean_drift) == pytest.approx(1.0, rel=1e-12)
    assert float(std_drift) == pytest.approx(1.5 * math.log(2.0), rel=1e-12)


@pytest.mark.spec("T-O3")
def test_nothing_drifts_between_equal_moments():
    same = moments_of((1.0, -2.0, 0.0), (0.5, 3.0, 1.0))

    mean_drift, std_drift = statistics.drift(same, same)

    assert (float(mean_drift), float(std_drift)) == (0.0, 0.0)


def test_standardise_by_hand_with_clip_and_eps():
    x = torch.tensor([[3.0, 0.0], [-100.0, 5.0]], dtype=torch.float64)

    actual = statistics.standardise(x, double(1.0, 0.0), double(3.0, 0.0), clip=10.0, eps=1.0)

    # (3 - 1) / sqrt(3 + 1) = 1; -101 / 2 is held at -10; 5 / sqrt(0 + 1) = 5.
    assert actual.tolist() == [[1.0, 0.0], [-10.0, 5.0]]


@pytest.mark.spec("2.10")
def test_standardise_defaults_are_a_clip_of_ten_and_a_tiny_eps():
    x = torch.tensor([[2.0, 1e9, -1e9]], dtype=torch.float64)

    actual = statistics.standardise(x, double(0.0, 0.0, 0.0), double(4.0, 1.0, 1.0))

    torch.testing.assert_close(
        actual, torch.tensor([[1.0, 10.0, -10.0]], dtype=torch.float64), rtol=1e-8, atol=0.0
    )
    # A constant feature: 1e-5 / sqrt(0 + 1e-8) = .1.
    constant = statistics.standardise(double(1e-5), double(0.0), double(0.0))
    assert constant.item() == pytest.approx(0.1, rel=1e-12)


def test_standardise_keeps_float32_observations_with_float64_statistics():
    x = torch.tensor([[1.5, -2.5]], dtype=torch.float32)

    actual = statistics.standardise(x, double(0.5, -0.5), double(4.0, 1.0))

    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, torch.tensor([[0.5, -2.0]]))


@pytest.mark.spec("M23")
def test_standardise_keeps_nan_visible_and_bounds_infinity():
    x = torch.tensor([[NAN, INF, -INF]], dtype=torch.float64)

    actual = statistics.standardise(x, double(0.0, 0.0, 0.0), double(1.0, 1.0, 1.0))

    torch.testing.assert_close(
        actual, torch.tensor([[NAN, 10.0, -10.0]], dtype=torch.float64), equal_nan=True
    )


def test_weighted_mean_by_hand_selects_before_it_adds():
    x = double(1.0, NAN, 5.0, INF, 9.0)
    weight = double(1.0, 0.0, 3.0, 0.0, -2.0)

    actual = statistics.weighted_mean(x, weight)

    # (1 * 1 + 3 * 5) / 4; NaN, infinity and the negative weight are out.
    assert actual.shape == ()
    assert actual.item() == 4.0


@pytest.mark.spec("7", "X9")
def test_weighted_mean_of_nothing_is_zero():
    assert statistics.weighted_mean(double(NAN, 3.0), double(0.0, 0.0)).item() == 0.0


def test_weighted_mean_of_nothing_is_what_the_caller_says():
    x, none = double(NAN, 3.0), double(0.0, 0.0)
    assert statistics.weighted_mean(x, none, empty=NAN).isnan()
    assert statistics.weighted_mean(x.float(), none.float(), empty=double(7.0)[0]).item() == 7.0
    assert statistics.weighted_mean(x, double(0.0, 1.0), empty=NAN).item() == 3.0


def test_weighted_mean_gradient_is_the_normalised_weight():
    x = double(1.0, NAN, 5.0).requires_grad_()

    (gradient,) = torch.autograd.grad(statistics.weighted_mean(x, double(1.0, 0.0, 3.0)), x)

    assert gradient.tolist() == [0.25, 0.0, 0.75]


@pytest.mark.spec("M23")
def test_weighted_mean_keeps_a_nan_of_positive_weight_visible():
    assert statistics.weighted_mean(double(1.0, NAN), double(1.0, 0.5)).isnan()


def test_mean_and_std_by_hand():
    # Weights (1, 3, 0): mean (2 + 3 * 6) / 4 = 5; squares 9 + 3 = 12, over 4 is 3; the effective
    # count 16 / 10 = 1.6 makes 3 * 1.6 / .6 = 8.
    mean, std, count = statistics.mean_and_std(double(2.0, 6.0, NAN), double(1.0, 3.0, 0.0))

    assert (mean.item(), count.item()) == (5.0, 1.6)
    assert std.item() == pytest.approx(math.sqrt(8.0), rel=1e-15)


def test_mean_and_std_by_column_are_those_of_each_column():
    x = torch.tensor([[1.0, 4.0, NAN], [3.0, NAN, NAN]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)

    mean, std, count = statistics.mean_and_std(x, weight, by_column=True)

    # (1, 3): mean 2, ddof 1: sqrt 2. One entry: no deviation. No entry: no mean either.
    assert mean.tolist() == [2.0, 4.0, 0.0]
    assert std.tolist() == [pytest.approx(math.sqrt(2.0), rel=1e-15), 0.0, 0.0]
    assert count.tolist() == [2.0, 1.0, 0.0]


def test_a_row_of_columns_has_one_entry_each():
    mean, std, count = statistics.mean_and_std(double(3.0, NAN), double(0.5, 0.0), by_column=True)

    assert (mean.tolist(), std.tolist(), count.tolist()) == ([3.0, 0.0], [0.0, 0.0], [1.0, 0.0])


def test_weighted_std_has_one_degree_of_freedom_less_and_is_float64():
    # (1, 3, 8): mean 4, squares 9 + 1 + 16 = 26, over 2.
    x, weight = torch.tensor([1.0, 3.0, 9e9, 8.0]), torch.tensor([1.0, 1.0, 0.0, 1.0])

    actual = statistics.weighted_std(x, weight)

    assert actual.item() == pytest.approx(math.sqrt(13.0), rel=1e-15)
    assert actual.dtype == torch.float64


@pytest.mark.parametrize("weight", [(0.0, 0.0), (0.3, 0.0), (1.0, 1e-12)])
def test_weighted_std_of_fewer_than_two_entries_is_unknown(weight):
    assert statistics.weighted_std(double(1.0, 2.0), double(*weight)).isnan()


def test_percentiles_by_hand():
    x, used = double(4.0, NAN, 1.0, 2.0), torch.tensor([True, False, True, True])

    # Sorted (1, 2, 4), ranks 0 .. 2: level .25 is rank .5, between 1 and 2; level .9 is rank 1.8.
    actual = [statistics.percentile(x, used, level=p).item() for p in (0.0, 0.25, 0.5, 0.9, 1.0)]

    assert actual == [1.0, 1.5, 2.0, pytest.approx(3.6, rel=1e-15), 4.0]


def test_a_percentile_beside_an_infinite_entry_is_not_unknown():
    x, used = double(1.0, 2.0, INF), torch.tensor([True, True, True])

    assert statistics.percentile(x, used, level=0.5).item() == 2.0
    assert statistics.percentile(x, used, level=1.0).item() == INF


def test_percentiles_of_nothing_are_unknown():
    x, used = double(1.0, 2.0), torch.tensor([False, False])

    assert statistics.percentile(x, used, level=0.5).isnan()
    assert statistics.percentile(x[:0], used[:0], level=0.5).isnan()


@pytest.mark.refusal
def test_percentiles_refuse_levels_masks_and_shapes_that_do_not_fit():
    x, used = double(1.0, 2.0), torch.tensor([True, True])
    with pytest.raises(RangeError) as caught:
        statistics.percentile(x, used, level=50.0)
    assert str(caught.value) == (
        "`level` must lie in [0, 1]; found 50.0. Pass 0.5 for the median. [out-of-range]"
    )
    with pytest.raises(DtypeError):
        statistics.percentile(x, used.double(), level=0.5)
    with pytest.raises(ShapeError):
        statistics.percentile(x, used[:1], level=0.5)
    with pytest.raises(ShapeError):
        statistics.weighted_std(x, used[:1].double())


@pytest.mark.spec("2.20")
def test_explained_variance_by_hand():
    # R = (0, 2, 4): population variance 8/3. V = (1, 2, 3): R - V = (-1, 0, 1), variance 2/3.
    actual = statistics.explained_variance(double(0.0, 2.0, 4.0), double(1.0, 2.0, 3.0))

    assert actual.item() == pytest.approx(0.75, rel=1e-14)
    assert actual.shape == ()
    assert actual.dtype == torch.float64


@pytest.mark.spec("2.20")
def test_explained_variance_limits():
    target = double(0.0, 2.0, 4.0, -3.0)

    perfect = statistics.explained_variance(target, target)
    mean = statistics.explained_variance(target, torch.full_like(target, 0.75))
    shifted = statistics.explained_variance(target, target + 5.0)
    reversed_ = statistics.explained_variance(target, -target)

    assert perfect.item() == 1.0
    assert mean.item() == pytest.approx(0.0, abs=1e-14)
    # A constant error has no variance: this metric is blind to bias by definition.
    assert shifted.item() == pytest.approx(1.0, rel=1e-14)
    # R - V = 2 R has four times the variance.
    assert reversed_.item() == pytest.approx(-3.0, rel=1e-14)


@pytest.mark.spec("X19", "2.20")
def test_explained_variance_is_nan_where_it_means_nothing():
    value = double(1.0, 2.0, 3.0)

    constant = statistics.explained_variance(double(5.0, 5.0, 5.0), value)
    one = statistics.explained_variance(double(1.0), double(0.0))
    one_used = statistics.explained_variance(
        double(1.0, 2.0, 3.0), value, weight=double(0.0, 4.0, 0.0)
    )
    none_used = statistics.explained_variance(
        double(1.0, 2.0, 3.0), value, weight=double(0.0, 0.0, 0.0)
    )

    # No fallback to another formula: 0, 1 or a mean of groups would hide the missing number.
    assert all(x.isnan() for x in (constant, one, one_used, none_used))


@pytest.mark.spec("X19", "2.20")
@pytest.mark.parametrize("power", [-500, -60, -30, 0, 30, 500])
def test_explained_variance_is_the_same_number_in_any_unit_of_a_power_of_two(power):
    # Rewards of 2^-30 have a variance near 1e-18; the share of it that is explained is 0.75.
    unit = 2.0**power
    target, value = double(0.0, 2.0, 4.0) * unit, double(1.0, 2.0, 3.0) * unit

    actual = statistics.explained_variance(target, value)

    assert actual.item() == statistics.explained_variance(target / unit, value / unit).item()
    assert actual.item() == pytest.approx(0.75, rel=1e-14)


@pytest.mark.spec("X19", "2.20")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [2.0**-30, 1.0, 2.0**30])
def test_a_spread_of_eight_roundings_is_no_spread(dtype, unit):
    # (1, 1 + k eps) has the population deviation k eps / 2: 7.5 roundings for k = 15, 8.5 for 17.
    step = torch.finfo(dtype).eps
    zero = torch.zeros(2, dtype=dtype)
    rounding, spread = (torch.tensor([1.0, 1.0 + k * step], dtype=dtype) * unit for k in (15, 17))

    assert statistics.explained_variance(rounding, zero).isnan()
    # value 0 explains nothing of what there is
    assert statistics.explained_variance(spread, zero).item() == 0.0


def test_the_least_variance_is_eight_roundings_squared():
    assert statistics.least_variance(torch.tensor(3.0)).item() == (8 * 2.0**-23 * 3.0) ** 2
    assert statistics.least_variance(double(0.5, 2.0)).tolist() == [2.0**-100, 2.0**-96]


@pytest.mark.refusal
def test_the_least_variance_of_whole_numbers_is_refused():
    with pytest.raises(DtypeError, match="`size` must be a floating-point tensor"):
        statistics.least_variance(torch.tensor(3))


@pytest.mark.spec("M23")
def test_explained_variance_keeps_a_nan_value_visible():
    assert statistics.explained_variance(double(1.0, 2.0, 4.0), double(1.0, NAN, 4.0)).isnan()


def test_explained_variance_ignores_masked_entries():
    actual = statistics.explained_variance(
        double(0.0, NAN, 2.0, 4.0, 1e30),
        double(1.0, 0.0, 2.0, 3.0, NAN),
        weight=double(1.0, 0.0, 1.0, 1.0, 0.0),
    )

    assert actual.item() == pytest.approx(0.75, rel=1e-14)


def test_explained_variance_of_float32_returns_is_computed_in_float64():
    # Returns near 1e4 with differences of 1e-1: float32 sums would lose the differences.
    target = torch.tensor([10000.0, 10000.125, 10000.25])

    actual = statistics.explained_variance(target, target + torch.tensor([0.125, 0.0, -0.125]))

    # R = 10000 + (0, 1, 2) / 8 and V = R + (1, 0, -1) / 8 is constant: it explains nothing.
    assert actual.item() == pytest.approx(0.0, abs=1e-12)
    assert actual.dtype == torch.float64


def test_slope_by_hand():
    # y = (1, 2, 2), x = (0, 1, 2): sum (x - 1)(y - 5/3) = 2/3 + 0 + 1/3 = 1 over 2.
    rows = torch.tensor([[1.0, 2.0, 2.0], [3.0, 1.0, -1.0]], dtype=torch.float64)

    actual = statistics.slope(rows)

    torch.testing.assert_close(actual, double(0.5, -2.0), rtol=1e-14, atol=0.0)


def test_slope_with_own_positions_by_hand():
    # x = (0, 2, 10): y = 3 x - 1 exactly.
    actual = statistics.slope(double(-1.0, 5.0, 29.0), x=double(0.0, 2.0, 10.0))

    assert actual.shape == ()
    assert actual.item() == pytest.approx(3.0, rel=1e-14)


@pytest.mark.spec("T-R5", "2.9")
def test_mad_std_by_hand_for_odd_and_even_counts():
    # (1, 2, 6): median 2, distances (1, 0, 4), median 1 -> 1.4826.
    # (0, 0, 1, 5): median 1/2, distances (.5, .5, .5, 4.5), median .5 -> .7413; the lower middle
    # value instead of the mean of both would give median 0, distances (0, 0, 1, 5) and 0.
    odd = statistics.median_absolute_deviation_std(double(6.0, 1.0, 2.0))
    even = statistics.median_absolute_deviation_std(double(5.0, 0.0, 1.0, 0.0))

    assert odd.item() == pytest.approx(1.4826, rel=1e-14)
    assert even.item() == pytest.approx(0.7413, rel=1e-14)


@pytest.mark.spec("T-R5", "2.9")
def test_mad_std_estimates_the_deviation_of_a_normal_sample_despite_outliers():
    generator = torch.Generator().manual_seed(1)
    x = 3.0 * torch.randn(20_000, dtype=torch.float64, generator=generator)
    x[:100] = 1e6

    # Without the factor 1.4826 the estimate would be near 2.02.
    assert statistics.median_absolute_deviation_std(x).item() == pytest.approx(3.0, rel=0.03)


@pytest.mark.spec("M23")
def test_mad_std_keeps_a_nan_visible():
    # Sorting puts NaN last, where a median never looks.
    rows = torch.tensor([[1.0, 2.0, NAN, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]])

    assert statistics.median_absolute_deviation_std(rows).isnan().tolist() == [True, False]


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_statistics_refuse_to_broadcast():
    with pytest.raises(ShapeError) as caught:
        statistics.weighted_mean(torch.zeros(4, 3), torch.zeros(4, 1))
    assert str(caught.value) == (
        f"`x` and `weight` must have the same shape; found x (4, 3) and weight (4, 1). {NEVER}"
    )
    with pytest.raises(ShapeError) as caught:
        statistics.explained_variance(torch.zeros(4), torch.zeros(4, 1))
    assert str(caught.value) == (
        "`target` and `value` must have the same shape; "
        f"found target (4,) and value (4, 1). {NEVER}"
    )
    with pytest.raises(ShapeError) as caught:
        statistics.explained_variance(torch.zeros(4), torch.zeros(4), weight=torch.zeros(1))
    assert str(caught.value) == (
        "`target` and `weight` must have the same shape; "
        f"found target (4,) and weight (1,). {NEVER}"
    )


@pytest.mark.refusal
def test_row_weights_and_positions_of_another_length_are_refused():
    with pytest.raises(ShapeError):
        statistics.moments(torch.zeros(4, 2), weight=torch.ones(3))
    with pytest.raises(ShapeError):
        statistics.slope(torch.zeros(2, 4), x=torch.zeros(3))
