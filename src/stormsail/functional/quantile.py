"""Quantile-valued distributions: levels, losses, order. N predicted quantiles, M target atoms."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.core.machine_code.graph_compiler import is_traced
from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp
from stormsail.functional.kernels.devices import may_launch
from stormsail.functional.kernels.layers import row_sums
from stormsail.functional.kernels.losses import quantile_pairs, traced_huber
from stormsail.functional.kernels.losses.quantile_huber import QuantileHuber


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


TAIL_MASS = 0.05
"""Share of worst outcomes that `tail_weights` reads finely: the usual alpha of a CVaR."""

TAIL_SHARE = 4
"""One of this many levels lies within `TAIL_MASS`."""


def tail_weights(n: int, *, like: Tensor | None = None) -> Float[Tensor, " n"]:
    r"""Return the mass of each of N cells that are narrow in the lower tail; they sum to 1.

    .. math::
        w_i = \frac{0.05}{k} \text{ for } i < k, \qquad w_i = \frac{0.95}{N - k}
        \text{ otherwise}, \qquad k = \max(1, \lfloor N / 4 + 1/2 \rfloor)

    A quarter of the levels shares the worst 5 % of the mass; of 32 equal cells 1.6 do. The price is
    small: the others are 27 % wider than equal ones at N = 32. Ours. Steps of one width on either
    side of 5 %, and not widths that grow from cell to cell: the CVaR at 5 % is then a plain mean of
    k quantiles, and no level is so far out that a rollout never sees beyond it.

    Args:
        n: number of cells, at least 1; one cell has all of the mass.
        like: tensor whose dtype and device the result takes; float32 on the CPU without it.

    Raises:
        RangeError: if `n` is not a whole number of at least 1.
    """
    check.check_count(n, name="n", remedy="Ask for one level or more.")
    if like is not None:
        check.check_floating(like=like)
    dtype = torch.float32 if like is None else like.dtype
    device = None if like is None else like.device
    if n == 1:
        return torch.ones(1, dtype=dtype, device=device)
    narrow = max((n + TAIL_SHARE // 2) // TAIL_SHARE, 1)
    rest = (1.0 - TAIL_MASS) / (n - narrow)
    weight = torch.full((n,), rest, dtype=torch.float64, device=device)
    weight[:narrow] = TAIL_MASS / narrow
    return weight.to(dtype)


def levels_of(weight: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    r"""Return the level of each quantile, the middle of its cell: :math:`\sum_{j<i} w_j + w_i / 2`.

    The value of a distribution on a cell that is nearest in the 1-Wasserstein distance is the
    quantile in the middle of the cell: Dabney et al. 2018, arXiv:1710.10044, Lemma 2, whose proof
    treats each cell by itself and asks for no equal widths. Equal cells give `midpoints`.

    Raises:
        ShapeError: if the weights are not one row.
    """
    check.check_has_axis(axis="weights", weight=weight)
    check.check_weight(weight, count=weight.shape[-1])
    mass = weight.double()
    return (mass.cumsum(-1) - 0.5 * mass).to(weight.dtype)


def weights_of(tau: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    r"""Return the mass of the cells whose middles are these levels: the inverse of `levels_of`.

    .. math::
        w_i = 2 (\tau_i - e_i), \qquad e_0 = 0, \quad e_{i+1} = 2 \tau_i - e_i

    where e_i is the lower edge of cell i; the signs of the sum for e_i alternate. Ours. Levels that
    are no middles of neighbouring cells give a mass that is not positive, or a sum other than 1.

    Raises:
        ShapeError: if the levels are not one row.
    """
    check.check_has_axis(axis="levels", tau=tau)
    check.check_levels(tau, count=tau.shape[-1])
    level = tau.double()
    sign = 1.0 - 2.0 * (torch.arange(level.shape[-1], device=tau.device) % 2)  # 1, -1, 1, ...
    upper = 2.0 * sign * (sign * level).cumsum(-1)
    return (2.0 * (upper - level)).to(tau.dtype)


def expectation(
    quantiles: Float[Tensor, "*batch N"], *, weight: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the mean :math:`\sum_i w_i \theta_i` of N atoms, equal ones without weights.

    The value that Algorithm 1 of Dabney et al. 2018, arXiv:1710.10044, reads from quantiles; exact
    for a distribution whose quantile function is constant on each cell.

    Args:
        quantiles: the atoms, in any order.
        weight: mass of each atom, sums to 1.

    Raises:
        ShapeError: if there is no last dimension, or not one weight for each atom.
    """
    check.check_has_axis(axis="quantiles", quantiles=quantiles)
    check.check_weight(weight, count=quantiles.shape[-1])
    if weight is None:
        return quantiles.mean(-1)
    is_short = 0 < quantiles.shape[-1] <= row_sums.LONGEST
    if is_short and may_launch(quantiles, weight) and not quantiles.requires_grad:
        return row_sums.weighted(quantiles, weight)
    return (quantiles * weight.to(quantiles.dtype)).sum(-1)


def huber_loss(
    predicted: Float[Tensor, "*batch N"],
    target: Float[Tensor, "*batch M"],
    tau: Float[Tensor, " N"],
    *,
    kappa: Number,
    target_weight: Float[Tensor, " M"] | None = None,
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

    Target atoms of unequal mass v_j take the place of 1 / M: the inner mean is an expectation over
    the target distribution. Levels are never weighted, however wide their cells: each theta_i
    minimises its own term, whatever factor that has, so weights would change no fixed point. They
    would only scale the pull on level i, which is tau_i at most, by the width of its cell, and slow
    down the levels of the tail most of all. The mean over levels that are dense in the tail is a
    quantile-weighted score, proper for any density of levels (Gneiting & Ranjan 2011, J. Bus. Econ.
    Stat. 29(3):411-422).

    The fixed point is the tau-quantile only for kappa -> 0; for kappa of the order of the spread it
    is close to an expectile, and tails read from it are too short (N(0, 1), N = 21: CVaR at 5 % is
    22.7 % too small at kappa 1, 7.4 % at 0.1).

    Args:
        predicted: quantile values theta_i; the gradient flows through these.
        target: atoms y_j of the target distribution; constants.
        tau: probability level of each predicted quantile, in (0, 1).
        kappa: half-width of the quadratic zone, in the unit of the return; the number 0 is the
            pinball loss, a tensor must be greater than 0.
        target_weight: mass v_j of each target atom, sums to 1; None for equal ones.

    Raises:
        ShapeError: if the leading dimensions differ (they would broadcast silently), `tau` does
            not have N entries or `target_weight` not M.
        RangeError: if `kappa` is a negative number.
    """
    check.check_same_leading(kind="loss", predicted=predicted, target=target)
    check.check_has_axis(axis="atoms", predicted=predicted, target=target)
    check.check_floating(predicted=predicted, target=target)
    check.check_levels(tau, count=predicted.shape[-1])
    check.check_weight(target_weight, count=target.shape[-1], name="target_weight")
    check.check_kappa(kappa)
    mass = None if target_weight is None else target_weight.detach()
    if predicted.device.type == "cpu" and is_traced():
        arguments = (predicted, target.detach(), tau, kappa, mass)
        return traced_huber.huber_loss_and_active(*arguments)[0].to(predicted.dtype)
    if predicted.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):  # it would round slopes to bfloat16
            loss: Tensor = QuantileHuber.apply(predicted, target.detach(), tau, kappa, mass)
        return loss.to(predicted.dtype)
    if may_launch(predicted, target):
        on_device = quantile_pairs.huber_loss(predicted, target.detach(), tau, kappa, mass)
        return on_device.to(predicted.dtype)
    return _pairwise_huber(predicted, target.detach(), tau, kappa, mass).to(predicted.dtype)


def level_huber_loss(
    predicted: Float[Tensor, "*batch N"],
    sample: Float[Tensor, "*batch"],
    tau: Float[Tensor, " N"],
    *,
    kappa: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the quantile Huber loss of one sampled return, with gradients alike at all levels.

    .. math::
        L = \frac{1}{N} \sum_{i=1}^{N} \frac{1}{2 \sqrt{\tau_i (1 - \tau_i)}} \,
            |\tau_i - 1\{u_i < 0\}| \, \frac{L_\kappa(u_i)}{\kappa}, \qquad u_i = y - \theta_i

    `huber_loss` (arXiv:1710.10044, Eqs. 9 and 10) for one target atom, but for the first factor,
    which is ours. Where theta_i is right, its gradient :math:`1\{y < \theta_i\} - \tau_i` is a
    Bernoulli variable less its mean: its standard deviation is
    :math:`\sqrt{\tau_i (1 - \tau_i)}`, one half in the middle and a twenty-fifth at a level of
    0.16 %. Layers that all levels share therefore learn what the middle needs, whatever the tail
    does, and smooth over states that differ in their tails alone. Divided by that deviation, all
    levels pull alike; the factor is 1 at the median. It changes no fixed point of a level, since
    each theta_i minimises its own term. `huber_loss` leaves levels as they are.

    Args:
        predicted: quantile values theta_i; the gradient flows through these.
        sample: a return y that was drawn from the target distribution; a constant.
        tau: probability level of each predicted quantile, in (0, 1).
        kappa: half-width of the quadratic zone, in the unit of the return; the number 0 is the
            pinball loss, a tensor must be greater than 0.

    Raises:
        ShapeError: if the leading dimensions differ, or `tau` does not have N entries.
        RangeError: if `kappa` is a negative number.
    """
    check.check_has_axis(axis="quantiles", predicted=predicted)
    check.check_same_shape(predicted=predicted[..., 0], sample=sample)
    check.check_floating(predicted=predicted, sample=sample)
    check.check_levels(tau, count=predicted.shape[-1])
    check.check_kappa(kappa)
    u = sample.detach().unsqueeze(-1) - predicted
    level = tau.to(u.dtype)
    pull = 0.5 * (level * (1.0 - level)).rsqrt()
    weight = torch.where(u < 0, 1.0 - level, level) * pull
    if isinstance(kappa, Tensor) or kappa > 0.0:
        inner = clamp(u, -kappa, kappa)
        size = inner * (u - 0.5 * inner) / kappa
    else:
        size = u.abs()
    return (weight * size).mean(-1).to(predicted.dtype)


def _pairwise_huber(
    predicted: Tensor, target: Tensor, tau: Tensor, kappa: Number, mass: Tensor | None
) -> Tensor:
    """Return the loss from all pairs at once."""
    u = target.unsqueeze(-2) - predicted.unsqueeze(-1)  # [*batch, N, M]
    level = tau.unsqueeze(-1)  # [N, 1]
    weight = torch.where(u < 0, 1.0 - level, level)  # [*batch, N, M]
    if isinstance(kappa, Tensor) or kappa > 0.0:
        inner = clamp(u, -kappa, kappa)  # u in the quadratic zone, +-kappa outside
        size = inner * (u - 0.5 * inner) / kappa
    else:
        size = u.abs()
    if mass is None:
        return (weight * size).mean((-2, -1))
    return (weight * size * mass.to(size.dtype)).sum(-1).mean(-1)


def huber_active(
    predicted: Float[Tensor, "*batch N"],
    target: Float[Tensor, "*batch M"],
    *,
    kappa: Number,
    target_weight: Float[Tensor, " M"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Return the share of pairs with |y - theta| > kappa, where the loss is linear.

    A reading of `huber_loss` (arXiv:1710.10044, Eq. 9): near 1 the loss acts as the pinball loss,
    near 0 as a squared one. Pairs count with the mass of their target atom, as in the loss.

    Raises:
        ShapeError: if the leading dimensions differ, or `target_weight` has not M entries.
        RangeError: if `kappa` is a negative number.
    """
    check.check_same_leading(kind="loss", predicted=predicted, target=target)
    check.check_has_axis(axis="atoms", predicted=predicted, target=target)
    check.check_weight(target_weight, count=target.shape[-1], name="target_weight")
    check.check_kappa(kappa)
    if may_launch(predicted, target):
        mass = None if target_weight is None else target_weight.detach()
        active = quantile_pairs.huber_active(predicted.detach(), target.detach(), kappa, mass)
        return active.to(predicted.dtype)
    # the targets within kappa of a prediction are neighbours among the sorted ones: two searches
    # for each prediction instead of all pairs
    y, order = target.detach().sort(-1)
    theta = predicted.detach().to(y.dtype)
    first = torch.searchsorted(y, theta - kappa)
    after = torch.searchsorted(y, theta + kappa, right=True)
    if target_weight is None:
        near = (after - first).to(predicted.dtype) / y.shape[-1]
    else:
        below = target_weight.to(predicted.dtype)[order].cumsum(-1)
        below = torch.cat((torch.zeros_like(below[..., :1]), below), -1)
        near = below.gather(-1, after) - below.gather(-1, first)
    return (1.0 - near).mean(-1).to(predicted.dtype)


MONOTONE_WIDTH = 2.0
"""Distance of the outermost quantiles of `monotone` for raw outputs of 0: a uniform distribution
with the standard deviation 1 / sqrt(3)."""


def monotone(
    raw: Float[Tensor, "*batch N"], *, weight: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*batch N"]:
    r"""Return quantiles that cannot cross, from their mean and non-negative increments.

    .. math::
        \theta_i = r_0 + c_i - \frac{1}{N} \sum_{j=0}^{N-1} c_j, \qquad
        c_i = \sum_{k=1}^{i} softplus(r_k + b), \qquad b = \log(e^{2 / (N - 1)} - 1)

    The mean of the quantiles is :math:`r_0`, and their width for r = 0 is 2 for every N, because
    softplus(b) = 2 / (N - 1). Cells of unequal mass w weigh the mean, and their levels tau set the
    bias of each increment: softplus(b_i) = 2 (tau_i - tau_{i-1}) / (tau_{N-1} - tau_0), so that the
    first distribution is a uniform one there, too.

    A base value and cumulated non-negative increments: Zhou et al. 2021, arXiv:2105.06696, Eq. 4.
    Deviations: the increments are softplus outputs of one layer, not of a network over levels; the
    base value is the mean, not the lowest quantile, and b is ours: without both, N levels begin
    0.69 (N - 1) wide and with a mean of half of that.

    Raises:
        ShapeError: if there is no last dimension, or not one weight for each quantile.
    """
    check.check_has_axis(axis="quantiles", raw=raw)
    check.check_weight(weight, count=raw.shape[-1])
    increments = torch.nn.functional.softplus(raw[..., 1:] + _first_bias(raw, weight))
    above = torch.cat((torch.zeros_like(raw[..., :1]), increments), -1).cumsum(-1)
    return raw[..., :1] + (above - expectation(above, weight=weight).unsqueeze(-1))


def _first_bias(raw: Tensor, weight: Tensor | None) -> Number:
    """Return what softplus turns into the increments of a uniform distribution of the width 2."""
    if weight is None or raw.shape[-1] == 1:
        return math.log(math.expm1(MONOTONE_WIDTH / max(raw.shape[-1] - 1, 1)))
    level = levels_of(weight.double())
    step = MONOTONE_WIDTH * level.diff() / (level[-1] - level[0])
    return step.expm1().log().to(raw.dtype)


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
