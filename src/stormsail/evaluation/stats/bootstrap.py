"""Stationary bootstrap of returns: intervals of figures, and the test of superior ability.

T bars, S strategies. Returns cluster, so single bars must not be drawn one by one: the stationary
bootstrap (Politis & Romano 1994, The Stationary Bootstrap) draws blocks of random length. The
drawing and the test of superior ability are those of the library `arch`; randomness comes from the
generator that is passed.
"""

import math
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import ArrayLike

from stormsail.core import steps
from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import Record
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import Statement, needed_for_tail

MINIMUM_RESAMPLED = 100
"""Bars for a bootstrap: with fewer there are too few blocks to differ."""


@dataclass(frozen=True)
class Intervals(Record):
    """Figures with percentile intervals of the bootstrap.

    Attributes:
        mean_return: mean return of a bar.
        sharpe: annualised Sharpe ratio.
        cvar: mean of the worst share alpha of bars.
        max_drawdown: depth of the maximum drawdown. Its interval is the range over other orders of
            the same blocks; a bootstrap cannot draw a drawdown longer than what it has seen.
        block: mean block length in bars; None where nothing was drawn.
    """

    mean_return: Statement
    sharpe: Statement
    cvar: Statement
    max_drawdown: Statement
    block: int | None


def block_length(returns: ArrayLike) -> int:
    """Return the mean block length for the stationary bootstrap, in bars.

    The rule of Politis & White 2004 with the correction of 2009, from `arch`, rounded up; 1 where
    all returns are equal. It sees linear dependence only: of returns whose size clusters and whose
    sign does not it sees too little, so the length for their absolute values counts as well, and
    the longer one is taken. That is ours, and it makes intervals wider, never narrower.
    """
    returns = figures.as_series(returns, name="returns")
    if returns.size < 2 or np.ptp(returns) == 0.0:
        return 1
    size = np.abs(returns)
    columns = [returns] if np.ptp(size) == 0.0 else [returns, size]
    from arch.bootstrap import optimal_block_length  # a second of imports, so not above

    lengths = optimal_block_length(np.stack(columns, axis=1))["stationary"].to_numpy()
    usable = lengths[np.isfinite(lengths)]
    return max(1, math.ceil(float(usable.max()))) if usable.size else 1


def bootstrap_intervals(
    returns: ArrayLike,
    *,
    per_year: float,
    generator: np.random.Generator,
    alpha: float = 0.05,
    confidence: float = 0.95,
    repetitions: int = 1_000,
    block: int | None = None,
) -> Intervals:
    """Return mean, Sharpe ratio, tail and drawdown with intervals of the stationary bootstrap.

    Percentile intervals. Of 200 series of 400 bars, those of the mean at 90 % kept 90 % where bars
    were independent and 85 % where each repeated 60 % of the last: believe them a little less than
    they say. A resample without any spread has the Sharpe ratio 0.

    Args:
        returns: [T].
        per_year: bars in a year.
        generator: where the draws come from; the same state gives the same intervals.
        alpha: share of worst bars for the tail.
        confidence: coverage of each interval, in (0, 1).
        repetitions: how many resamples are drawn.
        block: mean block length in bars; None lets `block_length` choose.
    """
    returns = figures.as_series(returns, name="returns")
    bars, tail = returns.size, max(needed_for_tail(alpha), MINIMUM_RESAMPLED)
    if bars < MINIMUM_RESAMPLED:
        short = Statement(None, needed=MINIMUM_RESAMPLED, found=bars)
        return Intervals(short, short, Statement(None, needed=tail, found=bars), short, None)
    block = block_length(returns) if block is None else block

    def statistic(sample: Array) -> Array:
        return _figures(sample, per_year=per_year, alpha=alpha)

    from arch.bootstrap import StationaryBootstrap  # a second of imports, so not above

    drawn = StationaryBootstrap(block, returns, seed=generator)
    done = count(1)

    def counted(sample: Array) -> Array:
        steps.advanced(next(done), repetitions, "resamples")
        return statistic(sample)

    low, high = drawn.conf_int(counted, reps=repetitions, method="percentile", size=confidence)
    value = statistic(returns)
    mean, ratio, worst, depth = (
        Statement(float(v), float(a), float(b), needed=MINIMUM_RESAMPLED, found=bars)
        for v, a, b in zip(value, low, high, strict=True)
    )
    if np.ptp(returns) == 0.0:
        ratio = Statement(None, needed=MINIMUM_RESAMPLED, found=bars, why="all returns are equal")
    if bars < tail:
        worst = Statement(None, needed=tail, found=bars)
    return Intervals(mean, ratio, worst, depth, block)


def _figures(sample: Array, *, per_year: float, alpha: float) -> Array:
    ratio = figures.sharpe(sample, per_year=per_year)
    return np.array(
        [
            sample.mean(),
            0.0 if math.isnan(ratio) else ratio,
            figures.cvar(sample, alpha=alpha),
            figures.max_drawdown(sample),
        ]
    )


def block_mean_interval(
    values: Array,
    *,
    block: int,
    generator: np.random.Generator,
    confidence: float = 0.95,
    repetitions: int = 1_000,
) -> tuple[float, float]:
    """Return the percentile interval of the mean of dependent values, by circular blocks.

    Politis & Romano 1992, A Circular Block-Resampling Procedure for Stationary Data: n // block
    blocks of consecutive values, the last followed by the first, drawn with replacement.

    Args:
        values: [n], in order of time.
        block: values in a block; at most a tenth of all is taken.
        generator: where the draws come from.
        confidence: coverage.
        repetitions: how many resamples are drawn.
    """
    count = values.size
    size = max(1, min(block, count // 10))
    around = np.concatenate(([0.0], np.concatenate((values, values[:size])).cumsum()))
    means = (around[size : size + count] - around[:count]) / size
    drawn = generator.integers(0, count, (repetitions, max(1, count // size)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means[drawn].mean(axis=1), (tail, 1.0 - tail))
    return float(low), float(high)


def superiority(
    returns: ArrayLike,
    benchmark: ArrayLike,
    *,
    generator: np.random.Generator,
    repetitions: int = 1_000,
    block: int | None = None,
) -> Statement:
    """Return the p-value of "no strategy earns more than the benchmark".

    Hansen 2005, A Test for Superior Predictive Ability, from `arch`, on mean returns of a bar: the
    consistent p-value, with the lower and the upper one as ends of the interval. Small means that
    the best of all strategies beats the benchmark even though it is the best of many.

    Two guards around the library, both needed because it counts only resamples that strictly beat
    the observed best: a strategy that equals the benchmark bar for bar is left out, and where
    nothing earns more than the benchmark the answer is 1.

    Args:
        returns: [T, S], or [T] for one strategy: everything that was tried.
        benchmark: [T], what they must beat, such as buy and hold.
        generator: where the draws come from.
        repetitions: how many resamples are drawn.
        block: mean block length in bars; None takes the longest that any difference asks for.

    Raises:
        ShapeError: if the lengths differ.
    """
    tried = figures.as_series(returns, name="returns", columns=True)
    tried = tried[:, None] if tried.ndim == 1 else tried
    against = figures.as_series(benchmark, name="benchmark")
    if against.size != tried.shape[0]:
        raise ShapeError(
            wrong=f"`benchmark` must have one return for each of the {tried.shape[0]} bars",
            found=f"{against.size}",
            remedy="Run the benchmark over the same bars.",
        )
    bars = against.size
    if bars < MINIMUM_RESAMPLED:
        return Statement(None, needed=MINIMUM_RESAMPLED, found=bars)
    gain = tried - against[:, None]
    gain = gain[:, np.ptp(gain, axis=0) > 0.0]
    if not gain.size or gain.mean(axis=0).max() <= 0.0:
        return Statement(1.0, 1.0, 1.0, needed=MINIMUM_RESAMPLED, found=bars)
    if block is None:
        block = max(block_length(column) for column in gain.T)
    # The test is about losses, benchmark minus model: the gain itself, against a model at 0.
    from arch.bootstrap import SPA  # a second of imports, so not above

    test = SPA(np.zeros(bars), -gain, block_size=block, reps=repetitions, seed=generator)
    test.compute()
    p = test.pvalues
    low, value, high = (float(p[name]) for name in ("lower", "consistent", "upper"))
    return Statement(value, low, high, needed=MINIMUM_RESAMPLED, found=bars)
