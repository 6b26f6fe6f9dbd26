"""Moments, drifts and summaries. Moments are float64; entries of weight 0 never matter."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp

MAD_TO_STD = 1.4826
"""1 / Phi^{-1}(3/4): a Gaussian's standard deviation over its median absolute deviation."""

LEAST_VARIANCE = 1e-12
"""Variance of the target below which a share of it means nothing, in squared target units."""


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations: what can be merged without loss."""

    count: Float[Tensor, ""]  # type: ignore[assignment]  # the tuple method is not missed
    mean: Float[Tensor, "*features"]
    m2: Float[Tensor, "*features"]


def moments(x: Float[Tensor, " n *features"], *, weight: Tensor | None = None) -> Moments:
    r"""Return count, mean and :math:`\sum w (x - \bar x)^2` over the first axis, in float64.

    Two passes, so that a large mean does not cancel the spread. Ours to be merged by `merge`.

    Args:
        x: samples along the first axis.
        weight: [n], at least 0; rows of weight 0 never matter. The count is the sum of weights.

    Raises:
        ShapeError: if `weight` has not one entry per row.
    """
    check.check_rows(x=x)
    weight = x.new_ones(x.shape[0]) if weight is None else weight
    check.check_row_weight(x=x, weight=weight)
    used = ~(weight <= 0)  # an unknown weight takes part, and shows
    mass = torch.where(used, weight, 0.0).double()
    shape = (-1, *[1] * (x.ndim - 1))
    rows = torch.where(used.reshape(shape), x, 0.0).double()
    count = mass.sum()
    total = torch.where(count > 0, count, 1.0)
    mean = (mass.reshape(shape) * rows).sum(0) / total
    return Moments(count, mean, (mass.reshape(shape) * (rows - mean).square()).sum(0))


def merge(first: Moments, second: Moments) -> Moments:
    r"""Return the moments of both samples together.

    .. math::
        n = n_a + n_b, \quad d = \bar b - \bar a, \quad
        \bar x = \bar a + d\,\frac{n_b}{n}, \quad M_2 = M_{2a} + M_{2b} + d^2\,\frac{n_a n_b}{n}

    Chan, Golub & LeVeque 1983, The American Statistician 37(3):242-247; Welford 1962 is the case
    n_b = 1. Merging with an empty sample is the identity. Cumulative: unlike a moving average, what
    a new sample changes shrinks as the count grows.

    Raises:
        ShapeError: if the statistics describe different features.
    """
    check.check_same_shape(first=first.mean, second=second.mean)
    count = first.count + second.count
    share = second.count / torch.where(count > 0, count, 1.0)
    gap = second.mean - first.mean
    mean = first.mean + gap * share
    return Moments(count, mean, first.m2 + second.m2 + gap.square() * (first.count * share))


def variance(statistics: Moments, *, ddof: int = 0) -> Float[Tensor, "*features"]:
    """Return M2 / (count - ddof); 0 where that count is not positive.

    Definition of the variance; the moments are those of `merge`.
    """
    count = statistics.count - ddof
    return torch.where(count > 0, statistics.m2 / torch.where(count > 0, count, 1.0), 0.0)


def drift(before: Moments, after: Moments) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""Return how far statistics moved: mean and spread, averaged over the features.

    .. math::
        \overline{|\mu' - \mu| / \sigma}, \qquad \overline{|\log(\sigma' / \sigma)|}

    Ours: what a network that was trained under the old statistics sees of the change. A constant
    feature that stays what it was contributes 0.

    Raises:
        ShapeError: if the statistics describe different features.
    """
    check.check_same_shape(before=before.mean, after=after.mean)
    std, new_std = variance(before).sqrt(), variance(after).sqrt()
    moved = after.mean != before.mean
    shift = torch.where(moved, (after.mean - before.mean).abs() / std, 0.0)
    widened = torch.where(new_std != std, (new_std / std).log().abs(), 0.0)
    return shift.mean(), widened.mean()


def standardise(
    x: Float[Tensor, "*batch"],
    mean: Tensor,
    variance: Tensor,
    *,
    clip: Number = 10.0,
    eps: Number = 1e-8,
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`clamp\big((x - \mu) / \sqrt{\sigma^2 + \epsilon},\ \pm clip\big)`.

    The observation scaling of Gymnasium's `NormalizeObservation`, with the clip that PPO
    implementations add. The statistics describe the trailing axes of x; every leading axis is a
    batch.

    Raises:
        ShapeError: if the statistics are not shaped like the trailing axes of `x`.
        RangeError: if `clip` is a number that is not greater than 0, or `eps` negative.
    """
    check.check_same_shape(mean=mean, variance=variance)
    check.check_trailing(x=x, mean=mean)
    remedy = "Pass the largest standardised size, for example 10."
    check.check_positive(clip, name="clip", remedy=remedy)
    check.check_at_least_zero(eps, name="eps", remedy="Pass a small variance, for example 1e-8.")
    return clamp((x - mean) / (variance + eps).sqrt(), -clip, clip).to(x.dtype)


def weighted_mean(x: Float[Tensor, "*batch"], weight: Float[Tensor, "*batch"]) -> Float[Tensor, ""]:
    r"""Return :math:`\sum w x / \sum w` over the entries of positive weight; 0 if there is none.

    Textbook, but that entries of weight 0 are selected away, so that a NaN there reaches neither
    the result nor the gradient of the others.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(x=x, weight=weight)
    used = ~(weight <= 0)  # an unknown weight takes part, and shows
    mass = torch.where(used, weight, 0.0)
    total = mass.sum()
    return (torch.where(used, x, 0.0) * mass).sum() / torch.where(total > 0, total, 1.0)


def explained_variance(
    target: Float[Tensor, "*batch"], value: Float[Tensor, "*batch"], *, weight: Tensor | None = None
) -> Float[Tensor, ""]:
    r"""Return :math:`1 - Var(R - V) / Var(R)` in float64, over the entries of positive weight.

    The explained variance score of the scikit-learn user guide (Section "Explained variance
    score"): 1 is perfect, 0 as good as a constant, negative worse. NaN with fewer than two entries
    or a target without spread: there is then nothing to explain, and no other formula stands in.

    Raises:
        ShapeError: if the shapes differ.
    """
    weight = torch.ones_like(target) if weight is None else weight
    check.check_same_shape(target=target, value=value, weight=weight)
    used = ~(weight <= 0).flatten()
    mass = torch.where(used, weight.flatten(), 0.0)
    wanted = _masked_variance(target, used, mass)
    missed = _masked_variance(target.double() - value.double(), used, mass)
    meaningful = (used.sum() > 1) & ~(wanted <= LEAST_VARIANCE)
    return torch.where(meaningful, 1.0 - missed / wanted, torch.nan)


def slope(y: Float[Tensor, "*batch n"], *, x: Tensor | None = None) -> Float[Tensor, "*batch"]:
    r"""Return the least-squares slope :math:`\sum (x-\bar x)(y-\bar y) / \sum (x-\bar x)^2`.

    Ordinary least squares with an intercept; textbook.

    Args:
        y: n >= 2 ordinates along the last axis.
        x: [n] abscissae; 0 .. n-1 without it.

    Raises:
        ShapeError: if there are fewer than two points or `x` does not have one entry for each.
    """
    check.check_points(y=y, x=x)
    steps = torch.arange(y.shape[-1], device=y.device) if x is None else x
    centred = steps.double() - steps.double().mean()
    rise = ((y.double() - y.double().mean(-1, keepdim=True)) * centred).sum(-1)
    return (rise / centred.square().sum()).to(y.dtype)


def median_absolute_deviation_std(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Return :math:`1.4826 \cdot median|x - median(x)|`, a spread that outliers cannot move.

    The usual robust scale, consistent for a Gaussian; textbook. The median of an even count is the
    mean of its two middle values (torch's own is the lower one).

    Raises:
        ShapeError: if there is no last dimension.
    """
    check.check_has_axis(axis="samples", x=x)
    return MAD_TO_STD * _median((x - _median(x).unsqueeze(-1)).abs())


def _median(x: Tensor) -> Tensor:
    n = x.shape[-1]
    ordered = x.sort(-1).values
    middle = 0.5 * (ordered[..., (n - 1) // 2] + ordered[..., n // 2])
    return torch.where(ordered[..., -1].isnan(), torch.nan, middle)  # a NaN sorts last: show it


def _masked_variance(x: Tensor, used: Bool[Tensor, " n"], mass: Tensor) -> Tensor:
    rows = torch.where(used, x.detach().flatten(), 0.0)
    return variance(moments(rows, weight=mass))
