"""Numbers in the `info` of Gymnasium environments, as columns that are the same for a whole run."""

import numbers
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete, Space
from numpy.typing import NDArray

MASK = "action_mask"
"""Key of the mask of allowed actions, which is no metric."""

MAX_NAMES = 64
"""Most numbers that are reported; the first in the order of their names."""

PROBE_STEPS = 128
"""Most steps of the environment whose `info` is looked through for names."""

_WALL_CLOCK = "episode/t"
"""Of `RecordEpisodeStatistics`: it would make two equal runs differ."""

Infos: TypeAlias = Mapping[str, Any]


def numeric_names(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """Return the names of the numbers in the `info` of a single environment, sorted.

    One episode, or the first `PROBE_STEPS` steps of it, is played with random actions from a fixed
    seed. What an environment reports later for the first time is not reported: the columns of a
    run's metrics are fixed by its first update. The names within a dictionary follow its own behind
    a stroke: `episode/r`.
    """
    _, info = env.reset(seed=0)
    env.action_space.seed(0)
    names = set(_names(info))
    for _ in range(PROBE_STEPS):
        _, _, terminated, truncated, info = env.step(_allowed(env.action_space, info))
        names |= set(_names(info))
        if terminated or truncated:
            break
    return tuple(sorted(names - {_WALL_CLOCK})[:MAX_NAMES])


def measured(infos: Infos, names: tuple[str, ...], batch: int) -> NDArray[np.float64]:
    """Return the numbers of B environments, [B, K]; NaN where there is none.

    Args:
        infos: of a vector environment: an array under each key, and under `_key` whether it is
            there.
        names: from `numeric_names`.
        batch: B.
    """
    table = np.full((batch, len(names)), np.nan)
    for place, name in enumerate(names):
        part: Any = infos
        *folders, last = name.split("/")
        for folder in folders:
            part = part.get(folder, {}) if isinstance(part, Mapping) else {}
        if not isinstance(part, Mapping) or last not in part:
            continue
        there = part.get(f"_{last}", np.ones(batch, dtype=np.bool_))
        for row in np.flatnonzero(there):
            if _is_number(part[last][row]):
                table[row, place] = float(part[last][row])
    return table


def _names(info: Infos) -> Iterator[str]:
    for key, value in info.items():
        if not isinstance(key, str) or key == MASK or "/" in key:
            continue
        if isinstance(value, Mapping):
            yield from (f"{key}/{name}" for name in _names(value))
        elif _is_number(value):
            yield key


def _is_number(value: object) -> bool:
    """Return whether a value is one real number or flag, of Python or NumPy."""
    if isinstance(value, np.ndarray):
        return False
    return isinstance(value, numbers.Real | np.bool_)


def _allowed(space: Space[Any], info: Infos) -> Any:  # noqa: ANN401 - an action of any kind
    """Return a random action that the mask, if there is one, allows."""
    mask = info.get(MASK)
    if mask is None or not isinstance(space, Discrete | MultiDiscrete):
        return space.sample()
    if isinstance(space, Discrete):
        return space.sample(mask=np.asarray(mask, dtype=np.int8))
    entries = mask if isinstance(mask, tuple | list) else (mask,)
    flat = np.concatenate([np.asarray(part).reshape(-1) for part in entries]).astype(np.int8)
    parts = np.split(flat, np.cumsum(space.nvec.flatten())[:-1])
    return space.sample(mask=tuple(parts)) if space.nvec.ndim == 1 else space.sample()
