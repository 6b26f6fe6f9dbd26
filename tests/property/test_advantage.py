"""Properties of advantage normalisation, and its equality with the plain-Python oracle."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles import advantage as oracle
from stormsail.functional import advantage

MODES = ["floor", "eps", "center_only", "zero", "skip", "previous_stats"]
numbers = st.floats(-100.0, 100.0, allow_subnormal=False)


def close(actual, expected, *, rtol=1e-9, atol=1e-9):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol)


@st.composite
def rollouts(draw):
    """Advantages and weights of one shape; some weights are 0, some are fractions."""
    shape = draw(
        st.one_of(st.tuples(st.integers(1, 8)), st.tuples(st.integers(1, 5), st.integers(1, 3)))
    )
    values = draw(hnp.arrays(np.float64, shape, elements=numbers))
    weight = draw(
        hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 1.0]))
    )
    return values, weight


def spread(values):
    return float(np.std(values, ddof=1)) if values.size > 1 else 0.0


@pytest.mark.spec("2.4")
@given(
    rollout=rollouts(),
    mode=st.sampled_from(MODES),
    floor=st.sampled_from([1e-8, 1e-3, 1.0, 30.0]),
    magnitude=st.sampled_from([None, 1e3, 2e7]),
    per_env=st.booleans(),
    weighted=st.booleans(),
)
def test_normalise_equals_the_definition(rollout, mode, floor, magnitude, per_env, weighted):
    values, weight = rollout
    weight = weight if weighted else None
    previous = (0.5, 2.0)
    used = values if weight is None else values[weight > 0.0]
    # Near the threshold rounding decides the branch; below 1e-6 it decides the digits as well.
    for column in [used, *([values[..., k] for k in range(values.shape[-1])] if per_env else [])]:
        assume(spread(column) == 0.0 or spread(column) > 1e-6)

    actual = advantage.normalise(
        torch.from_numpy(values),
        weight=None if weight is None else torch.from_numpy(weight),
        magnitude=magnitude,
        mode=mode,
        floor=floor,
        per_env=per_env,
        previous=previous,
    )

    expected = oracle.normalise(
        values,
        weight=weight,
        magnitude=magnitude,
        mode=mode,
        floor=floor,
        per_env=per_env,
        previous=previous,
    )
    # A - mean carries 100 eps; divided by a deviation of 1e-6 or a floor of 1e-8 that is 1e-6.
    close(actual, expected, rtol=1e-9, atol=1e-9 if floor >= 1e-3 else 2e-5)


@given(rollout=rollouts(), seed=st.integers(0, 1000))
def test_the_threshold_reads_the_largest_used_magnitude(rollout, seed):
    values, weight = rollout
    magnitude = np.random.default_rng(seed).uniform(1e6, 1e8, size=values.shape)

    actual = advantage.normalise(
        torch.from_numpy(values),
        weight=torch.from_numpy(weight),
        magnitude=torch.from_numpy(magnitude),
    )

    close(actual, oracle.normalise(values, weight=weight, magnitude=magnitude))


long_lists = hnp.arrays(np.float64, st.integers(2, 12), elements=numbers)


@given(values=long_lists)
def test_the_result_has_mean_zero_and_deviation_one(values):
    assume(spread(values) > 1e-3)

    actual = advantage.normalise(torch.from_numpy(values))

    assert abs(actual.mean().item()) < 1e-9
    assert actual.std().item() == pytest.approx(1.0, rel=1e-9)


@given(values=long_lists, scale=st.floats(0.01, 100.0), shift=st.floats(-100.0, 100.0))
def test_affine_maps_of_the_advantages_change_nothing_but_the_sign(values, scale, shift):
    assume(spread(values) > 1e-2)
    plain = advantage.normalise(torch.from_numpy(values))

    close(advantage.normalise(torch.from_numpy(scale * values + shift)), plain, atol=1e-7)
    close(advantage.normalise(torch.from_numpy(-scale * values + shift)), -plain, atol=1e-7)


@given(values=long_lists, seed=st.integers(0, 1000))
def test_reordering_the_entries_reorders_the_result(values, seed):
    assume(spread(values) > 1e-3)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(values)))
    x = torch.from_numpy(values)

    close(advantage.normalise(x[order]), advantage.normalise(x)[order])


@given(values=long_lists, seed=st.integers(0, 1000))
def test_weights_of_zero_and_one_are_a_selection(values, seed):
    chosen = np.random.default_rng(seed).random(len(values)) < 0.6
    assume(chosen.sum() > 1)
    assume(spread(values[chosen]) > 1e-3)
    poisoned = np.where(chosen, values, np.nan)

    actual = advantage.normalise(
        torch.from_numpy(poisoned), weight=torch.from_numpy(chosen.astype(np.float64))
    )

    selection = torch.from_numpy(chosen)
    close(actual[selection], advantage.normalise(torch.from_numpy(values[chosen])))
    assert (actual[~selection] == 0.0).all()


@given(rollout=rollouts(), factor=st.floats(0.1, 10.0))
def test_a_common_factor_of_the_weights_changes_nothing(rollout, factor):
    values, weight = rollout
    assume(spread(values[weight > 0.0]) > 1e-3)
    x, w = torch.from_numpy(values), torch.from_numpy(weight)

    close(advantage.normalise(x, weight=factor * w), advantage.normalise(x, weight=w))


@given(values=long_lists, seed=st.integers(0, 1000))
def test_integer_weights_centre_like_repetition(values, seed):
    # Only the mean: the effective count is smaller than the number of repetitions.
    repeats = np.random.default_rng(seed).integers(1, 4, size=len(values))
    x = torch.from_numpy(values)

    weighted = advantage.normalise(
        x, weight=torch.from_numpy(repeats.astype(np.float64)), mode="center_only", floor=1e6
    )

    close(weighted, x - float(np.mean(np.repeat(values, repeats))))


@given(
    values=hnp.arrays(np.float64, st.tuples(st.integers(2, 6), st.integers(1, 4)), elements=numbers)
)
def test_per_env_equals_a_loop_over_the_columns(values):
    for column in values.T:
        assume(spread(column) > 1e-3)

    together = advantage.normalise(torch.from_numpy(values), per_env=True)

    for k in range(values.shape[1]):
        close(together[:, k], advantage.normalise(torch.from_numpy(values[:, k].copy())))


@given(values=long_lists)
def test_every_centred_mode_agrees_above_the_threshold(values):
    assume(spread(values) > 1e-3)
    x = torch.from_numpy(values)
    plain = advantage.normalise(x)

    for mode in ("center_only", "zero", "skip", "previous_stats"):
        close(advantage.normalise(x, mode=mode, previous=(9.0, 9.0)), plain, rtol=1e-12)
    close(advantage.normalise(x, mode="eps"), plain, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(values=long_lists)
def test_the_dtype_is_kept_and_float32_is_only_the_last_rounding(dtype, values):
    x = torch.from_numpy(values).to(dtype)
    assume(spread(x.double().numpy()) > 1e-3)

    actual = advantage.normalise(x)

    assert actual.dtype == dtype
    # Statistics are float64 inside, so only the result is rounded: half a unit of 3 is 1.2e-7.
    close(actual.double(), advantage.normalise(x.double()), rtol=1e-7, atol=1e-7)


@given(
    rollout=st.lists(rollouts(), min_size=1, max_size=5),
    beta=st.sampled_from([0.0, 0.3, 0.9, 0.98]),
    magnitude=st.sampled_from([None, 1e3]),
)
def test_running_moments_are_those_of_the_mixture(rollout, beta, magnitude):
    seen = None
    for values, weight in rollout:
        seen = advantage.running_moments(
            torch.from_numpy(values), seen, weight=torch.from_numpy(weight), beta=beta
        )

    mean, variance = oracle.running(rollout, beta)
    counted = sum(bool((weight > 0.0).any()) for _, weight in rollout)
    assert float(seen.rollouts) == counted
    close(seen.mean, np.float64(mean))
    close(seen.variance, np.float64(variance))
    values, weight = rollout[-1]
    assume(variance == 0.0 or variance > 1e-6)
    actual = advantage.normalise_by(
        torch.from_numpy(values),
        seen,
        weight=torch.from_numpy(weight),
        magnitude=magnitude,
        floor=1e-3,
    )
    expected = oracle.normalise_by(values, mean, variance, weight, magnitude, 1e-3)
    close(actual, expected, rtol=1e-7, atol=1e-7)


@given(values=long_lists, scale=st.floats(0.01, 100.0), shift=st.floats(-100.0, 100.0))
def test_affine_maps_of_all_rollouts_move_the_running_moments_with_them(values, scale, shift):
    parts = [torch.from_numpy(part.copy()) for part in np.array_split(values, 2)]
    plain, mapped = None, None
    for part in parts:
        plain = advantage.running_moments(part, plain, beta=0.9)
        mapped = advantage.running_moments(scale * part + shift, mapped, beta=0.9)

    close(mapped.mean, scale * plain.mean + shift, rtol=1e-9, atol=1e-6)
    close(mapped.variance, scale**2 * plain.variance, rtol=1e-6, atol=1e-6)
