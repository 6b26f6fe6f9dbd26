"""Sums over the rows of a table, as gradients of biases are, and along them, for a CUDA device."""

import torch
from torch import Tensor

from stormsail.functional.kernels.devices import power_of_two

ROWS, UNITS, REPEAT, WARPS = 32, 128, 8, 4
"""Rows and columns of a block at most, blocks of a program, and warps that share one."""

LONG = 32
"""Blocks of a program that only adds up, in a table that has enough of them."""
LARGE = 1 << 27
"""Numbers of such a table."""
LONGEST = 4096
"""Columns of a table whose rows one program adds up at once."""


def blocks(
    rows: int, units: int, *, repeat: int = REPEAT
) -> tuple[tuple[int, int], dict[str, int]]:
    """Return grid and options of a kernel: narrow tables have more rows in a block."""
    width = min(power_of_two(units), UNITS)
    height = ROWS * UNITS // width
    options = {"ROWS": height, "UNITS": width, "REPEAT": repeat, "num_warps": WARPS}
    return (-(-rows // (height * repeat)), -(-units // width)), options


def slopes_and_sums(grad: Tensor, output: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient before a tanh, and its sum over rows in float32, [N].

    Args:
        grad: of a layer's output, [R, N]; there may be gaps between its rows.
        output: of the tanh, [R, N]; None without one, and the gradient is returned as it is.
    """
    from stormsail.functional.kernels.layers.dense_triton import slopes_and_sums as kernel

    rows, units = grad.shape
    if rows == 0:
        return grad, torch.zeros(units, device=grad.device)
    is_large = output is None and rows * units >= LARGE
    grid, options = blocks(rows, units, repeat=LONG if is_large else REPEAT)
    sums = torch.empty(grid[0], units, device=grad.device)
    slope = grad if output is None else torch.empty_like(output)
    kernel[grid](
        grad, slope if output is None else output, slope, sums, rows, units, grad.stride(0),
        TANH=output is not None, **options,
    )  # fmt: skip
    return slope, sums.sum(0)


def sum_rows(table: Tensor) -> Tensor:
    """Return the sum over rows of [R, N] in float32, [N]."""
    return slopes_and_sums(table, None)[1]


def weighted(table: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum along the last axis, [*b, N] -> [*b], in the dtype of the table.

    Where rows are short torch's own product and sum pass over three times as many bytes as there
    are, and the sum reaches a seventh of the memory's rate.

    Args:
        table: float32 or float64.
        weight: [N], rounded to that.
    """
    from stormsail.functional.kernels.layers.dense_triton import KINDS, weighted_rows

    flat = table.reshape(-1, table.shape[-1])
    rows, width = flat.shape
    result = torch.empty(rows, dtype=table.dtype, device=table.device)
    columns = power_of_two(width)
    height = max(ROWS * UNITS // columns, 1)
    if rows:
        weighted_rows[(-(-rows // height),)](
            flat.contiguous(), weight.to(table.dtype).contiguous(), result, rows, width,
            ROWS=height, COLUMNS=columns, KIND=KINDS[table.dtype], num_warps=WARPS,
        )  # fmt: skip
    return result.view(table.shape[:-1])
