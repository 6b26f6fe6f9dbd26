"""Differential Sharpe ratio from its definition, in float64 loops without its closed form.

Moody & Saffell 2001, section II-D: A and B are exponential moving estimates of the first and second
moment of R with the adaptation rate eta, S = A / sqrt(B - A^2), and D_t = dS_t / d eta at eta = 0.
The derivative is taken by a complex step (Squire & Trapp 1998), which is exact to rounding: S is an
analytic function of eta, so Im S(i h) / h = dS/d eta + O(h^2), and nothing is subtracted.
"""

import numpy as np

STEP = 1e-40


def ratio(eta, value, mean, square):
    """Return S_t after one return, as a function of eta, which may be complex."""
    first = (1.0 - eta) * mean + eta * value
    second = (1.0 - eta) * square + eta * value**2
    return first / (second - first * first) ** 0.5


def differential(value, mean, square):
    """Return D_t, from the moments of the step before."""
    return complex(ratio(STEP * 1j, value, mean, square)).imag / STEP


def differential_by_return(value, mean, square):
    """Return dD_t / dR_t, which the paper gives beside D_t: (B - A R) / (B - A^2)^(3/2)."""
    return (square - mean * value) / (square - mean**2) ** 1.5


def moments(returns, *, rate, mean, square):
    """Return A_t and B_t after all returns, as weighted sums of everything before."""
    count = len(returns)
    old = (1.0 - rate) ** count
    first, second = old * mean, old * square
    for index, value in enumerate(returns):
        weight = rate * (1.0 - rate) ** (count - 1 - index)
        first += weight * value
        second += weight * value**2
    return first, second


def path(returns, *, rate, mean, square):
    """Return D_t of every step of a path; each from sums over all returns before it."""
    rewards = []
    for index, value in enumerate(returns):
        before = moments(returns[:index], rate=rate, mean=mean, square=square)
        rewards.append(differential(value, *before))
    return np.array(rewards)
