"""Episodes that are played on after every action, on the same draws."""

import numpy as np
import pytest
import torch

from all_actions_lab import COIN, COSTLY, RUIN, agent_of, bets, grid_of, rollout_of, seeded
from bets_lab import bets_learner, limited
from oracles import risk_limit as oracle
from simulator_lab import settings, simulator, wild_panel
from stormsail.algorithms.risk import action_critic, branches
from stormsail.algorithms.risk.action_critic import ActionCritic, frame_of
from stormsail.algorithms.risk.branches import (
    Branches,
    branched_states,
    measure_account_share,
    play_branches,
)
from stormsail.bench.bets.bets_worlds import World
from stormsail.bench.bets.betting_exact import tree_of
from stormsail.bench.bets.betting_game import BettingGame
from stormsail.functional import risk

WEALTH = World("wealth", -2.0, 3, (0.0, 0.2, 0.6), (((0.3, -1.0), (0.7, 0.6)),), wealth=10.0)
NUMBER = World("number", -2.0, 3, (0.0, 2.0), COIN.payoffs, continuous=True)
WORLDS = {"coin": COIN, "ruin": RUIN, "costly": COSTLY, "wealth": WEALTH}


def uniform(agent):
    """Make the policy of an agent the same in all states: every class is as likely."""
    with torch.no_grad():
        agent.network.actor_last.weight.zero_()
        agent.network.actor_last.bias.zero_()
    return agent


def certain(agent, action):
    """Make an agent draw one class always."""
    uniform(agent).network.actor_last.bias.data[action] = 1e4
    return agent


def play(task, agent, rollout, *, seed=5):
    return play_branches(
        task, agent, rollout, grid_of(agent), steps=task.episode_steps,
        generators=(seeded(seed), seeded(seed + 1)),
    )  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("memory", ["lstm", "none"])
def test_a_branch_is_the_episode_played_on_after_an_action(name, memory):
    """An agent that always draws the last class: then every end can be stepped by hand."""
    task = bets(WORLDS[name], batch=6)
    last = task.actions.count - 1
    agent = certain(agent_of(task, memory=memory), last)
    rollout = rollout_of(task, agent, steps=7)
    result = play(task, agent, rollout)
    batch = rollout.reward.shape[1]
    single = task.with_batch(1)
    assert len(result.places) == int((rollout.weight > 0.0).sum())
    assert len(result.places.unique()) == len(result.places)
    for place, ends in zip(result.places.tolist(), result.total, strict=True):
        row, column = divmod(place, batch)
        assert rollout.weight[row, column] > 0.0
        for action in range(last + 1):
            state = type(rollout.options.state)(
                *(part[row, column][None] for part in rollout.options.state)
            )
            total, over, taken = float(rollout.return_so_far[row, column]), False, action
            while not over:
                state, step = single.step(state, torch.tensor([taken]), seeded(0))
                total, taken = total + float(step.reward), last
                over = bool(step.terminated | step.truncated)
            assert float(ends[action]) == pytest.approx(total, abs=1e-5)


def test_branches_of_a_state_differ_by_their_first_action_alone():
    """Later draws and actions are the same for all: without the first reward they all end alike."""
    task = bets(COIN, batch=32)
    agent = uniform(agent_of(task))
    rollout = rollout_of(task, agent, steps=8)
    result = play(task, agent, rollout)
    first = rollout.options.step.reward.flatten(0, 1)[result.places].double()
    rest = result.total - first
    torch.testing.assert_close(rest, rest[:, :1].expand_as(rest), atol=1e-5, rtol=0.0)
    assert len(rest[:, 0].unique()) > 3  # and from state to state they differ


def test_a_continuous_action_is_branched_over_its_grid():
    task = bets(NUMBER, batch=4)
    agent = agent_of(task)
    result = play(task, agent, rollout_of(task, agent, steps=5))
    assert result.total.shape == (len(result.places), len(grid_of(agent)))
    assert result.total.isfinite().all()


def test_branches_of_a_market_end_as_the_market_says():
    config = settings(
        action="levels", levels=(-1.0, 0.0, 1.0), episode_bars=5, costs__taker_fee=0.001
    )
    task = simulator(wild_panel(3, rows=80, symbols=2), config, batch=4, dtype=torch.float32)
    agent = certain(agent_of(task), 1)  # nothing is held afterwards
    rollout = rollout_of(task, agent, steps=6)
    result = play(task, agent, rollout)
    single = task.with_batch(1)
    for place, ends in list(zip(result.places.tolist(), result.total, strict=True))[:5]:
        row, column = divmod(place, 4)
        for action in range(3):
            state = type(rollout.options.state)(
                *(part[row, column][None] for part in rollout.options.state)
            )
            total, over, taken = float(rollout.return_so_far[row, column]), False, action
            while not over:
                state, step = single.step(state, torch.tensor([taken]), seeded(0))
                total, taken = total + float(step.reward), 1
                over = bool(step.terminated | step.truncated)
            assert float(ends[action]) == pytest.approx(total, abs=1e-6)


def test_the_mean_of_branches_is_what_an_action_adds_in_the_betting_game():
    """The first bet under a policy that bets anything: exact values by backward induction."""
    game = BettingGame(2048)
    agent = uniform(agent_of(game, memory="none"))
    rollout = rollout_of(game, agent, steps=1)
    level, tree = 20.0, tree_of(game.rules)
    value = np.minimum(tree.final - game.rules.tokens - level, 0.0)
    for pays, loses in reversed(tree.after):
        worth = 0.88 * value[pays] + 0.12 * value[loses]
        value = worth.mean(-1)
    exact = worth[0] - worth[0].mean()
    labels = [
        (play(game, agent, rollout, seed=seed).total - level).clamp(max=0.0) for seed in range(3, 6)
    ]
    short = torch.cat(labels)
    short = short - short.mean(-1, keepdim=True)
    error = short.std(0) / len(short) ** 0.5
    assert len(short) == 3 * 303  # 8 x 2,048 steps for 9 actions of 6 bets
    assert (abs(short.mean(0) - torch.from_numpy(exact)) < 4.0 * error).all()
    assert (abs(exact) > 10.0 * error.numpy()).any()  # so that the bound says something


@pytest.mark.parametrize(
    ("rows", "actions", "horizon", "states"),
    [
        (3136, 9, 6, 464),  # 25,088 steps over 54
        (8192, 5, 128, 102),
        (8192, 5, 1024, 64),  # the least
        (40_000, 3, 4, 512),  # the most
        (40, 3, 4, 40),  # all there are
    ],
)
def test_branches_take_as_many_steps_as_some_rollouts(rows, actions, horizon, states):
    assert branched_states(rows, actions, horizon) == states


def share_by_steps(task, grid, steps):
    """Return the account share from single steps of every action, by loops."""
    episodes, actions = branches.MEASURED, len(grid)
    start, _ = task.with_batch(episodes).reset(seeded(0))
    reward, weight = np.zeros((episodes, actions, actions)), np.ones((episodes, actions))
    several = task.with_batch(episodes)
    for j, past in enumerate(grid):
        state = start
        for _ in range(steps // 2):
            state, step = several.step(state, past.repeat(episodes), seeded(1))
            weight[(step.terminated | step.truncated).numpy(), j] = 0.0
        for k, action in enumerate(grid):
            _, step = several.step(state, action.repeat(episodes), seeded(1))
            reward[:, j, k] = step.reward.double().numpy()
    return oracle.account_share(reward, weight)


@pytest.mark.parametrize("name", ["costly", "wealth", "ruin", "game"])
def test_the_account_share_is_that_of_rewards_step_by_step(name):
    task = BettingGame(4) if name == "game" else bets(WORLDS[name])
    grid = torch.arange(task.actions.count)
    expected = share_by_steps(task, grid, task.episode_steps)
    assert measure_account_share(task, grid, steps=task.episode_steps) == pytest.approx(
        expected, abs=1e-6
    )
    low, high = {"costly": (1e-3, 0.05), "wealth": (1e-3, 0.2), "ruin": (0, 0), "game": (0.3, 0.5)}[
        name
    ]
    assert low <= expected <= high


def test_the_account_share_by_hand():
    def share(reward, weight):
        return float(risk.account_share(torch.tensor(reward), torch.tensor(weight)))

    # within: 1 + 1 about 2, nothing about 5; total about 3.5: 6.25 + .25 + 2.25 + 2.25
    assert share([[[1.0], [3.0]], [[5.0], [5.0]]], [[1.0, 1.0], [1.0, 1.0]]) == pytest.approx(
        2.0 / 11.0
    )
    # an account without weight is none: nothing is left within
    assert share([[[1.0], [99.0]], [[5.0], [5.0]]], [[1.0, 0.0], [1.0, 1.0]]) == 0.0
    assert share([[[2.0, 7.0]], [[2.0, 7.0]]], [[1.0], [1.0]]) == 0.0  # no variation at all
    assert share([[[1.0], [3.0]]], [[1.0, 1.0]]) == 1.0  # one episode: all is due to the account
    assert share([[[1.0], [3.0]]], [[0.0, 0.0]]) == 0.0  # every episode is over


@pytest.mark.parametrize(
    ("quantile", "cvar", "held", "level"),
    [
        (30.0, 17.0, 10.0, 33.0),  # more cautious than any held action: 3 are missing
        (15.0, 17.0, 10.0, 23.0),  # from the limit, where the quantile is below it
        (30.0, 17.0, 18.0, 28.5),  # a held action is safer: three twentieths of the way to 20
        (30.0, 17.0, 17.0, 28.5),  # or as safe
        (30.0, 20.0, 10.0, 30.0),  # kept
        (30.0, 25.0, 10.0, 30.0),
    ],
)
def test_the_level_is_raised_where_no_held_action_keeps_the_limit(quantile, cvar, held, level):
    q, c = (torch.tensor([x], dtype=torch.float64) for x in (quantile, cvar))
    result = risk.shortfall_level(q, c, limit=20.0, held=held)
    assert float(result) == pytest.approx(level, abs=1e-12)


def test_episodes_are_branched_where_rewards_depend_on_the_account():
    rich = World("rich", -2.0, 4, (0.0, 0.5, 1.0), (((0.3, -1.0), (0.7, 1.0)),), wealth=10.0)
    for world, branched in ((rich, True), (COIN, False), (COSTLY, False)):
        ppo = bets_learner(world, **limited(world))
        assert ppo.risk.branches is branched
        assert (ppo.risk._branches(ppo_rollout(ppo), ppo.agent) is not None) is branched
    free = bets_learner(rich, **{"ppo.policy_gradient": "all_actions"})
    assert free.risk.branches is False  # nothing limits the tail


def ppo_rollout(ppo):
    return rollout_of(ppo.task, ppo.agent, steps=5)


def test_with_branches_what_actions_add_is_learned_from_them_alone():
    """The loss, term by term; that of the remembered steps has values alone."""
    task = bets(WEALTH)
    agent = agent_of(task)
    critic = ActionCritic(agent, actions=3, gamma=1.0, rollouts=2, generator=seeded(3))
    critic.values.unit.copy_(torch.tensor((2.0, 4.0, 0.1)))
    rollout = rollout_of(task, agent, steps=4)
    frame = frame_of(-1.0, 2.0, 3, torch.device("cpu"))
    total = torch.tensor([[-3.0, 0.5, -1.5], [2.0, -0.5, -9.0]], dtype=torch.float64)
    branched = critic._branched(rollout, Branches(torch.tensor([1, 5]), total), frame)
    short = torch.tensor([[-2.0, 0.0, -0.5], [0.0, 0.0, -8.0]])
    torch.testing.assert_close(branched.added, short - short.mean(-1, keepdim=True))
    elapsed = (rollout.length - 1).float()
    options = rollout.options
    whole = critic.inputs(
        options.features[:-1], options.seen[:-1], rollout.return_so_far, elapsed, frame
    )
    torch.testing.assert_close(branched.own, whole.flatten(0, 1)[[1, 5]])
    own = torch.randn(6, whole.shape[-1], generator=seeded(4))
    lesson = action_critic.Lesson(
        own,
        torch.randn(6, 2, generator=seeded(5)),
        torch.full((6, 3), torch.nan),  # what one step ahead says of actions is not read
        torch.rand(6, generator=seeded(6)),
    )
    value, added = critic.values(own)[0], critic.values.added(branched.own)
    squares = ((value - lesson.value) / torch.tensor((2.0, 4.0))).square().sum(-1)
    expected = (lesson.weight * squares).mean() + ((added - branched.added) / 0.1).square().mean()
    result = critic._step(lesson, None, branched)
    assert float(result) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.refusal
def test_branches_need_a_rollout_with_options():
    task = bets(WEALTH)
    agent = agent_of(task)
    critic = ActionCritic(agent, actions=3, gamma=1.0, rollouts=2, generator=seeded(3))
    frame = frame_of(-1.0, 2.0, 3, torch.device("cpu"))
    with pytest.raises(LookupError, match="without their rollout"):
        critic._branched(
            None, Branches(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3)), frame
        )
