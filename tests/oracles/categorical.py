"""Distributions on fixed atoms, written from their definitions (Bellemare et al. 2017)."""

import math

import numpy as np


def project_dirac(value, atoms):
    """Share a point mass between its two neighbours so that the mean is kept; ends clamp."""
    probs = np.zeros(len(atoms))
    value = min(max(value, atoms[0]), atoms[-1])
    for k in range(len(atoms) - 1):
        if atoms[k] <= value <= atoms[k + 1]:
            right = (value - atoms[k]) / (atoms[k + 1] - atoms[k])
            probs[k] = 1.0 - right
            probs[k + 1] = right
            return probs
    raise AssertionError("a clamped value lies between two atoms")


def project_distribution(probs, support, atoms):
    """Project each atom of a distribution and add the pieces up."""
    result = np.zeros(len(atoms))
    for p, x in zip(probs, support, strict=True):
        result += p * project_dirac(x, atoms)
    return result


def hat(x, k, atoms):
    """The piecewise linear function that is 1 on atom k, 0 on the others, flat outside."""
    if x == atoms[k]:
        return 1.0
    if x < atoms[k]:
        if k == 0:
            return 1.0
        return max(0.0, 1.0 - (atoms[k] - x) / (atoms[k] - atoms[k - 1]))
    if k == len(atoms) - 1:
        return 1.0
    return max(0.0, 1.0 - (x - atoms[k]) / (atoms[k + 1] - atoms[k]))


def project_distribution_by_hats(probs, support, atoms):
    """The same projection read from the atoms' side: p'_k = sum_m p_m hat_k(x_m)."""
    result = np.zeros(len(atoms))
    for k in range(len(atoms)):
        for p, x in zip(probs, support, strict=True):
            result[k] += p * hat(x, k, atoms)
    return result


def softmax(logits):
    """exp(l_k) / sum exp(l), shifted by the largest logit."""
    peak = max(logits)
    weights = [math.exp(x - peak) for x in logits]
    total = math.fsum(weights)
    return np.array([w / total for w in weights])


def cross_entropy(logits, target):
    """- sum_k p_k log softmax(l)_k."""
    peak = max(logits)
    log_total = peak + math.log(math.fsum(math.exp(x - peak) for x in logits))
    loss = 0.0
    for x, p in zip(logits, target, strict=True):
        loss -= p * (x - log_total)
    return loss


def distribution_mean(probs, atoms):
    """sum p z."""
    return math.fsum(p * z for p, z in zip(probs, atoms, strict=True))


def distribution_variance(probs, atoms):
    """sum p (z - mean)^2."""
    mean = distribution_mean(probs, atoms)
    return math.fsum(p * (z - mean) ** 2 for p, z in zip(probs, atoms, strict=True))
