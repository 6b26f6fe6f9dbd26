"""Properties of the statistics, and their equality with numpy and the plain-Python oracle."""

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from oracles import statistics as oracle
from stormsail.functional import statistics

numbers = st.floats(-50.0, 50.0, allow_subnormal=False)


def tables(min_rows=1, max_rows=8):
    return hnp.arrays(
        np.float64,
        st.tuples(st.integers(min_rows, max_rows), st.integers(1, 3)),
        elements=numbers,
    )


def rows(min_size=2, max_size=10):
    return hnp.arrays(
        np.float64,
        st.one_of(
            st.tuples(st.integers(min_size, max_size)),
            st.tuples(st.integers(1, 3), st.integers(min_size, max_size)),
        ),
        elements=numbers,
    )


def close(actual, expected, *, rtol=1e-9, atol=1e-9):
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol
    )


def same(first, second, *, tolerance=1e-10):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@given(x=tables())
def test_moments_equal_welford_and_numpy(x):
    actual = statistics.moments(torch.from_numpy(x))

    for part, expected in zip(actual, oracle.moments(x), strict=True):
        close(part, expected, rtol=1e-10)
    close(actual.mean, x.mean(0), rtol=1e-10)
    close(statistics.variance(actual), x.var(0), rtol=1e-10)


@given(x=tables(), seed=st.integers(0, 1000))
def test_weighted_moments_equal_welford_with_weights(x, seed):
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.0, 0.5, 1.0, 2.5], size=len(x))
    poisoned = np.where(weight[:, None] > 0.0, x, np.nan)

    actual = statistics.moments(torch.from_numpy(poisoned), weight=torch.from_numpy(weight))

    for part, expected in zip(actual, oracle.moments(x, weight), strict=True):
        close(part, expected, rtol=1e-10)


@given(x=tables(), seed=st.integers(0, 1000))
def test_integer_weights_equal_repetition(x, seed):
    repeats = np.random.default_rng(seed).integers(0, 4, size=len(x))
    assume(repeats.sum() > 0)

    weighted = statistics.moments(
        torch.from_numpy(x), weight=torch.from_numpy(repeats.astype(np.float64))
    )

    same(weighted, statistics.moments(torch.from_numpy(np.repeat(x, repeats, axis=0))))


@pytest.mark.spec("T-O2", "S1-N1")
@given(x=tables(min_rows=2), cut=st.integers(0, 8))
def test_merge_equals_numpy_over_the_concatenation(x, cut):
    cut = 1 + cut % (len(x) - 1)

    merged = statistics.merge(
        statistics.moments(torch.from_numpy(x[:cut])), statistics.moments(torch.from_numpy(x[cut:]))
    )

    assert float(merged.count) == len(x)
    close(merged.mean, x.mean(0), rtol=1e-10, atol=1e-10)
    close(merged.m2, ((x - x.mean(0)) ** 2).sum(0), rtol=1e-10, atol=1e-10)


@pytest.mark.spec("T-O2")
@given(x=tables(), y=tables())
def test_merge_equals_the_pairwise_rule_of_chan(x, y):
    first, second = (statistics.moments(torch.from_numpy(v[:, :1].copy())) for v in (x, y))

    merged = statistics.merge(first, second)

    expected = oracle.merge(
        *((float(m.count), m.mean.item(), m.m2.item()) for m in (first, second))
    )
    assert merged.count.item() == pytest.approx(expected[0], rel=1e-12)
    assert merged.mean.item() == pytest.approx(expected[1], rel=1e-12, abs=1e-12)
    assert merged.m2.item() == pytest.approx(expected[2], rel=1e-12, abs=1e-12)


@given(x=tables(min_rows=3))
def test_merge_is_commutative_and_associative(x):
    a, b, c = (statistics.moments(torch.from_numpy(part)) for part in (x[:1], x[1:2], x[2:]))

    same(statistics.merge(a, b), statistics.merge(b, a))
    same(statistics.merge(statistics.merge(a, b), c), statistics.merge(a, statistics.merge(b, c)))


@settings(max_examples=30)
@given(x=tables(min_rows=4, max_rows=12), size=st.integers(1, 5))
def test_chunks_of_any_size_give_the_same_moments(x, size):
    whole = statistics.moments(torch.from_numpy(x))
    running = statistics.moments(torch.from_numpy(x[:1]), weight=torch.zeros(1).double())
    for start in range(0, len(x), size):
        part = statistics.moments(torch.from_numpy(x[start : start + size]))
        running = statistics.merge(running, part)

    same(running, whole)


@given(x=tables())
def test_merging_with_nothing_changes_no_bit(x):
    some = statistics.moments(torch.from_numpy(x))
    nothing = statistics.moments(torch.from_numpy(x), weight=torch.zeros(len(x)).double())

    for merged in (statistics.merge(some, nothing), statistics.merge(nothing, some)):
        assert all(torch.equal(a, b) for a, b in zip(merged, some, strict=True))


@pytest.mark.spec("T-O3")
@given(before=tables(min_rows=3), after=tables(min_rows=3))
def test_drift_equals_the_definition(before, after):
    width = min(before.shape[1], after.shape[1])
    before, after = before[:, :width].copy(), after[:, :width].copy()
    assume(before.std(0).min() > 1e-3)
    assume(after.std(0).min() > 1e-3)

    actual = statistics.drift(
        statistics.moments(torch.from_numpy(before)), statistics.moments(torch.from_numpy(after))
    )

    expected = oracle.drift(before.mean(0), before.std(0), after.mean(0), after.std(0))
    for part, number in zip(actual, expected, strict=True):
        close(part, number)


@given(
    x=tables(),
    clip=st.floats(0.5, 20.0),
    eps=st.sampled_from([1e-8, 1e-2, 1.0]),
    seed=st.integers(0, 1000),
)
def test_standardise_equals_the_definition(x, clip, eps, seed):
    rng = np.random.default_rng(seed)
    mean, variance = rng.normal(size=x.shape[1]), rng.uniform(0.0, 4.0, size=x.shape[1])
    stacked = np.stack([x, 2.0 * x])  # leading axes broadcast over the features

    actual = statistics.standardise(
        *map(torch.from_numpy, (stacked, mean, variance)), clip=clip, eps=eps
    )

    close(actual, oracle.standardise(stacked, mean, variance, clip, eps))
    assert (actual.abs() <= clip).all()


@given(x=tables(min_rows=2))
def test_standardising_with_own_moments_gives_mean_zero_and_variance_one(x):
    assume(x.std(0).min() > 0.1)
    own = statistics.moments(torch.from_numpy(x))

    actual = statistics.standardise(torch.from_numpy(x), own.mean, statistics.variance(own))

    close(actual.mean(0), np.zeros(x.shape[1]), atol=1e-9)
    close(actual.var(0, correction=0), np.ones(x.shape[1]), rtol=1e-5)


@given(x=rows(min_size=1), seed=st.integers(0, 1000))
def test_weighted_mean_and_its_gradient_equal_the_definition(x, seed):
    weight = np.random.default_rng(seed).choice([0.0, -1.0, 0.25, 1.0, 3.0], size=x.shape)
    poisoned = torch.from_numpy(np.where(weight > 0.0, x, np.nan)).requires_grad_()

    actual = statistics.weighted_mean(poisoned, torch.from_numpy(weight))

    close(actual.detach(), oracle.weighted_mean(x, weight))
    if (weight > 0.0).any():
        (gradient,) = torch.autograd.grad(actual, poisoned)
        held = np.maximum(weight, 0.0)
        close(gradient, held / held.sum())


@given(x=rows(min_size=1), seed=st.integers(0, 1000))
def test_integer_weights_of_the_mean_equal_repetition(x, seed):
    repeats = np.random.default_rng(seed).integers(0, 4, size=x.size)
    assume(repeats.sum() > 0)
    flat = x.reshape(-1)

    actual = statistics.weighted_mean(
        torch.from_numpy(flat), torch.from_numpy(repeats.astype(np.float64))
    )

    close(actual, np.repeat(flat, repeats).mean())


@settings(max_examples=20)
@given(x=rows(min_size=1))
def test_weighted_mean_passes_gradcheck(x):
    leaf = torch.from_numpy(x).requires_grad_()
    weight = torch.linspace(0.1, 1.0, x.size, dtype=torch.float64).reshape(x.shape)

    assert torch.autograd.gradcheck(lambda v: statistics.weighted_mean(v, weight), (leaf,))


def former_mean(x, weight):
    """The mean of reports as it stood beside `weighted_mean` before the two became one."""
    used = weight > 0.0
    total = torch.where(used, x.double() * weight.double(), 0.0).sum()
    whole = torch.where(used, weight, 0.0).sum().double()
    return torch.where(whole > 0.0, total / torch.where(whole > 0.0, whole, 1.0), torch.nan)


def former_std(x, weight):
    """The deviation of reports as it stood beside that of `advantage.normalise`."""
    mass = torch.where(weight > 0.0, weight, 0.0).double()
    centred = torch.where(weight > 0.0, x.double() - former_mean(x, weight), 0.0)
    total = mass.sum()
    effective = total.square() / mass.square().sum()
    variance = (mass * centred.square()).sum() / total
    enough = effective > 1.0 + 1e-9
    correction = effective / torch.where(enough, effective - 1.0, 1.0)
    return torch.where(enough, (variance * correction).sqrt(), torch.nan)


@given(
    x=rows(min_size=1), seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64])
)
def test_for_flags_as_weights_both_former_versions_agree_bit_for_bit(x, seed, dtype):
    flags = np.random.default_rng(seed).integers(0, 2, size=x.shape)
    values, weight = torch.from_numpy(x.astype(dtype)), torch.from_numpy(flags.astype(dtype))

    mean, std, count = statistics.mean_and_std(values, weight)

    known = statistics.weighted_mean(values.double(), weight, empty=math.nan)
    torch.testing.assert_close(known, former_mean(values, weight), rtol=0, atol=0, equal_nan=True)
    deviation = statistics.weighted_std(values, weight)
    torch.testing.assert_close(
        deviation, former_std(values, weight), rtol=0, atol=0, equal_nan=True
    )
    assert count.item() == flags.sum()
    if count > 0:
        assert torch.equal(mean, known)
    if count > 1:
        assert torch.equal(std, deviation)


@given(x=rows(min_size=2), seed=st.integers(0, 1000))
def test_for_any_weights_both_former_versions_agree_up_to_rounding(x, seed):
    weight = np.random.default_rng(seed).choice([0.0, 0.25, 1.0, 3.0], size=x.shape)
    values, mass = torch.from_numpy(x), torch.from_numpy(weight)

    actual = statistics.weighted_std(values, mass)

    torch.testing.assert_close(
        actual, former_std(values, mass), rtol=1e-12, atol=1e-12, equal_nan=True
    )
    if np.count_nonzero(weight) > 1:
        kept = statistics.moments(values.flatten(), weight=mass.flatten())
        count = weight.sum() ** 2 / (weight**2).sum()
        close(actual, math.sqrt(statistics.variance(kept) * count / (count - 1.0)))


@given(x=rows(min_size=2), seed=st.integers(0, 1000))
def test_mean_and_std_by_column_equal_a_loop_over_columns(x, seed):
    weight = np.random.default_rng(seed).choice([0.0, 1.0, 2.0], size=x.shape)
    values, mass = torch.from_numpy(x), torch.from_numpy(weight)

    together = torch.stack(statistics.mean_and_std(values, mass, by_column=True))

    for k in range(x.shape[-1]):
        alone = torch.stack(statistics.mean_and_std(values[..., k], mass[..., k]))
        torch.testing.assert_close(together[:, k], alone, rtol=1e-12, atol=1e-12)


@given(x=rows(min_size=1), seed=st.integers(0, 1000), level=st.floats(0.0, 1.0))
def test_percentiles_equal_those_of_numpy(x, seed, level):
    used = np.random.default_rng(seed).integers(0, 2, size=x.shape).astype(bool)
    assume(used.any())

    actual = statistics.percentile(torch.from_numpy(x), torch.from_numpy(used), level=level)

    close(actual, np.quantile(x[used], level))


pairs = hnp.arrays(np.float64, st.tuples(st.just(2), st.integers(2, 10)), elements=numbers)


@pytest.mark.spec("2.20")
@given(pair=pairs, seed=st.integers(0, 1000), weighted=st.booleans())
def test_explained_variance_equals_the_definition(pair, seed, weighted):
    target, value = pair
    weight = (
        np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 2.0], size=target.shape)
        if weighted
        else None
    )
    used = target if weight is None else target[weight > 0.0]
    assume(used.size == 0 or np.ptp(used) == 0.0 or np.ptp(used) > 1e-3)

    actual = statistics.explained_variance(
        torch.from_numpy(target),
        torch.from_numpy(value),
        weight=None if weight is None else torch.from_numpy(weight),
    )

    expected = oracle.explained_variance(target, value, weight)
    assert actual.item() == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.spec("2.20")
@given(pair=pairs, power=st.integers(-300, 300))
def test_explained_variance_is_bit_for_bit_that_of_another_unit(pair, power):
    target, value = (torch.from_numpy(part).float().double() for part in pair)
    plain = statistics.explained_variance(target, value)
    moved = statistics.explained_variance(target * 2.0**power, value * 2.0**power)

    np.testing.assert_array_equal(moved.numpy(), plain.numpy())


@given(pair=pairs, scale=st.floats(0.1, 10.0), shift=st.floats(-10.0, 10.0))
def test_explained_variance_ignores_a_common_unit_and_any_shift(pair, scale, shift):
    target, value = map(torch.from_numpy, pair)
    assume(np.ptp(pair[0]) > 0.1)

    plain = statistics.explained_variance(target, value)
    moved = statistics.explained_variance(scale * target + shift, scale * value - shift)

    assert moved.item() == pytest.approx(plain.item(), rel=1e-8, abs=1e-8)


@given(pair=pairs, other=pairs)
def test_a_group_chosen_by_weight_equals_the_group_alone(pair, other):
    assume(np.ptp(pair[0]) > 0.1)
    target, value = np.concatenate([pair, other], axis=1)
    weight = np.concatenate([np.ones(pair.shape[1]), np.zeros(other.shape[1])])

    grouped = statistics.explained_variance(
        *map(torch.from_numpy, (target, value)), weight=torch.from_numpy(weight)
    )
    alone = statistics.explained_variance(*map(torch.from_numpy, pair))

    assert grouped.item() == pytest.approx(alone.item(), rel=1e-10, abs=1e-10)


@given(y=rows())
def test_slope_equals_least_squares_and_scipy(y):
    actual = statistics.slope(torch.from_numpy(y))

    close(actual, oracle.slope(y))
    first = y.reshape(-1, y.shape[-1])[0]
    expected = stats.linregress(np.arange(len(first)), first).slope if np.ptp(first) else 0.0
    assert actual.reshape(-1)[0].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(
    y=rows(min_size=3),
    gaps=st.lists(st.floats(0.1, 5.0), min_size=10, max_size=10),
)
def test_slope_with_positions_equals_least_squares(y, gaps):
    x = np.cumsum(gaps)[: y.shape[-1]]

    close(statistics.slope(torch.from_numpy(y), x=torch.from_numpy(x)), oracle.slope(y, x))


@given(
    a=st.floats(-10.0, 10.0), b=st.floats(-10.0, 10.0), n=st.integers(2, 50), c=st.floats(-9.0, 9.0)
)
def test_slope_of_an_exact_line_is_its_slope_wherever_it_lies(a, b, n, c):
    x = torch.arange(n, dtype=torch.float64)
    line = a * x + b

    assert statistics.slope(line).item() == pytest.approx(a, rel=1e-9, abs=1e-9)
    assert statistics.slope(line + c).item() == pytest.approx(a, rel=1e-9, abs=1e-9)
    assert statistics.slope(line, x=x + c).item() == pytest.approx(a, rel=1e-9, abs=1e-9)


@pytest.mark.spec("T-R5")
@given(x=rows(min_size=1))
def test_mad_std_equals_the_definition_and_scipy(x):
    actual = statistics.median_absolute_deviation_std(torch.from_numpy(x))

    close(actual, oracle.median_absolute_deviation_std(x))
    close(actual, 1.4826 * stats.median_abs_deviation(x, axis=-1))


@given(x=rows(min_size=1), scale=st.floats(-5.0, 5.0), shift=st.floats(-10.0, 10.0))
def test_mad_std_scales_with_the_unit_and_ignores_a_shift(x, scale, shift):
    plain = statistics.median_absolute_deviation_std(torch.from_numpy(x))

    moved = statistics.median_absolute_deviation_std(torch.from_numpy(scale * x + shift))

    close(moved, abs(scale) * plain, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept_and_statistics_stay_float64(dtype):
    x = torch.tensor([[0.5, 1.5, 4.0], [1.0, -1.0, 2.0]], dtype=dtype)
    flat = x[0]

    assert statistics.weighted_mean(x, torch.ones_like(x)).dtype == dtype
    assert statistics.slope(x).dtype == dtype
    assert statistics.median_absolute_deviation_std(x).dtype == dtype
    assert statistics.standardise(x, flat, flat.square()).dtype == dtype
    assert all(part.dtype == torch.float64 for part in statistics.moments(x))
    assert statistics.explained_variance(flat, flat * 0.5).dtype == torch.float64
    # A slope of float32 values of size 4: errors of a few units in the last place of 4.
    expected = oracle.slope(x.double().numpy())
    torch.testing.assert_close(
        statistics.slope(x).double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6
    )


@settings(max_examples=20)
@given(y=rows(min_size=3))
def test_rows_equal_a_loop(y):
    table = torch.from_numpy(y.reshape(-1, y.shape[-1]))

    for function in (statistics.slope, statistics.median_absolute_deviation_std):
        together = function(table)
        for k in range(len(table)):
            close(together[k], function(table[k]).item(), rtol=1e-12, atol=1e-12)


@settings(max_examples=20)
@given(y=rows(min_size=3))
def test_slope_passes_gradcheck(y):
    leaf = torch.from_numpy(y).requires_grad_()

    assert torch.autograd.gradcheck(statistics.slope, (leaf,))


def test_nan_is_the_only_answer_of_explained_variance_for_a_single_entry():
    x = torch.tensor([2.0])

    assert math.isnan(statistics.explained_variance(x, x).item())
