"""What stands behind the matrix product of a fully connected layer, as Triton kernels.

Tables [R, N], without gaps but for what comes back. A program has `UNITS` columns and, but for the
product, goes through `REPEAT` blocks of `ROWS` rows, so that a sum over rows is one number a column
and program.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `KIND`, the dtype of the arithmetic, may be."""


@triton.jit
def _tanh(x):
    # the exponential of a negative number: large ones end at +-1, small ones keep digits
    near = tl.minimum(tl.abs(x), 20.0)
    e = tl.exp(-2.0 * near)
    size = (1.0 - e) / (1.0 + e)
    square = near * near
    series = near * (1.0 - square * (0.33333334 - square * 0.13333334))
    size = tl.where(square < 0.0025, series, size)
    y = tl.where(x < 0.0, -size, size)
    return tl.where(x == x, y, x)


@triton.jit
def _squashed(x, FAST: tl.constexpr):
    """Return tanh, `FAST` with a relative error of 2^-11: a quarter of what bfloat16 rounds off."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return _tanh(x)


@triton.jit
def product_tanh(
    x, weight, bias, table, rows, units, inputs,
    ROWS: tl.constexpr, UNITS: tl.constexpr, INPUTS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write tanh(x weight' + bias) of tables [R, I] and [N, I] without gaps.

    Neighbouring programs have the same rows, so that these come from memory once.
    """
    blocks = tl.cdiv(units, UNITS)
    row = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(0) % blocks * UNITS + tl.arange(0, UNITS)
    column = tl.arange(0, INPUTS)
    is_row, is_unit = row < rows, unit < units
    total = tl.zeros([ROWS, UNITS], tl.float32)
    for begin in range(0, inputs, INPUTS):
        at = begin + column
        here = at < inputs
        left = tl.load(
            x + row[:, None] * inputs + at[None, :], mask=is_row[:, None] & here[None, :], other=0.0
        )
        right = tl.load(
            weight + unit[None, :] * inputs + at[:, None],
            mask=is_unit[None, :] & here[:, None],
            other=0.0,
        )
        total = tl.dot(left, right, total)
    shift = tl.load(bias + unit, mask=is_unit, other=0.0)
    y = _squashed(total + shift[None, :], FAST)
    place = table + row[:, None] * units + unit[None, :]
    tl.store(place, y.to(table.dtype.element_ty), mask=is_row[:, None] & is_unit[None, :])


@triton.jit
def kept_product_tanh(
    x, weight, bias, table, rows, units, inputs,
    ROWS: tl.constexpr, UNITS: tl.constexpr, INPUTS: tl.constexpr, FAST: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write the same where a program keeps its units' weights and goes through many blocks of rows.

    What is read for each block is its inputs alone. Neighbouring programs have the same rows.
    """
    blocks = tl.cdiv(units, UNITS)
    unit = tl.program_id(0) % blocks * UNITS + tl.arange(0, UNITS)
    column = tl.arange(0, INPUTS)
    is_unit, is_column = unit < units, column < inputs
    right = tl.load(
        weight + unit[None, :] * inputs + column[:, None],
        mask=is_unit[None, :] & is_column[:, None],
        other=0.0,
    )
    shift = tl.load(bias + unit, mask=is_unit, other=0.0)
    first, step = tl.program_id(0) // blocks, tl.num_programs(0) // blocks
    for block in tl.range(first, tl.cdiv(rows, ROWS), step, num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        is_row = (row < rows)[:, None]
        place = x + row[:, None] * inputs + column[None, :]
        left = tl.load(place, mask=is_row & is_column[None, :], other=0.0)
        y = _squashed(tl.dot(left, right) + shift[None, :], FAST)
        place = table + row[:, None] * units + unit[None, :]
        tl.store(place, y.to(table.dtype.element_ty), mask=is_row & is_unit[None, :])


@triton.jit
def bias_tanh(
    table, bias, rows, units,
    ROWS: tl.constexpr, UNITS: tl.constexpr, REPEAT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Replace a product by tanh(product + bias)."""
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    is_unit = unit < units
    shift = tl.load(bias + unit, mask=is_unit, other=0.0)
    first = tl.program_id(0).to(tl.int64) * (ROWS * REPEAT)
    for k in range(REPEAT):
        row = first + k * ROWS + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & is_unit[None, :]
        place = table + row[:, None] * units + unit[None, :]
        x = tl.load(place, mask=here, other=0.0).to(tl.float32) + shift[None, :]
        tl.store(place, _squashed(x, FAST).to(table.dtype.element_ty), mask=here)


@triton.jit
def slopes_and_sums(
    grad, output, slope, sums, rows, units, stride,
    TANH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write the sum over this program's rows of a layer's gradient, before `TANH` if there is one.

    That gradient itself is written only behind a `TANH`; otherwise it is `grad`, whose rows are
    `stride` apart.
    """
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    is_unit = unit < units
    first = tl.program_id(0).to(tl.int64) * (ROWS * REPEAT)
    total = tl.zeros([ROWS, UNITS], tl.float32)
    for k in range(REPEAT):
        row = first + k * ROWS + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & is_unit[None, :]
        flat = row[:, None] * units + unit[None, :]
        place = grad + row[:, None] * stride + unit[None, :]
        d = tl.load(place, mask=here, other=0.0).to(tl.float32)
        if TANH:
            y = tl.load(output + flat, mask=here, other=0.0).to(tl.float32)
            d = d * (1.0 - y * y)
            tl.store(slope + flat, d.to(slope.dtype.element_ty), mask=here)
        total += d
    at = tl.program_id(0).to(tl.int64) * units + unit
    tl.store(sums + at, tl.sum(total, axis=0), mask=is_unit)


@triton.jit
def back_to_weights(
    grad, output, x, parts, rows, units, inputs, stride,
    ROWS: tl.constexpr, UNITS: tl.constexpr, INPUTS: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write the gradients of weights [N, I] and biases [N] over this program's rows, one row each.

    The gradient before the tanh is needed for nothing else and kept nowhere. Rows of `grad` are
    `stride` apart.
    """
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    column = tl.arange(0, INPUTS)
    is_unit, is_column = unit < units, column < inputs
    first = tl.program_id(1).to(tl.int64) * (ROWS * REPEAT)
    of_weight = tl.zeros([UNITS, INPUTS], tl.float32)
    of_bias = tl.zeros([ROWS, UNITS], tl.float32)
    for k in range(REPEAT):
        row = first + k * ROWS + tl.arange(0, ROWS)
        is_row = (row < rows)[:, None]
        here = is_row & is_unit[None, :]
        d = tl.load(grad + row[:, None] * stride + unit[None, :], mask=here, other=0.0)
        y = tl.load(output + row[:, None] * units + unit[None, :], mask=here, other=0.0)
        place = x + row[:, None] * inputs + column[None, :]
        seen = tl.load(place, mask=is_row & is_column[None, :], other=0.0)
        y = y.to(tl.float32)
        d = d.to(tl.float32) * (1.0 - y * y)
        of_bias += d
        left = tl.trans(d.to(seen.dtype))
        of_weight = tl.dot(left, seen, of_weight, input_precision="ieee")
    parts += tl.program_id(1).to(tl.int64) * (units * (inputs + 1))
    at = unit[:, None] * inputs + column[None, :]
    tl.store(parts + at, of_weight, mask=is_unit[:, None] & is_column[None, :])
    tl.store(parts + units * inputs + unit, tl.sum(of_bias, axis=0), mask=is_unit)


@triton.jit
def weighted_rows(
    table, weight, result, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Write the weighted sum of each row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < width
    share = tl.load(weight + column, mask=is_column, other=0.0).to(KIND)
    at = row[:, None] * width + column[None, :]
    x = tl.load(table + at, mask=is_row[:, None] & is_column[None, :], other=0.0).to(KIND)
    tl.store(result + row, tl.sum(x * share[None, :], axis=1), mask=is_row)
