"""Lower quantiles of weighted atoms, for a CUDA device: no row is sorted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stormsail.functional.kernels.devices import power_of_two

NUMBERS, WARPS = 1024, 4
"""Atoms of a program, and the warps that share them."""

LONGEST = 128
"""Atoms of a row at most: each is compared with every other one."""


def lower_quantiles(table: Tensor, weight: Tensor, levels: Sequence[float]) -> Tensor:
    """Return of each row [*b, N] the smallest atom up to which the mass reaches a level, [*b, K].

    The largest atom where none does, NaN in a row that holds one.

    Args:
        table: float32 or float64, N up to `LONGEST`.
        weight: mass of each atom, [N].
        levels: at least one.
    """
    from stormsail.functional.kernels.losses.lower_quantiles_triton import lower_quantiles as kernel

    flat = table.reshape(-1, table.shape[-1]).contiguous()
    rows, width = flat.shape
    result = torch.empty(rows, len(levels), dtype=table.dtype, device=table.device)
    columns = power_of_two(width)
    height = max(NUMBERS // columns, 1)
    if rows:
        kernel[(-(-rows // height),)](
            flat, weight.double().contiguous(), result, rows, width,
            LEVELS=tuple(levels), COUNT=len(levels), ROWS=height, COLUMNS=columns, num_warps=WARPS,
        )  # fmt: skip
    return result.view(*table.shape[:-1], len(levels))
