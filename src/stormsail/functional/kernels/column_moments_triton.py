"""Weighted sums of the columns of a table, in float64, as a Triton kernel."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def column_sums(
    x, weight, mean, parts, rows, stride, N: tl.constexpr, SQUARES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write this program's sums of w x, or of w (x - mean)^2 if `SQUARES`, and that of w last.

    [N + 1] for each program. Rows of weight 0 or less take no part; one whose weight is NaN does.
    """
    column = tl.arange(0, COLUMNS)
    is_column = column < N
    middle = tl.zeros([COLUMNS], tl.float64)
    if SQUARES:
        middle = tl.load(mean + column, mask=is_column, other=0.0)
    total = tl.zeros([ROWS, COLUMNS], tl.float64)
    mass = tl.zeros([ROWS], tl.float64)
    first = tl.program_id(0).to(tl.int64) * (ROWS * REPEAT)
    for k in range(REPEAT):
        row = first + k * ROWS + tl.arange(0, ROWS)
        w = tl.load(weight + row, mask=row < rows, other=0.0).to(tl.float64)
        used = (row < rows) & ((w > 0.0) | (w != w))
        w = tl.where(used, w, 0.0)
        here = used[:, None] & is_column[None, :]
        value = tl.load(x + row[:, None] * stride + column[None, :], mask=here, other=0.0)
        value = value.to(tl.float64)
        if SQUARES:
            value = tl.where(used[:, None], value - middle[None, :], 0.0)
            value = value * value
        total += w[:, None] * value
        mass += w
    parts += tl.program_id(0).to(tl.int64) * (N + 1)
    tl.store(parts + column, tl.sum(total, axis=0), mask=is_column)
    tl.store(parts + N, tl.sum(mass, axis=0))
