"""A whole step of the UPGD family with the gradient scaler, as four Triton kernels.

A program works on one chunk of one tensor. Where the tensors lie is read from a table of addresses,
so that one launch serves a network of any number of tensors: `pointers` [P, 7], the columns being
gradient, parameter, utility, first and second moment, the scaler's mean, and the counter of steps
(float32). `chunks` [C, 2] holds a tensor and the place of its first element. `table` [P, 12] is the
coefficients of `stormsail.optim._compiled_rows`, where the formulas are.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `DTYPE` may be."""


@triton.jit
def _tensor(pointers, place, COLUMN: tl.constexpr, DTYPE: tl.constexpr):
    address = tl.load(pointers + 7 * place + COLUMN)
    return address.to(tl.pointer_type(DTYPE))


@triton.jit
def _moved_utility(utility, step, param, row):
    return utility - tl.load(row + 2) * (utility + step * param)


@triton.jit
def _follow(pointers, place, at, here, grad, row, DTYPE: tl.constexpr):
    """Move the scaler's means."""
    means = _tensor(pointers, place, 5, DTYPE) + at
    mean = tl.load(means, mask=here, other=0.0)
    tl.store(means, mean + tl.load(row + 1) * (grad - mean), mask=here)


@triton.jit
def _adam(pointers, place, at, here, step, row, DTYPE: tl.constexpr):
    """Move both moments; return Adam's direction."""
    firsts = _tensor(pointers, place, 3, DTYPE) + at
    seconds = _tensor(pointers, place, 4, DTYPE) + at
    low = tl.load(firsts, mask=here, other=0.0)
    square = tl.load(seconds, mask=here, other=0.0)
    low += tl.load(row + 4) * (step - low)
    square += tl.load(row + 5) * (step * step - square)
    tl.store(firsts, low, mask=here)
    tl.store(seconds, square, mask=here)
    root = tl.sqrt(square) * tl.load(row + 7) + tl.load(row + 8)
    # Where the mask is off, root may be 0; nothing of it is stored.
    return low * tl.load(row + 6) / tl.where(here, root, 1.0)


@triton.jit
def measure(
    pointers,
    chunks,
    sizes,
    counts,
    inverse,
    constants,
    partial,
    SCALER: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Leave a chunk's square sum, peak, and the scaler's two sums in `partial` [C, 4]."""
    chunk = tl.program_id(0)
    place = tl.load(chunks + 2 * chunk)
    at = tl.load(chunks + 2 * chunk + 1) + tl.arange(0, BLOCK)
    here = at < tl.load(sizes + place)
    grad = tl.load(_tensor(pointers, place, 0, DTYPE) + at, mask=here, other=0.0)
    out = partial + 4 * chunk
    tl.store(out, tl.sum(grad * grad))
    tl.store(out + 1, tl.max(tl.abs(grad)))
    if SCALER:
        mean = tl.load(_tensor(pointers, place, 5, DTYPE) + at, mask=here, other=0.0)
        count = tl.load(counts + tl.load(inverse + place)).to(tl.float64) + 1.0
        # (1 - beta) / (1 - beta^k), in float64 as the eager step has it.
        gain = tl.load(constants) / (1.0 - tl.exp(count * tl.load(constants + 1)))
        distance = grad - mean
        moved = mean + gain.to(DTYPE) * distance
        tl.store(out + 2, tl.sum(distance * distance))
        tl.store(out + 3, tl.sum(moved * moved))


@triton.jit
def collect(
    pointers,
    firsts,
    partial,
    measured,
    SCALER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add the chunks of a tensor up in float64, always in one order, into `measured` [P, 5]."""
    place = tl.program_id(0)
    first, last = tl.load(firsts + place), tl.load(firsts + place + 1)
    square = tl.zeros([WIDTH], tl.float64)
    peak = tl.zeros([WIDTH], tl.float64)
    before = tl.zeros([WIDTH], tl.float64)
    after = tl.zeros([WIDTH], tl.float64)
    for begin in range(first, last, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        here = at < last
        square += tl.load(partial + 4 * at, mask=here, other=0.0).to(tl.float64)
        peak = tl.maximum(peak, tl.load(partial + 4 * at + 1, mask=here, other=0.0).to(tl.float64))
        if SCALER:
            before += tl.load(partial + 4 * at + 2, mask=here, other=0.0).to(tl.float64)
            after += tl.load(partial + 4 * at + 3, mask=here, other=0.0).to(tl.float64)
    out = measured + 5 * place
    tl.store(out, tl.sum(square))
    tl.store(out + 1, tl.max(peak))
    tl.store(out + 2, tl.sum(before))
    tl.store(out + 3, tl.sum(after))
    step = tl.load(_tensor(pointers, place, 6, tl.float32))
    tl.store(out + 4, step.to(tl.float64))


@triton.jit
def survey(
    pointers,
    chunks,
    sizes,
    table,
    partial,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Leave the lowest, the highest and the sum of a chunk's utilities in `partial` [3, C]."""
    chunk = tl.program_id(0)
    place = tl.load(chunks + 2 * chunk)
    at = tl.load(chunks + 2 * chunk + 1) + tl.arange(0, BLOCK)
    here = at < tl.load(sizes + place)
    row = table + 12 * place
    grad = tl.load(_tensor(pointers, place, 0, DTYPE) + at, mask=here, other=0.0)
    param = tl.load(_tensor(pointers, place, 1, DTYPE) + at, mask=here, other=0.0)
    utility = tl.load(_tensor(pointers, place, 2, DTYPE) + at, mask=here, other=0.0)
    moved = _moved_utility(utility, grad * tl.load(row), param, row) * tl.load(row + 3)
    out, stride = partial + chunk, tl.num_programs(0)
    tl.store(out, tl.min(tl.where(here, moved, float("inf"))))
    tl.store(out + stride, tl.max(tl.where(here, moved, float("-inf"))))
    tl.store(out + 2 * stride, tl.sum(tl.where(here, moved, 0.0)))


@triton.jit
def advance(
    pointers,
    chunks,
    sizes,
    offsets,
    table,
    lines,
    noise,
    refused,
    MOMENTS: tl.constexpr,
    SCALER: tl.constexpr,
    NOISY: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write parameters and state of a chunk, unless the step is refused."""
    chunk = tl.program_id(0)
    place = tl.load(chunks + 2 * chunk)
    start = tl.load(chunks + 2 * chunk + 1)
    at = start + tl.arange(0, BLOCK)
    goes = tl.load(refused) == 0
    here = (at < tl.load(sizes + place)) & goes
    row = table + 12 * place
    params = _tensor(pointers, place, 1, DTYPE) + at
    utilities = _tensor(pointers, place, 2, DTYPE) + at
    grad = tl.load(_tensor(pointers, place, 0, DTYPE) + at, mask=here, other=0.0)
    param = tl.load(params, mask=here, other=0.0)
    utility = tl.load(utilities, mask=here, other=0.0)
    step = grad * tl.load(row)
    moved = _moved_utility(utility, step, param, row)
    tl.store(utilities, moved, mask=here)
    line = lines + 2 * place
    height = (tl.load(line) - moved * tl.load(row + 3)) * tl.load(line + 1)
    kept = 1.0 / (1.0 + tl.exp(-height))
    if SCALER:
        _follow(pointers, place, at, here, grad, row, DTYPE)
    if MOMENTS:
        step = _adam(pointers, place, at, here, step, row, DTYPE)
    if NOISY:
        drawn = tl.load(noise + tl.load(offsets + place) + at, mask=here, other=0.0)
        step += tl.load(row + 9) * drawn
    param = param * tl.load(row + 11) - tl.load(row + 10) * (kept * step)
    tl.store(params, param, mask=here)
    if (start == 0) & goes:
        counter = _tensor(pointers, place, 6, tl.float32)
        tl.store(counter, tl.load(counter) + 1.0)
