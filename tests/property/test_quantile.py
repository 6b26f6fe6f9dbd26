"""Properties of `stormsail.functional.quantile`, each against the loops of `oracles.quantile`."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import quantile as oracle
from stormsail.functional import quantile

FLOAT32_BOUND = 1e-5
"""Relative to the largest pair distance, which is at most 20 here; kappa is at least 0.01."""

numbers = st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-6 else 0.0)
atoms = arrays.arrays(np.float64, st.integers(1, 6), elements=numbers)
thresholds = st.floats(0.01, 10.0)


def loss(predicted, target, *, kappa):
    predicted, target = torch.as_tensor(predicted), torch.as_tensor(target)
    tau = quantile.midpoints(predicted.shape[-1], like=predicted)
    return quantile.huber_loss(predicted, target, tau, kappa=kappa)


@pytest.mark.spec("T-Q3", "S1-D3", "M01", "R9")
@given(atoms, atoms, thresholds | st.just(0.0))
def test_huber_loss_equals_the_paper(predicted, target, kappa):
    expected = oracle.huber_loss(predicted, target, oracle.midpoints(len(predicted)), kappa)
    np.testing.assert_allclose(loss(predicted, target, kappa=kappa), expected, rtol=1e-9, atol=1e-9)


@given(atoms, numbers, thresholds | st.just(0.0))
def test_level_huber_loss_equals_its_definition(predicted, sample, kappa):
    tau = oracle.midpoints(len(predicted))
    actual = quantile.level_huber_loss(
        torch.from_numpy(predicted),
        torch.tensor(sample, dtype=torch.float64),
        torch.from_numpy(tau),
        kappa=kappa,
    )
    expected = oracle.level_huber_loss(predicted, sample, tau, kappa)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@given(atoms, atoms, thresholds)
def test_huber_loss_in_float32_stays_near_float64(predicted, target, kappa):
    actual = loss(predicted.astype(np.float32), target.astype(np.float32), kappa=kappa)
    assert actual.dtype == torch.float32
    expected = oracle.huber_loss(predicted, target, oracle.midpoints(len(predicted)), kappa)
    np.testing.assert_allclose(actual, expected, rtol=FLOAT32_BOUND, atol=20 * FLOAT32_BOUND)


@pytest.mark.spec("M01", "R9")
@given(atoms, atoms, thresholds | st.just(0.0))
def test_the_gradient_of_huber_loss_equals_the_derivative_of_the_paper(predicted, target, kappa):
    if kappa == 0:  # the pinball loss has a kink where a prediction meets a target
        assume(np.abs(predicted[:, None] - target[None, :]).min() > 1e-9)
    theta = torch.from_numpy(predicted).requires_grad_()
    loss(theta, target, kappa=kappa).backward()
    expected = oracle.huber_loss_gradient(
        predicted, target, oracle.midpoints(len(predicted)), kappa
    )
    np.testing.assert_allclose(theta.grad, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.spec("R9")
@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.02, 0.5, 1.0]))
def test_the_gradient_of_huber_loss_agrees_with_finite_differences(seed, kappa):
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    target = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    u = target.unsqueeze(-2) - predicted.unsqueeze(-1)
    assume(bool((u.abs() > 1e-4).all() and ((u.abs() - kappa).abs() > 1e-4).all()))
    tau = quantile.midpoints(4, like=predicted)
    assert torch.autograd.gradcheck(
        lambda theta: quantile.huber_loss(theta, target, tau, kappa=kappa),
        predicted.requires_grad_(),
        atol=1e-6,
        rtol=1e-6,
    )


@given(atoms, atoms, thresholds)
def test_targets_get_no_gradient(predicted, target, kappa):
    theta, y = torch.from_numpy(predicted), torch.from_numpy(target)
    theta.requires_grad_()
    y.requires_grad_()
    loss(theta, y, kappa=kappa).backward()
    assert y.grad is None


@given(atoms, atoms, thresholds, st.floats(-5, 5), st.floats(0.1, 10))
def test_huber_loss_moves_with_shift_and_scale(predicted, target, kappa, shift, scale):
    before = loss(predicted, target, kappa=kappa)
    shifted = loss(predicted + shift, target + shift, kappa=kappa)
    scaled = loss(scale * predicted, scale * target, kappa=scale * kappa)
    np.testing.assert_allclose(shifted, before, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(scaled, scale * before, rtol=1e-9, atol=1e-9)


@given(atoms, atoms, thresholds, st.randoms(use_true_random=False))
def test_huber_loss_ignores_the_order_of_targets_and_of_level_value_pairs(
    predicted, target, kappa, random
):
    tau = oracle.midpoints(len(predicted))
    order = list(range(len(predicted)))
    random.shuffle(order)
    shuffled = quantile.huber_loss(
        torch.from_numpy(predicted[order]),
        torch.from_numpy(np.sort(target)),
        torch.from_numpy(tau[order]),
        kappa=kappa,
    )
    expected = loss(predicted, target, kappa=kappa)
    np.testing.assert_allclose(shuffled, expected, rtol=1e-9, atol=1e-12)


@given(atoms, atoms)
def test_a_vanishing_threshold_is_the_pinball_loss(predicted, target):
    pinball = loss(predicted, target, kappa=0.0)
    # L_kappa(u) / kappa misses |u| by at most kappa / 2.
    np.testing.assert_allclose(loss(predicted, target, kappa=1e-7), pinball, rtol=0, atol=1e-7)


@given(atoms, thresholds)
def test_mirroring_the_distribution_mirrors_the_levels(target, kappa):
    predicted = np.linspace(-2, 3, 4)
    mirrored = loss(-predicted[::-1].copy(), -target, kappa=kappa)
    expected = loss(predicted, target, kappa=kappa)
    np.testing.assert_allclose(mirrored, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.spec("M02")
@given(
    arrays.arrays(np.float64, (3, 2, 4), elements=numbers),
    arrays.arrays(np.float64, (3, 2, 5), elements=numbers),
    thresholds,
)
def test_every_batch_entry_is_computed_on_its_own(predicted, target, kappa):
    whole = loss(predicted, target, kappa=kappa)
    active = quantile.huber_active(
        torch.from_numpy(predicted), torch.from_numpy(target), kappa=kappa
    )
    assert whole.shape == active.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            one = oracle.huber_loss(predicted[i, j], target[i, j], oracle.midpoints(4), kappa)
            np.testing.assert_allclose(whole[i, j], one, rtol=1e-9, atol=1e-12)
            expected = oracle.huber_active(predicted[i, j], target[i, j], kappa)
            np.testing.assert_allclose(active[i, j], expected, rtol=1e-9)


@pytest.mark.spec("M23")
@given(atoms, atoms, st.integers(0, 5), st.sampled_from(["predicted", "target"]))
def test_a_missing_number_makes_the_loss_missing(predicted, target, place, which):
    array = predicted if which == "predicted" else target
    array[place % len(array)] = np.nan
    assert bool(loss(predicted, target, kappa=1.0).isnan())


@given(atoms)
def test_monotone_equals_the_running_sum_of_softplus(raw):
    actual = quantile.monotone(torch.from_numpy(raw))
    np.testing.assert_allclose(actual, oracle.monotone(raw), rtol=1e-9, atol=1e-9)
    assert bool((actual.diff() > 0).all())
    assert quantile.crossing_fraction(actual).item() == 0.0


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_monotone_passes_its_gradient_to_every_raw_output(seed):
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(2, 4, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(quantile.monotone, raw)
    (gradient,) = torch.autograd.grad(quantile.monotone(raw)[..., -1].sum(), raw)
    assert bool((gradient > 0).all())


@given(arrays.arrays(np.float64, (2, 5), elements=numbers))
def test_monotone_moves_with_its_first_entry_alone(raw):
    moved = raw.copy()
    moved[:, 0] += 2.5
    actual = quantile.monotone(torch.from_numpy(moved)) - quantile.monotone(torch.from_numpy(raw))
    np.testing.assert_allclose(actual, np.full((2, 5), 2.5), rtol=1e-9)


@given(arrays.arrays(np.float64, st.integers(1, 7), elements=st.integers(-2, 2).map(float)))
def test_crossing_fraction_counts_neighbours_in_the_wrong_order(quantiles):
    actual = quantile.crossing_fraction(torch.from_numpy(quantiles))
    np.testing.assert_allclose(actual, oracle.crossing_fraction(quantiles), rtol=1e-9)


@given(arrays.arrays(np.float64, st.integers(2, 7), elements=numbers, unique=True))
def test_crossing_fraction_of_a_reversed_distribution_is_the_complement(quantiles):
    there = quantile.crossing_fraction(torch.from_numpy(quantiles))
    back = quantile.crossing_fraction(torch.from_numpy(quantiles[::-1].copy()))
    np.testing.assert_allclose(there + back, 1.0, rtol=1e-9)


@given(atoms, atoms, thresholds, thresholds)
def test_fewer_pairs_are_active_as_the_threshold_grows(predicted, target, first, second):
    low, high = sorted((first, second))
    theta, y = torch.from_numpy(predicted), torch.from_numpy(target)
    wide = quantile.huber_active(theta, y, kappa=low)
    assert bool(quantile.huber_active(theta, y, kappa=high) <= wide)
    np.testing.assert_allclose(wide, oracle.huber_active(predicted, target, low), rtol=1e-9)


@pytest.mark.spec("T-Q2", "S1-D2")
@given(st.integers(1, 300), st.sampled_from([torch.float32, torch.float64]))
def test_midpoints_equal_their_definition_and_are_symmetric(n, dtype):
    tau = quantile.midpoints(n, like=torch.zeros(1, dtype=dtype))
    assert tau.dtype == dtype
    unit = torch.finfo(dtype).eps
    np.testing.assert_allclose(tau.double(), oracle.midpoints(n), rtol=unit, atol=0)
    np.testing.assert_allclose((tau + tau.flip(0)).double(), np.ones(n), rtol=2 * unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_function_keeps_the_dtype_of_its_first_tensor(dtype):
    x = torch.tensor([[1.0, -1.0, 2.0]], dtype=dtype)
    tau = quantile.midpoints(3, like=x)
    assert quantile.huber_loss(x, x, tau, kappa=1.0).dtype == dtype
    assert quantile.huber_loss(x, x, tau, kappa=0.0).dtype == dtype
    assert quantile.monotone(x).dtype == dtype
    assert quantile.crossing_fraction(x).dtype == dtype
    assert quantile.huber_active(x, x, kappa=1.0).dtype == dtype


def test_the_threshold_may_be_a_tensor_on_the_device():
    predicted, target = np.array([0.5, -1.0]), np.array([3.0, 0.2, 0.1])
    kappa = torch.tensor(0.7, dtype=torch.float64)
    expected = oracle.huber_loss(predicted, target, oracle.midpoints(2), 0.7)
    np.testing.assert_allclose(loss(predicted, target, kappa=kappa), expected, rtol=1e-9)
