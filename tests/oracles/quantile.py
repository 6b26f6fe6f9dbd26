"""Quantile regression, written from its definitions: N predicted quantiles, M target samples."""

import itertools
import math

import numpy as np


def midpoints(n):
    """Levels (i + 1/2) / n, the W1-optimal ones (Dabney et al. 2018, Lemma 2)."""
    return np.array([(2 * i + 1) / (2 * n) for i in range(n)])


def huber(u, kappa):
    """L_kappa(u): a parabola up to |u| = kappa and its tangents beyond (Huber 1964)."""
    if abs(u) <= kappa:
        return 0.5 * u * u
    return kappa * (abs(u) - 0.5 * kappa)


def quantile_huber(u, tau, kappa):
    """rho(u) = |tau - 1{u < 0}| L_kappa(u) / kappa; |tau - 1{u < 0}| |u| for kappa = 0."""
    weight = 1.0 - tau if u < 0 else tau
    return weight * (abs(u) if kappa == 0 else huber(u, kappa) / kappa)


def huber_loss(predicted, target, tau, kappa):
    """Mean over i and j of rho_i(y_j - theta_i)."""
    total = 0.0
    for theta, level in zip(predicted, tau, strict=True):
        for y in target:
            total += quantile_huber(y - theta, level, kappa)
    return total / (len(predicted) * len(target))


def level_huber_loss(predicted, sample, tau, kappa):
    """Mean over i of rho_i(y - theta_i) / (2 sd_i), sd_i that of a coin that shows 1 in tau_i."""
    total = 0.0
    for theta, level in zip(predicted, tau, strict=True):
        deviation = math.sqrt(level * (1.0 - level) ** 2 + (1.0 - level) * level**2)
        total += quantile_huber(sample - theta, level, kappa) / (2.0 * deviation)
    return total / len(predicted)


def huber_loss_gradient(predicted, target, tau, kappa):
    """Derivative of `huber_loss` in each theta_i: minus the mean of weight * clip(u, +-kappa)."""
    gradient = np.zeros(len(predicted))
    for i, (theta, level) in enumerate(zip(predicted, tau, strict=True)):
        for y in target:
            u = y - theta
            weight = 1.0 - level if u < 0 else level
            slope = math.copysign(1.0, u) if kappa == 0 else max(-1.0, min(1.0, u / kappa))
            gradient[i] -= weight * slope / (len(predicted) * len(target))
    return gradient


def monotone(raw):
    """Mean raw_0; from each to the next log(1 + exp(raw_i + b)), 2 / (N - 1) for raw_i = 0."""
    n = len(raw)
    ladder = [0.0]
    for x in raw[1:]:
        y = x + math.log(math.exp(2.0 / (n - 1)) - 1.0)
        ladder.append(ladder[-1] + max(y, 0.0) + math.log1p(math.exp(-abs(y))))
    middle = sum(ladder) / n
    return np.array([raw[0] - middle + step for step in ladder])


def crossing_fraction(quantiles):
    """Share of neighbours in the wrong order."""
    if len(quantiles) == 1:
        return 0.0
    crossed = 0
    for left, right in itertools.pairwise(quantiles):
        crossed += right < left
    return crossed / (len(quantiles) - 1)


def huber_active(predicted, target, kappa):
    """Share of pairs outside the parabola, where the loss bounds the gradient."""
    active = 0
    for theta in predicted:
        for y in target:
            active += abs(y - theta) > kappa
    return active / (len(predicted) * len(target))
