"""Student's interval and paired test in slow loops, from the density of Student's t.

Student 1908, The Probable Error of a Mean, Biometrika 6(1):1-25.
"""

import math

STEPS = 4000


def density(t, freedom):
    """Density of Student's t with this many degrees of freedom."""
    log_scale = (
        math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    )
    return math.exp(log_scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def below(t, freedom):
    """P(T <= t), by Simpson's rule from 0, where half of the mass lies below."""
    step = t / STEPS
    total = density(0.0, freedom) + density(t, freedom)
    for place in range(1, STEPS):
        total += (4 if place % 2 else 2) * density(place * step, freedom)
    return 0.5 + total * step / 3


def quantile(level, freedom):
    """The t with P(T <= t) = level, by halving."""
    low, high = -1000.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle, freedom) < level else (low, middle)
    return (low + high) / 2


def mean_and_error(values):
    """Mean, and its standard error with n - 1."""
    n = len(values)
    mean = math.fsum(values) / n
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1) / n)


def mean_interval(values, confidence):
    """Interval of the mean that leaves out half of the rest on each side."""
    mean, error = mean_and_error(values)
    half = quantile(1.0 - (1.0 - confidence) / 2, len(values) - 1) * error
    return mean - half, mean + half


def paired_p_value(first, second):
    """P(T >= t) of the differences, and at least the chance of n equal signs."""
    mean, error = mean_and_error([b - a for a, b in zip(first, second, strict=True)])
    n = len(first)
    return max(1.0 - below(mean / error, n - 1), math.prod([0.5] * n))
