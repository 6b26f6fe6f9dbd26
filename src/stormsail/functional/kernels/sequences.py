"""Some of the sequences that stand side by side in a table, for a CUDA device.

Torch's own goes number by number and computes the place of each: a third of the memory's rate.
"""

import torch
from torch import Tensor

from stormsail.functional.kernels.devices import may_launch, power_of_two

NUMBERS, WIDE, WARPS = 2048, 512, 4
"""Numbers of a program, columns of one at most, and warps that share it."""


def chosen_sequences(table: Tensor, chosen: Tensor, axis: int) -> Tensor:
    """Return `table.index_select(axis, chosen)`.

    Args:
        table: [N, ...] or [T, N, ...].
        chosen: places along the axis, int64 [n].
        axis: 0 or 1.
    """
    if may_launch(table, chosen) and table.numel() and not table.requires_grad:
        return _copied(table.contiguous(), chosen.contiguous(), axis)
    return table.index_select(axis, chosen)


def _copied(table: Tensor, chosen: Tensor, axis: int) -> Tensor:
    from stormsail.functional.kernels.sequences_triton import copy_sequences

    before, size, behind = table.shape[:axis], table.shape[axis], table.shape[axis + 1 :]
    count, width = len(chosen), behind.numel()
    result = table.new_empty(*before, count, *behind)
    rows = before.numel() * count
    columns = min(power_of_two(width), WIDE)
    height = NUMBERS // columns
    if rows:
        source, target = (
            part.view(torch.uint8) if part.dtype == torch.bool else part for part in (table, result)
        )
        copy_sequences[(-(-rows // height), -(-width // columns))](
            source, chosen, target, rows, count, size, WIDTH=width,
            ROWS=height, COLUMNS=columns, num_warps=WARPS,
        )  # fmt: skip
    return result
