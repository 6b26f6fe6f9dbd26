"""Ends, limits and new starts happen when Gymnasium's vector environments let them happen."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stormsail.tasks import make
from tasks.peers import WHOLE, random_actions, unrounded

BATCH = 6


def clever(name, states):
    """Return actions that reach the other end than chance does."""
    if name == "CartPole-v1":  # balances until the time limit
        position, velocity, angle, rate = states.T
        return (0.1 * position + 0.3 * velocity + 3.0 * angle + rate > 0).astype(np.int64)
    if name == "Acrobot-v1":  # pumps energy into the outer link until it is up
        return 1 + np.sign(states[:, 3]).astype(np.int64)
    return np.sign(states[:, 1:]) * 0.9  # pushes the way it already rolls


def as_uniform(task, states):
    """Return the uniform numbers from which our task starts in the given states."""
    low, width = np.array(task.low), np.array(task.high) - np.array(task.low)
    return torch.from_numpy((states - low) / np.where(width > 0, width, 1.0))


@pytest.mark.parametrize(
    ("name", "steps", "ends", "cuts"),
    [
        ("Acrobot-v1", 1_100, 20, 3),
        ("CartPole-v1", 1_100, 100, 6),
        ("MountainCarContinuous-v0", 2_100, 40, 6),
        ("Pendulum-v1", 450, 0, 12),
    ],
)
def test_episodes_run_as_in_gymnasium(name, steps, ends, cuts):
    rng = np.random.default_rng(3)
    task = make(name, batch=BATCH, dtype=torch.float64)
    envs = SyncVectorEnv(
        [lambda: gymnasium.make(name, disable_env_checker=True)] * BATCH,
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )
    finished = np.zeros(2, dtype=int)
    with unrounded():
        envs.reset(seed=1)
        states = np.array([env.unwrapped.state for env in envs.envs], dtype=np.float64)
        state, _ = task.place(torch.from_numpy(states))
        fresh = np.zeros(BATCH, dtype=bool)
        for _ in range(steps):
            action = random_actions(envs.single_action_space, BATCH, rng)
            action[::2] = clever(name, states)[::2]
            seen, reward, terminated, truncated, _ = envs.step(action)
            states = np.array([env.unwrapped.state for env in envs.envs], dtype=np.float64)
            state, step = task.transition(state, torch.from_numpy(action), as_uniform(task, states))
            np.testing.assert_allclose(state.physical.numpy(), states, rtol=0, atol=1e-12)
            np.testing.assert_allclose(step.observation.numpy(), seen, rtol=2**-23, atol=1e-12)
            np.testing.assert_allclose(step.reward.numpy(), reward, rtol=0, atol=1e-12)
            assert np.array_equal(step.terminated.numpy(), terminated)
            assert np.array_equal(step.truncated.numpy(), truncated & ~terminated)
            assert np.array_equal(step.info.sample_weight.numpy(), 1.0 - fresh)
            assert not step.info.bad_action.any()
            assert np.array_equal(state.over.numpy(), terminated | truncated)
            finished += terminated.sum(), (truncated & ~terminated).sum()
            fresh = terminated | truncated
            # both go on from the same numbers, or their last digits would drift apart
            state = state._replace(physical=torch.from_numpy(states))
    # both kinds of end were compared often; how often depends on the last digits of a chaotic path
    assert finished[0] >= ends
    assert finished[1] >= cuts


def test_the_step_that_ends_shows_the_last_state_and_the_next_one_the_new_start():
    task = make("CartPole-v1", batch=2, dtype=torch.float64)
    falling = torch.tensor([[2.39, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    half = torch.full((2, 4), 0.75, dtype=torch.float64)
    state, _ = task.place(falling)
    state, last = task.transition(state, torch.tensor([1, 1]), half)
    state, first = task.transition(state, torch.tensor([1, 1]), half)
    state, second = task.transition(state, torch.tensor([1, 1]), half)
    # 2.39 + 0.02 · 1 is beyond 2.4; the new start is -0.05 + 0.75 · 0.1
    assert last.observation[0, 0].item() == pytest.approx(2.41, abs=1e-15)
    torch.testing.assert_close(first.observation[0], torch.full((4,), 0.025).double())
    columns = [
        [part[0].item() for part in (step.reward, step.terminated, step.info.sample_weight)]
        for step in (last, first, second)
    ]
    assert columns == [[1.0, True, 1.0], [0.0, False, 0.0], [1.0, False, 1.0]]
    # the new episode has done no step when it starts; the other environment never stopped
    assert state.elapsed.tolist() == [1, 3]
    assert second.info.sample_weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", WHOLE)
def test_an_episode_is_cut_at_its_limit_and_not_before(name):
    task = make(name, batch=2, dtype=torch.float64)
    state, _ = task.reset(torch.Generator().manual_seed(0))
    state = state._replace(elapsed=torch.tensor([task.limit - 2, 0]))
    idle = torch.zeros(2, dtype=torch.int64)
    if task.actions.count == 1:
        idle = torch.zeros(2, 1, dtype=torch.float64)
    flags = []
    for _ in range(4):
        state, step = task.step(state, idle, torch.Generator())
        flags.append((step.truncated[0].item(), step.info.sample_weight[0].item()))
    assert flags == [(False, 1.0), (True, 1.0), (False, 0.0), (False, 1.0)]
    assert state.elapsed[0].item() == 1


def test_an_end_at_the_limit_is_terminated_only():
    task = make("CartPole-v1", batch=1, dtype=torch.float64)
    state, _ = task.place(torch.tensor([[2.39, 1.0, 0.0, 0.0]], dtype=torch.float64))
    state = state._replace(elapsed=torch.tensor([499]))
    state, step = task.step(state, torch.tensor([1]), torch.Generator())
    assert (step.terminated.item(), step.truncated.item()) == (True, False)
    assert state.over.item() is True


@pytest.mark.parametrize("name", WHOLE)
def test_the_action_after_an_end_changes_nothing_and_may_be_anything(name):
    task = make(name, batch=1)
    state, _ = task.reset(torch.Generator().manual_seed(2))
    state = state._replace(over=torch.tensor([True]))
    results = []
    for value in (0.0, 1.0, float("nan")):
        action = torch.full((1, 1), value)
        if task.actions.count > 1:
            action = torch.tensor([int(value) if value == value else -9])
        after, step = task.step(state, action, torch.Generator().manual_seed(4))
        results.append((*after, *step[:4], *step.info))
    assert all(map(torch.equal, results[0], results[1]))
    assert all(map(torch.equal, results[0], results[2]))
    assert results[0][-1].tolist() == [False]
