"""Properties of `stormsail.functional.returns`, each against the loops of `oracles.returns`."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import returns as oracle
from stormsail.functional import returns

FLOAT32_BOUND = 2e-5
"""Inputs are at most 3 in size and at most 9 rows long, so results stay below 60: a few ulp."""

POISON = (float("nan"), float("inf"), float("-inf"))


def tensors(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def close(actual, expected, *, rtol=1e-9, atol=1e-9):
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=rtol, atol=atol)


class Rollout:
    """Random rows with every mixture of ends: terminated, truncated, both, none."""

    def __init__(self, seed, T, B, width, ends):
        rng = np.random.default_rng(seed)
        # Halves as well as reals: equal atoms and exact level ties must come up.
        draw = rng.normal(size=(T, B, width + 3)).clip(-3, 3)
        draw = np.where(rng.random((T, B, 1)) < 0.5, np.round(2 * draw) / 2, draw)
        self.reward, self.value, self.bootstrap = (draw[..., i] for i in range(3))
        self.quantiles = draw[..., 3:]
        self.terminated = rng.random((T, B)) < ends
        self.truncated = rng.random((T, B)) < ends
        weights = rng.exponential(size=(T, B, width)) * (rng.random((T, B, width)) < 0.7)
        weights[..., 0] += 1e-3
        self.probs = weights / weights.sum(-1, keepdims=True)

    def flags(self):
        return tensors(self.terminated, self.truncated)


rollouts = st.builds(
    Rollout,
    seed=st.integers(0, 2**32 - 1),
    T=st.integers(1, 9),
    B=st.integers(1, 3),
    width=st.integers(2, 5),
    ends=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
)
# Thousandths: a level is then either tied exactly or missed by far more than the tolerance.
shares = st.integers(0, 1000).map(lambda k: k / 1000) | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
window_lengths = st.integers(1, 11)


def call_gae(rollout, *, gamma, lam):
    values = tensors(rollout.reward, rollout.value, rollout.bootstrap)
    return returns.gae(*values, *rollout.flags(), gamma=gamma, lam=lam)


def call_nstep(rollout, *, gamma, steps):
    values = tensors(rollout.reward, rollout.quantiles)
    return returns.quantile_nstep_targets(*values, *rollout.flags(), gamma=gamma, steps=steps)


def call_lambda(rollout, *, gamma, lam):
    values = tensors(rollout.reward, rollout.quantiles)
    return returns.quantile_lambda_targets(*values, *rollout.flags(), gamma=gamma, lam=lam)


def call_categorical(rollout, *, gamma, steps):
    atoms = torch.linspace(-4.0, 4.0, rollout.probs.shape[-1], dtype=torch.float64)
    values = tensors(rollout.reward, rollout.probs)
    return returns.categorical_nstep_targets(
        *values, *rollout.flags(), atoms, gamma=gamma, steps=steps
    )


CALLS = {
    "gae": lambda rollout: call_gae(rollout, gamma=0.9, lam=0.8),
    "quantile_nstep_targets": lambda rollout: call_nstep(rollout, gamma=0.9, steps=3),
    "quantile_lambda_targets": lambda rollout: call_lambda(rollout, gamma=0.9, lam=0.8),
    "categorical_nstep_targets": lambda rollout: call_categorical(rollout, gamma=0.9, steps=3),
}
every_function = pytest.mark.parametrize("name", CALLS)


@pytest.mark.spec("T-GAE1", "S1-P2", "S3-M2", "S4-V5", "X1", "R9")
@given(rollouts, shares, shares)
def test_gae_equals_the_brute_force_sum_inside_each_episode(rollout, gamma, lam):
    arguments = (
        rollout.reward,
        rollout.value,
        rollout.bootstrap,
        rollout.terminated,
        rollout.truncated,
    )
    expected = oracle.gae_as_a_sum(*arguments, gamma, lam)
    np.testing.assert_allclose(oracle.gae(*arguments, gamma, lam), expected, rtol=1e-12, atol=1e-12)
    close(call_gae(rollout, gamma=gamma, lam=lam), expected, rtol=1e-10, atol=1e-10)


@given(rollouts, shares, window_lengths)
def test_quantile_nstep_targets_equal_their_definition(rollout, gamma, steps):
    expected = oracle.quantile_nstep_targets(
        rollout.reward, rollout.quantiles, rollout.terminated, rollout.truncated, gamma, steps
    )
    close(call_nstep(rollout, gamma=gamma, steps=steps), expected)


@given(rollouts, shares, shares)
def test_quantile_lambda_targets_equal_their_definition(rollout, gamma, lam):
    expected = oracle.quantile_lambda_targets(
        rollout.reward, rollout.quantiles, rollout.terminated, rollout.truncated, gamma, lam
    )
    close(call_lambda(rollout, gamma=gamma, lam=lam), expected)


@settings(max_examples=40)
@given(rollouts, st.integers(0, 40))
def test_quantile_lambda_targets_equal_the_distribution_in_rational_numbers(rollout, fortieths):
    rollout.terminated = np.zeros_like(rollout.terminated)
    lam, gamma = Fraction(fortieths, 40), Fraction(3, 4)
    expected = oracle.quantile_lambda_targets_exact(
        rollout.reward, rollout.quantiles, rollout.truncated, gamma, lam
    )
    close(call_lambda(rollout, gamma=0.75, lam=fortieths / 40), expected)


@given(rollouts, shares, window_lengths)
def test_categorical_nstep_targets_equal_their_definition(rollout, gamma, steps):
    atoms = np.linspace(-4.0, 4.0, rollout.probs.shape[-1])
    expected = oracle.categorical_nstep_targets(
        rollout.reward, rollout.probs, rollout.terminated, rollout.truncated, atoms, gamma, steps
    )
    actual = call_categorical(rollout, gamma=gamma, steps=steps)
    close(actual, expected)
    close(actual.sum(-1), np.ones(rollout.reward.shape))
    assert bool((actual >= 0).all())


@every_function
@settings(max_examples=40)
@given(rollout=rollouts)
def test_float32_keeps_its_dtype_and_a_few_ulp_of_accuracy(name, rollout):
    exact = CALLS[name](rollout)
    for field in ("reward", "value", "bootstrap", "quantiles", "probs"):
        setattr(rollout, field, getattr(rollout, field).astype(np.float32))
    atoms = torch.linspace(-4.0, 4.0, rollout.probs.shape[-1])
    if name == "categorical_nstep_targets":
        actual = returns.categorical_nstep_targets(
            *tensors(rollout.reward, rollout.probs), *rollout.flags(), atoms, gamma=0.9, steps=3
        )
    else:
        actual = CALLS[name](rollout)
    assert exact.dtype == torch.float64
    assert actual.dtype == torch.float32
    close(actual, exact.numpy(), rtol=FLOAT32_BOUND, atol=FLOAT32_BOUND)


@every_function
@settings(max_examples=40)
@given(rollout=rollouts)
def test_each_environment_is_computed_on_its_own(name, rollout):
    together = CALLS[name](rollout)
    whole = dict(vars(rollout))
    for b in range(whole["reward"].shape[1]):
        for field, array in whole.items():
            setattr(rollout, field, array[:, b : b + 1])
        assert torch.equal(CALLS[name](rollout), together[:, b : b + 1])


@pytest.mark.spec("X1")
@every_function
@settings(max_examples=60)
@given(
    rollout=rollouts,
    row=st.integers(0, 8),
    end=st.sampled_from(["terminated", "truncated"]),
    change=st.sampled_from([*POISON, 7.5]),
)
def test_nothing_after_an_episode_end_changes_an_earlier_row(name, rollout, row, end, change):
    row = row % rollout.reward.shape[0]
    getattr(rollout, end)[row] = True
    before = CALLS[name](rollout)
    for field in ("reward", "value", "bootstrap", "quantiles", "probs"):
        getattr(rollout, field)[row + 1 :] = change
    rollout.terminated[row + 1 :] ^= True
    rollout.truncated[row + 1 :] = False
    after = CALLS[name](rollout)
    assert torch.equal(after[: row + 1], before[: row + 1])


@every_function
@settings(max_examples=60)
@given(rollout=rollouts, poison=st.sampled_from(POISON))
def test_the_bootstrap_of_a_terminated_row_is_never_read(name, rollout, poison):
    before = CALLS[name](rollout)
    for field in ("bootstrap", "quantiles", "probs"):
        getattr(rollout, field)[rollout.terminated] = poison
    assert torch.equal(CALLS[name](rollout), before)


@pytest.mark.spec("M23")
@every_function
@settings(max_examples=40)
@given(rollout=rollouts, row=st.integers(0, 8))
def test_a_missing_reward_stays_visible_in_its_own_row(name, rollout, row):
    rollout.reward[row % rollout.reward.shape[0], 0] = np.nan
    assert bool(CALLS[name](rollout)[row % rollout.reward.shape[0], 0].isnan().any())


@pytest.mark.spec("M23")
@every_function
@settings(max_examples=40)
@given(rollout=rollouts, row=st.integers(0, 8), entry=st.integers(0, 4))
def test_a_missing_bootstrap_entry_stays_visible_in_its_own_row(name, rollout, row, entry):
    row = row % rollout.reward.shape[0]
    rollout.terminated[row, 0] = False
    rollout.truncated[row, 0] = True  # so that every function reads this row's own bootstrap
    rollout.bootstrap[row, 0] = np.nan
    rollout.quantiles[row, 0, entry % rollout.quantiles.shape[-1]] = np.nan
    rollout.probs[row, 0, entry % rollout.probs.shape[-1]] = np.nan
    assert bool(CALLS[name](rollout)[row, 0].isnan().any())


@pytest.mark.spec("M23")
@pytest.mark.parametrize("lam", [0.05, 0.5, 0.95])
def test_a_missing_atom_of_a_mixture_does_not_hide_behind_the_levels_read(lam):
    # Sorted to the top, a single NaN atom of mass (1 - lam)/N can lie above the last level read.
    quantiles = torch.arange(8.0, dtype=torch.float64).reshape(2, 1, 4)
    quantiles[0, 0, 1] = float("nan")
    no = torch.zeros(2, 1, dtype=torch.bool)
    target = returns.quantile_lambda_targets(
        torch.zeros(2, 1, dtype=torch.float64), quantiles, no, no, gamma=0.9, lam=lam
    )
    assert bool(target[0, 0].isnan().any())
    assert not bool(target[1, 0].isnan().any())


@given(rollouts, shares)
def test_gae_without_a_trace_is_the_temporal_difference(rollout, gamma):
    bootstrap = np.where(rollout.terminated, 0.0, rollout.bootstrap)
    expected = rollout.reward + gamma * bootstrap - rollout.value
    close(call_gae(rollout, gamma=gamma, lam=0.0), expected)


@given(rollouts, shares)
def test_gae_with_a_full_trace_and_no_ends_is_the_discounted_sum(rollout, gamma):
    T, B = rollout.reward.shape
    rollout.terminated = rollout.truncated = np.zeros((T, B), dtype=bool)
    # A value function that is consistent along the path: every row bootstraps from the next one.
    rollout.bootstrap[:-1] = rollout.value[1:]
    expected = np.zeros((T, B))
    for t in range(T):
        for k in range(t, T):
            expected[t] += gamma ** (k - t) * rollout.reward[k]
        expected[t] += gamma ** (T - t) * rollout.bootstrap[-1] - rollout.value[t]
    close(call_gae(rollout, gamma=gamma, lam=1.0), expected)


@given(rollouts, shares, shares, st.floats(-3, 3), st.floats(0.1, 3))
def test_gae_scales_and_ignores_a_potential_with_its_own_discount(
    rollout, gamma, lam, shift, scale
):
    before = call_gae(rollout, gamma=gamma, lam=lam)
    for field in ("reward", "value", "bootstrap"):
        setattr(rollout, field, scale * getattr(rollout, field))
    # V + c with reward + c - gamma * c (or + c at a termination) leaves every delta unchanged.
    rollout.reward = rollout.reward + np.where(rollout.terminated, shift, shift * (1 - gamma))
    rollout.value = rollout.value + shift
    rollout.bootstrap = rollout.bootstrap + shift
    close(call_gae(rollout, gamma=gamma, lam=lam), scale * before.numpy(), atol=1e-8)


@given(rollouts, shares)
def test_one_step_targets_are_the_temporal_difference_targets(rollout, gamma):
    following = np.where(rollout.terminated[..., None], 0.0, rollout.quantiles)
    expected = rollout.reward[..., None] + gamma * following
    close(call_nstep(rollout, gamma=gamma, steps=1), expected)
    close(call_lambda(rollout, gamma=gamma, lam=0.0), np.sort(expected, axis=-1))


@given(rollouts, shares)
def test_a_window_longer_than_the_rollout_is_the_full_trace_of_the_lambda_distribution(
    rollout, gamma
):
    longest = call_nstep(rollout, gamma=gamma, steps=rollout.reward.shape[0])
    assert torch.equal(call_nstep(rollout, gamma=gamma, steps=10_000), longest)
    close(call_lambda(rollout, gamma=gamma, lam=1.0), longest.sort(-1).values.numpy())


@given(rollouts, window_lengths)
def test_the_mean_of_the_nstep_atoms_is_the_scalar_nstep_return(rollout, steps):
    rollout.quantiles = np.concatenate([rollout.quantiles, rollout.bootstrap[..., None]], -1)
    mean = rollout.quantiles.mean(-1, keepdims=True)
    atoms = call_nstep(rollout, gamma=0.9, steps=steps)
    rollout.quantiles = mean
    close(atoms.mean(-1), call_nstep(rollout, gamma=0.9, steps=steps)[..., 0].numpy())


@settings(max_examples=60)
@given(rollouts, shares, st.floats(-2, 2), st.floats(0.1, 3), st.randoms(use_true_random=False))
def test_lambda_targets_are_sorted_and_follow_shift_scale_and_order(
    rollout, lam, shift, scale, random
):
    rollout.terminated = np.zeros_like(rollout.terminated)
    before = call_lambda(rollout, gamma=0.9, lam=lam)
    assert bool((before.diff(dim=-1) >= 0).all())
    order = list(range(rollout.quantiles.shape[-1]))
    random.shuffle(order)
    rollout.quantiles = scale * rollout.quantiles[..., order] + shift
    rollout.reward = scale * rollout.reward + shift * (1 - 0.9)
    close(call_lambda(rollout, gamma=0.9, lam=lam), scale * before.numpy() + shift)


@given(rollouts, window_lengths)
def test_nstep_targets_permute_with_their_quantiles(rollout, steps):
    before = call_nstep(rollout, gamma=0.9, steps=steps)
    rollout.quantiles = rollout.quantiles[..., ::-1]
    assert torch.equal(call_nstep(rollout, gamma=0.9, steps=steps), before.flip(-1))


@given(rollouts, st.integers(1, 8))
def test_a_rollout_cut_at_an_end_gives_the_rows_of_its_pieces(rollout, cut):
    T = rollout.reward.shape[0]
    cut = min(cut, T)
    rollout.truncated[cut - 1] = True
    whole = {name: call(rollout) for name, call in CALLS.items()}
    for rows in (slice(0, cut), slice(cut, T)):
        if rows.start == rows.stop:
            continue
        piece = Rollout(0, 1, 1, 2, 0.0)
        for field in vars(rollout):
            setattr(piece, field, getattr(rollout, field)[rows])
        for name, call in CALLS.items():
            torch.testing.assert_close(call(piece), whole[name][rows], rtol=1e-12, atol=1e-12)


def test_discount_and_decay_may_be_tensors_on_the_device():
    rollout = Rollout(3, 6, 2, 4, 0.2)
    gamma, lam = torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    close(call_gae(rollout, gamma=gamma, lam=lam), call_gae(rollout, gamma=0.9, lam=0.8).numpy())
    close(
        call_lambda(rollout, gamma=gamma, lam=lam),
        call_lambda(rollout, gamma=0.9, lam=0.8).numpy(),
    )
    close(
        call_nstep(rollout, gamma=gamma, steps=3), call_nstep(rollout, gamma=0.9, steps=3).numpy()
    )
    close(
        call_categorical(rollout, gamma=gamma, steps=3),
        call_categorical(rollout, gamma=0.9, steps=3).numpy(),
    )
