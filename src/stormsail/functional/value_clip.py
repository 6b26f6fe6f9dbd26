"""Keep a critic's new distribution near its own old one. N quantiles, K atoms.

The clipped prediction only ever competes with the free one in a maximum of two losses
(`twin.twin_loss`); the target is never clipped.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.core.errors import ChoiceError
from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp
from stormsail.functional.categorical import (
    distribution_mean,
    distribution_variance,
    project_distribution,
)
from stormsail.functional.quantile import expectation

MODES = ("off", "mean_only", "mean_and_variance", "per_quantile")
DISTRIBUTION_MODES = MODES[:-1]
STD_FLOOR = 1e-8
"""Least old spread, in the unit of the values: a Dirac may still regain some spread."""


def clip_quantiles(
    new: Float[Tensor, "*batch N"],
    old: Float[Tensor, "*batch N"],
    *,
    epsilon: Number,
    mode: str,
    variance_factor: Number = 2.0,
    weight: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*batch N"]:
    r"""Return the new quantiles, held near the old ones of the same critic.

    The value clipping of PPO implementations (Schulman et al. 2017, arXiv:1707.06347, has it in
    its code, not in an equation), carried over to distributions. With m the mean, s the population
    standard deviation over the quantiles and :math:`d = clamp(m, m_{old} \pm \epsilon) - m`:

    * `off`: :math:`\theta`
    * `mean_only`: :math:`\theta + d`; the shape is free.
    * `mean_and_variance`: :math:`(\theta - m)\,\min(1, f\,s_{old} / s) + m + d`. It only shrinks a
      spread that grew beyond f times the old one, and never inflates.
    * `per_quantile`: :math:`\theta_i^{old} + clamp(\theta_i - \theta_i^{old}, \pm\epsilon)`, each
      against its *own* old quantile (against one scalar, the distribution would collapse into a
      band).

    Args:
        new: predicted quantiles; the gradient flows through these, mean and spread included.
        old: quantiles of the same critic at rollout time, in the same unit; constants.
        epsilon: half-width of the band, absolute, in the unit of the values; at least 0.
        mode: one of the four above.
        variance_factor: f, acts on the *standard deviation*; greater than 0.
        weight: mass of each quantile in m and s, sums to 1; None for equal ones.

    Raises:
        ShapeError: if the shapes differ, or there is not one weight for each quantile.
        ChoiceError: if the mode is unknown.
        RangeError: if `epsilon` or `variance_factor` is out of range.
    """
    check.check_choice(mode, MODES, name="mode")
    check.check_same_shape(new=new, old=old)
    check.check_has_axis(axis="quantiles", new=new)
    check.check_weight(weight, count=new.shape[-1])
    _check_band(epsilon, variance_factor)
    old = old.detach()
    if mode == "off":
        return new
    if mode == "per_quantile":
        return old + clamp(new - old, -epsilon, epsilon)
    mean = expectation(new, weight=weight).unsqueeze(-1)
    old_mean = expectation(old, weight=weight).unsqueeze(-1)
    target = _hold(mean, old_mean, epsilon)
    if mode == "mean_only":
        return new + (target - mean)
    spread = expectation((new - mean).square(), weight=weight).unsqueeze(-1)
    old_spread = expectation((old - old_mean).square(), weight=weight).unsqueeze(-1)
    return (new - mean) * _shrink(spread, old_spread, variance_factor) + target


def clip_distribution(
    probs: Float[Tensor, "*batch K"],
    old_probs: Float[Tensor, "*batch K"],
    atoms: Float[Tensor, " K"],
    *,
    epsilon: Number,
    mode: str,
    variance_factor: Number = 2.0,
) -> Float[Tensor, "*batch K"]:
    r"""Return the new distribution on the same atoms, held near the old one of the same critic.

    The modes of `clip_quantiles` with the moments of the distributions: every atom z moves to
    :math:`(z - m)\,c + m + d` (c = 1 in `mean_only`) and is projected back
    (Bellemare et al. 2017, arXiv:1707.06887, Eq. 7), so that the shape and the gradient to every
    probability survive. Projection between atoms adds up to a quarter of the squared spacing to
    the variance. `per_quantile` has no meaning for probabilities on fixed atoms and is refused.

    Args:
        probs: predicted distribution; the gradient flows through it.
        old_probs: distribution of the same critic at rollout time, on the same atoms; constant.
        atoms: ascending support.
        epsilon: half-width of the band of the mean, in the unit of the atoms; at least 0.
        mode: `off`, `mean_only` or `mean_and_variance`.
        variance_factor: largest growth of the standard deviation; greater than 0.

    Raises:
        ShapeError: if the distributions differ in shape or do not lie on the atoms.
        ChoiceError: if the mode is unknown or `per_quantile`.
        RangeError: if `epsilon` or `variance_factor` is out of range.
    """
    if mode == "per_quantile":
        raise ChoiceError(
            wrong="`mode` must act on the moments of a distribution, as `mean_only` does",
            found="`per_quantile`",
            remedy="Use `mean_and_variance`, or a quantile critic.",
        )
    check.check_choice(mode, DISTRIBUTION_MODES, name="mode")
    check.check_same_shape(probs=probs, old_probs=old_probs)
    check.check_distribution(atoms, probs=probs)
    _check_band(epsilon, variance_factor)
    old_probs = old_probs.detach()
    if mode == "off":
        return probs
    mean = distribution_mean(probs, atoms).unsqueeze(-1)
    target = _hold(mean, distribution_mean(old_probs, atoms).unsqueeze(-1), epsilon)
    if mode == "mean_only":
        return project_distribution(probs, atoms + (target - mean), atoms)
    spread = distribution_variance(probs, atoms).unsqueeze(-1)
    old_spread = distribution_variance(old_probs, atoms).unsqueeze(-1)
    scale = _shrink(spread, old_spread, variance_factor)
    return project_distribution(probs, (atoms - mean) * scale + target, atoms)


clip_law = clip_distribution
"""The same function under its earlier name."""


def limit_encoded(
    prediction: Float[Tensor, "*batch"],
    *,
    limit: Number,
    mean: Number,
    std: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the encoded prediction whose decoded value is limited to [-limit, limit].

    .. math::
        \frac{clamp(\sigma x + \mu, \pm L) - \mu}{\sigma}

    For values that enter advantages and the clipped branch of the loss. Never for targets. Ours.

    Raises:
        RangeError: if `limit` or `std` is a number that is not greater than 0.
    """
    check.check_positive(limit, name="limit", remedy="Pass the largest value in raw units.")
    check.check_known(mean=mean)
    check.check_std(std=std)
    return (clamp(std * prediction + mean, -limit, limit) - mean) / std


def _check_band(epsilon: Number, variance_factor: Number) -> None:
    remedy = "Pass the half-width of the band in the unit of the values."
    check.check_at_least_zero(epsilon, name="epsilon", remedy=remedy)
    remedy = "Use 2.0 to let the spread double."
    check.check_positive(variance_factor, name="variance_factor", remedy=remedy)


def _hold(mean: Tensor, old_mean: Tensor, epsilon: Number) -> Tensor:
    return old_mean + clamp(mean - old_mean, -epsilon, epsilon)


def _shrink(variance: Tensor, old_variance: Tensor, factor: Number) -> Tensor:
    """Return min(1, factor * old_std / std), 1 and without gradient where there is no spread."""
    has_spread = variance > 0
    std = torch.where(has_spread, variance, 1.0).sqrt()
    ratio = factor * old_variance.sqrt().clamp(min=STD_FLOOR) / std
    return torch.where(has_spread, ratio.clamp(max=1.0), 1.0)
