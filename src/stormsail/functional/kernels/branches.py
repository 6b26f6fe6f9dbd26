"""Work on parts of a table as branches of a CUDA graph, which a device runs side by side.

Only while a graph is recorded: a plain run would gain nothing over its launches. Every stream that
is recorded on has one more stream of its own, since the workspace of matrix products belongs to a
stream, and graphs of several threads run at a time.
"""

from collections.abc import Callable

import torch

STREAMS = 32
"""Streams of one priority that torch hands out."""
BESIDE = -3
"""Priority of the second streams; graphs are recorded on streams of others below 0."""

_SECOND: dict[int, torch.cuda.Stream] = {}
"""The second stream of each that was recorded on, by handle."""


def splits(batch: int, columns: int, *, least: int) -> bool:
    """Return whether a table [batch, columns] is worked on in two branches: large, and recorded."""
    if batch * columns < least or not torch.cuda.is_available():
        return False
    here = torch.cuda.current_stream()
    return here.priority < 0 and (here.cuda_stream in _SECOND or len(_SECOND) < STREAMS)


def side_by_side(first: Callable[[], None], second: Callable[[], None]) -> None:
    """Run two functions that write nothing that the other one reads."""
    here = torch.cuda.current_stream()
    beside = _SECOND.setdefault(here.cuda_stream, torch.cuda.Stream(priority=BESIDE))
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        second()
    first()
    here.wait_stream(beside)
