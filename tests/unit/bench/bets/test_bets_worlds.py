"""Bets as tasks: what a bar pays, what is drawn, replay, and what other levels would have made."""

import pytest
import torch

from stormsail.bench.bets.bets_unseen import UNSEEN
from stormsail.bench.bets.bets_worlds import KNOWN, Bets, World
from stormsail.core import task as tasks
from stormsail.core.errors import RangeError

ALL = {**KNOWN, **UNSEEN}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn_action(task, draws):
    if task.world.continuous:
        low, high = task.world.levels[0], task.world.levels[-1]
        return low + (high - low) * torch.rand(task.batch, 1, generator=draws)
    return torch.randint(len(task.world.levels), (task.batch,), generator=draws)


def fixed(task, uniform):
    """Return the state of episodes with given draws, [B, H, 2]."""
    state, _ = task.reset(generator())
    return state._replace(uniform=uniform)


# ------------------------------------------------------------------------------------ what it pays


def test_a_bar_by_hand():
    # draws below 0.016 lose 20 for each unit of the level, others win one
    task = Bets(KNOWN["stakes-8"], batch=3)
    uniform = torch.tensor([0.0159, 0.0161, 0.999])[:, None, None].expand(3, 4, 2)
    state, step = task.step(fixed(task, uniform), torch.tensor([2, 3, 0]), generator())
    assert step.reward.tolist() == [-40.0, 3.0, 0.0]
    assert state.total.tolist() == [-40.0, 3.0, 0.0]
    # unit of the observed total: 4 * sqrt(4 * (0.016 * 400 + 0.984)) = 21.74...
    scale = 4.0 * (4.0 * (0.016 * 400.0 + 0.984)) ** 0.5
    torch.testing.assert_close(
        step.observation, torch.tensor([[0.75, -40.0 / scale], [0.75, 3.0 / scale], [0.75, 0.0]])
    )
    assert task.observation_names == ("time_left", "earned")


def test_a_change_of_the_level_costs_and_the_level_is_seen():
    world = World(
        "costly", -1.0, 3, (0.0, 1.0, 2.0), (((0.5, -1.0), (0.5, 1.0)),), change_cost=0.25
    )
    task = Bets(world, batch=1)
    state = fixed(task, torch.full((1, 3, 2), 0.75))  # always +1
    rewards = []
    for action in (2, 1, 1):
        state, step = task.step(state, torch.tensor([action]), generator())
        rewards.append(float(step.reward))
    assert rewards == [2.0 - 0.5, 1.0 - 0.25, 1.0]
    assert task.account_names == ("earned", "level")
    assert float(step.observation[0, -1]) == 0.5


def test_shares_of_the_wealth_compound_and_ruin_ends_the_episode():
    world = World(
        "shares", -3.0, 3, (0.0, 0.5), (((0.5, -1.0), (0.5, 1.0)),), wealth=8.0, ruin=-6.0
    )
    task = Bets(world, batch=2)
    uniform = torch.tensor([[0.1, 0.1, 0.1], [0.9, 0.1, 0.9]])[..., None].expand(2, 3, 2)
    state = fixed(task, uniform)
    seen = []
    for _ in range(3):
        state, step = task.step(state, torch.tensor([1, 1]), generator())
        seen.append((state.total.tolist(), step.terminated.tolist(), step.truncated.tolist()))
    # 8 -> 4 -> 2: total -6 is ruin; 8 -> 12 -> 6 -> 9
    assert seen[0] == ([-4.0, 4.0], [False, False], [False, False])
    assert seen[1] == ([-6.0, -2.0], [True, False], [False, False])
    assert seen[2] == ([0.0, 1.0], [False, True], [False, False])
    assert step.info.sample_weight.tolist() == [0.0, 1.0]


def test_a_regime_is_seen_and_decides_on_the_payoff():
    task = Bets(KNOWN["warning"], batch=2)
    # 0.03 moves from calm into the warning (0.96 stays); 0.005 is a crash in the warning alone
    uniform = torch.full((2, 64, 2), 0.7)
    uniform[:, 0, 1] = torch.tensor([0.97, 0.95])
    uniform[:, 1, 0] = 0.005
    state = fixed(task, uniform)
    state, first = task.step(state, torch.tensor([1, 1]), generator())
    assert first.observation[:, :2].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    _, second = task.step(state, torch.tensor([1, 1]), generator())
    assert second.reward.tolist() == [-300.0, -3.0]
    assert tasks.observation_layout(task).unscaled == ("regime_0", "regime_1")


def test_a_payoff_is_that_of_the_regime_before_the_bar():
    tables = (((0.5, -1.0), (0.5, 1.0)), ((0.5, -7.0), (0.5, 5.0)))
    world = World("two", -1.0, 3, (0.0, 1.0), tables, moves=((0.5, 0.5), (0.5, 0.5)))
    task = Bets(world, batch=1)
    state = fixed(task, torch.tensor([[[0.9, 0.9], [0.9, 0.1], [0.2, 0.9]]]))
    rewards, regimes = [], []
    for _ in range(3):
        state, step = task.step(state, torch.tensor([1]), generator())
        rewards.append(float(step.reward))
        regimes.append(int(state.regime))
    assert rewards == [1.0, 5.0, -1.0]
    assert regimes == [1, 0, 1]


@pytest.mark.parametrize("name", ["warning", "storm"])
def test_payoffs_and_regimes_come_as_often_as_stated(name):
    world = ALL[name]
    task = Bets(world, batch=100_000)
    state, _ = task.reset(generator(1))
    for _ in range(3):
        before = state
        payoff, regime = task._coming(state)
        state, _ = task.step(state, torch.ones(task.batch, dtype=torch.int64), generator(2))
    for here in range(world.regimes):
        among = before.regime == here
        count = int(among.sum())
        for share, value in world.payoffs[here]:
            seen = float((payoff[among] == value).double().mean())
            assert abs(seen - share) <= 5.0 * (share * (1.0 - share) / count) ** 0.5
        for there, share in enumerate(world.moves[here]):
            seen = float((regime[among] == there).double().mean())
            assert abs(seen - share) <= 5.0 * (share * (1.0 - share) / count) ** 0.5


@pytest.mark.refusal
def test_probabilities_that_do_not_add_up_are_refused():
    with pytest.raises(RangeError) as caught:
        World("odd", -1.0, 1, (0.0, 1.0), (((0.5, -1.0), (0.4, 1.0)),))
    assert str(caught.value) == (
        "probabilities of world `odd` must add up to 1; found [0.5, 0.4]. "
        "Give every outcome of each regime. [out-of-range]"
    )


# -------------------------------------------------------------------------------- the task's rules


@pytest.mark.parametrize("name", ALL)
def test_other_actions_are_what_a_step_makes_of_them(name):
    task = Bets(ALL[name], batch=256)
    draws = generator(5)
    state, _ = task.reset(draws)
    if task.world.continuous:
        actions = torch.tensor([-1.0, 0.0, 0.3, 1.7, 9.0])  # clipped as a step does
    else:
        actions = torch.arange(len(task.world.levels))
    columns = [task.observation_names.index(column) for column in tasks.account_names(task)]
    for _ in range(min(task.world.bars, 5) + 2):
        others = tasks.alternatives(task, state, actions)
        assert others.account.shape == (256, len(actions), len(columns))
        assert bool(others.account.isfinite().all() & others.reward.isfinite().all())
        live = ~state.over
        for k, action in enumerate(actions):
            each = action.expand(256, 1) if task.world.continuous else action.expand(256)
            _, step = task.step(state, each, generator(9))
            assert torch.equal(others.reward[live, k], step.reward[live])
            assert torch.equal(others.terminated[live, k], step.terminated[live])
            assert torch.equal(others.account[live, k], step.observation[live][:, columns])
        state, _ = task.step(state, drawn_action(task, draws), draws)


@pytest.mark.parametrize("name", ALL)
def test_a_state_at_the_start_fixes_all_draws_of_its_episode(name):
    task = Bets(ALL[name], batch=64)
    start, _ = task.reset(generator(3))
    replays = []
    for seed in (11, 12):
        state, actions, draws = start, generator(4), generator(seed)
        running, rewards = torch.ones(64, dtype=torch.bool), []
        for _ in range(task.episode_steps):
            state, step = task.step(state, drawn_action(task, actions), draws)
            rewards.append(torch.where(running, step.reward, 0.0))
            running &= ~(step.terminated | step.truncated)
        assert not bool(running.any())
        replays.append(torch.stack(rewards))
    assert torch.equal(*replays)
    assert tasks.episode_steps(task) == task.world.bars


@pytest.mark.parametrize("name", ["stakes-8", "churn", "storm"])
def test_no_action_changes_another_column(name):
    task = Bets(ALL[name], batch=64)
    own = set(tasks.account_names(task))
    others = [k for k, column in enumerate(task.observation_names) if column not in own]
    start, _ = task.reset(generator(3))
    seen = []
    for seed in (4, 5):
        state, actions = start, generator(seed)
        for _ in range(task.world.bars):
            state, step = task.step(state, drawn_action(task, actions), generator(1))
        seen.append(step.observation[:, others])
    assert torch.equal(*seen)


def test_an_episode_ends_for_good_after_its_bars_and_the_next_one_has_new_draws():
    task = Bets(KNOWN["stakes-8"], batch=8)
    draws = generator(0)
    state, _ = task.reset(draws)
    old, action = state.uniform, torch.ones(8, dtype=torch.int64)
    for bar in range(4):
        state, step = task.step(state, action, draws)
        assert bool(step.terminated.all()) is (bar == 3)
        assert not bool(step.truncated.any())
        assert torch.equal(state.uniform, old)
    assert step.observation[:, 0].tolist() == [0.0] * 8
    state, step = task.step(state, action, draws)
    assert step.reward.tolist() == [0.0] * 8
    assert step.info.sample_weight.tolist() == [0.0] * 8
    assert step.observation.tolist() == [[1.0, 0.0]] * 8
    assert not bool((state.uniform == old).any())
