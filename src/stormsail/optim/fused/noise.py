"""Gaussian noise for a compiled step, in one flat buffer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stormsail.optim.fused.compiler import Lists, compiled
from stormsail.optim.fused.philox import normal
from stormsail.optim.upgd.buckets import Buffer
from stormsail.optim.upgd.noise import fill_normal_


class Noise:
    """N(0, 1) for each weight; `draw` begins, `ready` waits for it.

    On a CPU the numbers are those of `_philox`, whose key the generator draws. On CUDA they are
    torch's own, drawn on a stream aside: what is prepared meanwhile leaves the device idle.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        shapes = [param.shape for param in params]
        self._count = sum(shape.numel() for shape in shapes)
        rows = -(-self._count // 4)
        self._room = torch.empty(4, rows, dtype=params[0].dtype, device=params[0].device)
        self._flat = self._room.view(-1)[: self._count]
        self._buffer = Buffer.over(self._flat, shapes)
        self._aside = torch.cuda.Stream(params[0].device) if params[0].is_cuda else None
        self._run: Lists | None = None

    def draw(self, generator: torch.Generator) -> None:
        """Begin to draw."""
        if self._aside is not None:
            self._aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._aside):
                fill_normal_(self._flat, generator)
        elif generator.device.type == "cpu":
            key = torch.empty(4, dtype=torch.int64).random_(0, 2**32, generator=generator)
            if self._run is None:
                self._run = compiled(_fill, [key, self._room])
            self._run(key, self._room)
        else:
            fill_normal_(self._flat, generator)

    def ready(self) -> Buffer:
        """Return what was drawn, until the next draw."""
        if self._aside is not None:
            torch.cuda.current_stream().wait_stream(self._aside)
        return self._buffer


def _fill(key: Tensor, room: Tensor) -> list[Tensor]:
    room.copy_(normal(key, room.shape[1], dtype=room.dtype))
    return []
