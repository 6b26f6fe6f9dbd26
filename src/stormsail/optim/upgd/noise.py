"""Gaussian noise for many weights at once."""

import torch
from torch import Tensor


def fill_normal_(out: Tensor, generator: torch.Generator) -> None:
    """Fill a flat tensor with N(0, 1) draws of torch.

    Args:
        out: contiguous, one-dimensional.
        generator: advanced by the call; may live on another device than `out`.
    """
    if generator.device.type == out.device.type:
        out.normal_(generator=generator)
        return
    drawn = torch.empty_like(out, device=generator.device).normal_(generator=generator)
    out.copy_(drawn, non_blocking=True)
