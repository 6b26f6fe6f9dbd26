"""Advantage normalisation against numbers worked out by hand."""

import math

import pytest
import torch

from stormsail.core.errors import ArgumentError, ChoiceError, RangeError, ShapeError
from stormsail.functional import advantage

NAN = math.nan
MODES = ["floor", "eps", "center_only", "zero", "skip", "previous_stats"]
NEVER = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def test_three_numbers_by_hand():
    # mean 2, squares 1 + 0 + 1, ddof 1: variance 2 / 2 = 1.
    actual = advantage.normalise(double(1.0, 2.0, 3.0))

    torch.testing.assert_close(actual, double(-1.0, 0.0, 1.0), rtol=1e-15, atol=0.0)


@pytest.mark.spec("2.4")
def test_the_divisor_has_one_degree_of_freedom_less_than_the_count():
    # (0, 2): mean 1, variance (1 + 1) / 1 = 2. With ddof = 0 the result would be (-1, 1).
    actual = advantage.normalise(double(0.0, 2.0))

    half = math.sqrt(0.5)
    torch.testing.assert_close(actual, double(-half, half), rtol=1e-15, atol=0.0)


@pytest.mark.spec("2.4")
def test_torch_std_uses_one_degree_of_freedom_less():
    # The specification compares with `.std()` of other libraries; this pins what that means.
    assert double(0.0, 2.0).std().item() == pytest.approx(math.sqrt(2.0), rel=1e-15)


@pytest.mark.spec("T-A1", "S3-2", "S1-P3", "1.6")
def test_advantage_normalization_zero_std():
    # In float32 the mean of 2,048 copies of 1.1 is off by rounding and the deviation is as large as
    # the residual, so float32 arithmetic returns -1 (or +1) everywhere. float64 returns 0.
    constant = torch.full((2048,), 1.1, dtype=torch.float32)

    actual = advantage.normalise(constant)

    assert actual.dtype == torch.float32
    assert torch.equal(actual, torch.zeros(2048))


@pytest.mark.spec("T-A1", "S3-2")
@pytest.mark.parametrize("mode", ["floor", "eps", "center_only", "zero"])
@pytest.mark.parametrize("value", [1.1, -3.7, 1e4, 0.0])
def test_a_constant_rollout_gives_zeros_in_every_centred_mode(mode, value):
    constant = torch.full((2048,), value, dtype=torch.float32)

    assert torch.equal(advantage.normalise(constant, mode=mode), torch.zeros(2048))


@pytest.mark.spec("T-A2", "S3-2")
@pytest.mark.parametrize("magnitude", [None, 1.1])
def test_rounding_noise_around_a_constant_never_explodes(magnitude):
    noisy = (1.1 + 1e-7 * normal(2048, seed=1)).float()

    actual = advantage.normalise(noisy, magnitude=magnitude)

    assert torch.isfinite(actual).all()
    assert actual.abs().max() <= 20.0
    assert abs(actual.double().mean().item()) < 1e-6


@pytest.mark.spec("T-A2", "3.2")
def test_differences_below_the_resolution_of_the_value_are_not_amplified():
    # f = 8 * 2^-23 * 1.1 = 1.05e-6; the float32 noise has a deviation near 1.2e-7, so the result
    # has a deviation near 0.11 instead of 1.
    noisy = (1.1 + 1e-7 * normal(2048, seed=1)).float()

    actual = advantage.normalise(noisy, magnitude=1.1)

    least = 8.0 * 2.0**-23 * 1.1
    expected = (noisy.double() - noisy.double().mean()) / least
    torch.testing.assert_close(actual, expected.float(), rtol=1e-6, atol=1e-9)
    assert actual.std() < 0.2


@pytest.mark.spec("T-A3", "S3-2")
def test_small_log_return_advantages_keep_their_signal():
    # A floor of 1e-3 would leave a deviation of .01, skipping one of 1e-5.
    small = 1e-5 * normal(2048, seed=2, dtype=torch.float32)

    actual = advantage.normalise(small, magnitude=small.abs())

    assert actual.double().std().item() == pytest.approx(1.0, abs=1e-2)
    assert actual.double().std().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.spec("T-A4", "S3-9", "3.13")
def test_one_scale_keeps_the_ratio_between_environments_and_per_env_equalises_it():
    raw = normal(500, 2, seed=3) * double(1.0, 10.0)
    ratio = (raw[:, 1].std() / raw[:, 0].std()).item()

    together = advantage.normalise(raw).std(dim=0)
    apart = advantage.normalise(raw, per_env=True).std(dim=0)

    assert (together[1] / together[0]).item() == pytest.approx(ratio, rel=1e-12)
    assert ratio == pytest.approx(10.0, rel=0.1)
    torch.testing.assert_close(apart, double(1.0, 1.0), rtol=1e-12, atol=0.0)


@pytest.mark.spec("T-A4")
def test_per_env_statistics_run_over_the_columns_of_the_last_axis():
    # Columns (0, 2) and (10, 30): each becomes (-.7071, .7071). Rows would give other numbers.
    half = math.sqrt(0.5)

    actual = advantage.normalise(
        torch.tensor([[0.0, 10.0], [2.0, 30.0]], dtype=torch.float64), per_env=True
    )

    expected = torch.tensor([[-half, -half], [half, half]], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-14, atol=0.0)


@pytest.mark.spec("T-A5", "S4-V1")
def test_normalised_once_a_part_of_the_rollout_keeps_its_own_mean():
    # Normalising again inside a microbatch would give that part mean 0 and deviation 1.
    raw = 7.0 * normal(400, 4, seed=4) + double(0.0, 5.0, -5.0, 1.0)

    once = advantage.normalise(raw)

    assert once.std().item() == pytest.approx(1.0, abs=1e-2)
    assert raw.std().item() > 6.5
    for column in range(4):
        part = once[:, column]
        expected = (raw[:, column].mean() - raw.mean()) / raw.std()
        assert part.mean().item() == pytest.approx(expected.item(), rel=1e-9)
    assert abs(once[:, 1].mean().item()) > 0.3


@pytest.mark.spec("2.4", "7")
def test_one_valid_entry_and_no_valid_entry_give_zeros():
    entries = double(5.0, NAN, 7.0)

    for mode in ("floor", "eps", "center_only", "zero"):
        one = advantage.normalise(entries, weight=double(2.0, 0.0, 0.0), mode=mode)
        none = advantage.normalise(entries, weight=double(0.0, 0.0, 0.0), mode=mode)
        assert one.tolist() == [0.0, 0.0, 0.0]
        assert none.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("per_env", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_masked_entries_come_out_as_zero_whatever_they_are(mode, per_env):
    raw = torch.tensor([[1.0, 4.0], [NAN, 6.0], [3.0, math.inf], [8.0, -2.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    filled = torch.where(weight > 0.0, raw, 123.0)

    actual = advantage.normalise(
        raw, weight=weight, mode=mode, per_env=per_env, previous=(0.0, 1.0)
    )
    other = advantage.normalise(
        filled, weight=weight, mode=mode, per_env=per_env, previous=(0.0, 1.0)
    )

    assert torch.isfinite(actual).all()
    assert torch.equal(actual, other)
    assert actual[weight <= 0.0].tolist() == [0.0, 0.0, 0.0]


def test_the_magnitude_of_masked_entries_does_not_raise_the_threshold():
    raw = 1e-6 * normal(100, seed=5)
    weight = torch.ones_like(raw)
    magnitude = torch.full_like(raw, 1e-3)
    weight[0], magnitude[0] = 0.0, 1e9
    masked = advantage.normalise(raw, weight=weight, magnitude=magnitude)
    magnitude[0] = NAN

    again = advantage.normalise(raw, weight=weight, magnitude=magnitude)

    assert masked[1:].std().item() == pytest.approx(1.0, rel=1e-12)
    assert torch.equal(masked, again)


def test_fractional_weights_by_hand():
    # A = (0, 1), w = (1, 3): mean 3/4; spread (1 * 9/16 + 3 * 1/16) / 4 = 3/16; effective count
    # 16 / 10 = 1.6, correction 1.6 / .6 = 8/3: variance 1/2.
    actual = advantage.normalise(double(0.0, 1.0), weight=double(1.0, 3.0))

    root = math.sqrt(2.0)
    torch.testing.assert_close(actual, double(-0.75 * root, 0.25 * root), rtol=1e-14, atol=0.0)


def test_negative_magnitudes_count_by_their_size():
    raw = double(0.0, 1e-6)
    least = 8.0 * 2.0**-23 * 50.0

    actual = advantage.normalise(raw, magnitude=double(-50.0, 1.0))

    torch.testing.assert_close(actual, double(-0.5e-6, 0.5e-6) / least, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(advantage.normalise(raw, magnitude=-50.0), actual)


# A = (-3, 0, 3): mean 0, variance 18 / 2 = 9, deviation 3, free of rounding.
WIDE = (-3.0, 0.0, 3.0)
SHIFTED = (1.0, 4.0, 7.0)
CASES = [
    # mode, floor, previous, input, expected
    ("floor", 1.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("floor", 6.0, None, SHIFTED, (-0.5, 0.0, 0.5)),
    ("eps", 1.0, None, SHIFTED, (-0.75, 0.0, 0.75)),
    ("eps", 6.0, None, SHIFTED, (-3.0 / 9.0, 0.0, 3.0 / 9.0)),
    ("center_only", 1.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("center_only", 6.0, None, SHIFTED, WIDE),
    ("zero", 1.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("zero", 6.0, None, SHIFTED, (0.0, 0.0, 0.0)),
    ("skip", 1.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("skip", 6.0, None, SHIFTED, SHIFTED),
    ("previous_stats", 1.0, (2.0, 8.0), SHIFTED, (-1.0, 0.0, 1.0)),
    ("previous_stats", 6.0, (2.0, 8.0), SHIFTED, (-1.0 / 8.0, 2.0 / 8.0, 5.0 / 8.0)),
    # A previous deviation below the threshold is floored as well.
    ("previous_stats", 6.0, (2.0, 3.0), SHIFTED, (-1.0 / 6.0, 2.0 / 6.0, 5.0 / 6.0)),
    # A deviation on the threshold is still divided by.
    ("center_only", 3.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("zero", 3.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("skip", 3.0, None, SHIFTED, (-1.0, 0.0, 1.0)),
    ("previous_stats", 3.0, (2.0, 8.0), SHIFTED, (-1.0, 0.0, 1.0)),
]


@pytest.mark.spec("2.4", "3.2")
@pytest.mark.parametrize(("mode", "floor", "previous", "given", "expected"), CASES)
def test_every_mode_by_hand_above_below_and_on_the_threshold(
    mode, floor, previous, given, expected
):
    actual = advantage.normalise(double(*given), mode=mode, floor=floor, previous=previous)

    torch.testing.assert_close(actual, double(*expected), rtol=1e-14, atol=1e-15)


def test_the_magnitude_raises_the_threshold_of_the_other_modes_but_not_the_eps():
    # magnitude m with 8 * 2^-23 * m = 6, so f = 6 above the deviation 3.
    magnitude = 6.0 / (8.0 * 2.0**-23)

    for mode in ("center_only", "zero", "skip"):
        with_magnitude = advantage.normalise(double(*SHIFTED), mode=mode, magnitude=magnitude)
        with_floor = advantage.normalise(double(*SHIFTED), mode=mode, floor=6.0)
        assert torch.equal(with_magnitude, with_floor)
    eps = advantage.normalise(double(*SHIFTED), mode="eps", magnitude=magnitude, floor=1.0)
    torch.testing.assert_close(eps, double(-0.75, 0.0, 0.75), rtol=1e-14, atol=0.0)


def test_a_column_with_too_few_entries_uses_the_statistics_of_all():
    # Column 0: (0, 4, 8); column 1: one valid entry, 12. All: mean 6, squares 36+4+4+36 = 80,
    # variance 80 / 3. Column 0 alone: mean 4, variance 32 / 2 = 16, deviation 4.
    raw = torch.tensor([[0.0, 12.0], [4.0, NAN], [8.0, NAN]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)

    actual = advantage.normalise(raw, weight=weight, per_env=True)

    expected = torch.tensor(
        [[-1.0, 6.0 / math.sqrt(80.0 / 3.0)], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64
    )
    torch.testing.assert_close(actual, expected, rtol=1e-14, atol=0.0)


def test_two_equal_fractional_weights_are_enough_for_a_column():
    # Two weights of .3: the effective count is 2 up to rounding, so the column stands alone.
    raw = torch.tensor([[0.0, 5.0], [2.0, 50.0], [9.0, 500.0]], dtype=torch.float64)
    weight = torch.tensor([[0.3, 1.0], [0.3, 1.0], [0.0, 1.0]], dtype=torch.float64)

    actual = advantage.normalise(raw, weight=weight, per_env=True)

    half = math.sqrt(0.5)
    torch.testing.assert_close(actual[:, 0], double(-half, half, 0.0), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("unit", [0.1, 0.3, 0.7, 1.0 / 3.0, 0.9, 1.1, 1e-3, 17.3])
def test_an_effective_count_of_two_is_enough_for_a_column_in_any_unit_of_weight(unit):
    # Weights (1, 1/4, 1/4): (3/2)^2 / (9/8) = 2, but in some units rounding leaves a little less.
    # A = (0, 1, 3): mean (1/4 + 3/4) / (3/2) = 2/3; spread (4/9 + 1/36 + 49/36) / (3/2) = 11/9,
    # and the correction 2 / (2 - 1) doubles it.
    raw = torch.tensor([[0.0, 5.0], [1.0, 50.0], [3.0, 500.0]], dtype=torch.float64)
    weight = unit * torch.tensor([[1.0, 1.0], [0.25, 1.0], [0.25, 1.0]], dtype=torch.float64)

    actual = advantage.normalise(raw, weight=weight, per_env=True)

    expected = (double(0.0, 1.0, 3.0) - 2.0 / 3.0) / math.sqrt(22.0 / 9.0)
    torch.testing.assert_close(actual[:, 0], expected, rtol=1e-12, atol=0.0)


def test_unequal_fractional_weights_are_not_enough_for_a_column():
    # Weights (1, .1): effective count 1.21 / 1.01 = 1.2 < 2, so the column uses everything.
    raw = torch.tensor([[0.0, 5.0], [2.0, 50.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0], [0.1, 1.0]], dtype=torch.float64)

    together = advantage.normalise(raw, weight=weight)
    apart = advantage.normalise(raw, weight=weight, per_env=True)

    torch.testing.assert_close(apart[:, 0], together[:, 0], rtol=1e-14, atol=0.0)
    torch.testing.assert_close(
        apart[:, 1], double(-math.sqrt(0.5), math.sqrt(0.5)), rtol=1e-12, atol=0.0
    )


def test_a_large_common_offset_does_not_eat_the_deviation():
    # E[A^2] - E[A]^2 in one pass would lose everything at 1e8.
    raw = normal(1000, seed=6)

    actual = advantage.normalise(raw + 1e8)

    torch.testing.assert_close(actual, advantage.normalise(raw), rtol=0.0, atol=1e-6)


def test_no_gradient_flows_through_the_result():
    raw = double(1.0, 2.0, 4.0).requires_grad_()

    assert not advantage.normalise(raw).requires_grad
    assert not advantage.normalise(raw, mode="skip", floor=100.0).requires_grad


def test_the_input_is_left_alone():
    raw = double(1.0, 2.0, 4.0)

    advantage.normalise(raw, mode="zero", floor=100.0)

    assert raw.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.spec("M23")
@pytest.mark.parametrize("per_env", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_nan_of_positive_weight_stays_visible_in_every_mode(mode, per_env):
    # sigma is NaN; a rule that reads "sigma >= f" as false would quietly return zeros.
    raw = torch.tensor([[1.0, 2.0], [NAN, 3.0], [4.0, 7.0]], dtype=torch.float64)

    actual = advantage.normalise(raw, mode=mode, per_env=per_env, previous=(0.0, 1.0))

    assert torch.isnan(actual[1, 0])
    if per_env:
        assert torch.isfinite(actual[:, 1]).all()


@pytest.mark.refusal
def test_a_negative_floor_is_refused():
    with pytest.raises(RangeError) as caught:
        advantage.normalise(torch.zeros(3), floor=-1e-8)
    assert str(caught.value) == (
        "`floor` must be at least 0; found -1e-08. "
        "Pass the smallest standard deviation to divide by. [out-of-range]"
    )
    with pytest.raises(RangeError) as caught:
        advantage.normalise(torch.zeros(3), floor=NAN)
    assert str(caught.value) == (
        "`floor` must be at least 0; found nan. "
        "Pass the smallest standard deviation to divide by. [out-of-range]"
    )


@pytest.mark.refusal
def test_the_mode_previous_stats_demands_the_statistics():
    with pytest.raises(ArgumentError) as caught:
        advantage.normalise(torch.zeros(3), mode="previous_stats")
    assert str(caught.value) == (
        "`previous` must be given as (mean, std) in mode `previous_stats`; found None. "
        "Pass the statistics of the rollout before. [missing-argument]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("mode", "remedy"),
    [
        ("centre_only", "Did you mean `center_only`?"),
        ("flor", "Did you mean `floor`?"),
        ("whiten", "Choose one of those names."),
    ],
)
def test_an_unknown_mode_is_refused_with_the_choices(mode, remedy):
    with pytest.raises(ChoiceError) as caught:
        advantage.normalise(torch.zeros(3), mode=mode)
    assert str(caught.value) == (
        "`mode` must be one of `floor`, `eps`, `center_only`, `zero`, `skip`, `previous_stats`; "
        f"found `{mode}`. {remedy} [unknown-choice]"
    )


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_weights_of_another_shape_are_refused():
    with pytest.raises(ShapeError) as caught:
        advantage.normalise(torch.zeros(5, 3), weight=torch.ones(5, 1))
    assert str(caught.value) == (
        "`advantage` and `weight` must have the same shape; "
        f"found advantage (5, 3) and weight (5, 1). {NEVER}"
    )


# --- running moments -----------------------------------------------------------------------------


def running(*rollouts, beta=0.98, weight=None):
    seen = None
    for values in rollouts:
        seen = advantage.running_moments(values, seen, weight=weight, beta=beta)
    return seen


def test_one_rollout_has_its_own_moments():
    # (1, 2, 3, 6): mean 3, squares 4 + 1 + 0 + 9 = 14, over 3.
    actual = running(double(1.0, 2.0, 3.0, 6.0))

    torch.testing.assert_close(
        torch.stack(actual), double(1.0, 3.0, 14.0 / 3.0), rtol=1e-15, atol=0
    )


def test_a_first_rollout_is_normalised_as_by_itself():
    raw = normal(6, 3) + 4.0

    actual = advantage.normalise_by(raw, running(raw))

    torch.testing.assert_close(actual, advantage.normalise(raw), rtol=1e-14, atol=1e-15)


def test_three_rollouts_by_hand():
    # Gains 3/3 = 1, 3/4, 3/5. Means 1, 3, 0; variances 2, 8, 2 (two values each, ddof 1).
    # Means: 1 -> 1 + .75 * 2 = 2.5 -> 2.5 - .6 * 2.5 = 1.
    # Weights of the rollouts: .25 * .4 = .1, .75 * .4 = .3, .6; sum of w * mean = .1 + .9 = 1.
    # Variance: .1 * (2 + 0) + .3 * (8 + 4) + .6 * (2 + 1) = .2 + 3.6 + 1.8 = 5.6.
    actual = running(double(0.0, 2.0), double(1.0, 5.0), double(-1.0, 1.0))

    torch.testing.assert_close(torch.stack(actual), double(3.0, 1.0, 5.6), rtol=1e-14, atol=0.0)


def test_many_rollouts_are_a_moving_average():
    # With beta .5 the gain is 3/(k+2) up to k = 4, where it is the bound .5: then it stays there.
    before = advantage.RunningMoments(*double(10.0, 2.0, 1.0))

    actual = advantage.running_moments(double(3.0, 5.0), before, beta=0.5)

    # mean 2 + .5 * (4 - 2) = 3; variance .5 * (1 + .5 * 4) + .5 * 2 = 2.5
    torch.testing.assert_close(torch.stack(actual), double(11.0, 3.0, 2.5), rtol=1e-15, atol=0.0)


def test_the_squares_are_about_the_running_mean():
    """Two rollouts without any spread of their own, at 0 and 4: the spread is between them."""
    # Gains 1 and .75: mean 3, variance .25 * 9 + .75 * 1 = 3.
    actual = running(double(0.0, 0.0), double(4.0, 4.0))

    torch.testing.assert_close(torch.stack(actual), double(2.0, 3.0, 3.0), rtol=1e-15, atol=0.0)


def test_entries_without_weight_take_no_part_in_running_moments():
    weight = double(1.0, 0.0, 0.5, 0.5)
    raw = double(1.0, NAN, 3.0, 5.0)
    # mean (1 + 1.5 + 2.5) / 2 = 2.5; squares (2.25 + .125 + 3.125) / 2 = 2.75;
    # effective count 4 / 1.5 = 8/3, so times (8/3) / (5/3) = 1.6: 4.4.
    actual = running(raw, weight=weight)

    torch.testing.assert_close(torch.stack(actual), double(1.0, 2.5, 4.4), rtol=1e-14, atol=0.0)
    scaled = advantage.normalise_by(raw, actual, weight=weight)
    assert scaled[1] == 0.0
    assert float(scaled[0]) == pytest.approx(-1.5 / math.sqrt(4.4), rel=1e-14)


def test_a_rollout_without_any_weight_changes_nothing():
    before = advantage.RunningMoments(*double(2.0, 0.3, 4.0))
    nothing = {"weight": torch.zeros(3, dtype=torch.float64), "beta": 0.9}

    after = advantage.running_moments(double(NAN, 7.0, 8.0), before, **nothing)
    first = advantage.running_moments(double(1.0, 2.0, 3.0), None, **nothing)

    assert torch.equal(torch.stack(after), torch.stack(before))
    assert torch.equal(torch.stack(first), double(0.0, 0.0, 0.0))
    # and the next one is the first that counts
    next_one = advantage.running_moments(double(1.0, 2.0, 3.0), first, beta=0.9)
    assert torch.equal(torch.stack(next_one), double(1.0, 2.0, 1.0))


def test_a_rollout_is_divided_by_what_was_before_it_if_that_has_a_spread():
    before = advantage.RunningMoments(*double(2.0, 0.3, 4.0))
    after = advantage.RunningMoments(*double(3.0, 0.5, 5.0))
    flat = advantage.RunningMoments(*double(1.0, 0.3, 1e-16))

    assert torch.equal(
        torch.stack(advantage.earlier_moments(before, after, floor=1e-8)), torch.stack(before)
    )
    for earlier in (None, flat):
        used = advantage.earlier_moments(earlier, after, floor=1e-7)
        assert torch.equal(torch.stack(used), torch.stack(after))


def test_advantages_are_divided_by_the_running_deviation_and_not_their_own():
    moments = advantage.RunningMoments(*double(5.0, 1.0, 4.0))

    actual = advantage.normalise_by(double(1.0, 2.0, 9.0), moments)

    torch.testing.assert_close(actual, double(0.0, 0.5, 4.0), rtol=1e-15, atol=0.0)


def test_a_running_deviation_has_the_floors_of_the_other():
    moments = advantage.RunningMoments(*double(5.0, 1.0, 1e-12))

    assert float(advantage.normalise_by(double(1.5), moments, floor=0.25)) == 2.0
    # 8 * 2^-23 * 2^20 = 1
    assert float(advantage.normalise_by(double(1.5), moments, magnitude=2.0**20)) == 0.5
    still = advantage.RunningMoments(*double(5.0, 1.0, 0.0))
    assert float(advantage.normalise_by(double(1.5), still, floor=0.0)) == 0.5


@pytest.mark.refusal
def test_running_moments_refuse_what_they_cannot_use():
    with pytest.raises(RangeError) as caught:
        advantage.running_moments(double(1.0), None, beta=1.0)
    assert str(caught.value) == (
        "`beta` must lie in [0, 1); found 1.0. Pass the decay of an average, such as 0.98. "
        "[out-of-range]"
    )
    moments = advantage.RunningMoments(*double(5.0, 1.0, 1.0))
    with pytest.raises(RangeError):
        advantage.normalise_by(double(1.0), moments, floor=-1.0)
    with pytest.raises(RangeError):
        advantage.earlier_moments(moments, moments, floor=-1.0)
    for call in (
        lambda weight: advantage.running_moments(double(1.0), None, weight=weight, beta=0.9),
        lambda weight: advantage.normalise_by(double(1.0), moments, weight=weight),
    ):
        with pytest.raises(ShapeError):
            call(double(1.0, 2.0))


# --- rare losses ---------------------------------------------------------------------------------

ROWS, DRIFT, NOISE, LOSS, EVENT = 8192, 0.0006, 0.012, 0.35, 0.0005
LAMBDA, ALPHA = 2.0, 0.05
MOST = 12
"""Losses in a rollout that are considered; more have a probability below 1e-9."""


def rollout_with(losses, exposure):
    """Return mixed advantages and scores of a rollout that holds a number of rare losses.

    Each row is exposed with the probability of the policy, or not. An exposed row earns drift and
    noise, here at equally likely points of its distribution; or it loses. The mix is that of a
    limit, (A + lambda A_risk) / (1 + lambda) with A_risk = -loss / alpha in the tail and 0 above.
    The score is the derivative of the log probability by the logit of the exposure.
    """
    exposed = round(exposure * ROWS)
    calm = exposed - losses
    levels = (torch.arange(calm, dtype=torch.float64) + 0.5) / calm
    noise = torch.special.ndtri(levels)
    noise = NOISE * noise / noise.square().mean().sqrt()
    crash = torch.full((losses,), -LOSS * (1.0 + LAMBDA / ALPHA), dtype=torch.float64)
    mixed = torch.cat([DRIFT + noise, crash]) / (1.0 + LAMBDA)
    raw = torch.cat([mixed, torch.zeros(ROWS - exposed, dtype=torch.float64)])
    score = torch.cat([torch.ones(exposed), torch.zeros(ROWS - exposed)]).double() - exposed / ROWS
    return raw, score


def chances(exposure):
    """Return the probability of each number of losses: binomial."""
    n = round(exposure * ROWS)
    return [math.comb(n, k) * EVENT**k * (1.0 - EVENT) ** (n - k) for k in range(MOST + 1)]


def expected_gradient(exposure, normalised):
    """Return the mean over rollouts of the mean over rows of score times normalised advantage."""
    total = 0.0
    for losses, chance in enumerate(chances(exposure)):
        raw, score = rollout_with(losses, exposure)
        total += chance * float((normalised(raw) * score).mean())
    return total


@pytest.mark.parametrize(
    ("exposure", "plain", "by_rollout", "by_slow"),
    [(0.1, -1.97e-4, 5.8e-3, -5.9e-3), (0.2, -3.51e-4, 2.4e-3, -7.3e-3)],
)
def test_a_rare_loss_turns_the_gradient_of_the_rollout_scale_and_not_of_the_slow_one(
    exposure, plain, by_rollout, by_slow
):
    """Exposure must fall: 41/3 of the loss at .05 % a row outweighs a third of the drift."""
    # w (1 - w) (mu - p D (1 + lambda / alpha)) / (1 + lambda), less p of the drift
    exact = (1.0 - EVENT) * DRIFT - EVENT * LOSS * (1.0 + LAMBDA / ALPHA)
    share = round(exposure * ROWS) / ROWS
    exact *= share * (1.0 - share) / (1.0 + LAMBDA)
    assert exact == pytest.approx(plain, rel=0.01)
    assert expected_gradient(exposure, lambda raw: raw) == pytest.approx(exact, rel=1e-6)

    wrong = expected_gradient(exposure, advantage.normalise)
    assert wrong == pytest.approx(by_rollout, rel=0.03)

    # Rollouts in a row: whatever was seen before, the mean over the coming one is right.
    drawn = torch.Generator().manual_seed(0)
    mean = torch.full((600,), EVENT * round(exposure * ROWS))
    seen, gradients = None, []
    rollouts = {}
    for number, losses in enumerate(torch.poisson(mean, generator=drawn).int().tolist()):
        raw, _ = rollouts.setdefault(losses, rollout_with(losses, exposure))
        seen = advantage.running_moments(raw, seen, beta=0.98)
        if number >= 100:
            gradients.append(exact / float(seen.variance.sqrt()))
    assert sum(gradients) / len(gradients) == pytest.approx(by_slow, rel=0.05)
    right = expected_gradient(exposure, lambda raw: advantage.normalise_by(raw, seen))
    assert right == pytest.approx(gradients[-1], rel=1e-6)
