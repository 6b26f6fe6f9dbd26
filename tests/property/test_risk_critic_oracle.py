"""The loops of `oracles.risk_critic` by hand and by identities, before anything is held to them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import risk_critic as oracle

numbers = st.floats(-10.0, 10.0)
rows = st.lists(numbers, min_size=1, max_size=6)


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def policy(seed, *shape):
    logits = drawn(seed, *shape)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@given(rewards=rows, level=numbers)
def test_increments_add_up_to_the_shortfall_of_the_episode(rewards, level):
    before = np.cumsum(rewards) - rewards
    total = oracle.shortfall_increment(np.array(rewards), before, level).sum()
    expected = min(sum(rewards) - level, 0.0) - min(-level, 0.0)
    assert total == pytest.approx(expected, abs=1e-9)


def test_an_increment_of_every_action_by_hand():
    """C - nu = -1 and 2; rewards -3, 0, 4: -4 + 1, 0, 0 + 1; and -1, 0, 0."""
    result = oracle.shortfall_increment(
        np.array([[-3.0, 0.0, 4.0]] * 2), np.array([[1.0], [4.0]]), 2.0
    )
    assert result.tolist() == [[-3.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]


def test_the_surrogate_of_an_unchanged_policy_is_the_expected_advantage():
    log_probs, gain = policy(1, 3, 2, 5), drawn(2, 3, 2, 5)
    result = oracle.expected_surrogate(log_probs, log_probs, gain, 0.2)
    np.testing.assert_allclose(result, -(np.exp(log_probs) * gain).sum(-1), rtol=0, atol=1e-12)


def test_the_surrogate_by_hand():
    """Old .5, .25, .25, 0; new .25, .5, .25, 0; advantages 2, 3, -1, 1e9; clip .2.

    Ratios .5, 2, 1: min(1, 1.6) = 1; min(6, 3.6) = 3.6; -1; so -(.5 + .9 - .25) = -1.15. With the
    signs turned: min(-1, -1.6) = -1.6; min(-6, -3.6) = -6; 1; so .8 + 1.5 - .25 = 2.05.
    """
    with np.errstate(divide="ignore"):
        old = np.log(np.array([0.5, 0.25, 0.25, 0.0]))
        new = np.log(np.array([0.25, 0.5, 0.25, 0.0]))
    gain = np.array([2.0, 3.0, -1.0, 1e9])
    assert oracle.expected_surrogate(new, old, gain, 0.2) == pytest.approx(-1.15, abs=1e-12)
    assert oracle.expected_surrogate(new, old, -gain, 0.2) == pytest.approx(2.05, abs=1e-12)
    moved = np.array([-math.inf, 0.0, -math.inf, 0.0])
    assert oracle.expected_surrogate(moved, old, gain, 0.2) == pytest.approx(
        -(0.5 * 0.0 + 0.25 * 3.6 + 0.25 * -0.8), abs=1e-12
    )
    gradient = oracle.expected_surrogate_gradient(new, old, gain, 0.2)
    np.testing.assert_allclose(gradient, [-0.5, 0.0, 0.25, 0.0], rtol=0, atol=1e-12)


@given(seed=st.integers(0, 10_000), clip=st.floats(0.05, 0.5))
def test_the_gradient_of_the_surrogate_is_its_difference_quotient(seed, clip):
    old, new, gain = policy(seed, 4), policy(seed + 1, 4), drawn(seed + 2, 4)
    ratio, step = np.exp(new - old), 1e-6
    near_a_corner = np.abs(np.abs(ratio - 1.0) - clip) < 1e-4
    gradient = oracle.expected_surrogate_gradient(new, old, gain, clip)
    for a in np.flatnonzero(~near_a_corner):
        shift = step * np.eye(4)[a]
        high, low = (
            float(oracle.expected_surrogate(new + sign * shift, old, gain, clip))
            for sign in (1.0, -1.0)
        )
        assert (high - low) / (2.0 * step) == pytest.approx(gradient[a], abs=1e-6)


def test_centred_values_have_no_mean():
    """Values 1, 2, 6 with .5, .25, .25: a mean of 2.5."""
    result = oracle.centred(np.array([[1.0, 2.0, 6.0]]), np.array([[0.5, 0.25, 0.25]]))
    assert result.tolist() == [[-1.5, -0.5, 3.5]]
    values, probs = drawn(3, 2, 4, 5), np.exp(policy(4, 2, 4, 5))
    mean = (probs * oracle.centred(values, probs)).sum(-1)
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)


def test_grid_probabilities_are_those_of_the_density():
    """Densities 1, 3 and 4, whatever their common factor, even one that overflows."""
    log_density = np.log(np.array([[1.0, 3.0, 4.0]])) + np.array([[0.0], [2000.0], [-2000.0]])
    result = oracle.grid_probabilities(log_density)
    np.testing.assert_allclose(result, [[0.125, 0.375, 0.5]] * 3, rtol=0, atol=1e-12)
    gap = np.array([[-math.inf, 0.0, 0.0]])
    assert oracle.grid_probabilities(gap).tolist() == [[0.0, 0.5, 0.5]]


@pytest.mark.parametrize("count", range(1, 8))
def test_strata_expect_the_sum_of_all_rows(count):
    values, scores = drawn(count, count), np.round(drawn(count + 50, count))
    for n_tail in range(count):
        for n_rest in range(1, count - n_tail + 1):
            result = oracle.stratified_expectation(values, scores, n_tail, n_rest)
            assert result == pytest.approx(values.sum(), abs=1e-12)
            chance = oracle.stratified_inclusion(scores, n_tail, n_rest)
            lowest = np.lexsort((np.arange(count), scores))[:n_tail]
            expected = np.full(count, n_rest / (count - n_tail))
            expected[lowest] = 1.0
            np.testing.assert_allclose(chance, expected, rtol=0, atol=1e-12)


def test_strata_by_hand():
    """Scores 3, 1, 2, 1: the two rows with 1 stay; of rows 2 and 0 one is drawn with weight 2."""
    draws = oracle.stratified_draws([3.0, 1.0, 2.0, 1.0], 2, 1)
    assert draws == [([1, 3, 2], [1.0, 1.0, 2.0]), ([1, 3, 0], [1.0, 1.0, 2.0])]


def test_the_balancing_multiplier_by_hand():
    """Two states, two actions, weights 1 and 3, probabilities .5 each.

    <m, r> = (.5 (1*2 + -1*-2) + 3 * .5 (2*1 + -2*-1)) / 4 = (2 + 6) / 4 = 2;
    <r, r> = (.5 (4 + 4) + 3 * .5 (1 + 1)) / 4 = 7 / 4; so -8 / 7.
    """
    mean = np.array([[1.0, -1.0], [2.0, -2.0]])
    risk = np.array([[2.0, -2.0], [1.0, -1.0]])
    half, weight = np.full((2, 2), 0.5), np.array([1.0, 3.0])
    assert oracle.balancing_multiplier(mean, risk, half, weight) == pytest.approx(-8.0 / 7.0)
    assert oracle.balancing_multiplier(mean, 0.0 * risk, half, weight) == 0.0
    assert oracle.balancing_multiplier(mean, risk, half, 0.0 * weight) == 0.0


@given(seed=st.integers(0, 10_000))
def test_at_the_balancing_multiplier_the_mixture_is_orthogonal_to_the_risk(seed):
    mean, risk = drawn(seed, 3, 2, 4), drawn(seed + 1, 3, 2, 4)
    probs, weight = np.exp(policy(seed + 2, 3, 2, 4)), np.abs(drawn(seed + 3, 3, 2))
    multiplier = oracle.balancing_multiplier(mean, risk, probs, weight)
    mixed = mean + multiplier * risk
    rest = (weight[..., None] * probs * mixed * risk).sum()
    assert rest == pytest.approx(0.0, abs=1e-9)
