"""Peers of `stormsail bench train`: sb3-contrib's RecurrentPPO, and a program in JAX.

Their libraries are imported when a peer is made.
"""

import os
from functools import partial
from typing import Any

import numpy as np

from stormsail.bench.learner.jax_learner import Shape, build

NOT_INSTALLED = "sb3-contrib is not installed: pip install stable-baselines3 sb3-contrib"
NO_JAX = "JAX is not installed: pip install jax, or jax[cuda12] for a GPU"
CARTPOLE = "CartPole-v1"

_NEVER = 10**9
_BARS, _EPISODE, _FEE = 20_000, 500, 0.001
_LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def trading_environment(columns: int) -> Any:  # noqa: ANN401 - a class of Gymnasium
    """Return a small market for a peer: random bars, five positions, a fee, 500 bars an episode.

    It costs a fraction of ours, so that the figures are those of the learner.

    Args:
        columns: of an observation; the last two are position and growth of equity.

    Raises:
        ImportError: if Gymnasium is not installed.
    """
    import gymnasium

    source = np.random.Generator(np.random.PCG64(0))
    features = source.standard_normal((_BARS, columns - 2)).astype(np.float32)
    returns = 0.01 * source.standard_normal(_BARS)

    class Trading(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (columns,), np.float32)
        action_space = gymnasium.spaces.Discrete(len(_LEVELS))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ANN401
            super().reset(seed=seed, options=options)
            self.bar = int(self.np_random.integers(0, _BARS - 2 * _EPISODE))
            self.left, self.position, self.equity = _EPISODE, 0.0, 1.0
            return self._seen(), {}

        def _seen(self) -> Any:  # noqa: ANN401
            seen = np.empty(columns, np.float32)
            seen[:-2] = features[self.bar]
            seen[-2:] = self.position, self.equity - 1.0
            return seen

        def step(self, action: Any) -> Any:  # noqa: ANN401
            target = _LEVELS[int(action)]
            self.bar, self.left = self.bar + 1, self.left - 1
            reward = target * float(returns[self.bar]) - _FEE * abs(target - self.position)
            self.equity, self.position = self.equity * (1.0 + reward), target
            return self._seen(), reward, self.equity < 0.5, self.left <= 0, {}

    return Trading


class Sb3:
    """RecurrentPPO of sb3-contrib on its usual vector of Gymnasium environments.

    Args:
        task: `CartPole-v1`, or anything else for `trading_environment`.
        columns: of an observation there.
        environments: side by side.
        steps: rows of a rollout.
        epochs: passes over it.
        minibatches: of one epoch.
        width: of the LSTM.
        head: width of the layer between memory and outputs, of actor and critic each.
        rate: of learning.
        shared: one LSTM for actor and critic, as ours, instead of one each.
        seed: of all.

    Raises:
        ImportError: if it is not installed.
    """

    def __init__(
        self,
        task: str,
        columns: int,
        *,
        environments: int,
        steps: int,
        epochs: int,
        minibatches: int,
        width: int,
        head: int,
        rate: float,
        shared: bool,
        seed: int,
    ) -> None:
        import gymnasium
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.vec_env import DummyVecEnv

        is_cartpole = task == CARTPOLE
        make = partial(gymnasium.make, task) if is_cartpole else trading_environment(columns)
        self.samples = environments * steps
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            DummyVecEnv([make] * environments),
            learning_rate=rate,
            n_steps=steps,
            batch_size=self.samples // minibatches,
            n_epochs=epochs,
            policy_kwargs={
                "lstm_hidden_size": width,
                "net_arch": {"pi": [head], "vf": [head]},
                "shared_lstm": shared,
                "enable_critic_lstm": not shared,
            },
            seed=seed,
            device="cpu",
        )

    def __call__(self, updates: int) -> None:
        """Do some updates; `learn` counts on from where it stood."""
        total = updates * self.samples
        self.model.learn(total, reset_num_timesteps=False, log_interval=_NEVER)


class Jax:
    """The program of `jax_learner`, on the device that JAX takes by default.

    Raises:
        ImportError: if JAX is not installed.
    """

    def __init__(self, shape: Shape, *, seed: int) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave us some memory
        self._update, self._state = build(shape, seed=seed)

    def __call__(self, updates: int) -> None:
        """Do some updates and wait for them."""
        import jax

        for _ in range(updates):
            self._state = self._update(self._state)
        jax.block_until_ready(self._state)
