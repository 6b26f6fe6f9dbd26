"""Advantage normalisation, entry by entry, in plain float64 Python.

Definitions: mean and standard deviation with frequency weights; the effective count
(sum w)^2 / sum w^2 (Kish 1965) takes the place of n in the ddof = 1 correction. Running moments are
those of a mixture of rollouts: mean of the means, and variances within plus variance between.
"""

import math

import numpy as np

EPS32 = 2.0**-23


def _moments(entries):
    """Mean, standard deviation and effective count of (value, weight) pairs, all weights > 0."""
    total = math.fsum(w for _, w in entries)
    if total == 0.0:
        return 0.0, 0.0, 0.0
    mean = math.fsum(w * a for a, w in entries) / total
    count = total**2 / math.fsum(w * w for _, w in entries)
    if count <= 1.0:
        return mean, 0.0, count
    spread = math.fsum(w * (a - mean) ** 2 for a, w in entries) / total
    return mean, math.sqrt(spread * count / (count - 1.0)), count


def threshold(floor, magnitude, used):
    """The larger of the floor and eight float32 steps of the largest magnitude in use."""
    if magnitude is None:
        return floor
    if isinstance(magnitude, float):
        return max(floor, 8.0 * EPS32 * abs(magnitude))
    sizes = [abs(float(magnitude[i])) for i in used]
    return max(floor, 8.0 * EPS32 * max(sizes, default=0.0))


def _one(a, mean, std, mode, floor, least, previous):
    """One normalised entry."""
    if mode == "floor":
        return (a - mean) / max(std, least)
    if mode == "eps":
        return (a - mean) / (std + floor)
    if std >= least:
        return (a - mean) / std
    if mode == "previous_stats":
        return (a - previous[0]) / max(previous[1], least)
    return {"center_only": a - mean, "zero": 0.0, "skip": a}[mode]


def normalise(
    advantage,
    weight=None,
    magnitude=None,
    mode="floor",
    floor=1e-8,
    per_env=False,
    previous=None,
):
    """Centre and divide, over all entries of positive weight or over each column of them."""
    weight = np.ones(advantage.shape) if weight is None else weight
    used = [i for i in np.ndindex(advantage.shape) if weight[i] > 0.0]
    least = threshold(floor, magnitude, used)
    everything = [(float(advantage[i]), float(weight[i])) for i in used]
    out = np.zeros(advantage.shape)
    for i in used:
        mean, std, _ = _moments(everything)
        if per_env:
            column = [(float(advantage[j]), float(weight[j])) for j in used if j[-1] == i[-1]]
            own_mean, own_std, count = _moments(column)
            if count >= 2.0 - 1e-9:
                mean, std = own_mean, own_std
        out[i] = _one(float(advantage[i]), mean, std, mode, floor, least, previous)
    return out


def rollout_weights(count, beta):
    """Weight of each of several rollouts: its own gain times what every later one left of it."""
    gains = [max(1.0 - beta, 3.0 / (k + 2.0)) for k in range(1, count + 1)]
    return [
        gain * math.prod(1.0 - later for later in gains[j + 1 :]) for j, gain in enumerate(gains)
    ]


def running(rollouts, beta):
    """Mean and variance of the (values, weight) of several rollouts, oldest first.

    Rollouts without an entry of positive weight do not count.
    """
    parts = []
    for values, weight in rollouts:
        flat, mass = values.ravel(), np.ones(values.size) if weight is None else weight.ravel()
        entries = [(float(a), float(w)) for a, w in zip(flat, mass, strict=True) if w > 0.0]
        if entries:
            parts.append(_moments(entries))
    share = rollout_weights(len(parts), beta)
    centre = math.fsum(s * mean for s, (mean, _, _) in zip(share, parts, strict=True))
    spread = math.fsum(
        s * (std**2 + (mean - centre) ** 2) for s, (mean, std, _) in zip(share, parts, strict=True)
    )
    return centre, spread


def normalise_by(advantage, mean, variance, weight=None, magnitude=None, floor=1e-8):
    """Less the mean, over the larger of the deviation and the threshold, entry by entry."""
    weight = np.ones(advantage.shape) if weight is None else weight
    used = [i for i in np.ndindex(advantage.shape) if weight[i] > 0.0]
    least = threshold(floor, magnitude, used)
    out = np.zeros(advantage.shape)
    for i in used:
        out[i] = (float(advantage[i]) - mean) / max(math.sqrt(variance), least)
    return out
