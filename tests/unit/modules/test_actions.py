"""Heads that draw actions: frequencies, densities, entropies, divergences and bounds."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from oracles import risk_critic as oracle
from stormsail.core.errors import ConfigError
from stormsail.core.task import ContinuousActions, DiscreteActions, MultiDiscreteActions
from stormsail.modules.actions import (
    GRID_POINTS,
    BetaHead,
    CategoricalHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
    action_head,
    grid_log_prob,
)
from stormsail.modules.config import PolicyConfig

BOUNDS = ContinuousActions((-1.0, 0.0, 2.0), (1.0, 0.3, 7.0))
LINE = ContinuousActions((0.5,), (2.0,))
CLASSES = DiscreteActions(5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(actions=BOUNDS, **settings):
    return SquashedGaussianHead(actions, PolicyConfig(**settings))


def row(*values):
    return torch.tensor(values, dtype=torch.float64)


HEADS = {
    "categorical": CategoricalHead(CLASSES),
    "squashed_gaussian": gaussian(),
    "beta": BetaHead(BOUNDS),
}
all_heads = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
continuous = pytest.mark.parametrize("kind", ["squashed_gaussian", "beta"])


def on_a_line(kind):
    return gaussian(LINE) if kind == "squashed_gaussian" else BetaHead(LINE)


def parameters(head, *shape, dtype=torch.float32, seed=3):
    return torch.randn(*shape, head.width, generator=seeded(seed), dtype=torch.float64).to(dtype)


@all_heads
@pytest.mark.parametrize("shape", [(), (7,), (2, 3)])
@pytest.mark.spec("T-E2", "S3-5")
def test_every_reading_has_one_number_a_decision(head, shape):
    given = parameters(head, *shape)
    raw = head.sample(given, seeded())
    assert head.log_prob(given, raw).shape == shape
    assert head.entropy(given).shape == shape
    assert head.squashed_entropy(given, seeded()).shape == shape
    assert head.mode(given).shape == raw.shape
    assert head.to_task(raw).shape == raw.shape
    distance = head.kl(given, given)
    assert distance.shape == shape


@all_heads
def test_draws_come_from_the_generator_alone(head):
    given = parameters(head, 50)
    torch.manual_seed(1)
    first = head.sample(given, seeded(5))
    torch.manual_seed(2)
    assert torch.equal(first, head.sample(given, seeded(5)))
    assert not torch.equal(first, head.sample(given, seeded(6)))


def test_classes_are_drawn_as_often_as_their_probability_says():
    head, logits = HEADS["categorical"], row(0.0, -1.0, 2.0, 0.5, -4.0)
    n = 200_000
    drawn = head.sample(logits.float().expand(n, 5), seeded(1))
    counts = np.bincount(drawn.numpy(), minlength=5)
    assert drawn.dtype == torch.int64
    assert stats.chisquare(counts, n * logits.softmax(-1).numpy()).pvalue > 1e-3


def test_a_class_of_no_probability_is_never_drawn():
    logits = torch.tensor([0.0, -math.inf, 0.0]).expand(100_000, 3)
    drawn = CategoricalHead(DiscreteActions(3)).sample(logits, seeded(1))
    assert np.bincount(drawn.numpy(), minlength=3)[1] == 0


def squashed_cdf(x, mean, std):
    return stats.norm(mean, std).cdf(np.arctanh(2.0 * (x - 0.5) / 1.5 - 1.0))


def test_a_squashed_gaussian_is_drawn_from_its_distribution_within_the_bounds():
    # mean .4, rho -.3: sigma = .2 + 1.3 sigmoid(-.3)
    head, given = on_a_line("squashed_gaussian"), torch.tensor([0.4, -0.3])
    std = 0.2 + 1.3 * special.expit(-0.3)
    drawn = head.to_task(head.sample(given.expand(50_000, 2), seeded(2)))[:, 0].double().numpy()
    assert stats.kstest(drawn, squashed_cdf, args=(0.4, std)).pvalue > 1e-3


def test_a_beta_share_is_drawn_from_its_distribution_within_the_bounds():
    head, given = on_a_line("beta"), torch.tensor([0.7, -0.5])
    alpha, beta = 1.0 + np.logaddexp(0.0, [0.7, -0.5])
    drawn = head.to_task(head.sample(given.expand(50_000, 2), seeded(2)))[:, 0].double().numpy()
    distribution = stats.beta(alpha, beta, loc=0.5, scale=1.5)
    assert stats.kstest(drawn, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("given", [(0.0, 0.0), (1.5, 3.0), (-2.0, -4.0)])
def test_the_density_of_a_squashed_gaussian_integrates_to_one_over_the_unit_range(given):
    # It is the density of tanh(u) in (-1, 1). The map onto the task's bounds is affine: its
    # constant Jacobian, log((high - low) / 2) per dimension, is left out on purpose, because it
    # cancels in every ratio and divergence. In task units the density is smaller by that factor.
    head, distribution = on_a_line("squashed_gaussian"), row(*given)

    def density(action):
        raw = row(math.atanh(action))
        return float(head.log_prob(distribution, raw).exp())

    total, _ = integrate.quad(density, -1.0, 1.0, limit=200)
    assert total == pytest.approx(1.0, abs=1e-6)

    def in_task_units(action):
        return density(2.0 * (action - 0.5) / 1.5 - 1.0) * 2.0 / 1.5

    total, _ = integrate.quad(in_task_units, 0.5, 2.0, limit=200)
    assert total == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("given", [(0.0, 0.0), (2.0, -3.0), (6.0, 5.0)])
def test_the_density_of_a_beta_share_integrates_to_one(given):
    head, distribution = on_a_line("beta"), row(*given)
    total, _ = integrate.quad(lambda x: float(head.log_prob(distribution, row(x)).exp()), 0.0, 1.0)
    assert total == pytest.approx(1.0, abs=1e-7)


def test_probabilities_of_classes_sum_to_one():
    head, logits = HEADS["categorical"], row(3.0, -1.0, 2.0, 0.5, -4.0)
    parts = [head.log_prob(logits, torch.tensor(k)).exp() for k in range(5)]
    assert float(sum(parts)) == pytest.approx(1.0, abs=1e-14)


@continuous
def test_dimensions_are_independent(kind):
    wide = gaussian() if kind == "squashed_gaussian" else BetaHead(BOUNDS)
    given = parameters(wide, 4, dtype=torch.float64)
    raw = wide.sample(given, seeded())
    single = [on_a_line(kind) for _ in range(3)]
    parts = [(given[:, [k, k + 3]], raw[:, k : k + 1]) for k in range(3)]
    total = sum(
        one.log_prob(distribution, u) for one, (distribution, u) in zip(single, parts, strict=True)
    )
    torch.testing.assert_close(wide.log_prob(given, raw), total, rtol=1e-12, atol=1e-12)
    total = sum(
        one.entropy(distribution) for one, (distribution, _) in zip(single, parts, strict=True)
    )
    torch.testing.assert_close(wide.entropy(given), total, rtol=1e-12, atol=1e-12)


@all_heads
def test_the_mode_is_the_same_at_every_call_and_a_possible_action(head):
    given = parameters(head, 6, dtype=torch.float64)
    mode = head.mode(given)
    assert torch.equal(mode, head.mode(given))
    assert head.log_prob(given, mode).isfinite().all()


def test_modes_by_hand():
    assert int(HEADS["categorical"].mode(row(0.0, -1.0, 2.0, 0.5, 1.9))) == 2
    assert gaussian().mode(row(0.1, 0.2, 0.3, 9.0, 9.0, 9.0)).tolist() == [0.1, 0.2, 0.3]
    # alpha = 1 + log 2, beta = 1 + log(1 + e): the mean is alpha / (alpha + beta)
    alpha, beta = 1.0 + math.log(2.0), 1.0 + math.log(1.0 + math.e)
    mode = on_a_line("beta").mode(row(0.0, 1.0))
    assert float(mode) == pytest.approx(alpha / (alpha + beta), rel=1e-14)


@pytest.mark.parametrize(("rho", "std"), [(-60.0, 0.2), (0.0, 0.85), (60.0, 1.5)])
@pytest.mark.spec("T-E2")
def test_exploration_stays_between_its_bounds(rho, std):
    # H = 1/2 log(2 pi e sigma^2) in each of three dimensions
    given = row(0.0, 5.0, -5.0, rho, rho, rho)
    wanted = 3.0 * 0.5 * math.log(2.0 * math.pi * math.e * std**2)
    assert float(gaussian().entropy(given)) == pytest.approx(wanted, rel=1e-12)
    narrow = gaussian(std_min=0.05, std_max=0.06)
    floor = 3.0 * 0.5 * math.log(2.0 * math.pi * math.e * 0.05**2)
    assert float(narrow.entropy(row(0, 0, 0, -60, -60, -60))) == pytest.approx(floor, rel=1e-12)


def test_entropies_equal_minus_the_mean_log_density():
    n = 100_000
    for head, given in [
        (HEADS["categorical"], row(0.0, -1.0, 2.0, 0.5, -4.0)),
        (on_a_line("beta"), row(0.7, -0.5)),
    ]:
        many = given.expand(n, len(given))
        information = -head.log_prob(many, head.sample(many, seeded(4)))
        error = 4.0 * float(information.std()) / math.sqrt(n)
        assert float(information.mean()) == pytest.approx(float(head.entropy(given)), abs=error)
        assert torch.equal(head.squashed_entropy(given, seeded()), head.entropy(given))


def test_the_corrected_entropy_is_that_of_the_squashed_action():
    head, given = on_a_line("squashed_gaussian"), row(0.4, -0.3)
    n = 50_000
    many = given.expand(n, 2)
    information = -head.log_prob(many, head.sample(many, seeded(4)))
    corrected = head.squashed_entropy(many, seeded(5))
    error = 4.0 * float(information.std()) / math.sqrt(n)
    assert float(corrected.mean()) == pytest.approx(float(information.mean()), abs=error)
    assert float(corrected.mean()) < float(head.entropy(given)) - 0.1


def test_the_divergence_of_classes_is_the_sum_over_them():
    head = HEADS["categorical"]
    one, other = (
        parameters(head, dtype=torch.float64),
        parameters(head, dtype=torch.float64, seed=8),
    )
    p, q = one.softmax(-1), other.softmax(-1)
    assert float(head.kl(one, other)) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-12)
    assert float(head.kl(one, one)) == pytest.approx(0.0, abs=1e-15)


def test_the_divergence_of_gaussians_is_the_integral_over_squashed_actions():
    head, one, other = on_a_line("squashed_gaussian"), row(0.4, -0.3), row(-0.2, 0.9)

    def integrand(action):
        raw = row(math.atanh(action))
        log_p, log_q = head.log_prob(one, raw), head.log_prob(other, raw)
        return float(log_p.exp() * (log_p - log_q))

    numeric, _ = integrate.quad(integrand, -1.0, 1.0, limit=200)
    assert float(head.kl(one, other)) == pytest.approx(numeric, abs=1e-6)
    assert float(head.kl(other, one)) != pytest.approx(numeric, abs=1e-3)


def test_a_beta_divergence_is_the_integral_over_its_density():
    head = action_head(ContinuousActions((0.0,), (1.0,)), PolicyConfig(distribution="beta"))
    near, other = (torch.tensor(pair, dtype=torch.float64) for pair in ([0.3, -0.4], [1.2, 0.5]))

    def integrand(share):
        raw = torch.tensor([share], dtype=torch.float64)
        log_p, log_q = head.log_prob(near, raw), head.log_prob(other, raw)
        return float(log_p.exp() * (log_p - log_q))

    numeric, _ = integrate.quad(integrand, 0.0, 1.0, limit=200)
    assert float(head.kl(near, other)) == pytest.approx(numeric, abs=1e-7)
    assert float(head.kl(other, near)) != pytest.approx(numeric, abs=1e-3)


@continuous
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_action_leaves_the_bounds(kind, dtype):
    head = HEADS[kind]
    extreme = torch.tensor([-1e4, -30.0, -1.0, 0.0, 1.0, 30.0, 1e4], dtype=dtype)
    raw = extreme if kind == "squashed_gaussian" else extreme.sigmoid()
    action = head.to_task(raw[:, None].expand(-1, 3))
    low, high = torch.tensor(BOUNDS.low, dtype=dtype), torch.tensor(BOUNDS.high, dtype=dtype)
    assert torch.equal(action[0], low)
    assert torch.equal(action[-1], high)
    assert ((action >= low) & (action <= high)).all()
    torch.testing.assert_close(action[3], 0.5 * (low + high))
    assert (action.diff(dim=0) >= 0.0).all()


@continuous
def test_wild_parameters_still_give_known_probabilities(kind):
    head = HEADS[kind]
    given = torch.tensor([[-80.0] * 6, [80.0] * 6, [-80.0, 80.0] * 3])
    raw = head.sample(given, seeded())
    assert head.log_prob(given, raw).isfinite().all()
    action = head.to_task(raw)
    assert ((action >= torch.tensor(BOUNDS.low)) & (action <= torch.tensor(BOUNDS.high))).all()


def test_a_class_is_its_own_action():
    raw = torch.tensor([3, 0, 4])
    assert torch.equal(HEADS["categorical"].to_task(raw), raw)


@pytest.mark.parametrize(
    ("actions", "distribution", "kind"),
    [
        (CLASSES, "auto", CategoricalHead),
        (CLASSES, "categorical", CategoricalHead),
        (BOUNDS, "auto", SquashedGaussianHead),
        (BOUNDS, "squashed_gaussian", SquashedGaussianHead),
        (BOUNDS, "beta", BetaHead),
    ],
)
def test_the_head_follows_from_the_actions(actions, distribution, kind):
    head = action_head(actions, PolicyConfig(distribution=distribution))
    assert type(head) is kind
    assert head.width == (5 if kind is CategoricalHead else 6)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("actions", "distribution", "fitting"),
    [
        (CLASSES, "beta", "`auto` or `categorical` for discrete actions"),
        (CLASSES, "squashed_gaussian", "`auto` or `categorical` for discrete actions"),
        (BOUNDS, "categorical", "`auto`, `squashed_gaussian` or `beta` for continuous actions"),
    ],
)
def test_a_distribution_that_cannot_draw_such_actions_is_refused(actions, distribution, fitting):
    with pytest.raises(ConfigError) as caught:
        action_head(actions, PolicyConfig(distribution=distribution))
    assert str(caught.value) == (
        f"`policy.distribution` must be {fitting}; found `{distribution}`. Change the "
        "distribution, or the task's actions. [config-inconsistent]"
    )


# ------------------------------------------------------------------- actions that stand for all


def test_the_grid_of_classes_is_all_of_them_with_their_own_probabilities():
    head = HEADS["categorical"]
    grid, logits = head.grid(), row(0.0, -1.0, 2.0, 0.5, -4.0)
    assert grid.tolist() == [0, 1, 2, 3, 4]
    assert grid.dtype == torch.int64
    mask = torch.tensor([True, False, True, True, False])
    logits = torch.stack((logits, head.masked(logits, mask)))
    share = grid_log_prob(head, logits, grid).exp()
    allowed = np.exp([0.0, 2.0, 0.5]) / np.exp([0.0, 2.0, 0.5]).sum()
    np.testing.assert_allclose(share[0], special.softmax([0.0, -1.0, 2.0, 0.5, -4.0]), atol=1e-15)
    np.testing.assert_allclose(share[1, [0, 2, 3]], allowed, atol=1e-15)
    assert share[1, [1, 4]].tolist() == [0.0, 0.0]
    each = torch.stack([head.log_prob(logits, grid[k].expand(2)) for k in range(5)], -1)
    torch.testing.assert_close(share, each.exp())


@continuous
def test_the_grid_of_a_number_is_the_middles_of_equal_parts_of_its_range(kind):
    head = on_a_line(kind)
    points = head.to_task(head.grid()[:, None])[:, 0]
    middles = 0.5 + 1.5 * (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS
    np.testing.assert_allclose(points, middles, rtol=1e-6)


def cells(kind, given):
    """Return the exact probability of each part of the range."""
    edges = np.linspace(0.0, 1.0, GRID_POINTS + 1)
    if kind == "beta":
        alpha, beta = 1.0 + np.log1p(np.exp(given))
        return np.diff(stats.beta(alpha, beta).cdf(edges))
    std = 0.2 + 1.3 / (1.0 + math.exp(-given[1]))
    with np.errstate(divide="ignore"):
        return np.diff(stats.norm(given[0], std).cdf(np.arctanh(2.0 * edges - 1.0)))


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [
        ("squashed_gaussian", (0.0, -20.0), 0.005),  # the least spread, 0.2: two cells wide
        ("squashed_gaussian", (0.5, -20.0), 0.009),
        ("squashed_gaussian", (0.0, -1.0), 0.002),
        ("squashed_gaussian", (-0.5, 0.5), 0.006),
        ("squashed_gaussian", (1.5, -2.5), 0.10),  # most mass in the last cell, where it is steep
        ("beta", (0.5, 0.5), 0.001),
        ("beta", (-0.5, 3.0), 0.01),
        ("beta", (7.0, 2.0), 0.01),
    ],
)
def test_grid_probabilities_are_those_of_the_parts_up_to_a_stated_error(kind, given, error):
    """The density at the middle of a part stands for its mean there: total variation below."""
    head = on_a_line(kind)
    share = grid_log_prob(head, row(*given), head.grid()).exp().numpy()
    exact = cells(kind, given)
    assert share.sum() == pytest.approx(1.0, abs=1e-12)
    assert 0.5 * np.abs(share - exact).sum() < error
    assert share.argmax() == exact.argmax()


@continuous
def test_grid_probabilities_are_densities_at_the_points_over_their_sum(kind):
    head, grid = on_a_line(kind), on_a_line(kind).grid()
    given = parameters(head, 2, 3, dtype=torch.float64)
    density = torch.stack(
        [head.log_prob(given, grid[k].expand(2, 3, 1)) for k in range(GRID_POINTS)], -1
    )
    share = grid_log_prob(head, given, grid).exp()
    assert share.shape == (2, 3, GRID_POINTS)
    np.testing.assert_allclose(share, oracle.grid_probabilities(density.numpy()), atol=1e-12)


@pytest.mark.parametrize("kind", ["categorical", "squashed_gaussian", "beta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_grid_probabilities_have_dtype_device_shape_and_gradient_of_the_parameters(
    kind, dtype, shape
):
    head = HEADS["categorical"] if kind == "categorical" else on_a_line(kind)
    grid = head.grid()
    given = parameters(head, *shape, dtype=dtype).requires_grad_()
    result = grid_log_prob(head, given, grid)
    assert (result.dtype, result.device, result.shape) == (dtype, given.device, (*shape, len(grid)))
    result[..., 1].sum().backward()
    probability, step = result.detach().exp(), 1e-3 if dtype == torch.float32 else 1e-6
    moved = grid_log_prob(head, given.detach() + step, grid)[..., 1]
    back = grid_log_prob(head, given.detach() - step, grid)[..., 1]
    slope = (moved - back) / (2.0 * step)
    loose = 2e-3 if dtype == torch.float32 else 1e-7
    torch.testing.assert_close(given.grad.sum(-1), slope, rtol=loose, atol=loose)
    torch.testing.assert_close(probability.sum(-1), torch.ones(shape, dtype=dtype))


def test_actions_of_several_dimensions_have_no_grid():
    assert gaussian().grid() is None
    assert BetaHead(BOUNDS).grid() is None
    assert MultiCategoricalHead(MultiDiscreteActions((2, 3))).grid() is None
