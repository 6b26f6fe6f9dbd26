"""LSTM and GRU layers over a sequence with resets, for a CUDA device.

Row by row there is one matrix product of input and state together and one kernel for all that is
elementwise: gates, resets, the state in float32. The next product's input is written, already
reset, by the kernel before it. A narrow layer that learns goes through all rows in one kernel
behind one product of all inputs instead, since its rows take less time than their launches. The
gradients of all weights are one product over all rows in the end, and those of biases one sum;
those of the initial state are summed along the way. Sums have one order always.
Shapes depend on nothing but shapes, and nothing waits for the device: a CUDA graph can hold it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stormsail.functional.kernels.devices import compute_dtype, filled_up, power_of_two
from stormsail.functional.kernels.layers.row_sums import sum_rows
from stormsail.functional.kernels.layers.steady_weights import made_of


class Tile(NamedTuple):
    """What one program works on, and with what."""

    rows: int
    """Environments."""
    units: int
    warps: int
    stages: int = 3
    """Loads of a product that are under way."""


PLAIN = Tile(16, 64, 8)
"""Of the kernel behind a product."""
WHOLE = Tile(16, 64, 4, 1)
"""Of the kernel of all rows; its units are the widest layer that it takes."""
NARROWEST = 16
"""Least side of a block's product."""
WIDE, PLACED = 256, 16
"""Columns at most, and rows of as many, that one program copies."""
ALIGNMENT = 8
"""Columns of the joint input are filled up to a multiple of this: 16 bytes of bfloat16."""


class Layer(NamedTuple):
    """Weights of one layer in the order of `torch.nn.LSTM` and `torch.nn.GRU`."""

    input_weight: Tensor
    """[G, I]; G is 4 H for an LSTM and 3 H for a GRU."""
    hidden_weight: Tensor
    """[G, H]."""
    input_bias: Tensor
    hidden_bias: Tensor


def recurrent_sequence(
    kind: str,
    x: Tensor,
    layer: Layer,
    state: Tensor,
    reset: Tensor,
    initial: Tensor,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return outputs [T, B, H], in the dtype of the products, and the last state in float32.

    The formulas of `functional.recurrence`, with the product of the inputs inside.

    Args:
        kind: `lstm` or `gru`.
        x: inputs [T, B, I].
        layer: weights, float32.
        state: before the first row, [B, P, H] with P = 2 for an LSTM and 1 for a GRU.
        reset: where a row starts from the initial state, bool [T, B].
        initial: that state, [P, H].
        dtype: of the products and of what is kept for the way back, float32 or bfloat16;
            `compute_dtype` without it.
    """
    dtype = compute_dtype(x) if dtype is None else dtype
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled():
            weight, bias = _joint(kind, layer)
            output, cell = _Sequence.apply(
                x, weight, bias, state[:, 0], state[:, -1], reset, initial[0], initial[-1],
                kind == "lstm", dtype,
            )  # fmt: skip
            after = [output[-1].float(), cell] if kind == "lstm" else [cell]
            return output, torch.stack(after, 1)
        weight, bias = made_of(layer, (kind, dtype), lambda: _rounded(kind, layer, dtype))
        return _run(
            x, weight, bias, state[:, 0], state[:, -1], reset, initial[0], initial[-1],
            is_lstm=kind == "lstm", dtype=dtype, keeps=False,
        )[:2]  # fmt: skip


def _rounded(kind: str, layer: Layer, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight, bias = _joint(kind, layer)
    return weight.to(dtype), bias


def _joint(kind: str, layer: Layer) -> tuple[Tensor, Tensor]:
    """Return one weight [4 H, K] for state and input side by side, and one bias [4 H].

    A GRU's new part is two: that of the input, and that of the state, which meet after the product.
    """
    of_x, of_h = layer.input_weight, layer.hidden_weight
    width, bias = of_h.shape[1], layer.input_bias + layer.hidden_bias
    if kind == "gru":
        sides, new = slice(0, 2 * width), slice(2 * width, 3 * width)
        of_h, of_x = (
            torch.cat((of_h[sides], torch.zeros_like(of_h[new]), of_h[new])),
            torch.cat((of_x[sides], of_x[new], torch.zeros_like(of_x[new]))),
        )
        bias = torch.cat((bias[sides], layer.input_bias[new], layer.hidden_bias[new]))
    missing = -(of_h.shape[1] + of_x.shape[1]) % ALIGNMENT
    return filled_up(torch.cat((of_h, of_x), 1), columns=missing), bias


def _run_whole(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    reset: Tensor,
    initial_hidden: Tensor,
    initial_cell: Tensor,
    *,
    is_lstm: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, "_Kept"]:
    """Return what `_run` does where it `keeps`, from one kernel for all rows."""
    from stormsail.functional.kernels.layers.sequence_triton import forward_rows

    (rows, batch, _), width, columns = x.shape, hidden.shape[-1], weight.shape[1]
    weight, bias = weight.to(dtype), bias.float().contiguous()
    hidden, cell = hidden.float().contiguous(), cell.float().contiguous()
    joined = x.new_empty((rows, batch, columns), dtype=dtype)
    place_columns(x, joined, width)
    linear = torch.mm(joined.flatten(0, 1)[:, width:], weight[:, width:].t())
    active = x.new_empty((rows, batch, 4 * width), dtype=dtype)
    cells = x.new_empty((rows, batch, width), dtype=torch.float32)
    output = x.new_empty((rows, batch, width), dtype=dtype)
    launch = _launch_whole(batch, width)
    forward_rows[launch.grid](
        linear, weight, bias, hidden, cell, reset.contiguous().view(torch.uint8),
        initial_hidden.float().contiguous(), initial_cell.float().contiguous(),
        joined, active, cells, output, rows, batch, columns, LSTM=is_lstm, **launch.options,
    )  # fmt: skip
    return output, cells[-1], _Kept(joined, active, cells, cell, weight)


class _Kept(NamedTuple):
    """What the way back reads."""

    joined: Tensor
    """State and input of every product, [T, B, K]."""
    active: Tensor
    """[T, B, 4 H]."""
    cells: Tensor
    """After each row, float32 [T, B, H]."""
    first: Tensor
    """Before the first one, [B, H]."""
    weight: Tensor


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    reset: Tensor,
    initial_hidden: Tensor,
    initial_cell: Tensor,
    *,
    is_lstm: bool,
    dtype: torch.dtype,
    keeps: bool,
) -> tuple[Tensor, Tensor, _Kept]:
    """Return outputs, the last cell and what the way back needs.

    Unless that `keeps` anything, the whole last state [B, P, H] instead of the cell.
    """
    from stormsail.functional.kernels.layers.recurrent_triton import begin_rows, forward_row

    (rows, batch, _), width, columns = x.shape, hidden.shape[-1], weight.shape[1]
    weight, bias = weight.to(dtype), bias.float().contiguous()
    hidden, cell = hidden.float(), cell.float().contiguous() if keeps else cell.float()
    initial_hidden = initial_hidden.float().contiguous()
    initial_cell = initial_cell.float().contiguous()
    reset = reset.contiguous()
    flags = reset.view(torch.uint8)
    joined = x.new_empty((rows, batch, columns), dtype=dtype)
    place_columns(x, joined, width)
    launch = _launch(batch, width)
    tile = {name: launch.options[name] for name in ("ROWS", "UNITS", "num_warps")}
    begin_rows[launch.grid](
        hidden, flags[0], initial_hidden, joined[0], batch, width, hidden.stride(0), columns, **tile
    )
    gates = x.new_empty((batch, 4 * width), dtype=dtype)
    active = x.new_empty((rows, batch, 4 * width) if keeps else (1, 1, 1), dtype=dtype)
    cells = x.new_empty((rows if keeps else 1, batch, width), dtype=torch.float32)
    output = x.new_empty((rows, batch, width), dtype=dtype)
    last = cells[-1] if keeps else x.new_empty((batch, 1 + is_lstm, width), dtype=torch.float32)
    transposed, before = weight.t(), cell
    for t in range(rows):
        following, place, ends = min(t + 1, rows - 1), t if keeps else 0, t + 1 == rows
        after = last if ends else cells[place]
        tables = (
            bias, before, flags[t], initial_cell, active[place], after, output[t],
            joined[following], flags[following], initial_hidden, batch, width,
        )  # fmt: skip
        options = {
            "LSTM": is_lstm, "SAVE": keeps, "NEXT": not ends, "LAST": ends and not keeps,
            **launch.options,
        }  # fmt: skip
        torch.mm(joined[t], transposed, out=gates)
        forward_row[launch.grid](gates, *tables, columns, before.stride(0), **options)
        before = after
    return output, last, _Kept(joined, active, cells, cell, weight)


def place_columns(x: Tensor, joined: Tensor, width: int) -> None:
    """Copy inputs [T, B, I] behind the state's columns; what is left of these becomes 0."""
    from stormsail.functional.kernels.layers.recurrent_triton import place_rows

    inputs, room = x.shape[-1], joined.shape[-1] - width
    flat, target = x.reshape(-1, inputs), joined.flatten(0, 1)[:, width:]
    if flat.numel() == 0:
        target.zero_()
        return
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    units = min(power_of_two(room), WIDE)
    rows = WIDE * PLACED // units
    place_rows[(-(-len(flat) // rows), -(-room // units))](
        flat, target, len(flat), inputs, room, flat.stride(0), target.stride(0),
        ROWS=rows, UNITS=units, num_warps=PLAIN.warps,
    )  # fmt: skip


class _Launch(NamedTuple):
    """Grid and options of a kernel."""

    grid: tuple[int, ...]
    options: dict[str, Any]


def is_narrow(width: int, dtype: torch.dtype, device: str) -> bool:
    """Return whether a layer goes through all rows in one kernel.

    Its weights stay with a program, as blocks whose sides are powers of two. On a GPU a block's
    product of float32 is slower than the library's.
    """
    fits = NARROWEST <= width <= WHOLE.units and width == power_of_two(width)
    return fits and (dtype == torch.bfloat16 or device == "cpu")


def _launch_whole(batch: int, width: int) -> _Launch:
    options = {
        "WIDTH": width, "ROWS": WHOLE.rows, "EXACT": "ieee",
        "num_warps": WHOLE.warps, "num_stages": WHOLE.stages,
    }  # fmt: skip
    return _Launch((-(-batch // WHOLE.rows),), options)


def _launch(batch: int, width: int) -> _Launch:
    options = {
        "ROWS": PLAIN.rows, "UNITS": PLAIN.units,
        "num_warps": PLAIN.warps, "num_stages": PLAIN.stages,
    }  # fmt: skip
    return _Launch((-(-batch // PLAIN.rows), -(-width // PLAIN.units)), options)


class _Sequence(torch.autograd.Function):
    """The sequence and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own stub is untyped
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        hidden: Tensor,
        cell: Tensor,
        reset: Tensor,
        initial_hidden: Tensor,
        initial_cell: Tensor,
        is_lstm: bool,  # noqa: FBT001 - apply takes no names
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        given = (x, weight, bias, hidden, cell, reset, initial_hidden, initial_cell)
        ctx.is_narrow = is_narrow(hidden.shape[-1], dtype, x.device.type)
        if ctx.is_narrow:
            output, last, kept = _run_whole(*given, is_lstm=is_lstm, dtype=dtype)
        else:
            output, last, kept = _run(*given, is_lstm=is_lstm, dtype=dtype, keeps=True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept, reset.contiguous(), initial_cell.float().contiguous())
        ctx.is_lstm, ctx.inputs, ctx.dtypes = is_lstm, x.shape[-1], (x.dtype, hidden.dtype)
        return output, last.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        *saved, reset, initial_cell = ctx.saved_tensors
        kept, needed = _Kept(*saved), ctx.needs_input_grad
        with torch.autocast(reset.device.type, enabled=False):
            if ctx.is_narrow:
                back = _back_whole(
                    kept, reset, initial_cell, grads,
                    is_lstm=ctx.is_lstm, wants_inputs=needed[0],
                )  # fmt: skip
            else:
                back = _back(
                    kept, reset, initial_cell, grads,
                    is_lstm=ctx.is_lstm, wants_inputs=needed[0], learns=needed[6] or needed[7],
                )  # fmt: skip
            width, fresh = kept.first.shape[-1], reset[0, :, None]
            of_x = None if back.inputs is None else back.inputs[..., : ctx.inputs].to(ctx.dtypes[0])
            first = back.hidden.float()
            sums = back.sums.sum(0)
            initial_h = sums[:width] + torch.where(fresh, first, 0.0).sum(0)
            hidden = torch.where(fresh, 0.0, first).to(ctx.dtypes[1]) if needed[3] else None
            cell = torch.where(fresh, 0.0, back.carry).to(ctx.dtypes[1]) if needed[4] else None
            gates = back.gates.flatten(0, 1)
            of_weight = exact_product(gates.t(), kept.joined.flatten(0, 1))
            of_bias = sum_rows(gates)
        return (
            of_x, of_weight, of_bias, hidden, cell, None,
            initial_h, sums[width:], None, None,
        )  # fmt: skip


class _Back(NamedTuple):
    """Gradients of all rows."""

    gates: Tensor
    """[T, B, 4 H]."""
    inputs: Tensor | None
    """[T, B, I or more]; None where nobody wants it."""
    hidden: Tensor
    """Of the output before the first row, wherever it came from, [B, H]."""
    carry: Tensor
    """Of the cell before the first row, float32 [B, H]."""
    sums: Tensor
    """Of initial states in each block of rows, float32 [R, 2 H]."""


def _back(
    kept: _Kept,
    reset: Tensor,
    initial_cell: Tensor,
    grads: tuple[Tensor | None, ...],
    *,
    is_lstm: bool,
    wants_inputs: bool,
    learns: bool,
) -> _Back:
    from stormsail.functional.kernels.layers.recurrent_triton import backward_row

    (rows, batch, _), width = kept.joined.shape, kept.first.shape[-1]
    launch = _launch(batch, width)
    flags = reset.view(torch.uint8)
    grad_output, grad_cell = grads
    carry = torch.empty_like(kept.first) if grad_cell is None else grad_cell.float().clone()
    above = kept.joined if grad_output is None else grad_output.to(kept.joined.dtype).contiguous()
    grad_gates = torch.empty_like(kept.active)
    sums = torch.zeros(launch.grid[0], 2 * width, device=reset.device)
    # the product of a row brings back input and state together
    weight = kept.weight if wants_inputs else kept.weight[:, :width]
    behind = kept.joined.new_empty((rows if wants_inputs else 1, batch, weight.shape[1]))
    for t in range(rows - 1, -1, -1):
        has_next, following = t + 1 < rows, min(t + 1, rows - 1)
        tables = (
            carry, kept.active[t], kept.cells[t], kept.cells[t - 1] if t else kept.first,
            flags[t], flags[following], initial_cell, grad_gates[t], sums, batch, width,
        )  # fmt: skip
        options = {
            "LSTM": is_lstm, "OUTPUT": grad_output is not None, "NEXT": has_next,
            "CARRIED": has_next or grad_cell is not None, "LEARN": learns, **launch.options,
        }  # fmt: skip
        back = behind[following if wants_inputs else 0]
        backward_row[launch.grid](above[t], back, *tables, weight.shape[1], **options)
        torch.mm(grad_gates[t], weight, out=behind[t if wants_inputs else 0])
    inputs = behind[..., width:] if wants_inputs else None
    return _Back(grad_gates, inputs, behind[0, :, :width], carry, sums)


def _back_whole(
    kept: _Kept,
    reset: Tensor,
    initial_cell: Tensor,
    grads: tuple[Tensor | None, ...],
    *,
    is_lstm: bool,
    wants_inputs: bool,
) -> _Back:
    """Return what `_back` does, from one kernel for all rows."""
    from stormsail.functional.kernels.layers.sequence_triton import backward_rows

    (rows, batch, columns), width = kept.joined.shape, kept.first.shape[-1]
    launch = _launch_whole(batch, width)
    grad_output, grad_cell = grads
    carry = torch.zeros_like(kept.first) if grad_cell is None else grad_cell.float().clone()
    above = kept.joined if grad_output is None else grad_output.to(kept.joined.dtype).contiguous()
    grad_gates, grad_hidden = torch.empty_like(kept.active), torch.empty_like(kept.first)
    sums = torch.empty(launch.grid[0], 2 * width, device=reset.device)
    backward_rows[launch.grid](
        above[-1], kept.weight, carry, kept.active[-1], kept.cells[-1], kept.first,
        reset.view(torch.uint8)[-1], initial_cell, grad_gates[-1], grad_hidden, sums,
        rows, batch, columns, LSTM=is_lstm, OUTPUT=grad_output is not None, **launch.options,
    )  # fmt: skip
    inputs = None
    if wants_inputs:
        inputs = torch.mm(grad_gates.flatten(0, 1), kept.weight[:, width:]).unflatten(
            0, (rows, batch)
        )
    return _Back(grad_gates, inputs, grad_hidden, carry, sums)


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """Return a product in float32 of factors of any kind."""
    if left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(left, right)
