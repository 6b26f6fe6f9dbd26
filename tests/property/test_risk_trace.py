"""Properties of `budget_trace` and its categorical form, against the loops of `oracles.risk`."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import risk as oracle
from stormsail.functional import risk

shares = st.sampled_from([0.0, 0.5, 0.9, 1.0])
seeds = st.integers(0, 10_000)


def tensor(x):
    return torch.as_tensor(np.asarray(x))


def rollout(seed, rows, batch):
    """Return reward, budget and flags; a row ends in one of both ways with a third."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 6, size=(rows, batch))
    reward, budget = rng.normal(size=(2, rows, batch))
    return rng, reward, budget, ends == 0, ends == 1


@given(seeds, st.integers(1, 6), shares, shares, st.sampled_from([0.05, 0.4, 1.0]))
def test_the_trace_equals_its_definition(seed, rows, gamma, lam, alpha):
    rng, reward, budget, *flags = rollout(seed, rows, 3)
    following, own = rng.normal(size=(2, rows, 3, 4))
    actual = risk.budget_trace(
        *map(tensor, (reward, following, own, budget, *flags)), alpha=alpha, gamma=gamma, lam=lam
    )
    expected = oracle.budget_trace(reward, following, own, budget, *flags, alpha, gamma, lam)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@given(seeds, st.integers(1, 6), shares, shares, st.sampled_from([0.05, 0.4, 1.0]))
def test_the_trace_of_distributions_on_atoms_equals_its_definition(seed, rows, gamma, lam, alpha):
    rng, reward, budget, *flags = rollout(seed, rows, 3)
    following, own = rng.dirichlet(np.ones(5), size=(2, rows, 3))
    atoms = np.linspace(-2.0, 1.0, 5)
    actual = risk.categorical_budget_trace(
        *map(tensor, (reward, following, own, atoms, budget, *flags)),
        alpha=alpha,
        gamma=gamma,
        lam=lam,
    )
    expected = oracle.budget_trace(reward, following, own, budget, *flags, alpha, gamma, lam, atoms)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@given(seeds, shares, shares)
def test_equal_atoms_and_equal_masses_are_the_same_distribution(seed, gamma, lam):
    rng, reward, budget, *flags = rollout(seed, 4, 2)
    atoms = np.sort(rng.normal(size=3))
    equal = np.broadcast_to(atoms, (4, 2, 3)).copy()
    masses = np.full((4, 2, 3), 1.0 / 3.0)
    options = {"alpha": 0.3, "gamma": gamma, "lam": lam}
    by_atoms = risk.budget_trace(*map(tensor, (reward, equal, equal, budget, *flags)), **options)
    by_masses = risk.categorical_budget_trace(
        *map(tensor, (reward, masses, masses, atoms, budget, *flags)), **options
    )
    np.testing.assert_allclose(by_atoms, by_masses, rtol=1e-10, atol=1e-10)
