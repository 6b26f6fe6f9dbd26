"""Observations of a Gymnasium environment that do not fit the space it declares."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, Space, Tuple


class ObservationUnfitError(ValueError):
    """An observation does not fit its space.

    Its only argument is its text: so it can be made again from what a worker process sends home.
    """


class FittingObservations(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Refuses an observation whose structure or shape is not that of the observation space.

    A vector environment copies observations into one array, where such an observation ends in an
    error about shapes that names neither the environment nor its space, or is broadcast in silence.
    Types of numbers are left to the environment: float64 where the space says float32 is common.
    """

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - of Gymnasium
        """Start an episode."""
        observation, info = self.env.reset(**options)
        self._check(observation, "reset")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Do one action."""
        result = self.env.step(action)
        self._check(result[0], "step")
        return result

    def _check(self, observation: Any, method: str) -> None:  # noqa: ANN401 - whatever it gives
        problem = misfit(self.env.observation_space, observation)
        if problem:
            raise ObservationUnfitError(f"`{method}` gave {problem}")


def misfit(space: Space[Any], observation: Any, name: str = "") -> str:  # noqa: ANN401 - nested
    """Return how an observation differs from its space in structure or shape; empty if it fits."""
    place = f"`{name}` with " if name else ""
    if isinstance(space, Dict):
        if not isinstance(observation, dict) or observation.keys() != space.spaces.keys():
            found = sorted(observation) if isinstance(observation, dict) else _kind(observation)
            return f"{place}{found} instead of the keys {sorted(space.spaces)}"
        parts = [(key, part, observation[key]) for key, part in space.spaces.items()]
    elif isinstance(space, Tuple):
        if not isinstance(observation, tuple) or len(observation) != len(space.spaces):
            return f"{place}{_kind(observation)} instead of a tuple of {len(space.spaces)}"
        parts = [(str(i), part, observation[i]) for i, part in enumerate(space.spaces)]
    else:
        return _unlike(space, observation, place)
    problems = (misfit(part, value, f"{name}.{key}".strip(".")) for key, part, value in parts)
    return next((problem for problem in problems if problem), "")


def _unlike(space: Space[Any], observation: Any, place: str) -> str:  # noqa: ANN401 - whatever
    wanted = () if isinstance(space, Discrete) else space.shape
    try:
        values = np.asarray(observation)
    except ValueError:  # rows of unequal length
        return f"{place}{_kind(observation)} of unequal rows instead of the shape {wanted}"
    if values.dtype.kind not in "biuf":
        return f"{place}{_kind(observation)} instead of numbers of the shape {wanted}"
    if values.shape != wanted:
        return f"{place}the shape {values.shape} instead of {wanted}"
    return ""


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"a value of the type {type(value).__name__}"
