"""Processes that train together, played by threads: the same exchanges without the start of any."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from stormsail.core.group import Group

Result = TypeVar("Result")


class Beside(Group):
    """One of several threads that answer each other as processes would."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(slots))
        self._slots, self._barrier = slots, barrier

    def _exchange(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(20)
        every = list(self._slots)
        self._barrier.wait(20)
        return every

    def gather(self, values: Tensor, axis: int = 0) -> Tensor:
        return torch.cat(self._exchange(values), axis)

    def add(self, tensors: Sequence[Tensor]) -> None:
        every = self._exchange([tensor.clone() for tensor in tensors])
        for place, tensor in enumerate(tensors):
            tensor.copy_(sum(part[place] for part in every))

    def take_first(self, tensors: Sequence[Tensor]) -> None:
        first = self._exchange([tensor.clone() for tensor in tensors])[0]
        for own, value in zip(tensors, first, strict=True):
            own.copy_(value)

    def tell(self, value: Any) -> Any:
        return self._exchange(value)[0]


def beside(size: int, call: Callable[[Group], Result]) -> list[Result]:
    """Return what a function gives in each of several threads, with the group of each."""
    slots, barrier = [None] * size, threading.Barrier(size)

    def carry_out(rank: int) -> Result:
        try:
            return call(Beside(rank, slots, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(carry_out, range(size)))
