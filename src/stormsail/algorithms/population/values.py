"""Values of the searched settings: the first ones of a member, and those that a copy tries.

Every draw comes from a stream that is named after its round and member, below the population's
seed. So a draw depends on nothing that happened before it, and a population that was killed needs
no state of its streams to go on.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.algorithms.population.config import PopulationConfig, SearchConfig, is_whole
from stormsail.algorithms.population.jobs import Value
from stormsail.core.generators import Generators
from stormsail.functional import population as rules

_DRAWS = 3
"""Of `functional.population.explored`: which way, the new value, the direction."""


def draws(config: PopulationConfig, stream: str, *shape: int) -> NDArray[np.float64]:
    """Return uniform draws from [0, 1) of a named stream, from its beginning."""
    return Generators(config.seed).numpy(stream).random(shape)


def first_values(config: PopulationConfig, member: int) -> dict[str, Value]:
    """Return the values that a member begins with, drawn over the whole range of each."""
    uniform = draws(config, f"first.member.{member}", len(config.search))
    return {
        path: _drawn(path, search, _tensor(u))
        for (path, search), u in zip(config.search.items(), uniform, strict=True)
    }


def stream_of(round_: int, member: int) -> str:
    """Return the name of the stream from which a copy's values are drawn."""
    return f"round.{round_}.member.{member}"


def explored_values(
    config: PopulationConfig, source: Mapping[str, Value], *, round_: int, member: int
) -> dict[str, Value]:
    """Return the values that a copy tries, from those of the member that it copies."""
    uniform = draws(config, stream_of(round_, member), len(config.search), _DRAWS)
    return {
        path: _explored(config, path, source[path], _tensor(u))
        for path, u in zip(config.search, uniform, strict=True)
    }


def _explored(config: PopulationConfig, path: str, value: Value, uniform: Tensor) -> Value:
    search, probability = config.search[path], config.resample_probability(path)
    if search.values is None:
        new = rules.explored(
            _tensor(value),
            uniform,
            resample_probability=probability,
            factor=search.perturbation_factor,
            low=search.low,
            high=search.high,
            is_log_scale=search.is_log_scale,
        )
        return _number(path, new)
    place = torch.tensor(search.values.index(value))
    count = len(search.values)
    index = rules.explored_choice(place, uniform, resample_probability=probability, count=count)
    return search.values[int(index)]


def _drawn(path: str, search: SearchConfig, uniform: Tensor) -> Value:
    if search.values is not None:
        return search.values[min(int(uniform * len(search.values)), len(search.values) - 1)]
    new = rules.resampled(
        uniform, low=search.low, high=search.high, is_log_scale=search.is_log_scale
    )
    return _number(path, new)


def _number(path: str, value: Tensor) -> Value:
    """Return a number as its setting takes it: rounded where that is a whole one."""
    return round(float(value)) if is_whole(path) else float(value)


def _tensor(value: object) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
