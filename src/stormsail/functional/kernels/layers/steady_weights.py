"""What is made of weights once for many calls: joined and rounded, as autocast keeps its roundings.

A rollout runs the same weights row after row, and what they are joined to takes longer to make than
a narrow row takes.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")

_MADE: ContextVar[dict[Hashable, tuple[Sequence[Tensor], Any]] | None] = ContextVar(
    "made", default=None
)


@contextmanager
def steady_weights() -> Iterator[None]:
    """Say that within no weight changes."""
    token = _MADE.set({})
    try:
        yield
    finally:
        _MADE.reset(token)


def are_steady() -> bool:
    """Return whether what is made of weights is kept: in `steady_weights` without gradients."""
    return _MADE.get() is not None and not torch.is_grad_enabled()


def made_of(weights: Sequence[Tensor], part: Hashable, make: Callable[[], Made]) -> Made:
    """Return what is made of weights, from an earlier call where they are steady.

    Args:
        weights: all that is read.
        part: what is made of them, and how.
        make: makes it.
    """
    made = _MADE.get()
    if made is None or torch.is_grad_enabled():
        return make()
    key = (part, *map(id, weights))
    if key not in made:
        made[key] = (weights, make())  # who is kept has no other's address
    result: Made = made[key][1]
    return result
