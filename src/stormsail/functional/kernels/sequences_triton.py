"""Some of the sequences that stand side by side in a table, as a Triton kernel."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def copy_sequences(
    table, chosen, result, rows, count, size, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy the `chosen` ones of `size` sequences, [T, size, WIDTH] to [T, count, WIDTH].

    `rows` are all that are written: T * count.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row = row < rows
    here = is_row[:, None] & (column < WIDTH)[None, :]
    place = tl.load(chosen + row % count, mask=is_row, other=0)
    source = (row // count).to(tl.int64) * size + place
    value = tl.load(table + source[:, None] * WIDTH + column[None, :], mask=here)
    tl.store(result + row.to(tl.int64)[:, None] * WIDTH + column[None, :], value, mask=here)
