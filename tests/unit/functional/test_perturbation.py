"""Bounded perturbations against numbers worked out by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from stormsail.core.errors import ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.functional import perturbation

NAN, INF = math.nan, math.inf
NEVER = (
    "Reduce or expand one of them before the call; this function never broadcasts. [shape-mismatch]"
)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def start_of(like, *, epsilon, norm, seed):
    """A random start from fresh draws; the function itself takes them as arguments (ADR 0003)."""
    generator = seeded(seed)
    normal = torch.randn(like.shape, dtype=like.dtype, generator=generator)
    uniform = torch.rand(like.shape[:-1], dtype=like.dtype, generator=generator)
    return perturbation.random_start(normal, uniform, epsilon=epsilon, norm=norm)


def test_project_linf_by_hand():
    actual = perturbation.project_linf(double(-3.0, -0.5, 0.0, 0.5, 0.7), epsilon=0.5)

    assert actual.tolist() == [-0.5, -0.5, 0.0, 0.5, 0.5]


def test_project_l2_by_hand():
    # |(3, 4)| = 5, radius 1: (.6, .8). |(.3, .4)| = .5 is inside. 0 stays 0.
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)

    actual = perturbation.project_l2(rows, epsilon=1.0)

    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-14, atol=0.0)
    assert torch.equal(actual[1:], rows[1:])


def test_the_l2_ball_is_over_the_features_and_not_over_the_batch():
    rows = torch.tensor([[0.6, 0.0], [0.0, 0.8], [0.5, 0.5]], dtype=torch.float64)

    assert torch.equal(perturbation.project_l2(rows, epsilon=1.0), rows)


@pytest.mark.spec("7")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_radius_of_zero_gives_exactly_nothing(dtype):
    delta = torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=dtype)
    nothing = torch.zeros(2, 2, dtype=dtype)

    assert torch.equal(perturbation.project_linf(delta, epsilon=0.0), nothing)
    assert torch.equal(perturbation.project_l2(delta, epsilon=0.0), nothing)
    assert torch.equal(perturbation.fgsm(delta, epsilon=0.0), nothing)
    for norm in ("linf", "l2"):
        start = start_of(delta, epsilon=0.0, norm=norm, seed=0)
        moved = perturbation.pgd_step(nothing, delta, step=0.3, epsilon=0.0, norm=norm)
        assert torch.equal(start, nothing)
        assert torch.equal(moved, nothing)


def test_fgsm_by_hand():
    actual = perturbation.fgsm(double(-2.0, 0.0, 1e-30), epsilon=0.1)

    assert actual.tolist() == [-0.1, 0.0, 0.1]


def test_pgd_step_linf_by_hand():
    # +.3 along the sign, then back into [-.5, .5]; no gradient, no move.
    actual = perturbation.pgd_step(
        double(0.0, 0.4, -0.4, 0.1),
        double(2.0, 5.0, -1e-9, 0.0),
        step=0.3,
        epsilon=0.5,
        norm="linf",
    )

    torch.testing.assert_close(actual, double(0.3, 0.5, -0.5, 0.1), rtol=1e-14, atol=0.0)


def test_pgd_step_l2_by_hand():
    # Gradient (3, 4) of length 5: a step of .5 is (.3, .4). From (.6, .8) along itself with radius
    # 1 the point comes back to (.6, .8).
    free = perturbation.pgd_step(
        double(0.0, 0.0), double(3.0, 4.0), step=0.5, epsilon=1.0, norm="l2"
    )
    held = perturbation.pgd_step(
        double(0.6, 0.8), double(3.0, 4.0), step=0.5, epsilon=1.0, norm="l2"
    )
    still = perturbation.pgd_step(
        double(0.6, 0.0), double(0.0, 0.0), step=0.5, epsilon=1.0, norm="l2"
    )

    torch.testing.assert_close(free, double(0.3, 0.4), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(held, double(0.6, 0.8), rtol=1e-14, atol=0.0)
    assert still.tolist() == [0.6, 0.0]


@pytest.mark.spec("T-S1", "S1-S1")
def test_pgd_on_a_quadratic_reaches_the_corner_of_the_box():
    # |s + d|^2 is largest at the corner that points away from the origin.
    state = double(2.0, -3.0, 1.0)
    delta = start_of(state, epsilon=0.25, norm="linf", seed=1)
    losses = []
    for _ in range(12):
        leaf = delta.clone().requires_grad_()
        loss = (state + leaf).square().sum()
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, leaf)
        delta = perturbation.pgd_step(delta, gradient, step=0.05, epsilon=0.25, norm="linf")
        assert (delta.abs() <= 0.25).all()

    torch.testing.assert_close(delta, double(0.25, -0.25, 0.25), rtol=1e-14, atol=0.0)
    assert all(later >= earlier for earlier, later in pairwise(losses))
    assert losses[-1] > losses[0]


@pytest.mark.spec("T-S1")
def test_pgd_on_a_linear_function_reaches_the_optimum_of_the_ball():
    # c.d over |d| <= r is largest at r c / |c| = .5 (3, 4) / 5.
    slope = double(3.0, 4.0)
    delta = start_of(slope, epsilon=0.5, norm="l2", seed=2)
    for _ in range(200):
        delta = perturbation.pgd_step(delta, slope, step=0.1, epsilon=0.5, norm="l2")

    torch.testing.assert_close(delta, double(0.3, 0.4), rtol=1e-6, atol=1e-6)
    assert torch.linalg.vector_norm(delta) <= 0.5


@pytest.mark.spec("2.17")
def test_random_start_fills_the_box_evenly():
    like = torch.zeros(4000, 3, dtype=torch.float64)

    start = start_of(like, epsilon=0.2, norm="linf", seed=3)

    assert (start.abs() <= 0.2).all()
    for k in range(3):
        assert stats.kstest(start[:, k].numpy(), "uniform", args=(-0.2, 0.4)).pvalue > 1e-3
    correlation = np.corrcoef(start.numpy().T)
    assert np.abs(correlation - np.eye(3)).max() < 0.06


@pytest.mark.spec("2.17")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_random_start_fills_the_ball_evenly(size):
    # Uniform in a ball of dimension F: (|d| / r)^F is uniform on (0, 1) and directions are even.
    # Without the power the points crowd in the middle; without the radius they sit on the shell.
    like = torch.zeros(4000, size, dtype=torch.float64)

    start = start_of(like, epsilon=0.2, norm="l2", seed=4)

    length = torch.linalg.vector_norm(start, dim=-1)
    assert (length <= 0.2).all()
    assert stats.kstest((length / 0.2).pow(size).numpy(), "uniform").pvalue > 1e-3
    # Mean 0 and covariance r^2 / (F + 2) on the diagonal.
    covariance = np.atleast_2d(np.cov(start.numpy().T))
    expected = 0.04 / (size + 2) * np.eye(size)
    assert np.abs(start.mean(0).numpy()).max() < 0.01
    assert np.abs(covariance - expected).max() < 0.1 * 0.04 / (size + 2)


@pytest.mark.spec("2.17")
def test_random_start_by_hand():
    # l2: direction (3, 4) / 5, radius 2 * .25^(1/2) = 1. linf: 2 Phi(1.959964) - 1 = .95.
    ball = perturbation.random_start(
        double(3.0, 4.0), torch.tensor(0.25, dtype=torch.float64), epsilon=2.0, norm="l2"
    )
    box = perturbation.random_start(
        double(-1.959964, 0.0, 1.959964),
        torch.tensor(0.25, dtype=torch.float64),
        epsilon=2.0,
        norm="linf",
    )

    torch.testing.assert_close(ball, double(0.6, 0.8), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(box, double(-1.9, 0.0, 1.9), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rarest_draws_still_give_a_point_of_the_ball(norm, dtype):
    # A row of zeros has no direction, a uniform draw may be 0 or as near to 1 as the dtype allows.
    normal = torch.tensor([[0.0, 0.0], [50.0, -50.0], [1e-30, 0.0], [3.0, 4.0]], dtype=dtype)
    uniform = torch.tensor([0.5, 1.0, 1.0, 0.0], dtype=dtype)

    start = perturbation.random_start(normal, uniform, epsilon=0.1, norm=norm)

    order = INF if norm == "linf" else 2
    size = torch.linalg.vector_norm(start, ord=order, dim=-1)
    assert start.isfinite().all()
    assert (size <= torch.tensor(0.1, dtype=dtype)).all()
    assert start[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_start_is_a_function_of_its_draws_and_of_no_generator(norm):
    like = torch.zeros(5, 3)
    before = torch.get_rng_state()

    first = start_of(like, epsilon=0.1, norm=norm, seed=5)
    again = start_of(like, epsilon=0.1, norm=norm, seed=5)
    other = start_of(like, epsilon=0.1, norm=norm, seed=6)

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.dtype == torch.float32
    assert first.shape == (5, 3)


@pytest.mark.spec("2.17")
def test_apply_mask_touches_only_the_chosen_features():
    obs = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    delta = torch.tensor([[0.5, NAN, -0.5], [0.25, INF, 0.0]], dtype=torch.float64)

    actual = perturbation.apply_mask(obs, delta, torch.tensor([True, False, True]))

    assert actual.tolist() == [[1.5, 2.0, 2.5], [4.25, 5.0, 6.0]]


@pytest.mark.spec("2.17")
def test_each_feature_may_have_a_bound_of_its_own():
    inf = math.inf
    obs = torch.tensor([[0.0, 0.9, 1.5, 0.0], [-0.5, 0.0, 0.0, 0.0]])
    mask = torch.ones(4, dtype=torch.bool)
    low, high = torch.tensor([-0.6, -inf, -inf, 0.0]), torch.tensor([inf, 1.0, 1.0, 0.5])
    up = perturbation.apply_mask(obs, torch.full_like(obs, 0.3), mask, low=low, high=high)
    down = perturbation.apply_mask(obs, torch.full_like(obs, -0.3), mask, low=low, high=high)
    torch.testing.assert_close(up, torch.tensor([[0.3, 1.0, 1.5, 0.3], [-0.2, 0.3, 0.3, 0.3]]))
    torch.testing.assert_close(down, torch.tensor([[-0.3, 0.6, 1.2, 0.0], [-0.6, -0.3, -0.3, 0.0]]))
    for name in ("low", "high"):
        with pytest.raises(ShapeError, match=f"`{name}` must be a number, or have one entry"):
            perturbation.apply_mask(obs, obs, mask, **{name: torch.zeros(2)})


def test_apply_mask_bounds_the_perturbed_features_only():
    # Feature 1 lies outside the bounds and must stay exactly where it is.
    obs = torch.tensor([[0.9, 7.0, -0.9]], dtype=torch.float64)
    delta = torch.tensor([[0.5, 0.5, -0.5]], dtype=torch.float64)
    mask = torch.tensor([True, False, True])

    both = perturbation.apply_mask(obs, delta, mask, low=-1.0, high=1.0)
    above = perturbation.apply_mask(obs, delta, mask, high=1.0)
    below = perturbation.apply_mask(obs, delta, mask, low=-1.0)

    assert both.tolist() == [[1.0, 7.0, -1.0]]
    assert above.tolist() == [[1.0, 7.0, -1.4]]
    assert below.tolist() == [[1.4, 7.0, -1.0]]


@pytest.mark.spec("2.17", "7")
def test_a_perturbation_of_zero_reproduces_the_observation_bit_for_bit():
    obs = torch.randn(6, 4, generator=seeded(7))

    actual = perturbation.apply_mask(obs, torch.zeros_like(obs), torch.ones(4, dtype=torch.bool))

    assert torch.equal(actual, obs)


@pytest.mark.spec("T-S5", "X8", "8")
def test_cosine_epsilon_matches_the_golden_number_however_often_it_is_asked():
    # .05 + .025 * (1 + cos(.1 pi)) / 2 = .074388. A schedule that writes its result back and starts
    # again from there has fallen to .0608 after 100 of 1000 updates.
    radius = [
        perturbation.epsilon_at(k / 1000, initial=0.075, final=0.05, schedule="cosine")
        for k in range(101)
    ]

    assert radius[100] == pytest.approx(0.074388, abs=5e-7)
    assert radius[0] == pytest.approx(0.075, rel=1e-12)
    again = perturbation.epsilon_at(0.1, initial=0.075, final=0.05, schedule="cosine")
    assert again == radius[100]


@pytest.mark.spec("T-S5")
@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("constant", (0.075, 0.075, 0.075)),
        ("linear", (0.075, 0.0625, 0.05)),
        ("cosine", (0.075, 0.0625, 0.05)),
    ],
)
def test_epsilon_at_start_middle_and_end(schedule, values):
    for progress, expected in zip((0.0, 0.5, 1.0), values, strict=True):
        actual = perturbation.epsilon_at(progress, initial=0.075, final=0.05, schedule=schedule)
        assert actual == pytest.approx(expected, rel=1e-12)


@pytest.mark.spec("T-S5")
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_progress_outside_zero_and_one_is_held_at_the_ends(schedule):
    ends = {"initial": 0.0, "final": 0.1, "schedule": schedule}

    assert perturbation.epsilon_at(-3.0, **ends) == perturbation.epsilon_at(0.0, **ends)
    assert perturbation.epsilon_at(7.0, **ends) == perturbation.epsilon_at(1.0, **ends)


@pytest.mark.spec("T-S5")
def test_two_members_ask_for_their_own_epsilon():
    # Nothing is shared: one member's answer does not depend on what another one asked.
    first = perturbation.epsilon_at(0.3, initial=0.075, final=0.05, schedule="linear")
    perturbation.epsilon_at(0.9, initial=0.2, final=0.0, schedule="linear")

    again = perturbation.epsilon_at(0.3, initial=0.075, final=0.05, schedule="linear")
    assert again == first


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_tensor_progress_gives_the_same_numbers_as_float_progress(schedule):
    ends = {"initial": 0.075, "final": 0.05, "schedule": schedule}
    for progress in (-1.0, 0.0, 0.1, 0.7, 2.0):
        as_float = perturbation.epsilon_at(progress, **ends)
        as_tensor = perturbation.epsilon_at(torch.tensor(progress, dtype=torch.float64), **ends)
        assert isinstance(as_float, float)
        assert isinstance(as_tensor, torch.Tensor)
        assert as_tensor.item() == pytest.approx(as_float, rel=1e-12)


@pytest.mark.spec("M23")
def test_a_nan_stays_visible_in_its_own_row():
    rows = torch.tensor([[NAN, 0.1], [3.0, 4.0]], dtype=torch.float64)

    for projected in (
        perturbation.project_linf(rows, epsilon=0.5),
        perturbation.project_l2(rows, epsilon=0.5),
    ):
        assert projected[0, 0].isnan()
        assert projected[1].isfinite().all()


ZERO = torch.zeros(2, 3)
RADIUS_CALLS = [
    pytest.param(lambda e: perturbation.project_linf(ZERO, epsilon=e), id="project_linf"),
    pytest.param(lambda e: perturbation.project_l2(ZERO, epsilon=e), id="project_l2"),
    pytest.param(lambda e: perturbation.fgsm(ZERO, epsilon=e), id="fgsm"),
    pytest.param(
        lambda e: start_of(ZERO, epsilon=e, norm="l2", seed=0),
        id="random_start",
    ),
    pytest.param(
        lambda e: perturbation.pgd_step(ZERO, ZERO, step=0.1, epsilon=e, norm="linf"),
        id="pgd_step",
    ),
]


@pytest.mark.refusal
@pytest.mark.parametrize("call", RADIUS_CALLS)
@pytest.mark.parametrize(("epsilon", "shown"), [(-0.1, "-0.1"), (-1, "-1"), (NAN, "nan")])
def test_a_negative_radius_is_refused(call, epsilon, shown):
    with pytest.raises(RangeError) as caught:
        call(epsilon)
    assert str(caught.value) == (
        f"`epsilon` must be at least 0; found {shown}. "
        "Pass the radius of the ball in the unit of the observations. [out-of-range]"
    )


def test_the_noise_of_langevin_dynamics_by_hand():
    # sqrt(2 * .05 * 1e-5) = 1e-3, halved at the first step and a third of it at the second
    gradient, noise = double(0.0, 1.0), double(1.0, -2.0)
    first, second = (
        perturbation.langevin_gradient(gradient, noise, step=0.05, taken=k) for k in (0, 1)
    )
    assert first.tolist() == pytest.approx([5e-4, 1.0 - 1e-3], rel=1e-12)
    assert second.tolist() == pytest.approx([1e-3 / 3.0, 1.0 - 2e-3 / 3.0], rel=1e-12)


def test_the_radius_grows_in_a_straight_line():
    assert [perturbation.ramp(update=k, updates=4) for k in range(6)] == [
        0.0,
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
    ]
    assert perturbation.ramp(update=0, updates=0) == 1.0


@pytest.mark.refusal
def test_a_negative_count_is_refused():
    for call, words in (
        (lambda: perturbation.ramp(update=-1, updates=3), "`update` must be at least 0; found -1. "
         "Pass a number of updates. [out-of-range]"),
        (lambda: perturbation.langevin_gradient(ZERO, ZERO, step=0.1, taken=-1),
         "`taken` must be at least 0; found -1. Pass 0 at the first step. [out-of-range]"),
    ):  # fmt: skip
        with pytest.raises(RangeError) as caught:
            call()
        assert str(caught.value) == words


@pytest.mark.refusal
def test_a_negative_step_is_refused():
    with pytest.raises(RangeError) as caught:
        perturbation.pgd_step(ZERO, ZERO, step=-0.1, epsilon=0.1, norm="linf")
    assert str(caught.value) == (
        "`step` must be at least 0; found -0.1. Pass the length of one ascent step. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("norm", "remedy"),
    [("l_inf", "Did you mean `linf`?"), ("euclidean", "Choose one of those names.")],
)
def test_an_unknown_norm_is_refused_with_the_choices(norm, remedy):
    words = f"`norm` must be one of `linf`, `l2`; found `{norm}`. {remedy} [unknown-choice]"
    with pytest.raises(ChoiceError) as caught:
        perturbation.pgd_step(ZERO, ZERO, step=0.1, epsilon=0.1, norm=norm)
    assert str(caught.value) == words
    with pytest.raises(ChoiceError) as caught:
        start_of(ZERO, epsilon=0.1, norm=norm, seed=0)
    assert str(caught.value) == words


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("schedule", "remedy"),
    [("cosin", "Did you mean `cosine`?"), ("step", "Choose one of those names.")],
)
def test_an_unknown_schedule_is_refused_with_the_choices(schedule, remedy):
    with pytest.raises(ChoiceError) as caught:
        perturbation.epsilon_at(0.5, initial=0.1, final=0.0, schedule=schedule)
    assert str(caught.value) == (
        "`schedule` must be one of `constant`, `linear`, `cosine`; "
        f"found `{schedule}`. {remedy} [unknown-choice]"
    )


@pytest.mark.refusal
@pytest.mark.spec("M02")
def test_perturbations_refuse_to_broadcast():
    with pytest.raises(ShapeError) as caught:
        perturbation.pgd_step(ZERO, torch.zeros(1, 3), step=0.1, epsilon=0.1, norm="linf")
    assert str(caught.value) == (
        "`delta` and `gradient` must have the same shape; "
        f"found delta (2, 3) and gradient (1, 3). {NEVER}"
    )
    mask = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ShapeError) as caught:
        perturbation.apply_mask(ZERO, torch.zeros(3), mask)
    assert str(caught.value) == (
        f"`obs` and `delta` must have the same shape; found obs (2, 3) and delta (3,). {NEVER}"
    )
    with pytest.raises(ShapeError):
        perturbation.apply_mask(ZERO, ZERO, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ShapeError) as caught:
        perturbation.random_start(ZERO, torch.zeros(3), epsilon=0.1, norm="l2")
    assert str(caught.value) == (
        "`uniform` must have the shape of `normal` without its last dimension; "
        f"found uniform (3,) and normal (2, 3). {NEVER}"
    )


@pytest.mark.refusal
def test_a_mask_of_numbers_is_refused():
    with pytest.raises(DtypeError) as caught:
        perturbation.apply_mask(ZERO, ZERO, torch.ones(3))
    assert str(caught.value) == (
        "`mask` must be a boolean tensor; found torch.float32. "
        "Convert it with `.bool()`. [dtype-mismatch]"
    )
