"""Each task moves as Gymnasium's does, from any state."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from scipy.stats import ks_2samp

from stormsail.core.task import ContinuousActions, DiscreteActions
from stormsail.tasks import NAMES, make
from tasks.peers import WHOLE, moves, random_actions, random_states, unrounded

COUNT = 10_000
by_name = pytest.mark.parametrize("name", WHOLE)


@functools.cache
def real_moves(name):
    rng = np.random.default_rng(7)
    space = gymnasium.make(name, disable_env_checker=True).action_space
    with unrounded():
        return moves(name, random_states(name, COUNT, rng), random_actions(space, COUNT, rng))


def our_moves(name, real, *, dtype=torch.float64):
    task = make(name, batch=len(real.before), dtype=dtype)
    state, _ = task.place(torch.from_numpy(real.before).to(dtype))
    action = torch.from_numpy(real.action)
    action = action.to(dtype) if action.is_floating_point() else action
    return task.step(state, action, torch.Generator())


@by_name
def test_ten_thousand_steps_equal_those_of_gymnasium(name):
    real = real_moves(name)
    state, step = our_moves(name, real)
    assert real.after.dtype == np.float64
    np.testing.assert_allclose(state.physical.numpy(), real.after, rtol=0, atol=1e-12)
    np.testing.assert_allclose(step.reward.numpy(), real.reward, rtol=0, atol=1e-12)
    assert np.array_equal(step.terminated.numpy(), real.terminated)
    # what Gymnasium shows is float32: half a unit in its last place
    np.testing.assert_allclose(step.observation.numpy(), real.observation, rtol=2**-23, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "share"),
    [("Acrobot-v1", 0.17), ("CartPole-v1", 0.13), ("MountainCarContinuous-v0", 0.05)],
)
def test_the_random_states_reach_the_ends_they_are_meant_to_reach(name, share):
    assert real_moves(name).terminated.mean() == pytest.approx(share, abs=0.005)


def test_the_random_states_reach_every_limit():
    acrobot = real_moves("Acrobot-v1")
    assert (np.abs(acrobot.after[:, 2]) == 4 * np.pi).sum() > 1_000
    assert (np.abs(acrobot.after[:, 3]) == 9 * np.pi).sum() > 1_000
    car = real_moves("MountainCarContinuous-v0")
    assert (car.after[:, 0] == -1.2).sum() > 50
    assert (car.after[:, 0] == 0.6).sum() > 50
    assert (np.abs(car.after[:, 1]) == 0.07).sum() > 50
    pendulum = real_moves("Pendulum-v1")
    assert (np.abs(pendulum.after[:, 1]) == 8.0).sum() > 50


def test_the_mountain_car_differs_from_gymnasium_by_its_rounding_to_float32_alone():
    exact = real_moves("MountainCarContinuous-v0")
    rounded = moves("MountainCarContinuous-v0", exact.before, exact.action)
    state, step = our_moves("MountainCarContinuous-v0", exact)
    assert rounded.after.dtype == np.float32
    assert np.array_equal(state.physical.numpy().astype(np.float32), rounded.after)
    assert np.array_equal(step.terminated.numpy(), rounded.terminated)


@by_name
def test_float32_follows_float64(name):
    real = real_moves(name)
    state, step = our_moves(name, real, dtype=torch.float32)
    same = step.terminated.numpy() == real.terminated
    assert same.mean() > 0.999  # a state within rounding of a threshold may fall on either side
    away = np.abs(state.physical.double().numpy() - real.after)[same]
    if name == "Acrobot-v1":  # an angle next to π may come out next to -π
        away[:, :2] = np.minimum(away[:, :2], np.abs(2 * np.pi - away[:, :2]))
    # measured: 1.4e-3 in a rate of Acrobot at its highest speeds, at most 1.9e-6 elsewhere
    assert away.max() < 3e-3 if name == "Acrobot-v1" else away.max() < 5e-6
    assert {part.dtype for part in (state.physical, step.observation, step.reward)} == {
        torch.float32
    }


def test_the_cost_of_the_mountain_car_is_not_clipped_with_its_force():
    task = make("MountainCarContinuous-v0", batch=2, dtype=torch.float64)
    state, _ = task.place(torch.tensor([[-0.5, 0.0], [-0.5, 0.0]], dtype=torch.float64))
    action = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    state, step = task.step(state, action, torch.Generator())
    # cost 0.1 a²: 0.1 and 0.9; force 1 for both
    torch.testing.assert_close(step.reward, torch.tensor([-0.1, -0.9], dtype=torch.float64))
    assert torch.equal(state.physical[0], state.physical[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_left_wall_takes_the_speed_however_softly_it_is_hit(dtype):
    task = make("MountainCarContinuous-v0", batch=2, dtype=dtype)
    # the slope adds 0.00224, so the second car meets the wall at -0.00016
    state, _ = task.place(torch.tensor([[-1.19, -0.05], [-1.2, -0.0024]], dtype=dtype))
    state, _ = task.step(state, torch.zeros(2, 1, dtype=dtype), torch.Generator())
    assert torch.equal(state.physical, torch.tensor([[-1.2, 0.0], [-1.2, 0.0]], dtype=dtype))


def test_a_car_that_rolls_back_over_the_goal_has_not_arrived():
    task = make("MountainCarContinuous-v0", batch=2, dtype=torch.float64)
    state, _ = task.place(torch.tensor([[0.5, -0.01], [0.5, 0.01]], dtype=torch.float64))
    _, step = task.step(state, torch.zeros(2, 1, dtype=torch.float64), torch.Generator())
    assert step.terminated.tolist() == [False, True]
    assert step.reward.tolist() == [0.0, 100.0]


@pytest.mark.parametrize("turns", [0, 1, 2, 7])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_acrobot_comes_back_by_whole_turns_from_any_angle(turns, sign):
    # Gymnasium's loop goes on for as long as it must; a fixed number of passes would not
    before = np.array([[sign * (2.0 + 2 * np.pi * turns), sign * 2 * np.pi * turns, 0.1, -0.2]])
    real = moves("Acrobot-v1", before, np.array([2]))
    state, _ = our_moves("Acrobot-v1", real)
    np.testing.assert_allclose(state.physical.numpy(), real.after, rtol=0, atol=1e-12)
    assert np.abs(real.after[0, :2]).max() <= np.pi


def test_pendulum_charges_for_the_angle_brought_into_one_turn():
    task = make("Pendulum-v1", batch=3, dtype=torch.float64)
    angle = torch.tensor([torch.pi, -torch.pi, 2 * torch.pi], dtype=torch.float64)
    state, _ = task.place(torch.stack((angle, torch.zeros(3, dtype=torch.float64)), -1))
    _, step = task.step(state, torch.full((3, 1), 5.0, dtype=torch.float64), torch.Generator())
    # -θ̄² - 0.001 · 2²; both π and -π become -π, a whole turn becomes 0
    expected = torch.tensor([-(torch.pi**2) - 0.004, -(torch.pi**2) - 0.004, -0.004]).double()
    torch.testing.assert_close(step.reward, expected, rtol=1e-7, atol=1e-12)


class Edge:
    """A generator of random numbers that gives one bound of what it is asked for."""

    def __init__(self, side):
        self.side = side

    def uniform(self, low, high, size=None):
        return np.full(size if size is not None else np.shape(low), (low, high)[self.side])


@by_name
@pytest.mark.parametrize("side", [0, 1])
def test_starts_have_the_bounds_of_gymnasium(name, side):
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.np_random = Edge(side)
    env.reset()
    task = make(name, batch=1, dtype=torch.float64)
    bound = (task.low, task.high)[side]
    np.testing.assert_allclose(np.asarray(env.state, dtype=np.float64), bound, rtol=1e-7, atol=0)


@by_name
def test_starts_have_the_distribution_of_gymnasium(name):
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=11)
    real = np.array([(env.reset(), np.array(env.state))[1] for _ in range(4_000)])
    task = make(name, batch=20_000, dtype=torch.float64)
    state, observation = task.reset(torch.Generator().manual_seed(5))
    ours = state.physical.numpy()
    assert (ours >= task.low).all()
    assert (ours <= task.high).all()
    for index, (low, high) in enumerate(zip(task.low, task.high, strict=True)):
        if low == high:
            assert set(ours[:, index]) == set(real[:, index]) == {low}
            continue
        assert ks_2samp(real[:, index], ours[:, index]).pvalue > 0.01
        assert ours[:, index].max() - ours[:, index].min() > 0.999 * (high - low)
    # independent of one another, and no two environments alike
    free = [index for index in range(ours.shape[1]) if task.low[index] < task.high[index]]
    correlation = np.corrcoef(ours[:, free], rowvar=False).reshape(len(free), len(free))
    assert np.abs(correlation - np.eye(len(free))).max() < 0.03
    assert len(np.unique(ours[:, free[0]])) == 20_000
    assert torch.equal(observation, task.place(state.physical)[1])


@by_name
def test_sizes_actions_and_limits_are_those_of_gymnasium(name):
    env = gymnasium.make(name, disable_env_checker=True)
    task = make(name, batch=3)
    assert task.limit == task.episode_steps == env.spec.max_episode_steps
    assert (task.observation_size,) == env.observation_space.shape
    assert len(task.observation_names) == task.observation_size
    assert len(task.low) == len(task.high) == len(task.physical_names)
    if isinstance(env.action_space, Discrete):
        assert task.actions == DiscreteActions(int(env.action_space.n))
    else:
        bounds = (env.action_space.low, env.action_space.high)
        assert task.actions == ContinuousActions(*(tuple(map(float, side)) for side in bounds))


def test_gymnasium_and_we_give_the_four_tasks_the_same_names():
    masked = (name.replace("-", "NoVel-") for name in WHOLE)
    assert sorted((*WHOLE, *masked, "Recall-v0")) == list(NAMES)


@pytest.mark.parametrize(
    ("name", "hidden"),
    # rl-baselines3-zoo, MaskVelocityWrapper.velocity_indices; Acrobot's are ours
    [
        ("Acrobot", [4, 5]),
        ("CartPole", [1, 3]),
        ("MountainCarContinuous", [1]),
        ("Pendulum", [2]),
    ],
)
def test_masked_tasks_show_zero_for_velocities_and_are_otherwise_the_same(name, hidden):
    version = next(whole for whole in WHOLE if whole.startswith(f"{name}-")).split("-")[1]
    whole = make(f"{name}-{version}", batch=COUNT, dtype=torch.float64)
    masked = make(f"{name}NoVel-{version}", batch=COUNT, dtype=torch.float64)
    real = real_moves(f"{name}-{version}")
    action = torch.from_numpy(real.action)
    seen, states = [], []
    for task in (whole, masked):
        state, first = task.place(torch.from_numpy(real.before))
        state, step = task.step(state, action, torch.Generator())
        seen.append((first, step.observation))
        states.append((*state, step.reward, step.terminated, step.truncated, *step.info))
    assert all(map(torch.equal, *states))
    shown = [index for index in range(whole.observation_size) if index not in hidden]
    for full, cut in zip(*seen, strict=True):
        assert cut.shape == full.shape
        assert torch.equal(cut[:, shown], full[:, shown])
        assert torch.equal(cut[:, hidden], torch.zeros_like(cut[:, hidden]))
        assert full[:, hidden].abs().min() > 0 or name == "MountainCarContinuous"
    assert masked.observation_names == whole.observation_names
    start = masked.reset(torch.Generator())[1][:, hidden]
    assert torch.equal(start, torch.zeros_like(start))
