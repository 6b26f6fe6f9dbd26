"""A whole step of the UPGD family with the gradient scaler, as five Triton kernels.

Three of them go through memory, a program working on one chunk of one tensor; two do what there is
one number a tensor of. Where the tensors lie is read from a table of
addresses, so that one launch serves a network of any number of tensors: `pointers` [P, 7], the
columns being gradient, parameter, utility, first and second moment, the scaler's mean, and the
counter of steps (float32). `chunks` [C, 2] holds a tensor and the place of its first element.
`table` [P, 12] is the coefficients of `stormsail.optim._compiled_rows`, where the formulas are, and
`constants` [10] the settings of scaler and clip, from `stormsail.optim._compiled_cuda`.

What a chunk adds up is left in memory and added again in one order, so that the same gradients give
the same bits every time.
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
def _in_turn(EARLY: tl.constexpr):
    """Let the next kernel be launched while this one works, and wait until the last has ended.

    Whoever is launched early waits here before it reads or writes anything.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


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
def _power(count, constants):
    """Return 1 - beta^k and beta^k of the scaler; exact at k = 1, where a gain must be 1."""
    fresh = tl.load(constants)
    power = tl.exp(count * tl.load(constants + 1))
    power = tl.where(count == 1.0, 1.0 - fresh, power)
    return tl.where(count == 1.0, fresh, tl.where(count > 0.0, 1.0 - power, 1.0)), power


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
        mass, _ = _power(count, constants)
        gain = (tl.load(constants) / mass).to(DTYPE)
        distance = grad - mean
        moved = mean + gain * distance
        tl.store(out + 2 * stride, tl.sum(distance * distance))
        tl.store(out + 3 * stride, tl.sum(moved * moved))
    tl.store(out, tl.sum(grad * grad))
    tl.store(out + stride, tl.max(tl.abs(grad)))


@triton.jit
def _concentration(count, constants):
    """Return W_k and 1 / (1 - W_k), which is 0 where one gradient is all that was seen."""
    mass, power = _power(count, constants)
    share = tl.where(count > 1.0, tl.load(constants + 2) * (1.0 + power) / mass, 1.0)
    left = 1.0 - share
    return share, tl.where(left > 0.0, 1.0 / tl.where(left > 0.0, left, 1.0), 0.0)


@triton.jit
def _mass(step, log_beta):
    return 1.0 - tl.exp(step * log_beta)


@triton.jit
def _foresee(
    pointers, sizes, numbers, constants, counts, inverse, steps, table, ahead, tensors,
    SCALER: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Work out what of the coefficients does not depend on the gradients.

    Logarithms, powers and divisions in float64 take one program longer than everything else it
    does; here they take no time, because other programs read the gradients meanwhile. `ahead`
    [10, P]: the scaler's gain if it learns; W and 1 / (1 - W) if it does, and if it does not; the
    weight of the newest peak; 1 / n and its root. Of two more rows,
    `settle` writes whether each tensor learns, and its peak.
    """
    places = tl.arange(0, P)
    here = places < tensors
    size = tl.load(sizes + places, mask=here, other=1).to(tl.float64)
    counter = tl.load(pointers + 7 * places + 6, mask=here, other=0)
    step = tl.load(counter.to(tl.pointer_type(tl.float32)), mask=here, other=0.0)
    step = step.to(tl.float64) + 1.0
    numbers += 10 * tensors + places
    utility = _mass(step, tl.load(numbers, mask=here, other=-1.0))
    first = _mass(step, tl.load(numbers + tensors, mask=here, other=-1.0))
    second = _mass(step, tl.load(numbers + 2 * tensors, mask=here, other=-1.0))
    row = table + 12 * places
    # A store converts to the dtype of the table.
    tl.store(row + 3, 1.0 / utility, mask=here)
    tl.store(row + 6, 1.0 / first, mask=here)
    tl.store(row + 7, 1.0 / tl.sqrt(second), mask=here)
    ahead += places
    tl.store(ahead + 6 * tensors, 1.0 / size, mask=here)
    tl.store(ahead + 7 * tensors, 1.0 / tl.sqrt(size), mask=here)
    if SCALER:
        own = tl.load(inverse + places, mask=here, other=0)
        count = tl.load(counts + own, mask=here, other=0).to(tl.float64)
        mass, _ = _power(count + 1.0, constants)
        tl.store(ahead, tl.load(constants) / mass, mask=here)
        share, rest = _concentration(count + 1.0, constants)
        tl.store(ahead + tensors, share, mask=here)
        tl.store(ahead + 2 * tensors, rest, mask=here)
        share, rest = _concentration(count, constants)
        tl.store(ahead + 3 * tensors, share, mask=here)
        tl.store(ahead + 4 * tensors, rest, mask=here)
        taken = tl.zeros([P], tl.float64) + tl.load(steps).to(tl.float64) + 1.0
        mass, _ = _power(taken, constants)
        tl.store(ahead + 5 * tensors, tl.load(constants) / mass, mask=here)


@triton.jit
def measure(
    pointers, chunks, sizes, numbers, constants, counts, inverse, steps, table, ahead, partial,
    tensors,
    SCALER: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, P: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Leave a chunk's square sum, peak, and the scaler's two sums in `partial` [4, C].

    The first program sees no chunk; it does `_foresee`.
    """
    _in_turn(EARLY)
    if tl.program_id(0) == 0:
        _foresee(
            pointers, sizes, numbers, constants, counts, inverse, steps, table, ahead, tensors,
            SCALER, P,
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
def _setting(given, number):
    """Return a setting, from the table or from where a tensor holds it."""
    address = tl.load(given)
    is_double = (address & 1) == 1
    is_single = (address != 0) & ((address & 1) == 0)
    single = tl.load(address.to(tl.pointer_type(tl.float32)), mask=is_single, other=0.0)
    double = (address - 1).to(tl.pointer_type(tl.float64))
    double = tl.load(double, mask=is_double, other=0.0)
    number = tl.where(is_double, double, tl.load(number))
    return tl.where(is_single, single.to(tl.float64), number)


@triton.jit
def _factor(count, concentration, rest, spread, mean_square, constants):
    """Return the scaler's factor; `_factor` of `_compiled_rows`, one line after another."""
    variance = tl.maximum(spread, 0.0) * rest
    signal = tl.maximum(mean_square - concentration * variance, 0.0)
    floor = signal + tl.load(constants + 4) * (spread + mean_square)
    ratio = tl.where(floor <= 0, 0.0, variance / tl.where(floor <= 0, 1.0, floor))
    capped = tl.minimum(tl.maximum(ratio, 0.0), tl.load(constants + 7))
    factor = tl.maximum(1.0 / (1.0 + tl.load(constants + 3) * capped), tl.load(constants + 6))
    return tl.where(count.to(tl.float64) >= tl.load(constants + 5), factor, 1.0)


@triton.jit
def _learn(
    square, peak, before, after, refused, constants, ahead, tensors,
    counts, spreads, mean_squares, nonfinite,
):  # fmt: skip
    """Advance a tensor's statistics by one step unless it is refused; return gain and factor."""
    count, spread = tl.load(counts), tl.load(spreads)
    mean_square, bad = tl.load(mean_squares), tl.load(nonfinite)
    finite = (tl.abs(square) < float("inf")) & (peak <= tl.load(constants + 8))
    learns = finite & (refused == 0)
    per_size = tl.load(ahead + 6 * tensors)
    count += learns.to(tl.int64)
    gain = tl.where(learns, tl.load(ahead), 0.0)
    spread = tl.where(learns, (1.0 - gain) * (spread + gain * (before * per_size)), spread)
    mean_square = tl.where(learns, after * per_size, mean_square)
    tl.store(counts, count)
    tl.store(spreads, spread)
    tl.store(mean_squares, mean_square)
    tl.store(nonfinite, bad + (1 - finite.to(tl.int64)))
    tl.store(ahead + 8 * tensors, learns.to(tl.float64))
    tl.store(ahead + 9 * tensors, tl.where(learns, peak, 0.0))
    share = tl.where(learns, tl.load(ahead + tensors), tl.load(ahead + 3 * tensors))
    rest = tl.where(learns, tl.load(ahead + 2 * tensors), tl.load(ahead + 4 * tensors))
    return gain, _factor(count, share, rest, spread, mean_square, constants)


@triton.jit
def settle(
    partial, chunks_of, chunks, numbers, given, constants, ahead, ranks, inverse,
    counts, spreads, mean_squares, nonfinite,
    table, refused_at, stepped_at, norms, totals,
    tensors,
    SCALER: tl.constexpr, BOUNDED: tl.constexpr, WIDTH: tl.constexpr, OWN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Do what there is one number a tensor of: guard, scaler, clip, coefficients and report.

    A program for each tensor adds its chunks up in float64, always in one order, and the squares of
    all: that is quicker than to wait for one another. `numbers` [13, P] are `SETTINGS`; `given`
    [P, 2] are the addresses of rates and sigmas that are tensors, 0 for one that is none, and the
    lowest bit says float64. `chunks_of` [P + 1] is where the chunks of each tensor begin. Of a
    refused step, only what is not finite is counted.
    """
    _in_turn(EARLY)
    place = tl.program_id(0)
    first, last = tl.load(chunks_of + place), tl.load(chunks_of + place + 1)
    rate = _setting(given + 2 * place, numbers + place)
    sigma = _setting(given + 2 * place + 1, numbers + tensors + place)
    everything = tl.zeros([WIDTH], tl.float64)
    for begin in range(0, chunks, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        everything += tl.load(partial + at, mask=at < chunks, other=0.0)
    squares, peaks = tl.zeros([OWN], tl.float64), tl.zeros([OWN], tl.float64)
    befores, afters = tl.zeros([OWN], tl.float64), tl.zeros([OWN], tl.float64)
    for begin in range(first, last, OWN):
        at = begin + tl.arange(0, OWN)
        here = at < last
        squares += tl.load(partial + at, mask=here, other=0.0)
        high = tl.load(partial + chunks + at, mask=here, other=0.0)
        peaks = tl.maximum(peaks, high.to(tl.float64))
        if SCALER:
            befores += tl.load(partial + 2 * chunks + at, mask=here, other=0.0)
            afters += tl.load(partial + 3 * chunks + at, mask=here, other=0.0)
    whole, square = tl.sum(everything), tl.sum(squares)
    refused = tl.where(tl.abs(whole) < float("inf"), 0, 1)
    whole, norm = tl.sqrt(whole), tl.sqrt(square)
    clip = tl.full([], 1.0, tl.float64)
    if BOUNDED:
        clip = tl.minimum(tl.load(constants + 9) / (whole + 1e-6), 1.0)
    gain, factor = tl.full([], 0.0, tl.float64), tl.full([], 1.0, tl.float64)
    if SCALER:
        own = tl.load(inverse + place)
        gain, factor = _learn(
            square, tl.max(peaks), tl.sum(befores), tl.sum(afters), refused,
            constants, ahead + place, tensors,
            counts + own, spreads + own, mean_squares + own, nonfinite + own,
        )  # fmt: skip
    tl.store(norms + tl.load(ranks + place), norm)
    rms = norm * tl.load(ahead + 7 * tensors + place)
    _tabulate(table + 12 * place, numbers + place, tensors, rate, sigma, clip, rms, gain, factor)
    if place == 0:
        tl.store(refused_at, refused)
        tl.store(stepped_at, (1 - refused).to(tl.uint8))
        tl.store(totals, whole)
        tl.store(totals + 1, whole)
        tl.store(totals + 2, tl.where(refused == 0, whole * clip, whole))


@triton.jit
def _tabulate(row, numbers, tensors, rate, sigma, clip, rms, gain, factor):
    """Write those coefficients that `_foresee` did not, in the order of `COLUMNS`."""
    in_gradients = tl.load(numbers + 9 * tensors)
    tl.store(row, clip * tl.load(numbers + 8 * tensors))
    tl.store(row + 1, gain)
    tl.store(row + 2, 1.0 - tl.load(numbers + 4 * tensors))
    tl.store(row + 4, 1.0 - tl.load(numbers + 5 * tensors))
    tl.store(row + 5, 1.0 - tl.load(numbers + 6 * tensors))
    tl.store(row + 8, tl.load(numbers + 7 * tensors))
    tl.store(row + 9, sigma * tl.where(in_gradients > 0, clip * rms, 1.0))
    tl.store(row + 10, rate * tl.load(numbers + 3 * tensors) * factor)
    tl.store(row + 11, 1.0 - rate * tl.load(numbers + 2 * tensors))


@triton.jit
def _tally(norms, bad_at, ahead, steps, largest, tensors, SCALER: tl.constexpr, P: tl.constexpr):
    """Bring together what `settle` left of each tensor for the report and the scaler."""
    places = tl.arange(0, P)
    here = places < tensors
    norm = tl.load(norms + places, mask=here, other=0.0)
    tl.store(bad_at, tl.sum(tl.where(norm < float("inf"), 0, 1)).to(tl.int64))
    if SCALER:
        ahead += places
        learned = tl.max(tl.load(ahead + 8 * tensors, mask=here, other=0.0))
        peak = tl.max(tl.load(ahead + 9 * tensors, mask=here, other=0.0))
        weight = tl.max(tl.load(ahead + 5 * tensors, mask=here, other=0.0))  # the same for all
        highest = tl.load(largest)
        moved = highest + weight * (peak - highest)
        tl.store(steps, tl.load(steps) + learned.to(tl.int64))
        tl.store(largest, tl.where(learned > 0, moved, highest))


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

    The first program sees no chunk; it does `_tally`.
    """
    _in_turn(EARLY)
    if tl.program_id(0) == 0:
        _tally(norms, bad_at, ahead, steps, largest, tensors, SCALER, P)
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
def gate(
    partial, norms, lines, chunks, tensors, elements,
    EPS: tl.constexpr, TINY: tl.constexpr, DTYPE: tl.constexpr, P: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Leave shift and inverse width of each tensor's gate in `lines` [P, 2], in one program.

    The formulas of `functional.upgd.gate_line`; `norms` [P] are places in `functional.upgd.NORMS`.
    """
    _in_turn(EARLY)
    lows = tl.full([WIDTH], float("inf"), DTYPE)
    highs = tl.full([WIDTH], float("-inf"), DTYPE)
    sums = tl.zeros([WIDTH], tl.float64)
    for begin in range(0, chunks, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        here = at < chunks
        one = tl.load(partial + at, mask=here, other=float("inf"))
        two = tl.load(partial + chunks + at, mask=here, other=float("-inf"))
        three = tl.load(partial + 2 * chunks + at, mask=here, other=0.0)
        lows, highs = tl.minimum(lows, one), tl.maximum(highs, two)
        sums += three.to(tl.float64)
    low, high = tl.min(lows), tl.max(highs)
    mean = (tl.sum(sums) / elements).to(DTYPE)
    spread = high - low
    size = tl.maximum(tl.abs(high), tl.abs(low))
    middle, half = 0.5 * (high + low), 0.5 * spread
    is_flat = spread <= tl.maximum(EPS * size, TINY)
    places = tl.arange(0, P)
    norm = tl.load(norms + places, mask=places < tensors, other=0)
    zero = tl.zeros([P], DTYPE)
    shift = tl.where(norm == 0, zero + mean, tl.where(norm == 1, zero + middle, zero))
    width = tl.where(norm == 0, zero + tl.maximum(high - mean, mean - low), zero + size)
    width = tl.where(norm == 1, zero + half, width)
    by_peak = norm == 2
    shift = tl.where(by_peak, zero + tl.where(high > 0, 0.0, middle), shift)
    width = tl.where(by_peak, zero + tl.where(high > 0, high, half), width)
    width = tl.where(is_flat, zero + float("inf"), width)
    # float64, because a division in float32 is not rounded properly here.
    inverse = (1.0 / width.to(tl.float64)).to(DTYPE)
    tl.store(lines + 2 * places, shift, mask=places < tensors)
    tl.store(lines + 2 * places + 1, inverse, mask=places < tensors)


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
    _in_turn(EARLY)
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
