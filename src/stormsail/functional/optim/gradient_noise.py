r"""How much of a gradient is noise: moving moments, their bias correction, and the shrinkage.

Weights :math:`w_j = (1-\beta)\beta^{k-j} / (1-\beta^k)` over the gradients :math:`g_1 \dots g_k` of
one tensor give the moving mean :math:`\hat m = \sum w_j g_j` and the moving second moment
:math:`\hat s = \sum w_j g_j^2`. Everything below works on the spread
:math:`\hat s - \hat m^2`, on :math:`\hat m^2`, and on :math:`W_k = \sum w_j^2`.
"""

from jaxtyping import Float
from torch import Tensor, sign, where

from stormsail.core.errors import RangeError
from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp

Values = Float[Tensor, "*batch"]


def _check_beta(beta: Number) -> None:
    check.check_scalar(beta, name="beta")
    if not isinstance(beta, Tensor) and not 0.0 <= beta < 1.0:
        remedy = "Pass the decay of a moving average, for example 0.99."
        raise RangeError(wrong="`beta` must lie in [0, 1)", found=repr(beta), remedy=remedy)


def _mass(count: Values, beta: Number) -> Values:
    """1 - beta^k, and 1 where nothing was counted, so that nothing is divided by 0."""
    return where(count > 0, 1.0 - beta**count, 1.0)


def gain(count: Float[Tensor, "*batch"], *, beta: Number) -> Float[Tensor, "*batch"]:
    r"""Return the weight of the newest of k values, :math:`(1-\beta) / (1-\beta^k)`.

    :math:`\hat m_k = \hat m_{k-1} + gain_k (g_k - \hat m_{k-1})` is the bias-corrected moving
    average itself, without a division afterwards: 1 at k = 1, so the first value is taken over
    exactly. Textbook.

    Args:
        count: how many values, the newest included; at least 1.
        beta: decay, in [0, 1).

    Raises:
        RangeError: if `beta` is a number outside [0, 1).
    """
    _check_beta(beta)
    return (1.0 - beta) / _mass(count, beta)


def weight_concentration(count: Float[Tensor, "*batch"], *, beta: Number) -> Values:
    r"""Return :math:`W_k = \sum_j w_j^2 = \frac{(1-\beta)(1+\beta^k)}{(1+\beta)(1-\beta^k)}`.

    The variance of a moving mean of independent values is :math:`W_k \sigma^2`. 1 at k = 1 (and,
    by definition, at k = 0), (1 - beta) / (1 + beta) in the limit. Ours: geometric sums.

    Raises:
        RangeError: if `beta` is a number outside [0, 1).
    """
    _check_beta(beta)
    ratio = (1.0 - beta) / (1.0 + beta)
    return where(count > 0, ratio * (1.0 + beta**count) / _mass(count, beta), 1.0)


def moving_spread(
    spread: Float[Tensor, "*batch"],
    distance_square: Float[Tensor, "*batch"],
    gain: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    r"""Return the spread after one more value, :math:`(1 - a)(v + a\,d^2)`.

    :math:`v = \hat s - \hat m^2` before, :math:`d = g - \hat m` the distance of the new value from
    the mean before it, :math:`a` its `gain`. The same number as the difference of the two moving
    averages (put :math:`\hat m' = \hat m + a d` into :math:`\hat s' - \hat m'^2`), but nothing
    cancels: a gradient that never changes has spread exactly 0 in any precision. Welford 1962 with
    moving weights. Ours in this form. The mean over elements may be taken of both sides.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(spread=spread, distance_square=distance_square, gain=gain)
    return (1.0 - gain) * (spread + gain * distance_square)


def noise_variance(
    spread: Float[Tensor, "*batch"], concentration: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sigma^2 = \max(0, \hat s - \hat m^2) / (1 - W_k)`; 0 while one value is all.

    Unbiased for gradients that are independent over time: :math:`E[\hat s] = \mu^2 + \sigma^2` and
    :math:`E[\hat m^2] = \mu^2 + W_k\sigma^2`. Ours. Without the division the second of two values
    shows half of the variance.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(spread=spread, concentration=concentration)
    left = 1.0 - concentration
    return where(left > 0, clamp(spread, low=0.0) / where(left > 0, left, 1.0), 0.0)


def signal_square(
    mean_square: Float[Tensor, "*batch"],
    variance: Float[Tensor, "*batch"],
    concentration: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`S^2 = \max(0, \hat m^2 - W_k \sigma^2)`, the square of the true mean.

    The moving mean still carries the share :math:`W_k` of the noise; without the subtraction pure
    noise of beta = 0.99 would seem to have a noise-to-signal ratio of 199 and never more. Ours.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(mean_square=mean_square, variance=variance, concentration=concentration)
    return clamp(mean_square - concentration * variance, low=0.0)


def noise_to_signal(
    variance: Float[Tensor, "*batch"],
    signal: Float[Tensor, "*batch"],
    second_moment: Float[Tensor, "*batch"],
    *,
    eps_rel: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sigma^2 / (S^2 + \epsilon \hat s)`, and 0 where the gradient is 0.

    In the unit of McCandlish et al. 2018 (arXiv:1812.06162) this is the simple noise scale of the
    gradients as they are measured. We deviate by the relative floor :math:`\epsilon \hat s`: an
    absolute one would make the ratio depend on the unit of the loss. It bounds the ratio by
    1 / eps_rel up to the correction of the variance.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `eps_rel` is a number that is not greater than 0.
    """
    check.check_same_shape(variance=variance, signal=signal, second_moment=second_moment)
    check.check_positive(eps_rel, name="eps_rel", remedy="Pass a small share, for example 1e-3.")
    floor = signal + eps_rel * second_moment
    # A NaN is not greater than 0 either; it goes through the division and stays visible.
    empty = floor <= 0
    return where(empty, 0.0, variance / where(empty, 1.0, floor))


def noise_fraction(
    variance: Float[Tensor, "*batch"], signal: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\rho = \sigma^2 / (\sigma^2 + S^2)` in [0, 1], and 0 where both are 0.

    The share of a gradient's expected square that is noise. Ours; 1 - rho is the factor of
    `scaling_factor` with alpha = 1.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(variance=variance, signal=signal)
    total = variance + signal
    empty = total <= 0
    return where(empty, 0.0, variance / where(empty, 1.0, total))


def scaling_factor(
    ratio: Float[Tensor, "*batch"], *, alpha: Number, floor: Number, cap: Number
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\max\big(floor,\ 1 / (1 + \alpha \min(\max(ratio, 0), cap))\big)`.

    :math:`\arg\min_c E\|c g - G\|^2 = |G|^2 / (|G|^2 + \mathrm{tr}\Sigma) = 1 / (1 + ratio)`, the
    Wiener shrinkage: alpha = 1 is the optimum for one gradient seen alone, smaller values are
    milder, and 0 changes nothing. Ours. A negative ratio counts as 0, so no step ever grows.

    Raises:
        RangeError: if `alpha` or `cap` is a negative number, or `floor` lies outside [0, 1].
    """
    remedy = "Pass the strength of the shrinkage; 1 is the optimum for a single gradient."
    check.check_at_least_zero(alpha, name="alpha", remedy=remedy)
    check.check_unit_interval(floor, name="floor", remedy="Pass the smallest factor.")
    check.check_at_least_zero(cap, name="cap", remedy="Pass the largest ratio to act on.")
    capped = clamp(clamp(ratio, low=0.0), high=cap)
    return clamp(1.0 / (1.0 + alpha * capped), low=floor)


def moving_median(
    median: Float[Tensor, "*batch"],
    value: Float[Tensor, "*batch"],
    gain: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    r"""Return the slow median after one more value, :math:`m\,e^{a\,\mathrm{sign}(v - m)}`.

    Stochastic approximation of the median of :math:`\log v` (Robbins & Monro 1951): the step up and
    the step down are equally long, so it rests where a value is as often above as below. It has no
    unit, and a value however large moves it by the factor :math:`e^a` and not more. A median of 0
    has seen nothing yet and takes the value over. Ours in this form.

    Args:
        median: before, at least 0.
        value: the newest, at least 0.
        gain: :math:`a`, length of the step in logarithms; 0 leaves a median that is not 0.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(median=median, value=value, gain=gain)
    return where(median > 0, median * (gain * sign(value - median)).exp(), value)


def relative_excess(
    value: Float[Tensor, "*batch"], median: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\max(0,\ v / m - 1)`, by how much a value exceeds its median; 0 without one.

    In the place of the ratio in `scaling_factor` it leaves what is usual alone, at any level: half
    of all values are not above their median. Ours.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(value=value, median=median)
    known = median > 0
    return where(known, clamp(value / where(known, median, 1.0) - 1.0, low=0.0), 0.0)


def accumulated_variance(
    square_sum: Float[Tensor, "*batch"], count: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""Return the variance of a sum of M parts, :math:`M \sum_m (h_m - \bar h)^2 / (M - 1)`.

    M times the unbiased variance of one part: the noise of the gradient that M micro-batches of
    equal share add up to, from their own disagreement. Textbook; with :math:`g_m = M h_m` it is
    :math:`\sum\|g_m - \bar g\|^2 / (M - 1)` over M, the within-step form of McCandlish et al. 2018
    (arXiv:1812.06162). 0 for fewer than two parts.

    Args:
        square_sum: sum of squared distances of the parts from their mean.
        count: number of parts M.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(square_sum=square_sum, count=count)
    pairs = count > 1
    return where(pairs, count * square_sum / where(pairs, count - 1.0, 1.0), 0.0)
