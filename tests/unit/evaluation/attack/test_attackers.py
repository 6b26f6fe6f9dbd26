"""Attacks on single decisions: worst points that are known, bounds, masks, and real memory."""

import numpy as np
import pytest
import torch

from attack_lab import settings, situation, subject
from oracles import attack as oracle
from stormsail.algorithms.run.tasks import make_task
from stormsail.core.errors import ChoiceError, RangeError
from stormsail.evaluation.attack.attackers import (
    GradientAttack,
    RandomAttack,
    ascend,
    policy_divergence,
    value_loss,
)
from stormsail.evaluation.attack.columns import Ball, forgeable_names
from stormsail.functional import statistics
from stormsail.market.features import ACCOUNT_FEATURES

NORMS = ("linf", "l2")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def plain_ball(columns, *, epsilon, norm, clipped=False):
    mask = torch.tensor(columns)
    return Ball(epsilon, norm, mask, torch.full_like(mask, clipped))


def gap(agent, ball, now, delta):
    """Return KL(clean || forged) of the decisions as the agent itself makes them."""
    forged = agent.draw(ball.forged(now.seen, delta), now.memory, deterministic=True)
    return agent.network.head.kl(now.clean.parameters, forged.parameters)


@pytest.mark.parametrize("norm", NORMS)
def test_the_worst_forgery_of_a_linear_loss_is_reached(norm):
    gradient = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    ball = plain_ball([True, True, True], epsilon=0.3, norm=norm)
    points = [ball.random(5, seeded(1), torch.zeros(5, 3, dtype=torch.float64))]
    best = ascend(lambda delta: delta @ gradient, points, ball, steps=40)
    worst = oracle.worst_linear(gradient.tolist(), 0.3, norm)
    if norm == "linf":
        np.testing.assert_allclose(best.numpy(), np.tile(worst, (5, 1)), atol=1e-12)
    # on the l2 sphere the angle shrinks by 16/17 with each step: the loss is within two per cent
    height = best.numpy() @ gradient.numpy()
    np.testing.assert_allclose(height, worst @ gradient.numpy(), rtol=0.02)


def test_the_best_iterate_of_all_starts_is_kept_row_by_row():
    ball = plain_ball([True], epsilon=1.0, norm="linf")
    first = torch.tensor([[0.9], [-0.9]])
    second = torch.tensor([[-0.9], [0.9]])
    # a loss that only falls along its own gradient's sign: each row's best is one of its starts
    best = ascend(lambda delta: delta[:, 0] + 10.0, [first, second], ball, steps=0)
    assert best.tolist() == [[0.8999999761581421], [0.8999999761581421]]


def test_a_loss_that_is_not_a_number_is_never_taken():
    ball = plain_ball([True], epsilon=1.0, norm="linf")
    points = [torch.tensor([[0.25]]), torch.tensor([[0.5]])]
    best = ascend(lambda delta: (delta[:, 0] - 0.4).log(), points, ball, steps=0)
    assert best.tolist() == [[0.5]]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("objective", [policy_divergence, value_loss])
def test_forgeries_stay_in_the_ball_and_in_their_columns(norm, objective):
    task, agent, _ = subject(batch=6)
    ball = Ball.of(agent, ("sin_angle", "angular_velocity"), epsilon=0.2, norm=norm)
    now = situation(task, agent)
    attack = GradientAttack(agent, ball, seeded(0), objective, steps=5, starts=2)
    delta, _ = attack.perturb(now, attack.initial_state(6))
    size = delta.abs().amax(-1) if norm == "linf" else torch.linalg.vector_norm(delta, dim=-1)
    assert delta.shape == (6, 2)
    assert bool((size <= 0.2).all())
    assert float(size.max()) > 0.19
    forged = ball.forged(now.seen, delta)
    assert torch.equal(forged[:, 0], now.seen[:, 0])
    torch.testing.assert_close(forged[:, 1:], now.seen[:, 1:] + delta)


def test_a_forgery_stops_at_the_clip_of_the_normaliser_only_where_there_is_one():
    seen = torch.tensor([[9.9, 9.9, -12.0]])
    delta = torch.tensor([[0.5, 0.5, -0.5]])
    mask = torch.ones(3, dtype=torch.bool)
    ball = Ball(0.5, "linf", mask, torch.tensor([True, False, True]))
    torch.testing.assert_close(ball.forged(seen, delta), torch.tensor([[10.0, 10.4, -12.0]]))


@pytest.mark.parametrize("norm", NORMS)
def test_agents_with_other_normalisers_are_moved_alike_in_shared_units(norm):
    units = {"sin_angle": 0.5, "angular_velocity": 3.0}
    observation = torch.tensor([[0.8, 0.6, -1.0], [-1.0, 0.0, 2.0]])
    delta = torch.tensor([[0.1, 0.2, -0.1], [0.0, -0.2, 0.15]])
    moved = []
    for spread in (0.5, 2.0):
        _, agent, _ = subject()
        noise = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
        agent.observation_scale.commit(statistics.moments(spread * noise))
        names = agent.spec.observation_names
        ball = Ball.of(agent, names, epsilon=0.3, norm=norm, units=units)
        std = statistics.variance(agent.observation_scale.moments).sqrt()
        seen = agent.normalised(observation)
        moved.append((ball.forged(seen, delta) - seen) * std)
        own = Ball.of(agent, names, epsilon=0.3, norm=norm)
        torch.testing.assert_close(own.forged(seen, delta), seen + delta)
        # a column without a unit keeps that of the agent
        torch.testing.assert_close(ball.forged(seen, delta)[:, 0], seen[:, 0] + delta[:, 0])
    expected = delta[:, 1:].double() * torch.tensor([0.5, 3.0], dtype=torch.float64)
    for each in moved:
        torch.testing.assert_close(each[:, 1:], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_ascent_finds_more_divergence_than_noise_and_more_starts_find_no_less(name):
    task, agent, _ = subject(name, batch=32)
    ball = Ball.of(agent, task.observation_names, epsilon=0.2, norm="linf")
    now = situation(task, agent)
    noise, _ = RandomAttack(ball, seeded(5)).perturb(now, torch.empty(32, 0))
    few = GradientAttack(agent, ball, seeded(5), policy_divergence, steps=10, starts=1)
    many = GradientAttack(agent, ball, seeded(5), policy_divergence, steps=40, starts=4)
    gaps = [gap(agent, ball, now, each.perturb(now, noise)[0]) for each in (few, many)]
    # the first start is the noise, and the best iterate is kept
    assert bool((gaps[0] >= gap(agent, ball, now, noise) - 1e-7).all())
    assert float(gaps[0].mean()) > 1.5 * float(gap(agent, ball, now, noise).mean())
    assert float(gaps[1].mean()) >= float(gaps[0].mean())


def test_the_critics_attack_lowers_the_value_that_the_critics_give_with_this_memory():
    task, agent, _ = subject(batch=32)
    ball = Ball.of(agent, task.observation_names, epsilon=0.2, norm="linf")
    now = situation(task, agent)

    def value(delta):
        drawn = agent.draw(ball.forged(now.seen, delta), now.memory, deterministic=True)
        return agent.network.critic.value(drawn.predicted)

    attack = GradientAttack(agent, ball, seeded(5), value_loss, steps=10, starts=1)
    lowered = value(attack.perturb(now, torch.empty(32, 0))[0])
    noise = ball.random(32, seeded(5), now.seen)
    assert bool((lowered <= value(noise) + 1e-7).all())
    assert bool((lowered < value(torch.zeros_like(noise))).all())
    objective = value_loss(agent, ball, now)
    torch.testing.assert_close(objective(noise).detach(), -value(noise))


def test_the_objective_reads_the_memory_that_the_agent_has():
    task, agent, _ = subject(batch=8)
    ball = Ball.of(agent, task.observation_names, epsilon=0.2, norm="linf")
    now = situation(task, agent)
    delta = ball.random(8, seeded(2), now.seen)
    objective = policy_divergence(agent, ball, now)
    torch.testing.assert_close(objective(delta).detach(), gap(agent, ball, now, delta))
    empty = now._replace(memory=agent.initial_memory(8))
    other = policy_divergence(agent, ball, empty)(delta).detach()
    assert not torch.allclose(other, gap(agent, ball, now, delta))


def test_no_weight_gets_a_gradient_and_the_agent_stays_as_it_is():
    task, agent, _ = subject(batch=3)
    before = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    ball = Ball.of(agent, task.observation_names, epsilon=0.2, norm="linf")
    attack = GradientAttack(agent, ball, seeded(0), policy_divergence, steps=3, starts=1)
    attack.perturb(situation(task, agent), torch.empty(3, 0))
    assert all(weight.grad is None for weight in agent.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.state_dict().items())


def test_a_beta_policy_is_attacked_by_its_divergence_in_closed_form():
    task, agent, _ = subject(batch=4, policy__distribution="beta")
    now = situation(task, agent)
    ball = Ball.of(agent, task.observation_names, epsilon=0.2, norm="linf")
    delta = ball.random(4, seeded(2), now.seen)
    forged = agent.draw(ball.forged(now.seen, delta), now.memory, deterministic=True).parameters
    first, second = (
        torch.distributions.Beta(*(1.0 + torch.nn.functional.softplus(x)).chunk(2, -1))
        for x in (now.clean.parameters, forged)
    )
    exact = torch.distributions.kl_divergence(first, second).sum(-1)
    objective = policy_divergence(agent, ball, now)
    torch.testing.assert_close(objective(delta).detach(), exact, rtol=1e-3, atol=1e-6)


CLOCK = ("day_sin", "day_cos", "week_sin", "week_cos")


def test_only_features_of_the_market_are_forged():
    task = make_task(settings("market"), batch=1)
    names = forgeable_names(task)
    assert not {*names} & {*ACCOUNT_FEATURES, *CLOCK}
    assert {*task.observation_names} - {*names} <= {*ACCOUNT_FEATURES, *CLOCK}
    assert names == ("log_return(horizon=1)", "realised_volatility(window=24)")
    assert "day_sin" in task.observation_names
    chosen = forgeable_names(task, ["log_return*"])
    assert chosen == tuple(name for name in names if name.startswith("log_return"))


def test_every_column_of_another_task_is_forged():
    task = make_task(settings("CartPole-v1"), batch=1)
    assert forgeable_names(task) == task.observation_names


@pytest.mark.refusal
def test_what_may_not_be_forged_is_refused():
    task, agent, _ = subject("market", batch=1)
    with pytest.raises(ChoiceError, match="no account, clock, flag"):
        forgeable_names(task, ["position"])
    with pytest.raises(ChoiceError, match="`norm` must be one of linf, l2; found `l1`"):
        Ball.of(agent, (), epsilon=0.1, norm="l1")
    for radius in (-0.1, float("nan"), float("inf")):
        with pytest.raises(RangeError, match="`epsilon` must be a finite number of at least 0"):
            Ball.of(agent, (), epsilon=radius, norm="l2")
    for length in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RangeError, match="the unit of `sin_angle` must be a positive"):
            Ball.of(agent, (), epsilon=0.1, norm="l2", units={"sin_angle": length})
