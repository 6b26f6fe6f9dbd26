"""Working memory of a UPGD step: lists of tensors of one device and dtype, and flat buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Kind = tuple[torch.device, torch.dtype]
"""Parameters that one multi-tensor call can treat together: their device and dtype."""


@dataclass(frozen=True)
class Span:
    """The tensors of one parameter group inside a bucket, and where they lie in its buffers."""

    group: Mapping[str, Any]
    tensors: slice
    elements: slice


@dataclass(frozen=True)
class Buffer:
    """One flat tensor and a view of it for each parameter, shaped like it."""

    flat: Tensor
    views: list[Tensor]

    @staticmethod
    def over(flat: Tensor, shapes: Sequence[torch.Size]) -> "Buffer":
        """Return the buffer whose views lie one after another, in the order of the shapes."""
        parts = flat.split([shape.numel() for shape in shapes])
        return Buffer(flat, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)])


@dataclass
class Bucket:
    """Parameters of one kind that have a gradient now, their state, and room to work in.

    `direction`, `share` and `noise` hold nothing between two steps. State has the dtype
    `state_dtype` and is contiguous whatever the parameter is.
    """

    spans: list[Span]
    params: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Tensor]]
    direction: Buffer
    share: Buffer
    noise: Buffer
    step_scale: Tensor | None
    """One factor for each tensor."""
    lists: dict[str, list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.lists = {key: [state[key] for state in self.states] for key in self.states[0]}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the state."""
        return self.direction.flat.dtype

    @property
    def device(self) -> torch.device:
        """The device of everything in the bucket."""
        return self.direction.flat.device

    def scale_(self, buffer: Buffer, factors: Tensor, tensors: slice, elements: slice) -> None:
        """Multiply the views of some tensors by one factor each."""
        views = buffer.views[tensors]
        if self.device.type == "cpu":  # a loop in C++ either way: the cheapest one
            torch._foreach_mul_(views, list(factors.unbind()))
            return
        # Lists of scalars have no multi-tensor kernel: one launch for each tensor, against two.
        parts = [factor.expand(view.numel()) for factor, view in zip(factors, views, strict=True)]
        buffer.flat[elements].mul_(torch.cat(parts))


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precision, in which a moving average would stand still."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


class Workspace:
    """Buffers that are kept between steps on the CPU, where fresh memory costs page faults.

    Elsewhere torch's allocator keeps it already, and a captured graph must own what it uses.
    """

    def __init__(self) -> None:
        self._kept: dict[Kind, tuple[list[torch.Size], tuple[Buffer, Buffer, Buffer]]] = {}

    def buffers(self, kind: Kind, shapes: list[torch.Size]) -> tuple[Buffer, Buffer, Buffer]:
        """Return three buffers with views of these shapes; their contents are left over."""
        kept = self._kept.get(kind)
        if kept is not None and kept[0] == shapes:
            return kept[1]
        device, dtype = kind
        count = sum(shape.numel() for shape in shapes)
        flats = torch.empty(3, count, dtype=state_dtype(dtype), device=device).unbind()
        first, second, third = (Buffer.over(flat, shapes) for flat in flats)
        if device.type == "cpu":
            self._kept[kind] = (shapes, (first, second, third))
        return first, second, third


def fill_normal_(out: Tensor, generator: torch.Generator) -> None:
    """Fill a flat tensor with N(0, 1) draws of torch.

    Args:
        out: contiguous, one-dimensional.
        generator: advanced by the call; may live on another device than `out`.
    """
    if generator.device.type == out.device.type:
        out.normal_(generator=generator)
        return
    drawn = torch.empty_like(out, device=generator.device).normal_(generator=generator)
    out.copy_(drawn, non_blocking=True)
