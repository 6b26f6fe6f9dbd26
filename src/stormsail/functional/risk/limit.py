"""Rules of a limit on CVaR: the level of the shortfall, and the share of the risk advantage."""


def shortfall_level(value_at_risk: float, cvar: float, limit: float) -> float:
    r"""Return the level nu that the shortfall is to be measured from.

    .. math::
        \nu = v - (v - L)\,\big[\tfrac{L - c}{|L|}\big]_0^1, \qquad v = \max(q_\alpha, L)

    While the limit L holds, the value at risk, which makes nu + E[min(G - nu, 0)] / alpha the CVaR
    c itself (Rockafellar & Uryasev 2000, Eq. 4). Never below L: CVaR >= L implies a value at risk
    of at least L, and where an event is likelier than alpha the quantile is the event itself and
    no action changes the shortfall below it. While the limit is broken it moves towards L, as far
    as it is broken: at a high level a policy that wins a little surely and loses much rarely would
    be paid for the win. Ours.

    Args:
        value_at_risk: alpha-quantile of returns.
        cvar: estimate, c.
        limit: L.
    """
    top = max(value_at_risk, limit)
    broken = (limit - cvar) / abs(limit) if limit != 0.0 else float(cvar < limit)
    return top - (top - limit) * min(max(broken, 0.0), 1.0)


def mixing_share(wanted: float, mean_rate: float, risk_rate: float, *, most_change: float) -> float:
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
        most_change: d, largest distance from x_0.
    """
    span = risk_rate - mean_rate
    if not span > 0.0:
        return 1.0 if wanted > 0.0 else 0.0
    change = min(max(wanted / span, -most_change), most_change)
    return min(max(-mean_rate / span + change, 0.0), 1.0)
