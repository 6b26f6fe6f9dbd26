"""Student's interval of a mean, and the paired test whether one policy returns less than another.

For the returns of an evaluation: n episodes, one in each environment, independent of each other.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from stormsail.core.errors import ShapeError
from stormsail.evaluation.stats.figures import Array

LEVEL = 0.05
"""A policy is significantly worse below this p-value."""

CONFIDENCE = 0.95
"""Of the interval beside a score."""


def mean_interval(values: ArrayLike, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    r"""Return the interval in which the true mean lies with this confidence.

    .. math::
        \bar x \pm t_{n-1,\,(1+c)/2} \, \frac{s}{\sqrt n}, \qquad
        s^2 = \frac{1}{n - 1} \sum_i (x_i - \bar x)^2

    Student 1908, The Probable Error of a Mean, Biometrika 6(1):1-25; textbook in this form. Exact
    for normal values, otherwise as good as the mean of n of them is normal. It is the interval of
    one evaluation: the best of many was chosen for its score, and is less good than it looks.

    Args:
        values: [n].
        confidence: c, between 0 and 1.

    Returns:
        Lower and upper end; the mean twice where all values are equal, NaN twice below two values
        or where one is not finite.
    """
    sample = np.asarray(values, dtype=np.float64).ravel()
    n = sample.size
    if n < 2 or not np.isfinite(sample).all():
        return math.nan, math.nan
    from scipy.special import stdtrit  # slow to import, and needed for evaluations alone

    mean = float(sample.mean())
    half = float(stdtrit(n - 1, 0.5 * (1.0 + confidence))) * _deviation(sample) / math.sqrt(n)
    return mean - half, mean + half


def paired_p_value(first: ArrayLike, second: ArrayLike) -> float:
    r"""Return the one-sided p-value of "the first does not return less than the second on average".

    .. math::
        d_i = b_i - a_i, \qquad t = \frac{\bar d}{s_d / \sqrt n}, \qquad
        p = \max\big( P(T_{n-1} \ge t),\ 2^{-n} \big)

    The paired test of Student 1908, The Probable Error of a Mean, Biometrika 6(1):1-25. Pairs need
    only be independent of each other; what the two of a pair have in common, such as the start of
    an episode, cancels in the difference and makes the test sharper.

    Deviation: p is never below that of the sign test with all n signs alike. So with fewer than
    five pairs nothing is significant at 5 %, however alike the differences are; from five pairs on
    no decision at 5 % changes.

    Args:
        first: returns a of the policy that may be worse, [n].
        second: returns b of the other, pair by pair, [n].

    Returns:
        A probability. 2^-n where all differences are one positive number, 1 where they are one
        number that is not positive; NaN below two pairs, or where a difference is not finite.

    Raises:
        ShapeError: if there is not one second value for each first one.
    """
    one_side, other_side = (np.asarray(part, dtype=np.float64).ravel() for part in (first, second))
    if one_side.size != other_side.size:
        raise ShapeError(
            wrong="`first` and `second` must have one value for each pair",
            found=f"{one_side.size} and {other_side.size} values",
            remedy="Evaluate both policies in the same environments.",
        )
    n = one_side.size
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is seen below
        gain = other_side - one_side
    if n < 2 or not np.isfinite(gain).all():
        return math.nan
    least = 0.5**n
    mean, deviation = float(gain.mean()), _deviation(gain)
    if deviation == 0.0:
        return least if mean > 0.0 else 1.0
    from scipy.special import stdtr  # as above

    return max(float(stdtr(n - 1, -mean * math.sqrt(n) / deviation)), least)


def _deviation(sample: Array) -> float:
    """Return the standard deviation with n - 1; exactly 0 where all values are equal."""
    return 0.0 if bool((sample == sample[0]).all()) else float(sample.std(ddof=1))
