"""Durations, and a row of a comparison."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Row:
    """One function beside its reference, both measured in this run."""

    name: str
    milliseconds: float
    reference_milliseconds: float
    largest_difference: float

    @property
    def ratio(self) -> float:
        """How many times faster than the reference."""
        return self.reference_milliseconds / self.milliseconds


def best_milliseconds(call: Callable[[], object], *, repeats: int) -> float:
    """Return the shortest duration of a call, after one that is not counted.

    The shortest, because whatever else runs on a machine can only lengthen a call.
    """
    call()
    durations = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - started)
    return 1e3 * min(durations)


@dataclass(frozen=True)
class Spent:
    """Time of a call, by the clock and of all its threads together."""

    seconds: float
    processor_seconds: float


def spent(call: Callable[[], object]) -> Spent:
    """Run once on the CPU; return what it took."""
    began, began_processor = time.perf_counter(), time.process_time()
    call()
    processor = time.process_time() - began_processor
    return Spent(time.perf_counter() - began, processor)


def least(times: Iterable[Spent]) -> Spent:
    """Return the shortest of each of the two."""
    each = list(times)
    return Spent(min(turn.seconds for turn in each), min(turn.processor_seconds for turn in each))
