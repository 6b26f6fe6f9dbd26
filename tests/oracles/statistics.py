"""Statistics, observation by observation, in plain float64 Python.

Definitions: Welford 1962 and West 1979 for running moments, Chan, Golub and LeVeque 1979 (Eq. 2.1)
for merging two parts, ordinary least squares for a slope, 1.4826 median |x - median| (Hampel 1974).
"""

import math

import numpy as np


def moments(x, weight=None):
    """West's weighted form of Welford's recurrence over the first axis: (count, mean, m2)."""
    weight = np.ones(x.shape[0]) if weight is None else weight
    count = 0.0
    mean = np.zeros(x.shape[1:])
    m2 = np.zeros(x.shape[1:])
    for k in range(x.shape[0]):
        w = float(weight[k])
        if w <= 0.0:
            continue
        count += w
        for f in np.ndindex(x.shape[1:]):
            step = float(x[k][f]) - mean[f]
            mean[f] += step * w / count
            m2[f] += w * step * (float(x[k][f]) - mean[f])
    return count, mean, m2


def merge(first, second):
    """Chan's pairwise rule for one feature: count, mean and m2 of the two parts together."""
    n1, mean1, m1 = first
    n2, mean2, m2 = second
    if n1 == 0.0:
        return second
    if n2 == 0.0:
        return first
    total = n1 + n2
    step = mean2 - mean1
    return total, mean1 + step * n2 / total, m1 + m2 + step**2 * n1 * n2 / total


def drift(mean, std, new_mean, new_std):
    """Mean over features of |shift| in old standard deviations and of |log of the std ratio|."""
    shift = [abs(b - a) / s for a, b, s in zip(mean, new_mean, std, strict=True)]
    scale = [abs(math.log(b / a)) for a, b in zip(std, new_std, strict=True)]
    return math.fsum(shift) / len(shift), math.fsum(scale) / len(scale)


def standardise(x, mean, variance, clip, eps):
    """(x - m) / sqrt(v + eps), held inside the clip; statistics belong to the last axes."""
    out = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        f = i[len(x.shape) - len(mean.shape) :]
        z = (x[i] - mean[f]) / math.sqrt(variance[f] + eps)
        out[i] = min(max(z, -clip), clip)
    return out


def weighted_mean(x, weight):
    """Sum w x / sum w over the entries of positive weight; 0 when there is none."""
    used = [i for i in np.ndindex(x.shape) if weight[i] > 0.0]
    if not used:
        return 0.0
    return math.fsum(float(weight[i] * x[i]) for i in used) / math.fsum(
        float(weight[i]) for i in used
    )


def explained_variance(target, value, weight=None):
    """1 - Var(R - V) / Var(R), population variances; NaN where it means nothing."""
    weight = np.ones(target.shape) if weight is None else weight
    used = [i for i in np.ndindex(target.shape) if weight[i] > 0.0]
    if len(used) < 2:
        return math.nan

    def spread(read):
        total = math.fsum(float(weight[i]) for i in used)
        mean = math.fsum(float(weight[i]) * read(i) for i in used) / total
        return math.fsum(float(weight[i]) * (read(i) - mean) ** 2 for i in used) / total

    whole = spread(lambda i: float(target[i]))
    # the distance of 1 from its neighbour in the target's own type, eight times
    rounding = 8.0 * float(np.finfo(target.dtype).eps) * max(abs(float(target[i])) for i in used)
    if math.sqrt(whole) <= rounding:
        return math.nan
    return 1.0 - spread(lambda i: float(target[i]) - float(value[i])) / whole


def slope(y, x=None):
    """Least squares: sum (x - mean x)(y - mean y) / sum (x - mean x)^2, for each row."""
    n = y.shape[-1]
    x = [float(k) for k in range(n)] if x is None else [float(v) for v in x]
    centre = math.fsum(x) / n
    below = math.fsum((v - centre) ** 2 for v in x)
    out = np.empty(y.shape[:-1])
    for i in np.ndindex(out.shape):
        level = math.fsum(float(v) for v in y[i]) / n
        above = math.fsum((x[k] - centre) * (float(y[i][k]) - level) for k in range(n))
        out[i] = above / below
    return out


def _median(values):
    """The middle value, or the mean of the two middle values."""
    ordered = sorted(float(v) for v in values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def median_absolute_deviation_std(x):
    """1.4826 times the median distance from the median, for each row."""
    out = np.empty(x.shape[:-1])
    for i in np.ndindex(out.shape):
        centre = _median(x[i])
        out[i] = 1.4826 * _median([abs(float(v) - centre) for v in x[i]])
    return out
