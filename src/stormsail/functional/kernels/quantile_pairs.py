"""Quantile Huber loss for a CUDA device: loss and slope in one pass that keeps no pair in memory.

A pair costs about nine operations and no byte, so all N M pairs of a sample take less time in
registers than sorting its atoms would.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional._numbers import Number, scalar
from stormsail.functional.kernels.devices import power_of_two

ELEMENTS = 1024
"""Predictions of one program."""
WARPS = 4


def huber_loss_and_active(
    predicted: Tensor, target: Tensor, tau: Tensor, kappa: Number, mass: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return `functional.quantile.huber_loss` and `huber_active` [*b], without their checks.

    One row of target atoms may serve several predictions: expand it over the last dimension of the
    batch, and it is read where it is.
    """
    counts = True
    loss, active = _QuantileHuber.apply(predicted, target, tau, kappa, mass, counts)
    return loss, active


def huber_loss(
    predicted: Tensor, target: Tensor, tau: Tensor, kappa: Number, mass: Tensor | None
) -> Tensor:
    """Return `functional.quantile.huber_loss` [*b], without its checks."""
    counts = False
    loss: Tensor = _QuantileHuber.apply(predicted, target, tau, kappa, mass, counts)[0]
    return loss


def huber_active(predicted: Tensor, target: Tensor, kappa: Number, mass: Tensor | None) -> Tensor:
    """Return `functional.quantile.huber_active` [*b], without its checks."""
    levels = torch.zeros(predicted.shape[-1], device=predicted.device)
    _, _, active = _launch(predicted, target, levels, kappa, mass, wants=(False, True))
    return active


class _QuantileHuber(torch.autograd.Function):
    """Loss and slope together."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        predicted: Tensor,
        target: Tensor,
        tau: Tensor,
        kappa: Number,
        mass: Tensor | None,
        counts: bool,  # noqa: FBT001 - apply takes no names
    ) -> tuple[Tensor, Tensor]:
        loss, slope, active = _launch(predicted, target, tau, kappa, mass, wants=(True, counts))
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(active)
        return loss, active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (slope,) = ctx.saved_tensors
        return grads[0].unsqueeze(-1) * slope, None, None, None, None, None


def _launch(
    predicted: Tensor,
    target: Tensor,
    tau: Tensor,
    kappa: Number,
    mass: Tensor | None,
    *,
    wants: tuple[bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, its slope and the share of linear pairs; what is not wanted is empty."""
    from stormsail.functional.kernels import quantile_triton as kernels

    theta, (atoms, shared) = predicted.contiguous(), _rows_of(target)
    levels, samples = theta.shape[-1], theta[..., 0].numel()
    width = power_of_two(levels)
    block = max(ELEMENTS // width, 1)
    double = torch.float64 in (theta.dtype, atoms.dtype)
    dtype = torch.float64 if double else torch.float32
    wants_slope, wants_count = wants
    loss = torch.empty(theta.shape[:-1], dtype=dtype, device=theta.device)
    slope = torch.empty_like(theta if wants_slope else theta[:0])
    active = torch.empty_like(loss if wants_count else loss[:0])
    pinball = not isinstance(kappa, Tensor) and kappa == 0.0
    threshold = scalar(kappa, like=theta)
    weights = threshold if mass is None else mass.contiguous()
    if samples:
        kernels.quantile_huber[(-(-samples // block),)](
            theta, atoms, tau.contiguous(), threshold, weights, loss, slope, active,
            samples, shared, N=levels, M=target.shape[-1],
            PINBALL=pinball, MASSES=mass is not None, SLOPE=wants_slope, COUNT=wants_count,
            KIND=kernels.KINDS[dtype],
            BLOCK=block, LEVELS=width, num_warps=WARPS,
        )  # fmt: skip
    return loss, slope, active


def _rows_of(target: Tensor) -> tuple[Tensor, int]:
    """Return the rows of atoms that are there, and how many neighbours share each."""
    if target.ndim > 1 and target.stride(-2) == 0 and target.shape[-2] > 1:
        return target[..., 0, :].contiguous(), target.shape[-2]
    return target.contiguous(), 1
