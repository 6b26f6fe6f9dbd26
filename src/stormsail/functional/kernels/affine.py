"""An affine map of a large table in one pass, for a CUDA device; torch makes one an operation."""

import torch
from torch import Tensor

from stormsail.functional._numbers import Number
from stormsail.functional.kernels.devices import may_launch

BLOCK, WARPS = 2048, 4
"""Numbers of a program, and warps that share them."""


def maps(x: Tensor, *numbers: Number) -> bool:
    """Return whether the kernel knows a table and numbers of the device; without gradients."""
    return (
        may_launch(x)
        and x.dtype in (torch.float32, torch.float64)
        and x.ndim > 0
        and x.is_contiguous()
        and not (torch.is_grad_enabled() and x.requires_grad)
        and all(
            isinstance(part, Tensor) and not part.ndim and part.device == x.device
            for part in numbers
        )
    )


def mapped(
    x: Tensor,
    *,
    factor: Number | None = None,
    added: Number | None = None,
    taken: Number | None = None,
    divisor: Number | None = None,
) -> Tensor:
    """Return (factor x + (added - taken)) / divisor, without what is None, for what `maps`."""
    from stormsail.functional.kernels import affine_triton as kernels

    result, given = torch.empty_like(x), (factor, added, taken, divisor)
    flags = dict(
        zip(("FACTOR", "ADDED", "TAKEN", "DIVISOR"), (p is not None for p in given), strict=True)
    )
    if x.numel():
        kernels.map_numbers[(-(-x.numel() // BLOCK),)](
            x, result, *(x if part is None else part for part in given), x.numel(),
            KIND=kernels.KINDS[x.dtype], BLOCK=BLOCK, num_warps=WARPS, **flags,
        )  # fmt: skip
    return result
