"""Attacks in plain float64 Python, from their definitions.

The worst perturbation of a linear function over a ball, intervals of CVaR and of its change over
pairs, and how much a decision was changed.
"""

import math

import numpy as np
from scipy import stats


def worst_linear(gradient, epsilon, norm):
    """Maximiser of <g, delta> over the ball: epsilon sign(g), or epsilon g / |g|."""
    length = math.sqrt(math.fsum(float(v) ** 2 for v in gradient))
    out = np.zeros(len(gradient))
    for k, value in enumerate(gradient):
        if value != 0.0:
            out[k] = math.copysign(epsilon, value) if norm == "linf" else epsilon * value / length
    return out


def cvar(values, alpha):
    """Mean of the worst alpha n values, the last one in part."""
    ordered, left, total = sorted(values), alpha * len(values), 0.0
    for value in ordered:
        part = min(1.0, left)
        total += part * value
        left -= part
        if left <= 0.0:
            break
    return total / (alpha * len(values))


def influence(values, alpha):
    """nu + min(x - nu, 0) / alpha with nu the lower alpha-quantile, value by value."""
    ordered = sorted(values)
    level = ordered[max(math.ceil(alpha * len(values) - 1e-9), 1) - 1]
    return [level + min(x - level, 0.0) / alpha for x in values]


def t_half(parts):
    """Half width of Student's 95 % interval of the mean of parts."""
    n = len(parts)
    mean = math.fsum(parts) / n
    variance = math.fsum((x - mean) ** 2 for x in parts) / (n - 1)
    return float(stats.t.ppf(0.975, n - 1)) * math.sqrt(variance / n)


def cvar_change(first, second, alpha):
    """Difference of two CVaR, and half of its interval from paired influences."""
    before, after = influence(first, alpha), influence(second, alpha)
    parts = [b - a for a, b in zip(before, after, strict=True)]
    return cvar(second, alpha) - cvar(first, alpha), t_half(parts)


def share_of_range(first, second, low, high):
    """Mean over dimensions of the distance of two bounded actions over the range."""
    total = 0.0
    for a, b, least, most in zip(first, second, low, high, strict=True):
        a, b = min(max(a, least), most), min(max(b, least), most)
        total += abs(a - b) / (most - least)
    return total / len(low)
