"""Difference of two Sharpe ratios over the same bars, with its error, interval and p-value.

T bars. At equal volatility the strategy with the higher Sharpe ratio earns more, so the difference
of the two says which is better at equal risk, where that of mean returns says which took more.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import Record
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.bootstrap import MINIMUM_RESAMPLED, block_length
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import Statement

_PARZEN = 2.6614  # of the automatic bandwidth for this kernel
_FEWEST_BLOCKS = 10
_SAME = 1e-12  # an error below this is what rounding left of 0
_AT_ONCE = 1 << 20  # block sums at a time: bounds the memory


@dataclass(frozen=True)
class SharpeDifference(Record):
    """A strategy against a benchmark at equal risk.

    Attributes:
        sharpe: annualised Sharpe ratio of the strategy less that of the benchmark.
        annual_return: mean return of a year less that of the benchmark at as much leverage as gives
            it the strategy's volatility: the same difference, times that volatility.
        p_value: one-sided, of "the strategy's Sharpe ratio is not above the benchmark's".
    """

    sharpe: Statement
    annual_return: Statement
    p_value: Statement


def influence(returns: Array) -> Array:
    r"""Return what each bar adds to T times the Sharpe ratio, to first order, [T].

    .. math::
        u_t = \frac{\gamma}{\sigma^3} (r_t - \mu) - \frac{\mu}{2 \sigma^3} (r_t^2 - \gamma),
        \qquad \gamma = \overline{r^2}, \; \sigma^2 = \gamma - \mu^2

    The gradient of mu / sqrt(gamma - mu²) times the deviations of r and r²: Ledoit & Wolf 2008,
    Robust performance hypothesis testing with the Sharpe ratio, J. Empirical Finance
    15(5):850-859, section 3, as in the authors' own program. 0 everywhere for returns without
    spread, whose ratio counts as 0.
    """
    if np.ptp(returns) == 0.0:
        return np.zeros_like(returns)
    mean, second = float(returns.mean()), float(np.mean(returns**2))
    cube = float(returns.std()) ** 3
    first = second / cube * (returns - mean)
    return np.asarray(first - 0.5 * mean / cube * (returns**2 - second))


def long_run_error(values: Array) -> float:
    r"""Return the standard error of a mean of dependent values with mean 0.

    .. math::
        s^2 = \frac{1}{T - 4} \sum_{|j| < S} k\Big(\frac{j}{S}\Big) \hat\gamma_j, \qquad
        S = 2.6614\, (\hat\alpha T)^{1/5}, \qquad \hat\alpha = \frac{4 \rho^2}{(1 - \rho)^4}

    with autocovariances gamma divided by T, the kernel of Parzen, the automatic bandwidth of
    Andrews 1991 for an autoregression with coefficient rho, and T / (T - 4) for the four moments
    that were estimated, as in the authors' program for Ledoit & Wolf 2008. Deviation: the series is
    the influence of the difference itself, so that one autoregression takes the place of four, and
    nothing is prewhitened.
    """
    bars = values.size
    past, now = values[:-1], values[1:]
    square = float(past @ past)
    rho = float(past @ now) / square if square > 0.0 else 0.0
    rho = min(max(rho, -0.97), 0.97)
    alpha = 4.0 * rho**2 / (1.0 - rho) ** 4
    width = min(_PARZEN * (alpha * bars) ** 0.2, bars - 1.0)
    variance = float(values @ values) / bars
    lag = 1
    while lag < width:
        variance += 2.0 * _parzen(lag / width) * float(values[lag:] @ values[:-lag]) / bars
        lag += 1
    return math.sqrt(max(variance, 0.0) / (bars - 4))


def _parzen(share: float) -> float:
    if share <= 0.5:
        return 1.0 - 6.0 * share**2 + 6.0 * share**3
    return 2.0 * (1.0 - share) ** 3


def compare_sharpe(
    returns: ArrayLike,
    benchmark: ArrayLike,
    *,
    per_year: float,
    generator: np.random.Generator,
    repetitions: int = 999,
    confidence: float = 0.95,
    block: int | None = None,
) -> SharpeDifference:
    r"""Return by how much a strategy's Sharpe ratio exceeds a benchmark's over the same bars.

    .. math::
        d = \frac{\hat\Delta}{s(\hat\Delta)}, \qquad
        d^* = \frac{\hat\Delta^* - \hat\Delta}{s(\hat\Delta^*)}, \qquad
        p = \frac{1 + \#\{d^* \ge d\}}{1 + M}

    The studentised circular block bootstrap of Ledoit & Wolf 2008, J. Empirical Finance
    15(5):850-859, section 3.2.2 and remark 3.2, as in the authors' program: the error of the data
    is `long_run_error`, that of a resample comes from the sums of its l blocks of b bars,

    .. math::
        s(\hat\Delta^*)^2 = \frac{1}{l b} \cdot \frac1l \sum_j \Big( \frac{1}{\sqrt b}
        \sum_{t \in j} u^*_t \Big)^2

    with u* the influence of the difference in the resample. Deviations: the test is one-sided and
    the interval takes both tails of d* as they are, where the paper takes |d*|; b is
    `bars_of_block`, not calibrated by simulation. A
    series without spread has the Sharpe ratio 0.

    Args:
        returns: [T], of the strategy.
        benchmark: [T], of what it should beat.
        per_year: bars in a year.
        generator: where the draws come from.
        repetitions: M.
        confidence: coverage of the intervals.
        block: b; None lets `block_length` choose.

    Raises:
        ShapeError: if the lengths differ.
    """
    own = figures.as_series(returns, name="returns")
    other = figures.as_series(benchmark, name="benchmark")
    if own.size != other.size:
        raise ShapeError(
            wrong=f"`benchmark` must have one return for each of the {own.size} bars",
            found=f"{other.size}",
            remedy="Run the benchmark over the same bars.",
        )
    bars, needed = own.size, MINIMUM_RESAMPLED
    if bars < needed:
        short = Statement(None, needed=needed, found=bars)
        return SharpeDifference(short, short, short)
    moved = influence(own) - influence(other)
    error = long_run_error(moved)
    if np.ptp(own) == 0.0 or error < _SAME:
        why = "all returns are equal" if np.ptp(own) == 0.0 else "the two are the same strategy"
        none = Statement(None, needed=needed, found=bars, why=why)
        return SharpeDifference(none, none, none)
    difference = _ratio(own) - _ratio(other)
    length = bars_of_block(moved) if block is None else min(block, bars // _FEWEST_BLOCKS)
    draws = _studentised(own, other, difference, length, repetitions, generator)
    tail = (1.0 - confidence) / 2.0
    upper, lower = np.quantile(draws, (1.0 - tail, tail))
    year = math.sqrt(per_year)
    low, high = (year * (difference - error * float(end)) for end in (upper, lower))
    volatility = float(own.std(ddof=1)) * year
    p_value = (1.0 + float(np.count_nonzero(draws >= difference / error))) / (1.0 + repetitions)
    return SharpeDifference(
        Statement(year * difference, low, high, needed, bars),
        Statement(
            volatility * year * difference, volatility * low, volatility * high, needed, bars
        ),
        Statement(p_value, needed=needed, found=bars),
    )


def bars_of_block(moved: Array) -> int:
    """Return the bars of a block of the bootstrap, from the influence of what is resampled.

    `block_length`, at least the fourth root of the bars and at most a tenth of them.
    """
    bars = moved.size
    return int(min(max(block_length(moved), round(bars**0.25)), bars // _FEWEST_BLOCKS))


def _ratio(returns: Array) -> float:
    ratio = float(figures.per_bar_sharpe(returns))
    return 0.0 if math.isnan(ratio) else ratio


def _studentised(
    own: Array,
    other: Array,
    difference: float,
    block: int,
    repetitions: int,
    generator: np.random.Generator,
) -> Array:
    """Return the studentised differences of circular block resamples, [repetitions]."""
    bars, count = own.size, own.size // block
    powers = np.stack((own, other, own**2, other**2), axis=1)
    around = np.concatenate((np.zeros((1, 4)), np.concatenate((powers, powers[:block])).cumsum(0)))
    sums = around[block : block + bars] - around[:bars]  # of the block that begins at each bar
    rows = max(1, _AT_ONCE // count)
    parts = []
    for start in range(0, repetitions, rows):
        places = generator.integers(0, bars, (min(rows, repetitions - start), count))
        parts.append(_resampled(sums[places], block, difference))
    return np.concatenate(parts)


def _resampled(sums: Array, block: int, difference: float) -> Array:
    """Return the studentised difference of each resample from its block sums, [R, l, 4]."""
    count = sums.shape[1]
    length = count * block
    mean = sums.mean(axis=1) / block  # [R, 4]: two means, two second moments
    variance = mean[:, 2:] - mean[:, :2] ** 2
    spread = variance > 1e-24 + 1e-14 * mean[:, 2:]
    safe = np.where(spread, variance, 1.0)
    ratio = np.where(spread, mean[:, :2] / np.sqrt(safe * length / (length - 1)), 0.0)
    slope = np.where(spread, mean[:, 2:] / safe**1.5, 0.0)
    bend = np.where(spread, -0.5 * mean[:, :2] / safe**1.5, 0.0)
    side = np.array([1.0, -1.0])
    gradient = np.concatenate((side * slope, side * bend), axis=1)
    moved = np.einsum("rlk,rk->rl", sums - block * mean[:, None, :], gradient)
    error = np.sqrt((moved**2).sum(axis=1) / block / count / length)
    gain = ratio[:, 0] - ratio[:, 1] - difference
    return np.asarray(np.divide(gain, error, out=np.zeros_like(gain), where=error > 0.0))
