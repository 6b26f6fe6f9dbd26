"""A whole step of the UPGD family with the gradient scaler, as five Triton kernels.

Three of them go through memory, a program working on one chunk of one tensor; the two others, in
`utility_rows`, do what there is one number a tensor of. Where the tensors lie is read from a table
of addresses, so that one launch serves a network of any number of tensors: `pointers` [P, 7], the
columns being gradient, parameter, utility, first and second moment, the scaler's mean, and the
counter of steps (float32). `chunks` [C, 2] holds a tensor and the place of its first element.
`table` [P, 12] is the coefficients of `stormsail.optim.fused.rows`, where the formulas are, and
`constants` [12] the settings of scaler and clip, from `stormsail.optim.fused.cuda`.

What a chunk adds up is left in memory and added again in one order, so that the same gradients give
the same bits every time.
"""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import torch
import triton
import triton.language as tl

from stormsail.functional.kernels.utility_rows import in_turn, mass_and_power, precompute, tally

KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}
"""What `DTYPE` may be."""


@triton.jit
def _tensor(pointers, place, COLUMN: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    address = tl.load(pointers + 7 * place + COLUMN).to(tl.pointer_type(DTYPE))
    if ALIGNED:  # only then may a thread load 16 bytes at once
        address = tl.multiple_of(address, 16)
    return address


@triton.jit
def _read(address, at, here, MASKED: tl.constexpr):
    # A mask, too, keeps a thread from loading 16 bytes at once: only a tensor's last chunk has one.
    if MASKED:
        return tl.load(address + at, mask=here, other=0.0)
    else:  # Triton must see two branches
        return tl.load(address + at)


@triton.jit
def _write(address, at, here, value, MASKED: tl.constexpr):
    if MASKED:
        tl.store(address + at, value, mask=here)
    else:
        tl.store(address + at, value)


@triton.jit
def _moved_utility(utility, step, param, row):
    return utility - tl.load(row + 2) * (utility + step * param)


@triton.jit
def _measure(
    pointers, place, at, here, count, constants, out, stride,
    SCALER: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    grad = _read(_tensor(pointers, place, 0, DTYPE, ALIGNED), at, here, MASKED)
    if SCALER:
        mean = _read(_tensor(pointers, place, 5, DTYPE, ALIGNED), at, here, MASKED)
        # As if the tensor were seen; one that is not has no use for it. In float64 as the eager
        # step has it, while the loads are on their way.
        mass, _ = mass_and_power(count, constants)
        gain = (tl.load(constants) / mass).to(DTYPE)
        distance = grad - mean
        moved = mean + gain * distance
        tl.store(out + 2 * stride, tl.sum(distance * distance))
        tl.store(out + 3 * stride, tl.sum(moved * moved))
    tl.store(out, tl.sum(grad * grad))
    tl.store(out + stride, tl.max(tl.abs(grad)))


@triton.jit
def measure(
    pointers, chunks, sizes, numbers, constants, counts, inverse, steps, table, ahead, partial,
    tensors,
    SCALER: tl.constexpr, MEDIAN: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
    P: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Leave a chunk's square sum, peak, and the scaler's two sums in `partial` [4, C].

    The first program sees no chunk; it does `precompute`.
    """
    in_turn(EARLY)
    if tl.program_id(0) == 0:
        precompute(
            pointers, sizes, numbers, constants, counts, inverse, steps, table, ahead, tensors,
            SCALER, MEDIAN, P,
        )  # fmt: skip
    else:
        chunk = tl.program_id(0) - 1
        place = tl.load(chunks + 2 * chunk)
        start = tl.multiple_of(tl.load(chunks + 2 * chunk + 1), 16)
        at = start + tl.arange(0, BLOCK)
        size = tl.load(sizes + place)
        count = 1.0
        if SCALER:
            count = tl.load(counts + tl.load(inverse + place)).to(tl.float64) + 1.0
        out, stride = partial + chunk, tl.num_programs(0) - 1
        if start + BLOCK <= size:
            _measure(
                pointers, place, at, at < size, count, constants, out, stride,
                SCALER, DTYPE, ALIGNED, MASKED=False,
            )  # fmt: skip
        else:
            _measure(
                pointers, place, at, at < size, count, constants, out, stride,
                SCALER, DTYPE, ALIGNED, MASKED=True,
            )  # fmt: skip


@triton.jit
def _survey(
    pointers, place, at, here, row, out, stride,
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    grad = _read(_tensor(pointers, place, 0, DTYPE, ALIGNED), at, here, MASKED)
    param = _read(_tensor(pointers, place, 1, DTYPE, ALIGNED), at, here, MASKED)
    utility = _read(_tensor(pointers, place, 2, DTYPE, ALIGNED), at, here, MASKED)
    moved = _moved_utility(utility, grad * tl.load(row), param, row) * tl.load(row + 3)
    low, high, part = moved, moved, moved
    if MASKED:
        low = tl.where(here, moved, float("inf"))
        high = tl.where(here, moved, float("-inf"))
        part = tl.where(here, moved, 0.0)
    tl.store(out, tl.min(low))
    tl.store(out + stride, tl.max(high))
    tl.store(out + 2 * stride, tl.sum(part))


@triton.jit
def survey(
    pointers, chunks, sizes, table, partial, norms, bad_at, ahead, steps, largest, tensors,
    SCALER: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, P: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Leave the lowest, the highest and the sum of a chunk's utilities in `partial` [3, C].

    The first program sees no chunk; it does `tally`.
    """
    in_turn(EARLY)
    if tl.program_id(0) == 0:
        tally(norms, bad_at, ahead, steps, largest, tensors, SCALER, P)
    else:
        chunk = tl.program_id(0) - 1
        place = tl.load(chunks + 2 * chunk)
        start = tl.multiple_of(tl.load(chunks + 2 * chunk + 1), 16)
        at = start + tl.arange(0, BLOCK)
        size = tl.load(sizes + place)
        row, out, stride = table + 12 * place, partial + chunk, tl.num_programs(0) - 1
        if start + BLOCK <= size:
            _survey(pointers, place, at, at < size, row, out, stride, DTYPE, ALIGNED, MASKED=False)
        else:
            _survey(pointers, place, at, at < size, row, out, stride, DTYPE, ALIGNED, MASKED=True)


@triton.jit
def _adam(firsts, seconds, at, here, step, low, square, row, MASKED: tl.constexpr):
    """Move both moments; return Adam's direction."""
    low += tl.load(row + 4) * (step - low)
    square += tl.load(row + 5) * (step * step - square)
    _write(firsts, at, here, low, MASKED)
    _write(seconds, at, here, square, MASKED)
    root = tl.sqrt(square) * tl.load(row + 7) + tl.load(row + 8)
    if MASKED:  # where the mask is off, root may be 0; nothing of it is stored
        root = tl.where(here, root, 1.0)
    return low * tl.load(row + 6) / root


@triton.jit
def _advance(
    pointers, place, at, here, row, line, noise,
    MOMENTS: tl.constexpr, SCALER: tl.constexpr, NOISY: tl.constexpr,
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    params = _tensor(pointers, place, 1, DTYPE, ALIGNED)
    utilities = _tensor(pointers, place, 2, DTYPE, ALIGNED)
    # Every load before the first store, so that all of them are on their way together.
    grad = _read(_tensor(pointers, place, 0, DTYPE, ALIGNED), at, here, MASKED)
    param = _read(params, at, here, MASKED)
    utility = _read(utilities, at, here, MASKED)
    if MOMENTS:
        firsts = _tensor(pointers, place, 3, DTYPE, ALIGNED)
        seconds = _tensor(pointers, place, 4, DTYPE, ALIGNED)
        low = _read(firsts, at, here, MASKED)
        square = _read(seconds, at, here, MASKED)
    if SCALER:
        means = _tensor(pointers, place, 5, DTYPE, ALIGNED)
        mean = _read(means, at, here, MASKED)
    if NOISY:
        drawn = _read(noise, at, here, MASKED)
    step = grad * tl.load(row)
    moved = _moved_utility(utility, step, param, row)
    height = (tl.load(line) - moved * tl.load(row + 3)) * tl.load(line + 1)
    kept = 1.0 / (1.0 + tl.exp(-height))
    _write(utilities, at, here, moved, MASKED)
    if SCALER:
        _write(means, at, here, mean + tl.load(row + 1) * (grad - mean), MASKED)
    if MOMENTS:
        step = _adam(firsts, seconds, at, here, step, low, square, row, MASKED)
    if NOISY:
        step += tl.load(row + 9) * drawn
    param = param * tl.load(row + 11) - tl.load(row + 10) * (kept * step)
    _write(params, at, here, param, MASKED)


@triton.jit
def advance(
    pointers, chunks, sizes, offsets, table, lines, noise, refused,
    MOMENTS: tl.constexpr, SCALER: tl.constexpr, NOISY: tl.constexpr,
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Write parameters and state of one of the parts of a chunk, unless the step is refused."""
    in_turn(EARLY)
    if tl.load(refused) == 0:
        chunk = tl.program_id(0) // PARTS
        place = tl.load(chunks + 2 * chunk)
        start = tl.load(chunks + 2 * chunk + 1) + BLOCK * (tl.program_id(0) % PARTS)
        start = tl.multiple_of(start, 16)
        at = start + tl.arange(0, BLOCK)
        size = tl.load(sizes + place)
        row, line, drawn = table + 12 * place, lines + 2 * place, noise + tl.load(offsets + place)
        if start + BLOCK <= size:
            _advance(
                pointers, place, at, at < size, row, line, drawn,
                MOMENTS, SCALER, NOISY, DTYPE, ALIGNED, MASKED=False,
            )  # fmt: skip
        else:
            _advance(
                pointers, place, at, at < size, row, line, drawn,
                MOMENTS, SCALER, NOISY, DTYPE, ALIGNED, MASKED=True,
            )  # fmt: skip
        if start == 0:
            counter = _tensor(pointers, place, 6, tl.float32, ALIGNED=False)
            tl.store(counter, tl.load(counter) + 1.0)
