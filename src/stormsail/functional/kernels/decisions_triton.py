"""What is done with each row of a decision beside the network, as Triton kernels."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `KIND`, the dtype of the arithmetic, may be."""


@triton.jit
def _places(rows, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    return row, column, row < rows, column < N


@triton.jit
def standardise(
    x, mean, variance, passed, result, rows, stride,
    N: tl.constexpr, CLIP: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write (x - mean) / sqrt(variance + EPS) within +-CLIP, or x where a column is `passed` on."""
    row, column, is_row, is_column = _places(rows, N, ROWS, COLUMNS)
    here = is_row[:, None] & is_column[None, :]
    middle = tl.load(mean + column, mask=is_column, other=0.0)
    least = tl.full([], EPS, tl.float64)  # a number by itself would be rounded to float32
    spread = tl.sqrt(tl.load(variance + column, mask=is_column, other=1.0) + least)
    given = tl.load(x + row[:, None] * stride + column[None, :], mask=here, other=0.0)
    scaled = (given.to(tl.float64) - middle[None, :]) / spread[None, :]
    limit = tl.full([], CLIP, tl.float64)
    scaled = tl.minimum(scaled, limit, propagate_nan=tl.PropagateNan.ALL)
    scaled = tl.maximum(scaled, -limit, propagate_nan=tl.PropagateNan.ALL)
    is_passed = tl.load(passed + column, mask=is_column, other=0) != 0
    value = tl.where(is_passed[None, :], given, scaled.to(given.dtype))
    tl.store(result + row[:, None] * N + column[None, :], value, mask=here)


@triton.jit
def draw_classes(
    logits, uniform, chosen, rows, stride,
    N: tl.constexpr, TINY: tl.constexpr, KIND: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the class of the largest logit with Gumbel noise, the first of equal ones."""
    row, column, is_row, is_column = _places(rows, N, ROWS, COLUMNS)
    here = is_row[:, None] & is_column[None, :]
    x = tl.load(logits + row[:, None] * stride + column[None, :], mask=here, other=0.0).to(KIND)
    u = tl.load(uniform + row[:, None] * N + column[None, :], mask=here, other=0.5).to(KIND)
    score = x - tl.log(-tl.log(tl.maximum(u, tl.full([], TINY, KIND))))
    score = tl.where(score == score, score, float("inf"))  # a NaN is the largest
    score = tl.where(is_column[None, :], score, float("-inf"))
    largest = tl.max(score, axis=1)
    first = tl.where(score == largest[:, None], column[None, :], COLUMNS)
    tl.store(chosen + row, tl.min(first, axis=1).to(tl.int64), mask=is_row)


@triton.jit
def class_log_probs(
    logits, chosen, result, rows, stride,
    N: tl.constexpr, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the log probability of each row's class."""
    row, column, is_row, is_column = _places(rows, N, ROWS, COLUMNS)
    here = is_row[:, None] & is_column[None, :]
    x = tl.load(logits + row[:, None] * stride + column[None, :], mask=here, other=0.0).to(KIND)
    x = tl.where(is_column[None, :], x, float("-inf"))
    shifted = x - tl.max(x, axis=1)[:, None]
    total = tl.sum(tl.where(is_column[None, :], tl.exp(shifted), 0.0), axis=1)
    own = column[None, :] == tl.load(chosen + row, mask=is_row, other=0)[:, None]
    value = tl.sum(tl.where(own, shifted, 0.0), axis=1) - tl.log(total)
    tl.store(result + row, value.to(result.dtype.element_ty), mask=is_row)
