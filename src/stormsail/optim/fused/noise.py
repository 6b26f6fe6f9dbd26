"""Gaussian noise for a compiled step, in one flat buffer.

On a CPU it comes from a counter: each number depends on its place alone, so any core may draw it.
torch draws on a CPU with one core, which takes twice the time of a whole Adam step. A compiled step
therefore draws as torch itself does on a GPU, with Philox4x32 of Salmon et al. 2011 ("Parallel
random numbers: as easy as 1, 2, 3") and the transform of Box & Muller 1958. Seven rounds, of which
no statistical flaw is known: torch's ten are a margin of safety at a third more time.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stormsail.core.machine_code.graph_compiler import TensorFunction, compile_graph
from stormsail.optim.upgd.buckets import Buffer, fill_normal_

ROUNDS = 7
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four words of 32 random bits, as int64, for a counter and a key of such words."""
    a, b, c, d = counter
    first, second = key
    for _ in range(ROUNDS):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]  # modulo 2^64
        a, b, c, d = (
            _high(right) ^ b ^ first,
            right & _WORD,
            _high(left) ^ d ^ second,
            left & _WORD,
        )
        first, second = (first + _KEY_STEPS[0]) & _WORD, (second + _KEY_STEPS[1]) & _WORD
    return a, b, c, d


def normal(key: Tensor, count: int, *, dtype: torch.dtype) -> Tensor:
    """Return [4, count] independent N(0, 1) draws, up to 6.7 standard deviations.

    Args:
        key: [4] words of 32 bits as int64: the key, and the upper half of the counter.
        count: below 2^32.
        dtype: of the draws, which have the resolution of 32 bits.
    """
    place = torch.arange(count, dtype=torch.int64, device=key.device)
    zero = torch.zeros_like(place)
    words = philox((place, zero, zero + key[2], zero + key[3]), (key[0], key[1]))
    rows = []
    for size, angle in (words[:2], words[2:]):
        # 1 to 2^32 over 2^32: the logarithm of 0 is none.
        radius = ((size + 1).to(dtype) * 2.0**-32).log().mul(-2.0).sqrt()
        turn = angle.to(dtype) * (2.0 * math.pi * 2.0**-32)
        rows += [radius * turn.cos(), radius * turn.sin()]
    return torch.stack(rows)


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & _WORD


class Noise:
    """N(0, 1) for each weight; `draw` begins, `ready` waits for it.

    On a CPU the numbers are those of `philox`, whose key the generator draws. On CUDA they are
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
        self._run: TensorFunction | None = None

    def draw(self, generator: torch.Generator) -> None:
        """Begin to draw."""
        if self._aside is not None:
            self._aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._aside):
                fill_normal_(self._flat, generator)
        elif generator.device.type == "cpu":
            key = torch.empty(4, dtype=torch.int64).random_(0, 2**32, generator=generator)
            if self._run is None:
                self._run = compile_graph(
                    _fill, [key, self._room], instead="leave `compiled=True` out"
                )
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
