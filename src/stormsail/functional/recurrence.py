"""Recurrent layers over a sequence in which single environments may start anew at any row.

The fused kernels of torch know no resets, and cutting sequences at them makes shapes depend on the
data. Here every row is one matrix product and a few elementwise operations, with a backward pass
written out, so that nothing is recorded step by step and the weight's gradient is one product over
all rows.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from stormsail.functional import _checks as check
from stormsail.functional.kernels.layers.packed_lstm import lstm_slopes


def lstm_sequence(
    gates: Float[Tensor, "T B G"],
    weight: Float[Tensor, "G H"],
    hidden: Float[Tensor, "B H"],
    cell: Float[Tensor, "B H"],
    reset: Bool[Tensor, "T B"],
    initial_hidden: Float[Tensor, " H"],
    initial_cell: Float[Tensor, " H"],
) -> tuple[Float[Tensor, "T B H"], Float[Tensor, "B H"]]:
    r"""Return the outputs of an LSTM layer and its last cell state.

    $$i, f, g, o = \sigma, \sigma, \tanh, \sigma\,(x_t + W h),\quad c_t = f c + i g,\quad
    h_t = o \tanh c_t$$

    where (h, c) are those of the row before, or the initial ones where `reset` is true. Textbook
    LSTM without peepholes, gates in the order of `torch.nn.LSTM`, G = 4 H.

    Args:
        gates: input part of the gates with all biases, x_t.
        weight: recurrent weight W.
        hidden: before the first row.
        cell: before the first row.
        reset: rows that start from the initial state.
        initial_hidden: hidden state of a new episode.
        initial_cell: cell state of a new episode.

    Raises:
        ShapeError: if the sizes do not fit each other.
        DtypeError: if `reset` is not boolean.
    """
    check.check_same_shape(hidden=hidden, cell=cell)
    check.check_same_shape(initial_hidden=initial_hidden, initial_cell=initial_cell)
    initial = torch.stack((initial_hidden, initial_cell))
    _check_sequence(gates, weight, hidden, reset, initial, parts=4)
    output, last_cell = _Lstm.apply(gates, weight, hidden, cell, reset, initial)
    return output, last_cell


def gru_sequence(
    gates: Float[Tensor, "T B G"],
    weight: Float[Tensor, "G H"],
    bias: Float[Tensor, " G"],
    hidden: Float[Tensor, "B H"],
    reset: Bool[Tensor, "T B"],
    initial_hidden: Float[Tensor, " H"],
) -> Float[Tensor, "T B H"]:
    r"""Return the outputs of a GRU layer.

    $$r, z = \sigma(x_t + W h + b),\quad n = \tanh(x_t + r (W h + b)),\quad
    h_t = (1 - z) n + z h$$

    where h is that of the row before, or the initial one where `reset` is true. Textbook GRU with
    the reset gate behind the product, gates in the order of `torch.nn.GRU`, G = 3 H.

    Args:
        gates: input part of the gates with the input bias, x_t.
        weight: recurrent weight W.
        bias: recurrent bias b.
        hidden: before the first row.
        reset: rows that start from the initial state.
        initial_hidden: hidden state of a new episode.

    Raises:
        ShapeError: if the sizes do not fit each other.
        DtypeError: if `reset` is not boolean.
    """
    _check_sequence(gates, weight, hidden, reset, initial_hidden[None], parts=3)
    check.check_layer(weight=weight, bias=bias)
    output: Tensor = _Gru.apply(gates, weight, bias, hidden, reset, initial_hidden)
    return output


def _check_sequence(
    gates: Tensor, weight: Tensor, hidden: Tensor, reset: Tensor, initial: Tensor, *, parts: int
) -> None:
    check.check_flags(reset=reset)
    check.check_recurrence(
        gates=gates, weight=weight, hidden=hidden, reset=reset, initial=initial, parts=parts
    )


class _Lstm(torch.autograd.Function):
    """The sequence and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        gates: Tensor,
        weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
        reset: Tensor,
        initial: Tensor,
    ) -> tuple[Tensor, Tensor]:
        width = hidden.shape[-1]
        before_h, before_c, squashed, output = (_rows_like(gates, width) for _ in range(4))
        active = _rows_like(gates, 4 * width)
        sides, (i, f, g, o) = active[..., : 2 * width].unbind(), _parts(active, 4)
        rows = zip(*_rows(gates, reset[..., None], before_h, before_c, active), strict=True)
        squashed_rows, output_rows = _rows(squashed, output)
        (first_h, first_c), transposed = initial.unbind(), weight.t()
        for t, (row, start, h, c, result) in enumerate(rows):
            torch.where(start, first_h, hidden, out=h)
            torch.where(start, first_c, cell, out=c)
            torch.addmm(row, h, transposed, out=result)
            sides[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            cell = torch.mul(f[t], c).addcmul_(i[t], g[t])
            hidden = torch.mul(o[t], torch.tanh(cell, out=squashed_rows[t]), out=output_rows[t])
        ctx.save_for_backward(weight, reset, before_h, before_c, active, squashed)
        return output, cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        grad_output, dc = grads
        weight, reset, before_h, before_c, active, squashed = ctx.saved_tensors
        slopes, cell_slope = lstm_slopes(active, before_c, squashed)
        grad_gates, dc_all = torch.empty_like(active), torch.empty_like(before_c)
        above = (torch.zeros_like(dc), *grad_output.unbind())  # what outputs add, one row late
        dh, kept = above[-1], active.chunk(4, -1)[1]
        columns = _rows(reset[..., None], cell_slope, slopes, kept, grad_gates, dc_all)
        rows = list(zip(above[:-1], *columns, strict=True))
        for below, start, of_cell, slope, f, result, dc_row in reversed(rows):
            dc = torch.addcmul(dc, dh, of_cell)
            torch.mul(torch.cat((dc, dc, dc, dh), -1), slope, out=result)
            dh = torch.where(start, below, torch.addmm(below, result, weight))
            dc = torch.mul(dc, f, out=dc_row).masked_fill(start, 0.0)
        flat = grad_gates.flatten(0, 1)
        starts = _of_starts(grad_gates, reset) @ weight, _of_starts(dc_all, reset)
        grad_initial = torch.stack(starts)
        return grad_gates, flat.t() @ before_h.flatten(0, 1), dh, dc, None, grad_initial


class _Gru(torch.autograd.Function):
    """The sequence and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        gates: Tensor,
        weight: Tensor,
        bias: Tensor,
        hidden: Tensor,
        reset: Tensor,
        initial: Tensor,
    ) -> Tensor:
        width = hidden.shape[-1]
        before, new, output = (_rows_like(gates, width) for _ in range(3))
        sides, recurrent = _rows_like(gates, 2 * width), _rows_like(gates, 3 * width)
        side_part, inner = recurrent.split((2 * width, width), -1)
        (r, z), inners, sums = _parts(sides, 2), inner.unbind(), side_part.unbind()
        side_rows, new_rows = (part.unbind() for part in gates.split((2 * width, width), -1))
        start, transposed = reset[..., None].unbind(), weight.t()
        for t in range(gates.shape[0]):
            h = torch.where(start[t], initial, hidden, out=before[t])
            torch.addmm(bias, h, transposed, out=recurrent[t])
            torch.add(side_rows[t], sums[t], out=sides[t]).sigmoid_()
            torch.addcmul(new_rows[t], r[t], inners[t], out=new[t]).tanh_()
            hidden = torch.lerp(new[t], h, z[t], out=output[t])
        ctx.save_for_backward(weight, reset, before, sides, new, inner)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        weight, reset, before, sides, new, inner = ctx.saved_tensors  # type: ignore[attr-defined]
        r, z = sides.chunk(2, -1)
        of_new = (1.0 - z) * (1.0 - new * new)
        of_r = of_new * inner * r * (1.0 - r)
        slopes = torch.cat((of_r, (before - new) * z * (1.0 - z), of_new * r), -1)
        keep, start = z.unbind(), reset[..., None].unbind()
        grad_recurrent, dh_all = torch.empty_like(slopes), torch.empty_like(before)
        above = (torch.zeros_like(before[0]), *grad_output.unbind())
        dh = above[-1]
        for t in range(before.shape[0] - 1, -1, -1):
            dh_all[t] = dh
            torch.mul(torch.cat((dh, dh, dh), -1), slopes[t], out=grad_recurrent[t])
            direct = torch.addcmul(above[t], dh, keep[t])
            carried = torch.addmm(direct, grad_recurrent[t], weight)
            dh = torch.where(start[t], above[t], carried)
        grad_gates = torch.cat((grad_recurrent[..., : -new.shape[-1]], dh_all * of_new), -1)
        flat = grad_recurrent.flatten(0, 1)
        grad_initial = _of_starts(dh_all * z, reset) + _of_starts(grad_recurrent, reset) @ weight
        grad_weight = flat.t() @ before.flatten(0, 1)
        return grad_gates, grad_weight, flat.sum(0), dh, None, grad_initial


def _rows_like(gates: Tensor, width: int) -> Tensor:
    return gates.new_empty((*gates.shape[:2], width))


def _rows(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the rows of each tensor: views made all at once, which is cheaper than one by one."""
    return [tensor.unbind() for tensor in tensors]


def _parts(x: Tensor, count: int) -> list[tuple[Tensor, ...]]:
    """Return the rows of each of `count` parts of the last axis."""
    return _rows(*x.chunk(count, -1))


def _of_starts(x: Tensor, reset: Tensor) -> Tensor:
    """Return the sum over rows that start from the initial state."""
    return torch.where(reset[..., None], x, 0.0).sum((0, 1))
