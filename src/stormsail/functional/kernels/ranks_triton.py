"""Numbers of given ranks in each row of a table, as a Triton kernel."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def ranked_rows(
    table, ranks, result, rows, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the numbers of `ranks` [K] of each row [N]: NaN where a row has one.

    A rank is how many numbers of the row are smaller, or equal and before it.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_row = row < rows
    here = is_row[:, None] & (column < N)[None, :]
    x = tl.load(table + row[:, None] * N + column[None, :], mask=here, other=0.0)
    rank = tl.zeros([ROWS, COLUMNS], tl.int32)
    for j in range(N):
        other = tl.load(table + row * N + j, mask=is_row, other=0.0)[:, None]
        before = (other < x) | ((other == x) & (j < column)[None, :])
        rank += before.to(tl.int32)
    wrong = tl.sum((here & (x != x)).to(tl.int32), axis=1) > 0
    for k in range(K):
        chosen = here & (rank == tl.load(ranks + k))
        value = tl.sum(tl.where(chosen, x, 0.0), axis=1)
        value = tl.where(wrong, float("nan"), value)
        tl.store(result + row * K + k, value.to(result.dtype.element_ty), mask=is_row)
