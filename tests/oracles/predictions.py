"""Predicted and realised returns in plain loops from the definitions. float64 throughout.

Predicted at decision t: the distribution of r_t + g r_{t+1} + g² r_{t+2} + ..., where r is the log
of equity over what it was one bar before. Equities are those of one account, one more than there
are bars. What an account that was stopped returns was predicted by no critic.
"""

import math
from itertools import pairwise


def horizon(discount, left_out):
    """Fewest bars after which at most that share of the weight 1 + g + g² + ... is still to come.

    The weight after h bars is g^h / (1 - g), of 1 / (1 - g) in all.
    """
    bars, weight = 1, discount
    while weight > left_out * (1.0 + 1e-12):
        bars, weight = bars + 1, weight * discount
    return bars


def reward(before, after, *, floor, penalty=0.0, clip=None):
    """One bar of an account, by the rules of its market."""
    growth = math.log(max(after, floor) / max(before, floor))
    if after <= floor:
        growth -= penalty
    if clip is not None:
        growth = min(max(growth, -clip), clip)
    return growth


def realised(equity, stopped, first, bars, discount, **rules):
    """The discounted sum over the window that begins with decision `first`."""
    total, weight = 0.0, 1.0
    for step in range(first, first + bars):
        if not stopped[step]:
            total += weight * reward(equity[step], equity[step + 1], **rules)
        weight *= discount
    return total


def spread_quantile(probabilities, atoms, level):
    """The point below which `level` of the mass lies, each atom's spread evenly over its cell.

    Cells meet half-way between atoms; the outer ones reach as far out as in.
    """
    inner = [(a + b) / 2 for a, b in pairwise(atoms)]
    edges = [2 * atoms[0] - inner[0], *inner, 2 * atoms[-1] - inner[-1]]
    total = sum(probabilities)
    below = 0.0
    for place, mass in enumerate(probabilities):
        share = mass / total
        if share > 0.0 and below + share >= level:
            fraction = (level - below) / share
            return edges[place] + fraction * (edges[place + 1] - edges[place])
        below += share
    return edges[-1]


def regime(moves, now, *, window, least):
    """Calm, usual or stormy: where the last `window` moves rank among all such spells so far.

    `moves[i]` is the move over bar i; `now` of them have been seen. Empty with fewer than `least`
    spells to rank among.
    """

    def size(end):
        spell = [moves[i] for i in range(end - window, end)]
        return math.sqrt(sum(move * move for move in spell) / window)

    ends = range(window, now + 1)
    if len(ends) < least:
        return ""
    seen = sorted(size(end) for end in ends)
    here = size(now)
    below = sum(other < here for other in seen)
    equal = sum(other == here for other in seen)
    place = (below + (equal + 1) / 2) / len(seen)  # the middle of its ties
    return "calm" if place <= 1 / 3 else "usual" if place <= 2 / 3 else "stormy"


def fan(returns, draws, marks, levels):
    """Quantiles over resampled paths of what one unit of money became by each mark.

    `draws` holds one list of bar numbers for each path; the mark m is the money after m bars.
    Between two ranks a quantile is linear.
    """
    worth = []
    for path in draws:
        money, known = 1.0, {0: 1.0}
        for count, bar in enumerate(path, start=1):
            money *= 1.0 + returns[bar]
            known[count] = money
        worth.append([known[mark] for mark in marks])
    bands = []
    for level in levels:
        band = []
        for place in range(len(marks)):
            ranked = sorted(path[place] for path in worth)
            rank = level * (len(ranked) - 1)
            low = math.floor(rank)
            high = min(low + 1, len(ranked) - 1)
            band.append(ranked[low] + (rank - low) * (ranked[high] - ranked[low]))
        bands.append(band)
    return bands
