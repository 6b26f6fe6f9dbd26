"""Log probabilities, entropies and divergences of action distributions.

D action dimensions along the last axis, summed over: the result has the batch shape. A classes; of
several choices at once, the classes of all of them side by side.
Squashed actions are described by u, the number before squashing, which is what a rollout stores:
recovering u from an action at the bound would lose it.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from stormsail.functional import _checks as check
from stormsail.functional.kernels.decisions import class_log_prob, serves

SQUASHES = ("tanh", "sigmoid")
MASKED_LOGIT = -1e30
"""Logit of a class that is not allowed. Its probability is exp(-1e30) = 0 exactly, and being finite
it gives 0 instead of NaN where it is multiplied by that probability, gradients included."""
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def gaussian_log_prob(
    value: Float[Tensor, "*batch D"],
    mean: Float[Tensor, "*batch D"],
    std: Float[Tensor, "*batch D"],
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_d -\frac{(x-\mu)^2}{2\sigma^2} - \log\sigma - \frac12\log 2\pi`.

    Density of a Gaussian with diagonal covariance; textbook.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(value=value, mean=mean, std=std)
    check.check_has_axis(axis="action dimensions", value=value)
    score = (value - mean) / std
    return (-0.5 * score.square() - std.log() - _HALF_LOG_2PI).sum(-1)


def gaussian_entropy(std: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_d \frac12 \log(2 \pi e\,\sigma_d^2)`.

    Entropy of a Gaussian with diagonal covariance; textbook.

    Raises:
        ShapeError: if there is no action axis.
    """
    check.check_has_axis(axis="action dimensions", std=std)
    return (std.log() + (0.5 + _HALF_LOG_2PI)).sum(-1)


def gaussian_kl(
    mean: Float[Tensor, "*batch D"],
    std: Float[Tensor, "*batch D"],
    other_mean: Float[Tensor, "*batch D"],
    other_std: Float[Tensor, "*batch D"],
) -> Float[Tensor, "*batch"]:
    r"""Return KL(first || other) of two Gaussians with diagonal covariance.

    .. math::
        \sum_d \log\frac{\sigma'}{\sigma} + \frac{\sigma^2 + (\mu - \mu')^2}{2\sigma'^2} - \frac12

    Zhang et al. 2020, arXiv:2003.08938, Eq. 4, for diagonal covariances. Squashing both
    distributions alike leaves it unchanged.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(mean=mean, std=std, other_mean=other_mean, other_std=other_std)
    check.check_has_axis(axis="action dimensions", mean=mean)
    log_ratio = std.log() - other_std.log()
    shift = (mean - other_mean) / other_std
    # expm1 keeps the digits of two almost equal spreads
    return (0.5 * ((2.0 * log_ratio).expm1() + shift.square()) - log_ratio).sum(-1)


def categorical_log_prob(
    logits: Float[Tensor, "*batch A"], action: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Return the log probability of the chosen class; textbook softmax.

    Raises:
        ShapeError: if `action` is not shaped like `logits` without the last dimension.
    """
    check.check_has_axis(axis="classes", logits=logits)
    check.check_without_last(whole={"logits": logits}, part={"action": action})
    if serves(logits, action):
        return class_log_prob(logits, action)
    return logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch"]:
    r"""Return :math:`-\sum_a p_a \log p_a`; a class with logit -inf contributes 0.

    Entropy of a discrete distribution; textbook.

    Raises:
        ShapeError: if there is no class axis.
    """
    check.check_has_axis(axis="classes", logits=logits)
    log_probs = logits.log_softmax(-1)
    return -_expectation(log_probs, log_probs)


def categorical_kl(
    logits: Float[Tensor, "*batch A"], other_logits: Float[Tensor, "*batch A"]
) -> Float[Tensor, "*batch"]:
    r"""Return KL(first || other) :math:`= \sum_a p_a (\log p_a - \log q_a)`.

    Textbook. A class that the first distribution excludes contributes 0; one that only the other
    excludes makes it infinite.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(logits=logits, other_logits=other_logits)
    check.check_has_axis(axis="classes", logits=logits)
    log_probs, other = logits.log_softmax(-1), other_logits.log_softmax(-1)
    possible = log_probs != -torch.inf  # a NaN stays in, and visible
    difference = torch.where(possible, log_probs, 0.0) - torch.where(possible, other, 0.0)
    return _expectation(difference, log_probs)


def masked_logits(
    logits: Float[Tensor, "*batch A"], mask: Bool[Tensor, "*batch A"]
) -> Float[Tensor, "*batch A"]:
    r"""Return the logits, with `MASKED_LOGIT` for classes that are not allowed.

    The softmax of the result is :math:`p_a m_a / \sum_b p_b m_b`, the distribution given that an
    allowed class is drawn: the masked policy of Huang & Ontañón 2022, arXiv:2006.14171, which puts
    a large negative number in the place of the logit, too. Every formula of a categorical
    distribution applied to the result is that of this one: a masked class adds exactly 0 to an
    entropy or divergence, and gets no gradient.
    A row without an allowed class is uniform over all of them.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(logits=logits, mask=mask)
    check.check_has_axis(axis="classes", logits=logits)
    return torch.where(mask, logits, MASKED_LOGIT)


def multi_categorical_log_prob(
    logits: Float[Tensor, "*batch A"], action: Int[Tensor, "*batch D"], *, counts: Sequence[int]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_d \log p_d(a_d)`, the log probability of D independent choices.

    Textbook: the probability of independent events is the product of theirs.

    Args:
        logits: of all choices side by side.
        action: class of each choice.
        counts: number of classes of each choice; they add up to A.

    Raises:
        ShapeError: if `counts` does not divide the logits, or has not one entry for each action.
    """
    parts = _choices(logits, counts)
    check.check_choices(logits, action, counts=counts)
    scores = [categorical_log_prob(part, action[..., d]) for d, part in enumerate(parts)]
    return torch.stack(scores, -1).sum(-1)


def multi_categorical_entropy(
    logits: Float[Tensor, "*batch A"], *, counts: Sequence[int]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_d H(p_d)`, the entropy of D independent choices; textbook.

    Raises:
        ShapeError: if `counts` does not add up to the number of logits.
    """
    parts = _choices(logits, counts)
    return torch.stack([categorical_entropy(part) for part in parts], -1).sum(-1)


def multi_categorical_kl(
    logits: Float[Tensor, "*batch A"],
    other_logits: Float[Tensor, "*batch A"],
    *,
    counts: Sequence[int],
) -> Float[Tensor, "*batch"]:
    r"""Return KL(first || other) :math:`= \sum_d KL(p_d || q_d)` of D independent choices.

    Textbook: divergences of independent distributions add up.

    Raises:
        ShapeError: if the shapes differ, or `counts` does not add up to the number of logits.
    """
    check.check_same_shape(logits=logits, other_logits=other_logits)
    pairs = zip(_choices(logits, counts), _choices(other_logits, counts), strict=True)
    return torch.stack([categorical_kl(part, other) for part, other in pairs], -1).sum(-1)


def squash(pre_squash: Float[Tensor, "*batch D"], *, kind: str) -> Float[Tensor, "*batch D"]:
    """Return the action: `tanh` into (-1, 1) or `sigmoid` into (0, 1).

    The bounded action of Haarnoja et al. 2018, arXiv:1801.01290, Appendix C.

    Raises:
        ChoiceError: if the kind is unknown.
    """
    check.check_choice(kind, SQUASHES, name="kind")
    return pre_squash.tanh() if kind == "tanh" else pre_squash.sigmoid()


def squash_log_det(pre_squash: Float[Tensor, "*batch D"], *, kind: str) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_d \log |da_d / du_d|` of the squashing.

    * tanh: :math:`\log(1 - \tanh^2 u) = 2(\log 2 - |u| - softplus(-2|u|))`
    * sigmoid: :math:`\log a(1 - a) = -softplus(u) - softplus(-u)`

    The correction of Haarnoja et al. 2018, arXiv:1801.01290, Eq. 21, rewritten so that it neither
    overflows nor cancels where the action touches its bound.

    Raises:
        ChoiceError: if the kind is unknown.
        ShapeError: if there is no action axis.
    """
    check.check_choice(kind, SQUASHES, name="kind")
    check.check_has_axis(axis="action dimensions", pre_squash=pre_squash)
    if kind == "tanh":
        size = pre_squash.abs()
        return (2.0 * (math.log(2.0) - size - softplus(-2.0 * size))).sum(-1)
    return (-softplus(pre_squash) - softplus(-pre_squash)).sum(-1)


def squashed_gaussian_log_prob(
    pre_squash: Float[Tensor, "*batch D"],
    mean: Float[Tensor, "*batch D"],
    std: Float[Tensor, "*batch D"],
    *,
    kind: str,
) -> Float[Tensor, "*batch"]:
    r"""Return the log density of the squashed action :math:`\log\mu(u) - \sum_d \log|da_d/du_d|`.

    Haarnoja et al. 2018, arXiv:1801.01290, Eq. 21.

    Raises:
        ShapeError: if the shapes differ.
        ChoiceError: if the kind is unknown.
    """
    check.check_same_shape(pre_squash=pre_squash, mean=mean, std=std)
    density = gaussian_log_prob(pre_squash, mean, std)
    return density - squash_log_det(pre_squash, kind=kind)


def squashed_gaussian_entropy(
    pre_squash: Float[Tensor, "S *batch D"], std: Float[Tensor, "*batch D"], *, kind: str
) -> Float[Tensor, "*batch"]:
    r"""Return a Monte Carlo estimate of the entropy of the squashed action.

    .. math::
        H(a) = H(u) + E_u\Big[\sum_d \log|da_d / du_d|\Big]

    by the change of variables behind arXiv:1801.01290, Eq. 21. The first term is exact, the second
    the mean over S samples of u. Samples drawn as mean + std * noise keep the gradient.

    Args:
        pre_squash: S samples of u from the Gaussian.
        std: its standard deviation.
        kind: `tanh` or `sigmoid`.

    Raises:
        ShapeError: if a sample is not shaped like `std`.
        ChoiceError: if the kind is unknown.
    """
    check.check_samples(sample=pre_squash, like={"std": std}, name="pre_squash")
    return gaussian_entropy(std) + squash_log_det(pre_squash, kind=kind).mean(0)


def beta_log_prob(
    action: Float[Tensor, "*batch D"],
    alpha: Float[Tensor, "*batch D"],
    beta: Float[Tensor, "*batch D"],
) -> Float[Tensor, "*batch"]:
    r"""Return the log density of independent Beta distributions on (0, 1), summed over D.

    .. math::
        \sum_d (\alpha-1)\log a + (\beta-1)\log(1-a) - \log B(\alpha, \beta)

    The bounded policy of Chou, Maturana & Scherer 2017 (PMLR 70:834-843).

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(action=action, alpha=alpha, beta=beta)
    check.check_has_axis(axis="action dimensions", action=action)
    kernel: Tensor = torch.xlogy(alpha - 1.0, action)
    kernel = kernel + torch.special.xlog1py(beta - 1.0, -action)
    return (kernel - _log_beta(alpha, beta)).sum(-1)


def beta_entropy(
    alpha: Float[Tensor, "*batch D"], beta: Float[Tensor, "*batch D"]
) -> Float[Tensor, "*batch"]:
    r"""Return the differential entropy of independent Beta distributions, summed over D.

    .. math::
        \log B(\alpha,\beta) - (\alpha-1)\psi(\alpha) - (\beta-1)\psi(\beta)
        + (\alpha+\beta-2)\psi(\alpha+\beta)

    Textbook; the policy is that of Chou, Maturana & Scherer 2017 (PMLR 70:834-843).

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(alpha=alpha, beta=beta)
    check.check_has_axis(axis="action dimensions", alpha=alpha)
    total = alpha + beta
    own = (alpha - 1.0) * alpha.digamma() + (beta - 1.0) * beta.digamma()
    return (_log_beta(alpha, beta) - own + (total - 2.0) * total.digamma()).sum(-1)


def beta_kl(
    alpha: Float[Tensor, "*batch D"],
    beta: Float[Tensor, "*batch D"],
    other_alpha: Float[Tensor, "*batch D"],
    other_beta: Float[Tensor, "*batch D"],
) -> Float[Tensor, "*batch"]:
    r"""Return KL(first || other) of independent Beta distributions, summed over D.

    .. math::
        \log\frac{B(\alpha',\beta')}{B(\alpha,\beta)} + (\alpha-\alpha')\psi(\alpha)
        + (\beta-\beta')\psi(\beta) + (\alpha'-\alpha+\beta'-\beta)\psi(\alpha+\beta)

    Textbook; the policy is that of Chou, Maturana & Scherer 2017 (PMLR 70:834-843). Computed in
    float64: of two almost equal distributions it is the small difference of large terms.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(alpha=alpha, beta=beta, other_alpha=other_alpha, other_beta=other_beta)
    check.check_has_axis(axis="action dimensions", alpha=alpha)
    a, b, other_a, other_b = (x.double() for x in (alpha, beta, other_alpha, other_beta))
    total = a + b
    moved = (a - other_a) * a.digamma() + (b - other_b) * b.digamma()
    moved = moved + (other_a + other_b - total) * total.digamma()
    return (_log_beta(other_a, other_b) - _log_beta(a, b) + moved).sum(-1).to(alpha.dtype)


def _choices(logits: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the logits of each choice."""
    check.check_has_axis(axis="classes", logits=logits)
    check.check_counts(logits, counts=counts)
    parts: tuple[Tensor, ...] = logits.split(list(counts), -1)
    return parts


def _expectation(value: Tensor, log_probs: Tensor) -> Tensor:
    """Return the mean of `value` under the distribution, without the classes that cannot occur."""
    possible = log_probs != -torch.inf  # a NaN stays in, and visible
    safe = torch.where(possible, log_probs, 0.0)
    return torch.where(possible, safe.exp() * torch.where(possible, value, 0.0), 0.0).sum(-1)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
