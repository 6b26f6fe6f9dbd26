"""Two critics read as one, written from the definition; values are lists over the critics."""

import numpy as np

from oracles.categorical import distribution_mean


def smallest(values):
    """Index of the smallest value, the first one on a tie."""
    best = 0
    for c in range(1, len(values)):
        if values[c] < values[best]:
            best = c
    return best


def twin_value(values, mode):
    if mode == "min":
        return values[smallest(values)]
    return sum(values) / len(values)


def twin_quantiles(quantiles, mode):
    if mode == "argmin":
        return np.array(quantiles[smallest([sum(q) / len(q) for q in quantiles])])
    if mode == "mixture":
        return np.array(sorted(x for q in quantiles for x in q))
    ordered = [sorted(q) for q in quantiles]
    return np.array([min(column) for column in zip(*ordered, strict=True)])


def twin_distribution(probs, atoms, mode):
    if mode == "argmin":
        return np.array(probs[smallest([distribution_mean(p, atoms) for p in probs])])
    return np.array([sum(column) / len(column) for column in zip(*probs, strict=True)])


def twin_loss(loss, clipped_loss):
    """Each critic keeps its own worse branch; only then the critics are averaged."""
    total = 0.0
    for plain, clipped in zip(loss, clipped_loss, strict=True):
        total += max(plain, clipped)
    return total / len(loss)
