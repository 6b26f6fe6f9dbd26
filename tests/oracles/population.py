"""Rules of population-based training, member by member, in plain Python.

Definitions: Jaderberg et al. 2017 (arXiv:1711.09846), with the ranks, counts and neighbours that
`functional.population` says are ours.
"""

import math


def is_better(first, second, mode):
    """Whether a fitness is better than another; an unknown one is the worst."""
    if math.isnan(first):
        return False
    if math.isnan(second):
        return True
    return first > second if mode == "max" else first < second


def ranking(fitness, mode):
    """Members by repeated search for the best one left; the first of equals."""
    left, order = list(range(len(fitness))), []
    while left:
        best = left[0]
        for member in left[1:]:
            if is_better(fitness[member], fitness[best], mode):
                best = member
        order.append(best)
        left.remove(best)
    return order


def truncation_count(n, ratio):
    """Largest whole number of at most ratio * n, at least one, at most half of all."""
    count = 0
    while count + 1 <= ratio * n:
        count += 1
    return min(n // 2, max(1, count))


def truncation_sources(order, uniform, ratio):
    """Bottom members copy the top member into whose part of [0, 1) their draw falls."""
    count = truncation_count(len(order), ratio)
    sources = list(range(len(order)))
    if count == 0:
        return sources
    for member in order[len(order) - count :]:
        part = next(k for k in range(count) if uniform[member] < (k + 1) / count)
        sources[member] = order[part]
    return sources


def tournament_sources(fitness, uniform, mode):
    """Each member meets one of the others and copies it if it is better."""
    sources = []
    for member in range(len(fitness)):
        others = [other for other in range(len(fitness)) if other != member]
        source = member
        if others:
            part = next(k for k in range(len(others)) if uniform[member] < (k + 1) / len(others))
            if is_better(fitness[others[part]], fitness[member], mode):
                source = others[part]
        sources.append(source)
    return sources


def resampled(uniform, low, high, is_log):
    """A point between the bounds, or between their logarithms."""
    if is_log:
        value = math.exp(math.log(low) + (math.log(high) - math.log(low)) * uniform)
    else:
        value = low + (high - low) * uniform
    return min(max(value, low), high)


def explored(value, uniform, probability, factor, low, high, is_log):
    """Drawn anew, or one factor up or down within the bounds."""
    if uniform[0] < probability:
        return resampled(uniform[1], low, high, is_log)
    moved = value * factor if uniform[2] < 0.5 else value / factor
    return min(max(moved, low), high)


def explored_choice(index, uniform, probability, count):
    """Drawn anew, or the choice behind or before it; an end stays an end."""
    if uniform[0] < probability:
        return next(k for k in range(count) if uniform[1] < (k + 1) / count)
    moved = index + 1 if uniform[2] < 0.5 else index - 1
    return index if moved < 0 or moved >= count else moved


def smoothed(raw, before, beta):
    """A moving average that begins with its first value."""
    return [
        new if math.isnan(old) else beta * old + (1.0 - beta) * new
        for new, old in zip(raw, before, strict=True)
    ]


def limited_key(score, breach, mode):
    """What agents under a limit are sorted by, best last: the breach first, then the score."""
    sign = 1.0 if mode == "max" else -1.0
    return (-breach, sign * score if breach == 0.0 else 0.0)
