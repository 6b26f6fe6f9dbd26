"""An LSTM layer over sequences of different lengths, for a CPU.

Rows are packed: those of the first step of all K sequences, then those of the second step of the
sequences that have one, and so on, longest sequence first. Nothing is filled up, and the fewer and
wider steps are what a CPU is fast at.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class PackedLstm(torch.autograd.Function):
    """`functional.recurrence.lstm_sequence` for packed rows without resets."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        gates: Tensor,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
        sizes: list[int],
    ) -> tuple[Tensor, Tensor]:
        """Return the output of each row [R, H] and the last cell of each sequence [K, H].

        `gates` [R, 4 H] is the input part with all biases, `hidden` and `cell` [K, H] stand before
        the first step, and `sizes` are the rows of each step, which never grow.
        """
        width, transposed = hidden.shape[-1], weight.t()
        output, cells, squashed = (gates.new_empty(len(gates), width) for _ in range(3))
        active = torch.empty_like(gates)
        i, f, g, o = (part.split(sizes) for part in active.chunk(4, -1))
        sides = active[:, : 2 * width].split(sizes)
        rows, results = gates.split(sizes), active.split(sizes)
        outputs, states, tanhs = (part.split(sizes) for part in (output, cells, squashed))
        h, c = hidden, cell
        for t, size in enumerate(sizes):
            torch.addmm(rows[t], h[:size], transposed, out=results[t])
            sides[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            c = torch.mul(f[t], c[:size], out=states[t]).addcmul_(i[t], g[t])
            h = torch.mul(o[t], torch.tanh(c, out=tanhs[t]), out=outputs[t])
        # where step t has fewer rows than the one before, the others ended there
        ended = [part[size:] for part, size in zip(states, (*sizes[1:], 0), strict=True)]
        ctx.save_for_backward(weight, hidden, cell, active, output, cells, squashed)
        ctx.sizes = sizes
        return output, torch.cat(ended[::-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of gates, weight and first states."""
        weight, hidden, cell, active, output, cells, squashed = ctx.saved_tensors
        sizes = ctx.sizes
        before_h, before_c = _shifted(hidden, output, sizes), _shifted(cell, cells, sizes)
        slopes, cell_slope = lstm_slopes(active, before_c, squashed)
        above, dc_all = grads[0].clone(), grads[1].clone()
        grad_gates = torch.empty_like(active)
        f = active.chunk(4, -1)[1].split(sizes)
        parts = (above, grad_gates, slopes, cell_slope)
        dhs, results, slope, of_cell = (part.split(sizes) for part in parts)
        dh_first = torch.zeros_like(hidden)
        for t in range(len(sizes) - 1, -1, -1):
            dh, dc = dhs[t], dc_all[: sizes[t]]
            dc.addcmul_(dh, of_cell[t])
            torch.mul(torch.cat((dc, dc, dc, dh), -1), slope[t], out=results[t])
            dc.mul_(f[t])
            below = dhs[t - 1][: sizes[t]] if t else dh_first
            below.addmm_(results[t], weight)
        return grad_gates, grad_gates.t() @ before_h, dh_first, dc_all, None


def lstm_slopes(active: Tensor, before_c: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each gate adds per unit of the cell's gradient, the last of the output's.

    And what the output's gradient adds to the cell's.
    """
    i, _, g, o = active.chunk(4, -1)
    of_i, of_f, _, of_o = (active * (1.0 - active)).chunk(4, -1)
    slopes = torch.cat((of_i * g, of_f * before_c, i * (1.0 - g * g), of_o * squashed), -1)
    return slopes, o * (1.0 - squashed * squashed)


def _shifted(first: Tensor, rows: Tensor, sizes: list[int]) -> Tensor:
    """Return the state that each row started from."""
    ends = [part[:size] for part, size in zip(rows.split(sizes), sizes[1:], strict=False)]
    return torch.cat((first, *ends))
