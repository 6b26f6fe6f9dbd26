"""Normalisation of advantages, once per rollout: by its own moments, or by running ones."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.core.errors import ArgumentError
from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, scalar
from stormsail.functional.statistics import COUNT_TOLERANCE, mean_and_std

MODES = ("floor", "eps", "center_only", "zero", "skip", "previous_stats")
RESOLUTION = 8.0 * torch.finfo(torch.float32).eps
"""Advantages below this share of the values they are differences of are rounding, not signal."""

YOUNG = 3.0
"""While there are few rollouts, about one part in this of them is remembered."""


class RunningMoments(NamedTuple):
    """Mean and variance of the advantages of many rollouts, the newer ones with more weight."""

    rollouts: Float[Tensor, ""]
    """How many have taken part."""
    mean: Float[Tensor, ""]
    variance: Float[Tensor, ""]


def normalise(
    advantage: Float[Tensor, "*batch"],
    *,
    weight: Float[Tensor, "*batch"] | None = None,
    magnitude: Number | None = None,
    mode: str = "floor",
    floor: Number = 1e-8,
    per_env: bool = False,
    previous: tuple[Number, Number] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the advantages with mean 0 and standard deviation 1 over the valid samples.

    .. math::
        \hat A = \frac{A - \mu}{\max(\sigma, f)}, \qquad
        f = \max\big(floor,\ 8\,\epsilon_{32}\,\max(|R|, |V|)\big)

    with weighted moments, the variance corrected by the effective count
    :math:`n_{eff} = (\sum w)^2 / \sum w^2`:

    .. math::
        \mu = \frac{\sum w A}{\sum w}, \qquad
        \sigma^2 = \frac{\sum w (A - \mu)^2}{\sum w} \cdot \frac{n_{eff}}{n_{eff} - 1}

    Ours; PPO implementations standardise too, but no paper defines it. Deviations from them: once
    over the rollout instead of per minibatch; float64 (in float32, equal advantages of 1.1 come out
    as -1, because the mean is off by a rounding error and the spread is that error); and a floor
    that knows the resolution of the values the advantages are differences of.

    What happens where sigma falls below f is the `mode`:

    * `floor`: divide by f. The result stays centred and fades to 0.
    * `eps`: always divide by sigma + floor.
    * `center_only`: A - mu. `zero`: 0. `skip`: A itself.
    * `previous_stats`: with the mean and the spread of an earlier rollout.

    Args:
        advantage: raw advantages.
        weight: weight of each sample, at least 0. Samples of weight 0 take no part, whatever they
            hold, and come out as 0.
        magnitude: max(|R|, |V|), as one number or per sample.
        mode: one of the six above.
        floor: smallest standard deviation, in the unit of the advantage; at least 0.
        per_env: normalise every environment (last axis) by itself. One with fewer than two
            effective samples takes the statistics of all. A single map for all keeps the ratio
            between environments; this option makes them equal.
        previous: (mean, std) for `previous_stats`.

    Returns:
        The normalised advantages, without gradient, in the dtype of the input.

    Raises:
        ChoiceError: if the mode is unknown.
        ShapeError: if `weight` or a tensor `magnitude` is not shaped like `advantage`.
        ArgumentError: if `previous` is missing.
        RangeError: if `floor` is a negative number.
    """
    check.check_choice(mode, MODES, name="mode")
    check.check_floating(advantage=advantage)
    remedy = "Pass the smallest standard deviation to divide by."
    check.check_at_least_zero(floor, name="floor", remedy=remedy)
    weight = torch.ones_like(advantage) if weight is None else weight
    check.check_same_shape(advantage=advantage, weight=weight)
    used = ~(weight <= 0)  # an unknown weight takes part, and shows
    values = torch.where(used, advantage.detach(), 0.0).double()
    mean, std = _statistics(values, weight, per_env=per_env)
    threshold = _threshold(advantage, used, magnitude, floor)
    centred = values - mean
    if mode == "eps":
        result = centred / (std + floor)
    elif mode == "floor":
        divisor = torch.maximum(std, threshold)
        result = centred / torch.where(divisor == 0.0, 1.0, divisor)
    else:
        degenerate = _degenerate(values, centred, threshold, mode, previous)
        result = torch.where(std < threshold, degenerate, centred / std)
    return torch.where(used, result, 0.0).to(advantage.dtype)


def running_moments(
    values: Float[Tensor, "*batch"],
    previous: RunningMoments | None,
    *,
    weight: Float[Tensor, "*batch"] | None = None,
    beta: Number,
) -> RunningMoments:
    r"""Return the running moments with one more rollout, in float64.

    .. math::
        g_k = \max\Big(1 - \beta,\ \frac{3}{k + 2}\Big), \qquad
        c_k = c_{k-1} + g_k\,(\mu_k - c_{k-1}), \qquad
        v_k = (1 - g_k)\big(v_{k-1} + g_k\,(\mu_k - c_{k-1})^2\big) + g_k\,\sigma_k^2

    with the mean and the variance of the k-th rollout as in `normalise`. These are mean and
    variance of all rollouts together, each with the weight
    :math:`\omega_j = g_j \prod_{i=j+1}^{k} (1 - g_i)`:

    .. math::
        c_k = \sum_j \omega_j \mu_j, \qquad
        v_k = \sum_j \omega_j \big( \sigma_j^2 + (\mu_j - c_k)^2 \big)

    so squares are taken about the running mean, never about that of one rollout. The weights sum to
    1 from the first rollout on: no start from 0 is left to be corrected, and one rollout alone has
    its own moments. While :math:`3/(k + 2) > 1 - \beta` they grow as j (j + 1), so that the last
    third of all rollouts counts and critics that are still poor are forgotten; then they are those
    of a moving average.

    Ours: by induction, since two parts of the masses 1 - g and g, the means c and :math:`\mu` and
    the variances v and :math:`\sigma^2` have the variance
    :math:`(1 - g) v + g \sigma^2 + g (1 - g) (\mu - c)^2` together.

    Args:
        values: raw advantages of one rollout, of any shape.
        previous: moments before it; None for none.
        weight: weight of each, at least 0. Those of weight 0 take no part, whatever they hold; a
            rollout without any other changes nothing.
        beta: decay, in [0, 1): about 1 / (1 - beta) rollouts are remembered.

    Raises:
        ShapeError: if `weight` is not shaped like `values`.
        RangeError: if `beta` is a number outside [0, 1).
    """
    check.check_floating(values=values)
    check.check_below_one(beta, name="beta", remedy="Pass the decay of an average, such as 0.98.")
    weight = torch.ones_like(values) if weight is None else weight
    check.check_same_shape(values=values, weight=weight)
    mean, std, count = mean_and_std(values.detach(), weight.detach())
    nothing = torch.zeros_like(mean)
    before = RunningMoments(*(previous or (nothing, nothing, nothing)))
    rollouts = before.rollouts + (count > 0.0)
    newest = torch.maximum(1.0 - scalar(beta, like=values), YOUNG / (rollouts + (YOUNG - 1.0)))
    gain = torch.where(count > 0.0, newest, 0.0)
    gap = mean - before.mean
    older = (1.0 - gain) * (before.variance + gain * gap.square())
    return RunningMoments(rollouts, before.mean + gain * gap, older + gain * std.square())


def earlier_moments(
    previous: RunningMoments | None, updated: RunningMoments, *, floor: Number
) -> RunningMoments:
    r"""Return the moments before a rollout if they have a spread, otherwise those with it.

    .. math::
        (c, v) = (c_{k-1}, v_{k-1}) \text{ where } \sqrt{v_{k-1}} > floor, \qquad
        (c_k, v_k) \text{ elsewhere}

    Ours: what a rollout is divided by must not depend on it, but the first one has no earlier ones,
    and rollouts without any spread say nothing about the size of an advantage.

    Args:
        previous: moments before the rollout; None for none.
        updated: `running_moments` with the rollout.
        floor: smallest standard deviation, in the unit of the advantage; at least 0.

    Raises:
        RangeError: if `floor` is a negative number.
    """
    check.check_at_least_zero(floor, name="floor", remedy="Pass the smallest standard deviation.")
    if previous is None:
        return updated
    has_spread = previous.variance.sqrt() > floor
    both = zip(previous, updated, strict=True)
    return RunningMoments(*(torch.where(has_spread, old, new) for old, new in both))


def normalise_by(
    advantage: Float[Tensor, "*batch"],
    running: RunningMoments,
    *,
    weight: Float[Tensor, "*batch"] | None = None,
    magnitude: Number | None = None,
    floor: Number = 1e-8,
) -> Float[Tensor, "*batch"]:
    r"""Return the advantages less a running mean, divided by a running standard deviation.

    .. math::
        \hat A = \frac{A - c}{\max(\sqrt v, f)}, \qquad
        f = \max\big(floor,\ 8\,\epsilon_{32}\,\max(|R|, |V|)\big)

    Ours. With c and v of *earlier* rollouts the divisor is independent of this one, so
    :math:`E[\nabla \log\pi\,(A - c)/\sqrt v] = E[\nabla \log\pi\,A]/\sqrt v`: the expected
    gradient keeps its direction. The rollout's own deviation s does not:
    :math:`E[A/s] \ne E[A]/s`, because a rollout with a rare large loss is divided by that loss, and
    one without it is not. Neither mean nor deviation of the result is that of a standard score.

    Args:
        advantage: raw advantages, of any shape: all that share the scale.
        running: moments to divide by.
        weight: weight of each sample, at least 0. Samples of weight 0 come out as 0, whatever they
            hold.
        magnitude: max(|R|, |V|), as one number or per sample.
        floor: smallest standard deviation, in the unit of the advantage; at least 0.

    Returns:
        The scaled advantages, without gradient, in the dtype of the input.

    Raises:
        ShapeError: if `weight` or a tensor `magnitude` is not shaped like `advantage`.
        RangeError: if `floor` is a negative number.
    """
    check.check_floating(advantage=advantage)
    remedy = "Pass the smallest standard deviation to divide by."
    check.check_at_least_zero(floor, name="floor", remedy=remedy)
    weight = torch.ones_like(advantage) if weight is None else weight
    check.check_same_shape(advantage=advantage, weight=weight)
    used = ~(weight <= 0)  # an unknown weight takes part, and shows
    values = torch.where(used, advantage.detach(), 0.0).double()
    threshold = _threshold(advantage, used, magnitude, floor)
    divisor = torch.maximum(running.variance.sqrt(), threshold)
    result = (values - running.mean) / torch.where(divisor == 0.0, 1.0, divisor)
    return torch.where(used, result, 0.0).to(advantage.dtype)


def _degenerate(
    values: Tensor,
    centred: Tensor,
    threshold: Tensor,
    mode: str,
    previous: tuple[Number, Number] | None,
) -> Tensor:
    """Return what stands in for the quotient where there is no spread to divide by."""
    if mode == "center_only":
        return centred
    if mode == "zero":
        return torch.zeros_like(values)
    if mode == "skip":
        return values
    if previous is None:
        raise ArgumentError(
            "missing-argument",
            wrong="`previous` must be given as (mean, std) in mode `previous_stats`",
            found="None",
            remedy="Pass the statistics of the rollout before.",
        )
    mean, std = previous
    check.check_known(mean=mean, std=std)
    return (values - mean) / torch.maximum(scalar(std, like=values), threshold)


def _threshold(
    advantage: Tensor, used: Bool[Tensor, "*batch"], magnitude: Number | None, floor: Number
) -> Float[Tensor, ""]:
    """Return f, the spread below which the quotient would be rounding."""
    largest = torch.zeros((), dtype=torch.float64, device=advantage.device)
    if isinstance(magnitude, Tensor) and magnitude.ndim:
        check.check_same_shape(advantage=advantage, magnitude=magnitude)
        size = torch.where(used, magnitude.detach().abs(), 0.0).double()
        largest = torch.maximum(largest, size.amax()) if size.numel() else largest
    elif magnitude is not None:
        check.check_known(magnitude=magnitude)
        largest = scalar(magnitude, like=advantage).detach().abs()
    return torch.maximum(RESOLUTION * largest, scalar(floor, like=advantage))


def _statistics(values: Tensor, weight: Tensor, *, per_env: bool) -> tuple[Tensor, Tensor]:
    """Return weighted mean and standard deviation: scalars, or one row per environment."""
    mean, std, _ = mean_and_std(values, weight)
    if not per_env:
        return mean, std
    own_mean, own_std, count = mean_and_std(values, weight, by_column=True)
    enough = count >= 2.0 - COUNT_TOLERANCE
    return torch.where(enough, own_mean, mean), torch.where(enough, own_std, std)
