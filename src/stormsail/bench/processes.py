"""One torch thread: networks this small are slower with more, and sums over threads differ."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def use_one_thread() -> None:
    """Let torch use one thread from now on; for processes of their own."""
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
