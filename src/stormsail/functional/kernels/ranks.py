"""Numbers of given ranks in short rows, for a CUDA device.

Torch sorts all numbers of a row with their places, and picks then: three passes over three times as
many bytes. Comparing all pairs of a row costs some five operations each and no byte.
"""

import torch
from torch import Tensor

from stormsail.functional.kernels.devices import power_of_two

LONGEST = 64
"""Numbers of a row at most: pairs grow with its square."""
NUMBERS, WARPS = 2048, 4
"""Of a program, and warps that share it."""


def ranked(table: Tensor, ranks: Tensor) -> Tensor:
    """Return the numbers of ranks [K] in rows [*b, N], from the smallest, [*b, K]; NaN with one."""
    from stormsail.functional.kernels.ranks_triton import ranked_rows

    width, count = table.shape[-1], len(ranks)
    flat = table.reshape(-1, width).contiguous()
    result = torch.empty(len(flat), count, dtype=table.dtype, device=table.device)
    columns = power_of_two(width)
    height = NUMBERS // columns
    if len(flat):
        ranked_rows[(-(-len(flat) // height),)](
            flat, ranks.contiguous(), result, len(flat), N=width, K=count,
            ROWS=height, COLUMNS=columns, num_warps=WARPS,
        )  # fmt: skip
    return result.view(*table.shape[:-1], count)
