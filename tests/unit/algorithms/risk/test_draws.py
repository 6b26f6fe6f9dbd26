"""Episodes that can be played again: their starts, scores, replays and strata."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from all_actions_lab import (
    COIN,
    COSTLY,
    RUIN,
    agent_of,
    bets,
    grid_of,
    rollout_of,
    rollouts,
    seeded,
)
from host_reads import host_reads
from learner_lab import settings as lab_settings
from oracles import risk_limit as oracle
from simulator_lab import settings, simulator, wild_panel
from stormsail.algorithms.risk.draws import DrawMemory, Draws, held_returns
from stormsail.algorithms.risk.limit import LimitControl
from stormsail.algorithms.risk.report import NOTHING
from stormsail.algorithms.run.state_tree import flatten, unflatten
from stormsail.bench.bets.bets_worlds import World
from stormsail.core.generators import Generators
from stormsail.core.task import DiscreteActions, draw_places
from stormsail.functional import risk
from stormsail.market.simulator.account import State

WEALTH = World("wealth", -2.0, 3, (0.0, 0.2, 0.6), (((0.3, -1.0), (0.7, 0.6)),), wealth=10.0)
NUMBER = World("number", -2.0, 3, (0.0, 2.0), COIN.payoffs, continuous=True)


def market(kind="levels", *, batch=4, bars=5, fee=0.001):
    config = settings(
        action=kind,
        levels=(-1.0, 0.0, 1.0),
        episode_bars=bars,
        costs__taker_fee=fee,
        stops__equity_floor=0.3,
    )
    panel = wild_panel(3, rows=80, symbols=2)
    return simulator(panel, config, batch=batch, dtype=torch.float32)


TASKS = {
    "coin": lambda: bets(COIN),
    "ruin": lambda: bets(RUIN),
    "costly": lambda: bets(COSTLY),
    "wealth": lambda: bets(WEALTH),
    "number": lambda: bets(NUMBER),
    "levels": lambda: market("levels"),
    "weights": lambda: market("continuous"),
}
by_task = pytest.mark.parametrize("name", TASKS)


def holding(task, agent):
    """Return what the memory needs to score draws."""

    def hold(state):
        steps = task.episode_steps
        return held_returns(task, state, grid_of(agent), steps=steps, generator=seeded(99))

    return hold


def remember(memory, rollout, update, task, agent):
    """Add a rollout and score its episodes at once."""
    hold = holding(task, agent)
    memory.add(rollout, update, actions=hold(task.reset(seeded(0))[0]).shape[1])
    memory.score_new(lambda state: hold(type(task.reset(seeded(0))[0])(*state)))


def played(task, state, actions):
    """Step by hand from a state with a list of actions; return totals, and which have ended."""
    total = torch.zeros(task.batch, dtype=torch.float64)
    over = torch.zeros(task.batch, dtype=torch.bool)
    for action in actions:
        state, step = task.step(state, action, seeded(7))
        total += torch.where(over, 0.0, step.reward.double())
        over |= step.terminated | step.truncated
    return total, over


def shaped(task, action):
    held = action.expand(task.batch)
    return held if isinstance(task.actions, DiscreteActions) else held[:, None]


def episodes_by_hand(task, agent, batches):
    """Return state, observation and return of every finished episode, in the order of ends.

    Reads one environment after the other, row by row, with nothing but flags.
    """
    records = {}
    running = [None] * task.batch
    for number, (_, rollout) in enumerate(batches):
        options = rollout.options
        for t, b in itertools.product(range(len(rollout.reward)), range(task.batch)):
            if rollout.weight[t, b] == 0.0 and running[b] is None:
                continue  # the row after an end
            if running[b] is None:
                state = tuple(column[t, b] for column in options.state)
                running[b] = [state, options.observation[t, b], 0.0]
            running[b][2] += float(rollout.reward[t, b])
            if rollout.ended[t, b]:
                records[number, t, b] = running[b]
                running[b] = None
    return [records[key] for key in sorted(records)]


@by_task
@pytest.mark.parametrize("steps", [2, 3, 7])
def test_starts_and_results_are_right_also_across_rollouts(name, steps):
    task = TASKS[name]()
    agent = agent_of(task)
    batches = list(rollouts(task, agent, steps=steps, count=6))
    memory = DrawMemory()
    for update, (_, rollout) in enumerate(batches):
        remember(memory, rollout, update, task, agent)
    expected = episodes_by_hand(task, agent, batches)
    assert len(memory) == len(expected) > task.batch
    for k, (state, observation, total) in enumerate(expected):
        assert all(
            torch.equal(column[k], x) for column, x in zip(memory.kept.state, state, strict=True)
        )
        assert torch.equal(memory.kept.observation[k], observation)
        assert float(memory.kept.result[k]) == pytest.approx(total, abs=1e-5)


@by_task
def test_a_score_is_the_lowest_of_actions_played_throughout(name):
    task = TASKS[name]()
    agent = agent_of(task)
    memory = DrawMemory()
    for update, (_, rollout) in enumerate(rollouts(task, agent, steps=4, count=5)):
        remember(memory, rollout, update, task, agent)
    kept, grid = memory.kept, grid_of(agent)
    assert kept.constant.shape == (len(memory), len(grid))
    kind = type(task.reset(seeded())[0])
    places = torch.arange(len(memory) - task.batch, len(memory))  # one batch by hand
    state = kind(*(column[places] for column in kept.state))
    for k, action in enumerate(grid):
        total, over = played(task, state, [shaped(task, action)] * task.episode_steps)
        assert bool(over.all())
        torch.testing.assert_close(kept.constant[places, k], total, rtol=0.0, atol=1e-12)
    assert torch.equal(kept.score, kept.constant.amin(-1))
    assert torch.equal(memory.constant_returns(), kept.constant)


def fixed_draws(*payoffs):
    """Return uniform draws of four episodes, [4, H, 2]: below .3 a bar loses."""
    return torch.tensor(payoffs, dtype=torch.float64).repeat(4, 1)[:, :, None].expand(-1, -1, 2)


HAND = World("hand", -2.0, 3, (0.0, 2.0), (((0.3, -2.0), (0.7, 1.0)),))


def test_held_levels_by_hand():
    """+1, -2, +1 by bar: level 2 makes 2 - 4 + 2; a cost of .25 * 2 once; shares of the wealth."""
    for changes, expected in (
        ({}, [0.0, 0.0]),
        ({"change_cost": 0.25}, [0.0, -0.5]),
        ({"wealth": 10.0, "levels": (0.0, 0.1)}, [0.0, 10.0 * (1.1 * 0.8 * 1.1 - 1.0)]),
    ):
        task = bets(dataclasses.replace(HAND, **changes), dtype=torch.float64)
        state = task.reset(seeded())[0]._replace(uniform=fixed_draws(0.9, 0.1, 0.9))
        result = held_returns(task, state, torch.arange(2), steps=3, generator=seeded())
        torch.testing.assert_close(result, torch.tensor([expected] * 4, dtype=torch.float64))


def test_what_follows_ruin_does_not_count():
    """2 - 4 is ruin at the second of six bars; the fourth begins another episode."""
    task = bets(dataclasses.replace(HAND, ruin=-2.0, bars=6), dtype=torch.float64)
    state, observation = task.reset(seeded())
    state = state._replace(uniform=fixed_draws(0.9, 0.1, 0.9, 0.9, 0.9, 0.9))
    result = held_returns(task, state, torch.arange(2), steps=6, generator=seeded())
    assert result.tolist() == [[0.0, -2.0]] * 4
    memory = remembered([0.0] * 4)
    memory.kept = memory.kept._replace(state=tuple(state), observation=observation)
    always = Fixed(agent_of(bets(COIN)), lambda seen: torch.ones(len(seen), dtype=torch.int64))
    memory.replay(
        task, always, torch.arange(4), steps=6, update=1, generators=(seeded(), seeded(1))
    )
    assert memory.kept.result.tolist() == [-2.0] * 4


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_any_number_of_episodes_is_held_in_a_fixed_batch(count):
    task = bets(batch=4)
    agent = agent_of(task)
    many = bets(batch=6)
    state = many.reset(seeded(3))[0]
    whole = held_returns(many, state, grid_of(agent), steps=3, generator=seeded())
    part = type(state)(*(column[:count] for column in state))
    result = held_returns(task, part, grid_of(agent), steps=3, generator=seeded())
    assert result.shape == (count, 3)
    assert torch.equal(result, whole[:count])


@by_task
def test_a_draw_has_its_score_whatever_the_agent_did(name):
    """Two agents in the same episodes: the same starts, the same scores, other results."""
    task = TASKS[name]()
    scores, results = [], []
    for seed in (0, 5):
        agent, memory = agent_of(task, seed=seed), DrawMemory()
        batches = rollouts(
            task, agent, steps=task.episode_steps, count=1, seed=seed, first=50 - seed
        )
        remember(memory, next(batches)[1], 0, task, agent)
        starts = [
            b"".join(column[k].numpy().tobytes() for column in memory.kept.state)
            for k in range(len(memory))
        ]
        scores.append(dict(zip(starts, memory.kept.score.tolist(), strict=True)))
        results.append(dict(zip(starts, memory.kept.result.tolist(), strict=True)))
    shared = scores[0].keys() & scores[1].keys()
    assert len(shared) >= task.batch
    assert all(scores[0][start] == scores[1][start] for start in shared)
    assert any(results[0][start] != results[1][start] for start in shared)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_episode_that_began_before_the_memory_is_left_out(steps):
    """Three bars and the row after them: with the first row missed, so is the first episode."""
    task = bets(COIN)
    agent = agent_of(task)
    batches = list(rollouts(task, agent, steps=steps, count=12 // steps))
    whole, late = DrawMemory(), DrawMemory()
    for update, (_, rollout) in enumerate(batches):
        remember(whole, rollout, update, task, agent)
        if update > 0:
            remember(late, rollout, update, task, agent)
    assert len(whole) == 3 * task.batch
    assert len(late) == 2 * task.batch
    assert torch.equal(late.kept.state[0], whole.kept.state[0][task.batch :])
    assert torch.equal(late.kept.score, whole.kept.score[task.batch :])


def test_a_rollout_without_options_adds_nothing():
    task = bets()
    agent = agent_of(task)
    memory = DrawMemory()
    plain = dataclasses.replace(rollout_of(task, agent, steps=8), options=None)
    remember(memory, plain, 0, task, agent)
    assert len(memory) == 0
    with pytest.raises(LookupError, match="no episode is remembered"):
        memory.constant_returns()


@pytest.mark.parametrize("steps", [4, 12])
def test_the_oldest_episodes_leave_where_there_are_too_many(steps):
    task = bets()
    agent = agent_of(task)
    small, large = DrawMemory(6), DrawMemory()
    for update, (_, rollout) in enumerate(rollouts(task, agent, steps=steps, count=3)):
        for memory in (small, large):
            remember(memory, rollout, update, task, agent)
        assert len(small) == min(6, len(large))
    assert torch.equal(small.kept.result, large.kept.result[-6:])
    assert torch.equal(small.kept.state[0], large.kept.state[0][-6:])
    assert torch.equal(small.kept.measured, large.kept.measured[-6:])


# ------------------------------------------------------------------------------------------ replays


class Fixed:
    """An agent that does what a function of the observation says."""

    def __init__(self, agent, choice):
        self.agent, self.choice = agent, choice

    def initial_memory(self, batch):
        return self.agent.initial_memory(batch)

    def normalised(self, observation):
        return observation

    def draw(self, seen, memory, *, deterministic, generator, mask=None):
        assert deterministic is False
        drawn = self.agent.draw(
            self.agent.normalised(seen.float()),
            memory,
            deterministic=False,
            generator=generator,
            mask=mask,
        )
        return drawn._replace(action=self.choice(seen))


@by_task
def test_a_replay_with_a_known_policy_is_the_episode_stepped_by_hand(name):
    task = TASKS[name]()
    agent, grid = agent_of(task), grid_of(agent_of(task))
    memory = DrawMemory()
    for update, (_, rollout) in enumerate(rollouts(task, agent, steps=5, count=6)):
        remember(memory, rollout, update, task, agent)
    account = task.observation_names.index(task.account_names[0])

    def choice(seen):
        best = (seen[:, account] > 0.0).long() * (len(grid) - 1)
        return grid[best] if isinstance(task.actions, DiscreteActions) else grid[best][:, None]

    chosen = torch.tensor([3, 0, 5, 2])
    before = Draws(*(x if isinstance(x, tuple) else x.clone() for x in memory.kept))
    memory.replay(
        task,
        Fixed(agent, choice),
        chosen,
        steps=task.episode_steps,
        update=9,
        generators=(seeded(1), seeded(2)),
    )
    kind = type(task.reset(seeded())[0])
    state = kind(*(column[chosen] for column in before.state))
    seen, over = before.observation[chosen], torch.zeros(4, dtype=torch.bool)
    total = torch.zeros(4, dtype=torch.float64)
    while not bool(over.all()):
        state, step = task.step(state, choice(seen), seeded(3))
        total += torch.where(over, 0.0, step.reward.double())
        over |= step.terminated | step.truncated
        seen = step.observation
    torch.testing.assert_close(memory.kept.result[chosen], total, rtol=0.0, atol=1e-12)
    assert memory.kept.measured[chosen].tolist() == [9] * 4
    others = [k for k in range(len(memory)) if k not in chosen.tolist()]
    assert torch.equal(memory.kept.result[others], before.result[others])
    assert torch.equal(memory.kept.measured[others], before.measured[others])
    assert torch.equal(memory.kept.score, before.score)


def test_a_replay_draws_from_the_policy_with_its_memory():
    """The replay of a rollout's own episodes with its own numbers gives its own results."""
    task = bets(COIN, batch=64)
    agent = agent_of(task)
    rollout = rollout_of(task, agent, steps=3, seed=4)  # all begin in row 0 and end in row 2
    memory = DrawMemory()
    remember(memory, rollout, 0, task, agent)
    before = memory.kept.result.clone()
    memory.kept.result.zero_()
    memory.replay(
        task, agent, torch.arange(64), steps=3, update=1, generators=(seeded(4), seeded(8))
    )
    torch.testing.assert_close(memory.kept.result, before, rtol=0.0, atol=1e-12)


def test_a_replay_respects_what_the_task_allows(monkeypatch):
    task = bets(COIN)
    agent = agent_of(task)
    memory = DrawMemory()
    remember(memory, rollout_of(task, agent, steps=3), 0, task, agent)
    allowed = torch.tensor([[True, False, False]]).expand(4, 3)
    monkeypatch.setattr(task, "action_mask", lambda _: allowed, raising=False)
    memory.replay(task, agent, torch.arange(4), steps=3, update=1, generators=(seeded(), seeded(1)))
    assert memory.kept.result.tolist() == [0.0] * 4  # level 0 throughout


def test_a_draw_that_is_chosen_twice_gets_its_last_result():
    task = bets(COSTLY)
    agent = agent_of(task)
    memory = DrawMemory()
    for update, (_, rollout) in enumerate(rollouts(task, agent, steps=8, count=2)):
        remember(memory, rollout, update, task, agent)
    twin, order = DrawMemory(), torch.tensor([1, 2, 1, 2])
    twin.load_state_dict(
        {"kept": {k: v.clone() if k != "state" else v for k, v in memory.kept._asdict().items()},
         "open": None},
        torch.device("cpu"),
    )  # fmt: skip
    streams = [(seeded(5), seeded(6)) for _ in range(2)]
    memory.replay(task, agent, order, steps=3, update=7, generators=streams[0])
    # other draws in the first two environments, the same in the last two
    twin.replay(task, agent, torch.tensor([0, 3, 1, 2]), steps=3, update=7, generators=streams[1])
    assert memory.kept.result[[1, 2]].tolist() == twin.kept.result[[1, 2]].tolist()


# ------------------------------------------------------------------------------------------- strata


def remembered(score, *, result=None, measured=None):
    """Return a memory of draws with these scores."""
    count = len(score)
    memory = DrawMemory()
    kept = Draws(
        state=(torch.zeros(count),),
        observation=torch.zeros(count, 1),
        score=torch.tensor(score, dtype=torch.float64),
        result=torch.tensor(result or [0.0] * count, dtype=torch.float64),
        measured=torch.tensor(measured or [0] * count),
        constant=torch.zeros(count, 2, dtype=torch.float64),
        is_scored=torch.ones(count, dtype=torch.bool),
    )
    memory.load_state_dict({"kept": kept._asdict(), "open": None}, torch.device("cpu"))
    return memory


def test_the_worst_draws_by_hand():
    # 2.5 * .1 of 10, and one: those below the third-lowest score
    score = [5.0, -3.0, 4.0, -1.0, 0.0, 6.0, 7.0, 8.0, 9.0, 2.0]
    assert remembered(score).is_risky(0.1).nonzero()[:, 0].tolist() == [1, 3]
    # equal scores are on the same side
    score[4] = -1.0
    assert remembered(score).is_risky(0.1).nonzero()[:, 0].tolist() == [1]
    assert not bool(remembered([1.0] * 10).is_risky(0.1).any())
    # a large alpha takes all but the highest
    assert int(remembered(score).is_risky(1.0).sum()) == 9


def test_which_draws_are_replayed_does_not_depend_on_results():
    score = [5.0, -3.0, 4.0, -1.0, 0.0, 6.0, 7.0, 8.0, 9.0, 2.0]
    measured = [9, 4, 9, 3, 9, 9, 9, 9, 9, 9]
    generator = seeded(1)
    for _ in range(5):
        result = torch.randn(10, generator=generator).tolist()
        memory = remembered(score, result=result, measured=measured)
        assert memory.risky(2, 0.1).tolist() == [3, 1]  # the oldest result first
        assert memory.risky(1, 0.1).tolist() == [3]
        assert memory.risky(5, 0.1).tolist() == [3, 1, 3, 1, 3]
    alike = remembered([1.0] * 4, measured=[3, 1, 2, 0])
    assert alike.risky(3, 0.1).tolist() == [3, 1, 2]  # no draw is worse: all take turns


def test_strata_weigh_what_they_are_of_all_draws():
    """Of ten draws two are risky, a share of .2; of the eight others three are recent."""
    score = [5.0, -3.0, 4.0, -1.0, 0.0, 6.0, 7.0, 8.0, 9.0, 2.0]
    measured = [9, 9, 1, 9, 9, 1, 9, 1, 1, 1]
    memory = remembered(score, result=list(range(10)), measured=measured)
    sample = memory.sample(0.1, since=5)
    assert sample.result.tolist() == [0.0, 1.0, 3.0, 4.0, 6.0]
    assert sample.is_risky.tolist() == [False, True, True, False, False]
    np.testing.assert_allclose(sample.weight, [0.8 / 3, 0.1, 0.1, 0.8 / 3, 0.8 / 3], atol=1e-15)
    # a stratum without recent results leaves the whole weight to the other
    lonely = remembered(score, measured=[0, 9, 0, 9, 0, 0, 0, 0, 0, 0]).sample(0.1, since=5)
    assert lonely.weight.tolist() == [0.5, 0.5]


def uniform_agent(task):
    agent = agent_of(task, memory="none")
    with torch.no_grad():
        agent.network.actor_last.weight.zero_()
        agent.network.actor_last.bias.zero_()
    return agent


RUINOUS = World("ruinous", -2.0, 6, (0.0, 1.0, 3.0), (((0.3, -2.0), (0.7, 1.0)),), ruin=-4.0)


def exact(world, alpha):
    """Return CVaR and value at risk under the uniform policy, by all its paths."""
    outcomes = [(1.0, 0.0)]
    ended = []
    for _ in range(world.bars):
        coming = []
        for mass, total in outcomes:
            for level, (share, payoff) in itertools.product(world.levels, world.payoffs[0]):
                after = (mass * share / len(world.levels), total + level * payoff)
                (ended if after[1] <= world.ruin else coming).append(after)
        outcomes = coming
    mass, total = (
        torch.tensor(column, dtype=torch.float64)
        for column in zip(*(ended + outcomes), strict=True)
    )
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-12)
    cvar = float(risk.empirical_cvar(total, alpha=alpha, weight=mass))
    return cvar, float(risk.weighted_value_at_risk(total, mass, alpha=alpha))


@pytest.mark.parametrize("world", [COIN, RUINOUS], ids=["coin", "ruin"])
def test_the_shortfall_of_a_fixed_policy_is_estimated_without_bias(world):
    """Mean over 24 memories of 640 draws each, worst ones replayed, within 3 standard errors.

    The error is that of the memories themselves; it is below 6 % of the shortfall, and scores of
    the agent's own path would be off by 18 % in the world with ruin.
    """
    alpha = 0.1
    cvar, level = exact(world, alpha)
    truth = alpha * (cvar - level)
    task = bets(world, batch=64)
    agent = uniform_agent(task)
    estimates = []
    for repeat in range(24):
        memory = DrawMemory()
        streams = (seeded(1000 + repeat), seeded(5000 + repeat))
        batches = rollouts(task, agent, steps=world.bars + 1, count=10, seed=100 * repeat)
        for update, (_, rollout) in enumerate(batches):
            remember(memory, rollout, update, task, agent)
            memory.replay(
                task,
                agent,
                memory.risky(64, alpha),
                steps=world.bars,
                update=update,
                generators=streams,
            )
        sample = memory.sample(alpha, since=6)
        estimates.append(float((sample.weight * (sample.result - level).clamp(max=0.0)).sum()))
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert error < 0.06 * abs(truth)
    assert abs(np.mean(estimates) - truth) < 3.0 * error


def test_a_restored_memory_goes_on_as_the_saved_one():
    task = bets(RUIN)
    agent = agent_of(task)
    batches = [rollout for _, rollout in rollouts(task, agent, steps=3, count=6)]
    first, second = DrawMemory(), DrawMemory()
    for update, rollout in enumerate(batches[:3]):
        remember(first, rollout, update, task, agent)
    tree, tensors = flatten(first.state_dict())
    saved = unflatten(tree, {name: x.clone() for name, x in tensors.items()})
    second.load_state_dict(saved, torch.device("cpu"))
    for update, rollout in enumerate(batches[3:], 3):
        for memory in (first, second):
            remember(memory, rollout, update, task, agent)
    assert all(map(torch.equal, first.kept.state, second.kept.state))
    assert all(map(torch.equal, first.kept[1:], second.kept[1:]))
    whole = episodes_by_hand(task, agent, [(None, rollout) for rollout in batches])
    assert len(second) == len(whole)
    empty = DrawMemory()
    empty.load_state_dict(DrawMemory().state_dict(), torch.device("cpu"))
    assert len(empty) == 0


# -------------------------------------------------------------------------------------- the control


def control(task, **changes):
    limited = {"risk__cvar_use_constraint": True, "risk__cvar_limit": -2.0}
    changes = {**limited, "validation__every_updates": 0, **changes}
    config = lab_settings(ppo__n_envs=task.batch, ppo__batch_size=task.batch, **changes)
    return LimitControl(config, task, agent_of(task), Generators(0))


def test_the_control_holds_all_classes_or_five_numbers_over_the_range():
    for task, places in ((bets(COIN), [0, 1, 2]), (bets(NUMBER), [0, 5, 10, 15, 20])):
        limit = control(task)
        state = task.reset(seeded(2))[0]
        whole = held_returns(task, state, limit.grid, steps=3, generator=seeded())
        assert torch.equal(limit._held(state), whole[:, places])


def measured(task, **changes):
    """Return the control after two rollouts, its tail, and what the tail was measured by."""
    limit, agent = control(task, **changes), agent_of(task)
    for _, rollout in rollouts(task, agent, steps=12, count=2):
        limit._remember(rollout, agent)
    assert len(limit.draws) > 40
    return limit, limit.measure(), limit.draws.sample(0.05, since=0)


def test_the_error_counts_bars_that_episodes_share():
    """Two episodes of five bars each count as near up to ten rows apart, of whichever symbol."""
    task = market("levels", batch=24)
    limit, tail, sample = measured(task)
    row = State(*sample.state).row
    assert torch.equal(row, draw_places(task, State(*sample.state)))
    parts = sample.result, sample.weight, sample.is_risky
    options = {"alpha": 0.05, "level": tail.level, "draws": len(limit.draws)}
    shared = oracle.stratified_cvar_error(*parts, **options, place=row.tolist(), reach=10)
    assert tail.error == pytest.approx(shared, rel=1e-9)
    assert tail.error > 1.05 * oracle.stratified_cvar_error(*parts, **options)


def test_where_every_episode_draws_afresh_the_error_is_that_of_independent_ones():
    task = bets(COIN, batch=24)
    assert draw_places(task, task.reset(seeded())[0]) is None
    limit, tail, sample = measured(task)
    options = {"alpha": 0.05, "level": tail.level, "draws": len(limit.draws)}
    parts = sample.result, sample.weight, sample.is_risky
    assert tail.error == float(risk.stratified_cvar_error(*parts, **options)) > 0.0


def test_where_draws_are_shared_the_aim_allows_for_the_error_of_others():
    """Each error counts twice, and not where every episode has draws of its own."""
    margin = {"risk__cvar_limit": -2.0, "risk__cvar_margin": 1.5}
    known = NOTHING._replace(empirical=-2.5, error=0.1, spread=0.3)
    unknown = known._replace(error=99.0)  # counts up to 15 % of the limit
    for task, errors in ((bets(COIN), 1.5), (market("levels"), 3.0)):
        made = control(task, **margin)
        assert made.aim(known) == pytest.approx(-2.0 + 0.1 * errors, abs=1e-12)
        assert made.aim(unknown) == pytest.approx(-2.0 + 0.3 * errors, abs=1e-12)


def test_without_a_limit_no_draw_is_played_or_scored(monkeypatch):
    task = bets(COIN)
    limit = control(
        task, risk__cvar_use_constraint=False, risk__cvar_limit=None, risk__cvar_weight=0.0
    )
    agent = agent_of(task)
    rollout = rollout_of(task, agent, steps=4)
    monkeypatch.setattr(task, "step", None)
    limit._remember(rollout, agent)
    assert limit.draws.kept.is_scored.tolist() == [False] * task.batch
    assert len(limit.draws) == 0


@pytest.mark.parametrize("worst", [0, 3, 9])
@pytest.mark.parametrize("count", [2, 9, 25])
def test_the_draws_to_be_replayed_are_found_without_a_look_at_the_device(worst, count, monkeypatch):
    """The oldest of the worst in the order of their places; fewer of them take turns."""
    source = torch.Generator().manual_seed(count)
    measured = torch.randint(0, 4, (30,), generator=source).tolist()
    memory = remembered([0.0] * 30, measured=measured)
    risky = torch.zeros(30, dtype=torch.bool)
    risky[torch.randperm(30, generator=source)[:worst]] = True
    monkeypatch.setattr(memory, "is_risky", lambda _: risky)
    chosen = [place for place in range(30) if worst == 0 or risky[place]]
    chosen.sort(key=lambda place: measured[place])
    wanted = [chosen[:count][turn % len(chosen[:count])] for turn in range(count)]
    with host_reads(monkeypatch) as (places, _):
        found = memory.risky(count, 0.1)
    assert places == []
    assert found.tolist() == wanted


def test_scores_of_draws_that_are_forgotten_are_forgotten():
    memory = remembered([float(score) for score in range(5)])
    memory.capacity = 6
    kept = memory.kept
    new = kept._replace(is_scored=torch.zeros(5, dtype=torch.bool))
    memory._append(new._replace(result=new.result + 1.0))
    assert memory.kept.is_scored.tolist() == [True] + [False] * 5
    assert len(memory) == 1
    assert memory.constant_returns().shape == (1, 2)
    memory.score_new(lambda state: torch.full((len(state[0]), 2), 7.0, dtype=torch.float64))
    assert memory.kept.score.tolist() == [4.0] + [7.0] * 5
    assert len(memory) == 6
