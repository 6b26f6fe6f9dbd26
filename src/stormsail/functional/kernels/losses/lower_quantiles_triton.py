"""Lower quantiles of weighted atoms, as a Triton kernel."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def lower_quantiles(
    table, weight, result, rows, width,
    LEVELS: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write of each row [N] the smallest atom up to which the mass reaches each of K levels.

    The mass at or below an atom is summed over all atoms: N^2 comparisons in registers take less
    time than to sort a row with its masses, which goes through memory several times.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_row = row < rows
    here = is_row[:, None] & (column < width)[None, :]
    x = tl.load(table + row[:, None] * width + column[None, :], mask=here, other=0.0)
    mass = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    for place in range(width):
        other = tl.load(table + row * width + place, mask=is_row, other=0.0)
        share = tl.load(weight + place)
        mass += tl.where(other[:, None] <= x, share, 0.0)
    unknown = tl.max((x != x).to(tl.int32), axis=1) > 0
    largest = tl.max(tl.where(here, x, float("-inf")), axis=1)
    for place in tl.static_range(COUNT):
        level = tl.full((1, 1), LEVELS[place], dtype=tl.float64)
        lowest_there = tl.min(tl.where(here & (mass >= level), x, float("inf")), axis=1)
        lowest = tl.where(unknown, float("nan"), tl.minimum(lowest_there, largest))
        tl.store(result + row * COUNT + place, lowest, mask=is_row)
