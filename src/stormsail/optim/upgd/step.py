"""One step of the UPGD family as a function of buckets, in place and without waiting for a device.

The order is that of Elsayed & Mahmood 2024 (arXiv:2404.00781): first the utilities of every tensor,
then one statistic over all of them, then the steps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.functional.optim.upgd import gate_line
from stormsail.optim.upgd.buckets import Bucket, Span
from stormsail.optim.upgd.noise import fill_normal_


class Utilities(NamedTuple):
    """Statistics over the bias-corrected utilities of all tensors, and the raw maximum."""

    low: Tensor
    high: Tensor
    mean: Tensor
    raw_high: Tensor


def upgd_step_(buckets: Sequence[Bucket], generator: torch.Generator) -> None:
    """Advance parameters and state by one step.

    Args:
        buckets: at least one, none of them empty. State with `exp_avg` takes the direction of
            Adam, other state that of the gradient.
        generator: of the noise.
    """
    for bucket in buckets:
        torch._foreach_add_(bucket.lists["step"], 1.0)
        for span in bucket.spans:
            grads = _minimised(bucket, span)
            _set_utility_(bucket, span, grads)
            _set_direction_(bucket, span, grads)
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


def _set_utility_(bucket: Bucket, span: Span, grads: list[Tensor]) -> None:
    """Advance U by -g p and leave the bias-corrected utilities in `share`."""
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


def _set_direction_(bucket: Bucket, span: Span, grads: list[Tensor]) -> None:
    """Leave g, or m / (sqrt(v) + eps) with both moments corrected, in `direction`."""
    direction = bucket.direction.views[span.tensors]
    if "exp_avg" not in bucket.lists:
        torch._foreach_copy_(direction, grads)
        return
    bucket.direction.flat[span.elements].zero_()
    beta1, beta2 = span.group["betas"]
    # Adam's own kernel, let loose on zeros with a rate of -1, leaves its direction there: one pass
    # over memory where the separate operations take a dozen.
    torch._fused_adam_(
        direction,
        grads,
        bucket.lists["exp_avg"][span.tensors],
        bucket.lists["exp_avg_sq"][span.tensors],
        [],
        bucket.lists["step"][span.tensors],
        lr=-1.0,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=span.group["eps"],
        amsgrad=False,
        maximize=False,
    )


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
