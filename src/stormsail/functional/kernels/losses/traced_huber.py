"""Quantile Huber loss for a compiler on a CPU.

A compiler makes one loop over target atoms of all that is summed over them: the loss, its gradient,
and the share of pairs where it is linear. No pair is ever in memory, and the way back is one
multiplication.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional._numbers import Number, clamp


def huber_loss_and_active(
    predicted: Tensor, target: Tensor, tau: Tensor, kappa: Number, mass: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return `functional.quantile.huber_loss` and `huber_active` [*b], without their checks."""
    loss, active = _TracedHuber.apply(predicted, target, tau, kappa, mass)
    return loss, active


class _TracedHuber(torch.autograd.Function):
    """Loss and slope together."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        predicted: Tensor,
        target: Tensor,
        tau: Tensor,
        kappa: Number,
        mass: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        # A compiler makes vectors of what lies side by side: of targets, if it may, and sums within
        # these vectors cost more than the pairs. Read backwards they do not, but quantiles do.
        target = target.flip(-1)
        u = target.unsqueeze(-1) - predicted.unsqueeze(-2)  # [*b, M, N]
        share = 1.0 / target.shape[-1] if mass is None else mass.to(u.dtype).flip(-1).unsqueeze(-1)
        level, count = tau.to(u.dtype), predicted.shape[-1]
        weight = torch.where(u < 0, 1.0 - level, level) * share
        if isinstance(kappa, Tensor) or kappa > 0.0:
            inner = clamp(u, -kappa, kappa)
            size, unit = u - 0.5 * inner, 1.0 / kappa
        else:
            inner, size, unit = u.sign(), u, 1.0
        slope = (weight * inner).sum(-2) * unit / count
        loss = (weight * inner * size).sum(-2).mean(-1) * unit
        active = ((u.abs() > kappa).to(u.dtype) * share).sum(-2).mean(-1)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(active)
        return loss, active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (slope,) = ctx.saved_tensors
        return -grads[0].unsqueeze(-1) * slope, None, None, None, None
