"""Last layers behind a tanh, and the way back through both, as Triton kernels.

Some heads of equal size stand side by side in a table: hidden units [R, heads * U], of which a
kernel is given the columns of its heads, and outputs [R, heads, N] without gaps.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def last_layers(
    hidden, weight, bias, output, rows, stride, units, N: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Write each head's hidden units times its weight [N, U], plus its bias, in float32."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    level, unit = tl.arange(0, LEVELS), tl.arange(0, UNITS)
    is_row, is_level = row < rows, level < N
    place = hidden + row[:, None] * stride + (head * units + unit)[None, :]
    own = weight + (head * N + level)[None, :] * units + unit[:, None]
    total = tl.zeros([ROWS, LEVELS], tl.float32)
    for begin in range(0, units, UNITS):
        is_unit = begin + unit < units
        left = tl.load(place + begin, mask=is_row[:, None] & is_unit[None, :], other=0.0)
        right = tl.load(own + begin, mask=is_unit[:, None] & is_level[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    shift = tl.load(bias + head * N + level, mask=is_level, other=0.0).to(tl.float32)
    at = (row[:, None] * tl.num_programs(1) + head) * N + level[None, :]
    tl.store(output + at, total + shift[None, :], mask=is_row[:, None] & is_level[None, :])


@triton.jit
def heads_back(
    grad, hidden, weight, slope, parts, rows, stride, units, grad_eighth,
    N: tl.constexpr, FILLED: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
    LEVELS: tl.constexpr, REPEAT: tl.constexpr,
):  # fmt: skip
    """Write the gradient before the tanh, where `hidden` stands, and all sums over own rows.

    Sums of the program's `REPEAT` blocks of rows, one row of `parts` for each program: of the
    biases before the tanh [heads, U], of the last weights [heads, N, U], of their biases [heads,
    N]. Rows of `grad`, float32, are 8 * `grad_eighth` apart, so that 16 bytes are read at once.
    Each head has `FILLED` columns there. Neighbouring programs have the same rows, which so come
    from memory once.
    """
    blocks = tl.cdiv(units, UNITS)
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    heads = tl.num_programs(0) // blocks
    level, unit = tl.arange(0, LEVELS), block * UNITS + tl.arange(0, UNITS)
    is_level, is_unit = level < N, unit < units
    inner = is_level[:, None] & is_unit[None, :]
    own = tl.load(
        weight + (head * N + level)[:, None] * units + unit[None, :], mask=inner, other=0.0
    )
    of_bias = tl.zeros([ROWS, UNITS], tl.float32)
    of_weight = tl.zeros([UNITS, LEVELS], tl.float32)
    of_last = tl.zeros([ROWS, LEVELS], tl.float32)
    first = tl.program_id(1).to(tl.int64) * (ROWS * REPEAT)
    for k in range(REPEAT):
        row = first + k * ROWS + tl.arange(0, ROWS)
        is_row = (row < rows)[:, None]
        above = tl.load(
            grad + row[:, None] * (8 * grad_eighth) + (head * FILLED + level)[None, :],
            mask=is_row & (level < FILLED)[None, :],
            other=0.0,
        )
        at = row[:, None] * stride + (head * units + unit)[None, :]
        here = is_row & is_unit[None, :]
        y = tl.load(hidden + at, mask=here, other=0.0)
        factor = above.to(y.dtype)
        d = tl.dot(factor, own, input_precision="ieee")
        of_weight = tl.dot(tl.trans(y), factor, of_weight, input_precision="ieee")
        wide = y.to(tl.float32)
        d = d * (1.0 - wide * wide)
        tl.store(slope + at, d.to(slope.dtype.element_ty), mask=here)
        of_bias += d
        of_last += above
    width = heads * (units + N * units + N)
    parts += tl.program_id(1).to(tl.int64) * width
    tl.store(parts + head * units + unit, tl.sum(of_bias, axis=0), mask=is_unit)
    parts += heads * units
    at = (head * N + level)[None, :] * units + unit[:, None]
    tl.store(parts + at, of_weight, mask=is_unit[:, None] & is_level[None, :])
    parts += heads * N * units
    tl.store(parts + head * N + level, tl.sum(of_last, axis=0), mask=is_level & (block == 0))
