"""Weighted moments of the columns of a long table, for a CUDA device.

In float64 torch's operations write a million rows eight times; here they are read twice.
"""

import torch
from torch import Tensor

from stormsail.functional.kernels.devices import may_launch, power_of_two

WIDEST = 256
"""Columns that one program adds up at once."""
NUMBERS, REPEAT, WARPS = 2048, 32, 4
"""Numbers of a block, blocks of a program at most, and warps that share it."""
PROGRAMS = 512
"""As many at least, where there are rows for them."""


def adds(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernel knows a table [n, N] and may run; without gradients."""
    return (
        may_launch(x, weight)
        and x.ndim == 2
        and {x.dtype, weight.dtype} <= {torch.float32, torch.float64}
        and 0 < x.shape[1] <= WIDEST
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
    )


def column_moments(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `statistics.moments` returns of a table [n, N] with a weight for each row."""
    width = x.shape[1]
    if x.stride(1) != 1:
        x = x.contiguous()
    weight = weight.contiguous()
    sums = _sums(x, weight, None)
    count = sums[width].clone()
    mean = sums[:width] / torch.where(count > 0.0, count, 1.0)
    return count, mean, _sums(x, weight, mean)[:width]


def _sums(x: Tensor, weight: Tensor, mean: Tensor | None) -> Tensor:
    from stormsail.functional.kernels.column_moments_triton import column_sums

    rows, width = x.shape
    columns = power_of_two(width)
    height = NUMBERS // columns
    repeat = min(max(rows // (height * PROGRAMS), 1), REPEAT)
    programs = -(-rows // (height * repeat))
    parts = torch.empty(programs, width + 1, dtype=torch.float64, device=x.device)
    if programs:
        column_sums[(programs,)](
            x, weight, x if mean is None else mean, parts, rows, x.stride(0),
            N=width, SQUARES=mean is not None, ROWS=height, COLUMNS=columns, REPEAT=repeat,
            num_warps=WARPS,
        )  # fmt: skip
    return parts.sum(0)
