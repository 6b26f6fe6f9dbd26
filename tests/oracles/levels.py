"""Quantiles of unequal mass, written from their definitions: atoms theta_i of the masses w_i."""

import itertools
import math
from fractions import Fraction

import numpy as np

from oracles.quantile import quantile_huber
from oracles.risk import shortfall, tail_mean
from oracles.twin import smallest
from oracles.value_clip import clamp, moved_mean, spread_factor


def tail_cells(n):
    """Edges of N cells: a quarter of them, rounded half up, share [0, 1/20], the rest the rest."""
    if n == 1:
        return [Fraction(0), Fraction(1)]
    narrow = max(math.floor(Fraction(n, 4) + Fraction(1, 2)), 1)
    bound = Fraction(1, 20)
    low = [bound * i / narrow for i in range(narrow)]
    high = [bound + (1 - bound) * i / (n - narrow) for i in range(n - narrow + 1)]
    return [*low, *high]


def tail_weights(n):
    return np.array([float(right - left) for left, right in itertools.pairwise(tail_cells(n))])


def middles(weight):
    """Middle of each cell."""
    edge, found = 0.0, []
    for w in weight:
        found.append(edge + w / 2.0)
        edge += w
    return np.array(found)


def cells(levels):
    """Widths of neighbouring cells with these middles, from 0 on: as far up as down from each."""
    edge, found = 0.0, []
    for level in levels:
        found.append(2.0 * (level - edge))
        edge = level + (level - edge)
    return np.array(found)


def mean(atoms, weight):
    return math.fsum(w * x for x, w in zip(atoms, weight, strict=True))


def deviation(atoms, weight):
    centre = mean(atoms, weight)
    return math.sqrt(math.fsum(w * (x - centre) ** 2 for x, w in zip(atoms, weight, strict=True)))


def huber_loss(predicted, target, tau, kappa, target_weight):
    """Mean over levels of the expected loss under the target distribution."""
    total = 0.0
    for theta, level in zip(predicted, tau, strict=True):
        for y, v in zip(target, target_weight, strict=True):
            total += v * quantile_huber(y - theta, level, kappa)
    return total / len(predicted)


def huber_loss_gradient(predicted, target, tau, kappa, target_weight):
    gradient = np.zeros(len(predicted))
    for i, (theta, level) in enumerate(zip(predicted, tau, strict=True)):
        for y, v in zip(target, target_weight, strict=True):
            u = y - theta
            pull = 1.0 - level if u < 0 else level
            slope = math.copysign(1.0, u) if kappa == 0 else clamp(u / kappa, -1.0, 1.0)
            gradient[i] -= v * pull * slope / len(predicted)
    return gradient


def huber_active(predicted, target, kappa, target_weight):
    total = 0.0
    for theta in predicted:
        for y, v in zip(target, target_weight, strict=True):
            total += v * (abs(y - theta) > kappa)
    return total / len(predicted)


def monotone(raw, weight):
    """Mean raw_0 by mass; for raw_i = 0 a line over the levels whose ends are 2 apart."""
    tau = middles(weight)
    ladder = [0.0]
    for i in range(1, len(raw)):
        step = 2.0 * (tau[i] - tau[i - 1]) / (tau[-1] - tau[0])
        y = raw[i] + math.log(math.exp(step) - 1.0)
        ladder.append(ladder[-1] + max(y, 0.0) + math.log1p(math.exp(-abs(y))))
    middle = mean(ladder, weight)
    return np.array([raw[0] - middle + step for step in ladder])


def cvar(quantiles, alpha, weight):
    return tail_mean(list(quantiles), list(weight), alpha)


def cvar_linear(quantiles, alpha, weight):
    """(1/alpha) * integral of the curve through (middle of the sorted cell, atom), by trapezia."""
    pairs = sorted(zip(quantiles, weight, strict=True))
    if len(pairs) == 1:
        return pairs[0][0]
    values, tau = [x for x, _ in pairs], middles([w for _, w in pairs])

    def curve(level):
        i = 0
        while i < len(values) - 2 and level > tau[i + 1]:
            i += 1
        return values[i] + (level - tau[i]) / (tau[i + 1] - tau[i]) * (values[i + 1] - values[i])

    kinks = [0.0, *(t for t in tau[1:-1] if t < alpha), alpha]
    total = 0.0
    for left, right in itertools.pairwise(kinks):
        total += 0.5 * (right - left) * (curve(left) + curve(right))
    return total / alpha


def value_at_risk(quantiles, alpha, weight, tie=1e-12):
    """Smallest atom up to which the mass reaches alpha."""
    reached = 0.0
    for x, w in sorted(zip(quantiles, weight, strict=True)):
        reached += w
        if reached >= alpha * (1.0 - tie):
            return x
    return max(quantiles)


def risk_advantage(sampled_return, quantiles, alpha, weight):
    var = value_at_risk(quantiles, alpha, weight)
    return min(sampled_return - var, 0.0) / alpha - (cvar(quantiles, alpha, weight) - var)


def budget_advantage(target_atoms, quantiles, budget, alpha, weight, target_weight):
    after = shortfall(target_atoms, target_weight, budget)
    return (after - shortfall(quantiles, weight, budget)) / alpha


def twin_quantiles(quantiles, mode, weight):
    if mode == "argmin":
        return np.array(quantiles[smallest([mean(q, weight) for q in quantiles])])
    ordered = [sorted(q) for q in quantiles]
    return np.array([min(column) for column in zip(*ordered, strict=True)])


def clip_quantiles(new, old, epsilon, mode, variance_factor, weight):
    centre, old_centre = mean(new, weight), mean(old, weight)
    target = moved_mean(centre, old_centre, epsilon)
    scale = 1.0
    if mode == "mean_and_variance":
        scale = spread_factor(deviation(new, weight), deviation(old, weight), variance_factor)
    return np.array([(x - centre) * scale + target for x in new])
