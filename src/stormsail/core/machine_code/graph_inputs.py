"""What recorded functions are given: nests of tables, tuples, data classes and tensors.

A graph reads tensors that stay in place. What a later call gives is copied there, unless it is
there already, as the results of other graphs are; then to find that out is all there is to do.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor


class Places:
    """The tensors that a recorded function reads.

    Args:
        placed: what it was recorded with.
    """

    def __init__(self, placed: object) -> None:
        self._tensors: list[Tensor] = []
        self.form = form_of(placed, self._tensors)
        self._seen: list[object] = []
        """What was given last, taken apart; None where a tensor had to be copied."""
        self._copied: dict[int, Tensor] = {}
        """Where those tensors belong."""

    def move(self, given: object, tensors: list[Tensor]) -> None:
        """Copy what was given, whose tensors these are, to its places."""
        move_into(self._tensors, tensors)
        self._seen, self._copied = [], {}
        _take_apart(given, self._seen)
        places = iter(self._tensors)
        for number, part in enumerate(self._seen):
            if isinstance(part, Tensor) and not _is_at(place := next(places), part):
                self._copied[number] = place
                self._seen[number] = None

    def moves_at_once(self, given: object) -> bool:
        """Copy what was given, if it is what was given before but for the tensors to copy.

        A tensor that was in place once is taken to be there whenever it is given again. To compare
        objects takes a fraction of the time of describing them.
        """
        parts: list[Any] = []
        _take_apart(given, parts)
        if len(parts) != len(self._seen):
            return False
        places, values = list(self._copied.values()), []
        for number, place in self._copied.items():
            value = parts[number]
            if not isinstance(value, Tensor) or _kind(value) != _kind(place):
                return False
            values.append(value)
            parts[number] = None
        if not all(map(is_, parts, self._seen)):
            return False
        move_into(places, values)
        return True


def form_of(value: Any, tensors: list[Tensor]) -> Hashable:  # noqa: ANN401 - a nest
    """Return what a nest is apart from the numbers in its tensors, which are added to a list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _kind(value)
    if isinstance(value, float):
        raise TypeError("a number that may change between calls must be a tensor")
    if isinstance(value, dict):
        return tuple((name, form_of(part, tensors)) for name, part in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in fields(value))
        return (type(value), *(form_of(part, tensors) for part in parts))
    if isinstance(value, tuple | list):
        return (type(value), *(form_of(part, tensors) for part in value))
    return value  # type: ignore[no-any-return]


def set_apart(value: Any, taken: set[int]) -> Any:  # noqa: ANN401 - a nest
    """Return a nest in which no two tensors share memory: what is one today may be two tomorrow."""
    if isinstance(value, Tensor):
        if value.numel() and value.data_ptr() in taken:
            value = value.clone()
        taken.add(value.data_ptr())
        return value
    if isinstance(value, dict):
        return {name: set_apart(part, taken) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: set_apart(getattr(value, name), taken) for name in names})
    if isinstance(value, tuple | list):
        parts = [set_apart(part, taken) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def move_into(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors to places of the same shapes and types, but those that are there already."""
    moved = [
        (place, value)
        for place, value in zip(places, values, strict=True)
        if not _is_at(place, value)
    ]
    for kind in dict.fromkeys(place.dtype for place, _ in moved):  # few kernels
        own = [pair for pair in moved if pair[0].dtype == kind]
        torch._foreach_copy_([place for place, _ in own], [value for _, value in own])


@cache
def _parts_of(kind: type) -> Callable[[Any], Sequence[Any]] | None:
    """Return what takes values of a type apart; None for what has no parts."""
    if issubclass(kind, dict):
        return lambda value: tuple(chain.from_iterable(value.items()))
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda value: [getattr(value, name) for name in names]
    return (lambda value: value) if issubclass(kind, tuple | list) else None


def _take_apart(value: Any, parts: list[Any]) -> None:  # noqa: ANN401 - a nest
    """Add all parts of a nest to a list, in the order of `form_of`, with the types and sizes."""
    kind: Any = type(value)
    parts_of = None if kind is Tensor else _parts_of(kind)
    if parts_of is None:
        parts.append(value)
        return
    within = parts_of(value)
    parts += (kind, len(within))
    for part in within:
        if type(part) is Tensor:
            parts.append(part)
        else:
            _take_apart(part, parts)


def _is_at(place: Tensor, value: Tensor) -> bool:
    return place.data_ptr() == value.data_ptr() and place.stride() == value.stride()


def _kind(value: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return value.shape, value.dtype, value.device
