"""Properties of bounded perturbations, and their equality with the plain-Python oracle."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oracles import perturbation as oracle
from stormsail.functional import perturbation

numbers = st.floats(-5.0, 5.0, allow_subnormal=False)
radii = st.floats(0.01, 3.0)
NORMS = ["linf", "l2"]


def stacked(rows=1):
    """`rows` arrays of one shape [*batch, F]."""
    shape = st.one_of(
        st.tuples(st.just(rows), st.integers(1, 5)),
        st.tuples(st.just(rows), st.integers(1, 3), st.integers(1, 5)),
    )
    return hnp.arrays(np.float64, shape, elements=numbers)


def close(actual, expected, *, rtol=1e-9, atol=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=atol)


def project(delta, epsilon, norm):
    function = perturbation.project_linf if norm == "linf" else perturbation.project_l2
    return function(delta, epsilon=epsilon)


def size(delta, norm):
    return torch.linalg.vector_norm(delta, ord=float("inf") if norm == "linf" else 2, dim=-1)


def start_of(like, *, epsilon, norm, generator):
    """A random start from fresh draws; the function itself takes them as arguments (ADR 0003)."""
    normal = torch.randn(like.shape, dtype=like.dtype, generator=generator)
    uniform = torch.rand(like.shape[:-1], dtype=like.dtype, generator=generator)
    return perturbation.random_start(normal, uniform, epsilon=epsilon, norm=norm)


@given(delta=stacked(), epsilon=radii)
def test_projections_equal_the_definition(delta, epsilon):
    tensor = torch.from_numpy(delta[0])

    close(project(tensor, epsilon, "linf"), oracle.project_linf(delta[0], epsilon))
    close(project(tensor, epsilon, "l2"), oracle.project_l2(delta[0], epsilon))


@pytest.mark.spec("T-S1", "2.17")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", NORMS)
@given(delta=stacked(), epsilon=radii)
def test_a_projected_point_is_inside_the_ball_exactly(norm, dtype, delta, epsilon):
    projected = project(torch.from_numpy(delta[0]).to(dtype), epsilon, norm)

    assert projected.dtype == dtype
    assert (size(projected, norm) <= torch.tensor(epsilon, dtype=dtype)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", NORMS)
@given(delta=stacked(), epsilon=radii)
def test_projecting_twice_changes_no_bit(norm, dtype, delta, epsilon):
    once = project(torch.from_numpy(delta[0]).to(dtype), epsilon, norm)

    assert torch.equal(project(once, epsilon, norm), once)


@pytest.mark.parametrize("norm", NORMS)
@given(delta=stacked(), share=st.floats(0.0, 0.99))
def test_a_point_inside_the_ball_is_left_alone(norm, delta, share):
    tensor = torch.from_numpy(delta[0])
    longest = size(tensor, norm).max().item()
    assume(longest > 1e-3)
    inside = share * tensor

    assert torch.equal(project(inside, longest, norm), inside)


@pytest.mark.parametrize("norm", NORMS)
@given(delta=stacked(), epsilon=radii, seed=st.integers(0, 10_000))
def test_no_point_of_the_ball_is_nearer(norm, delta, epsilon, seed):
    tensor = torch.from_numpy(delta[0])
    projected = project(tensor, epsilon, norm)
    distance = torch.linalg.vector_norm(tensor - projected, dim=-1)
    generator = torch.Generator().manual_seed(seed)

    for _ in range(20):
        other = start_of(tensor, epsilon=epsilon, norm=norm, generator=generator)
        nearby = project(projected + 0.01 * other, epsilon, norm)
        for point in (other, nearby):
            rival = torch.linalg.vector_norm(tensor - point, dim=-1)
            assert (rival >= distance - 1e-9).all()


@given(gradient=stacked(), epsilon=radii)
def test_fgsm_equals_the_definition_and_is_the_best_linear_attack(gradient, epsilon):
    tensor = torch.from_numpy(gradient[0])

    attack = perturbation.fgsm(tensor, epsilon=epsilon)

    close(attack, oracle.fgsm(gradient[0], epsilon))
    # max of g.d over the box is epsilon times the sum of |g|.
    close((tensor * attack).sum(-1), epsilon * tensor.abs().sum(-1))


@pytest.mark.spec("T-S1")
@pytest.mark.parametrize("norm", NORMS)
@given(batch=stacked(2), step=st.floats(0.0, 2.0), epsilon=radii)
def test_pgd_step_equals_the_definition_and_stays_in_the_ball(norm, batch, step, epsilon):
    delta, gradient = batch
    # A vanishing length of the gradient makes its direction a matter of rounding.
    assume(all(g == 0.0 or abs(g) > 1e-6 for g in gradient.flat))

    moved = perturbation.pgd_step(
        torch.from_numpy(delta), torch.from_numpy(gradient), step=step, epsilon=epsilon, norm=norm
    )

    close(moved, oracle.pgd_step(delta, gradient, step, epsilon, norm))
    assert (size(moved, norm) <= epsilon).all()


@pytest.mark.spec("T-S1")
@pytest.mark.parametrize("norm", NORMS)
@given(gradient=stacked(), epsilon=radii, seed=st.integers(0, 1000))
def test_a_pgd_step_never_lowers_a_linear_function(norm, gradient, epsilon, seed):
    tensor = torch.from_numpy(gradient[0])
    generator = torch.Generator().manual_seed(seed)
    delta = start_of(tensor, epsilon=epsilon, norm=norm, generator=generator)

    moved = perturbation.pgd_step(delta, tensor, step=epsilon / 3.0, epsilon=epsilon, norm=norm)

    assert ((tensor * moved).sum(-1) >= (tensor * delta).sum(-1) - 1e-9).all()


@pytest.mark.spec("T-S1")
@settings(max_examples=30)
@given(gradient=stacked(), epsilon=radii, seed=st.integers(0, 1000))
def test_repeated_linf_steps_reach_the_corner(gradient, epsilon, seed):
    tensor = torch.from_numpy(gradient[0])
    generator = torch.Generator().manual_seed(seed)
    delta = start_of(tensor, epsilon=epsilon, norm="linf", generator=generator)
    for _ in range(10):
        delta = perturbation.pgd_step(
            delta, tensor, step=epsilon / 4.0, epsilon=epsilon, norm="linf"
        )

    # The best point of the box, except where the gradient is 0 and nothing moves.
    assert torch.equal(
        delta[tensor != 0.0], perturbation.fgsm(tensor, epsilon=epsilon)[tensor != 0.0]
    )


@given(batch=stacked(2), step=st.floats(0.0, 2.0), taken=st.integers(0, 20))
def test_langevin_gradients_equal_the_definition(batch, step, taken):
    gradient, noise = (torch.from_numpy(part) for part in batch)

    actual = perturbation.langevin_gradient(gradient, noise, step=step, taken=taken)

    close(actual, oracle.langevin_gradient(*batch, step, taken))


@pytest.mark.parametrize("norm", NORMS)
@given(delta=stacked())
def test_sizes_equal_the_definition(norm, delta):
    actual = perturbation.perturbation_size(torch.from_numpy(delta[0]), norm=norm)

    close(actual, oracle.size(delta[0], norm))


@pytest.mark.spec("T-S5")
@given(update=st.integers(0, 50), updates=st.integers(0, 50))
def test_the_ramp_equals_the_definition(update, updates):
    assert perturbation.ramp(update=update, updates=updates) == oracle.ramp(update, updates)


@pytest.mark.parametrize("norm", NORMS)
@given(normal=stacked(), epsilon=radii, seed=st.integers(0, 10_000))
def test_random_starts_equal_the_definition(norm, normal, epsilon, seed):
    normal = normal[0]
    assume(np.linalg.norm(normal, axis=-1).min() > 1e-6)
    uniform = np.asarray(np.random.default_rng(seed).random(normal.shape[:-1]))

    start = perturbation.random_start(
        torch.from_numpy(normal), torch.from_numpy(uniform), epsilon=epsilon, norm=norm
    )

    close(start, oracle.random_start(normal, uniform, epsilon, norm), atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(like=stacked(), epsilon=st.floats(0.0, 3.0), seed=st.integers(0, 10_000))
def test_random_starts_lie_in_the_ball(dtype, norm, like, epsilon, seed):
    like = torch.from_numpy(like[0]).to(dtype)

    start = start_of(
        like, epsilon=epsilon, norm=norm, generator=torch.Generator().manual_seed(seed)
    )

    assert start.shape == like.shape
    assert start.dtype == dtype
    assert (size(start, norm) <= torch.tensor(epsilon, dtype=dtype)).all()


@given(
    batch=stacked(2),
    seed=st.integers(0, 1000),
    low=st.one_of(st.none(), st.floats(-3.0, 0.0)),
    high=st.one_of(st.none(), st.floats(0.0, 3.0)),
)
def test_apply_mask_equals_the_definition(batch, seed, low, high):
    obs, delta = batch
    mask = np.random.default_rng(seed).random(obs.shape[-1]) < 0.5
    poisoned = np.where(mask, delta, np.nan)

    actual = perturbation.apply_mask(
        torch.from_numpy(obs),
        torch.from_numpy(poisoned),
        torch.from_numpy(mask),
        low=low,
        high=high,
    )

    expected = oracle.apply_mask(
        obs,
        delta,
        mask,
        low=-np.inf if low is None else low,
        high=np.inf if high is None else high,
    )
    assert torch.equal(actual, torch.from_numpy(expected))


@pytest.mark.spec("T-S5")
@given(
    progress=st.floats(-1.0, 2.0, allow_subnormal=False),
    initial=st.floats(0.0, 1.0, allow_subnormal=False),
    final=st.floats(0.0, 1.0, allow_subnormal=False),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
)
def test_epsilon_at_equals_the_closed_form_and_stays_between_its_ends(
    progress, initial, final, schedule
):
    actual = perturbation.epsilon_at(progress, initial=initial, final=final, schedule=schedule)

    expected = oracle.epsilon_at(progress, initial, final, schedule)
    assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert min(initial, final) - 1e-12 <= actual <= max(initial, final) + 1e-12


@given(
    initial=st.floats(0.0, 1.0),
    final=st.floats(0.0, 1.0),
    schedule=st.sampled_from(["linear", "cosine"]),
)
def test_epsilon_moves_one_way_only(initial, final, schedule):
    path = [
        perturbation.epsilon_at(k / 20.0, initial=initial, final=final, schedule=schedule)
        for k in range(21)
    ]

    direction = np.sign(final - initial)
    assert (direction * np.diff(path) >= -1e-12).all()


@settings(max_examples=20)
@given(batch=stacked(2), epsilon=radii, norm=st.sampled_from(NORMS))
def test_a_batch_equals_a_loop(batch, epsilon, norm):
    delta, gradient = (torch.from_numpy(x.reshape(-1, x.shape[-1])) for x in batch)

    together = project(delta, epsilon, norm)
    moved = perturbation.pgd_step(delta, gradient, step=0.1, epsilon=epsilon, norm=norm)

    for k in range(len(delta)):
        close(together[k], project(delta[k], epsilon, norm), rtol=1e-12)
        alone = perturbation.pgd_step(delta[k], gradient[k], step=0.1, epsilon=epsilon, norm=norm)
        close(moved[k], alone, rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_tensor_radii_and_steps_equal_numbers(norm):
    delta = torch.tensor([[3.0, -4.0], [0.1, 0.1]], dtype=torch.float64)
    scalar = torch.tensor(0.75, dtype=torch.float64)

    close(project(delta, scalar, norm), project(delta, 0.75, norm), rtol=1e-12)
    close(
        perturbation.pgd_step(delta, -delta, step=scalar, epsilon=scalar, norm=norm),
        perturbation.pgd_step(delta, -delta, step=0.75, epsilon=0.75, norm=norm),
        rtol=1e-12,
    )
