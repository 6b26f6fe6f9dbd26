"""One row of an LSTM or GRU layer, what stands behind its matrix product, as Triton kernels.

Tables of a row: gates, active and grad_gates [B, 4 H]; cells, carry and output [B, H]. A GRU has
four parts, too: r, z, and both halves of n, which its reset gate stands between. Its state in
float32 is kept where an LSTM keeps the cell.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def places(batch, width, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Return the rows and units of this program, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    return row, unit, row < batch, unit < width


@triton.jit
def pass_gates(x0, x1, x2, x3, cell, LSTM: tl.constexpr):
    """Return the gates of a row from their linear parts, its state, and its output."""
    if LSTM:
        first, second, third, fourth = tl.sigmoid(x0), tl.sigmoid(x1), _tanh(x2), tl.sigmoid(x3)
        cell = second * cell + first * third
        hidden = fourth * _tanh(cell)
    else:
        first, second, fourth = tl.sigmoid(x0), tl.sigmoid(x1), x3
        third = _tanh(x2 + first * x3)
        cell = third + second * (cell - third)
        hidden = cell
    return first, second, third, fourth, cell, hidden


@triton.jit
def activate(
    x0, x1, x2, x3, cell, active, after, output, following, reset_after, first_hidden,
    row, unit, is_row, is_unit, width, following_stride,
    LSTM: tl.constexpr, SAVE: tl.constexpr, NEXT: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Write what the gates of a row give: its state, its output and the input of the next row.

    `after` is a table of cells or, of the `LAST` row, the whole state [B, P, H].
    """
    first, second, third, fourth, cell, hidden = pass_gates(x0, x1, x2, x3, cell, LSTM)
    here = is_row[:, None] & is_unit[None, :]
    kind = output.dtype.element_ty
    flat = row[:, None] * width + unit[None, :]
    if LAST and LSTM:
        state = after + row[:, None] * (2 * width) + unit[None, :]
        tl.store(state, hidden.to(kind).to(tl.float32), mask=here)
        tl.store(state + width, cell, mask=here)
    else:
        tl.store(after + flat, cell, mask=here)
    tl.store(output + flat, hidden.to(kind), mask=here)
    if SAVE:
        at = row[:, None] * (4 * width) + unit[None, :]
        tl.store(active + at, first.to(kind), mask=here)
        tl.store(active + at + width, second.to(kind), mask=here)
        tl.store(active + at + 2 * width, third.to(kind), mask=here)
        tl.store(active + at + 3 * width, fourth.to(kind), mask=here)
    if NEXT:  # what the next product reads is fresh where an episode begins there
        begins = tl.load(reset_after + row, mask=is_row, other=0) != 0
        fresh = tl.load(first_hidden + unit, mask=is_unit, other=0.0)
        hidden = tl.where(begins[:, None], fresh[None, :], hidden)
        place = row[:, None] * following_stride + unit[None, :]
        tl.store(following + place, hidden.to(kind), mask=here)


@triton.jit
def before_row(before, stride, reset, first_cell, row, unit, is_row, is_unit):
    """Return the state before a row, the initial one where an episode begins."""
    here = is_row[:, None] & is_unit[None, :]
    cell = tl.load(before + row[:, None] * stride + unit[None, :], mask=here, other=0.0)
    begins = tl.load(reset + row, mask=is_row, other=0) != 0
    fresh = tl.load(first_cell + unit, mask=is_unit, other=0.0)
    return tl.where(begins[:, None], fresh[None, :], cell), begins


@triton.jit
def _linear(gates, bias, row, unit, here, is_unit, width, PART: tl.constexpr):
    at = row[:, None] * (4 * width) + PART * width + unit[None, :]
    shift = tl.load(bias + PART * width + unit, mask=is_unit, other=0.0)
    return tl.load(gates + at, mask=here, other=0.0).to(tl.float32) + shift[None, :]


@triton.jit
def forward_row(
    gates, bias, before, reset, first_cell, active, after, output,
    following, reset_after, first_hidden, batch, width, following_stride, before_stride,
    LSTM: tl.constexpr, SAVE: tl.constexpr, NEXT: tl.constexpr, LAST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Finish a row whose product of weights and inputs is `gates`."""
    row, unit, is_row, is_unit = places(batch, width, ROWS, UNITS)
    here = is_row[:, None] & is_unit[None, :]
    x0 = _linear(gates, bias, row, unit, here, is_unit, width, PART=0)
    x1 = _linear(gates, bias, row, unit, here, is_unit, width, PART=1)
    x2 = _linear(gates, bias, row, unit, here, is_unit, width, PART=2)
    x3 = _linear(gates, bias, row, unit, here, is_unit, width, PART=3)
    cell, _ = before_row(before, before_stride, reset, first_cell, row, unit, is_row, is_unit)
    activate(
        x0, x1, x2, x3, cell, active, after, output, following, reset_after, first_hidden,
        row, unit, is_row, is_unit, width, following_stride, LSTM, SAVE, NEXT, LAST,
    )  # fmt: skip


@triton.jit
def place_rows(
    x, joined, rows, inputs, room, source_stride, stride,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Copy rows of `inputs` columns to where others are beside them; fill the `room` with 0."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    is_row = (row < rows)[:, None]
    value = tl.load(
        x + row[:, None] * source_stride + unit[None, :],
        mask=is_row & (unit < inputs)[None, :],
        other=0.0,
    )
    place = joined + row[:, None] * stride + unit[None, :]
    tl.store(place, value.to(joined.dtype.element_ty), mask=is_row & (unit < room)[None, :])


@triton.jit
def begin_rows(
    hidden, reset, first_hidden, joined, batch, width, source_stride, stride,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Write the hidden state that the first product reads, fresh where an episode begins."""
    row, unit, is_row, is_unit = places(batch, width, ROWS, UNITS)
    value, _ = before_row(hidden, source_stride, reset, first_hidden, row, unit, is_row, is_unit)
    place = joined + row[:, None] * stride + unit[None, :]
    tl.store(place, value.to(joined.dtype.element_ty), mask=is_row[:, None] & is_unit[None, :])


@triton.jit
def add_rows(sums, unit, is_unit, values):
    """Add the sum over rows to a place that only this program writes."""
    total = tl.load(sums + unit, mask=is_unit, other=0.0)
    tl.store(sums + unit, total + tl.sum(values, axis=0), mask=is_unit)


@triton.jit
def pass_back(dh, dc, first, second, third, fourth, before, after, LSTM: tl.constexpr):
    """Return the gradients of a row's linear parts, and of the state before it.

    From that of its output and `dc`, what the row after it carries to its state; `before` and
    `after` are the cells around it, of which a GRU needs the first alone.
    """
    first, second = first.to(tl.float32), second.to(tl.float32)
    third, fourth = third.to(tl.float32), fourth.to(tl.float32)
    if LSTM:
        squashed = _tanh(after)
        dc += dh * fourth * (1.0 - squashed * squashed)
        d0 = dc * third * first * (1.0 - first)
        d1 = dc * before * second * (1.0 - second)
        d2 = dc * first * (1.0 - third * third)
        d3 = dh * squashed * fourth * (1.0 - fourth)
    else:
        dc += dh
        d2 = dc * (1.0 - second) * (1.0 - third * third)
        d0 = d2 * fourth * first * (1.0 - first)
        d1 = dc * (before - third) * second * (1.0 - second)
        d3 = d2 * first
    return d0, d1, d2, d3, dc * second


@triton.jit
def slopes(
    dh, carry, active, after, before, reset, first_cell, grad_gates, sums,
    row, unit, is_row, is_unit, width,
    LSTM: tl.constexpr, CARRIED: tl.constexpr, LEARN: tl.constexpr, ENDED,
):  # fmt: skip
    """Write the gradient of a row's gates from that of its output; move the carried one along.

    `carry` is the gradient of the cell, and of what of a GRU's state bypasses the gates. `ENDED`
    [ROWS] tells where the next row began anew, so nothing is carried. `sums` [2 H] of these rows:
    of the gradients of hidden states and of cells that were initial ones.
    """
    here = is_row[:, None] & is_unit[None, :]
    flat = row[:, None] * width + unit[None, :]
    at = row[:, None] * (4 * width) + unit[None, :]
    first = tl.load(active + at, mask=here, other=0.0).to(tl.float32)
    second = tl.load(active + at + width, mask=here, other=0.0).to(tl.float32)
    third = tl.load(active + at + 2 * width, mask=here, other=0.0).to(tl.float32)
    fourth = tl.load(active + at + 3 * width, mask=here, other=0.0).to(tl.float32)
    cell, begins = before_row(before, width, reset, first_cell, row, unit, is_row, is_unit)
    dc = tl.zeros_like(dh)
    if CARRIED:
        dc = tl.where(ENDED[:, None], 0.0, tl.load(carry + flat, mask=here, other=0.0))
    cell_after = cell
    if LSTM:
        cell_after = tl.load(after + flat, mask=here, other=0.0)
    d0, d1, d2, d3, dc = pass_back(dh, dc, first, second, third, fourth, cell, cell_after, LSTM)
    kind = grad_gates.dtype.element_ty
    tl.store(carry + flat, dc, mask=here)
    tl.store(grad_gates + at, d0.to(kind), mask=here)
    tl.store(grad_gates + at + width, d1.to(kind), mask=here)
    tl.store(grad_gates + at + 2 * width, d2.to(kind), mask=here)
    tl.store(grad_gates + at + 3 * width, d3.to(kind), mask=here)
    # rows and units that do not exist have gradients of 0, since they were read as 0
    if LEARN:
        add_rows(sums + width, unit, is_unit, tl.where(begins[:, None], dc, 0.0))


@triton.jit
def backward_row(
    grad_output, grad_next, carry, active, after, before, reset, reset_after, first_cell,
    grad_gates, sums, batch, width, next_stride,
    LSTM: tl.constexpr, OUTPUT: tl.constexpr, NEXT: tl.constexpr, CARRIED: tl.constexpr,
    LEARN: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Turn the gradient of a row's output into that of its gates.

    `grad_next` [B, H] is what comes back through the product of the next row.
    """
    row, unit, is_row, is_unit = places(batch, width, ROWS, UNITS)
    here = is_row[:, None] & is_unit[None, :]
    sums += tl.program_id(0).to(tl.int64) * (2 * width)
    dh = tl.zeros([ROWS, UNITS], tl.float32)
    if OUTPUT:
        place = row[:, None] * width + unit[None, :]
        dh += tl.load(grad_output + place, mask=here, other=0.0).to(tl.float32)
    ended = is_row & (row < 0)  # nowhere
    if NEXT:
        ended = tl.load(reset_after + row, mask=is_row, other=0) != 0
        place = row[:, None] * next_stride + unit[None, :]
        back = tl.load(grad_next + place, mask=here, other=0.0).to(tl.float32)
        dh += tl.where(ended[:, None], 0.0, back)
        if LEARN:
            add_rows(sums, unit, is_unit, tl.where(ended[:, None], back, 0.0))
    slopes(
        dh, carry, active, after, before, reset, first_cell, grad_gates, sums,
        row, unit, is_row, is_unit, width, LSTM, CARRIED, LEARN, ended,
    )  # fmt: skip
