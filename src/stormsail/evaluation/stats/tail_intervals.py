"""Intervals of the CVaR of episodes, and of its change between two policies in the same episodes.

For the returns of an evaluation: n episodes, one in each environment, independent of each other.
"""

import math
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stormsail.core.errors import ShapeError
from stormsail.evaluation.stats.paired import CONFIDENCE, mean_interval
from stormsail.functional import risk

FEWEST_IN_TAIL = 2
"""Values that a tail must hold for an interval: a single one has no spread to judge by."""


class Estimate(NamedTuple):
    """A number with its 95 % interval; NaN where there are too few values for one."""

    value: float
    low: float
    high: float


def mean_estimate(values: ArrayLike) -> Estimate:
    """Return the mean with Student's interval (`mean_interval`)."""
    sample = _sample(values)
    return Estimate(float(sample.mean()), *mean_interval(sample.numpy()))


def cvar_estimate(values: ArrayLike, *, alpha: float) -> Estimate:
    r"""Return the mean of the worst share `alpha` of n values, with an interval.

    .. math::
        \widehat{CVaR} \pm t_{n-1,\,.975} \, \frac{s_v}{\sqrt n}, \qquad
        v_i = \nu + \frac{\min(x_i - \nu, 0)}{\alpha}

    `functional.risk.empirical_cvar` and its error, with s_v the standard deviation of the v_i. It
    is narrow where the tail holds few values: at 5 % and 200 of them it covers 88 % of normal
    samples. Below two values in the tail there is none.

    Args:
        values: [n].
        alpha: share of worst values, in (0, 1].
    """
    sample = _sample(values)
    value = float(risk.empirical_cvar(sample, alpha=alpha))
    error = float(risk.empirical_cvar_error(sample, alpha=alpha))
    return _around(value, error, len(sample), alpha)


def cvar_change(first: ArrayLike, second: ArrayLike, *, alpha: float) -> Estimate:
    r"""Return CVaR of the second minus that of the first, with an interval for pairs.

    .. math::
        \Delta \pm t_{n-1,\,.975} \, \frac{s_d}{\sqrt n}, \qquad d_i = v_i(b) - v_i(a)

    with v as in `cvar_estimate`, each at its own quantile. Ours: to first order either estimate
    varies like the mean of its v_i (`functional.risk.empirical_cvar_error`), so their difference
    varies like the mean of the d_i; what the two of a pair have in common cancels.

    Args:
        first: values a, [n].
        second: values b, pair by pair, [n].
        alpha: share of worst values, in (0, 1].

    Raises:
        ShapeError: if there is not one second value for each first one.
    """
    before, after = _sample(first), _sample(second)
    if len(before) != len(after):
        raise ShapeError(
            wrong="`first` and `second` must have one value for each pair",
            found=f"{len(before)} and {len(after)} values",
            remedy="Evaluate both in the same environments.",
        )
    difference = _influence(after, alpha) - _influence(before, alpha)
    value = float(risk.empirical_cvar(after, alpha=alpha)) - float(
        risk.empirical_cvar(before, alpha=alpha)
    )
    count = len(difference)
    error = float(difference.std()) / math.sqrt(count) if count > 1 else math.nan
    return _around(value, error, count, alpha)


def _influence(sample: Tensor, alpha: float) -> Tensor:
    """Return what each value adds to n times the estimate of CVaR, to first order."""
    level = risk.value_at_risk(sample, alpha=alpha)
    return level + (sample - level).clamp(max=0.0) / alpha


def _around(value: float, error: float, count: int, alpha: float) -> Estimate:
    if alpha * count < FEWEST_IN_TAIL or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    from scipy.special import stdtrit  # slow to import, and needed for evaluations alone

    half = float(stdtrit(count - 1, 0.5 * (1.0 + CONFIDENCE))) * error
    return Estimate(value, value - half, value + half)


def _sample(values: ArrayLike) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64).flatten()
