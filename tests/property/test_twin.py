"""Properties of `stormsail.functional.twin`, each against the loops of `oracles.twin`."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import twin as oracle
from stormsail.functional import twin

# Quarters: sums are exact, so that ties between critics are real ties for both sides.
quarters = st.integers(-20, 20).map(lambda k: k / 4)
critics = st.integers(1, 3)
QUANTILE_MODES = ("argmin", "mixture", "elementwise_min")


@st.composite
def quantile_sets(draw):
    shape = (draw(critics), draw(st.integers(1, 5)))
    return draw(arrays.arrays(np.float64, shape, elements=quarters))


@st.composite
def distribution_sets(draw):
    shape = (draw(critics), draw(st.integers(2, 5)))
    weights = draw(arrays.arrays(np.float64, shape, elements=st.integers(1, 9).map(float)))
    return weights / weights.sum(-1, keepdims=True), np.arange(shape[1]) * 0.5 - 1.0


@given(arrays.arrays(np.float64, critics, elements=quarters), st.sampled_from(["min", "mean"]))
def test_the_joint_value_equals_its_definition(values, mode):
    actual = twin.twin_value(torch.from_numpy(values), mode=mode)
    np.testing.assert_allclose(actual, oracle.twin_value(values, mode), rtol=1e-12)


@given(quantile_sets(), st.sampled_from(QUANTILE_MODES))
def test_the_joint_quantiles_equal_their_definition(quantiles, mode):
    actual = twin.twin_quantiles(torch.from_numpy(quantiles), mode=mode)
    np.testing.assert_array_equal(actual, oracle.twin_quantiles(quantiles, mode))


@given(distribution_sets(), st.sampled_from(["argmin", "mixture"]))
def test_the_joint_distribution_equals_its_definition(distributions, mode):
    probs, atoms = distributions
    # A tie up to rounding has no right answer; exact ties have a unit test of their own.
    means = sorted(probs @ atoms)
    assume(mode == "mixture" or all(b - a > 1e-9 for a, b in itertools.pairwise(means)))
    actual = twin.twin_distribution(torch.from_numpy(probs), torch.from_numpy(atoms), mode=mode)
    np.testing.assert_allclose(actual, oracle.twin_distribution(probs, atoms, mode), rtol=1e-12)
    np.testing.assert_allclose(actual.sum(), 1.0, rtol=1e-12)


@given(arrays.arrays(np.float64, (2, 3), elements=quarters))
def test_the_joint_loss_equals_its_definition(losses):
    loss, clipped = losses
    actual = twin.twin_loss(torch.from_numpy(loss), torch.from_numpy(clipped))
    np.testing.assert_allclose(actual, oracle.twin_loss(loss, clipped), rtol=1e-12)


@pytest.mark.spec("T-T5", "S3-1")
@given(arrays.arrays(np.float64, (2, 4, 2), elements=quarters))
def test_the_joint_loss_is_never_below_the_maximum_of_the_averages(losses):
    loss, clipped = map(torch.from_numpy, losses)
    per_critic = twin.twin_loss(loss, clipped)
    assert bool((per_critic >= torch.maximum(loss.mean(-1), clipped.mean(-1)) - 1e-12).all())


@given(quantile_sets())
def test_the_elementwise_minimum_is_the_most_pessimistic_read(quantiles):
    q = torch.from_numpy(quantiles)
    lowest = twin.twin_quantiles(q, mode="elementwise_min").mean()
    smaller = twin.twin_quantiles(q, mode="argmin").mean()
    both = twin.twin_quantiles(q, mode="mixture").mean()
    assert bool(lowest <= smaller + 1e-12)
    assert bool(smaller <= both + 1e-12)
    np.testing.assert_allclose(smaller, q.mean(-1).min(), rtol=1e-12)
    np.testing.assert_allclose(both, q.mean(), rtol=1e-12)


@given(quantile_sets(), st.sampled_from(QUANTILE_MODES))
def test_identical_critics_are_read_as_one(quantiles, mode):
    one = quantiles[:1]
    pair = torch.from_numpy(np.concatenate([one, one]))
    actual = twin.twin_quantiles(pair, mode=mode)
    expected = {"argmin": one[0], "elementwise_min": np.sort(one[0])}.get(
        mode, np.sort(np.repeat(one[0], 2))
    )
    np.testing.assert_array_equal(actual, expected)


@given(quantile_sets(), st.sampled_from(QUANTILE_MODES), st.floats(-5, 5), st.floats(0.1, 5))
def test_joint_quantiles_move_with_shift_and_scale(quantiles, mode, shift, scale):
    # On a tie either critic may come out smaller after rounding.
    assume(bool((np.diff(np.sort(quantiles.mean(-1))) > 0).all()))
    before = twin.twin_quantiles(torch.from_numpy(quantiles), mode=mode)
    after = twin.twin_quantiles(torch.from_numpy(scale * quantiles + shift), mode=mode)
    np.testing.assert_allclose(after, scale * before + shift, rtol=1e-9, atol=1e-9)


@given(arrays.arrays(np.float64, (2, 3, 2, 4), elements=quarters))
def test_every_batch_entry_is_read_on_its_own(quantiles):
    q = torch.from_numpy(quantiles)
    atoms = torch.linspace(-1, 1, 4, dtype=torch.float64)
    for mode in QUANTILE_MODES:
        whole = twin.twin_quantiles(q, mode=mode)
        assert whole.shape == (2, 3, 8 if mode == "mixture" else 4)
        for i in range(2):
            for j in range(3):
                expected = oracle.twin_quantiles(quantiles[i, j], mode)
                np.testing.assert_array_equal(whole[i, j], expected)
    values = twin.twin_value(q[..., 0], mode="min")
    np.testing.assert_array_equal(values, quantiles[..., 0].min(-1))
    distributions = torch.softmax(q, -1)
    mixture = twin.twin_distribution(distributions, atoms, mode="mixture")
    np.testing.assert_allclose(mixture, distributions.mean(-2), rtol=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_gradients_reach_the_critic_that_was_read(seed):
    rng = np.random.default_rng(seed)
    q = torch.from_numpy(rng.normal(size=(2, 2, 3))).requires_grad_()
    for mode in QUANTILE_MODES:
        assert torch.autograd.gradcheck(lambda x, m=mode: twin.twin_quantiles(x, mode=m), q)
    for mode in ("min", "mean"):
        assert torch.autograd.gradcheck(lambda x, m=mode: twin.twin_value(x, mode=m), q)
    clipped = torch.from_numpy(rng.normal(size=(2, 2, 3))).requires_grad_()
    assert torch.autograd.gradcheck(twin.twin_loss, (q, clipped))


@pytest.mark.spec("M23")
@pytest.mark.parametrize("critic", [0, 1])
def test_a_missing_critic_makes_the_joint_reading_missing(critic):
    values = torch.tensor([1.0, 2.0])
    values[critic] = float("nan")
    for mode in ("min", "mean"):
        assert bool(twin.twin_value(values, mode=mode).isnan())
    quantiles = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    quantiles[critic] = float("nan")
    for mode in QUANTILE_MODES:
        assert bool(twin.twin_quantiles(quantiles, mode=mode).isnan().any())
    probs = torch.full((2, 3), 1 / 3)
    probs[critic] = float("nan")
    for mode in ("argmin", "mixture"):
        assert bool(twin.twin_distribution(probs, torch.arange(3.0), mode=mode).isnan().any())
    assert bool(twin.twin_loss(values, torch.zeros(2)).isnan())
    assert bool(twin.twin_loss(torch.zeros(2), values).isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_function_keeps_the_dtype_of_its_first_tensor(dtype):
    q = torch.tensor([[1.0, 3.0], [2.0, 4.0]], dtype=dtype)
    atoms = torch.tensor([0.0, 1.0], dtype=dtype)
    for mode in ("min", "mean"):
        assert twin.twin_value(q, mode=mode).dtype == dtype
    for mode in QUANTILE_MODES:
        assert twin.twin_quantiles(q, mode=mode).dtype == dtype
    for mode in ("argmin", "mixture"):
        assert twin.twin_distribution(torch.softmax(q, -1), atoms, mode=mode).dtype == dtype
    assert twin.twin_loss(q, q + 1).dtype == dtype
