"""What stands behind the matrix product of a fully connected layer, as Triton kernels.

Tables [R, N] without gaps. A program has `UNITS` columns and goes through `REPEAT` blocks of
`ROWS` rows, so that a sum over rows is one number a column and program.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def bias_tanh(
    table, bias, rows, units,
    ROWS: tl.constexpr, UNITS: tl.constexpr, REPEAT: tl.constexpr,
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
        # the exponential of a negative number: large ones end at +-1, small ones keep digits
        near = tl.minimum(tl.abs(x), 20.0)
        e = tl.exp(-2.0 * near)
        size = (1.0 - e) / (1.0 + e)
        square = near * near
        series = near * (1.0 - square * (0.33333334 - square * 0.13333334))
        size = tl.where(square < 0.0025, series, size)
        y = tl.where(x < 0.0, -size, size)
        tl.store(place, tl.where(x == x, y, x).to(table.dtype.element_ty), mask=here)


@triton.jit
def slopes_and_sums(
    grad, output, slope, sums, rows, units,
    TANH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write the sum over this program's rows of a layer's gradient, before `TANH` if there is one.

    That gradient itself is written only behind a `TANH`; otherwise it is `grad`.
    """
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    is_unit = unit < units
    first = tl.program_id(0).to(tl.int64) * (ROWS * REPEAT)
    total = tl.zeros([UNITS], tl.float32)
    for k in range(REPEAT):
        row = first + k * ROWS + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & is_unit[None, :]
        flat = row[:, None] * units + unit[None, :]
        d = tl.load(grad + flat, mask=here, other=0.0).to(tl.float32)
        if TANH:
            y = tl.load(output + flat, mask=here, other=0.0).to(tl.float32)
            d = d * (1.0 - y * y)
            tl.store(slope + flat, d.to(slope.dtype.element_ty), mask=here)
        total += tl.sum(d, axis=0)
    at = tl.program_id(0).to(tl.int64) * units + unit
    tl.store(sums + at, total, mask=is_unit)
