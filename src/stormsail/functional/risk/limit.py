"""Rules of a limit on CVaR: level of the shortfall, trust in its critic, shares, floor."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp, scalar

LEAST_PROBABILITY = 1e-6
"""Of an action that a policy is pulled to: below it the pull grows no more."""


def shortfall_level(
    value_at_risk: Float[Tensor, "*batch"],
    cvar: Float[Tensor, "*batch"],
    *,
    limit: Number,
    held: Number | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the level nu that the shortfall is to be measured from.

    .. math::
        \nu = \begin{cases}
            v + L - c & \text{where}\ h < c < L \\
            v - (v - L)\,\big[\tfrac{L - c}{|L|}\big]_0^1 & \text{elsewhere}
        \end{cases}, \qquad v = \max(q_\alpha, L)

    While the limit L holds, the value at risk, which makes nu + E[min(G - nu, 0)] / alpha the CVaR
    c itself (Rockafellar & Uryasev 2000, Eq. 4). Never below L: CVaR >= L implies a value at risk
    of at least L, and where an event is likelier than alpha the quantile is the event itself and
    no action changes the shortfall below it. While the limit is broken it moves towards L, as far
    as it is broken: at a high level a policy that wins a little surely and loses much rarely would
    be paid for the win. A limit of 0 has no size of its own: broken at all, it is broken whole.

    That leads to something sure. Where nothing sure keeps the limit, a policy that is already more
    cautious than every action that is held throughout, h the best of their CVaRs, needs the gains
    that lie above L: at nu = L no return below L is allowed at all. The level is then above the
    value at risk by what is missing. Ours.

    Args:
        value_at_risk: q, alpha-quantile of returns.
        cvar: estimate, c.
        limit: L.
        held: h; None where no action can be held throughout.

    Returns:
        The level, without gradient.

    Raises:
        ShapeError: if the shapes differ, or `limit` or `held` has a dimension.
        RangeError: if `limit` or `held` is NaN.
    """
    check.check_same_shape(value_at_risk=value_at_risk, cvar=cvar)
    check.check_known(limit=limit)
    least = scalar(limit, like=cvar)
    top = torch.maximum(value_at_risk.detach().double(), least)
    gap = least - cvar.detach().double()
    broken = torch.where(least == 0.0, (gap > 0.0).double(), gap / least.abs())
    level = top - (top - least) * broken.clamp(0.0, 1.0)
    if held is not None:
        check.check_known(held=held)
        needs_skill = (cvar.detach() > scalar(held, like=cvar)) & (gap > 0.0)
        level = torch.where(needs_skill, top + gap, level)
    return level.to(cvar.dtype)


def account_share(
    reward: Float[Tensor, "episodes accounts actions"],
    weight: Float[Tensor, "episodes accounts"],
) -> Float[Tensor, ""]:
    r"""Return how much of the variance of rewards is due to what an episode did before, in [0, 1].

    .. math::
        \frac{\sum_{ijk} w_{ij} (r_{ijk} - \bar r_{i \cdot k})^2}
             {\sum_{ijk} w_{ij} (r_{ijk} - \bar r_{\cdot \cdot k})^2}

    with r_ijk what action k makes of a step of episode i in account j, and the bars weighted means
    over accounts, and over accounts and episodes: the within part of a one-way analysis of
    variance whose groups are the draws. 0 where whatever was earned before, the same rewards
    follow; near 1 where stakes are shares of a wealth. Ours.

    Args:
        reward: of each action by the same draw, in the accounts that different pasts have left.
        weight: of the accounts; 0 for one whose episode is over.

    Returns:
        The share, without gradient; 0 where rewards do not vary.

    Raises:
        ShapeError: if there is not one weight for each account.
    """
    check.check_same_shape(accounts=reward[..., 0], weight=weight)
    r, w = reward.detach().double(), weight.detach().double().unsqueeze(-1)
    whole = w.sum((0, 1)).clamp(min=torch.finfo(w.dtype).tiny)
    own = w.sum(1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
    within = (w * (r - (w * r).sum(1, keepdim=True) / own).square()).sum()
    total = (w * (r - (w * r).sum((0, 1)) / whole).square()).sum()
    return torch.where(total > 0.0, within / total, 0.0).to(reward.dtype)


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


def calibration_slope(
    product: Float[Tensor, "*batch n"], square: Float[Tensor, "*batch n"], *, errors: Number
) -> Float[Tensor, "*batch"]:
    r"""Return how far predictions are borne out by outcomes they were not learned from, in [0, 1].

    .. math::
        \Big[b + k\,s\Big]_0^1, \qquad b = \frac{\sum_j p_j}{\sum_j q_j}, \qquad
        s^2 = \frac{n}{n - 1} \frac{\sum_j (p_j - b\,q_j)^2}{\big(\sum_j q_j\big)^2}

    with p_j the mean of prediction times outcome in sample j and q_j that of the squared
    prediction, both about their means: b is the least-squares slope of outcomes on predictions, 1
    for predictions that are right on average and 0 for noise, and the factor by which predictions
    must be multiplied for the least squared error. s is its standard error over samples, to first
    order in the deviations of both sums (delta method for a ratio of means). Ours. The upper end
    of the interval trusts predictions until outcomes refute them, which rare events take long to.

    Args:
        product: p, of each sample.
        square: q, of each sample; at least 0.
        errors: k; at least 0.

    Returns:
        The bounded slope, without gradient; 1 for fewer than two samples, or where nothing was
        predicted.

    Raises:
        ShapeError: if the shapes differ, there is no axis of samples, or `errors` has a dimension.
        RangeError: if `errors` is a number below 0.
    """
    check.check_same_shape(product=product, square=square)
    check.check_has_axis(axis="samples", product=product)
    remedy = "Pass how many standard errors above the slope are trusted."
    check.check_at_least_zero(errors, name="errors", remedy=remedy)
    count = product.shape[-1]
    if count < 2:
        return torch.ones_like(product.sum(-1))
    p, q = product.detach().double(), square.detach().double()
    whole = q.sum(-1)
    slope = p.sum(-1) / whole
    squares = (p - slope.unsqueeze(-1) * q).square().sum(-1)
    error = (count / (count - 1.0) * squares).sqrt() / whole
    bounded = (slope + errors * error).clamp(0.0, 1.0)
    return torch.where(whole > 0.0, bounded, 1.0).to(product.dtype)


def shrink_to_mean(
    advantage: Float[Tensor, "*batch actions"], weight: Float[Tensor, "*batch"], *, share: Number
) -> Float[Tensor, "*batch actions"]:
    r"""Return advantages with the part that differs from state to state multiplied by a share.

    .. math::
        \bar A(a) + c\,\big(A(s, a) - \bar A(a)\big), \qquad
        \bar A(a) = \frac{\sum_s w_s A(s, a)}{\sum_s w_s}

    With the slope of `calibration_slope` for c, the linear predictor of least squared error: the
    mean over thousands of states has little noise and is kept whole. Ours.

    Args:
        advantage: of every action in every state.
        weight: of the states; not all 0.
        share: c, in [0, 1].

    Raises:
        ShapeError: if there is not one weight for each state, or `share` has a dimension.
        RangeError: if `share` is a number outside [0, 1].
    """
    check.check_same_shape(states=advantage[..., 0], weight=weight)
    remedy = "Pass 1 to keep every difference between states, and 0 for none."
    check.check_unit_interval(share, name="share", remedy=remedy)
    states = advantage.reshape(-1, advantage.shape[-1])
    mean = (weight.reshape(-1, 1) * states).sum(0) / weight.sum()
    return mean + share * (advantage - mean)


def floor_share(
    gap: Float[Tensor, "*batch n"], weight: Float[Tensor, "*batch n"], *, errors: Number
) -> Float[Tensor, "*batch"]:
    r"""Return how strongly a policy is pulled to an action that earns more, in [0, 1/2].

    .. math::
        \tfrac12 \Big[\frac{\bar g}{s} - k\Big]_0^1, \qquad
        \bar g = \frac{\sum_i w_i g_i}{\sum_i w_i}, \qquad
        s^2 = \frac{\sum_i w_i^2 (g_i - \bar g)^2}{(\sum_i w_i)^2}

    with g_i what the action makes of draw i if it is held throughout, less what the policy made of
    it. s is the standard error of the weighted mean, by the linearisation of a ratio. Ours. With
    costs of trading, holding nothing is a local optimum: to enter for one bar costs a fill on
    either side. What an action earns that is held throughout shows the way out of it.

    Args:
        gap: g, of n draws.
        weight: w, of each; at least 0, not all 0.
        errors: k, standard errors that must lie between both; at least 0.

    Returns:
        The share, without gradient; 0 for gaps that are all 0.

    Raises:
        ShapeError: if the shapes differ, there is no axis of draws, or `errors` has a dimension.
        RangeError: if `errors` is a number below 0.
    """
    check.check_same_shape(gap=gap, weight=weight)
    check.check_has_axis(axis="draws", gap=gap)
    remedy = "Pass how many standard errors a gain must have to be believed."
    check.check_at_least_zero(errors, name="errors", remedy=remedy)
    g, w = gap.detach().double(), weight.detach().double()
    w = w / w.sum(-1, keepdim=True)
    mean = (w * g).sum(-1)
    error = (w * (g - mean.unsqueeze(-1))).square().sum(-1).sqrt()
    # mean > k s, without a division: equal gaps have no error
    share = 0.5 * ((mean - errors * error) / error).clamp(0.0, 1.0)
    share = torch.where(error > 0.0, share, 0.5 * (mean > 0.0).double())
    return share.to(gap.dtype)


def pull_to_action(
    advantage: Float[Tensor, "*batch actions"],
    probability: Float[Tensor, "*batch actions"],
    action: Int[Tensor, ""],
    *,
    share: Number,
) -> Float[Tensor, "*batch actions"]:
    r"""Return advantages that also pull the policy to one action, in states where it is unlikely.

    .. math::
        (1 - y)\,A(s, a) + y\,\frac{1_{a = c} - p(s)}{\sqrt{p(s) (1 - p(s))}}
        \quad \text{where}\ p(s) = \pi(c | s) < \tfrac12, \qquad A(s, a)\ \text{elsewhere}

    The pull has mean 0 and spread 1 under a policy that draws c or not. It ends at a half: from
    there on the advantages decide, so that no state is hardened by it. Ours.

    Args:
        advantage: A, of every action.
        probability: of every action under the policy.
        action: c, place of the action.
        share: y, in [0, 1].

    Raises:
        ShapeError: if the shapes differ, or `action` or `share` has a dimension.
        RangeError: if `share` is a number outside [0, 1].
    """
    check.check_same_shape(advantage=advantage, probability=probability)
    check.check_scalar(action, name="action")
    remedy = "Pass 0 to leave advantages as they are, and 1 to follow the action alone."
    check.check_unit_interval(share, name="share", remedy=remedy)
    places = torch.arange(probability.shape[-1], device=probability.device)
    is_action = (places == action).to(probability.dtype)
    own = (probability * is_action).sum(-1, keepdim=True).clamp(min=LEAST_PROBABILITY)
    pull = (is_action - own) / (own * (1.0 - own)).clamp(min=LEAST_PROBABILITY).sqrt()
    return torch.where(own < 0.5, (1.0 - share) * advantage + share * pull, advantage)
