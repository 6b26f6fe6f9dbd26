"""Oracles for returns of short episodes: every path is enumerated, in float64.

Each step is in a regime with a drift, a deviation of its normal noise and jumps (size, probability,
whether the episode ends). Given its path, a return is normal; so a return is a mixture of normals
with as many parts as there are paths. Nothing here knows of characteristic functions.
"""

import math

import numpy as np
from scipy import optimize, stats


def parts(regimes, moves, start, left, gamma):
    """Return probability, mean and deviation of the return of every path."""
    found = []

    def walk(regime, step, chance, mean, variance):
        if chance == 0.0:
            return
        if step == left:
            found.append((chance, mean, math.sqrt(variance)))
            return
        drift, noise, jumps = regimes[regime]
        weight = gamma**step
        nothing = (0.0, 1.0 - sum(jump[1] for jump in jumps), False)
        for size, likely, ends in (nothing, *jumps):
            paid = mean + weight * (drift + size)
            spread = variance + (weight * noise) ** 2
            if ends:
                if likely:
                    found.append((chance * likely, paid, math.sqrt(spread)))
                continue
            for following, move in enumerate(moves[regime]):
                walk(following, step + 1, chance * likely * move, paid, spread)

    walk(start, 0, 1.0, 0.0, 0.0)
    return np.array(found).T


def below(mixture, value):
    """Return the probability of a return of at most this."""
    chance, mean, deviation = mixture
    return float((chance * stats.norm.cdf((value - mean) / deviation)).sum())


def moments(mixture):
    """Return mean and standard deviation."""
    chance, mean, deviation = mixture
    first = float((chance * mean).sum())
    return first, math.sqrt(float((chance * (mean**2 + deviation**2)).sum()) - first**2)


def cvar(mixture, alpha):
    """Return the mean of the worst share: each part's expectation below the quantile, by hand."""
    chance, mean, deviation = mixture
    quantile = optimize.brentq(lambda x: below(mixture, x) - alpha, -100.0, 100.0, xtol=1e-12)
    distance = (quantile - mean) / deviation
    lower = mean * stats.norm.cdf(distance) - deviation * stats.norm.pdf(distance)
    return float((chance * lower).sum()) / alpha
