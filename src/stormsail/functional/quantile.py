"""Quantile-valued distributions: levels, losses, order. N predicted quantiles, M target atoms."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp
from stormsail.functional.kernels.quantile_huber import QuantileHuber


def midpoints(n: int, *, like: Tensor | None = None) -> Float[Tensor, " n"]:
    r"""Return the levels :math:`\tau_i = (i + 1/2) / N`, i = 0 .. N-1.

    The levels at which N equal atoms are closest to a distribution in the 1-Wasserstein distance:
    Dabney et al. 2018, arXiv:1710.10044, Lemma 2.

    Args:
        n: number of levels, at least 1.
        like: tensor whose dtype and device the result takes; float32 on the CPU without it.

    Raises:
        RangeError: if `n` is not a whole number of at least 1.
    """
    check.check_count(n, name="n", remedy="Ask for one level or more.")
    if like is not None:
        check.check_floating(like=like)
    dtype = torch.float32 if like is None else like.dtype
    device = None if like is None else like.device
    index = torch.arange(n, dtype=torch.float64, device=device)
    return ((index + 0.5) / n).to(dtype)


def huber_loss(
    predicted: Float[Tensor, "*batch N"],
    target: Float[Tensor, "*batch M"],
    tau: Float[Tensor, " N"],
    *,
    kappa: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the quantile Huber loss, one value per batch element.

    .. math::
        L = \frac{1}{NM} \sum_{i=1}^{N} \sum_{j=1}^{M}
            |\tau_i - 1\{u_{ij} < 0\}| \, \frac{L_\kappa(u_{ij})}{\kappa},
        \qquad u_{ij} = y_j - \theta_i

    with :math:`L_\kappa(u) = u^2 / 2` for :math:`|u| \le \kappa`, else
    :math:`\kappa (|u| - \kappa / 2)`. A target above the prediction (u > 0) weighs tau, one below
    weighs 1 - tau: a high level is pushed up until few targets lie above it. Written the other way
    round, level tau learns the (1 - tau) quantile and a lower-tail CVaR reads the upper tail.

    Dabney et al. 2018, arXiv:1710.10044, Eqs. 9 and 10. Deviations: the mean over i instead of the
    sum (a rescale of the loss coefficient), and the division by kappa of Dabney et al. 2018,
    arXiv:1806.06923, Section 2.3, so that kappa -> 0 is the pinball loss |tau - 1{u<0}| |u|.

    The fixed point is the tau-quantile only for kappa -> 0; for kappa of the order of the spread it
    is close to an expectile, and tails read from it are too short (N(0, 1), N = 21: CVaR at 5 % is
    22.7 % too small at kappa 1, 7.4 % at 0.1).

    Args:
        predicted: quantile values theta_i; the gradient flows through these.
        target: atoms y_j of the target distribution; constants.
        tau: probability level of each predicted quantile, in (0, 1).
        kappa: half-width of the quadratic zone, in the unit of the return; the number 0 is the
            pinball loss, a tensor must be greater than 0.

    Raises:
        ShapeError: if the leading dimensions differ (they would broadcast silently) or `tau` does
            not have N entries.
        RangeError: if `kappa` is a negative number.
    """
    check.check_same_leading(kind="loss", predicted=predicted, target=target)
    check.check_has_axis(axis="atoms", predicted=predicted, target=target)
    check.check_floating(predicted=predicted, target=target)
    check.check_levels(tau, count=predicted.shape[-1])
    check.check_kappa(kappa)
    if predicted.device.type == "cpu" and not torch.compiler.is_compiling():
        with torch.autocast("cpu", enabled=False):  # it would round slopes to bfloat16
            loss: Tensor = QuantileHuber.apply(predicted, target.detach(), tau, kappa)
        return loss.to(predicted.dtype)
    return _pairwise_huber(predicted, target.detach(), tau, kappa).to(predicted.dtype)


def _pairwise_huber(predicted: Tensor, target: Tensor, tau: Tensor, kappa: Number) -> Tensor:
    """Return the loss from all pairs at once; a compiler never makes the pairs."""
    u = target.unsqueeze(-2) - predicted.unsqueeze(-1)  # [*batch, N, M]
    level = tau.unsqueeze(-1)  # [N, 1]
    weight = torch.where(u < 0, 1.0 - level, level)  # [*batch, N, M]
    if isinstance(kappa, Tensor) or kappa > 0.0:
        inner = clamp(u, -kappa, kappa)  # u in the quadratic zone, +-kappa outside
        size = inner * (u - 0.5 * inner) / kappa
    else:
        size = u.abs()
    return (weight * size).mean((-2, -1))


def huber_active(
    predicted: Float[Tensor, "*batch N"],
    target: Float[Tensor, "*batch M"],
    *,
    kappa: Number,
) -> Float[Tensor, "*batch"]:
    """Return the share of pairs with |y - theta| > kappa, where the loss is linear.

    A reading of `huber_loss` (arXiv:1710.10044, Eq. 9): near 1 the loss acts as the pinball loss,
    near 0 as a squared one.

    Raises:
        ShapeError: if the leading dimensions differ.
        RangeError: if `kappa` is a negative number.
    """
    check.check_same_leading(kind="loss", predicted=predicted, target=target)
    check.check_has_axis(axis="atoms", predicted=predicted, target=target)
    check.check_kappa(kappa)
    u = target.detach().unsqueeze(-2) - predicted.detach().unsqueeze(-1)
    # in place: on a CPU a comparison that makes booleans takes ten times as long
    return u.abs_().gt_(kappa).mean((-2, -1)).to(predicted.dtype)


MONOTONE_WIDTH = 2.0
"""Distance of the outermost quantiles of `monotone` for raw outputs of 0: a uniform distribution
with the standard deviation 1 / sqrt(3)."""


def monotone(raw: Float[Tensor, "*batch N"]) -> Float[Tensor, "*batch N"]:
    r"""Return quantiles that cannot cross, from their mean and non-negative increments.

    .. math::
        \theta_i = r_0 + c_i - \frac{1}{N} \sum_{j=0}^{N-1} c_j, \qquad
        c_i = \sum_{k=1}^{i} softplus(r_k + b), \qquad b = \log(e^{2 / (N - 1)} - 1)

    The mean of the quantiles is :math:`r_0`, and their width for r = 0 is 2 for every N, because
    softplus(b) = 2 / (N - 1). A base value and cumulated non-negative increments: Zhou et al. 2021,
    arXiv:2105.06696, Eq. 4. Deviations: the increments are softplus outputs of one layer, not of a
    network over levels; the base value is the mean, not the lowest quantile, and b is ours: without
    both, N levels begin 0.69 (N - 1) wide and with a mean of half of that.

    Raises:
        ShapeError: if there is no last dimension.
    """
    check.check_has_axis(axis="quantiles", raw=raw)
    bias = math.log(math.expm1(MONOTONE_WIDTH / max(raw.shape[-1] - 1, 1)))
    increments = torch.nn.functional.softplus(raw[..., 1:] + bias)
    above = torch.cat((torch.zeros_like(raw[..., :1]), increments), -1).cumsum(-1)
    return raw[..., :1] + (above - above.mean(-1, keepdim=True))


def crossing_fraction(quantiles: Float[Tensor, "*batch N"]) -> Float[Tensor, "*batch"]:
    """Return the share of neighbouring levels whose values stand in the wrong order; 0 for N = 1.

    Nothing in the loss of arXiv:1710.10044 forbids crossing; tail readings therefore sort, and this
    share tells how often they had to.

    Raises:
        ShapeError: if there is no last dimension.
    """
    check.check_has_axis(axis="quantiles", quantiles=quantiles)
    crossed = (quantiles.diff(dim=-1) < 0).to(quantiles.dtype)
    return crossed.sum(-1) / max(quantiles.shape[-1] - 1, 1)
