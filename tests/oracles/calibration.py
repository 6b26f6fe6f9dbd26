"""Coverage, histogram and conformal rank, by loops from their definitions."""

import math
from fractions import Fraction
from itertools import pairwise


def disjoint(starts, horizon):
    """The most windows that share no bar, found by trying every set of them."""
    best = 0
    for mask in range(1 << len(starts)):
        chosen = [s for k, s in enumerate(starts) if mask >> k & 1]
        free = all(b - a >= horizon for a, b in pairwise(chosen))
        best = max(best, len(chosen) if free else 0)
    return best


def coverage(quantiles, realised, column):
    """Share of the windows whose outcome does not exceed the predicted quantile."""
    hits = 0
    for row, y in zip(quantiles, realised, strict=True):
        if y <= sorted(row)[column]:
            hits += 1
    return hits / len(realised)


def cell_shares(quantiles, realised, levels, edges):
    """Share of the outcomes in each cell; an outcome on an edge lies below it."""
    counts = [0] * (len(edges) - 1)
    for row, y in zip(quantiles, realised, strict=True):
        row = sorted(row)
        for m in range(len(edges) - 1):
            low = -math.inf if m == 0 else row[levels.index(edges[m])]
            high = math.inf if m == len(edges) - 2 else row[levels.index(edges[m + 1])]
            if low < y <= high:
                counts[m] += 1
    return [count / len(realised) for count in counts]


def conformal_rank(windows, level):
    """The rank of the error that keeps the next outcome on the safe side, or None."""
    exact = Fraction(level).limit_denominator(10_000) * (windows + 1)
    rank = math.floor(exact) if level < 0.5 else math.ceil(exact)
    return rank if 1 <= rank <= windows else None


def tail(quantiles, realised, alpha):
    """Predicted and realised CVaR, from the atoms of each row and its own value at risk."""
    predicted, realised_tail = [], []
    for row, y in zip(quantiles, realised, strict=True):
        row = sorted(row)
        left, total = alpha, 0.0
        for atom in row:
            mass = min(left, 1.0 / len(row))
            total += mass * atom
            left -= mass
        predicted.append(total / alpha)
        level = row[math.ceil(alpha * len(row) - 1e-9) - 1]
        realised_tail.append(level + min(y - level, 0.0) / alpha)
    return predicted, realised_tail
