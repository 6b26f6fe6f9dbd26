"""Properties of `functional.value_clip`, each against the loops of `oracles.value_clip`."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import value_clip as oracle
from stormsail.functional import categorical, value_clip

FLOAT32_BOUND = 1e-5
"""Relative to values of at most 10."""

MODES = ("off", "mean_only", "mean_and_variance", "per_quantile")
DISTRIBUTION_MODES = ("off", "mean_only", "mean_and_variance")

numbers = st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-3 else 0.0)
widths = st.floats(0.0, 5.0)
factors = st.floats(0.1, 4.0)
modes = st.sampled_from(MODES)
distribution_modes = st.sampled_from(DISTRIBUTION_MODES)
pairs = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*[arrays.arrays(np.float64, n, elements=numbers)] * 2)
)


@st.composite
def distribution_pairs(draw):
    count = draw(st.integers(2, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    atoms = np.linspace(-3.0, draw(st.floats(0.0, 5.0)), count)
    distributions = rng.exponential(size=(2, count)) ** draw(st.sampled_from([0.0, 1.0, 6.0]))
    distributions = distributions / distributions.sum(-1, keepdims=True)
    return distributions[0], distributions[1], atoms


def clip(new, old, **options):
    return value_clip.clip_quantiles(torch.as_tensor(new), torch.as_tensor(old), **options)


def clip_distribution(probs, old_probs, atoms, **options):
    return value_clip.clip_distribution(*map(torch.as_tensor, (probs, old_probs, atoms)), **options)


@pytest.mark.spec("T-F1", "T-F2", "T-F3", "T-F4", "S3-M1", "X12")
@given(pairs, widths, modes, factors)
def test_clipped_quantiles_equal_their_definition(pair, epsilon, mode, factor):
    new, old = pair
    actual = clip(new, old, epsilon=epsilon, mode=mode, variance_factor=factor)
    expected = oracle.clip_quantiles(new, old, epsilon, mode, factor)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@given(pairs, widths, modes)
def test_clipped_quantiles_in_float32_stay_near_float64(pair, epsilon, mode):
    new, old = (x.astype(np.float32) for x in pair)
    actual = clip(new, old, epsilon=epsilon, mode=mode)
    assert actual.dtype == torch.float32
    expected = oracle.clip_quantiles(new.astype(float), old.astype(float), epsilon, mode)
    np.testing.assert_allclose(actual, expected, rtol=FLOAT32_BOUND, atol=10 * FLOAT32_BOUND)


@given(pairs, widths, modes, factors)
def test_clipping_quantiles_twice_is_clipping_once(pair, epsilon, mode, factor):
    new, old = pair
    options = {"epsilon": epsilon, "mode": mode, "variance_factor": factor}
    once = clip(new, old, **options)
    np.testing.assert_allclose(clip(once, old, **options), once, rtol=1e-9, atol=1e-9)


@given(pairs, st.sampled_from(["mean_only", "per_quantile"]))
def test_an_infinite_band_clips_nothing(pair, mode):
    new, old = pair
    actual = clip(new, old, epsilon=float("inf"), mode=mode)
    np.testing.assert_allclose(actual, new, rtol=1e-12, atol=1e-12)


@given(pairs, st.floats(1e3, 1e6))
def test_an_infinite_band_and_a_huge_factor_clip_nothing(pair, factor):
    new, old = pair
    assume(np.std(old) > 0.02)  # else the floor of the old spread times the factor still binds
    actual = clip(new, old, epsilon=float("inf"), mode="mean_and_variance", variance_factor=factor)
    np.testing.assert_allclose(actual, new, rtol=1e-9, atol=1e-9)


@given(pairs, widths, modes)
def test_a_distribution_equal_to_its_old_self_is_left_alone(pair, epsilon, mode):
    new, _ = pair
    actual = clip(new, new.copy(), epsilon=epsilon, mode=mode)
    np.testing.assert_allclose(actual, new, rtol=1e-12, atol=1e-12)


@given(pairs, widths, modes, st.floats(-3, 3), st.floats(0.1, 5))
def test_clipping_moves_with_shift_and_scale_of_everything(pair, epsilon, mode, shift, scale):
    new, old = pair
    assume(new.std() > 1e-3 or new.std() == 0)
    assume(old.std() > 1e-3)  # the floor of the old spread has a unit of its own
    before = clip(new, old, epsilon=epsilon, mode=mode)
    after = clip(scale * new + shift, scale * old + shift, epsilon=scale * epsilon, mode=mode)
    np.testing.assert_allclose(after, scale * before + shift, rtol=1e-8, atol=1e-8)


@given(pairs, widths, modes, st.randoms(use_true_random=False))
def test_clipping_permutes_with_the_quantiles(pair, epsilon, mode, random):
    new, old = pair
    order = list(range(len(new)))
    random.shuffle(order)
    before = clip(new, old, epsilon=epsilon, mode=mode)
    after = clip(new[order], old[order], epsilon=epsilon, mode=mode)
    np.testing.assert_allclose(after, before[order], rtol=1e-9, atol=1e-9)


@pytest.mark.spec("T-F1", "T-F3")
@given(pairs, widths)
def test_the_clipped_mean_and_each_clipped_quantile_stay_in_the_band(pair, epsilon):
    new, old = pair
    slack = 1e-9
    for mode in ("mean_only", "mean_and_variance"):
        actual = clip(new, old, epsilon=epsilon, mode=mode)
        assert abs(actual.mean() - old.mean()) <= epsilon + slack
    each = clip(new, old, epsilon=epsilon, mode="per_quantile")
    assert bool(((each - torch.from_numpy(old)).abs() <= epsilon + slack).all())


@pytest.mark.spec("T-F1", "T-F2", "X12")
@given(pairs, widths, factors)
def test_the_spread_is_kept_by_mean_only_and_never_grown_by_mean_and_variance(
    pair, epsilon, factor
):
    new, old = pair
    shifted = clip(new, old, epsilon=epsilon, mode="mean_only")
    np.testing.assert_allclose(shifted.std(correction=0), new.std(), rtol=1e-9, atol=1e-9)
    both = clip(new, old, epsilon=epsilon, mode="mean_and_variance", variance_factor=factor)
    bound = min(new.std(), factor * max(old.std(), 1e-8))
    np.testing.assert_allclose(both.std(correction=0), bound, rtol=1e-8, atol=1e-9)


@settings(max_examples=40)
@given(st.integers(0, 10_000), modes)
def test_the_gradient_of_clipping_flows_through_the_new_distribution_only(seed, mode):
    rng = np.random.default_rng(seed)
    new = torch.from_numpy(rng.normal(size=(2, 4)) * 2).requires_grad_()
    old = torch.from_numpy(rng.normal(size=(2, 4)))
    shift = new.mean(-1) - old.mean(-1)
    ratio = new.std(-1, correction=0) / (1.5 * old.std(-1, correction=0))
    assume(bool(((shift.abs() - 0.3).abs() > 1e-3).all()))  # the edges of the band are kinks
    assume(bool((((new - old).abs() - 0.3).abs() > 1e-3).all()))
    assume(bool(((ratio - 1).abs() > 1e-3).all()))
    options = {"epsilon": 0.3, "mode": mode, "variance_factor": 1.5}
    assert torch.autograd.gradcheck(
        lambda x: value_clip.clip_quantiles(x, old, **options), new, atol=1e-6
    )
    held = old.clone().requires_grad_()
    value_clip.clip_quantiles(new, held, **options).sum().backward()
    assert held.grad is None


@given(arrays.arrays(np.float64, (2, 3, 4), elements=numbers), widths, modes)
def test_every_batch_entry_is_clipped_on_its_own(new, epsilon, mode):
    old = new[::-1].copy()
    whole = clip(new, old, epsilon=epsilon, mode=mode)
    for i in range(2):
        for j in range(3):
            expected = oracle.clip_quantiles(new[i, j], old[i, j], epsilon, mode)
            np.testing.assert_allclose(whole[i, j], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.spec("M23")
@given(pairs, st.integers(0, 5), modes, st.sampled_from(["new", "old"]))
def test_a_missing_quantile_passes_no_clip(pair, place, mode, which):
    # NaN comparisons are false: a clip written with comparisons would turn it into a bound.
    new, old = pair
    array = new if which == "new" else old
    array[place % len(array)] = np.nan
    actual = clip(new, old, epsilon=0.5, mode=mode)
    if mode == "off" and which == "old":
        assert not bool(actual.isnan().any())
    elif mode in ("off", "per_quantile"):
        assert bool(actual[place % len(array)].isnan())
    else:
        assert bool(actual.isnan().all())


@pytest.mark.spec("T-K4", "X11")
@given(distribution_pairs(), widths, distribution_modes, factors)
def test_a_clipped_distribution_equals_its_definition(distributions, epsilon, mode, factor):
    actual = clip_distribution(*distributions, epsilon=epsilon, mode=mode, variance_factor=factor)
    expected = oracle.clip_distribution(*distributions, epsilon, mode, factor)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(actual.sum(), 1.0, rtol=1e-9)
    assert bool((actual >= 0).all())


@given(distribution_pairs(), distribution_modes)
def test_a_distribution_inside_its_band_is_left_alone(distributions, mode):
    probs, _, atoms = distributions
    actual = clip_distribution(probs, probs, atoms, epsilon=0.0, mode=mode)
    np.testing.assert_allclose(actual, probs, rtol=0, atol=1e-9)


@pytest.mark.spec("T-K4", "X11")
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_the_mean_of_a_clipped_distribution_is_the_clipped_mean_while_no_mass_is_clamped(
    seed, epsilon
):
    rng = np.random.default_rng(seed)
    atoms = np.linspace(-4.0, 4.0, 9)
    distributions = np.zeros((2, 9))
    distributions[:, 3:6] = rng.dirichlet(np.ones(3), size=2)  # support [-1, 1], moves by at most 2
    for mode in ("mean_only", "mean_and_variance"):
        actual = clip_distribution(*distributions, atoms, epsilon=epsilon, mode=mode)
        means = distributions @ atoms
        expected = np.clip(means[0], means[1] - epsilon, means[1] + epsilon)
        mean = categorical.distribution_mean(actual, torch.from_numpy(atoms))
        np.testing.assert_allclose(mean, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10_000), distribution_modes)
def test_the_gradient_of_a_clipped_distribution_agrees_with_finite_differences(seed, mode):
    rng = np.random.default_rng(seed)
    atoms = torch.linspace(-2, 2, 5, dtype=torch.float64)
    logits = torch.from_numpy(rng.normal(size=(1, 5)))
    old = torch.from_numpy(rng.dirichlet(np.ones(5) * 4, size=1))
    options = {"epsilon": 0.1, "mode": mode, "variance_factor": 0.7}

    def distribution(x):
        return value_clip.clip_distribution(torch.softmax(x, -1), old, atoms, **options)

    probs = torch.softmax(logits, -1)
    mean, old_mean = (categorical.distribution_mean(p, atoms) for p in (probs, old))
    assume(bool(((mean - old_mean).abs() > 0.11).all()))
    # Where the distribution is inside the band its moved atoms lie on the atoms, the kinks of the
    # hats.
    stds = [categorical.distribution_variance(p, atoms).sqrt() for p in (probs, old)]
    scale = torch.clamp(0.7 * stds[1] / stds[0], max=1.0) if mode == "mean_and_variance" else 1.0
    assume(mode != "mean_and_variance" or abs(float(0.7 * stds[1] / stds[0]) - 1) > 1e-3)
    moved = (atoms - mean) * scale + old_mean + 0.1 * torch.sign(mean - old_mean)
    assume(bool((moved.unsqueeze(-1) - atoms).abs().min() > 1e-4))
    assert torch.autograd.gradcheck(distribution, logits.requires_grad_(), atol=1e-6)


@given(
    arrays.arrays(np.float64, (2, 3), elements=numbers),
    st.floats(0.1, 5),
    st.floats(-3, 3),
    st.floats(0.2, 4),
)
def test_limited_predictions_equal_their_definition(prediction, limit, mean, std):
    x = torch.from_numpy(prediction)
    actual = value_clip.limit_encoded(x, limit=limit, mean=mean, std=std)
    for i in range(2):
        for j in range(3):
            expected = oracle.limit_encoded(prediction[i, j], limit, mean, std)
            np.testing.assert_allclose(actual[i, j], expected, rtol=1e-9, atol=1e-9)
    decoded = std * actual + mean
    assert bool((decoded.abs() <= limit * (1 + 1e-9)).all())
    twice = value_clip.limit_encoded(actual, limit=limit, mean=mean, std=std)
    np.testing.assert_allclose(twice, actual, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_function_keeps_the_dtype_of_its_first_tensor(dtype):
    new = torch.tensor([[1.0, 2.0, 4.0]], dtype=dtype)
    atoms = torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)
    probs = torch.tensor([[0.2, 0.3, 0.5]], dtype=dtype)
    for mode in MODES:
        assert value_clip.clip_quantiles(new, new - 1, epsilon=0.5, mode=mode).dtype == dtype
    for mode in DISTRIBUTION_MODES:
        clipped = value_clip.clip_distribution(probs, probs.flip(-1), atoms, epsilon=0.1, mode=mode)
        assert clipped.dtype == dtype
    assert value_clip.limit_encoded(new, limit=1.0, mean=0.5, std=2.0).dtype == dtype


def test_scalars_may_be_tensors_on_the_device():
    new, old = torch.tensor([3.0, 5.0]), torch.tensor([0.0, 1.0])
    for mode in MODES:
        with_tensors = value_clip.clip_quantiles(
            new, old, epsilon=torch.tensor(0.5), mode=mode, variance_factor=torch.tensor(1.5)
        )
        plain = value_clip.clip_quantiles(new, old, epsilon=0.5, mode=mode, variance_factor=1.5)
        torch.testing.assert_close(with_tensors, plain)
    limited = value_clip.limit_encoded(
        new, limit=torch.tensor(1.0), mean=torch.tensor(0.5), std=torch.tensor(2.0)
    )
    torch.testing.assert_close(limited, torch.full((2,), 0.25))
