"""Properties of `functional.categorical`, each against the loops of `oracles.categorical`."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import categorical as oracle
from stormsail.functional import categorical

FLOAT32_BOUND = 2e-5
"""Atoms lie within 10 and at least 0.2 apart: rounding of a position is at most 50 ulp there."""

numbers = st.floats(-15, 15).map(lambda x: x if abs(x) > 1e-6 else 0.0)


def make_atoms(low, gaps):
    return low + np.concatenate([[0.0], np.cumsum(gaps)])


even_atoms = st.builds(
    lambda low, gap, count: make_atoms(low, np.full(count, gap)),
    st.floats(-10, 2),
    st.floats(0.2, 2.0),
    st.integers(1, 6),
)
uneven_atoms = st.builds(
    make_atoms, st.floats(-10, 2), st.lists(st.floats(0.2, 2.0), min_size=1, max_size=6)
)
supports = even_atoms | uneven_atoms


@st.composite
def distributions(draw, size=None):
    count = draw(st.integers(1, 6)) if size is None else size
    weights = draw(arrays.arrays(np.float64, count, elements=st.sampled_from([0.0, 0.5, 1, 2, 7])))
    weights[draw(st.integers(0, count - 1))] += 1.0
    return weights / weights.sum()


@st.composite
def distribution_and_support(draw):
    probs = draw(distributions())
    support = draw(arrays.arrays(np.float64, len(probs), elements=numbers))
    return probs, support


@st.composite
def distribution_on_atoms(draw):
    atoms = draw(supports)
    return draw(distributions(len(atoms))), atoms


def project_distribution(probs, support, atoms):
    return categorical.project_distribution(*map(torch.as_tensor, (probs, support, atoms)))


@given(numbers, supports)
def test_projection_of_a_value_shares_it_between_its_neighbours(value, atoms):
    actual = categorical.project(torch.tensor(value, dtype=torch.float64), torch.from_numpy(atoms))
    expected = oracle.project_dirac(value, atoms)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(actual.sum(), 1.0, rtol=1e-12)
    assert int((actual > 0).sum()) <= 2


@given(supports)
def test_projection_of_an_atom_is_that_atom_alone(atoms):
    # Also at both ends and where (value - low) / gap is rounded to either side of a whole number.
    actual = categorical.project(torch.from_numpy(atoms), torch.from_numpy(atoms))
    np.testing.assert_allclose(actual, np.eye(len(atoms)), rtol=0, atol=1e-12)


@given(distribution_and_support(), supports)
def test_projection_of_a_distribution_equals_both_definitions(distribution, atoms):
    probs, support = distribution
    expected = oracle.project_distribution_by_hats(probs, support, atoms)
    np.testing.assert_allclose(
        oracle.project_distribution(probs, support, atoms), expected, atol=1e-12
    )
    actual = project_distribution(probs, support, atoms)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
    assert bool((actual >= 0).all())


@given(distribution_and_support(), supports)
def test_projection_in_float32_keeps_dtype_mass_and_a_few_ulp(distribution, atoms):
    probs, support = distribution
    narrow = [np.asarray(x, dtype=np.float32) for x in (probs, support, atoms)]
    actual = project_distribution(*narrow)
    assert actual.dtype == torch.float32
    np.testing.assert_allclose(actual.sum(), 1.0, rtol=1e-6)
    # Compared with the distribution that float32 can hold: rounding the input is not the function's
    # error.
    expected = oracle.project_distribution(*(np.asarray(x, dtype=np.float64) for x in narrow))
    np.testing.assert_allclose(actual, expected, rtol=FLOAT32_BOUND, atol=FLOAT32_BOUND)


@pytest.mark.spec("T-K4", "X11")
@given(distribution_and_support(), supports)
def test_projection_keeps_the_mass_and_inside_the_support_the_mean(distribution, atoms):
    probs, support = distribution
    inside = np.clip(support, atoms[0], atoms[-1])
    actual = project_distribution(probs, support, atoms)
    np.testing.assert_allclose(actual.sum(), 1.0, rtol=1e-9)
    mean = categorical.distribution_mean(actual, torch.from_numpy(atoms))
    np.testing.assert_allclose(mean, oracle.distribution_mean(probs, inside), rtol=1e-9, atol=1e-9)


@given(distribution_and_support(), supports)
def test_projection_twice_is_projection_once(distribution, atoms):
    once = project_distribution(*distribution, atoms)
    twice = project_distribution(once, atoms, atoms)
    np.testing.assert_allclose(twice, once, rtol=1e-9, atol=1e-9)


@given(distribution_and_support(), supports, st.randoms(use_true_random=False))
def test_projection_ignores_the_order_of_the_atoms_it_reads(distribution, atoms, random):
    probs, support = distribution
    order = list(range(len(probs)))
    random.shuffle(order)
    before = project_distribution(probs, support, atoms)
    after = project_distribution(probs[order], support[order], atoms)
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)


@given(distribution_and_support(), supports, st.floats(-3, 3), st.floats(0.2, 5))
def test_projection_moves_with_shift_and_scale_of_everything(distribution, atoms, shift, scale):
    probs, support = distribution
    before = project_distribution(probs, support, atoms)
    after = project_distribution(probs, scale * support + shift, scale * atoms + shift)
    np.testing.assert_allclose(after, before, rtol=1e-8, atol=1e-8)


@given(distribution_and_support(), distribution_and_support(), supports, st.floats(0, 1))
def test_projection_is_linear_in_the_distribution(first, second, atoms, share):
    mixed = project_distribution(
        np.concatenate([share * first[0], (1 - share) * second[0]]),
        np.concatenate([first[1], second[1]]),
        atoms,
    )
    expected = share * project_distribution(*first, atoms) + (1 - share) * project_distribution(
        *second, atoms
    )
    np.testing.assert_allclose(mixed, expected, rtol=1e-9, atol=1e-12)


@given(distribution_on_atoms())
def test_a_value_projects_like_its_dirac_distribution_and_like_a_batch_of_one(distribution):
    probs, atoms = distribution
    values = torch.from_numpy(atoms + 0.3)
    rows = categorical.project(values.reshape(-1, 1), torch.from_numpy(atoms))
    assert rows.shape == (len(atoms), 1, len(atoms))
    for i, value in enumerate(values):
        one = project_distribution(np.ones(1), value.reshape(1), atoms)
        np.testing.assert_allclose(rows[i, 0], one, rtol=1e-9, atol=1e-12)
    batch = project_distribution(np.stack([probs, probs[::-1]]), np.stack([atoms + 0.3] * 2), atoms)
    np.testing.assert_allclose(
        batch[0], project_distribution(probs, atoms + 0.3, atoms), atol=1e-12
    )
    reverse = project_distribution(probs[::-1].copy(), atoms + 0.3, atoms)
    np.testing.assert_allclose(batch[1], reverse, rtol=1e-9, atol=1e-12)


@given(distribution_on_atoms(), numbers)
def test_shifting_a_distribution_is_projecting_its_moved_atoms(distribution, shift):
    probs, atoms = distribution
    actual = categorical.shift_distribution(
        torch.from_numpy(probs), torch.tensor(shift, dtype=torch.float64), torch.from_numpy(atoms)
    )
    expected = oracle.project_distribution(probs, atoms + shift, atoms)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@given(distribution_on_atoms())
def test_a_shift_of_zero_changes_nothing(distribution):
    probs, atoms = distribution
    actual = categorical.shift_distribution(
        torch.from_numpy(probs), torch.zeros((), dtype=torch.float64), torch.from_numpy(atoms)
    )
    np.testing.assert_allclose(actual, probs, rtol=0, atol=1e-12)


@pytest.mark.spec("T-K3", "X11")
@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_projection_is_differentiable_in_probabilities_and_support(seed):
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.linspace(-2, 2, 5, dtype=torch.float64)
    support = 3 * torch.randn(2, 3, dtype=torch.float64, generator=generator)
    assume(bool((support.unsqueeze(-1) - atoms).abs().min() > 1e-3))  # a hat has kinks on atoms
    probs = torch.rand(2, 3, dtype=torch.float64, generator=generator)
    assert torch.autograd.gradcheck(
        lambda p, x: categorical.project_distribution(p, x, atoms),
        (probs.requires_grad_(), support.requires_grad_()),
    )


@given(distribution_on_atoms(), st.integers(0, 10_000))
def test_cross_entropy_equals_its_definition(distribution, seed):
    target, _ = distribution
    logits = np.random.default_rng(seed).normal(size=len(target)) * 5
    actual = categorical.cross_entropy(torch.from_numpy(logits), torch.from_numpy(target))
    expected = oracle.cross_entropy(logits, target)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@given(distribution_on_atoms(), st.integers(0, 10_000))
def test_the_gradient_of_cross_entropy_is_softmax_minus_target(distribution, seed):
    target, _ = distribution
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=len(target)))
    logits.requires_grad_()
    y = torch.from_numpy(target).requires_grad_()
    categorical.cross_entropy(logits, y).backward()
    expected = oracle.softmax(logits.detach().numpy()) - target
    np.testing.assert_allclose(logits.grad, expected, rtol=1e-9, atol=1e-12)
    assert y.grad is None


@given(distribution_on_atoms(), st.integers(0, 10_000), st.floats(-50, 50))
def test_cross_entropy_ignores_a_shift_of_the_logits_and_is_least_at_the_target(
    distribution, seed, shift
):
    target, _ = distribution
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=len(target)))
    y = torch.from_numpy(target)
    loss = categorical.cross_entropy(logits, y)
    np.testing.assert_allclose(categorical.cross_entropy(logits + shift, y), loss, rtol=1e-9)
    best = categorical.cross_entropy(torch.log(y + 1e-12), y)
    assert bool(loss >= best - 1e-9)


@given(distribution_on_atoms())
def test_mean_and_variance_of_a_distribution_equal_their_definitions(distribution):
    probs, atoms = distribution
    p, z = torch.from_numpy(probs), torch.from_numpy(atoms)
    expected = oracle.distribution_mean(probs, atoms), oracle.distribution_variance(probs, atoms)
    np.testing.assert_allclose(
        categorical.distribution_mean(p, z), expected[0], rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        categorical.distribution_variance(p, z), expected[1], rtol=1e-9, atol=1e-9
    )


@given(distribution_on_atoms(), st.floats(-3, 3), st.floats(0.2, 5))
def test_mean_and_variance_follow_shift_and_scale(distribution, shift, scale):
    p, z = map(torch.from_numpy, distribution)
    moved = scale * z + shift
    mean, variance = categorical.distribution_mean(p, z), categorical.distribution_variance(p, z)
    np.testing.assert_allclose(
        categorical.distribution_mean(p, moved), scale * mean + shift, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        categorical.distribution_variance(p, moved), scale**2 * variance, rtol=1e-8, atol=1e-9
    )


@given(arrays.arrays(np.float64, (2, 3), elements=numbers), supports)
def test_outside_support_marks_what_the_projection_clamps(values, atoms):
    below, above = categorical.outside_support(torch.from_numpy(values), torch.from_numpy(atoms))
    assert below.dtype == above.dtype == torch.bool
    np.testing.assert_array_equal(below, values < atoms[0])
    np.testing.assert_array_equal(above, values > atoms[-1])


@pytest.mark.spec("M23")
def test_missing_values_stay_visible_and_stay_in_their_row():
    atoms = torch.linspace(-1, 1, 3, dtype=torch.float64)
    value = torch.tensor([float("nan"), 0.25], dtype=torch.float64)
    rows = categorical.project(value, atoms)
    assert bool(rows[0].isnan().any())
    np.testing.assert_allclose(rows[1], [0.0, 0.75, 0.25], rtol=1e-12)
    probs = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    support = torch.tensor([[float("nan"), 0.0], [0.5, 0.0]], dtype=torch.float64)
    rows = categorical.project_distribution(probs, support, atoms)
    assert bool(rows[0].isnan().any())
    np.testing.assert_allclose(rows[1], [0.0, 0.75, 0.25], rtol=1e-12)
    holed = torch.tensor([[0.5, 0.5], [float("nan"), 0.5]], dtype=torch.float64)
    rows = categorical.project_distribution(holed, torch.zeros(2, 2, dtype=torch.float64), atoms)
    assert bool(rows[1].isnan().any())
    assert not bool(rows[0].isnan().any())
    distribution = torch.tensor([[0.2, float("nan"), 0.3]], dtype=torch.float64)
    assert bool(categorical.distribution_mean(distribution, atoms).isnan().all())
    assert bool(categorical.distribution_variance(distribution, atoms).isnan().all())
    assert bool(
        categorical.cross_entropy(distribution, torch.ones(1, 3).double() / 3).isnan().all()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_function_keeps_the_dtype_of_its_first_tensor(dtype):
    atoms = torch.linspace(-1, 1, 4, dtype=dtype)
    probs = torch.full((2, 4), 0.25, dtype=dtype)
    assert categorical.project(torch.zeros(2, dtype=dtype), atoms).dtype == dtype
    assert categorical.project_distribution(probs, probs, atoms).dtype == dtype
    assert categorical.shift_distribution(probs, torch.ones(2, dtype=dtype), atoms).dtype == dtype
    assert categorical.cross_entropy(probs, probs).dtype == dtype
    assert categorical.distribution_mean(probs, atoms).dtype == dtype
    assert categorical.distribution_variance(probs, atoms).dtype == dtype
