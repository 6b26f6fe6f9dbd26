"""`GymnasiumTask`: any Gymnasium environment as a task, through its vector interface."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from torch import Tensor

from stormsail.core.errors import ConfigError
from stormsail.core.task import Actions, ContinuousActions, DiscreteActions, Step


class GymnasiumState(NamedTuple):
    """The part of the state that is known here; the environments keep their own."""

    over: Tensor
    """Whether the last step ended the episode, bool [B]."""


class GymnasiumInfo(NamedTuple):
    """Further results of a step."""

    sample_weight: Tensor
    """1, but 0 where the action was ignored because a new episode starts, [B]."""


class GymnasiumTask:
    """B copies of a Gymnasium environment, stepped one after the other.

    The environments keep their own state, which Gymnasium cannot save: a resumed run begins new
    episodes here, where every other task goes on bit for bit.

    Args:
        name: id in Gymnasium's registry, such as `CartPole-v1`.
        batch: number of environments.
        device: where the tensors live that come out.
        dtype: of observations and rewards.

    Raises:
        ConfigError: if the id is not known, or its spaces are not vectors of numbers and one
            choice or bounded numbers.
    """

    def __init__(
        self,
        name: str,
        *,
        batch: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.name, self.batch, self.dtype = name, batch, dtype
        self.device = torch.device(device)
        try:
            self._env: Any = gymnasium.make_vec(
                name,
                num_envs=batch,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
            )
        except gymnasium.error.Error as error:
            raise _unfit(name, f"Gymnasium's answer: {error}") from None
        self.actions = _actions(name, self._env.single_action_space)
        self.observation_size = _observation_size(name, self._env.single_observation_space)
        self.observation_names = tuple(f"observation_{i}" for i in range(self.observation_size))

    def reset(self, generator: torch.Generator) -> tuple[GymnasiumState, Tensor]:
        """Start every environment with a seed of its own from the generator."""
        seed = torch.randint(2**31, (), generator=generator, device=generator.device)
        observation, _ = self._env.reset(seed=int(seed))
        return GymnasiumState(self._flags(np.zeros(self.batch))), self._numbers(observation)

    def step(
        self, state: GymnasiumState, action: Tensor, generator: torch.Generator
    ) -> tuple[GymnasiumState, Step[GymnasiumInfo]]:
        """Do one action in each environment; the environments draw from their own seeds.

        Raises:
            ShapeError: if there is not one action for each environment.
            DtypeError: if the actions are of another type.
            RangeError: if an action is not on offer.
        """
        del generator
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        bad = self.actions.bad(action) & ~state.over
        if bad.any():
            raise self.actions.refusal(action, bad)
        given = self.actions.mend(action).cpu().numpy()
        observation, reward, terminated, truncated, _ = self._env.step(given)
        ended = self._flags(terminated)
        cut = self._flags(truncated) & ~ended
        weight = (~state.over).to(self.dtype)
        rewards = torch.where(state.over, 0.0, self._numbers(reward))
        step = Step(self._numbers(observation), rewards, ended, cut, GymnasiumInfo(weight))
        return GymnasiumState(ended | cut), step

    def close(self) -> None:
        """Let the environments go."""
        self._env.close()

    def _numbers(self, values: Any) -> Tensor:  # noqa: ANN401 - whatever the environment gives
        numbers = torch.as_tensor(np.array(values), dtype=self.dtype, device=self.device)
        return numbers.reshape(self.batch, -1).squeeze(-1) if numbers.ndim == 1 else numbers

    def _flags(self, values: Any) -> Tensor:  # noqa: ANN401 - whatever the environment gives
        return torch.as_tensor(np.array(values), dtype=torch.bool, device=self.device)


def _actions(name: str, space: Any) -> Actions:  # noqa: ANN401 - a space of any kind
    if isinstance(space, Discrete) and space.start == 0:
        return DiscreteActions(int(space.n))
    if isinstance(space, Box) and len(space.shape) == 1 and space.is_bounded("both"):
        low, high = space.low.astype(float), space.high.astype(float)
        return ContinuousActions(tuple(low.tolist()), tuple(high.tolist()))
    raise _unfit(name, f"the action space {space}")


def _observation_size(name: str, space: Any) -> int:  # noqa: ANN401 - a space of any kind
    if isinstance(space, Box) and len(space.shape) == 1:
        return int(space.shape[0])
    raise _unfit(name, f"the observation space {space}")


def _unfit(name: str, found: str) -> ConfigError:
    return ConfigError(
        "config-value",
        wrong=f"`task.name` must name a Gymnasium environment with a vector of numbers to see, and "
        f"one choice or bounded numbers to do, and `{name}` is none",
        found=found,
        remedy="Wrap it so that it has such spaces, and register the wrapped one.",
    )
