"""Arithmetic with numbers that may be Python floats or device scalars."""

import torch
from torch import Tensor

Number = float | Tensor
"""A scalar: a Python number, or a 0-dim tensor that a captured graph can see changing."""


def clamp(x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Return `x.clamp(low, high)` for bounds of either kind; a NaN stays a NaN."""
    return torch.clamp(x, low, high)  # type: ignore[arg-type]  # the stubs know no mixed bounds


def scalar(value: Number, *, like: Tensor) -> Tensor:
    """Return a float64 scalar; a Python number goes to the device of `like` without waiting."""
    if isinstance(value, Tensor):
        return value.to(dtype=torch.float64)
    return torch.full((), value, dtype=torch.float64, device=like.device)
