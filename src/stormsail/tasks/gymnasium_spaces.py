"""Spaces of Gymnasium as columns and choices: what is seen becomes numbers, what is chosen actions.

Columns follow `gymnasium.spaces.utils.flatten`: dictionaries by key, tuples by place, classes as
one-hots. Pixels alone are moved: they follow all other columns, channels first.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.errors import DataError, StormsailError
from stormsail.core.task import (
    Actions,
    ContinuousActions,
    DiscreteActions,
    ImagePart,
    MultiDiscreteActions,
    ObservationLayout,
)

MAX_COLUMNS = 65_536
"""Most columns of an observation, pixels included."""

LEAST_PIXELS = 8
"""Least height and width of an image; a smaller array is numbers."""

ROOT = "observation"
"""Name of what has no key."""

Array: TypeAlias = NDArray[Any]
Key: TypeAlias = str | int
Refuse: TypeAlias = Callable[[str], StormsailError]
"""Returns the error for a space that cannot be used."""


class _Leaf(NamedTuple):
    """A part of an observation: where it is, and how B of it become columns."""

    path: tuple[Key, ...]
    encode: Callable[[Array], Array]
    """[B, ...] to [B, columns]."""
    names: tuple[str, ...] = ()
    scaled: bool = True
    image: ImagePart | None = None


class ObservationColumns:
    """Observations of a space as [B, F].

    Args:
        space: of a single environment.
        refuse: makes the error for a space that has no columns.

    Raises:
        StormsailError: of `refuse`, if a part is of another kind, or there are too many columns.
    """

    def __init__(self, space: Space[Any], refuse: Refuse) -> None:
        leaves = list(_leaves(space, (), refuse))
        named = [leaf for leaf in leaves if leaf.image is None]
        self._leaves = [*named, *(leaf for leaf in leaves if leaf.image is not None)]
        names = _unique(name for leaf in named for name in leaf.names)
        scaled = [leaf.scaled for leaf in named for _ in leaf.names]
        self.layout = ObservationLayout(
            names=names,
            unscaled=tuple(n for n, kept in zip(names, scaled, strict=True) if not kept),
            images=tuple(leaf.image for leaf in leaves if leaf.image is not None),
        )
        if not 1 <= self.layout.size <= MAX_COLUMNS:
            raise refuse(
                f"{self.layout.size} observed columns, where 1 to {MAX_COLUMNS} are allowed"
            )

    def __call__(self, observation: Any, dtype: np.dtype[Any]) -> Array:  # noqa: ANN401 - nested
        """Return the observations of B environments, batched as Gymnasium does it, as [B, F]."""
        columns = []
        for leaf in self._leaves:
            part = observation
            for key in leaf.path:
                part = part[key]
            columns.append(leaf.encode(np.asarray(part)).astype(dtype))
        return np.concatenate(columns, 1)


@dataclass(frozen=True)
class ActionChoices:
    """Actions of a space, and how they are given to the environments."""

    actions: Actions
    shape: tuple[int, ...]
    dtype: Any
    start: Array
    """Least value of each choice; 0 for numbers."""

    def given(self, action: Tensor) -> Array:
        """Return actions as the vector environment takes them, [B, *shape]."""
        values = self.actions.mend(action).cpu().numpy()
        if isinstance(self.actions, ContinuousActions):
            values = np.clip(values, self.actions.low, self.actions.high)
        values = values.reshape(-1, *self.shape) + self.start
        return values.astype(self.dtype)

    @property
    def counts(self) -> tuple[int, ...]:
        """Classes of each choice; none where actions are numbers."""
        if isinstance(self.actions, DiscreteActions):
            return (self.actions.count,)
        return self.actions.counts if isinstance(self.actions, MultiDiscreteActions) else ()

    def mask(self, values: Any, rows: Array) -> Array:  # noqa: ANN401 - whatever the task gives
        """Return which classes are allowed in each environment, bool [B, D].

        Args:
            values: of `info["action_mask"]`: [B, D], or for each environment an array, or a tuple
                of one array for each choice.
            rows: environments whose mask is known; in the others everything is allowed.

        Raises:
            DataError: if a mask has not one entry for each class, or forbids every class of a
                choice.
        """
        width = sum(self.counts)
        mask = np.ones((len(rows), width), dtype=np.bool_)
        for row in np.flatnonzero(rows):
            entries = _entries(values[row])
            if entries.size != width or width == 0:
                raise _bad_mask(f"{entries.size} entries in environment {row}", width)
            mask[row] = entries != 0
        starts = np.cumsum((0, *self.counts[:-1]))
        possible = np.logical_or.reduceat(mask, starts, axis=1).all(1)
        if not possible.all():
            first = int(np.argmin(possible))
            shown = mask[first].tolist()
            raise _bad_mask(f"no allowed class in environment {first}, {shown}", width)
        return mask


def action_choices(space: Space[Any], refuse: Refuse) -> ActionChoices:
    """Return the actions of a space.

    Raises:
        StormsailError: of `refuse`, if it is of another kind, or its numbers have no bounds.
    """
    zero = np.zeros((), dtype=np.int64)
    if isinstance(space, Discrete):
        start = np.asarray(space.start, dtype=np.int64)
        return ActionChoices(DiscreteActions(int(space.n)), (), space.dtype, start)
    if isinstance(space, MultiDiscrete):
        counts = tuple(int(n) for n in space.nvec.flatten())
        start = np.asarray(space.start, dtype=np.int64)
        return ActionChoices(MultiDiscreteActions(counts), space.shape, space.dtype, start)
    if isinstance(space, MultiBinary):
        counts = (2,) * math.prod(space.shape)
        return ActionChoices(MultiDiscreteActions(counts), space.shape, space.dtype, zero)
    if not isinstance(space, Box):
        raise refuse(f"the action space {space}")
    if not np.issubdtype(space.dtype, np.floating):
        raise refuse(f"the action space {space} of whole numbers, which are a MultiDiscrete")
    if not space.is_bounded("both"):
        raise refuse(f"the action space {space} without finite bounds")
    low, high = (bound.astype(float).flatten().tolist() for bound in (space.low, space.high))
    actions = ContinuousActions(tuple(low), tuple(high))
    return ActionChoices(actions, space.shape, space.dtype, zero.astype(space.dtype))


def _leaves(space: Space[Any], path: tuple[Key, ...], refuse: Refuse) -> Iterator[_Leaf]:
    """Yield the parts of a space in the order of `gymnasium.spaces.utils.flatten`."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key), refuse)
    elif isinstance(space, Tuple):
        for place, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, place), refuse)
    elif isinstance(space, Box):
        yield _image(space, path) if _is_image(space) else _numbers(space.shape, path)
    elif isinstance(space, MultiBinary):
        yield _numbers(space.shape, path)._replace(scaled=False)
    elif isinstance(space, Discrete):
        yield _one_hots(np.asarray([space.n]), np.asarray([space.start]), path)
    elif isinstance(space, MultiDiscrete):
        yield _one_hots(space.nvec.flatten(), space.start.flatten(), path)
    else:
        raise refuse(f"the observation space {space}")


def _label(path: tuple[Key, ...]) -> str:
    """Return the name of a part: its keys, or that of the whole observation."""
    return ".".join(map(str, path)) if path and not isinstance(path[0], int) else _rooted(path)


def _rooted(path: tuple[Key, ...]) -> str:
    return ".".join((ROOT, *map(str, path)))


def _numbers(shape: tuple[int, ...], path: tuple[Key, ...]) -> _Leaf:
    size, label = math.prod(shape), _label(path)
    single = size == 1 and bool(path)
    names = (label,) if single else tuple(f"{label}_{i}" for i in range(size))
    return _Leaf(path, lambda x: x.reshape(len(x), -1), names)


def _one_hots(counts: Array, start: Array, path: tuple[Key, ...]) -> _Leaf:
    label = _label(path)
    labels = [label] if len(counts) == 1 else [f"{label}_{i}" for i in range(len(counts))]
    names = tuple(
        f"{name}={first + k}"
        for name, count, first in zip(labels, counts, start, strict=True)
        for k in range(count)
    )
    offsets = np.cumsum(counts) - counts

    def encode(x: Array) -> Array:
        classes = x.reshape(len(x), -1).astype(np.int64) - start
        if ((classes < 0) | (classes >= counts)).any():
            raise DataError(
                "data-defects",
                wrong=f"`{label}` must be one of its classes",
                found=f"{x.tolist()}",
                remedy="Correct the environment, or its observation space.",
            )
        hot = np.zeros((len(x), int(counts.sum())), dtype=np.int8)
        np.put_along_axis(hot, classes + offsets, 1, axis=1)
        return hot

    return _Leaf(path, encode, names, scaled=False)


def _channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] < shape[-1]


def _is_image(space: Box) -> bool:
    """Return whether a box is an image: bytes in two axes or three, or bounded numbers in three."""
    shape, pixels = space.shape, space.dtype == np.uint8
    if len(shape) not in (2, 3) or not (pixels or (len(shape) == 3 and space.is_bounded("both"))):
        return False
    sides = shape[1:] if _channels_first(shape) else shape[:2]
    return min(sides) >= LEAST_PIXELS


def _image(space: Box, path: tuple[Key, ...]) -> _Leaf:
    """Return an image with channels first, mapped from its bounds to [0, 1]."""
    shape, first = space.shape, _channels_first(space.shape)
    whole = shape if len(shape) == 3 else (*shape, 1)
    channels, height, width = whole if first else (whole[2], *whole[:2])
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    span = np.where(high > low, high - low, 1.0)

    def encode(x: Array) -> Array:
        unit = ((x - low) / span).reshape(len(x), *whole)
        ordered = unit if first else unit.transpose(0, 3, 1, 2)
        return ordered.reshape(len(x), -1)

    return _Leaf(path, encode, image=ImagePart(_label(path), channels, height, width))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, with their places where two keys would give the same one."""
    given = tuple(names)
    if len(set(given)) == len(given):
        return given
    return tuple(f"{name}#{place}" for place, name in enumerate(given))


def _entries(mask: Any) -> Array:  # noqa: ANN401 - an array, or a tuple of them
    """Return the entries of the mask of one environment in a row."""
    parts = mask if isinstance(mask, tuple | list) else (mask,)
    return np.concatenate([np.asarray(part).reshape(-1) for part in parts])


def _bad_mask(problem: str, width: int) -> DataError:
    return DataError(
        "data-defects",
        wrong=f'`info["action_mask"]` must have {width} entries, one for each class of a discrete '
        "action, and allow one or more of each choice in every state that is acted in",
        found=problem,
        remedy="Correct the mask in the environment, or leave it out.",
    )


def float_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the type of NumPy for a floating type of torch."""
    return np.dtype(np.float64 if dtype == torch.float64 else np.float32)
