"""Gymnasium's own tasks, set into any state, as the oracle of ours."""

from contextlib import contextmanager
from dataclasses import dataclass

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import continuous_mountain_car

WHOLE = ("Acrobot-v1", "CartPole-v1", "MountainCarContinuous-v0", "Pendulum-v1")
# Boxes of random states: beyond every threshold, at every limit of speed, over several turns.
_BOX = {
    "Acrobot-v1": ([-np.pi, -np.pi, -4 * np.pi, -9 * np.pi], [np.pi, np.pi, 4 * np.pi, 9 * np.pi]),
    "CartPole-v1": ([-2.5, -3.0, -0.22, -3.0], [2.5, 3.0, 0.22, 3.0]),
    "MountainCarContinuous-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "Pendulum-v1": ([-20.0, -8.0], [20.0, 8.0]),
}


class _Unrounded:
    """NumPy, except that its float32 is float64."""

    float32 = np.float64

    def __getattr__(self, name):
        return getattr(np, name)


@contextmanager
def unrounded():
    """Let Gymnasium's mountain car keep the float64 it computes.

    Its `step` works in the dtype of the state it was given and only at its last line casts to
    float32. With the name `float32` of that module standing for float64 the same lines run, and the
    state that comes out is what went into the cast.
    """
    original = continuous_mountain_car.np
    continuous_mountain_car.np = _Unrounded()
    try:
        yield
    finally:
        continuous_mountain_car.np = original


@dataclass(frozen=True)
class Moves:
    """Single steps of the real task, each from a state of its own."""

    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def random_states(name, count, rng):
    low, high = _BOX[name]
    return rng.uniform(low, high, size=(count, len(low)))


def random_actions(space, count, rng):
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(0, space.n, size=count)
    # half as far again as allowed, so that clipping is seen
    return rng.uniform(1.5 * space.low, 1.5 * space.high, size=(count, *space.shape))


def moves(name, before, action):
    """Return what the real task does from each state."""
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    rows = []
    for state, act in zip(before, action, strict=True):
        env.state = state.copy()
        env.steps_beyond_terminated = None  # CartPole: no episode has ended before this one
        observation, reward, terminated, _, _ = env.step(act)
        rows.append((np.array(env.state), observation, reward, terminated))
    return Moves(before, action, *(np.array(column) for column in zip(*rows, strict=True)))
