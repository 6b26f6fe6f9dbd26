"""Properties of `stormsail.functional.risk`, each against the loops of `oracles.risk`."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import risk as oracle
from stormsail.functional import risk

FLOAT32_BOUND = 2e-5
"""Relative to values of at most 10; alpha is at least 1/1000, read from sums of at most 8 terms."""

numbers = st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-6 else 0.0)
atoms_of = st.integers(1, 8).flatmap(lambda n: arrays.arrays(np.float64, n, elements=numbers))
# Round shares make exact ties of alpha * N common, the rest of the interval is covered too.
levels = st.integers(1, 1000).map(lambda k: k / 1000) | st.sampled_from([0.1, 0.2, 0.3, 0.6, 0.7])
weights = st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])


def tensor(x):
    return torch.as_tensor(np.asarray(x, dtype=np.float64))


@st.composite
def distributions(draw):
    count = draw(st.integers(2, 7))
    mass = draw(arrays.arrays(np.int64, count, elements=st.integers(0, 6)))
    mass[draw(st.integers(0, count - 1))] += 1
    # Masses in hundredths of a whole: alpha then ties with the distribution function exactly.
    probs = mass / mass.sum()
    gaps = draw(arrays.arrays(np.float64, count - 1, elements=st.floats(0.2, 2)))
    return probs, np.concatenate([[-3.0], -3.0 + np.cumsum(gaps)])


@st.composite
def samples(draw):
    count = draw(st.integers(1, 8))
    sample = draw(arrays.arrays(np.float64, count, elements=numbers))
    weight = draw(arrays.arrays(np.float64, count, elements=weights))
    weight[draw(st.integers(0, count - 1))] += 1.0
    return sample, weight


@pytest.mark.spec("R9", "S0-6")
@given(atoms_of, levels)
def test_cvar_equals_its_definition(quantiles, alpha):
    actual = risk.cvar(tensor(quantiles), alpha=alpha)
    expected = oracle.cvar(quantiles, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=12)
@given(atoms_of, levels)
def test_cvar_equals_the_integral_of_the_quantile_function(quantiles, alpha):
    spread = np.ptp(quantiles) / 10_000
    actual = risk.cvar(tensor(quantiles), alpha=alpha)
    expected = oracle.cvar_by_integration(quantiles, alpha, points=5_000)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=8 * spread + 1e-9)
    actual = risk.cvar(tensor(quantiles), alpha=alpha, estimator="linear")
    expected = oracle.cvar_linear_by_quadrature(quantiles, alpha, points=5_000)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=8 * spread + 1e-9)


@pytest.mark.spec("M05")
@given(atoms_of, levels)
def test_linear_cvar_equals_the_exact_integral_of_the_curve(quantiles, alpha):
    actual = risk.cvar(tensor(quantiles), alpha=alpha, estimator="linear")
    expected = oracle.cvar_linear(quantiles, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@given(atoms_of, levels)
def test_value_at_risk_is_the_inverse_distribution_function(quantiles, alpha):
    actual = risk.value_at_risk(tensor(quantiles), alpha=alpha)
    np.testing.assert_array_equal(actual, oracle.value_at_risk(quantiles, alpha))


@given(st.integers(1, 200), st.integers(1, 200))
def test_value_at_risk_reads_the_lower_atom_on_every_exact_tie(n, k):
    # alpha = k/n is the k-th atom whatever k/n * n rounds to.
    k = 1 + (k - 1) % n
    actual = risk.value_at_risk(torch.arange(1.0, n + 1.0), alpha=k / n)
    assert actual.item() == k


@given(distributions(), levels)
def test_categorical_risk_equals_its_definition(distribution, alpha):
    probs, atoms = distribution
    p, z = tensor(probs), tensor(atoms)
    actual = risk.categorical_cvar(p, z, alpha=alpha)
    expected = oracle.categorical_cvar(probs, atoms, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
    actual = risk.categorical_value_at_risk(p, z, alpha=alpha)
    np.testing.assert_array_equal(actual, oracle.categorical_value_at_risk(probs, atoms, alpha))


@given(distributions(), levels)
def test_categorical_cvar_is_the_cvar_of_equal_atoms_repeated(distribution, alpha):
    probs, atoms = distribution
    # Every probability here is a whole number of parts of at most 43.
    parts = next(n for n in range(1, 60) if np.allclose(probs * n, np.round(probs * n), atol=1e-9))
    repeated = np.repeat(atoms, np.round(probs * parts).astype(int))
    distribution_read = risk.categorical_cvar(tensor(probs), tensor(atoms), alpha=alpha)
    quantile_read = risk.cvar(tensor(repeated), alpha=alpha)
    np.testing.assert_allclose(distribution_read, quantile_read, rtol=1e-9, atol=1e-9)
    distribution_read = risk.categorical_value_at_risk(tensor(probs), tensor(atoms), alpha=alpha)
    quantile_read = risk.value_at_risk(tensor(repeated), alpha=alpha)
    np.testing.assert_array_equal(distribution_read, quantile_read)


@given(samples(), levels)
def test_empirical_cvar_equals_its_definition(pair, alpha):
    sample, weight = pair
    actual = risk.empirical_cvar(tensor(sample), alpha=alpha, weight=tensor(weight))
    expected = oracle.empirical_cvar(sample, alpha, weight)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)
    actual = risk.empirical_cvar(tensor(sample), alpha=alpha)
    np.testing.assert_allclose(actual, oracle.cvar(sample, alpha), rtol=1e-9, atol=1e-9)


@given(atoms_of, levels)
def test_the_error_of_the_empirical_cvar_equals_its_definition(sample, alpha):
    actual = risk.empirical_cvar_error(tensor(sample), alpha=alpha)
    expected = oracle.empirical_cvar_error(sample, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@given(samples(), levels, st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_entries_of_weight_zero_never_matter(pair, alpha, poison):
    sample, weight = pair
    kept = risk.empirical_cvar(
        tensor(sample[weight > 0]), alpha=alpha, weight=tensor(weight[weight > 0])
    )
    sample[weight == 0] = poison
    actual = risk.empirical_cvar(tensor(sample), alpha=alpha, weight=tensor(weight))
    np.testing.assert_allclose(actual, kept, rtol=1e-12, atol=1e-12)


@given(samples(), levels, st.floats(0.1, 50))
def test_only_the_ratio_of_weights_matters(pair, alpha, scale):
    sample, weight = pair
    one = risk.empirical_cvar(tensor(sample), alpha=alpha, weight=tensor(weight))
    other = risk.empirical_cvar(tensor(sample), alpha=alpha, weight=tensor(scale * weight))
    np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


READS = {
    "dirac": lambda q, alpha: risk.cvar(q, alpha=alpha),
    "linear": lambda q, alpha: risk.cvar(q, alpha=alpha, estimator="linear"),
    "value_at_risk": lambda q, alpha: risk.value_at_risk(q, alpha=alpha),
    "empirical": lambda q, alpha: risk.empirical_cvar(q, alpha=alpha),
}
every_read = pytest.mark.parametrize("name", READS)


@every_read
@settings(max_examples=60)
@given(quantiles=atoms_of, alpha=levels, shift=st.floats(-5, 5), scale=st.floats(0.1, 5))
def test_risk_moves_with_shift_and_scale(name, quantiles, alpha, shift, scale):
    q = tensor(quantiles)
    before, after = READS[name](q, alpha), READS[name](scale * q + shift, alpha)
    np.testing.assert_allclose(after, scale * before + shift, rtol=1e-9, atol=1e-9)


@every_read
@settings(max_examples=60)
@given(quantiles=atoms_of, alpha=levels, random=st.randoms(use_true_random=False))
def test_risk_ignores_the_order_of_the_atoms(name, quantiles, alpha, random):
    order = list(range(len(quantiles)))
    random.shuffle(order)
    before, after = (
        READS[name](tensor(quantiles), alpha),
        READS[name](tensor(quantiles[order]), alpha),
    )
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)


@every_read
@settings(max_examples=60)
@given(quantiles=atoms_of, first=levels, second=levels)
def test_risk_never_falls_as_alpha_grows(name, quantiles, first, second):
    low, high = sorted((first, second))
    q = tensor(quantiles)
    assert bool(READS[name](q, low) <= READS[name](q, high) + 1e-9)


# Not for `linear`: it extrapolates, and a better second atom steepens the end segment.
@pytest.mark.parametrize("name", [name for name in READS if name != "linear"])
@settings(max_examples=60)
@given(quantiles=atoms_of, alpha=levels, gain=st.floats(0, 5))
def test_a_distribution_that_is_better_everywhere_is_not_riskier(name, quantiles, alpha, gain):
    better = quantiles.copy()
    better[0] += gain
    assert bool(READS[name](tensor(better), alpha) >= READS[name](tensor(quantiles), alpha) - 1e-9)


@every_read
@settings(max_examples=30)
@given(rows=arrays.arrays(np.float64, (2, 3, 5), elements=numbers), alpha=levels)
def test_every_batch_entry_is_read_on_its_own(name, rows, alpha):
    whole = READS[name](tensor(rows), alpha)
    assert whole.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = READS[name](tensor(rows[i, j]), alpha)
            np.testing.assert_allclose(whole[i, j], one, rtol=1e-12, atol=1e-12)


@pytest.mark.spec("M23")
@every_read
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0])
def test_a_missing_atom_stays_visible_and_stays_in_its_row(name, place, alpha):
    # Sorting puts NaN on top, above every atom that a small alpha reads.
    q = tensor(np.arange(10.0).reshape(2, 5))
    q[0, place] = math.nan
    actual = READS[name](q, alpha)
    assert actual.isnan().tolist() == [True, False]


@pytest.mark.spec("T-C2")
@given(atoms_of)
def test_the_whole_tail_is_the_mean(quantiles):
    q = tensor(quantiles)
    np.testing.assert_allclose(risk.cvar(q, alpha=1.0), quantiles.mean(), rtol=1e-12, atol=1e-12)
    whole = risk.empirical_cvar(q, alpha=1.0)
    np.testing.assert_allclose(whole, quantiles.mean(), rtol=1e-12, atol=1e-12)


@pytest.mark.spec("M05")
@given(arrays.arrays(np.float64, st.integers(2, 8), elements=numbers))
def test_the_whole_linear_tail_differs_from_the_mean_by_the_end_segments(quantiles):
    # The extrapolated ends add [(last gap) - (first gap)] / (8 N) to the mean (spec 2.12).
    theta = np.sort(quantiles)
    expected = theta.mean() + ((theta[-1] - theta[-2]) - (theta[1] - theta[0])) / (8 * len(theta))
    actual = risk.cvar(tensor(quantiles), alpha=1.0, estimator="linear")
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@given(distributions())
def test_the_whole_tail_of_a_categorical_distribution_is_its_mean(distribution):
    probs, atoms = distribution
    actual = risk.categorical_cvar(tensor(probs), tensor(atoms), alpha=1.0)
    np.testing.assert_allclose(actual, probs @ atoms, rtol=1e-9, atol=1e-9)


@pytest.mark.spec("T-C4", "S3-10")
@given(atoms_of, st.floats(1e-6, 1.0))
def test_a_tail_below_one_atom_is_the_worst_atom(quantiles, share):
    alpha = share / len(quantiles)
    q = tensor(quantiles)
    np.testing.assert_allclose(risk.cvar(q, alpha=alpha), quantiles.min(), rtol=1e-9, atol=1e-9)
    assert risk.value_at_risk(q, alpha=alpha).item() == quantiles.min()


@given(atoms_of, levels)
def test_cvar_lies_between_the_worst_atom_and_the_value_at_risk(quantiles, alpha):
    q = tensor(quantiles)
    cvar, var = risk.cvar(q, alpha=alpha), risk.value_at_risk(q, alpha=alpha)
    assert quantiles.min() - 1e-9 <= cvar.item() <= var.item() + 1e-9


@pytest.mark.spec("T-C5", "S4-2", "R9")
@settings(max_examples=40)
@given(st.integers(0, 10_000), levels)
def test_the_gradient_of_cvar_is_the_share_of_each_atom_in_the_tail(seed, alpha):
    q = tensor(np.random.default_rng(seed).normal(size=7)).requires_grad_()
    (gradient,) = torch.autograd.grad(risk.cvar(q, alpha=alpha), q)
    share = np.zeros(7)
    for rank, i in enumerate(np.argsort(q.detach().numpy())):
        share[i] = min(max(alpha * 7 - rank, 0.0), 1.0) / (alpha * 7)
    np.testing.assert_allclose(gradient, share, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient.abs().sum(), 1.0, rtol=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_gradients_of_risk_agree_with_finite_differences(seed, alpha):
    rng = np.random.default_rng(seed)
    q = tensor(rng.normal(size=(2, 5))).requires_grad_()
    assume(float(np.abs(np.diff(np.sort(q.detach().numpy()))).min()) > 1e-4)
    for estimator in ("dirac", "linear"):
        assert torch.autograd.gradcheck(
            lambda x, e=estimator: risk.cvar(x, alpha=alpha, estimator=e), q
        )
    probs = torch.softmax(tensor(rng.normal(size=(2, 4))), -1)
    reached = probs.cumsum(-1)
    assume(bool(((reached - alpha).abs() > 1e-4).all()))  # the straddling atom changes there
    assert torch.autograd.gradcheck(
        lambda p: risk.categorical_cvar(p, torch.arange(4.0).double(), alpha=alpha),
        probs.requires_grad_(),
    )


@given(atoms_of, levels, numbers)
def test_risk_advantage_equals_its_definition(quantiles, alpha, sampled):
    actual = risk.risk_advantage(tensor(sampled), tensor(quantiles), alpha=alpha)
    expected = oracle.risk_advantage(sampled, quantiles, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-7)


@given(distributions(), levels, numbers)
def test_categorical_risk_advantage_equals_its_definition(distribution, alpha, sampled):
    probs, atoms = distribution
    actual = risk.categorical_risk_advantage(
        tensor(sampled), tensor(probs), tensor(atoms), alpha=alpha
    )
    expected = oracle.categorical_risk_advantage(sampled, probs, atoms, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-7)


@pytest.mark.spec("T-C3")
@given(atoms_of, levels)
def test_the_risk_advantage_of_a_right_distribution_has_mean_zero(quantiles, alpha):
    # Rockafellar and Uryasev: VaR + E[min(Z - VaR, 0)] / alpha = CVaR at every alpha-quantile.
    rows = np.tile(quantiles, (len(quantiles), 1))
    advantage = risk.risk_advantage(tensor(quantiles), tensor(rows), alpha=alpha)
    np.testing.assert_allclose(advantage.mean(), 0.0, atol=1e-9 / alpha)


@pytest.mark.spec("T-C3")
@given(distributions(), levels)
def test_the_categorical_risk_advantage_of_a_right_distribution_has_mean_zero(distribution, alpha):
    probs, atoms = distribution
    rows = np.tile(probs, (len(atoms), 1))
    advantage = risk.categorical_risk_advantage(
        tensor(atoms), tensor(rows), tensor(atoms), alpha=alpha
    )
    np.testing.assert_allclose((tensor(probs) * advantage).sum(), 0.0, atol=1e-8 / alpha)


@given(atoms_of, levels, numbers, numbers)
def test_a_better_return_never_has_a_worse_risk_advantage(quantiles, alpha, first, second):
    low, high = sorted((first, second))
    q = tensor(np.stack([quantiles, quantiles]))
    advantage = risk.risk_advantage(tensor([low, high]), q, alpha=alpha)
    assert bool(advantage[0] <= advantage[1])


@given(atoms_of, atoms_of, numbers, levels)
def test_budget_advantage_equals_its_definition(target, quantiles, budget, alpha):
    actual = risk.budget_advantage(tensor(target), tensor(quantiles), tensor(budget), alpha=alpha)
    expected = oracle.budget_advantage(target, quantiles, budget, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-7)


@given(distributions(), st.integers(0, 10_000), numbers, levels)
def test_categorical_budget_advantage_equals_its_definition(distribution, seed, budget, alpha):
    probs, atoms = distribution
    target = np.random.default_rng(seed).dirichlet(np.ones(len(atoms)))
    actual = risk.categorical_budget_advantage(
        tensor(target), tensor(probs), tensor(atoms), tensor(budget), alpha=alpha
    )
    expected = oracle.categorical_budget_advantage(target, probs, atoms, budget, alpha)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-7)


@given(atoms_of, numbers, levels)
def test_at_the_value_at_risk_the_budget_form_is_the_state_form(quantiles, sampled, alpha):
    q = tensor(quantiles)
    budget = risk.budget_advantage(
        tensor([sampled]), q, risk.value_at_risk(q, alpha=alpha), alpha=alpha
    )
    state = risk.risk_advantage(tensor(sampled), q, alpha=alpha)
    np.testing.assert_allclose(budget, state, rtol=1e-9, atol=1e-7)


@given(atoms_of, numbers, levels)
def test_a_target_equal_to_the_distribution_has_no_budget_advantage(quantiles, budget, alpha):
    q = tensor(quantiles)
    repeated = q.repeat(3)
    actual = risk.budget_advantage(repeated, q, tensor(budget), alpha=alpha)
    np.testing.assert_allclose(actual, 0.0, atol=1e-9 / alpha)


@given(atoms_of, atoms_of, levels, st.floats(-5, 5), st.floats(0.1, 5), numbers)
def test_advantages_ignore_a_shift_and_follow_a_scale(
    target, quantiles, alpha, shift, scale, budget
):
    y, q, b = tensor(target), tensor(quantiles), tensor(budget)
    before = risk.budget_advantage(y, q, b, alpha=alpha)
    after = risk.budget_advantage(
        scale * y + shift, scale * q + shift, scale * b + shift, alpha=alpha
    )
    np.testing.assert_allclose(after, scale * before, rtol=1e-9, atol=1e-8 / alpha)
    before = risk.risk_advantage(b, q, alpha=alpha)
    after = risk.risk_advantage(scale * b + shift, scale * q + shift, alpha=alpha)
    np.testing.assert_allclose(after, scale * before, rtol=1e-9, atol=1e-8 / alpha)


def test_advantages_of_a_batch_are_those_of_its_rows():
    rng = np.random.default_rng(5)
    G, y, q, b = (rng.normal(size=(2, 3, *tail)) for tail in ((), (4,), (6,), ()))
    probs, target = (rng.dirichlet(np.ones(5), size=(2, 3)) for _ in range(2))
    atoms = np.linspace(-2, 2, 5)
    state = risk.risk_advantage(tensor(G), tensor(q), alpha=0.3)
    budget = risk.budget_advantage(tensor(y), tensor(q), tensor(b), alpha=0.3)
    distribution = risk.categorical_risk_advantage(
        tensor(G), tensor(probs), tensor(atoms), alpha=0.3
    )
    distribution_budget = risk.categorical_budget_advantage(
        tensor(target), tensor(probs), tensor(atoms), tensor(b), alpha=0.3
    )
    for at in np.ndindex(2, 3):
        expected = (
            oracle.risk_advantage(G[at], q[at], 0.3),
            oracle.budget_advantage(y[at], q[at], b[at], 0.3),
            oracle.categorical_risk_advantage(G[at], probs[at], atoms, 0.3),
            oracle.categorical_budget_advantage(target[at], probs[at], atoms, b[at], 0.3),
        )
        actual = (state[at], budget[at], distribution[at], distribution_budget[at])
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.spec("X3", "S3-3")
def test_advantages_carry_no_gradient_at_all():
    q = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    G = torch.zeros(3, requires_grad=True)
    probs = torch.full((3, 4), 0.25, requires_grad=True)
    atoms = torch.arange(4.0)
    assert not risk.risk_advantage(G, q, alpha=0.3).requires_grad
    assert not risk.budget_advantage(q + 1, q, G, alpha=0.3).requires_grad
    assert not risk.categorical_risk_advantage(G, probs, atoms, alpha=0.3).requires_grad
    assert not risk.categorical_budget_advantage(probs, probs, atoms, G, alpha=0.3).requires_grad


@pytest.mark.spec("M23")
def test_missing_numbers_make_an_advantage_missing():
    nan, ok = torch.tensor(math.nan), torch.tensor(0.5)
    q, holed = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, math.nan, 2.0])
    probs, atoms = torch.tensor([0.5, 0.25, 0.25]), torch.arange(3.0)
    for alpha in (0.05, 0.9):
        results = (
            risk.risk_advantage(nan, q, alpha=alpha),
            risk.risk_advantage(ok, holed, alpha=alpha),
            risk.budget_advantage(holed, q, ok, alpha=alpha),
            risk.budget_advantage(q, holed, ok, alpha=alpha),
            risk.budget_advantage(q, q, nan, alpha=alpha),
            risk.categorical_risk_advantage(nan, probs, atoms, alpha=alpha),
            risk.categorical_cvar(holed, atoms, alpha=alpha),
            risk.categorical_budget_advantage(probs, probs, atoms, nan, alpha=alpha),
            risk.categorical_budget_advantage(holed, probs, atoms, ok, alpha=alpha),
        )
        assert all(bool(x.isnan()) for x in results)


@pytest.mark.spec("M23")
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.05, 0.9])
def test_a_missing_probability_makes_categorical_risk_missing(place, alpha):
    # Every comparison with NaN is false, so a search for the level would end on the best atom.
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    probs[0, place] = math.nan
    cvar = risk.categorical_cvar(probs, torch.arange(3.0), alpha=alpha)
    assert cvar.isnan().tolist() == [True, False]
    var = risk.categorical_value_at_risk(probs, torch.arange(3.0), alpha=alpha)
    assert var.isnan().tolist() == [True, False]


@settings(max_examples=60)
@given(atoms_of, levels)
def test_float32_keeps_its_dtype_and_a_few_ulp_of_accuracy(quantiles, alpha):
    narrow = torch.from_numpy(quantiles.astype(np.float32))
    exact = narrow.double().numpy()
    for estimator, definition in (("dirac", oracle.cvar), ("linear", oracle.cvar_linear)):
        actual = risk.cvar(narrow, alpha=alpha, estimator=estimator)
        assert actual.dtype == torch.float32
        expected = definition(exact, alpha)
        np.testing.assert_allclose(actual, expected, rtol=FLOAT32_BOUND, atol=20 * FLOAT32_BOUND)
    actual = risk.empirical_cvar(narrow, alpha=alpha, weight=torch.ones_like(narrow))
    assert actual.dtype == torch.float32
    expected = oracle.cvar(exact, alpha)
    np.testing.assert_allclose(actual, expected, rtol=FLOAT32_BOUND, atol=20 * FLOAT32_BOUND)
    assert risk.value_at_risk(narrow, alpha=alpha).item() == oracle.value_at_risk(exact, alpha)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_function_keeps_the_dtype_of_its_first_tensor(dtype):
    q = torch.tensor([[1.0, 3.0, 2.0]], dtype=dtype)
    atoms, G = torch.arange(3.0, dtype=dtype), torch.ones(1, dtype=dtype)
    probs = torch.softmax(q, -1)
    results = (
        *(read(q, 0.4) for read in READS.values()),
        risk.categorical_value_at_risk(probs, atoms, alpha=0.4),
        risk.categorical_cvar(probs, atoms, alpha=0.4),
        risk.empirical_cvar(q, alpha=0.4, weight=probs),
        risk.empirical_cvar_error(q, alpha=0.4),
        risk.risk_advantage(G, q, alpha=0.4),
        risk.categorical_risk_advantage(G, probs, atoms, alpha=0.4),
        risk.budget_advantage(q, q, G, alpha=0.4),
        risk.categorical_budget_advantage(probs, probs, atoms, G, alpha=0.4),
    )
    assert all(x.dtype == dtype and x.shape == (1,) for x in results)


def test_alpha_may_be_a_tensor_on_the_device():
    q = tensor([3.0, -1.0, 0.5, 2.0])
    probs, atoms = tensor([0.1, 0.2, 0.3, 0.4]), tensor([-2.0, -1.0, 0.0, 1.0])
    alpha = torch.tensor(0.35, dtype=torch.float64)
    for read in READS.values():
        torch.testing.assert_close(read(q, alpha), read(q, 0.35))
    for read in (risk.categorical_cvar, risk.categorical_value_at_risk):
        torch.testing.assert_close(read(probs, atoms, alpha=alpha), read(probs, atoms, alpha=0.35))
    G = tensor(-1.5)
    torch.testing.assert_close(
        risk.risk_advantage(G, q, alpha=alpha), risk.risk_advantage(G, q, alpha=0.35)
    )
    torch.testing.assert_close(
        risk.budget_advantage(q, q + 1, G, alpha=alpha),
        risk.budget_advantage(q, q + 1, G, alpha=0.35),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [10, 20, 40])
def test_a_device_level_reads_the_same_atom_as_a_number(dtype, n):
    quantiles = torch.arange(1.0, n + 1.0, dtype=dtype)
    for k in range(1, n + 1):
        alpha = torch.tensor(k / n, dtype=dtype)
        assert risk.value_at_risk(quantiles, alpha=alpha) == k
