"""Hand-computed values, golden numbers and refusals of `stormsail.functional.value_clip`."""

import math

import numpy as np
import pytest
import torch

from stormsail.core.errors import ChoiceError, RangeError, ShapeError
from stormsail.functional import categorical, quantile, twin, value_clip

NAN, INF = math.nan, math.inf


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected, *, atol=1e-12):
    np.testing.assert_allclose(actual.detach(), expected, rtol=1e-12, atol=atol)


@pytest.mark.spec("T-F1", "S3-M1")
def test_mean_only_moves_the_mean_and_keeps_every_distance():
    # New mean 5, old mean 1, epsilon .5: the distribution moves by -3.5 as a whole.
    actual = value_clip.clip_quantiles(row(2, 4, 9), row(0, 1, 2), epsilon=0.5, mode="mean_only")
    close(actual, [-1.5, 0.5, 5.5])
    assert actual.var(correction=0).item() == row(2, 4, 9).var(correction=0).item()


@pytest.mark.spec("T-F1")
def test_mean_only_inside_the_band_changes_nothing():
    actual = value_clip.clip_quantiles(row(1, 2), row(0, 2), epsilon=0.5, mode="mean_only")
    close(actual, [1, 2])


@pytest.mark.spec("T-F2", "S3-M1", "X12")
def test_mean_and_variance_only_ever_shrinks_the_spread():
    # Old (-1, 1) has variance 1; the factor 2 acts on the standard deviation, so variance 4
    # (-2, 2) is left alone and variance 16 (-4, 4) becomes 4. sqrt(var / var_old) would inflate.
    old = row(-1, 1)
    for new, expected in (((-2, 2), 4.0), ((-4, 4), 4.0), ((-0.5, 0.5), 0.25), ((-1, 1), 1.0)):
        actual = value_clip.clip_quantiles(
            row(*new), old, epsilon=1.0, mode="mean_and_variance", variance_factor=2.0
        )
        close(actual.var(correction=0), expected)


@pytest.mark.spec("T-F2")
def test_mean_and_variance_by_hand():
    # New (6, 14): mean 10, std 4. Old (-1, 1): mean 0, std 1. Mean goes to .5, spread to 2.
    actual = value_clip.clip_quantiles(
        row(6, 14), row(-1, 1), epsilon=0.5, mode="mean_and_variance", variance_factor=2.0
    )
    close(actual, [-1.5, 2.5])
    # The default factor is 2.
    default = value_clip.clip_quantiles(
        row(6, 14), row(-1, 1), epsilon=0.5, mode="mean_and_variance"
    )
    close(default, [-1.5, 2.5])


def test_a_collapsed_distribution_keeps_a_finite_gradient():
    # std = 0 has no derivative of its own; the factor is 1 there and the gradient that of a shift.
    new = row(3, 3, 3).requires_grad_()
    actual = value_clip.clip_quantiles(new, row(0, 1, 2), epsilon=0.5, mode="mean_and_variance")
    close(actual, [1.5, 1.5, 1.5])
    actual[0].backward()
    assert bool(new.grad.isfinite().all())
    distribution = row(0.0, 1.0, 0.0).requires_grad_()
    clipped = value_clip.clip_distribution(
        distribution, row(0.5, 0.25, 0.25), row(-1, 0, 1), epsilon=0.5, mode="mean_and_variance"
    )
    (gradient,) = torch.autograd.grad(clipped[1], distribution)
    assert bool(gradient.isfinite().all())


def test_a_collapsed_old_distribution_leaves_a_spread_of_its_floor():
    # std_old is floored at 1e-8: the new distribution is squeezed to twice that, not divided by
    # zero.
    actual = value_clip.clip_quantiles(
        row(-1, 1), row(0, 0), epsilon=1.0, mode="mean_and_variance", variance_factor=2.0
    )
    np.testing.assert_allclose(actual, [-2e-8, 2e-8], rtol=1e-9)


@pytest.mark.spec("T-F3", "S3-M1")
def test_per_quantile_holds_each_quantile_near_its_own_old_one():
    # A distribution of std 10 is not collapsed to a scalar old value +- epsilon.
    old = row(-14, 0, 14)
    actual = value_clip.clip_quantiles(row(-20, 0.2, 10), old, epsilon=0.5, mode="per_quantile")
    close(actual, [-14.5, 0.2, 13.5])
    assert actual.std(correction=0).item() > 10


@pytest.mark.spec("T-F4", "S3-M1")
def test_off_ignores_the_band():
    new = row(2, 4, 9)
    actual = value_clip.clip_quantiles(new, row(0, 0, 0), epsilon=0.0, mode="off")
    assert torch.equal(actual, new)
    distribution = row(0.2, 0.8)
    actual = value_clip.clip_distribution(
        distribution, row(0.9, 0.1), row(0, 1), epsilon=0.0, mode="off"
    )
    assert torch.equal(actual, distribution)


@pytest.mark.spec("T-F5", "S3-FP1", "S3-4")
def test_a_quantile_target_far_from_the_old_value_is_never_clipped():
    # One median: old 0, new 0, target 10, epsilon .5. Both branches cost .5 * 10; a target held
    # within old +- .5 would cost .5 * .5.
    new, old, target, tau = row(0.0), row(0.0), row(10.0), row(0.5)
    clipped = value_clip.clip_quantiles(new, old, epsilon=0.5, mode="mean_only")
    for predicted in (new, clipped):
        close(quantile.huber_loss(predicted, target, tau, kappa=0.0), 5.0)


@pytest.mark.spec("T-F6", "S4-V6")
def test_the_worse_branch_is_taken_for_each_sample_before_the_mean():
    # One prediction 2, old 0, epsilon 1, so the clipped prediction is 1; pinball at tau .5 counts
    # half the distance. Target -2: 2 plain, 1.5 clipped. Target 4: 1 plain, 1.5 clipped.
    new, old, tau = row(2.0, 2.0).unsqueeze(-1), row(0.0, 0.0).unsqueeze(-1), row(0.5)
    target = row(-2.0, 4.0).unsqueeze(-1)
    clipped = value_clip.clip_quantiles(new, old, epsilon=1.0, mode="mean_only")
    plain = quantile.huber_loss(new, target, tau, kappa=0.0)
    held = quantile.huber_loss(clipped, target, tau, kappa=0.0)
    close(plain, [2.0, 1.0])
    close(held, [1.5, 1.5])
    worse = twin.twin_loss(plain.unsqueeze(-1), held.unsqueeze(-1))
    assert worse.mean().item() == 1.75  # the maximum of the means is 1.5


@pytest.mark.spec("T-F7")
def test_a_value_limit_holds_predictions_and_leaves_targets():
    # L = 1, prediction 3, target 3 in raw units, mean 1, std 2: encoded 1, limited to encoded 0.
    prediction, target = row(1.0), row(1.0)
    limited = value_clip.limit_encoded(prediction, limit=1.0, mean=1.0, std=2.0)
    close(limited, [0.0])
    close(2.0 * limited + 1.0, [1.0])
    close(target, [1.0])
    # The loss still sees the whole distance of 2 raw units = 1 encoded unit, halved by tau = .5.
    close(quantile.huber_loss(limited, target, row(0.5), kappa=0.0), 0.5)


def test_a_value_limit_acts_on_both_sides_in_raw_units():
    # Decoded -5, -1, 0, 2, 7 with mean 1, std 2 (encoded (v - 1) / 2), limit 2.
    encoded = row(-3, -1, -0.5, 0.5, 3)
    actual = value_clip.limit_encoded(encoded, limit=2.0, mean=1.0, std=2.0)
    close(actual, [-1.5, -1, -0.5, 0.5, 0.5])


def test_a_value_limit_stops_the_gradient_only_where_it_acts():
    encoded = row(-3, 0.1, 3).requires_grad_()
    value_clip.limit_encoded(encoded, limit=2.0, mean=1.0, std=2.0).sum().backward()
    close(encoded.grad, [0, 1, 0])


def test_a_distribution_is_moved_by_its_clipped_mean():
    # All mass on 2, old all on 0, epsilon .5: the mean goes to .5, half on 0 and half on 1.
    atoms = row(-1, 0, 1, 2)
    actual = value_clip.clip_distribution(
        row(0, 0, 0, 1), row(0, 1, 0, 0), atoms, epsilon=0.5, mode="mean_only"
    )
    close(actual, [0, 0.5, 0.5, 0])


def test_the_spread_of_a_distribution_is_held_too():
    # Half on -4, half on 4 (std 4), old half on -1 and 1 (std 1): spread 2 is left of the factor
    # 2, atoms move to -2 and 2. Without the spread the distribution would stay.
    atoms = torch.arange(-4.0, 5.0, dtype=torch.float64)
    new, old = torch.zeros(9, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    new[[0, 8]], old[[3, 5]] = 0.5, 0.5
    actual = value_clip.clip_distribution(new, old, atoms, epsilon=1.0, mode="mean_and_variance")
    close(actual[[2, 6]], [0.5, 0.5])
    close(categorical.distribution_variance(actual, atoms), 4.0)
    close(
        value_clip.clip_distribution(new, old, atoms, epsilon=1.0, mode="mean_only"),
        new,
        atol=1e-12,
    )


def test_old_distributions_get_no_gradient():
    old = row(0.5, 0.25, 0.25).requires_grad_()
    new = row(0.1, 0.2, 0.7).requires_grad_()
    for mode in ("mean_only", "mean_and_variance"):
        clipped = value_clip.clip_distribution(new, old, row(-1, 0, 1), epsilon=0.1, mode=mode)
        clipped[0].backward()
    assert old.grad is None
    assert bool((new.grad != 0).any())


# -------------------------------------------------------------------------------------- refusals

NEW, DISTRIBUTION, ATOMS = torch.zeros(4, 8), torch.full((4, 3), 1 / 3), torch.arange(3.0)


@pytest.mark.refusal
def test_an_unknown_mode_is_refused_with_the_nearest_name():
    with pytest.raises(ChoiceError) as caught:
        value_clip.clip_quantiles(NEW, NEW, epsilon=0.5, mode="mean_olny")
    assert str(caught.value) == (
        "`mode` must be one of `off`, `mean_only`, `mean_and_variance`, `per_quantile`; "
        "found `mean_olny`. Did you mean `mean_only`? [unknown-choice]"
    )
    with pytest.raises(ChoiceError) as caught:
        value_clip.clip_quantiles(NEW, NEW, epsilon=0.5, mode="zzz")
    assert str(caught.value) == (
        "`mode` must be one of `off`, `mean_only`, `mean_and_variance`, `per_quantile`; "
        "found `zzz`. Choose one of those names. [unknown-choice]"
    )


@pytest.mark.refusal
def test_an_unknown_mode_of_a_distribution_is_refused_with_the_nearest_name():
    with pytest.raises(ChoiceError) as caught:
        value_clip.clip_distribution(
            DISTRIBUTION, DISTRIBUTION, ATOMS, epsilon=0.5, mode="mean_olny"
        )
    assert str(caught.value) == (
        "`mode` must be one of `off`, `mean_only`, `mean_and_variance`; "
        "found `mean_olny`. Did you mean `mean_only`? [unknown-choice]"
    )


@pytest.mark.refusal
def test_a_distribution_has_no_quantiles_to_clip_one_by_one():
    with pytest.raises(ChoiceError) as caught:
        value_clip.clip_distribution(
            DISTRIBUTION, DISTRIBUTION, ATOMS, epsilon=0.5, mode="per_quantile"
        )
    message = str(caught.value)
    assert "found `per_quantile`." in message
    assert message.endswith("[unknown-choice]")
    # It says why, instead of proposing a name that sounds alike.
    assert "Did you mean" not in message
    assert "Choose one of those names." not in message


@pytest.mark.refusal
@pytest.mark.parametrize("epsilon", [-0.5, -1e-9, NAN])
def test_a_band_of_negative_width_is_refused(epsilon):
    expected = (
        f"`epsilon` must be at least 0; found {epsilon!r}. "
        "Pass the half-width of the band in the unit of the values. [out-of-range]"
    )
    with pytest.raises(RangeError) as caught:
        value_clip.clip_quantiles(NEW, NEW, epsilon=epsilon, mode="mean_only")
    assert str(caught.value) == expected
    with pytest.raises(RangeError) as caught:
        value_clip.clip_distribution(
            DISTRIBUTION, DISTRIBUTION, ATOMS, epsilon=epsilon, mode="mean_only"
        )
    assert str(caught.value) == expected


@pytest.mark.refusal
@pytest.mark.parametrize("factor", [0, 0.0, -2.0, NAN])
def test_a_variance_factor_of_zero_is_refused(factor):
    expected = (
        f"`variance_factor` must be greater than 0; found {factor!r}. "
        "Use 2.0 to let the spread double. [out-of-range]"
    )
    options = {"epsilon": 0.5, "mode": "mean_and_variance", "variance_factor": factor}
    with pytest.raises(RangeError) as caught:
        value_clip.clip_quantiles(NEW, NEW, **options)
    assert str(caught.value) == expected
    with pytest.raises(RangeError) as caught:
        value_clip.clip_distribution(DISTRIBUTION, DISTRIBUTION, ATOMS, **options)
    assert str(caught.value) == expected


@pytest.mark.refusal
def test_old_and_new_must_have_the_same_shape():
    tail = (
        "Reduce or expand one of them before the call; this function never broadcasts. "
        "[shape-mismatch]"
    )
    with pytest.raises(ShapeError) as caught:
        value_clip.clip_quantiles(NEW, torch.zeros(4, 1), epsilon=0.5, mode="mean_only")
    assert str(caught.value) == (
        f"`new` and `old` must have the same shape; found new (4, 8) and old (4, 1). {tail}"
    )
    with pytest.raises(ShapeError) as caught:
        value_clip.clip_distribution(
            DISTRIBUTION, DISTRIBUTION[:1], ATOMS, epsilon=0.5, mode="mean_only"
        )
    assert str(caught.value) == (
        "`probs` and `old_probs` must have the same shape; "
        f"found probs (4, 3) and old_probs (1, 3). {tail}"
    )


@pytest.mark.refusal
def test_a_distribution_must_live_on_its_atoms():
    with pytest.raises(ShapeError) as caught:
        value_clip.clip_distribution(
            DISTRIBUTION, DISTRIBUTION, torch.arange(4.0), epsilon=0.5, mode="mean_only"
        )
    assert str(caught.value) == (
        "`probs` must have one entry for each of the 4 atoms in its last dimension; "
        "found probs (4, 3). Project the distribution on these atoms first. [shape-mismatch]"
    )
    one = torch.zeros(4, 1)
    with pytest.raises(ShapeError) as caught:
        value_clip.clip_distribution(one, one, torch.zeros(1), epsilon=0.5, mode="mean_only")
    assert str(caught.value) == (
        "`atoms` must be one-dimensional with at least 2 entries; found atoms (1,). "
        "Pass the support as one ascending row. [shape-mismatch]"
    )


def test_an_infinite_band_is_allowed():
    actual = value_clip.clip_quantiles(row(1, 5), row(0, 0), epsilon=INF, mode="mean_only")
    close(actual, [1, 5])
