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

from stormsail.functional.kernels.dense import ALIGNMENT, squashed
from stormsail.functional.kernels.devices import compute_dtype, power_of_two

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
        result: tuple[Tensor, ...] = _Heads.apply(x, counts, dtype, *weights)
    return result


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
        rows = x.reshape(-1, x.shape[-1]).to(dtype)
        first = torch.cat(weights[0::4]).to(dtype)
        hidden = squashed(rows, first, torch.cat(weights[1::4]))
        units, lasts, outputs = len(weights[0]), [], []
        for begin, count in zip(accumulate(counts, initial=0), counts, strict=False):
            own = slice(4 * begin, 4 * (begin + count))
            last, shift = (torch.stack(weights[own][k::4]) for k in (2, 3))
            levels = shift.shape[1]
            missing = -levels % ALIGNMENT
            lasts.append(torch.nn.functional.pad(last.to(dtype), (0, 0, 0, missing)))
            shift = torch.nn.functional.pad(shift, (0, missing))
            columns = hidden[:, begin * units : (begin + count) * units]
            output = _last_layers(columns, lasts[-1], shift)[..., :levels]
            outputs.append(output.unflatten(0, x.shape[:-1]))
        ctx.save_for_backward(rows, first, hidden, *lasts)
        ctx.set_materialize_grads(False)  # a group that nobody asks has no gradient, not one of 0
        ctx.kind, ctx.shape = x.dtype, x.shape
        return tuple(outputs)

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
                found = _back(grad, hidden[:, columns], last, slope[:, columns])
                levels = grad.shape[-1]
                parts += ((bias, w[:levels], b[:levels]) for bias, w, b in zip(*found, strict=True))
        of_x = torch.mm(slope, first).view(ctx.shape) if ctx.needs_input_grad[0] else None
        if slope.dtype == torch.float32:
            of_first = torch.mm(slope.t(), rows)
        else:
            of_first = torch.mm(slope.t(), rows, out_dtype=torch.float32)
        of_weights: list[Tensor | None] = []
        for weight, own in zip(of_first.split(units), parts, strict=True):
            of_weights += [None] * len(Head._fields) if own is None else [weight, *own]
        return None if of_x is None else of_x.to(ctx.kind), None, None, *of_weights


def _last_layers(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return [R, heads, N] of hidden units [R, heads * U] and weights [heads, N, U]."""
    from stormsail.functional.kernels.heads_triton import last_layers

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
    from stormsail.functional.kernels.heads_triton import heads_back

    rows, (count, levels, units) = len(hidden), weight.shape
    if missing := levels - grad.shape[-1]:
        grad = torch.nn.functional.pad(grad, (0, missing))
    flat = grad.reshape(rows, count * levels)
    if flat.stride(1) != 1 or flat.stride(0) % ALIGNMENT:
        flat = flat.contiguous()
    sizes = [count * units, count * levels * units, count * levels]
    programs = -(-rows // (BACK.rows * BACK.repeat))
    parts = torch.empty(programs, sum(sizes), device=grad.device)
    width = _width(units, BACK.units)
    if rows:
        heads_back[(count * -(-units // width), programs)](
            flat, hidden, weight, slope, parts, rows, hidden.stride(0), units,
            flat.stride(0) // ALIGNMENT, N=levels, ROWS=BACK.rows, UNITS=width,
            LEVELS=_width(levels), REPEAT=BACK.repeat, num_warps=BACK.warps,
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
