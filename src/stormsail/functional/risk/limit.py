"""Rules of a limit on CVaR: the level of the shortfall, and the share of the risk advantage."""

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp, scalar


def shortfall_level(
    value_at_risk: Float[Tensor, "*batch"], cvar: Float[Tensor, "*batch"], *, limit: Number
) -> Float[Tensor, "*batch"]:
    r"""Return the level nu that the shortfall is to be measured from.

    .. math::
        \nu = v - (v - L)\,\big[\tfrac{L - c}{|L|}\big]_0^1, \qquad v = \max(q_\alpha, L)

    While the limit L holds, the value at risk, which makes nu + E[min(G - nu, 0)] / alpha the CVaR
    c itself (Rockafellar & Uryasev 2000, Eq. 4). Never below L: CVaR >= L implies a value at risk
    of at least L, and where an event is likelier than alpha the quantile is the event itself and
    no action changes the shortfall below it. While the limit is broken it moves towards L, as far
    as it is broken: at a high level a policy that wins a little surely and loses much rarely would
    be paid for the win. A limit of 0 has no size of its own: broken at all, it is broken whole.
    Ours.

    Args:
        value_at_risk: q, alpha-quantile of returns.
        cvar: estimate, c.
        limit: L.

    Returns:
        The level, without gradient.

    Raises:
        ShapeError: if the shapes differ, or `limit` has a dimension.
        RangeError: if `limit` is NaN.
    """
    check.check_same_shape(value_at_risk=value_at_risk, cvar=cvar)
    check.check_known(limit=limit)
    least = scalar(limit, like=cvar)
    top = torch.maximum(value_at_risk.detach().double(), least)
    gap = least - cvar.detach().double()
    broken = torch.where(least == 0.0, (gap > 0.0).double(), gap / least.abs())
    return (top - (top - least) * broken.clamp(0.0, 1.0)).to(cvar.dtype)


def mixing_share(
    wanted: Float[Tensor, "*batch"],
    mean_rate: Float[Tensor, "*batch"],
    risk_rate: Float[Tensor, "*batch"],
    *,
    most_change: Number,
) -> Float[Tensor, "*batch"]:
    r"""Return the share x of the risk advantage in (1 - x) A_mean + x A_risk.

    .. math::
        x_0 = \frac{-b}{c - b}, \qquad
        x = \Big[x_0 + \big[\tfrac{r}{c - b}\big]_{-d}^{d}\Big]_0^1

    with :math:`b = \langle A_\rho, A_{mean} \rangle` and
    :math:`c = \langle A_\rho, A_{risk} \rangle` the rates at which a step of the policy along
    either advantage moves CVaR: to first order a step along A moves the mean of the shortfall by
    the inner product of A with its own advantage, under the policy and its states. At x_0 CVaR
    stays where it is; r is the change that is wanted. Ours, the first-order form of a control
    barrier.

    Args:
        wanted: r, change of CVaR that a step of unit size is to make.
        mean_rate: b.
        risk_rate: c; not below b up to noise, else the whole share is risk's while r is above 0.
        most_change: d, largest distance from x_0; at least 0.

    Returns:
        The share, without gradient.

    Raises:
        ShapeError: if the shapes differ, or `most_change` has a dimension.
        RangeError: if `most_change` is a number below 0.
    """
    check.check_same_shape(wanted=wanted, mean_rate=mean_rate, risk_rate=risk_rate)
    remedy = "Pass the largest distance from the share at which CVaR stays where it is."
    check.check_at_least_zero(most_change, name="most_change", remedy=remedy)
    wanted, mean_rate = wanted.detach(), mean_rate.detach()
    span = risk_rate.detach() - mean_rate
    change = clamp(wanted / span, -most_change, most_change)
    share = (change - mean_rate / span).clamp(0.0, 1.0)
    return torch.where(span > 0.0, share, (wanted > 0.0).to(share.dtype))
