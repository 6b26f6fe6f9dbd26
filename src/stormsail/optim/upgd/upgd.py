"""UPGD: gradient descent that protects useful weights and perturbs the others.

The class `UPGD` holds settings and state; `upgd_step_` is its arithmetic, a function of tensors
that works in place and never waits for a device. What the steps of all UPGD optimizers share,
`update_utility_` and `take_gated_step_`, is here as well; `adaptive_upgd` adds Adam's direction.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from stormsail.functional.optim.upgd import gate_line
from stormsail.optim.upgd.base import UtilityOptimizer
from stormsail.optim.upgd.buckets import Bucket, Span, fill_normal_


class UPGD(UtilityOptimizer):
    r"""Utility-based perturbed gradient descent, first order, over all weights.

    .. math::
        U &\leftarrow \beta U - (1 - \beta)\, g\, p, \qquad \hat U = U / (1 - \beta^k) \\
        s &= sigmoid((\hat U - shift) / width) \\
        p &\leftarrow p\,(1 - lr \cdot wd) - lr \cdot \kappa\,(1 - s)\,(g + \sigma \xi),
        \qquad \xi \sim N(0, 1)

    Elsayed & Mahmood 2024 (arXiv:2404.00781): what would raise the loss if it were removed moves
    little and is perturbed little. Shift and width are those of
    `stormsail.functional.optim.upgd.gate_line`, over every tensor of every group that has a
    gradient; k counts the steps of the tensor itself. With equal utilities and `sigma=0` the step
    is that of `torch.optim.SGD`.

    We deviate from the published code, which `variant="official"` follows instead:

    * `utility_norm="centred"`. The published gate divides corrected utilities by the maximum of
      the uncorrected ones, a thousand times too small at the first step; a negative maximum turns
      the order around, and a maximum of 0 gives NaN.
    * noise comes from a generator of its own, which the state dict carries.
    * parameters without a gradient, and frozen ones, are left alone.
    * nothing waits for the device, and no tensor is read by the host.

    Half-precision parameters keep float32 state. On the CPU three buffers of the size of the
    parameters are kept as working memory.

    Args:
        params: parameters, or groups of them with settings of their own.
        lr: learning rate; a number or a tensor without dimensions.
        weight_decay: decoupled, per unit of `lr`.
        beta_utility: decay of the utilities, in [0, 1).
        sigma: standard deviation of the noise in the unit of `noise_scale`; 0 draws none.
        noise_scale: `absolute`, or times the root mean square of each tensor's direction
            (`rms_update`) or gradient (`rms_grad`).
        utility_norm: `centred`, `minmax`, `global_max` or `abs_max`.
        lr_compensation: κ; 2 gives an average weight, whose gate is 1/2, the plain step.
        variant: `fixed`, or `official`, which ignores `utility_norm` and draws the noise tensor by
            tensor as the published code does.
        generator: of the noise; advanced by every step that draws.
        seed: of the generator that is made on the device of the first parameter without one.
        maximize: ascend instead.
        capturable: the step may be captured in a CUDA graph. Pass `lr` as a tensor on the device
            then, and register `generator` with the graph.

    Raises:
        RangeError, ChoiceError, ShapeError, DtypeError: if a setting means nothing.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.001,
        beta_utility: float = 0.999,
        sigma: float | Tensor = 0.001,
        noise_scale: str = "absolute",
        utility_norm: str = "centred",
        lr_compensation: float = 2.0,
        variant: str = "fixed",
        generator: torch.Generator | None = None,
        seed: int = 0,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "beta_utility": beta_utility,
            "sigma": sigma,
            "noise_scale": noise_scale,
            "utility_norm": utility_norm,
            "lr_compensation": lr_compensation,
            "variant": variant,
            "maximize": maximize,
            "capturable": capturable,
        }
        super().__init__(params, defaults, generator=generator, seed=seed)

    def _update_(self, buckets: Sequence[Bucket]) -> None:
        upgd_step_(buckets, self.generator)


def upgd_step_(buckets: Sequence[Bucket], generator: torch.Generator) -> None:
    """Take one step of UPGD: the gated direction is the gradient plus noise.

    The order is that of Elsayed & Mahmood 2024 (arXiv:2404.00781): first the utilities of every
    tensor, then one statistic over all of them, then the steps.

    Args:
        buckets: at least one, none of them empty; parameters and state are changed in place.
        generator: of the noise.
    """
    for bucket in buckets:
        torch._foreach_add_(bucket.lists["step"], 1.0)
        for span in bucket.spans:
            grads = update_utility_(bucket, span)
            torch._foreach_copy_(bucket.direction.views[span.tensors], grads)
    take_gated_step_(buckets, generator)


def update_utility_(bucket: Bucket, span: Span) -> list[Tensor]:
    """Advance U by -g p and leave the bias-corrected utilities in `share`.

    Returns:
        Dense gradients of what is minimised, in the dtype and layout of the state.
    """
    grads = _minimised(bucket, span)
    beta = span.group["beta_utility"]
    params, utility = bucket.params[span.tensors], bucket.lists["avg_utility"][span.tensors]
    corrected = bucket.share.views[span.tensors]
    if params[0].dtype != bucket.dtype:
        torch._foreach_copy_(corrected, params)
        params = corrected
    torch._foreach_mul_(utility, beta)
    torch._foreach_addcmul_(utility, grads, params, value=beta - 1.0)
    torch._foreach_copy_(corrected, utility)
    # In float64: 1 - 0.999 has lost four digits in float32 at the first step.
    steps = torch.stack(bucket.lists["step"][span.tensors]).double()
    factors = (1.0 / (1.0 - beta**steps)).to(bucket.dtype)
    bucket.scale_(bucket.share, factors, span.tensors, span.elements)
    return grads


def take_gated_step_(buckets: Sequence[Bucket], generator: torch.Generator) -> None:
    """Add noise to the directions, gate them by the utilities of all tensors, and move.

    Args:
        buckets: with corrected utilities in `share` and the directions in `direction`.
        generator: of the noise.
    """
    utilities = _over_all(buckets)
    for bucket in buckets:
        _perturb_(bucket, generator)
        for span in bucket.spans:
            _set_share_(bucket, span, utilities)
            bucket.direction.flat[span.elements].mul_(bucket.share.flat[span.elements])
            if bucket.step_scale is not None:
                factors = bucket.step_scale[span.tensors]
                bucket.scale_(bucket.direction, factors, span.tensors, span.elements)
            _move_(bucket, span)


def _minimised(bucket: Bucket, span: Span) -> list[Tensor]:
    """Return dense gradients of what is minimised, in the dtype and layout of the state."""
    grads = bucket.grads[span.tensors]
    is_plain = all(grad.dtype == bucket.dtype and grad.is_contiguous() for grad in grads)
    if is_plain and not span.group["maximize"]:
        return grads
    copies = bucket.noise.views[span.tensors]  # free until the noise is drawn
    torch._foreach_copy_(copies, grads)
    if span.group["maximize"]:
        torch._foreach_neg_(copies)
    return copies


class Utilities(NamedTuple):
    """Statistics over the bias-corrected utilities of all tensors, and the raw maximum."""

    low: Tensor
    high: Tensor
    mean: Tensor
    raw_high: Tensor


def _over_all(buckets: Sequence[Bucket]) -> Utilities:
    """Return the statistics over every tensor of every bucket, on the device of the first."""
    device = buckets[0].device
    dtype = min((bucket.dtype for bucket in buckets), key=lambda kind: kind.itemsize)
    wants_raw = any(span.group["variant"] == "official" for b in buckets for span in b.spans)
    rows = []
    for bucket in buckets:
        flat = bucket.share.flat
        low, high = flat.aminmax()
        raw = (
            torch.stack(torch._foreach_max(bucket.lists["avg_utility"])).max()
            if wants_raw
            else high
        )
        rows.append(torch.stack([low, high, flat.sum(), raw]).to(device))
    count = sum(bucket.share.flat.numel() for bucket in buckets)
    if len(rows) == 1:
        low, high, total, raw = rows[0].unbind()
        return Utilities(low, high, total / count, raw)
    table = torch.stack([row.double() for row in rows])
    low, high, total, raw = table.amin(0)[0], table.amax(0)[1], table.sum(0)[2], table.amax(0)[3]
    return Utilities(*(value.to(dtype) for value in (low, high, total / count, raw)))


def _set_share_(bucket: Bucket, span: Span, utilities: Utilities) -> None:
    """Turn the utilities in `share` into 1 - s."""
    share = bucket.share.flat[span.elements]
    if span.group["variant"] == "official":
        share.div_(utilities.raw_high.to(bucket.device, bucket.dtype)).neg_().sigmoid_()
        return
    low, high, mean, _ = utilities
    shift, width = gate_line(low, high, mean, norm=span.group["utility_norm"])
    shift, width = (value.to(bucket.device, bucket.dtype) for value in (shift, width))
    share.sub_(shift).div_(-width).sigmoid_()


def is_noisy(group: Mapping[str, Any]) -> bool:
    """Say whether a parameter group draws noise; a tensor may become other than 0."""
    sigma = group["sigma"]
    return isinstance(sigma, Tensor) or sigma != 0.0


def _perturb_(bucket: Bucket, generator: torch.Generator) -> None:
    """Add the noise of every group to its direction."""
    _draw_(bucket, generator)
    for span in bucket.spans:
        if is_noisy(span.group):
            _add_noise_(bucket, span)


def _draw_(bucket: Bucket, generator: torch.Generator) -> None:
    """Fill `noise` with N(0, 1): in one draw, so that it does not depend on the groups."""
    variants = {span.group["variant"] for span in bucket.spans if is_noisy(span.group)}
    if "fixed" in variants:
        fill_normal_(bucket.noise.flat, generator)
    if "official" in variants:
        for span in bucket.spans:
            if span.group["variant"] == "official":
                for view in bucket.noise.views[span.tensors]:  # tensor by tensor, as published
                    view.normal_(generator=generator)


def _add_noise_(bucket: Bucket, span: Span) -> None:
    """Add the noise to the direction, in the unit that the group asks for."""
    factors = _root_mean_squares(bucket, span)
    if factors is not None:
        bucket.scale_(bucket.noise, factors, span.tensors, span.elements)
    sigma, noise = span.group["sigma"], bucket.noise.flat[span.elements]
    direction = bucket.direction.flat[span.elements]
    if isinstance(sigma, Tensor):
        direction.addcmul_(noise, sigma.to(bucket.device, bucket.dtype))
    else:
        direction.add_(noise, alpha=sigma)


def _root_mean_squares(bucket: Bucket, span: Span) -> Tensor | None:
    """Return one size for each tensor, or None where the noise is absolute."""
    scale = span.group["noise_scale"]
    if scale == "absolute":
        return None
    of = bucket.grads if scale == "rms_grad" else bucket.direction.views
    norms = torch._foreach_norm(of[span.tensors], 2, dtype=bucket.dtype)
    torch._foreach_mul_(norms, [1.0 / math.sqrt(p.numel()) for p in bucket.params[span.tensors]])
    return torch.stack(list(norms))


def _move_(bucket: Bucket, span: Span) -> None:
    """Decay the parameters and take the step."""
    params, step = bucket.params[span.tensors], bucket.direction.views[span.tensors]
    is_half = params[0].dtype != bucket.dtype
    moved = bucket.share.views[span.tensors] if is_half else params
    if is_half:  # round once, at the end
        torch._foreach_copy_(moved, params)
    rate, decay = span.group["lr"], span.group["weight_decay"]
    if isinstance(rate, Tensor):
        rate = rate.to(bucket.device, bucket.dtype)
    if decay != 0.0:
        torch._foreach_mul_(moved, 1.0 - rate * decay)
    compensation = span.group["lr_compensation"]
    if isinstance(rate, Tensor):
        bucket.direction.flat[span.elements].mul_(-compensation * rate)
        torch._foreach_add_(moved, step)
    else:
        torch._foreach_add_(moved, step, alpha=-compensation * rate)
    if is_half:
        torch._foreach_copy_(params, moved)
