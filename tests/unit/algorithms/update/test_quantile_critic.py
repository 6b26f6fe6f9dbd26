"""The quantile critic of the learner: its threshold, and any number of quantiles."""

import itertools

import pytest
import torch

from learner_lab import FEATURES, aged, learner, settings
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.losses import Batch, batch_sums
from stormsail.algorithms.update.schedules import Scheduled
from stormsail.functional import quantile

NOW = Scheduled(
    learning_rate=1e-3, clip_range=0.2, vf_coef=1.0, bc_coef=0.0, ent_coef=0.0, kl_beta=0.0,
    clips_values=False, trains_policy=True,
)  # fmt: skip


def batch_of(ppo, target, weight):
    """Return rows as the present policy would have played them, with these targets."""
    rows, count = weight.shape
    source = torch.Generator().manual_seed(3)
    observation = torch.randn(rows, count, len(FEATURES), generator=source)
    memory = ppo.agent.initial_memory(count)
    reset = torch.zeros(rows, count, dtype=torch.bool)
    with torch.no_grad():
        output = ppo.agent.network(observation, memory, reset)
        action = torch.zeros(rows, count, dtype=torch.int64)
        log_prob = ppo.agent.network.head.log_prob(output.actor, action)
    return Batch(
        observation=observation, memory=memory, reset=reset, raw_action=action,
        log_prob=log_prob, parameters=output.actor, predicted=output.critic, weight=weight,
        mask=torch.ones(rows, count, 0, dtype=torch.bool),
        advantage=torch.zeros(rows, count), target=target, options=torch.zeros(rows, count, 0),
    )  # fmt: skip


def sums(ppo, batch):
    return batch_sums(ppo.agent, batch, NOW, ppo.config, torch.Generator().manual_seed(0))


def says_zero(ppo):
    """Let every critic predict 0 for everything."""
    with torch.no_grad():
        for last in ppo.agent.network.critic.last_layers():
            last.weight.zero_()
            last.bias.zero_()
    return ppo


ERRORS = (0.01, 0.02, 1.0, -1.0)
LOSSES = {
    # kappa: 1/2 times u^2 / (2 kappa) up to kappa and |u| - kappa / 2 beyond, by hand
    0.02: (0.00125, 0.005, 0.495, 0.495),
    1.0: (0.000025, 0.0001, 0.25, 0.25),
    0.0: (0.005, 0.01, 0.5, 0.5),
}
SLOPES = {0.02: (-0.25, -0.5, -0.5, 0.5), 1.0: (-0.005, -0.01, -0.5, 0.5)}


@pytest.mark.spec("X4", "T-C6")
def test_the_threshold_of_a_run_is_two_hundredths_of_a_deviation():
    assert TrainConfig().critic.huber_kappa == 0.02
    assert learner().agent.spec.critic.huber_kappa == 0.02


@pytest.mark.parametrize("kappa", [None, *LOSSES])
@pytest.mark.spec("X4")
def test_the_threshold_reaches_the_loss(kappa):
    chosen = {} if kappa is None else {"critic__huber_kappa": kappa}
    ppo = learner(settings(critic__num_quantiles=1, critic__use_twin_critics=False, **chosen))
    says_zero(ppo)
    expected = LOSSES[0.02 if kappa is None else kappa]
    for error, loss in zip(ERRORS, expected, strict=True):
        batch = batch_of(ppo, torch.full((1, 1, 1), error), torch.ones(1, 1))
        assert float(sums(ppo, batch).value.detach()) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("kappa", SLOPES)
@pytest.mark.spec("X4")
def test_the_threshold_is_where_the_gradient_stops_growing(kappa):
    ppo = learner(settings(critic__num_quantiles=1, critic__use_twin_critics=False,
                           critic__huber_kappa=kappa))  # fmt: skip
    says_zero(ppo)
    (last,) = ppo.agent.network.critic.last_layers()
    for error, slope in zip(ERRORS, SLOPES[kappa], strict=True):
        batch = batch_of(ppo, torch.full((1, 1, 1), error), torch.ones(1, 1))
        (result,) = torch.autograd.grad(sums(ppo, batch).loss, [last.bias])
        assert float(result) == pytest.approx(slope, rel=1e-5)


def loss_by_hand(predicted, target, kappa):
    """Return the mean over all pairs for one row and critic, in float64."""
    count = len(predicted)
    total = 0.0
    for (i, theta), y in itertools.product(enumerate(predicted), target):
        level, error = (i + 0.5) / count, y - theta
        size = abs(error)
        huber = size * size / (2 * kappa) if size <= kappa else size - kappa / 2
        total += (1.0 - level if error < 0 else level) * huber
    return total / (count * len(target))


COUNTS = (1, 2, 21, 51)


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.spec("S2-opt2", "T-Q4")
def test_any_number_of_quantiles_costs_what_all_its_pairs_cost(count, monotone):
    ppo = aged(learner(settings(critic__num_quantiles=count, critic__huber_kappa=0.3,
                                critic__monotone_quantiles=monotone)))  # fmt: skip
    source = torch.Generator().manual_seed(count)
    weight = torch.tensor([[1.0, 0.5, 0.0], [2.0, 1.0, 0.25]])
    target = torch.randn(2, 3, 4, generator=source)
    batch = batch_of(ppo, target, weight)
    assert batch.predicted.shape == (2, 3, 2, count)
    expected = [0.0, 0.0]
    for row, column, critic in itertools.product(range(2), range(3), range(2)):
        predicted = batch.predicted[row, column, critic].double().tolist()
        one = loss_by_hand(predicted, target[row, column].double().tolist(), 0.3)
        expected[critic] += float(weight[row, column]) * one
    result = sums(ppo, batch)
    assert result.value_by_critic.tolist() == pytest.approx(expected, rel=1e-5)
    assert float(result.value.detach()) == pytest.approx(sum(expected) / 2, rel=1e-5)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.spec("S2-opt2")
def test_levels_are_the_middles_of_as_many_slices(count):
    result = quantile.midpoints(count, like=torch.zeros((), dtype=torch.float64))
    assert result.tolist() == [(2 * i + 1) / (2 * count) for i in range(count)]


def test_one_quantile_of_a_critic_is_the_median():
    ppo = says_zero(learner(settings(critic__num_quantiles=1, critic__huber_kappa=0.0)))
    target = torch.tensor([[[1.0], [-1.0]]])
    assert critic_targets.losses(ppo.agent, torch.zeros(1, 2, 2, 1), target).tolist() == [
        [[0.5, 0.5], [0.5, 0.5]]
    ]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.spec("S2-opt2")
def test_an_update_moves_every_quantile_of_every_critic(count):
    ppo = aged(learner(settings(critic__num_quantiles=count, returns__normalize_returns="off")))
    before = [last.bias.detach().clone() for last in ppo.agent.network.critic.last_layers()]
    update = ppo.update()
    assert update.target.shape == (8, 8, count)
    assert update.predicted.shape == (8, 8, 2, count)
    for last, old in zip(ppo.agent.network.critic.last_layers(), before, strict=True):
        assert last.bias.shape == (count,)
        assert bool((last.bias != old).all())
    for name, parameter in ppo.agent.named_parameters():
        assert bool(parameter.isfinite().all()), name
    row = metrics(ppo, update)
    assert row["debug/nonfinite_metrics"] == 0.0
    assert row["train/optimizer_steps"] == 1.0
    if count == 1:
        assert row["train/quantile_crossing_frac"] == 0.0
        assert row["train/value_quantile_iqr"] == 0.0
