"""An affine map of a table with numbers of the device, as a Triton kernel."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import torch
import triton
import triton.language as tl

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `KIND`, the dtype of the arithmetic, may be."""


@triton.jit
def map_numbers(
    x, result, factor, added, taken, divisor, count,
    FACTOR: tl.constexpr, ADDED: tl.constexpr, TAKEN: tl.constexpr, DIVISOR: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write (factor x + (added - taken)) / divisor, without the parts that are not there.

    What is added and taken may be far larger than x, so their difference comes first.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < count
    y = tl.load(x + place, mask=here, other=0.0)
    if FACTOR:
        y = y * tl.load(factor).to(KIND)
    if ADDED and TAKEN:
        y = y + (tl.load(added) - tl.load(taken)).to(KIND)
    elif ADDED:
        y = y + tl.load(added).to(KIND)
    elif TAKEN:
        y = y - tl.load(taken).to(KIND)
    if DIVISOR:
        y = y / tl.load(divisor).to(KIND)
    tl.store(result + place, y, mask=here)
