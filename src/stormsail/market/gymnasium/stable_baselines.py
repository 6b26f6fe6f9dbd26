"""The vector environment as Stable-Baselines3 takes it: a `VecEnv` that resets by itself."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from stormsail.market.gymnasium.bridge import Observation
from stormsail.market.gymnasium.vector import MarketVectorEnv

_LAST = "terminal_observation"


class StableBaselinesEnv(VecEnv):
    """Many accounts, stepped together, for the learners of Stable-Baselines3.

    Where an episode ends, the observation is the first of the next one, and `info` has the last one
    as `terminal_observation` and whether a limit of time cut it as `TimeLimit.truncated`, which
    decides whether the learner looks beyond it. At an end, `info` has everything that the vector
    environment reports, and `episode` with return and length as SB3's `Monitor` would; elsewhere it
    is empty, because a dictionary for each account in each step would cost more than the step.

    Args:
        num_envs: number of accounts. All other arguments are those of `MarketEnv`.
    """

    def __init__(self, num_envs: int, **options: Any) -> None:  # noqa: ANN401
        self.market = MarketVectorEnv(num_envs, **options)
        super().__init__(
            num_envs, self.market.single_observation_space, self.market.single_action_space
        )
        self._actions: NDArray[Any] = self.market.action_space.sample()
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)

    def reset(self) -> Observation:
        """Start an episode in each environment, with the seed and options given before."""
        observation, _ = self.market.reset(seed=self._seeds[0], options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        self._return[:], self._length[:] = 0.0, 0
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[Observation, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Do the actions."""
        observation, reward, terminated, truncated, info = self.market.step(self._actions)
        self._return += reward
        self._length += 1
        ended = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if ended.any():
            fresh = self.market.restart()
            for index in np.flatnonzero(ended).tolist():
                infos[index] = {name: info[name][index] for name in info if _has(info, name, index)}
                infos[index][_LAST] = observation[index].copy()
                infos[index]["TimeLimit.truncated"] = bool(truncated[index])
                infos[index]["episode"] = {
                    "r": float(self._return[index]),
                    "l": int(self._length[index]),
                }
            observation[ended] = fresh[ended]
            self._return[ended], self._length[ended] = 0.0, 0
        return observation, reward.astype(np.float32), ended, infos

    def close(self) -> None:
        """Close the environments."""
        self.market.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ANN401
        """Return an attribute of the vector environment, once for each account."""
        return [getattr(self.market, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: object, indices: object = None) -> None:
        """Set an attribute of the vector environment, which all accounts share."""
        del indices
        setattr(self.market, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,  # noqa: ANN401
        indices: Any = None,  # noqa: ANN401
        **method_kwargs: Any,  # noqa: ANN401
    ) -> list[Any]:
        """Call a method of the vector environment once; return its result for each account."""
        result = getattr(self.market, method_name)(*method_args, **method_kwargs)
        return [result] * len(list(self._get_indices(indices)))

    def env_is_wrapped(
        self,
        wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]],
        indices: Any = None,  # noqa: ANN401
    ) -> list[bool]:
        """Return that no account is wrapped, except in what does the work of SB3's `Monitor`."""
        known = wrapper_class.__name__ == "Monitor"
        return [known] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return a picture of each account."""
        pictures: Any = self.market.render()
        return list(pictures)


def _has(info: dict[str, Any], name: str, index: int) -> bool:
    return not name.startswith("_") and name != _LAST and bool(info[f"_{name}"][index])
