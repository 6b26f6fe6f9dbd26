"""Quantiles of unequal mass: every formula that reads them, against the loops of `oracles`."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import levels as oracle
from oracles import risk as risk_oracle
from stormsail.functional import quantile, risk, twin, value_clip

numbers = st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-6 else 0.0)
shares = st.integers(1, 1000).map(lambda k: k / 1000) | st.sampled_from([0.05, 0.1, 0.25, 1.0])
thresholds = st.floats(0.01, 10.0) | st.just(0.0)
close = {"rtol": 1e-9, "atol": 1e-9}


def tensor(x):
    return torch.tensor(np.array(x, dtype=np.float64))


def masses(draw, count):
    """Whole parts of a whole: alpha then often ties with a sum of them."""
    parts = draw(arrays.arrays(np.int64, count, elements=st.integers(1, 6)))
    return parts / parts.sum()


@st.composite
def weighted(draw, least=1):
    count = draw(st.integers(least, 7))
    atoms = draw(arrays.arrays(np.float64, count, elements=numbers))
    return atoms, masses(draw, count)


@st.composite
def pairs(draw):
    count = draw(st.integers(1, 7))
    elements = arrays.arrays(np.float64, count, elements=numbers)
    return draw(elements), draw(elements), masses(draw, count)


@given(st.integers(1, 70))
def test_tail_weights_equal_the_widths_of_their_cells(n):
    like = tensor(0.0)
    weight = quantile.tail_weights(n, like=like)
    np.testing.assert_allclose(weight, oracle.tail_weights(n), rtol=1e-14)
    np.testing.assert_allclose(weight.sum(), 1.0, rtol=1e-14)


@given(weighted())
def test_levels_are_the_middles_of_the_cells_and_give_them_back(pair):
    _, weight = pair
    levels = quantile.levels_of(tensor(weight))
    np.testing.assert_allclose(levels, oracle.middles(weight), rtol=1e-14)
    np.testing.assert_allclose(quantile.weights_of(levels), weight, rtol=1e-12)
    np.testing.assert_allclose(quantile.weights_of(levels), oracle.cells(levels), rtol=1e-12)


@given(st.integers(1, 400))
def test_equal_cells_are_the_midpoints(n):
    weight = torch.full((n,), 1.0 / n, dtype=torch.float64)
    np.testing.assert_allclose(
        quantile.levels_of(weight), quantile.midpoints(n, like=weight), rtol=1e-13
    )


@given(weighted())
def test_the_expectation_is_the_mean_by_mass(pair):
    atoms, weight = pair
    actual = quantile.expectation(tensor(atoms), weight=tensor(weight))
    np.testing.assert_allclose(actual, oracle.mean(atoms, weight), **close)
    np.testing.assert_allclose(quantile.expectation(tensor(atoms)), atoms.mean(), **close)


@given(weighted(), weighted(), thresholds)
def test_huber_loss_expects_over_the_target_distribution(predicted, target, kappa):
    (theta, weight), (y, v) = predicted, target
    tau = oracle.middles(weight)
    if kappa == 0:
        assume(np.abs(theta[:, None] - y[None, :]).min() > 1e-9)
    given_theta = tensor(theta).requires_grad_()
    loss = quantile.huber_loss(
        given_theta, tensor(y), tensor(tau), kappa=kappa, target_weight=tensor(v)
    )
    loss.backward()
    np.testing.assert_allclose(loss.detach(), oracle.huber_loss(theta, y, tau, kappa, v), **close)
    expected = oracle.huber_loss_gradient(theta, y, tau, kappa, v)
    np.testing.assert_allclose(given_theta.grad, expected, **close)
    plain = quantile._pairwise_huber(tensor(theta), tensor(y), tensor(tau), kappa, tensor(v))
    np.testing.assert_allclose(plain, loss.detach(), **close)


@given(weighted(), weighted(), thresholds)
def test_an_atom_of_twice_the_mass_is_two_atoms(predicted, target, kappa):
    (theta, weight), (y, v) = predicted, target
    tau = tensor(oracle.middles(weight))
    parts = np.round(v / v.min() * 60).astype(int)
    assume(np.allclose(parts / parts.sum(), v, rtol=1e-12))
    repeated = np.repeat(y, parts)
    once = quantile.huber_loss(tensor(theta), tensor(y), tau, kappa=kappa, target_weight=tensor(v))
    often = quantile.huber_loss(tensor(theta), tensor(repeated), tau, kappa=kappa)
    np.testing.assert_allclose(once, often, **close)


@given(weighted(), weighted(), thresholds)
def test_the_linear_share_counts_pairs_by_mass(predicted, target, kappa):
    (theta, _), (y, v) = predicted, target
    actual = quantile.huber_active(tensor(theta), tensor(y), kappa=kappa, target_weight=tensor(v))
    np.testing.assert_allclose(actual, oracle.huber_active(theta, y, kappa, v), **close)


@given(weighted(least=2))
def test_monotone_quantiles_have_their_mean_and_their_first_line(pair):
    raw, weight = pair
    actual = quantile.monotone(tensor(raw), weight=tensor(weight))
    np.testing.assert_allclose(actual, oracle.monotone(raw, weight), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(oracle.mean(actual.tolist(), weight), raw[0], atol=1e-8)
    assert bool((actual.diff() >= 0.0).all())


@given(weighted(), shares)
def test_cvar_fills_the_tail_by_mass(pair, alpha):
    atoms, weight = pair
    actual = risk.cvar(tensor(atoms), alpha=alpha, weight=tensor(weight))
    np.testing.assert_allclose(actual, oracle.cvar(atoms, alpha, weight), **close)


@given(weighted(), shares)
def test_linear_cvar_is_the_integral_of_the_curve_over_the_sorted_cells(pair, alpha):
    atoms, weight = pair
    assume(len(set(atoms)) == len(atoms))  # equal atoms: either order of their cells is right
    actual = risk.cvar(tensor(atoms), alpha=alpha, estimator="linear", weight=tensor(weight))
    np.testing.assert_allclose(
        actual, oracle.cvar_linear(atoms, alpha, weight), rtol=1e-8, atol=1e-8
    )


@given(weighted(), shares)
def test_value_at_risk_is_the_first_atom_that_reaches_the_level(pair, alpha):
    atoms, weight = pair
    actual = risk.value_at_risk(tensor(atoms), alpha=alpha, weight=tensor(weight))
    assert actual.item() == oracle.value_at_risk(atoms, alpha, weight)


@given(pairs(), shares)
def test_equal_weights_change_nothing(pair, alpha):
    first, second, _ = pair
    n = len(first)
    weight = torch.full((n,), 1.0 / n, dtype=torch.float64)
    for estimator in risk.ESTIMATORS:
        options = {"alpha": alpha, "estimator": estimator}
        actual = risk.cvar(tensor(first), weight=weight, **options)
        np.testing.assert_allclose(actual, risk.cvar(tensor(first), **options), **close)
    options = {"epsilon": 0.3, "mode": "mean_and_variance", "variance_factor": 0.5}
    held = value_clip.clip_quantiles(tensor(first), tensor(second), weight=weight, **options)
    plain = value_clip.clip_quantiles(tensor(first), tensor(second), **options)
    np.testing.assert_allclose(held, plain, rtol=1e-7, atol=1e-7)
    raw = quantile.monotone(tensor(first), weight=weight)
    np.testing.assert_allclose(raw, quantile.monotone(tensor(first)), rtol=1e-8, atol=1e-8)


@given(weighted(), shares, numbers)
def test_the_risk_advantage_by_mass_equals_its_definition(pair, alpha, sampled):
    atoms, weight = pair
    actual = risk.risk_advantage(tensor(sampled), tensor(atoms), alpha=alpha, weight=tensor(weight))
    expected = oracle.risk_advantage(sampled, atoms, alpha, weight)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)


@given(weighted(), weighted(), shares, numbers)
def test_the_budget_advantage_by_mass_equals_its_definition(target, own, alpha, budget):
    (y, v), (theta, weight) = target, own
    actual = risk.budget_advantage(
        tensor(y),
        tensor(theta),
        tensor(budget),
        alpha=alpha,
        weight=tensor(weight),
        target_weight=tensor(v),
    )
    expected = oracle.budget_advantage(y, theta, budget, alpha, weight, v)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)


@settings(max_examples=30)
@given(st.integers(0, 10_000), shares)
def test_the_budget_trace_by_mass_is_that_of_a_distribution_on_atoms(seed, alpha):
    """Quantiles that do not depend on the state are a distribution on fixed atoms."""
    source = np.random.default_rng(seed)
    T, B, N = 5, 2, 4
    atoms, weight = np.sort(source.normal(size=N)), source.integers(1, 6, N).astype(float)
    weight /= weight.sum()
    reward, budget = source.normal(size=(T, B)), source.normal(size=(T, B))
    terminated = source.random((T, B)) < 0.3
    truncated = ~terminated & (source.random((T, B)) < 0.3)
    wide = np.broadcast_to(atoms, (T, B, N))
    actual = risk.budget_trace(
        tensor(reward),
        tensor(wide),
        tensor(wide),
        tensor(budget),
        torch.from_numpy(terminated),
        torch.from_numpy(truncated),
        alpha=alpha,
        gamma=0.9,
        lam=0.8,
        weight=tensor(weight),
    )
    own = np.broadcast_to(weight, (T, B, N))
    expected = risk_oracle.budget_trace(
        reward, own, own, budget, terminated, truncated, alpha, 0.9, 0.8, atoms=atoms
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mode", ["argmin", "elementwise_min"])
@given(pair=pairs())
def test_twins_are_compared_by_their_means(pair, mode):
    first, second, weight = pair
    means = [oracle.mean(q, weight) for q in (first, second)]
    assume(abs(means[0] - means[1]) > 1e-9)
    actual = twin.twin_quantiles(
        tensor(np.stack((first, second))), mode=mode, weight=tensor(weight)
    )
    expected = oracle.twin_quantiles([first, second], mode, weight)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("mode", ["mean_only", "mean_and_variance"])
@given(pair=pairs(), epsilon=st.floats(0, 3), factor=st.floats(0.1, 3))
def test_clipping_holds_the_moments_by_mass(pair, epsilon, factor, mode):
    new, old, weight = pair
    options = {"epsilon": epsilon, "mode": mode, "variance_factor": factor}
    actual = value_clip.clip_quantiles(tensor(new), tensor(old), weight=tensor(weight), **options)
    expected = oracle.clip_quantiles(new, old, epsilon, mode, factor, weight)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
