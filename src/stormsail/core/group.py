"""Processes that train one agent together, and what they tell each other.

All hold the same learner. A process steps some of the environments and takes its share of every
minibatch; what each has found is brought together, and from there on all compute the same.
`torchrun` starts them and says to each which one it is.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from stormsail.core.errors import ConfigError
from stormsail.core.task import Columns

Value = TypeVar("Value")

PATIENCE = timedelta(days=1)
"""How long a process waits for the others: while the first one evaluates or writes, they wait."""


class Group:
    """One of several processes. Alone, everything is its own answer.

    Args:
        rank: number of this process, from 0; process 0 leads.
        size: number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def columns(self, batch: int) -> Columns:
        """Return which of so many environments or sequences belong to this process."""
        width = batch // self.size
        return Columns(self.rank * width, width, batch)

    def gather(self, values: Tensor, axis: int = 0) -> Tensor:
        """Return the tensors of all processes, one behind the other along an axis."""
        if self.size == 1:
            return values
        if values.numel() == 0:
            return torch.cat([values] * self.size, axis)
        sent = values.contiguous()
        raw = sent.view(torch.uint8) if sent.dtype == torch.bool else sent
        parts = [torch.empty_like(raw) for _ in range(self.size)]
        dist.all_gather(parts, raw)
        return torch.cat([part.view(values.dtype) for part in parts], axis)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type by their sums over all processes."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(
            list(tensors),
            [piece.view_as(own) for piece, own in zip(pieces, tensors, strict=True)],
        )

    def take_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if self.size == 1:
            return
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def tell(self, value: Value) -> Value:
        """Return the value of the first process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
        return box[0]


ALONE = Group()
"""Of a process that trains by itself."""


def started_together() -> bool:
    """Return whether `torchrun` started this process with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join() -> Group:
    """Meet the other processes that `torchrun` started; each takes a GPU of its own, if any.

    Raises:
        ConfigError: if a machine has some GPUs, but fewer than processes.
    """
    if not started_together():
        return ALONE
    gpus, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own = int(os.environ.get("LOCAL_RANK", "0"))
    if 0 < gpus < wanted:
        raise ConfigError(
            "config-value",
            wrong=f"`--nproc-per-node` must be at most the {gpus} GPUs of this machine",
            found=str(wanted),
            remedy="Start fewer processes, or hide the GPUs with `CUDA_VISIBLE_DEVICES=`.",
        )
    if gpus:
        torch.cuda.set_device(own)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
    return Group(dist.get_rank(), dist.get_world_size())


def leave(group: Group) -> None:
    """Part from the other processes."""
    if group.size > 1:
        dist.destroy_process_group()
