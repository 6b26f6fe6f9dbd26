"""Gradient noise from a tensor's whole history of gradients, in plain float64 Python.

Nothing is carried from step to step: the weight of gradient j of k is
w_j = (1 - beta) beta^(k - j) / (1 - beta^k), every average is a sum over the history, and W = sum
of w_j^2 is added up, not taken from its closed form.
"""

import math

import numpy as np

EPS_REL = 1e-3


def weights(k, beta):
    return [(1.0 - beta) * beta ** (k - j) / (1.0 - beta**k) for j in range(1, k + 1)]


def _noise_and_signal(second, first_squared, w):
    """Return variance and squared mean from E[x^2] and (estimated mean)^2, both corrected."""
    spent = math.fsum(x * x for x in w)
    if spent == 1.0:  # one gradient is all there is: nothing to compare it with
        return 0.0, first_squared
    variance = max(0.0, second - first_squared) / (1.0 - spent)
    return variance, max(0.0, first_squared - spent * variance)


def _ratio(variance, signal, second, eps_rel):
    floor = signal + eps_rel * second
    return variance / floor if floor > 0.0 else 0.0


def scalar_series(values, beta, eps_rel=EPS_REL):
    """Return variance and ratio of a series of numbers: `mean` and `norm` reduce to this."""
    w = weights(len(values), beta)
    second = math.fsum(x * v * v for x, v in zip(w, values, strict=True))
    first = math.fsum(x * v for x, v in zip(w, values, strict=True))
    variance, signal = _noise_and_signal(second, first * first, w)
    return variance, _ratio(variance, signal, second, eps_rel)


def elementwise(history, beta, eps_rel=EPS_REL):
    """Return the mean over elements of the variance in time, and its ratio to the signal."""
    w = weights(len(history), beta)
    flat = [np.asarray(g, dtype=np.float64).ravel() for g in history]
    n = flat[0].size
    second = math.fsum(
        x * math.fsum(float(v) ** 2 for v in g) / n for x, g in zip(w, flat, strict=True)
    )
    squares = []
    for i in range(n):
        first = math.fsum(x * float(g[i]) for x, g in zip(w, flat, strict=True))
        squares.append(first * first)
    variance, signal = _noise_and_signal(second, math.fsum(squares) / n, w)
    return variance, _ratio(variance, signal, second, eps_rel)


def mean(history, beta, eps_rel=EPS_REL):
    """v3.0: the variance in time of the tensor's mean."""
    return scalar_series([float(np.mean(g)) for g in history], beta, eps_rel)


def norm(history, beta, eps_rel=EPS_REL):
    """The variance in time of the tensor's length."""
    return scalar_series([float(np.sqrt(np.sum(g * g))) for g in history], beta, eps_rel)


def total(history, beta, eps_rel=EPS_REL):
    """v3.1: the variance over time and elements together, against the square of their one mean.

    Var_t(mean_i g) + E_t[Var_i g], which is E[g^2] - E[g]^2 over both. Only the first term is
    estimated from a mean that was itself estimated, so only it is corrected.
    """
    w = weights(len(history), beta)
    if math.fsum(x * x for x in w) == 1.0:  # as everywhere: one gradient shows no noise
        return 0.0, 0.0
    means = [float(np.mean(g)) for g in history]
    between, _ = scalar_series(means, beta, eps_rel)
    within = math.fsum(x * float(np.var(g)) for x, g in zip(w, history, strict=True))
    first = math.fsum(x * m for x, m in zip(w, means, strict=True))
    second = math.fsum(x * float(np.mean(g * g)) for x, g in zip(w, history, strict=True))
    signal = max(0.0, first * first - math.fsum(x * x for x in w) * between)
    return between + within, _ratio(between + within, signal, second, eps_rel)


def elementwise_full(history, beta, eps_rel=EPS_REL):
    """Every element by itself; the ratio is the 90th percentile over them."""
    flat = np.array([np.asarray(g, dtype=np.float64).ravel() for g in history])
    each = [scalar_series([float(v) for v in column], beta, eps_rel) for column in flat.T]
    variances, ratios = zip(*each, strict=True)
    return math.fsum(variances) / len(variances), float(
        np.percentile(ratios, 90.0, method="inverted_cdf")
    )


def microbatch(steps, beta, eps_rel=EPS_REL):
    """The disagreement of the parts of each step, averaged over steps with the moving weights.

    A step's gradient is the mean of its M parts. Its noise is the unbiased variance of a part over
    M, and the square of the true gradient is the mean square less that noise.
    """
    w = weights(len(steps), beta)
    variance = second = 0.0
    for x, parts in zip(w, steps, strict=True):
        flat = [np.asarray(g, dtype=np.float64).ravel() for g in parts]
        M, n = len(flat), flat[0].size
        centre = [math.fsum(float(g[i]) for g in flat) / M for i in range(n)]
        spread = math.fsum((float(g[i]) - centre[i]) ** 2 for g in flat for i in range(n))
        variance += x * spread / (M - 1) / M / n
        second += x * math.fsum(c * c for c in centre) / n
    return variance, _ratio(variance, max(0.0, second - variance), second, eps_rel)


def slow_median(variances, beta, warmup=1):
    """Return the slow median after each variance: steps in logarithms, up or down.

    Step k has the length of the newest weight of k values under a memory ten times as long as
    beta's, counted from the last of the warm-up; up to that one, and until there is a variance
    above 0, the variance is taken over.
    """
    slow = 1.0 - (1.0 - beta) / 10.0
    median, path = 0.0, []
    for k, value in enumerate(variances, start=1):
        if median == 0.0 or k <= warmup:
            median = value
        elif value != median:
            step = weights(k - warmup + 1, slow)[-1]
            median = math.exp(math.log(median) + (step if value > median else -step))
        path.append(median)
    return path


def excess(variance, median):
    """Return by how much a variance exceeds its median, as a share of it."""
    return max(0.0, variance / median - 1.0) if median > 0.0 else 0.0


def factor(ratio, *, alpha=0.1, cap=50.0, least=0.5):
    """Return the shrinkage of one tensor, never above 1."""
    return min(1.0, max(least, 1.0 / (1.0 + alpha * min(ratio, cap))))
