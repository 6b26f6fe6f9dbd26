"""Multi-tensor operations with one weight for each tensor.

The multi-tensor kernels take one weight for the whole list. Weights that live on the device and
differ by tensor would fall back to a kernel for each tensor; on a GPU the lists are therefore laid
out in one row first, so that the number of kernels does not depend on the number of tensors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1 << 20
"""Elements that the CPU works on at a time, so that they stay in its cache between two passes."""


class Layout(NamedTuple):
    """Which of P tensors take part, and where their elements lie in one row of all of them."""

    positions: tuple[int, ...]
    places: Tensor
    """[Q] positions, on the device."""
    mask: Tensor
    """[P] true for those that take part."""
    segment: Tensor
    """[elements] which of the Q tensors an element belongs to; empty on the CPU."""


def layout(present: Sequence[bool], sizes: Sequence[int], *, device: torch.device) -> Layout:
    """Return the layout of the tensors that are present."""
    positions = tuple(place for place, here in enumerate(present) if here)
    places = torch.tensor(positions, dtype=torch.int64, device=device)
    mask = torch.tensor(list(present), dtype=torch.bool, device=device)
    segment = torch.empty(0, dtype=torch.int32, device=device)
    if device.type != "cpu":
        counts = torch.tensor([sizes[place] for place in positions], device=device)
        order = torch.arange(len(positions), dtype=torch.int32, device=device)
        segment = order.repeat_interleave(counts)
    return Layout(positions, places, mask, segment)


def fill(values: Tensor, where: Layout) -> Tensor:
    """Return [P] with the [Q] values at their positions and 0 elsewhere."""
    if len(where.positions) == where.mask.shape[0]:
        return values
    return values.new_zeros(where.mask.shape[0]).index_copy(0, where.places, values)


def pick(values: Tensor, where: Layout) -> Tensor:
    """Return the [Q] entries of [P] values that take part."""
    if len(where.positions) == where.mask.shape[0]:
        return values
    return values.index_select(0, where.places)


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of each, [Q] in float64; not finite if any element is not.

    Half precision is added up in float32, where the norm neither overflows nor is rounded.
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    wide = None
    if any(tensor.element_size() < 4 for tensor in tensors):
        double = any(tensor.dtype == torch.float64 for tensor in tensors)
        wide = torch.float64 if double else torch.float32
    each = torch._foreach_norm(list(tensors), 2, dtype=wide)
    if any(norm.dtype != each[0].dtype for norm in each):
        each = tuple(norm.double() for norm in each)
    return torch.stack(each).double()


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute element of each, [Q] in float64."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    if tensors[0].device.type == "cpu":  # the maximum norm is not vectorised there: 20 times slower
        ends = [end for tensor in tensors for end in torch.aminmax(tensor)]
        return torch.stack(ends).double().abs().view(-1, 2).amax(1)
    return torch.stack(torch._foreach_norm(list(tensors), float("inf"))).double()


def as_dtype(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors in one dtype; those that have it already are not copied."""
    if all(tensor.dtype == dtype for tensor in tensors):
        return list(tensors)
    cast = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(cast, list(tensors))
    return cast


def move_(
    targets: Sequence[Tensor], sources: Sequence[Tensor], weight: Tensor, where: Layout
) -> None:
    """Move each target towards its source, t <- t + w (s - t).

    A target of weight 0 keeps its bits, even if its source is not finite.

    Args:
        targets: changed in place.
        sources: of the same shapes.
        weight: [Q] in [0, 1], in the dtype to compute in.
        where: the layout of these tensors.
    """
    if not targets:
        return
    one_dtype = {tensor.dtype for tensor in (*targets, *sources)} == {weight.dtype}
    if weight.device.type == "cpu":  # to read a value costs nothing here
        kept = [place for place, moves in enumerate((weight != 0).tolist()) if moves]
        targets, sources = [targets[i] for i in kept], [sources[i] for i in kept]
        weights = [weight[i] for i in kept]
        if one_dtype and kept:
            torch._foreach_lerp_(targets, sources, weights)
        else:
            for target, source, own in zip(targets, sources, weights, strict=True):
                target.copy_(torch.lerp(target.to(own.dtype), source.to(own.dtype), own))
        return
    start, end = _row(targets, weight.dtype), _row(sources, weight.dtype)
    each = weight.index_select(0, where.segment)
    moved = torch.where(each == 0, start, torch.lerp(start, end, each))
    _write(targets, moved)


def follow_(
    means: Sequence[Tensor], grads: Sequence[Tensor], weight: Tensor, where: Layout
) -> tuple[Tensor, Tensor]:
    """Move each mean towards its gradient, m <- m + w (g - m), as `move_` does.

    Args:
        means: changed in place; contiguous.
        grads: of the same shapes and dtype; finite wherever the weight is not 0.
        weight: [Q] in [0, 1].
        where: the layout of these tensors.

    Returns:
        The squared distance before and the squared norm after, [Q] in float64; without a meaning
        where the weight is 0.
    """
    if weight.device.type != "cpu":
        distance = norms(torch._foreach_sub(list(grads), list(means))).square()
        if means:
            move_(means, grads, weight.to(means[0].dtype), where)
        return distance, norms(means).square()
    pairs = [
        _follow_one_(mean.view(-1), grad.reshape(-1), own)
        for mean, grad, own in zip(means, grads, weight.tolist(), strict=True)
    ]
    both = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _follow_one_(mean: Tensor, grad: Tensor, weight: float) -> tuple[float, float]:
    """Move one mean in place; it holds the distance for a moment.

    Neither scratch nor a second list: about half of the time that the lists take.
    """
    before, after = 0.0, 0.0
    if weight == 0.0:
        return before, after
    for start in range(0, mean.numel(), BLOCK):
        block, fresh = mean[start : start + BLOCK], grad[start : start + BLOCK]
        torch.sub(fresh, block, out=block)
        before += torch.dot(block, block).item()
        torch.add(fresh, block, alpha=weight - 1.0, out=block)
        after += torch.dot(block, block).item()
    return before, after


def scale_(tensors: Sequence[Tensor], factor: Tensor, where: Layout) -> None:
    """Multiply each tensor by its own factor, [Q], in place."""
    if not tensors:
        return
    if factor.device.type == "cpu":
        for tensor, own in zip(tensors, factor.tolist(), strict=True):
            tensor.mul_(own)
        return
    row = _row(tensors, factor.dtype)
    _write(tensors, row.mul_(factor.index_select(0, where.segment)))


def _row(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).to(dtype)


def _write(tensors: Sequence[Tensor], row: Tensor) -> None:
    parts = row.split([tensor.numel() for tensor in tensors])
    views = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(list(tensors), views)
