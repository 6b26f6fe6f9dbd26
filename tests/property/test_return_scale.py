"""Properties of return normalisation and PopArt, and equality with the plain-Python oracle."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import return_scale as oracle
from stormsail.functional import return_scale

numbers = st.floats(-10.0, 10.0, allow_subnormal=False)
means = st.floats(-5.0, 5.0, allow_subnormal=False)
deviations = st.floats(0.01, 10.0)
values = hnp.arrays(np.float64, hnp.array_shapes(max_dims=2, max_side=5), elements=numbers)
scales = st.fixed_dictionaries(
    {"mean": means, "std": deviations, "new_mean": means, "new_std": deviations}
)


def close(actual, expected, *, rtol=1e-9, atol=1e-9):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol)


def matrix(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@given(x=values, scale=scales)
def test_encode_decode_and_re_express_equal_the_definition(x, scale):
    tensor = torch.from_numpy(x)
    old = scale["mean"], scale["std"]
    new = scale["new_mean"], scale["new_std"]

    close(return_scale.encode(tensor, *old), oracle.encode(x, *old))
    close(return_scale.decode(tensor, *old), oracle.decode(x, *old))
    close(return_scale.re_express(tensor, *old, *new), oracle.re_express(x, *old, *new))


@pytest.mark.spec("T-R4", "S4-Q1")
@given(x=values, mean=means, std=deviations)
def test_decode_undoes_encode_and_encode_undoes_decode(x, mean, std):
    tensor = torch.from_numpy(x)

    close(return_scale.decode(return_scale.encode(tensor, mean, std), mean, std), tensor)
    close(return_scale.encode(return_scale.decode(tensor, mean, std), mean, std), tensor)


@pytest.mark.spec("T-R4")
@given(x=values, mean=means, std=deviations)
def test_decode_undoes_encode_in_float32_within_its_rounding(x, mean, std):
    tensor = torch.from_numpy(x).float()

    there = return_scale.encode(tensor, mean, std)
    back = return_scale.decode(there, mean, std)

    assert there.dtype == torch.float32
    # Each way rounds a number of size |x| + |mean| <= 15: four roundings of 15 eps32.
    torch.testing.assert_close(back, tensor, rtol=0.0, atol=4 * 15 * 2.0**-23)


@pytest.mark.spec("T-R1", "T-R4")
@given(x=values, scale=scales)
def test_re_expressed_values_decode_to_the_same_raw_value(x, scale):
    tensor = torch.from_numpy(x)
    old = scale["mean"], scale["std"]
    new = scale["new_mean"], scale["new_std"]

    moved = return_scale.re_express(tensor, *old, *new)

    close(return_scale.decode(moved, *new), return_scale.decode(tensor, *old))
    close(return_scale.re_express(moved, *new, *old), tensor, atol=1e-8)


@pytest.mark.spec("T-R1", "S0-3")
@given(scale=scales, seed=st.integers(0, 10_000), outputs=st.integers(1, 5), size=st.integers(1, 5))
def test_popart_preserves_the_raw_output_of_any_head(scale, seed, outputs, size):
    # Two critics: the same statistics, their own weights.
    for critic in range(2):
        weight, bias = matrix(seed + critic, outputs, size), matrix(seed + 7 + critic, outputs)
        features = matrix(seed + 99, size)

        new_weight, new_bias = return_scale.popart_rescale(
            torch.from_numpy(weight), torch.from_numpy(bias), **scale
        )

        expected = oracle.popart_rescale(weight, bias, **scale)
        close(new_weight, expected[0])
        close(new_bias, expected[1])
        before = oracle.decode(oracle.head(weight, bias, features), scale["mean"], scale["std"])
        after = oracle.decode(
            oracle.head(new_weight.numpy(), new_bias.numpy(), features),
            scale["new_mean"],
            scale["new_std"],
        )
        np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)


@given(scale=scales, theta=values, a=st.floats(0.1, 5.0), c=numbers)
def test_popart_affine_preserves_the_raw_output_of_monotone_quantiles(scale, theta, a, c):
    a, c = torch.tensor(a, dtype=torch.float64), torch.tensor(c, dtype=torch.float64)
    quantiles = torch.from_numpy(theta)

    new_a, new_c = return_scale.popart_rescale_affine(a, c, **scale)

    before = scale["std"] * (a * quantiles + c) + scale["mean"]
    after = scale["new_std"] * (new_a * quantiles + new_c) + scale["new_mean"]
    close(after, before, atol=1e-8)


@given(scale=scales, seed=st.integers(0, 10_000))
def test_a_rescale_and_its_inverse_give_the_head_back(scale, seed):
    weight, bias = torch.from_numpy(matrix(seed, 3, 4)), torch.from_numpy(matrix(seed + 1, 3))
    back = {
        "mean": scale["new_mean"],
        "std": scale["new_std"],
        "new_mean": scale["mean"],
        "new_std": scale["std"],
    }

    there = return_scale.popart_rescale(weight, bias, **scale)
    again = return_scale.popart_rescale(*there, **back)

    close(again[0], weight)
    close(again[1], bias, atol=1e-8)


def gradient_of(weight, bias, features, target, loss):
    """Gradient of one loss of a linear head with respect to its weight."""
    leaf = weight.clone().requires_grad_()
    error = target - (features @ leaf.T + bias)
    if loss == "squared":
        value = 0.5 * error.square().sum()
    else:
        value = torch.where(error < 0.0, -0.7 * error, 0.3 * error).sum()
    return torch.autograd.grad(value, leaf)[0]


@pytest.mark.spec("2.9")
@pytest.mark.parametrize("loss", ["squared", "quantile"])
@given(scale=scales, seed=st.integers(0, 10_000))
def test_rescaled_moments_are_those_of_the_rescaled_gradient(loss, scale, seed):
    # Train on the same raw target before and after the change of scale: the gradient of the head
    # must be what the moment rule says it is.
    weight, bias = torch.from_numpy(matrix(seed, 2, 3)), torch.from_numpy(matrix(seed + 1, 2))
    features = torch.from_numpy(matrix(seed + 2, 6, 3))
    raw = torch.from_numpy(5.0 * matrix(seed + 3, 6, 2))
    new_weight, new_bias = return_scale.popart_rescale(weight, bias, **scale)

    before = gradient_of(
        weight, bias, features, return_scale.encode(raw, scale["mean"], scale["std"]), loss
    )
    after = gradient_of(
        new_weight,
        new_bias,
        features,
        return_scale.encode(raw, scale["new_mean"], scale["new_std"]),
        loss,
    )
    first, second = return_scale.popart_rescale_moments(
        before, before.square(), std=scale["std"], new_std=scale["new_std"], loss=loss
    )

    close(first, after, rtol=1e-7, atol=1e-7)
    close(second, after.square(), rtol=1e-7, atol=1e-7)
    if loss == "quantile":
        utility = return_scale.popart_rescale_utility(
            -before * weight, std=scale["std"], new_std=scale["new_std"]
        )
        close(utility, -after * new_weight, rtol=1e-7, atol=1e-7)


@pytest.mark.spec("T-R3")
@given(
    std=st.floats(0.0, 10.0, allow_subnormal=False),
    clip=st.floats(0.5, 20.0),
    floor=st.sampled_from([0.0, 1e-8, 0.003, 0.01]),
    cap=st.sampled_from([100.0, 1000.0]),
)
def test_value_target_scale_equals_the_definition_and_never_passes_the_cap(std, clip, floor, cap):
    actual = return_scale.value_target_scale(
        torch.tensor(std, dtype=torch.float64), clip=clip, floor=floor, cap=cap
    )

    expected = oracle.value_target_scale(std, clip, floor, cap)
    assert float(actual) == pytest.approx(expected, rel=1e-9)
    assert float(actual) <= cap


@given(x=values, floor=st.floats(0.0, 5.0))
def test_effective_std_is_idempotent_and_never_below_the_floor(x, floor):
    std = torch.from_numpy(np.abs(x))

    once = return_scale.effective_std(std, floor=floor)

    assert (once >= floor).all()
    assert torch.equal(once, torch.where(std < floor, torch.full_like(std, floor), std))
    assert torch.equal(return_scale.effective_std(once, floor=floor), once)


supports = hnp.arrays(np.float64, st.integers(2, 6), elements=numbers)


@pytest.mark.spec("T-R4")
@given(atoms=supports, scale=scales)
def test_moved_atoms_keep_their_raw_values(atoms, scale):
    moved = return_scale.move_atoms(torch.from_numpy(atoms), **scale)

    old = scale["mean"], scale["std"]
    new = scale["new_mean"], scale["new_std"]
    close(moved, oracle.re_express(atoms, *old, *new))
    close(return_scale.decode(moved, *new), oracle.decode(atoms, *old))


@given(atoms=supports, scale=scales)
def test_tensor_scalars_equal_numbers(atoms, scale):
    tensor = torch.from_numpy(atoms)
    as_tensors = {name: torch.tensor(v, dtype=torch.float64) for name, v in scale.items()}

    close(
        return_scale.move_atoms(tensor, **as_tensors),
        return_scale.move_atoms(tensor, **scale),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept_even_with_float64_statistics(dtype):
    x = torch.tensor([0.5, -1.5], dtype=dtype)
    head = torch.ones(2, 3, dtype=dtype)
    stat = {
        name: torch.tensor(v, dtype=torch.float64)
        for name, v in (("mean", 0.1), ("std", 2.0), ("new_mean", 0.3), ("new_std", 1.5))
    }
    step = {"std": stat["std"], "new_std": stat["new_std"]}
    results = [
        return_scale.encode(x, stat["mean"], stat["std"]),
        return_scale.decode(x, stat["mean"], stat["std"]),
        return_scale.re_express(x, *stat.values()),
        return_scale.move_atoms(x, **stat),
        *return_scale.popart_rescale(head, x, **stat),
        *return_scale.popart_rescale_affine(x, x, **stat),
        *return_scale.popart_rescale_moments(x, x, **step, loss="squared"),
        return_scale.popart_rescale_utility(x, **step),
        return_scale.effective_std(x, floor=0.1),
    ]

    assert all(result.dtype == dtype for result in results)


@pytest.mark.parametrize("name", ["encode", "decode", "re_express"])
def test_gradients_pass_gradcheck(name):
    x = torch.tensor([0.5, -1.5, 3.0], dtype=torch.float64, requires_grad=True)
    statistics = (0.3, 2.0) if name != "re_express" else (0.3, 2.0, -1.0, 0.7)

    assert torch.autograd.gradcheck(lambda v: getattr(return_scale, name)(v, *statistics), (x,))
