"""Rewards of a step in float64 loops, written from the papers; nothing of the package is used."""

import itertools
import math

import numpy as np


def simple_returns(equity):
    """Return E_t / E_{t-1} - 1."""
    return [after / before - 1.0 for before, after in itertools.pairwise(equity)]


def differential_sharpe(equity, *, rate, volatility, least_share):
    """Return D_t of a path of equities (Moody & Saffell 2001, section II), one by one.

    A_0 = 0, B_0 = volatility^2; the variance below the line is at least a share of B_0.
    """
    mean, square = 0.0, volatility**2
    floor = least_share * volatility**2
    rewards = []
    for value in simple_returns(equity):
        delta_mean = value - mean
        delta_square = value**2 - square
        variance = max(square - mean**2, floor)
        rewards.append((square * delta_mean - 0.5 * mean * delta_square) / variance**1.5)
        mean += rate * delta_mean
        square += rate * delta_square
    return np.array(rewards)


def sharpe_of_moments(returns, *, rate, mean, square):
    """Return S_t = A_t / sqrt(B_t - A_t^2) after each return."""
    ratios = []
    for value in returns:
        mean = (1.0 - rate) * mean + rate * value
        square = (1.0 - rate) * square + rate * value**2
        ratios.append(mean / math.sqrt(square - mean**2))
    return np.array(ratios)


def drawdown_growth(equity, *, penalty):
    """Return log growth less the penalty on every new depth of the drawdown, one by one."""
    rewards, peak, depth = [], equity[0], 0.0
    for before, after in itertools.pairwise(equity):
        peak = max(peak, after)
        deeper = math.log(peak) - math.log(after)
        rewards.append(math.log(after / before) - penalty * max(deeper - depth, 0.0))
        depth = deeper
    return np.array(rewards)
