"""Attacks on whole sequences: how strong, how far, on which columns, rows and sequences."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learner_lab import ACTIONS, FEATURES, prepared, settings
from oracles import perturbation as oracle
from stormsail.algorithms.config import AdversaryConfig
from stormsail.algorithms.update import schedules
from stormsail.algorithms.update.adversary import (
    Adversary,
    attacked_count,
    attacked_observations,
    build_adversary,
    forged_columns,
    policy_divergence,
)
from stormsail.algorithms.update.schedules import Extension
from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.core.task import ImagePart, ObservationLayout, forgeable_names

L, N, F = 4, 3, 5
SHAPE = (L, N, F)
EPSILON = 0.3


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def adversary(columns=range(F), seed=3):
    return Adversary(torch.tensor(list(columns)), torch.Generator().manual_seed(seed))


def attack(objective, observation=None, *, columns=range(F), weight=None, seed=3, **changes):
    observation = drawn(*SHAPE) if observation is None else observation
    rows = observation.shape[:-1]
    return attacked_observations(
        observation, objective, AdversaryConfig(**changes), adversary(columns, seed),
        epsilon=EPSILON, weight=torch.ones(rows) if weight is None else weight,
    ) - observation  # fmt: skip


def bowl(centre):
    """Return a loss that grows with the distance from a point, row by row."""
    return lambda observation: (observation - centre).square().sum(-1)


@pytest.mark.spec("T-S1")
@pytest.mark.parametrize("method", ["pgd", "sgld", "fgsm"])
def test_an_attack_on_a_quadratic_reaches_the_corner_of_the_box(method):
    observation = drawn(*SHAPE)
    centre = observation + 2.0 * drawn(*SHAPE, seed=1).sign()  # farther than any start
    steps = {} if method == "fgsm" else {"attack_steps": 8, "attack_lr": 0.1}
    delta = attack(bowl(centre), observation, attack_method=method, **steps)
    corner = -EPSILON * (centre - observation).sign()
    torch.testing.assert_close(delta, corner, rtol=0.0, atol=1e-6)


@pytest.mark.spec("T-S1")
def test_an_attack_in_the_l2_ball_goes_straight_up():
    slope = drawn(*SHAPE, seed=1)
    delta = attack(lambda x: (x * slope).sum(-1), norm_type="l2", random_init=False, attack_steps=4)
    length = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
    torch.testing.assert_close(delta, EPSILON * slope / length, rtol=1e-4, atol=1e-6)


@pytest.mark.spec("T-S1")
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", ["pgd", "sgld", "fgsm"])
def test_no_perturbation_is_larger_than_the_radius_and_the_loss_grows(norm, method):
    mixed = drawn(F, F, seed=5)
    observation = drawn(*SHAPE)

    def objective(x):
        return (x @ mixed).tanh().square().sum(-1)

    delta = attack(objective, observation, norm_type=norm, attack_method=method)
    size = torch.linalg.vector_norm(delta, ord=float("inf") if norm == "linf" else 2, dim=-1)
    assert float(size.max()) <= EPSILON + 1e-6
    gain = objective(observation + delta) - objective(observation)
    assert float(gain.mean()) > 0.1


def test_langevin_steps_are_those_of_the_definition():
    """Two steps on a linear loss, replayed from the same draws."""
    slope = 3e-4 * drawn(*SHAPE, seed=1)  # about the size of the noise
    delta = attack(
        lambda x: (x * slope).sum(-1), attack_method="sgld", attack_steps=2, attack_lr=0.2
    )
    source = torch.Generator().manual_seed(3)
    normal = torch.empty(SHAPE).normal_(generator=source)
    torch.empty(SHAPE[:-1]).uniform_(generator=source)
    expected = oracle.random_start(normal.double().numpy(), np.zeros(SHAPE[:-1]), EPSILON, "linf")
    moved = set()
    for taken in range(2):
        noise = torch.empty(SHAPE).normal_(generator=source).double().numpy()
        gradient = oracle.langevin_gradient(slope.double().numpy(), noise, 0.2, taken)
        moved.add(bool((np.sign(gradient) != np.sign(slope.numpy())).any()))
        expected = oracle.pgd_step(expected, gradient, 0.2, EPSILON, "linf")
    assert moved == {True}  # the noise decided on some coordinates in both steps
    np.testing.assert_allclose(delta.numpy(), expected, atol=1e-6)


def test_a_step_is_the_radius_over_the_steps_unless_it_is_given():
    slope = torch.ones(SHAPE)
    plain = {"random_init": False, "attack_steps": 3}
    for given, size in ((None, EPSILON), (0.05, 0.15)):
        delta = attack(lambda x: (x * slope).sum(-1), attack_lr=given, **plain)
        torch.testing.assert_close(delta, torch.full(SHAPE, size), rtol=0.0, atol=1e-6)


def test_only_forged_columns_and_rows_that_count_are_touched():
    weight = torch.tensor([[1.0, 0.0, 0.5], [1.0] * 3, [0.0, 2.0, 1.0], [1.0] * 3])
    for method in ("pgd", "sgld", "fgsm"):
        for norm in ("linf", "l2"):
            delta = attack(
                lambda x: x.square().sum(-1), columns=(1, 3), weight=weight,
                attack_method=method, norm_type=norm,
            )  # fmt: skip
            assert torch.equal(delta[..., [0, 2, 4]], torch.zeros(L, N, 3))
            assert torch.equal(delta[weight == 0.0], torch.zeros(2, F))
            size = torch.linalg.vector_norm(delta[weight > 0.0], dim=-1)
            assert float(size.mean()) > 0.5 * EPSILON


def task_of(names=("a", "b_1", "b_2", "flag", "own")):
    """Return what an adversary asks of a task: three columns from outside, a flag, an account."""
    return SimpleNamespace(
        observation_layout=ObservationLayout(names, unscaled=("flag",)), account_names=("own",),
        observation_names=names, device=torch.device("cpu"),
    )  # fmt: skip


def bounded(observation, slope, *, normalised=None, **changes):
    """Return what a built adversary makes of an observation of a task, going up or down."""
    config = AdversaryConfig(mode="mixed_batch", random_init=False, **changes)
    built = build_adversary(task_of(), config, Generators(1), normalised=normalised)
    return attacked_observations(
        observation, lambda x: slope * x.sum(-1), config, built,
        epsilon=EPSILON, weight=torch.ones(observation.shape[:-1]),
    )  # fmt: skip


def test_bounds_stop_a_perturbation_and_leave_outliers_where_they_are():
    observation = torch.tensor([0.9, 1.5, -1.5, 0.0, 0.0]).expand(SHAPE)
    both = {"clip_min": -1.0, "clip_max": 1.0}
    up, down = (bounded(observation, slope, **both)[0, 0] for slope in (1.0, -1.0))
    torch.testing.assert_close(up, torch.tensor([1.0, 1.5, -1.2, 0.0, 0.0]))
    torch.testing.assert_close(down, torch.tensor([0.6, 1.2, -1.5, 0.0, 0.0]))


def test_a_column_may_have_bounds_of_its_own_and_the_narrowest_count():
    observation = torch.zeros(SHAPE)
    narrow = {"clip_max": 0.25, "bounds": {"b_*": (-0.1, 0.2), "b_2": (-0.2, 0.05)}}
    up, down = (bounded(observation, slope, **narrow)[0, 0] for slope in (1.0, -1.0))
    torch.testing.assert_close(up, torch.tensor([0.25, 0.2, 0.05, 0.0, 0.0]))
    torch.testing.assert_close(down, torch.tensor([-0.3, -0.1, -0.1, 0.0, 0.0]))


@pytest.mark.refusal
@pytest.mark.parametrize("pattern", ["flag", "own", "c*"])
def test_bounds_of_a_column_that_is_not_forged_are_refused(pattern):
    config = AdversaryConfig(mode="kl_reg", bounds={"a": (-1.0, 1.0), pattern: (-1.0, 1.0)})
    with pytest.raises(ConfigError) as caught:
        build_adversary(task_of(), config, Generators(1))
    assert "must fit columns that are forged: `a`, `b_1`, `b_2`; found" in str(caught.value)
    assert f"found `{pattern}`" in str(caught.value)


def test_no_forgery_passes_the_clip_of_the_normaliser():
    """The agent sees no larger number there; columns that are not normalised may be larger."""
    observation = torch.tensor([9.9, -9.9, 9.9, 0.0, 0.0]).expand(SHAPE)
    normalised = torch.tensor([True, True, False, False, False])
    up, down = (bounded(observation, s, normalised=normalised)[0, 0] for s in (1.0, -1.0))
    torch.testing.assert_close(up, torch.tensor([10.0, -9.6, 10.2, 0.0, 0.0]))
    torch.testing.assert_close(down, torch.tensor([9.6, -10.0, 9.6, 0.0, 0.0]))


@pytest.mark.parametrize("normalise", [True, False])
def test_a_learner_tells_its_adversary_what_it_normalises(normalise):
    changes = {"adversary__mode": "kl_reg", "observation__normalise": normalise}
    ppo, _ = prepared(settings(**changes))
    frozen = ppo.agent.observation_scale.frozen
    wanted = torch.full(frozen.shape, float("inf"))
    if normalise:
        wanted[~frozen] = 10.0
    assert torch.equal(ppo.adversary.high, wanted)
    assert torch.equal(ppo.adversary.low, -wanted)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_random_start_is_uniform_in_the_ball_of_the_forged_columns(norm):
    """What a flat objective leaves of it; P(radius < r) = (r / epsilon)^C."""
    observation = torch.zeros(100, 100, F)
    delta = attack(
        lambda x: 0.0 * x.sum(-1), observation, columns=(0, 4), norm_type=norm
    )[..., [0, 4]]  # fmt: skip
    order = float("inf") if norm == "linf" else 2
    share = torch.linalg.vector_norm(delta, ord=order, dim=-1) / EPSILON
    for radius in (0.3, 0.6, 0.9):
        below = float((share < radius).float().mean())
        assert below == pytest.approx(radius**2, abs=0.02)
    assert float(delta.mean().abs()) < 0.01
    assert torch.equal(
        attack(lambda x: 0.0 * x.sum(-1), observation, random_init=False), observation
    )


@pytest.mark.spec("X8")
def test_draws_come_from_the_generator_alone():
    slope = 0.0 * drawn(*SHAPE)

    def objective(x):
        return (x * slope).sum(-1)

    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, again, other = (attack(objective, attack_method="sgld", seed=k) for k in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.spec("X8")
def test_an_attack_goes_through_the_memory():
    """Only the last row counts for the objective; earlier rows are forged as well, but for one."""
    ppo, batch = prepared(settings())
    network = ppo.agent.network
    clean = network(batch.observation, batch.memory, batch.reset).actor
    divergence = policy_divergence(network, clean, batch.memory, batch.reset, batch.mask)
    last = torch.zeros_like(batch.weight)
    last[-1] = 1.0
    delta = attacked_observations(
        batch.observation, lambda x: divergence(x) * last,
        AdversaryConfig(random_init=False, attack_method="sgld", attack_steps=6),
        adversary(range(len(FEATURES))), epsilon=EPSILON, weight=torch.ones_like(batch.weight),
    ) - batch.observation  # fmt: skip
    flat = attacked_observations(
        batch.observation, lambda x: 0.0 * divergence(x),
        AdversaryConfig(random_init=False, attack_method="sgld", attack_steps=6),
        adversary(range(len(FEATURES))), epsilon=EPSILON, weight=torch.ones_like(batch.weight),
    ) - batch.observation  # fmt: skip
    steered = (delta - flat).abs().amax(-1) > 1e-6
    # of an episode that began at the reset, nothing before it matters
    for column in range(batch.weight.shape[1]):
        resets = batch.reset[:, column].nonzero()
        begin = int(resets[-1]) if len(resets) else 0
        assert not bool(steered[:begin, column].any())
        assert bool(steered[begin:, column].any())
    assert int(steered[:-1].sum()) > 20


@pytest.mark.spec("X8")
def test_no_parameter_gets_a_gradient_and_the_result_carries_none():
    ppo, batch = prepared()
    for parameter in ppo.agent.parameters():
        parameter.grad = None
    network = ppo.agent.network
    clean = network(batch.observation, batch.memory, batch.reset).actor
    divergence = policy_divergence(network, clean, batch.memory, batch.reset, batch.mask)
    forged = attacked_observations(
        batch.observation, divergence, AdversaryConfig(), adversary(range(len(FEATURES))),
        epsilon=EPSILON, weight=batch.weight,
    )  # fmt: skip
    assert not forged.requires_grad
    assert all(parameter.grad is None for parameter in ppo.agent.parameters())


@pytest.mark.parametrize("name", ACTIONS)
def test_one_step_online_raises_the_divergence_of_every_head(name):
    """L = 1, as an agent is attacked while it acts."""
    actions, distribution = ACTIONS[name]
    ppo, batch = prepared(settings(**distribution), actions=actions)
    network = ppo.agent.network
    row = batch.observation[:1], batch.memory, batch.reset[:1]
    clean = network(*row).actor
    objective = policy_divergence(network, clean, batch.memory, batch.reset[:1], None)
    config = AdversaryConfig(attack_steps=5)
    weight = torch.ones_like(batch.weight[:1])
    forged = attacked_observations(
        row[0], objective, config, adversary(range(len(FEATURES))), epsilon=0.3, weight=weight
    )
    noise = 0.3 * (2.0 * torch.rand(row[0].shape, generator=torch.Generator().manual_seed(2)) - 1.0)
    attacked, random = (float(objective(x).detach().mean()) for x in (forged, row[0] + noise))
    assert attacked > 1.5 * random > 0.0
    assert float(objective(row[0]).detach().abs().max()) <= 1e-6


@pytest.mark.spec("T-S2", "T-S6")
def test_counts_add_up_to_the_share_however_an_epoch_is_cut():
    config = AdversaryConfig(mode="mixed_batch", adversarial_ratio=0.3)
    for cut in (1, 2, 3, 7, 20):
        edges = [*range(0, 20, cut), 20]
        counts = [
            attacked_count(config, a, b) for a, b in pairwise(edges)
        ]  # fmt: skip
        assert sum(counts) == 6
        assert max(counts) <= -(-cut * 3 // 10) + (cut < 20)
    assert attacked_count(config.replace(adversarial_ratio=0.0), 0, 20) == 0
    assert attacked_count(config.replace(adversarial_ratio=1.0), 5, 20) == 15
    assert attacked_count(AdversaryConfig(mode="kl_reg"), 5, 20) == 15


# -- columns ---------------------------------------------------------------------------------------


LAYOUT = ObservationLayout(
    ("speed", "is_open", "height"), unscaled=("is_open",), images=(ImagePart("eye", 1, 2, 2),)
)
ROOM = SimpleNamespace(
    observation_names=LAYOUT.names, observation_layout=LAYOUT, device=torch.device("cpu")
)


def test_flags_are_not_forged_and_images_are_by_their_name():
    assert forgeable_names(ROOM) == ("speed", "height", "eye")
    assert forged_columns(ROOM, None) == [0, 2, 3, 4, 5, 6]
    assert forged_columns(ROOM, ("eye",)) == [3, 4, 5, 6]
    assert forged_columns(ROOM, ("*e*",)) == [0, 2, 3, 4, 5, 6]
    assert forged_columns(ROOM, ("height", "sp*")) == [0, 2]


def test_a_market_lets_bars_be_forged_and_neither_account_nor_clock():
    from stormsail.algorithms.run.tasks import make_task
    from training_lab import small

    features = tuple({"name": name} for name in ("day_sin", "log_return", "week_cos", "parkinson"))
    task = make_task(small("market", task__market__features=features), batch=2)
    names = task.observation_names
    assert forgeable_names(task) == (names[1], names[3])
    assert forged_columns(task, None) == [1, 3]
    assert forged_columns(task, ("log_return*",)) == [1]
    assert forged_columns(task, ("*",)) == [1, 3]


@pytest.mark.refusal
@pytest.mark.parametrize("pattern", ["is_open", "width*"])
def test_a_column_that_cannot_be_forged_is_refused(pattern):
    config = AdversaryConfig(mode="kl_reg", features=("speed", pattern))
    with pytest.raises(ConfigError) as caught:
        build_adversary(ROOM, config, Generators(0))
    assert str(caught.value) == (
        "every entry of `adversary.features` must fit columns that come from outside: `speed`, "
        f"`height`, `eye`; found `{pattern}`. Name some of them, or leave the setting out for all; "
        "the account, the clock, one-hots and flags are never forged. [config-inconsistent]"
    )


def test_without_an_adversary_no_stream_is_begun():
    generators = Generators(0)
    assert build_adversary(ROOM, AdversaryConfig(), generators) is None
    assert list(generators.state()) == ["identity"]


# -- radius ----------------------------------------------------------------------------------------


@pytest.mark.spec("T-S5", "X8")
def test_the_radius_is_a_function_of_the_update_and_nothing_else():
    config = AdversaryConfig(mode="kl_reg", epsilon_schedule="cosine", warmup_updates=10)
    at = [schedules.epsilon(config, k / 1000, update=k) for k in (0, 5, 100, 100, 1000)]
    assert at[0] == 0.0
    assert at[1] == pytest.approx(0.5 * 0.0749984579, abs=1e-9)
    assert at[2] == at[3] == pytest.approx(0.0743882, abs=1e-7)
    assert at[4] == pytest.approx(0.05, abs=1e-12)
    other = config.replace(epsilon=0.5, epsilon_schedule="constant")
    assert schedules.epsilon(other, 0.1, update=100) == 0.5
    assert schedules.epsilon(config, 0.1, update=100) == at[2]
    assert schedules.epsilon(config.replace(mode="off"), 0.1, update=100) == 0.0


def test_progress_goes_on_from_where_an_extension_left_it():
    config = settings(ppo__total_steps=3000).ppo
    grown = (Extension(steps=1000, old_total=1000, new_total=3000, finished=True),)
    assert schedules.progress(config, 1500) == 0.5
    assert schedules.progress(config, 500, grown) == 0.5
    assert schedules.progress(config, 2000, grown) == 1.0
    early = (Extension(steps=500, old_total=1000, new_total=3000, finished=False),)
    assert schedules.progress(config, 500, early) == 0.5
    assert schedules.progress(config, 1750, early) == 0.75
