"""Terms of the policy loss, one value per sample; the caller weighs and averages."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp

KL_KINDS = ("k1", "k3")
LOG_RATIO_LIMIT = 20.0
"""Largest |log ratio| that is exponentiated: e^20 is finite in float32 and far outside any clip."""


class NonFinite(NamedTuple):
    """How many entries are NaN and how many infinite, as tensors that stay on the device."""

    nan: Int[Tensor, ""]
    inf: Int[Tensor, ""]

    @property
    def total(self) -> Int[Tensor, ""]:
        """Number of entries that are not finite."""
        return self.nan + self.inf


def clipped_surrogate(
    log_prob: Float[Tensor, "*batch"],
    old_log_prob: Float[Tensor, "*batch"],
    advantage: Float[Tensor, "*batch"],
    *,
    clip: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the clipped policy loss of every sample.

    .. math::
        -\min\big(r A,\ clip(r, 1 - \epsilon, 1 + \epsilon)\,A\big), \qquad
        r = e^{\log\pi(a|s) - \log\pi_{old}(a|s)}

    Schulman et al. 2017, arXiv:1707.06347, Eq. 7, with the sign of a loss. Deviation: the log
    ratio is clamped to +-20 before the exponential, so that an outlier is finite. The clamp turns
    an infinity into its bound but leaves a NaN a NaN; `drop_nonfinite` removes both.

    Args:
        log_prob: log probability under the policy that is trained; the gradient flows here.
        old_log_prob: log probability under the policy that acted; a constant.
        advantage: normalised advantage; a constant.
        clip: epsilon, half-width of the band of the ratio; greater than 0.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `clip` is a number that is not greater than 0.
    """
    check.check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    check.check_clip(clip)
    advantage = advantage.detach()
    log_ratio = (log_prob - old_log_prob.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, clamp(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def kl_estimate(log_ratio: Float[Tensor, "*batch"], *, kind: str) -> Float[Tensor, "*batch"]:
    r"""Return a one-sample estimate of KL(old || new) for every sample.

    .. math::
        k_1 = -\ell, \qquad k_3 = e^\ell - 1 - \ell, \qquad
        \ell = \log\pi_{new}(a|s) - \log\pi_{old}(a|s),\ a \sim \pi_{old}

    Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html), k1 and k3. Both
    are unbiased because the actions come from the old policy. k1 may be negative, which would
    silence an early stop; k3 never is, and its gradient vanishes at ratio 1.

    Args:
        log_ratio: new minus old log probability.
        kind: `k1` or `k3`.

    Raises:
        ChoiceError: if the kind is unknown.
    """
    check.check_choice(kind, KL_KINDS, name="kind")
    return -log_ratio if kind == "k1" else log_ratio.expm1() - log_ratio


def ratio_is_clipped(log_ratio: Float[Tensor, "*batch"], *, clip: Number) -> Bool[Tensor, "*batch"]:
    r"""Return where the ratio left the band, :math:`|e^\ell - 1| > \epsilon`.

    The mean is the clip fraction of arXiv:1707.06347, Eq. 7 as implementations log it. Whether the
    gradient is really cut there also depends on the sign of the advantage.

    Raises:
        RangeError: if `clip` is a number that is not greater than 0.
    """
    check.check_clip(clip)
    return log_ratio.expm1().abs() > clip


def count_nonfinite(x: Float[Tensor, "*batch"]) -> NonFinite:
    """Return the number of NaN and of infinite entries, without asking the device. Ours.

    An `isfinite().all()` would have to wait for the device, and would not say which kind it was.
    """
    return NonFinite(nan=x.isnan().sum(), inf=x.isinf().sum())


def drop_nonfinite(
    log_prob: Float[Tensor, "*batch"],
    old_log_prob: Float[Tensor, "*batch"],
    weight: Float[Tensor, "*batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return the three tensors with every sample of a non-finite log ratio taken out.

    Such a sample gets both log probabilities 0, a constant, and weight 0: its ratio is 1, it has
    no gradient and does not count. Setting only the weight would not do: 0 times NaN is NaN, in a
    sum and on the way back through most functions. The cut is at the log probability: where the
    network itself made the NaN, its own backward pass still meets it. Ours.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, weight=weight)
    usable = (log_prob - old_log_prob).isfinite()
    return (
        torch.where(usable, log_prob, 0.0),
        torch.where(usable, old_log_prob, 0.0),
        torch.where(usable, weight, 0.0),
    )


def awr_weight(
    advantage: Float[Tensor, "*batch"], *, beta: Number, max_weight: Number
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\min(e^{A / \beta}, w_{max})`, without gradient.

    Peng et al. 2019, arXiv:1910.00177, Algorithm 1 (policy update). Deviation: the exponent is
    limited before it is taken, so that one sample cannot dominate and nothing overflows.

    Args:
        advantage: normalised advantage.
        beta: temperature; greater than 0.
        max_weight: cap of one weight; greater than 0.

    Raises:
        RangeError: if `beta` or `max_weight` is a number that is not greater than 0.
    """
    remedy = "Pass the temperature of the weights, for example 5.0."
    check.check_positive(beta, name="beta", remedy=remedy)
    remedy = "Pass the cap of one weight, for example 100."
    check.check_positive(max_weight, name="max_weight", remedy=remedy)
    cap = max_weight.log() if isinstance(max_weight, Tensor) else math.log(max_weight)
    return clamp(advantage.detach() / beta, high=cap).exp()


def awr_loss(
    log_prob: Float[Tensor, "*batch"],
    advantage: Float[Tensor, "*batch"],
    *,
    beta: Number,
    max_weight: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`-w(A) \log\pi(a|s)`, the weighted imitation loss of every sample.

    Peng et al. 2019, arXiv:1910.00177, Algorithm 1 (policy update). The gradient flows through
    `log_prob` only.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `beta` or `max_weight` is a number that is not greater than 0.
    """
    check.check_same_shape(log_prob=log_prob, advantage=advantage)
    return -awr_weight(advantage, beta=beta, max_weight=max_weight) * log_prob


def entropy_loss(
    entropy: Float[Tensor, "*batch"], log_prob: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return the negative entropy of every sample, to be added to a loss.

    The entropy bonus of Schulman et al. 2017, arXiv:1707.06347, Section 5. The entropy must be that
    of the whole action, already summed over its dimensions: one that still has an action axis is
    refused rather than summed, because a sum taken before would be counted twice.

    Raises:
        ShapeError: if the entropy is not shaped like the log probability.
    """
    check.check_same_shape(entropy=entropy, log_prob=log_prob)
    return -entropy


def centred(
    values: Float[Tensor, "*batch actions"], probability: Float[Tensor, "*batch actions"]
) -> Float[Tensor, "*batch actions"]:
    r"""Return :math:`A(a) = Q(a) - \sum_b \pi(b)\,Q(b)`, the advantage of every action.

    Sutton & Barto 2018, section 13.4: the best-known baseline is the state's value under the policy
    itself. An action of probability 0 has an advantage like any other.

    Args:
        values: Q of every action; finite.
        probability: of every action; sums to 1.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(values=values, probability=probability)
    return values - (values * probability).sum(-1, keepdim=True)


def expected_surrogate(
    log_prob: Float[Tensor, "*batch actions"],
    old_log_prob: Float[Tensor, "*batch actions"],
    advantage: Float[Tensor, "*batch actions"],
    *,
    clip: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the clipped policy loss of every sample, in expectation over all actions.

    .. math::
        -\sum_a \pi_{old}(a)\,\min\big(r_a A_a,\ clip(r_a, 1 - \epsilon, 1 + \epsilon)\,A_a\big),
        \qquad r_a = \pi(a) / \pi_{old}(a)

    The mean of `clipped_surrogate` (Schulman et al. 2017, arXiv:1707.06347, Eq. 7) over
    :math:`a \sim \pi_{old}` in closed form, so without the noise of the draw; without the clip it
    is the all-action policy gradient of Sutton & Barto 2018, Eq. 13.7. An action that had
    probability 0, so a log probability of minus infinity, adds nothing.

    Args:
        log_prob: of every action under the policy that is trained; the gradient flows here.
        old_log_prob: of every action under the policy that acted; a constant.
        advantage: of every action; a constant.
        clip: epsilon, half-width of the band of the ratio; greater than 0.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `clip` is a number that is not greater than 0.
    """
    check.check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    probability = old_log_prob.detach().exp()
    possible = probability > 0.0
    # where it was impossible both are replaced: infinity less infinity is NaN, also on the way back
    new, old = (torch.where(possible, part, 0.0) for part in (log_prob, old_log_prob))
    losses = clipped_surrogate(new, old, advantage, clip=clip)
    return (probability * torch.where(possible, losses, 0.0)).sum(-1)
