"""Quantile Huber loss for a CUDA device: loss and slope in one pass that keeps no pair in memory.

A pair costs about nine operations and no byte, so all N M pairs of a sample take less time in
registers than sorting its atoms would.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional._numbers import Number, scalar
from stormsail.functional.kernels.devices import power_of_two

ELEMENTS = 2048
"""Predictions of one program."""
WARPS = 4


class Seen(NamedTuple):
    """What the loss of quantiles says of them on the way, [*b] each."""

    active: Tensor
    """`functional.quantile.huber_active`."""
    crossed: Tensor
    """`functional.quantile.crossing_fraction`."""
    mean: Tensor
    """`functional.quantile.expectation`."""


def huber_loss_and_seen(
    predicted: Tensor,
    target: Tensor,
    tau: Tensor,
    kappa: Number,
    mass: Tensor | None,
    level_mass: Tensor | None,
) -> tuple[Tensor, Seen]:
    """Return `functional.quantile.huber_loss` [*b], without its checks, and what is seen beside.

    One row of target atoms may serve several predictions: expand it over the last dimension of the
    batch, and it is read where it is.
    """
    counts = True
    loss, *seen = _QuantileHuber.apply(predicted, target, tau, kappa, (mass, level_mass), counts)
    return loss, Seen(*seen)


def huber_loss(
    predicted: Tensor, target: Tensor, tau: Tensor, kappa: Number, mass: Tensor | None
) -> Tensor:
    """Return `functional.quantile.huber_loss` [*b], without its checks."""
    counts = False
    loss: Tensor = _QuantileHuber.apply(predicted, target, tau, kappa, (mass, None), counts)[0]
    return loss


def huber_active(predicted: Tensor, target: Tensor, kappa: Number, mass: Tensor | None) -> Tensor:
    """Return `functional.quantile.huber_active` [*b], without its checks."""
    levels = torch.zeros(predicted.shape[-1], device=predicted.device)
    return _launch(predicted, target, levels, kappa, (mass, None), wants=(False, True))[2].active


class _QuantileHuber(torch.autograd.Function):
    """Loss and slope together."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        predicted: Tensor,
        target: Tensor,
        tau: Tensor,
        kappa: Number,
        masses: tuple[Tensor | None, Tensor | None],
        counts: bool,  # noqa: FBT001 - apply takes no names
    ) -> tuple[Tensor, ...]:
        loss, slope, seen = _launch(predicted, target, tau, kappa, masses, wants=(True, counts))
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(*seen)
        return loss, *seen

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
    masses: tuple[Tensor | None, Tensor | None],
    *,
    wants: tuple[bool, bool],
) -> tuple[Tensor, Tensor, Seen]:
    """Return the loss, its slope and what is seen beside; what is not wanted is empty.

    `masses` are those of the target's atoms and of the levels.
    """
    from stormsail.functional.kernels.losses import quantile_triton as kernels

    theta, (atoms, shared) = predicted.contiguous(), _rows_of(target)
    levels, samples = theta.shape[-1], theta[..., 0].numel()
    width = power_of_two(levels)
    block = max(ELEMENTS // width, 1)
    double = torch.float64 in (theta.dtype, atoms.dtype)
    dtype = torch.float64 if double else torch.float32
    wants_slope, wants_count = wants
    loss = torch.empty(theta.shape[:-1], dtype=dtype, device=theta.device)
    slope = torch.empty_like(theta if wants_slope else theta[:0])
    seen = Seen(*(torch.empty_like(loss if wants_count else loss[:0]) for _ in Seen._fields))
    pinball = not isinstance(kappa, Tensor) and kappa == 0.0
    threshold = scalar(kappa, like=theta)
    weights, level_weights = (threshold if x is None else x.contiguous() for x in masses)
    if samples:
        kernels.quantile_huber[(-(-samples // block),)](
            theta, atoms, tau.contiguous(), threshold, weights, level_weights, loss, slope, *seen,
            samples, shared, N=levels, M=target.shape[-1],
            PINBALL=pinball, MASSES=masses[0] is not None, LEVEL_MASSES=masses[1] is not None,
            SLOPE=wants_slope, COUNT=wants_count, KIND=kernels.KINDS[dtype],
            BLOCK=block, LEVELS=width, num_warps=WARPS,
        )  # fmt: skip
    return loss, slope, seen


def _rows_of(target: Tensor) -> tuple[Tensor, int]:
    """Return the rows of atoms that are there, and how many neighbours share each."""
    if target.ndim > 1 and target.stride(-2) == 0 and target.shape[-2] > 1:
        return target[..., 0, :].contiguous(), target.shape[-2]
    return target.contiguous(), 1
