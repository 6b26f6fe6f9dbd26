"""Weighted mean, deviation, moments and other statistics; entries of weight 0 never matter."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp
from stormsail.functional.kernels.column_moments import adds, column_moments

MAD_TO_STD = 1.4826
"""1 / Phi^{-1}(3/4): a Gaussian's standard deviation over its median absolute deviation."""

COUNT_TOLERANCE = 1e-9
"""Slack on an effective count: the weights (.3, .3) count as two entries up to rounding."""

ROUNDINGS = 8.0
"""A spread of at most this many roundings of the largest entry is rounding, not spread."""


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
    if adds(x, weight):
        return Moments(*column_moments(x, weight))
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


class Weights(NamedTuple):
    """Weights of entries as `weighted_mean` needs them, for several means with the same ones."""

    used: Bool[Tensor, "*batch"]
    """Entries that take part."""
    mass: Float[Tensor, "*batch"]
    """0 where one does not."""
    total: Float[Tensor, ""]

    @staticmethod
    def of(weight: Float[Tensor, "*batch"]) -> "Weights":
        """Return what several means with the same weights need; textbook."""
        used = ~(weight <= 0)  # an unknown weight takes part, and shows
        mass = torch.where(used, weight, 0.0)
        return Weights(used, mass, mass.sum())


def weighted_mean(
    x: Float[Tensor, "*batch"],
    weight: Float[Tensor, "*batch"] | Weights,
    *,
    empty: Number = 0.0,
) -> Float[Tensor, ""]:
    r"""Return :math:`\sum w x / \sum w` over the entries of positive weight, in the dtype of x.

    Textbook, but that entries of weight 0 are selected away, so that a NaN there reaches neither
    the result nor the gradient of the others.

    Args:
        x: entries.
        weight: weight of each, or what `Weights.of` makes of it.
        empty: the result if no entry has a positive weight: 0 for a loss, NaN for a statistic.

    Raises:
        ShapeError: if the shapes differ.
    """
    used, mass, total = weight if isinstance(weight, Weights) else Weights.of(weight)
    check.check_same_shape(x=x, weight=mass)
    check.check_scalar(empty, name="empty")
    mean = (torch.where(used, x, 0.0) * mass).sum() / torch.where(total > 0, total, 1.0)
    return torch.where(total == 0, empty, mean).to(mean.dtype)


def mean_and_std(
    x: Float[Tensor, "*batch"], weight: Float[Tensor, "*batch"], *, by_column: bool = False
) -> tuple[Float[Tensor, "*columns"], Float[Tensor, "*columns"], Float[Tensor, "*columns"]]:
    r"""Return weighted mean, standard deviation and effective count, in float64.

    .. math::
        \mu = \frac{\sum w x}{\sum w}, \qquad
        \sigma^2 = \frac{\sum w (x - \mu)^2}{\sum w} \cdot \frac{n_{eff}}{n_{eff} - 1}, \qquad
        n_{eff} = \frac{(\sum w)^2}{\sum w^2}

    Textbook for weights of 0 and 1, where n_eff is the number of entries. Entries of weight 0 take
    no part. No entry has the mean 0, one effective entry the deviation 0; the count tells.

    Args:
        x: entries.
        weight: weight of each, at least 0.
        by_column: reduce all axes but the last, instead of all.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(x=x, weight=weight)
    used = ~(weight <= 0)  # an unknown weight takes part, and shows
    mass, values = (torch.where(used, part, 0.0).double() for part in (weight, x))
    axes = tuple(range(x.ndim - by_column))
    if not axes:  # one entry per column: `sum` over no axis would sum over all
        return values, torch.zeros_like(values), (mass > 0).double()
    total, squares = mass.sum(axes), mass.square().sum(axes)
    has_mass = total > 0
    total = torch.where(has_mass, total, 1.0)
    mean = (mass * values).sum(axes) / total
    count = total.square() / torch.where(has_mass, squares, 1.0)
    variance = (mass * (values - mean).square()).sum(axes) / total
    has_spread = has_mass & (count > 1.0)
    correction = count / torch.where(has_spread, count - 1.0, 1.0)
    std = torch.where(has_spread, variance * correction, 0.0).sqrt()
    return mean, std, torch.where(has_mass, count, 0.0)


def weighted_std(x: Float[Tensor, "*batch"], weight: Float[Tensor, "*batch"]) -> Float[Tensor, ""]:
    """Return the standard deviation of `mean_and_std`, in float64; NaN below two entries.

    Textbook; below two effective entries there is no deviation, and no other number stands in.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(x=x, weight=weight)
    _, std, count = mean_and_std(x, weight)
    return torch.where(count > 1.0 + COUNT_TOLERANCE, std, torch.nan)


def percentile(
    x: Float[Tensor, "*batch"], used: Bool[Tensor, "*batch"], *, level: Number
) -> Float[Tensor, ""]:
    r"""Return the percentile of the entries that are used, in float64; NaN if there is none.

    The value at the rank :math:`level \cdot (n - 1)` of the n sorted entries, between neighbours by
    a straight line: the default of NumPy; textbook. Unlike `torch.quantile` it takes a mask and any
    number of entries.

    Args:
        x: entries.
        used: which of them count.
        level: in [0, 1]; 0.5 is the median.

    Raises:
        ShapeError: if the shapes differ.
        DtypeError: if `used` is not boolean.
        RangeError: if `level` is a number outside [0, 1].
    """
    return percentiles(x, used, levels=(level,))[0]


def percentiles(
    x: Float[Tensor, "*batch"], used: Bool[Tensor, "*batch"], *, levels: Sequence[Number]
) -> Float[Tensor, " K"]:
    """Return `percentile` at each of K levels; textbook.

    The entries are sorted once, which is most of the work.

    Raises:
        ShapeError: if the shapes differ.
        DtypeError: if `used` is not boolean.
        RangeError: if a level is a number outside [0, 1].
    """
    check.check_same_shape(x=x, used=used)
    check.check_flags(used=used)
    for level in levels:
        check.check_unit_interval(level, name="level", remedy="Pass 0.5 for the median.")
    if x.numel() == 0:
        return torch.full((len(levels),), torch.nan, dtype=torch.float64, device=x.device)
    ordered = torch.where(used, x.double(), torch.inf).flatten().sort().values
    last = (used.sum() - 1).clamp(min=0)
    rank = torch.stack([level * last.double() for level in levels])
    low = rank.floor().long()
    high = torch.minimum(low + 1, last)
    below, above = ordered[low], ordered[high]
    between = torch.where(rank > low, below + (above - below) * (rank - low), below)
    return torch.where(used.any(), between, torch.nan)


def explained_variance(
    target: Float[Tensor, "*batch"], value: Float[Tensor, "*batch"], *, weight: Tensor | None = None
) -> Float[Tensor, ""]:
    r"""Return :math:`1 - Var(R - V) / Var(R)` in float64, over the entries of positive weight.

    The explained variance score of the scikit-learn user guide (Section "Explained variance
    score"): 1 is perfect, 0 as good as a constant, negative worse. NaN with fewer than two entries
    or a target without spread: there is then nothing to explain, and no other formula stands in.

    No spread is :math:`\sqrt{Var(R)} \le 8\,\epsilon \max|R|` with the resolution of the target's
    dtype, the same threshold as that of `advantage.normalise`. Ours: a threshold in the unit of
    the target would call the same returns unknown in another unit. So the result is the same
    number, bit for bit, for R and V in units that are a power of two apart.

    Raises:
        ShapeError: if the shapes differ.
    """
    weight = torch.ones_like(target) if weight is None else weight
    check.check_same_shape(target=target, value=value, weight=weight)
    used = ~(weight <= 0).flatten()
    mass = torch.where(used, weight.flatten(), 0.0)
    wanted = _masked_variance(target, used, mass)
    missed = _masked_variance(target.double() - value.double(), used, mass)
    size = torch.where(used, target.detach().flatten().abs(), 0.0)
    least = least_variance(size.amax() if size.numel() else size.sum())
    meaningful = (used.sum() > 1) & ~(wanted <= least)
    return torch.where(meaningful, 1.0 - missed / wanted, torch.nan)


def least_variance(size: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r"""Return :math:`(8\,\epsilon\,|x|)^2` in float64, the variance that rounding alone may make.

    Ours: epsilon is the distance of 1 from its neighbour in the dtype of `size`, so the root is
    eight roundings of an entry of that size. A variance at or below it is no spread.

    Args:
        size: largest size of the entries, in their own dtype.

    Raises:
        DtypeError: if `size` is not of floating point.
    """
    check.check_floating(size=size)
    resolution = ROUNDINGS * torch.finfo(size.dtype).eps
    return (resolution * size.detach().double()).square()


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
