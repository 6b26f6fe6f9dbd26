"""An LSTM layer over rows with resets, on a CPU, in C++ of our own (`lstm_rows.cpp`).

One call takes all rows forward, another all rows back; the products of all rows at once are
oneDNN's. Resets cost nothing wherever they stand, and the initial state may be learned.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional.kernels.layers.products import linear
from stormsail.functional.kernels.layers.recurrent import Layer

SOURCE = "functional/kernels/layers/lstm_rows.cpp"

Library = Callable[[str, Sequence[int], Sequence[Tensor]], None]
"""Calls a function of the C++ file, as `core.machine_code` compiles it."""


class LstmRows:
    """`functional.recurrence.lstm_sequence`, with the product of the inputs, as machine code.

    Args:
        library: of `SOURCE`.
    """

    def __init__(self, library: Library) -> None:
        self._library = library

    def __call__(
        self, x: Tensor, layer: Layer, state: Tensor, reset: Tensor, initial: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [T, B, H] and the state after the last row, [B, 2, H].

        Args:
            x: inputs [T, B, I].
            layer: weights, float32.
            state: before the first row, [B, 2, H].
            reset: where a row starts from the initial state, bool [T, B].
            initial: that state, [2, H].
        """
        hidden, cell = state.unbind(1)
        output, after = _Sequence.apply(self._library, x, *layer, hidden, cell, reset, initial)
        return output, torch.stack((output[-1], after), 1)


class _Sequence(torch.autograd.Function):
    """The sequence and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        library: Library,
        x: Tensor,
        input_weight: Tensor,
        hidden_weight: Tensor,
        input_bias: Tensor,
        hidden_bias: Tensor,
        hidden: Tensor,
        cell: Tensor,
        reset: Tensor,
        initial: Tensor,
    ) -> tuple[Tensor, Tensor]:
        (rows, batch, _), width = x.shape, hidden_weight.shape[1]
        sizes, reset = (rows, batch, width), reset.contiguous()
        active = linear(x.flatten(0, 1), input_weight, input_bias + hidden_bias)
        before_h, before_c, squashed, output = (x.new_empty(sizes) for _ in range(4))
        after = cell.clone(memory_format=torch.contiguous_format)
        read = (hidden_weight.contiguous(), hidden.contiguous(), after, reset, initial.contiguous())
        kept = (active, before_h, before_c, squashed)
        library("lstm_rows_forward", sizes, (*read, *kept, output))
        ctx.library = library
        ctx.save_for_backward(x, input_weight, hidden_weight, reset, *kept)
        return output, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, input_weight, hidden_weight, reset, active, before_h, before_c, squashed = (
            ctx.saved_tensors
        )
        sizes, slopes = before_h.shape, torch.empty_like(active)
        carried_h = torch.empty_like(before_h[0])
        carried_c = grads[1].clone(memory_format=torch.contiguous_format)
        of_initial = x.new_empty(2, sizes[2])
        read = (hidden_weight.contiguous(), reset, active, before_c, squashed)
        written = (slopes, carried_h, carried_c, of_initial)
        tensors = (*read, grads[0].contiguous(), *written)
        ctx.library("lstm_rows_backward", sizes, tensors)
        of_x = linear(slopes, input_weight.t()).view_as(x) if ctx.needs_input_grad[1] else None
        bias = slopes.sum(0)
        return (
            None,
            of_x,
            _weight_slope(slopes, x),
            _weight_slope(slopes, before_h),
            bias,
            bias.clone(),
            carried_h,
            carried_c,
            None,
            of_initial,
        )


def _weight_slope(slopes: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient of a weight [4 H, I] from those of its products and its inputs."""
    # the smaller factor first: that way round oneDNN takes a third less time
    return linear(inputs.flatten(0, 1).t(), slopes.t()).t()
