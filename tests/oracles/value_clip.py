"""Value clipping of distributions, written from its definition: the target never moves."""

import math

import numpy as np

from oracles.categorical import distribution_mean, distribution_variance, project_distribution

STD_FLOOR = 1e-8
"""Smallest old standard deviation, so that a collapsed distribution does not forbid all spread."""


def clamp(x, low, high):
    return min(max(x, low), high)


def mean_and_std(values):
    """Mean and population standard deviation."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))


def moved_mean(mean, old_mean, epsilon):
    """The new mean, held within epsilon of the old one."""
    return clamp(mean, old_mean - epsilon, old_mean + epsilon)


def spread_factor(std, old_std, variance_factor):
    """s = min(1, f * std_old / std): a spread only ever shrinks."""
    if std == 0:
        return 1.0
    return min(1.0, variance_factor * max(old_std, STD_FLOOR) / std)


def clip_quantiles(new, old, epsilon, mode, variance_factor=2.0):
    """One critic's quantiles held near the old ones, in the way `mode` names."""
    result = np.zeros(len(new))
    mean, std = mean_and_std(new)
    old_mean, old_std = mean_and_std(old)
    target_mean = moved_mean(mean, old_mean, epsilon)
    scale = spread_factor(std, old_std, variance_factor)
    for i in range(len(new)):
        if mode == "off":
            result[i] = new[i]
        elif mode == "mean_only":
            result[i] = new[i] + (target_mean - mean)
        elif mode == "mean_and_variance":
            result[i] = (new[i] - mean) * scale + target_mean
        elif mode == "per_quantile":
            result[i] = old[i] + clamp(new[i] - old[i], -epsilon, epsilon)
    return result


def clip_distribution(probs, old_probs, atoms, epsilon, mode, variance_factor=2.0):
    """The same for a categorical distribution: its atoms move and are projected back."""
    if mode == "off":
        return np.array(probs)
    mean, std = distribution_mean(probs, atoms), math.sqrt(distribution_variance(probs, atoms))
    old_mean, old_std = (
        distribution_mean(old_probs, atoms),
        math.sqrt(distribution_variance(old_probs, atoms)),
    )
    scale = spread_factor(std, old_std, variance_factor) if mode == "mean_and_variance" else 1.0
    target_mean = moved_mean(mean, old_mean, epsilon)
    moved = [(z - mean) * scale + target_mean for z in atoms]
    return project_distribution(probs, moved, atoms)


def limit_encoded(prediction, limit, mean, std):
    """Decode, hold within +-limit in raw units, encode again."""
    return (clamp(std * prediction + mean, -limit, limit) - mean) / std
