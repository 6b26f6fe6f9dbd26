"""Attacked episodes in closed loop, the adversary's task, and the curve with its intervals."""

import math

import numpy as np
import pytest
import torch

from attack_lab import subject
from oracles import attack as oracle
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.core.errors import ChoiceError, ConfigError, ShapeError
from stormsail.core.generators import Generators
from stormsail.core.task import ContinuousActions, DiscreteActions, MultiDiscreteActions
from stormsail.evaluation.attack.adversary import AdversaryTask, LearnedAttack
from stormsail.evaluation.attack.columns import Ball, forgeable_names
from stormsail.evaluation.attack.curve import AttackRow, attack_row, curve, strongest
from stormsail.evaluation.attack.episodes import action_change, run_attacked
from stormsail.evaluation.stats.tail_intervals import cvar_change, cvar_estimate
from stormsail.modules.agent import Agent


class Shift:
    """An attack that always adds the same, and notes what it was shown."""

    def __init__(self, delta):
        self.delta, self.situations = delta, []

    def initial_state(self, batch):
        return torch.zeros(batch, 1)

    def perturb(self, situation, state):
        self.situations.append(situation)
        return self.delta.expand(len(situation.seen), -1), state + 1.0


def row_of(name, attack, epsilon, *, seed=0, policy="greedy", batch=6, **options):
    task, agent, _ = subject(name, batch=batch)
    agent.judged_policy = policy
    return attack_row(
        task, agent, forgeable_names(task), attack=attack, epsilon=epsilon, seed=seed, **options
    )


@pytest.mark.parametrize("policy", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["CartPole-v1", "market"])
def test_radius_zero_is_the_clean_evaluation_bit_for_bit(name, policy):
    task, agent, _ = subject(name, batch=6)
    streams = Generators(4)
    clean = evaluate(
        task,
        agent,
        streams.stream("attack.starts"),
        policy=policy,
        actions=streams.stream("attack.actions"),
    )
    for attack in ("clean", "random", "mad", "critic", "pgd", "learned"):
        row = row_of(name, attack, 0.0, seed=4, policy=policy)
        assert math.fsum(row.returns) / 6 == pytest.approx(clean.score, abs=1e-14)
        assert float(torch.tensor(row.returns, dtype=torch.float64).mean()) == clean.score
        assert row.changed == 0.0


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    first, again, other = (row_of("CartPole-v1", "random", 0.5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.returns != other.returns


def test_the_agent_remembers_what_it_was_shown_and_the_task_does_not_see_it():
    task, agent, _ = subject("Pendulum-v1", batch=3)
    ball = Ball.of(agent, task.observation_names, epsilon=0.4, norm="linf")
    attack = Shift(torch.full((3,), 0.4))
    options = {"starts": Generators(0).stream("starts"), "policy": "greedy", "max_steps": 4}
    run_attacked(task, agent, ball, attack, **options)
    source, memory = Generators(0).stream("starts"), agent.initial_memory(3)
    state, observation = task.reset(source)
    for shown in attack.situations:
        assert torch.equal(shown.observation, observation)
        assert torch.equal(shown.memory, memory)
        seen = ball.forged(agent.normalised(observation), attack.delta.expand(3, -1))
        drawn = agent.draw(seen, memory, deterministic=True)
        state, step = task.step(state, drawn.action, source)
        observation, memory = step.observation, drawn.memory
    assert len(attack.situations) == 4


def test_how_much_a_decision_changed():
    pair = (torch.tensor([1, 2, 0]), torch.tensor([1, 0, 0]))
    assert action_change(DiscreteActions(3), *pair).tolist() == [0.0, 1.0, 0.0]
    several = (torch.tensor([[1, 0], [1, 1]]), torch.tensor([[1, 1], [1, 1]]))
    assert action_change(MultiDiscreteActions((2, 2)), *several).tolist() == [1.0, 0.0]
    space = ContinuousActions((-1.0, 0.0), (1.0, 4.0))
    first, second = [[0.5, 1.0], [-3.0, 5.0]], [[-0.5, 4.0], [-1.0, 0.0]]
    expected = [
        oracle.share_of_range(a, b, space.low, space.high)
        for a, b in zip(first, second, strict=True)
    ]
    assert expected == [0.625, 0.5]
    assert action_change(space, torch.tensor(first), torch.tensor(second)).tolist() == expected


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_adversarys_task_pays_minus_the_agents_reward_and_keeps_its_memory(norm):
    task, agent, _ = subject("market", batch=5)
    names = forgeable_names(task)
    ball = Ball.of(agent, names, epsilon=0.5, norm=norm)
    forging = AdversaryTask(task, agent, ball, policy="greedy")
    assert forging.actions == ContinuousActions((-1.0,) * len(names), (1.0,) * len(names))
    source, twin = (Generators(0).stream("starts") for _ in range(2))
    choices = torch.Generator().manual_seed(1)
    state, _ = forging.reset(source)
    inner, true = task.reset(twin)
    memory, rows = agent.initial_memory(5), torch.zeros(5, dtype=torch.long)
    for _ in range(30):  # more than two episodes of 12 bars
        action = 2.0 * torch.rand(5, len(names), generator=choices) - 1.0
        delta = 0.5 * action
        if norm == "l2":
            length = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
            delta = delta * (0.5 / length).clamp(max=1.0)
        seen = agent.normalised(true)
        seen = seen.index_add(-1, ball.chosen, delta)
        seen = torch.where(ball.normalised, seen.clamp(-10.0, 10.0), seen)
        # row t after an end is ignored, and the memory is a fresh one at row t + 1
        memory = torch.where((rows == 2)[:, None, None, None], agent.initial_memory(5), memory)
        rows = torch.where(rows == 2, 0, rows)
        drawn = agent.draw(seen, memory, deterministic=True)
        inner, plain = task.step(inner, drawn.action, twin)
        state, step = forging.step(state, action, source)
        torch.testing.assert_close(step.reward, -plain.reward)
        torch.testing.assert_close(step.observation, plain.observation)
        assert torch.equal(step.terminated, plain.terminated)
        assert torch.equal(step.truncated, plain.truncated)
        ends = plain.terminated | plain.truncated
        rows = torch.where(ends, 1, torch.where(rows == 1, 2, 0))
        true, memory = plain.observation, drawn.memory


def test_a_learned_attack_shows_what_its_adversary_decides():
    task, agent, config = subject("Pendulum-v1", batch=3)
    ball = Ball.of(agent, task.observation_names, epsilon=0.4, norm="linf")
    forging = AdversaryTask(task, agent, ball, policy="greedy")
    adversary = Agent(agent_spec(config, forging), Generators(9).stream("weights"))
    attack = LearnedAttack(adversary, ball)
    shown = Shift(torch.zeros(3))
    run_attacked(
        task, agent, ball, shown, starts=Generators(0).stream("s"), policy="greedy", max_steps=1
    )
    state = attack.initial_state(3)
    delta, after = attack.perturb(shown.situations[0], state)
    drawn = adversary.decide(shown.situations[0].observation, state, deterministic=True)
    torch.testing.assert_close(delta, 0.4 * drawn.action)
    assert torch.equal(after, drawn.memory)
    assert not torch.equal(after, state)


def test_points_have_paired_intervals():
    source = np.random.default_rng(0)
    clean = source.normal(size=80)
    forged = clean - 0.5 + 0.1 * source.normal(size=80)
    rows = [AttackRow(name, e, tuple(x.tolist()), 0.25, 0)
            for name, e, x in (("clean", 0.0, clean), ("mad", 0.1, forged))]  # fmt: skip
    first, second = curve(rows[0], rows[1:], alpha=0.1)
    assert first.mean_change == (0.0, 0.0, 0.0)
    assert first.cvar_change == (0.0, 0.0, 0.0)
    value, half = oracle.cvar_change(clean.tolist(), forged.tolist(), 0.1)
    assert second.cvar_change == pytest.approx((value, value - half, value + half))
    tail, width = (
        oracle.cvar(forged.tolist(), 0.1),
        oracle.t_half(oracle.influence(forged.tolist(), 0.1)),
    )
    assert second.cvar == pytest.approx((tail, tail - width, tail + width))
    mean, half = float((forged - clean).mean()), oracle.t_half((forged - clean).tolist())
    assert second.mean_change == pytest.approx((mean, mean - half, mean + half))
    assert strongest([first, second]) is second
    assert second.document()["mean"]["value"] == second.mean.value


def test_a_tail_of_one_episode_has_no_interval():
    few = [float(k) for k in range(10)]
    assert cvar_estimate(few, alpha=0.1).value == 0.0
    assert math.isnan(cvar_estimate(few, alpha=0.1).low)
    assert math.isnan(cvar_change(few, few, alpha=0.1).high)
    assert not math.isnan(cvar_estimate(few, alpha=0.2).low)
    (point,) = curve(AttackRow("clean", 0.0, tuple(few), 0.0, 0), (), alpha=0.1)
    assert point.document()["cvar"] == {"value": 0.0, "low": None, "high": None}


@pytest.mark.refusal
def test_what_cannot_be_run_is_refused():
    with pytest.raises(ChoiceError, match="Did you mean `mad`"):
        row_of("CartPole-v1", "madd", 0.1)
    with pytest.raises(ConfigError, match="must have a function that trains the adversary"):
        row_of("CartPole-v1", "learned", 0.1)
    row = AttackRow("clean", 0.0, (1.0, 2.0), 0.0, 0)
    with pytest.raises(ShapeError, match="2 and 1 values"):
        curve(row, [row._replace(returns=(1.0,))], alpha=0.5)
