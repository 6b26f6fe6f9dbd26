"""Quantile Huber loss for a CPU, one level at a time.

The plain formula makes several tensors of N times M numbers for every sample, which a CPU spends
its time moving. Here one level's differences fit into a core's cache, the gradient is summed beside
the loss, and the backward pass is one multiplication.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional._numbers import Number, clamp


class QuantileHuber(torch.autograd.Function):
    """`functional.quantile.huber_loss` without its checks."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        predicted: Tensor,
        target: Tensor,
        tau: Tensor,
        kappa: Number,
    ) -> Tensor:
        """Return the loss, [*b]; keeps its slope."""
        loss = predicted.new_zeros(predicted.shape[:-1])
        slope = torch.empty_like(predicted)
        pinball = not isinstance(kappa, Tensor) and kappa == 0.0
        for i, level in enumerate(tau.unbind()):
            u = target - predicted[..., i : i + 1]
            weight = torch.where(u < 0, 1.0 - level, level)
            inner = u.sign() if pinball else clamp(u, -kappa, kappa)
            size = u if pinball else u.sub_(inner, alpha=0.5)  # times `inner`, over kappa
            pull = weight.mul_(inner)
            slope[..., i] = pull.mean(-1)
            loss += pull.mul_(size).mean(-1)
        scale = 1.0 / predicted.shape[-1] / (1.0 if pinball else kappa)
        ctx.save_for_backward(slope)
        ctx.scale = scale
        return loss * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradient of the predictions."""
        (slope,) = ctx.saved_tensors
        return -(grads[0] * ctx.scale).unsqueeze(-1) * slope, None, None, None
