"""Triton kernels of the UPGD step with one number for each tensor; tables as in `utility_step`."""
# What is written here is Triton's language, which only looks like Python.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def in_turn(EARLY: tl.constexpr):
    """Let the next kernel be launched while this one works, and wait until the last has ended.

    A kernel that is launched early waits here before it reads or writes anything.
    """
    if EARLY:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@triton.jit
def mass_and_power(count, constants):
    """Return 1 - beta^k and beta^k of the scaler; exact at k = 1, where a gain must be 1."""
    fresh = tl.load(constants)
    power = tl.exp(count * tl.load(constants + 1))
    power = tl.where(count == 1.0, 1.0 - fresh, power)
    return tl.where(count == 1.0, fresh, tl.where(count > 0.0, 1.0 - power, 1.0)), power


@triton.jit
def _concentration(count, constants):
    """Return W_k and 1 / (1 - W_k), which is 0 where one gradient is all that was seen."""
    mass, power = mass_and_power(count, constants)
    share = tl.where(count > 1.0, tl.load(constants + 2) * (1.0 + power) / mass, 1.0)
    left = 1.0 - share
    return share, tl.where(left > 0.0, 1.0 / tl.where(left > 0.0, left, 1.0), 0.0)


@triton.jit
def _mass(step, log_beta):
    return 1.0 - tl.exp(step * log_beta)


@triton.jit
def precompute(
    pointers, sizes, numbers, constants, counts, inverse, steps, table, ahead, tensors,
    SCALER: tl.constexpr, MEDIAN: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Work out what of the coefficients does not depend on the gradients.

    Logarithms, powers and divisions in float64 take one program longer than everything else it
    does; here they take no time, because other programs read the gradients meanwhile. `ahead`
    [11, P]: the scaler's gain if it learns; W and 1 / (1 - W) if it does, and if it does not; the
    weight of the newest peak; 1 / n and its root; and last the gain of the slow median if it
    learns, negative in the warm-up. Of the two rows before that,
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
        mass, _ = mass_and_power(count + 1.0, constants)
        tl.store(ahead, tl.load(constants) / mass, mask=here)
        share, rest = _concentration(count + 1.0, constants)
        tl.store(ahead + tensors, share, mask=here)
        tl.store(ahead + 2 * tensors, rest, mask=here)
        share, rest = _concentration(count, constants)
        tl.store(ahead + 3 * tensors, share, mask=here)
        tl.store(ahead + 4 * tensors, rest, mask=here)
        taken = tl.zeros([P], tl.float64) + tl.load(steps).to(tl.float64) + 1.0
        mass, _ = mass_and_power(taken, constants)
        tl.store(ahead + 5 * tensors, tl.load(constants) / mass, mask=here)
        if MEDIAN:
            since = count + 1.0 - tl.load(constants + 5)
            slow, _ = mass_and_power(tl.maximum(since + 1.0, 1.0), constants + 10)
            gain = tl.where(since > 0.0, tl.load(constants + 10) / slow, -1.0)
            tl.store(ahead + 10 * tensors, gain, mask=here)


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
def _ratio(concentration, variance, spread, mean_square, constants):
    """Return the noise over the signal; `_ratio` of `stormsail.optim.fused.rows`, line by line."""
    signal = tl.maximum(mean_square - concentration * variance, 0.0)
    floor = signal + tl.load(constants + 4) * (spread + mean_square)
    return tl.where(floor <= 0, 0.0, variance / tl.where(floor <= 0, 1.0, floor))


@triton.jit
def _follow_median(medians, variance, gain, learns):
    """Move the slow median of a tensor's noise unless it is refused; return the excess above it.

    `functional.optim.gradient_noise.moving_median` and `relative_excess`; a gain below 0 says that
    the warm-up lasts, where the median is the newest variance.
    """
    median = tl.load(medians)
    distance = variance - median
    up = tl.where(distance > 0.0, gain, tl.where(distance < 0.0, -gain, 0.0))
    moved = tl.where((median > 0.0) & (gain > 0.0), median * tl.exp(up), variance)
    median = tl.where(learns, moved, median)
    tl.store(medians, median)
    known = median > 0.0
    excess = tl.maximum(variance / tl.where(known, median, 1.0) - 1.0, 0.0)
    return tl.where(known, excess, 0.0)


@triton.jit
def _factor(count, ratio, constants):
    """Return the scaler's factor."""
    capped = tl.minimum(tl.maximum(ratio, 0.0), tl.load(constants + 7))
    factor = tl.maximum(1.0 / (1.0 + tl.load(constants + 3) * capped), tl.load(constants + 6))
    return tl.where(count.to(tl.float64) >= tl.load(constants + 5), factor, 1.0)


@triton.jit
def _learn(
    square, peak, before, after, refused, constants, ahead, tensors,
    counts, spreads, mean_squares, nonfinite, medians,
    MEDIAN: tl.constexpr,
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
    variance = tl.maximum(spread, 0.0) * rest
    if MEDIAN:
        ratio = _follow_median(medians, variance, tl.load(ahead + 10 * tensors), learns)
    else:
        ratio = _ratio(share, variance, spread, mean_square, constants)
    return gain, _factor(count, ratio, constants)


@triton.jit
def _sums(partial, chunks, first, last, SCALER: tl.constexpr, OWN: tl.constexpr):
    """Return a tensor's square sum, peak, and the scaler's two sums, from its own chunks."""
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
    return tl.sum(squares), tl.max(peaks), tl.sum(befores), tl.sum(afters)


@triton.jit
def settle(
    partial, chunks_of, chunks, numbers, given, constants, ahead, ranks, inverse,
    counts, spreads, mean_squares, nonfinite, medians,
    table, refused_at, stepped_at, norms, totals,
    tensors,
    SCALER: tl.constexpr, MEDIAN: tl.constexpr, BOUNDED: tl.constexpr,
    WIDTH: tl.constexpr, OWN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Do what there is one number a tensor of: guard, scaler, clip, coefficients and report.

    A program for each tensor adds its chunks up in float64, always in one order, and the squares of
    all: that is quicker than to wait for one another. `numbers` [13, P] are `SETTINGS`; `given`
    [P, 2] are the addresses of rates and sigmas that are tensors, 0 for one that is none, and the
    lowest bit says float64. `chunks_of` [P + 1] is where the chunks of each tensor begin. Of a
    refused step, only what is not finite is counted; a norm of all that is beyond float64 refuses
    it too, which the eager step does not.
    """
    in_turn(EARLY)
    place = tl.program_id(0)
    first, last = tl.load(chunks_of + place), tl.load(chunks_of + place + 1)
    rate = _setting(given + 2 * place, numbers + place)
    sigma = _setting(given + 2 * place + 1, numbers + tensors + place)
    everything = tl.zeros([WIDTH], tl.float64)
    for begin in range(0, chunks, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        everything += tl.load(partial + at, mask=at < chunks, other=0.0)
    square, peak, before, after = _sums(partial, chunks, first, last, SCALER, OWN)
    whole = tl.sum(everything)
    refused = tl.where(tl.abs(whole) < float("inf"), 0, 1)
    whole, norm = tl.sqrt(whole), tl.sqrt(square)
    clip = tl.full([], 1.0, tl.float64)
    if BOUNDED:
        clip = tl.minimum(tl.load(constants + 9) / (whole + 1e-6), 1.0)
    gain, factor = tl.full([], 0.0, tl.float64), tl.full([], 1.0, tl.float64)
    if SCALER:
        own = tl.load(inverse + place)
        gain, factor = _learn(
            square, peak, before, after, refused,
            constants, ahead + place, tensors,
            counts + own, spreads + own, mean_squares + own, nonfinite + own, medians + own,
            MEDIAN,
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
    """Write those coefficients that `precompute` did not, in the order of `COLUMNS`."""
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
def tally(norms, bad_at, ahead, steps, largest, tensors, SCALER: tl.constexpr, P: tl.constexpr):
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
def gate(
    partial, norms, lines, chunks, tensors, elements,
    EPS: tl.constexpr, TINY: tl.constexpr, DTYPE: tl.constexpr, P: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Leave shift and inverse width of each tensor's gate in `lines` [P, 2], in one program.

    The formulas of `functional.upgd.gate_line`; `norms` [P] are places in `functional.upgd.NORMS`.
    """
    in_turn(EARLY)
    lows = tl.full([WIDTH], float("inf"), DTYPE)
    highs = tl.full([WIDTH], float("-inf"), DTYPE)
    sums = tl.zeros([WIDTH], tl.float64)
    for begin in range(0, chunks, WIDTH):
        at = begin + tl.arange(0, WIDTH)
        here = at < chunks
        lowest = tl.load(partial + at, mask=here, other=float("inf"))
        highest = tl.load(partial + chunks + at, mask=here, other=float("-inf"))
        total = tl.load(partial + 2 * chunks + at, mask=here, other=0.0)
        lows, highs = tl.minimum(lows, lowest), tl.maximum(highs, highest)
        sums += total.to(tl.float64)
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
