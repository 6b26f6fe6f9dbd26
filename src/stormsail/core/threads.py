"""Number of threads that torch computes with, fixed for a while.

A sum over two threads adds other partial sums than one over a single thread, so its last bits
differ, and after some updates so do the weights. Who must get the same bits on every machine says
how many threads there are instead of leaving it to the environment.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stormsail.core.errors import ConfigError

_LIMIT, _DYNAMIC = "OMP_THREAD_LIMIT", "OMP_DYNAMIC"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with this many threads for a while; then with as many as before.

    Threads between operators (`torch.set_num_interop_threads`) stay as they are: nothing here uses
    them.

    Raises:
        ConfigError: if torch cannot have that many, or the environment lets it take fewer.
    """
    obstacle = _obstacle(count)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        if not obstacle and torch.get_num_threads() != count:
            obstacle = f"{torch.get_num_threads()}, all that torch can have here"
        if obstacle:
            raise ConfigError(
                "config-value",
                wrong=f"`threads` must be as many as torch gets, {count}: with another number the "
                "last bits of every sum differ",
                found=obstacle,
                remedy="Change the environment, or begin a run with `threads` 1.",
            )
        yield
    finally:
        torch.set_num_threads(before)


def _obstacle(count: int) -> str:
    """Return what in the environment lets OpenMP take fewer threads, or nothing.

    `torch.get_num_threads` does not tell: it returns the number that was set.
    """
    limit = os.environ.get(_LIMIT, "")
    if limit.strip().isdigit() and 0 < int(limit) < count:
        return f"`{_LIMIT}={limit}` in the environment"
    dynamic = os.environ.get(_DYNAMIC, "")
    if count > 1 and dynamic.strip().lower() in ("1", "true"):
        return f"`{_DYNAMIC}={dynamic}` in the environment, which lets it take fewer"
    return ""
