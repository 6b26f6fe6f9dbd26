"""All rows of a narrow LSTM or GRU layer in one Triton kernel, forward and back.

An environment's rows depend on no other environment, so a program takes some environments through
all rows: the weights of the state stay with it, and so does the state. The weights of a wide layer
do not fit. What a row reads is loaded a row ahead, while the row before is computed. The tables are
those of `recurrent_triton`, of all rows.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl

from stormsail.functional.kernels.layers.recurrent_triton import pass_back, pass_gates


@triton.jit
def _tile(weight, unit, down, across):
    """Return a square of weights, by the strides of its rows and columns."""
    return tl.load(weight + unit[:, None] * down + unit[None, :] * across)


@triton.jit
def _four_tiles(weight, unit, down, across, part):
    """Return the squares of all four parts, which begin `part` numbers after one another."""
    return (
        _tile(weight, unit, down, across),
        _tile(weight + part, unit, down, across),
        _tile(weight + 2 * part, unit, down, across),
        _tile(weight + 3 * part, unit, down, across),
    )


@triton.jit
def _four(table, at, mask, WIDTH: tl.constexpr):
    """Return the four parts of rows of a table [B, 4 H]."""
    return (
        tl.load(table + at, mask=mask, other=0.0),
        tl.load(table + at + WIDTH, mask=mask, other=0.0),
        tl.load(table + at + 2 * WIDTH, mask=mask, other=0.0),
        tl.load(table + at + 3 * WIDTH, mask=mask, other=0.0),
    )


@triton.jit
def _write_four(table, at, mask, x0, x1, x2, x3, WIDTH: tl.constexpr):
    kind = table.dtype.element_ty
    tl.store(table + at, x0.to(kind), mask=mask)
    tl.store(table + at + WIDTH, x1.to(kind), mask=mask)
    tl.store(table + at + 2 * WIDTH, x2.to(kind), mask=mask)
    tl.store(table + at + 3 * WIDTH, x3.to(kind), mask=mask)


@triton.jit
def forward_rows(
    linear, weight, bias, hidden, cell, reset, first_hidden, first_cell,
    joined, active, cells, output, rows, batch, columns,
    LSTM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Take environments through all rows.

    `linear` [T, B, 4 H] is the inputs' part of the gates, `weight` [4 H, K] has the state's part in
    its first columns, and `joined` [T, B, K] is given the state that each row starts from.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit, is_row = tl.arange(0, WIDTH), row < batch
    mask = is_row[:, None]
    kind = joined.dtype.element_ty
    w0, w1, w2, w3 = _four_tiles(weight, unit, 1, columns, WIDTH * columns)
    b0, b1 = tl.load(bias + unit)[None, :], tl.load(bias + WIDTH + unit)[None, :]
    b2, b3 = tl.load(bias + 2 * WIDTH + unit)[None, :], tl.load(bias + 3 * WIDTH + unit)[None, :]
    fresh_h, fresh_c = tl.load(first_hidden + unit)[None, :], tl.load(first_cell + unit)[None, :]
    at, wide = row[:, None] * WIDTH + unit[None, :], row[:, None] * (4 * WIDTH) + unit[None, :]
    h = tl.load(hidden + at, mask=mask, other=0.0)
    c = tl.load(cell + at, mask=mask, other=0.0)
    place = joined + row[:, None] * columns + unit[None, :]
    begins = tl.load(reset + row, mask=is_row, other=0)
    x0, x1, x2, x3 = _four(linear, wide, mask, WIDTH)
    for t in range(rows):
        reset += batch
        linear += batch * (4 * WIDTH)
        ahead = is_row & (t + 1 < rows)
        begins_next = tl.load(reset + row, mask=ahead, other=0)
        n0, n1, n2, n3 = _four(linear, wide, ahead[:, None], WIDTH)
        is_new = (begins != 0)[:, None]
        c, before = tl.where(is_new, fresh_c, c), tl.where(is_new, fresh_h, h).to(kind)
        tl.store(place, before, mask=mask)
        x0 = x0.to(tl.float32) + b0 + tl.dot(before, w0, input_precision=EXACT)
        x1 = x1.to(tl.float32) + b1 + tl.dot(before, w1, input_precision=EXACT)
        x2 = x2.to(tl.float32) + b2 + tl.dot(before, w2, input_precision=EXACT)
        x3 = x3.to(tl.float32) + b3 + tl.dot(before, w3, input_precision=EXACT)
        first, second, third, fourth, c, h = pass_gates(x0, x1, x2, x3, c, LSTM)
        tl.store(cells + at, c, mask=mask)
        tl.store(output + at, h.to(kind), mask=mask)
        _write_four(active, wide, mask, first, second, third, fourth, WIDTH)
        place += batch * columns
        active += batch * (4 * WIDTH)
        cells += batch * WIDTH
        output += batch * WIDTH
        begins = begins_next
        x0, x1, x2, x3 = n0, n1, n2, n3


@triton.jit
def _above(grad_output, at, mask, kind: tl.constexpr, OUTPUT: tl.constexpr):
    """Return the gradient of a row's output from above; zeros where there is none."""
    above = tl.zeros(at.shape, kind)
    if OUTPUT:
        above = tl.load(grad_output + at, mask=mask, other=0.0)
    return above


@triton.jit
def _cell_before(cells, before, at, mask, is_last):
    """Return the cell before a row: that of the row before, or the one before the first row."""
    earlier = cells
    if is_last:
        earlier = before
    return tl.load(earlier + at, mask=mask, other=0.0)


@triton.jit
def _through(d0, d1, d2, d3, w0, w1, w2, w3, kind: tl.constexpr, EXACT: tl.constexpr):
    """Return what comes back to the output of the row before through the weights of the state."""
    back = tl.dot(d0.to(kind), w0, input_precision=EXACT)
    back = tl.dot(d1.to(kind), w1, acc=back, input_precision=EXACT)
    back = tl.dot(d2.to(kind), w2, acc=back, input_precision=EXACT)
    return tl.dot(d3.to(kind), w3, acc=back, input_precision=EXACT)


@triton.jit
def _store_sums(sums, unit, of_hidden, of_cell, WIDTH: tl.constexpr):
    sums += tl.program_id(0).to(tl.int64) * (2 * WIDTH)
    tl.store(sums + unit, tl.sum(of_hidden, axis=0))
    tl.store(sums + WIDTH + unit, tl.sum(of_cell, axis=0))


@triton.jit
def backward_rows(
    grad_output, weight, carry, active, cells, before, reset, first_cell,
    grad_gates, grad_hidden, sums, rows, batch, columns,
    LSTM: tl.constexpr, OUTPUT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Take gradients of environments back through all rows; tables begin at their last row.

    `carry` [B, H] is the gradient of the last cell, and becomes that of the one before the first
    row; `grad_hidden` [B, H] is given that of the output there. `sums` [2 H] of a program's rows:
    of the gradients of hidden states and of cells that were initial ones, but for hidden states of
    the first row.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit, is_row = tl.arange(0, WIDTH), row < batch
    mask = is_row[:, None]
    kind = grad_gates.dtype.element_ty
    w0, w1, w2, w3 = _four_tiles(weight, unit, columns, 1, WIDTH * columns)
    fresh_c = tl.load(first_cell + unit)[None, :]
    at, wide = row[:, None] * WIDTH + unit[None, :], row[:, None] * (4 * WIDTH) + unit[None, :]
    dc = tl.load(carry + at, mask=mask, other=0.0)
    back, of_hidden, of_cell = tl.zeros_like(dc), tl.zeros_like(dc), tl.zeros_like(dc)
    after = tl.load(cells + at, mask=mask, other=0.0)
    begins = tl.load(reset + row, mask=is_row, other=0)
    first, second, third, fourth = _four(active, wide, mask, WIDTH)
    above = _above(grad_output, at, mask, kind, OUTPUT)
    for t in range(rows):
        reset -= batch
        active -= batch * (4 * WIDTH)
        cells -= batch * WIDTH
        grad_output -= batch * WIDTH
        is_last = t + 1 == rows
        ahead = is_row & (t + 1 < rows)
        begins_next = tl.load(reset + row, mask=ahead, other=0)
        n0, n1, n2, n3 = _four(active, wide, ahead[:, None], WIDTH)
        above_next = _above(grad_output, at, ahead[:, None], kind, OUTPUT)
        c = _cell_before(cells, before, at, mask, is_last)
        is_new = (begins != 0)[:, None]
        old = tl.where(is_new, fresh_c, c)
        back += above.to(tl.float32)
        d0, d1, d2, d3, dc = pass_back(back, dc, first, second, third, fourth, old, after, LSTM)
        _write_four(grad_gates, wide, mask, d0, d1, d2, d3, WIDTH)
        grad_gates -= batch * (4 * WIDTH)
        back = _through(d0, d1, d2, d3, w0, w1, w2, w3, kind, EXACT)
        of_cell += tl.where(is_new, dc, 0.0)
        if not is_last:
            of_hidden += tl.where(is_new, back, 0.0)
            back, dc = tl.where(is_new, 0.0, back), tl.where(is_new, 0.0, dc)
        after, begins, above = c, begins_next, above_next
        first, second, third, fourth = n0, n1, n2, n3
    tl.store(carry + at, dc, mask=mask)
    tl.store(grad_hidden + at, back, mask=mask)
    _store_sums(sums, unit, of_hidden, of_cell, WIDTH)
