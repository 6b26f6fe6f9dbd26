"""Formulas of all actions and of a limit against the loops of their oracles, and by identities."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import risk as tails
from oracles import risk_critic as oracle
from oracles import risk_limit as limits
from stormsail.functional import policy, risk

numbers = st.floats(-10.0, 10.0, allow_subnormal=False)
shapes = st.sampled_from([(1,), (4,), (2, 3), (2, 1, 5)])
clips = st.floats(0.01, 0.9)


def stacked(count, elements=numbers):
    return shapes.flatmap(
        lambda shape: arrays.arrays(np.float64, (count, *shape), elements=elements)
    )


def tensor(x):
    return torch.as_tensor(np.asarray(x, dtype=np.float64))


def close(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@st.composite
def policies(draw):
    """Draw new and old log probabilities, some of the old impossible, and advantages."""
    shape = draw(shapes)
    logits = arrays.arrays(np.float64, shape, elements=st.floats(-4.0, 4.0, allow_subnormal=False))
    new, old = (tensor(draw(logits)) for _ in range(2))
    never = draw(arrays.arrays(np.bool_, shape))
    never[..., 0] = False
    old = torch.where(torch.from_numpy(never), -torch.inf, old)
    gain = draw(arrays.arrays(np.float64, shape, elements=numbers))
    return new.log_softmax(-1), old.log_softmax(-1), tensor(gain)


@given(policies(), clips)
def test_the_expected_surrogate_is_its_sum(drawn, clip):
    new, old, gain = drawn
    actual = policy.expected_surrogate(new, old, gain, clip=clip)
    close(actual, oracle.expected_surrogate(new.numpy(), old.numpy(), gain.numpy(), clip))


@given(policies(), clips)
def test_the_gradient_of_the_expected_surrogate_is_its_formula(drawn, clip):
    new, old, gain = drawn
    ratio = (new - old).exp()
    assume(bool(((ratio - 1.0).abs() - clip).abs().min() > 1e-6))
    new.requires_grad_()
    policy.expected_surrogate(new, old, gain, clip=clip).sum().backward()
    expected = oracle.expected_surrogate_gradient(
        new.detach().numpy(), old.numpy(), gain.numpy(), clip
    )
    close(new.grad, expected)


@given(policies(), clips)
def test_the_expected_surrogate_is_the_mean_of_the_sampled_one(drawn, clip):
    new, old, gain = drawn
    old = torch.where(old.isinf(), -30.0, old).log_softmax(-1)
    sampled = policy.clipped_surrogate(new, old, gain, clip=clip)
    close(policy.expected_surrogate(new, old, gain, clip=clip), (old.exp() * sampled).sum(-1), 1e-9)


@given(policies())
def test_centred_values_have_mean_zero_and_keep_their_differences(drawn):
    _, old, values = drawn
    probability = old.exp()
    actual = policy.centred(values, probability)
    close(actual, oracle.centred(values.numpy(), probability.numpy()))
    close((actual * probability).sum(-1), np.zeros(actual.shape[:-1]))
    close(actual - actual[..., :1], values - values[..., :1])


@given(stacked(2), numbers)
def test_an_increment_is_its_formula(both, level):
    reward, before = both
    actual = risk.shortfall_increment(tensor(reward), tensor(before), level=level)
    close(actual, oracle.shortfall_increment(reward, before, level))


@given(st.lists(numbers, min_size=1, max_size=8), numbers)
def test_increments_of_an_episode_add_up_to_its_shortfall(rewards, level):
    reward = tensor(rewards)
    total = risk.shortfall_increment(reward, reward.cumsum(0) - reward, level=level).sum()
    close(total, min(sum(rewards) - level, 0.0) - min(-level, 0.0))


@given(stacked(2), numbers | st.just(0.0), numbers)
def test_the_level_with_held_actions_is_its_formula(both, limit, best):
    quantile, cvar = both
    actual = risk.shortfall_level(tensor(quantile), tensor(cvar), limit=limit, held=best)
    close(actual, limits.shortfall_level(quantile, cvar, limit, best))


@given(
    st.data(),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
)
def test_the_account_share_is_its_formula_and_a_share(data, shape):
    reward = data.draw(arrays.arrays(np.float64, shape, elements=numbers))
    weight = data.draw(
        arrays.arrays(np.float64, shape[:2], elements=st.sampled_from([0.0, 0.5, 1.0]))
    )
    expected = limits.account_share(reward, weight)
    spread = np.ptp(reward[weight > 0.0], axis=0).max() if (weight > 0.0).any() else 0.0
    assume(spread == 0.0 or spread > 1e-3)  # else rounding alone makes the share
    actual = float(risk.account_share(tensor(reward), tensor(weight)))
    assert -1e-12 <= actual <= 1.0 + 1e-12
    if spread > 0.0:
        assert actual == pytest.approx(expected, abs=1e-9)


@given(stacked(2), numbers | st.just(0.0))
def test_the_level_is_its_formula_and_lies_between_limit_and_quantile(both, limit):
    quantile, cvar = both
    actual = risk.shortfall_level(tensor(quantile), tensor(cvar), limit=limit).numpy()
    np.testing.assert_array_equal(actual, limits.shortfall_level(quantile, cvar, limit))
    top = np.maximum(quantile, limit)
    assert (actual >= limit - 1e-9).all()
    assert (actual <= top + 1e-9).all()


@given(stacked(3), st.floats(0.0, 2.0))
def test_the_share_is_its_formula(three, most):
    wanted, mean_rate, risk_rate = three
    actual = risk.mixing_share(*map(tensor, three), most_change=most)
    close(actual, limits.mixing_share(wanted, mean_rate, risk_rate, most))


@given(
    stacked(1),
    shapes.flatmap(lambda shape: arrays.arrays(np.float64, shape, elements=st.floats(0.0, 9.0))),
    st.floats(0.0, 3.0),
)
def test_the_slope_is_its_formula_and_grows_with_the_errors(products, squares, errors):
    product = np.resize(products[0], squares.shape)
    assume(squares.sum(-1).min() > 1e-6 or squares.max() == 0.0)
    actual = risk.calibration_slope(tensor(product), tensor(squares), errors=errors)
    close(actual, limits.calibration_slope(product, squares, errors), 1e-8)
    assert (actual >= risk.calibration_slope(tensor(product), tensor(squares), errors=0.0)).all()


@given(stacked(1), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_shrinking_is_its_formula_and_keeps_the_mean_of_every_action(one, share, seed):
    advantage = one[0]
    weight = np.random.default_rng(seed).uniform(0.1, 1.0, advantage.shape[:-1])
    actual = risk.shrink_to_mean(tensor(advantage), tensor(weight), share=share)
    close(actual, limits.shrink_to_mean(advantage, weight, share))
    states = tuple(range(weight.ndim))
    close(
        (weight[..., None] * actual.numpy()).sum(states),
        (weight[..., None] * advantage).sum(states),
        1e-8,
    )


@given(stacked(2), st.floats(0.0, 3.0))
def test_the_floor_is_its_formula(two, errors):
    gap, weight = two[0], np.abs(two[1]) + 0.1
    spread = (gap.max(-1) - gap.min(-1)).min()
    assume(gap.shape[-1] == 1 or spread > 1e-3)  # rounding decides whether equal gaps are equal
    actual = risk.floor_share(tensor(gap), tensor(weight), errors=errors)
    if gap.shape[-1] > 1:
        close(actual, limits.floor_share(gap, weight, errors), 1e-7)
    assert ((actual >= 0.0) & (actual <= 0.5)).all()


@given(policies(), st.floats(0.0, 1.0), st.integers(0, 99))
def test_the_pull_is_its_formula(case, share, place):
    _, old, advantage = (np.asarray(part) for part in case)
    probability = np.exp(old)
    action = place % probability.shape[-1]
    actual = risk.pull_to_action(
        tensor(advantage), tensor(probability), torch.tensor(action), share=share
    )
    close(actual, limits.pull_to_action(advantage, probability, action, share), 1e-8)


@st.composite
def weighed(draw):
    count = draw(st.integers(1, 8))
    sample = draw(arrays.arrays(np.float64, count, elements=numbers))
    weight = draw(arrays.arrays(np.int64, count, elements=st.integers(0, 6)))
    weight[draw(st.integers(0, count - 1))] += 1
    return sample, weight


levels = st.integers(1, 1000).map(lambda k: Fraction(k, 1000))
places = st.integers(-20, 20)


@given(weighed(), levels)
def test_the_weighted_quantile_is_its_definition(drawn, alpha):
    sample, weight = drawn
    actual = risk.weighted_value_at_risk(tensor(sample), tensor(weight), alpha=float(alpha))
    assert float(actual) == limits.weighted_value_at_risk(sample, weight, alpha)
    shared = tensor(weight) / weight.sum()
    assert float(risk.weighted_value_at_risk(tensor(sample), shared, alpha=float(alpha))) == float(
        actual
    )


@given(arrays.arrays(np.float64, st.integers(1, 8), elements=numbers), levels)
def test_with_equal_weights_it_is_the_quantile_of_a_sample(sample, alpha):
    ones = torch.ones(len(sample), dtype=torch.float64)
    actual = risk.weighted_value_at_risk(tensor(sample), ones, alpha=float(alpha))
    assert float(actual) == tails.value_at_risk(sample, float(alpha))


@given(weighed(), levels, st.data())
def test_the_stratified_error_is_its_formula(drawn, alpha, data):
    sample, weight = drawn
    share, level = weight / weight.sum(), data.draw(numbers)
    stratum = data.draw(arrays.arrays(np.bool_, len(sample)))
    draws = data.draw(st.integers(1, 50))
    options = {"alpha": float(alpha), "level": level, "draws": draws}
    place = data.draw(st.none() | arrays.arrays(np.int64, len(sample), elements=places))
    options["reach"] = data.draw(st.integers(1, 30))
    actual = risk.stratified_cvar_error(
        tensor(sample),
        tensor(share),
        torch.from_numpy(stratum),
        place=None if place is None else torch.from_numpy(place),
        **options,
    )
    expected = limits.stratified_cvar_error(sample, share, stratum, place=place, **options)
    assert float(actual) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(arrays.arrays(np.float64, st.integers(2, 8), elements=numbers), numbers)
def test_with_one_stratum_and_infinite_draws_it_is_that_of_a_mean(sample, level):
    """S^2 / M vanishes and W is 1: s / sqrt(n) over alpha, as of any mean."""
    count = len(sample)
    actual = risk.stratified_cvar_error(
        tensor(sample),
        torch.full((count,), 1.0 / count, dtype=torch.float64),
        torch.ones(count, dtype=torch.bool),
        alpha=0.25,
        level=level,
        draws=10**15,
    )
    short = np.minimum(sample - level, 0.0)
    expected = short.std(ddof=1) / np.sqrt(count) / 0.25
    assert float(actual) == pytest.approx(expected, rel=1e-6, abs=1e-5)
