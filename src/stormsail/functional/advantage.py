"""Normalisation of advantages, once per rollout."""

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
