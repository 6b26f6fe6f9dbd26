"""Lower-tail risk, written from its definitions (Acerbi & Tasche 2002; Rockafellar & Uryasev).

CVaR_alpha(Z) = (1/alpha) * integral over (0, alpha) of the quantile function; higher is better.
"""

import itertools
import math

import numpy as np
from scipy import stats

LEVEL_TIE = 1e-9
"""Relative distance below which alpha * N counts as the whole number next to it."""


def rank_of_level(alpha, n):
    """ceil(alpha * n), at least 1, with alpha * n = 3.0000000000000004 read as 3."""
    exact = alpha * n
    nearest = round(exact)
    if abs(exact - nearest) <= LEVEL_TIE * exact:
        return max(nearest, 1)
    return max(math.ceil(exact), 1)


def value_at_risk(quantiles, alpha):
    """inf{x: F(x) >= alpha} of N equal atoms."""
    return sorted(quantiles)[rank_of_level(alpha, len(quantiles)) - 1]


def tail_mean(atoms, masses, alpha):
    """(1/alpha) * integral of the quantile function of a distribution of mass 1: fill the tail."""
    left, total = alpha, 0.0
    for x, mass in sorted(zip(atoms, masses, strict=True)):
        taken = min(left, mass)
        if taken > 0:
            total += taken * x
            left -= taken
    return (total + left * max(atoms)) / alpha


def cvar(quantiles, alpha):
    """CVaR of the distribution with mass 1/N on each quantile."""
    n = len(quantiles)
    return tail_mean(list(quantiles), [1.0 / n] * n, alpha)


def cvar_by_integration(quantiles, alpha, points=20_000):
    """The same by the midpoint rule on the step function F^-1; off by at most range / points."""
    ordered = sorted(quantiles)
    n, total = len(ordered), 0.0
    for k in range(points):
        level = alpha * (k + 0.5) / points
        total += ordered[min(math.floor(level * n), n - 1)]
    return total / points


def linear_curve(quantiles, level):
    """The curve through ((i + 1/2)/N, theta_(i)), its end segments carried on to 0 and 1."""
    ordered = sorted(quantiles)
    n = len(ordered)
    if n == 1:
        return ordered[0]
    i = min(max(math.floor(level * n - 0.5), 0), n - 2)
    return ordered[i] + (level * n - 0.5 - i) * (ordered[i + 1] - ordered[i])


def cvar_linear(quantiles, alpha):
    """(1/alpha) * integral of that curve: exact trapezia between its kinks and alpha."""
    n = len(quantiles)
    kinks = [0.0] + [(i + 0.5) / n for i in range(n) if (i + 0.5) / n < alpha] + [alpha]
    total = 0.0
    for left, right in itertools.pairwise(kinks):
        height = linear_curve(quantiles, left) + linear_curve(quantiles, right)
        total += 0.5 * (right - left) * height
    return total / alpha


def cvar_linear_by_quadrature(quantiles, alpha, points=20_000):
    """The same by the midpoint rule, which knows nothing about the kinks."""
    total = 0.0
    for k in range(points):
        total += linear_curve(quantiles, alpha * (k + 0.5) / points)
    return total / points


def categorical_value_at_risk(probs, atoms, alpha, tie=1e-12):
    """Smallest atom whose cumulated mass reaches alpha; the last one if rounding leaves none."""
    reached = 0.0
    for p, z in zip(probs, atoms, strict=True):
        reached += p
        if reached >= alpha - tie:
            return z
    return atoms[-1]


def categorical_cvar(probs, atoms, alpha):
    return tail_mean(list(atoms), list(probs), alpha)


def empirical_cvar(sample, alpha, weight=None):
    """Mean of the worst alpha share of the total weight, the last sample with a fraction."""
    if weight is None:
        weight = [1.0] * len(sample)
    kept = [(x, w) for x, w in zip(sample, weight, strict=True) if w > 0]
    total = math.fsum(w for _, w in kept)
    if total == 0:
        return math.nan
    return tail_mean([x for x, _ in kept], [w / total for _, w in kept], alpha)


def shortfall(atoms, masses, level):
    """E[min(Z - level, 0)]."""
    total = 0.0
    for x, mass in zip(atoms, masses, strict=True):
        if x < level:
            total += mass * (x - level)
    return total


def risk_advantage(sampled_return, quantiles, alpha):
    """(1/alpha) min(G - VaR, 0) - (CVaR - VaR): the score weight of Tamar et al. 2015."""
    var = value_at_risk(quantiles, alpha)
    return min(sampled_return - var, 0.0) / alpha - (cvar(quantiles, alpha) - var)


def categorical_risk_advantage(sampled_return, probs, atoms, alpha):
    var = categorical_value_at_risk(probs, atoms, alpha)
    cvar_ = categorical_cvar(probs, atoms, alpha)
    return min(sampled_return - var, 0.0) / alpha - (cvar_ - var)


def budget_advantage(target_atoms, quantiles, budget, alpha):
    """(1/alpha) [E min(Y - b, 0) - E min(Z - b, 0)] for equal atoms."""
    m, n = len(target_atoms), len(quantiles)
    target = shortfall(target_atoms, [1.0 / m] * m, budget)
    return (target - shortfall(quantiles, [1.0 / n] * n, budget)) / alpha


def categorical_budget_advantage(target_probs, probs, atoms, budget, alpha):
    return (shortfall(atoms, target_probs, budget) - shortfall(atoms, probs, budget)) / alpha


def budget_trace(
    reward, reached, distribution, budget, terminated, truncated, alpha, gamma, lam, atoms=None
):
    """sum_k (gamma lam)^k of the one-step changes of the shortfall, until an end; [T, B].

    Distributions are equal atoms, or masses of `atoms`. The change of step t is
    (1/alpha) [E min(r + gamma Z' - b_t, 0) - E min(Z - b_t, 0)]; after a terminal step Z' is 0.
    """
    T, B = reward.shape

    def points(one):
        return (one, [1.0 / len(one)] * len(one)) if atoms is None else (atoms, one)

    def change(t, b):
        if terminated[t, b]:
            after = min(reward[t, b] - budget[t, b], 0.0)
        else:
            places, masses = points(reached[t, b])
            after = shortfall([reward[t, b] + gamma * z for z in places], masses, budget[t, b])
        return (after - shortfall(*points(distribution[t, b]), budget[t, b])) / alpha

    out = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            for k in range(T - t):
                out[t, b] += (gamma * lam) ** k * change(t + k, b)
                if terminated[t + k, b] or truncated[t + k, b]:
                    break
    return out


def normal_cvar(alpha):
    """Closed form for N(0, 1): -phi(Phi^-1(alpha)) / alpha."""
    return -stats.norm.pdf(stats.norm.ppf(alpha)) / alpha


def student_cvar(alpha, degrees):
    """Closed form for Student's t: -(f(q) / alpha) (degrees + q^2) / (degrees - 1)."""
    q = stats.t.ppf(alpha, degrees)
    return -stats.t.pdf(q, degrees) / alpha * (degrees + q * q) / (degrees - 1)


def distribution_of_sum(branches):
    """Merge (probability, value) branches into sorted atoms and masses."""
    merged = {}
    for mass, x in branches:
        merged[x] = merged.get(x, 0.0) + mass
    atoms = np.array(sorted(merged))
    return atoms, np.array([merged[x] for x in atoms])


def grouped_cvar_error(sample, alpha, group):
    """sqrt(G / (G - 1) sum of squared group sums) / n of the centred influence values."""
    n = len(sample)
    level = value_at_risk(list(sample), alpha)
    values = [level + min(x - level, 0.0) / alpha for x in sample]
    mean = math.fsum(values) / n
    sums = {}
    for value, label in zip(values, group, strict=True):
        sums.setdefault(int(label), []).append(value - mean)
    G = len(sums)
    if G < 2:
        return math.nan
    return math.sqrt(G / (G - 1) * math.fsum(math.fsum(own) ** 2 for own in sums.values())) / n


def empirical_cvar_error(sample, alpha):
    """s / sqrt(n) of the influence values nu + min(x - nu, 0) / alpha, s with n - 1."""
    n = len(sample)
    if n < 2:
        return math.nan
    level = value_at_risk(list(sample), alpha)
    values = [level + min(x - level, 0.0) / alpha for x in sample]
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
