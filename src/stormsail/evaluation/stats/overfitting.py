"""Probability of backtest overfitting, by combinatorially symmetric cross-validation.

T bars, S strategies, C halves of the blocks. From sums over blocks, every half costs two additions
of block sums instead of a pass over its bars: 64 strategies of 8,735 bars take seconds, not a
minute and a half.
"""

from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import Array
from stormsail.evaluation.stats.statement import MINIMUM_BARS, Statement

MAXIMUM_BLOCKS = 24
"""24 blocks have 2.7 million halves; two more and the answer takes an hour."""

_CHUNK = 4_096  # halves at a time: bounds the memory
_TIE = 1e-10  # Sharpe ratios as near as this share are equal: returns may be summed in two ways
_ROUNDING = 1e-14  # a deviation below this share of the largest return is what rounding left of 0


def probability_of_overfitting(returns: ArrayLike, *, blocks: int = 16) -> float:
    r"""Return how often the best of one half of the bars is below the median of the other half.

    .. math::
        PBO = \frac1C \#\{c : \lambda_c < 0\}, \qquad
        \lambda_c = \ln\frac{\omega_c}{1 - \omega_c}, \qquad \omega_c = \frac{r_c}{S + 1}

    with r_c the out-of-sample rank, from 1 for the worst, of the strategy with the highest Sharpe
    ratio in sample, over all C ways to call half of the blocks in-sample. Bailey, Borwein, López de
    Prado & Zhu, The Probability of Backtest Overfitting (SSRN 2326253). About 0.5 for noise, small
    where what was best stays good.

    Details the paper leaves open, as in purgedcv: equal strategies share the mean of their ranks; a
    half without spread has the Sharpe ratio 0; where the blocks do not divide the bars, the first
    ones are a bar longer.

    Args:
        returns: [T, S], one column per strategy that was tried.
        blocks: even, from 2 to 24, and at most T / 2.

    Returns:
        A probability.

    Raises:
        ShapeError: if there are not two strategies.
        RangeError: if `blocks` does not fit, or a number is not finite.
    """
    return float(np.mean(overfitting_logits(returns, blocks=blocks) < 0.0))


def overfitting_statement(returns: ArrayLike, *, blocks: int = 16) -> Statement:
    """Return the probability of overfitting with the data it needs.

    Half of the bars must reach 30, so that there is a Sharpe ratio to rank by.
    """
    matrix = figures.as_series(returns, name="returns", columns=True)
    if matrix.ndim == 1 or matrix.shape[1] < 2:
        tried = 1 if matrix.ndim == 1 else matrix.shape[1]
        return Statement(None, needed=2, found=tried, unit="strategies")
    needed = max(2 * MINIMUM_BARS, 2 * blocks)
    bars = matrix.shape[0]
    value = probability_of_overfitting(matrix, blocks=blocks) if bars >= needed else None
    return Statement(value, needed=needed, found=bars)


def overfitting_logits(returns: ArrayLike, *, blocks: int = 16) -> Array:
    """Return the logit of the out-of-sample rank for every half, [C]; below 0 is overfitted."""
    matrix = _checked(returns, blocks)
    sums = _Sums(matrix, blocks)
    chosen = np.array(list(combinations(range(blocks), blocks // 2)), dtype=np.int64)
    parts = [
        _logits(sums, chosen[start : start + _CHUNK], blocks)
        for start in range(0, len(chosen), _CHUNK)
    ]
    return np.concatenate(parts)


def _checked(returns: ArrayLike, blocks: int) -> Array:
    matrix = figures.as_series(returns, name="returns", columns=True)
    if matrix.ndim != 2 or matrix.shape[1] < 2:
        raise ShapeError(
            wrong="`returns` must have the shape [T, S] with at least 2 strategies",
            found=str(list(matrix.shape)),
            remedy="Pass the returns of everything that was tried, one column each.",
        )
    fits = blocks % 2 == 0 and 2 <= blocks <= MAXIMUM_BLOCKS and 2 * blocks <= matrix.shape[0]
    if not fits:
        raise RangeError(
            wrong=f"`blocks` must be even, from 2 to {MAXIMUM_BLOCKS}, with 2 bars each",
            found=f"{blocks} for {matrix.shape[0]} bars",
            remedy=f"Pass an even number up to {min(MAXIMUM_BLOCKS, matrix.shape[0] // 2)}.",
        )
    return matrix


class _Sums:
    """Count, mean and sum of squared deviations of every block, [K] and [K, S].

    The spread of a half is that within its blocks plus that between their means, which subtracts no
    large numbers from each other: squares around a common centre would swallow the spread of a
    half that lies far from it.
    """

    def __init__(self, matrix: Array, blocks: int) -> None:
        parts = np.array_split(matrix, blocks)  # the first ones are a bar longer
        self.count: Array = np.array([float(len(part)) for part in parts])
        self.mean: Array = np.stack([part.mean(axis=0) for part in parts])
        self.squares: Array = np.stack([((part - part.mean(axis=0)) ** 2).sum(0) for part in parts])
        self.largest: Array = np.abs(matrix).max(axis=0)

    def sharpe(self, member: Array) -> Array:
        """Return the Sharpe ratio [C, S] over the blocks that `member` [C, K] marks with 1."""
        count = (member @ self.count)[:, None]
        mean = (member * self.count) @ self.mean / count
        spread = member @ self.squares  # sum of squared deviations
        for inside, length, own in zip(member.T, self.count, self.mean, strict=True):
            spread += (inside * length)[:, None] * (own - mean) ** 2
        flat = spread <= (_ROUNDING * self.largest) ** 2 * count
        std = np.sqrt(np.where(flat, 1.0, spread) / (count - 1.0))
        return np.where(flat, 0.0, mean / std)


def _logits(sums: _Sums, chosen: NDArray[np.int64], blocks: int) -> Array:
    member = np.zeros((len(chosen), blocks))
    np.put_along_axis(member, chosen, 1.0, axis=1)
    inside, outside = sums.sharpe(member), sums.sharpe(1.0 - member)
    top = inside.max(axis=1, keepdims=True)
    best = (inside >= top - _near(top)).argmax(axis=1)  # the first of equals
    own = np.take_along_axis(outside, best[:, None], axis=1)
    below = np.count_nonzero(outside < own - _near(own), axis=1)
    equal = np.count_nonzero(np.abs(outside - own) <= _near(own), axis=1)
    rank: Array = below + (equal + 1) / 2
    logit: Array = np.log(rank / (outside.shape[1] + 1 - rank))
    return logit


def _near(sharpe: Array) -> Array:
    """Return the difference within which a Sharpe ratio counts as equal to this one."""
    return _TIE * np.maximum(1.0, np.abs(sharpe))
