"""Quantile Huber loss for a CPU, one level at a time.

The plain formula makes several tensors of N times M numbers for every sample, which a CPU spends
its time moving. Here one level's differences fit into a core's cache, samples lie side by side so
that sums over atoms are sums of rows, the gradient is summed beside the loss, and the backward pass
is one multiplication.
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
        mass: Tensor | None,
    ) -> Tensor:
        """Return the loss, [*b]; keeps its slope."""
        dtype = torch.result_type(predicted, target)
        theta, y = (_samples_last(part.to(dtype)) for part in (predicted, target))
        pairs, slope = torch.zeros_like(y), torch.empty_like(theta)
        levels = tau.to(dtype)
        below = ((1.0 - levels) / levels).unbind()  # weight of u < 0 in units of that of u > 0
        pinball = not isinstance(kappa, Tensor) and kappa == 0.0
        for i, level in enumerate(levels.unbind()):
            u = y - theta[i]
            inner = u.sign() if pinball else clamp(u, -kappa, kappa)
            size = u if pinball else u.sub_(inner, alpha=0.5)  # times `inner`, over kappa
            pull = torch.prelu(inner, below[i]).mul_(level)
            slope[i] = _expected(pull, mass)
            pairs.addcmul_(pull, size)
        scale = 1.0 / predicted.shape[-1] / (1.0 if pinball else kappa)
        ctx.save_for_backward(slope.t().reshape(predicted.shape))
        ctx.scale = scale
        return _expected(pairs, mass).reshape(predicted.shape[:-1]) * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradient of the predictions."""
        (slope,) = ctx.saved_tensors
        return -(grads[0] * ctx.scale).unsqueeze(-1) * slope, None, None, None, None


def _expected(rows: Tensor, mass: Tensor | None) -> Tensor:
    """Return the mean over target atoms, by their mass: [M, samples] -> [samples]."""
    return rows.mean(0) if mass is None else mass.to(rows.dtype) @ rows


def _samples_last(x: Tensor) -> Tensor:
    """Return [*b, N] as [N, samples]."""
    return x.reshape(-1, x.shape[-1]).t().contiguous()
