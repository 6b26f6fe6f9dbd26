"""Heads of a network on one input, each a hidden layer with a tanh and a last layer, for CUDA.

The hidden layers of all heads are one product, and so are the gradients of their weights and that
of the input, which is therefore no sum of several tables. On the way back one kernel goes through a
group of heads: it reads the gradient of the outputs and the hidden units, writes the gradient
before the tanh, and has the gradients of the last weights and of all biases as by-products. By
itself each of these would read or write the hidden units once more, by far the largest table.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional.kernels.devices import compute_dtype, filled_up, power_of_two
from stormsail.functional.kernels.layers.dense import ALIGNMENT, squashed
from stormsail.functional.kernels.layers.recurrent import exact_product
from stormsail.functional.kernels.layers.steady_weights import made_of

LEAST = 16
"""Columns of a factor that units for matrices multiply at least."""


class Tile(NamedTuple):
    """What one program works on, and with what."""

    rows: int
    units: int
    """At most; of the last layers, at a time."""
    warps: int
    repeat: int = 1
    """Blocks of rows."""


LAST = Tile(128, 64, 4)
BACK = Tile(64, 64, 4, 32)


class Head(NamedTuple):
    """Weights of a head, float32."""

    weight: Tensor
    """[U, I]."""
    bias: Tensor
    last_weight: Tensor
    """[N, U]."""
    last_bias: Tensor


def heads(
    x: Tensor, groups: Sequence[Sequence[Head]], *, dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """Return the outputs of each group of heads side by side, float32 [*b, heads of the group, N].

    Args:
        x: what all heads read, [*b, I].
        groups: heads whose weights have the same shapes within a group; U is that of all.
        dtype: of the products and of what is kept for the way back, float32 or bfloat16;
            `compute_dtype` without it.
    """
    dtype = compute_dtype(x) if dtype is None else dtype
    counts = tuple(len(group) for group in groups)
    weights = [part for group in groups for head in group for part in head]
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled():
            result: tuple[Tensor, ...] = _Heads.apply(x, counts, dtype, *weights)
            return result
        given = made_of(weights, (counts, dtype), lambda: _given(weights, counts, dtype))
        return _run(x, given)[0]


class _Given(NamedTuple):
    """Weights of all heads side by side, rounded."""

    first: Tensor
    """[heads * U, I]."""
    bias: Tensor
    lasts: list[Tensor]
    """Of each group, [heads, N, U]."""
    shifts: list[Tensor]
    """Last biases, [heads, N]."""


def _given(weights: Sequence[Tensor], counts: tuple[int, ...], dtype: torch.dtype) -> _Given:
    width = len(Head._fields)
    lasts, shifts = [], []
    for begin, count in zip(accumulate(counts, initial=0), counts, strict=False):
        own = weights[width * begin : width * (begin + count)]
        last, shift = (torch.stack(tuple(own[k::width])) for k in (2, 3))
        lasts.append(last.to(dtype))
        shifts.append(shift)
    first, bias = (torch.cat(tuple(weights[k::width])) for k in (0, 1))
    return _Given(first.to(dtype), bias, lasts, shifts)


def _run(x: Tensor, given: _Given) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """Return the outputs of each group; rows and hidden units, side by side."""
    rows = x.reshape(-1, x.shape[-1]).to(given.first.dtype)
    hidden = squashed(rows, given.first, given.bias)
    outputs, begin = [], 0
    for last, shift in zip(given.lasts, given.shifts, strict=True):
        end = begin + last.shape[0] * last.shape[2]
        output = _last_layers(hidden[:, begin:end], last, shift)
        outputs.append(output.unflatten(0, x.shape[:-1]))
        begin = end
    return tuple(outputs), (rows, hidden)


class _Heads(torch.autograd.Function):
    """All heads and their gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        x: Tensor,
        counts: tuple[int, ...],
        dtype: torch.dtype,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        given = _given(weights, counts, dtype)
        outputs, kept = _run(x, given)
        ctx.save_for_backward(kept[0], given.first, kept[1], *given.lasts)
        ctx.set_materialize_grads(False)  # a group that nobody asks has no gradient, not one of 0
        ctx.kind, ctx.shape = x.dtype, x.shape
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        rows, first, hidden, *lasts = ctx.saved_tensors
        units, slope = lasts[0].shape[-1], torch.empty_like(hidden)
        parts: list[tuple[Tensor, ...] | None] = []
        for grad, last in zip(grads, lasts, strict=True):
            columns = slice(len(parts) * units, (len(parts) + len(last)) * units)
            if grad is None:
                slope[:, columns].zero_()
                parts += [None] * len(last)
            else:
                gradients = _back(grad, hidden[:, columns], last, slope[:, columns])
                parts += zip(*gradients, strict=True)
        of_x = torch.mm(slope, first).view(ctx.shape) if ctx.needs_input_grad[0] else None
        of_first = exact_product(slope.t(), rows)
        of_weights: list[Tensor | None] = []
        for weight, own in zip(of_first.split(units), parts, strict=True):
            of_weights += [None] * len(Head._fields) if own is None else [weight, *own]
        return None if of_x is None else of_x.to(ctx.kind), None, None, *of_weights


def _last_layers(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return [R, heads, N] of hidden units [R, heads * U] and weights [heads, N, U]."""
    from stormsail.functional.kernels.layers.heads_triton import last_layers

    rows, (count, levels, units) = len(hidden), weight.shape
    output = torch.empty(rows, count, levels, device=hidden.device)
    if rows:
        last_layers[(-(-rows // LAST.rows), count)](
            hidden, weight, bias, output, rows, hidden.stride(0), units, N=levels,
            ROWS=LAST.rows, UNITS=_width(units, LAST.units), LEVELS=_width(levels),
            num_warps=LAST.warps,
        )  # fmt: skip
    return output


def _back(grad: Tensor, hidden: Tensor, weight: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
    """Write the gradient before the tanh; return those of what stands behind, for each head.

    Of the biases before the tanh [heads, U], of the last weights [heads, N, U], of their biases.
    """
    from stormsail.functional.kernels.layers.heads_triton import heads_back

    rows, (count, levels, units) = len(hidden), weight.shape
    wide = filled_up(grad.reshape(rows, count, levels), columns=-levels % ALIGNMENT)
    filled, flat = wide.shape[-1], wide.flatten(1)
    if flat.stride(1) != 1 or flat.stride(0) % ALIGNMENT:
        flat = flat.contiguous()
    sizes = [count * units, count * levels * units, count * levels]
    programs = -(-rows // (BACK.rows * BACK.repeat))
    parts = torch.empty(programs, sum(sizes), device=grad.device)
    width = _width(units, BACK.units)
    if rows:
        heads_back[(count * -(-units // width), programs)](
            flat, hidden, weight, slope, parts, rows, hidden.stride(0), units,
            flat.stride(0) // ALIGNMENT, N=levels, FILLED=filled, ROWS=BACK.rows, UNITS=width,
            LEVELS=_width(filled), REPEAT=BACK.repeat, num_warps=BACK.warps,
        )  # fmt: skip
    of_bias, of_weight, of_last = parts.sum(0).split(sizes)
    return (
        of_bias.view(count, units),
        of_weight.view(count, levels, units),
        of_last.view(count, levels),
    )


def _width(size: int, most: int | None = None) -> int:
    """Return how many columns a block has for a size."""
    width = max(power_of_two(size), LEAST)
    return width if most is None else min(width, most)
