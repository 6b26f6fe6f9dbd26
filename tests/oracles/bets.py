"""The best mean under a limit on CVaR in a tiny world of bets, by trying every policy.

A deterministic policy gives a level to every history (payoffs and regimes so far); its returns are
a list of pairs of chance and sum. Every policy is a mixture of these. For one threshold nu the best
mixture is a linear programme with one weight for each, written out here. Float64 loops; stormsail
is not imported.
"""

import itertools

import numpy as np
from scipy.optimize import linprog


def policies(*, bars, levels, payoffs, moves, pay, ruin=-np.inf):
    """Return the returns of every deterministic policy: lists of (chance, sum).

    Args:
        bars: in an episode.
        levels: on offer.
        payoffs: by regime, pairs of chance and payoff.
        moves: chances of the next regime, by regime.
        pay: function of level, payoff, sum so far and level before; what a bar makes.
        ruin: a sum at or below it ends the episode.
    """

    def go_on(bar, regime, total, before):
        if bar == bars or total <= ruin:
            return [[(1.0, total)]]
        ways = []
        for level in levels:
            branches = []
            for chance, payoff in payoffs[regime]:
                after = total + pay(level, payoff, total, before)
                for following, move in enumerate(moves[regime]):
                    if move > 0.0:
                        rest = go_on(bar + 1, following, after, level)
                        branches.append([[(chance * move * p, g) for p, g in way] for way in rest])
            ways += [list(itertools.chain(*parts)) for parts in itertools.product(*branches)]
        return ways

    return go_on(0, 0, 0.0, 0.0)


def best_mean(ways, *, alpha, limit):
    """Return the largest mean of a mixture whose CVaR is at least the limit."""
    totals = sorted({round(total, 9) for way in ways for _, total in way})
    means = np.array([sum(p * g for p, g in way) for way in ways])
    best = -np.inf
    for nu in totals:
        short = np.array([sum(p * min(g - nu, 0.0) for p, g in way) for way in ways])
        result = linprog(
            -means,
            A_ub=[-(short / alpha)],
            b_ub=[nu - limit],
            A_eq=[np.ones(len(ways))],
            b_eq=[1.0],
        )
        if result.status == 0:
            best = max(best, -result.fun)
    return best


def mean_and_cvar(returns, *, alpha):
    """Return the mean of (chance, sum) pairs and the mean of their worst share, by hand."""
    left, tail = alpha, 0.0
    for chance, total in sorted(returns, key=lambda pair: pair[1]):
        taken = min(chance, left)
        tail += taken * total
        left -= taken
    return sum(p * g for p, g in returns), tail / alpha
