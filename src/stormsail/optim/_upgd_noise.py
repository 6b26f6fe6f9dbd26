"""Gaussian noise for many weights at once, the same for any number of processor cores."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

_COLUMNS = 1 << 11
_ROWS = 1 << 7
_BLOCK = _ROWS * _COLUMNS
"""Numbers worked on together: small enough for a core's cache, large enough to be shared."""

_HASHED = 1 << 16
"""Length from which the CPU hashes; below, torch's own draw takes less than a millisecond."""

_INTO_OPEN_INTERVAL = 2.0**-31 * (1.0 - 2.0**-24)
"""Brings a whole number of 32 bits into (-1, 1): without the last bit, ±1 would give infinity."""

# Finaliser of MurmurHash3 (Appleby, public domain): shift and multiplier of each round, as int32.
# Its last shift would touch the lower half of a word only, which a Gaussian does not show.
_ROUNDS = ((16, -2048144789), (13, -1028477387))


def fill_normal_(out: Tensor, generator: torch.Generator) -> None:
    r"""Fill a flat tensor with N(0, 1) draws.

    Mostly this is `out.normal_`. For long float32 tensors on the CPU, where torch draws with one
    core and takes twice the time of a whole Adam step, the numbers are

    .. math::
        z_{ij} = \sqrt 2\, erf^{-1}\big(2^{-31}\, h(a_i + b_j)\big)

    with random 32-bit words a and b from the generator, a few thousand for millions of numbers,
    sums modulo 2^32, and a one-to-one hash h. Ours. Every sum is uniform and any two of them are
    independent, which h keeps: so each number is Gaussian (to 2^-24 of probability, up to 5.4
    standard deviations) and any two are independent, whatever the hash. The hash is there for four
    at the corners of a rectangle, whose sums would cancel. The numbers depend on the generator and
    the length, never on the number of threads.

    Args:
        out: contiguous, one-dimensional.
        generator: advanced by the call; may live on another device than `out`.
    """
    if generator.device.type != out.device.type:
        drawn = torch.empty_like(out, device=generator.device)
        fill_normal_(drawn, generator)
        out.copy_(drawn, non_blocking=True)
    elif _is_hashed(out, generator):
        for part, drawn in zip(out.split(_BLOCK), _blocks(out.numel(), generator), strict=True):
            part.copy_(drawn)
    else:
        out.normal_(generator=generator)


def add_normal_(out: Tensor, sigma: float, generator: torch.Generator, *, room: Tensor) -> None:
    """Add sigma times what `fill_normal_` draws, without a trip of long noise through memory.

    Args:
        out: contiguous, one-dimensional.
        sigma: factor of every draw.
        generator: advanced by the call.
        room: like `out`, to be overwritten where the noise has to be laid down.
    """
    if _is_hashed(out, generator):
        for part, drawn in zip(out.split(_BLOCK), _blocks(out.numel(), generator), strict=True):
            part.add_(drawn, alpha=sigma)
    else:
        fill_normal_(room, generator)
        out.add_(room, alpha=sigma)


def _is_hashed(out: Tensor, generator: torch.Generator) -> bool:
    on_cpu = out.device.type == generator.device.type == "cpu"
    return on_cpu and out.dtype == torch.float32 and out.numel() >= _HASHED


def _blocks(count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield `count` draws in blocks, each in the memory of the one before."""
    rows = math.ceil(count / _COLUMNS)
    words = torch.empty(rows + _COLUMNS, dtype=torch.int64).random_(
        -(2**31), 2**31, generator=generator
    )
    down, across = words.to(torch.int32).split([rows, _COLUMNS])
    room = torch.empty(2, _ROWS, _COLUMNS, dtype=torch.int32)
    values = torch.empty(_BLOCK, dtype=torch.float32)
    for start, part in zip(range(0, count, _BLOCK), down.split(_ROWS), strict=True):
        bits, spare = room[:, : len(part)].unbind()
        torch.add(part.unsqueeze(1), across, out=bits)  # [rows, columns], modulo 2^32
        for shift, multiplier in _ROUNDS:
            torch.bitwise_right_shift(bits, shift, out=spare)
            spare.bitwise_and_((1 << (32 - shift)) - 1)  # torch shifts copies of the sign in
            bits.bitwise_xor_(spare).mul_(multiplier)
        drawn = values[: min(_BLOCK, count - start)]
        drawn.copy_(bits.view(-1)[: drawn.numel()])
        yield drawn.mul_(_INTO_OPEN_INTERVAL).erfinv_().mul_(math.sqrt(2.0))
