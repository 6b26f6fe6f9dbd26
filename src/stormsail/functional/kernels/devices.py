"""Where Triton kernels can run."""

from functools import cache

import torch
from torch import Tensor


@cache
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def may_launch(*tensors: Tensor) -> bool:
    """Return whether kernels can be launched on these tensors.

    They are on a CUDA device, Triton is installed, and nothing is traced: a compiler makes kernels
    of its own from the plain formula.
    """
    return (
        all(tensor.is_cuda for tensor in tensors)
        and not torch.compiler.is_compiling()
        and _has_triton()
    )


def compute_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype of the products: that of autocast where it is on, else of the tensor."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is not less: what a block of Triton must be."""
    return 1 << max(count - 1, 0).bit_length()


def filled_up(table: Tensor, *, rows: int = 0, columns: int = 0) -> Tensor:
    """Return a table with as many rows and columns of zeros more; the same where it is none."""
    if not rows and not columns:
        return table
    return torch.nn.functional.pad(table, (0, columns, 0, rows) if table.ndim > 1 else (0, columns))
