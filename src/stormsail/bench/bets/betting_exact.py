"""Exact solutions of the betting game: best CVaR, best mean under a limit, any policy's tail.

Every reachable wealth of every bet is enumerated (11,108 of them in the game of the paper), so a
policy is a table [S_t, A] for each bet t, distributions of the final wealth are sums, and optima
are computed by dynamic programming in float64.

For a fixed level nu,

    max over policies of nu + E[min(W - nu, 0)] / alpha

is an expected utility of the final wealth W, and the largest of these over nu is the largest CVaR
(Bäuerle & Ott 2011, Math. Methods Oper. Res. 74:361-379, from the variational form of Rockafellar &
Uryasev 2000). Wealth is in the state here, so the state needs no cap of its own. A policy's CVaR is
taken at a nu that is one of its outcomes, so the reachable final wealths are all levels that need
to be tried.

Wealth is counted from 0 in this file's tables; `Tail` counts returns, wealth less that of the
start.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stormsail.bench.bets.betting_game import BettingGame, BettingRules
from stormsail.functional import risk
from stormsail.modules.agent import Agent

Array = NDArray[np.float64]
Policy = Sequence[Array]
"""For each bet, probabilities of the actions at each wealth of `Tree.wealth`, [S_t, A]."""

_TOLERANCE = 1e-9
"""Differences below this, in tokens, are rounding."""

_LEVELS_AT_ONCE = 64
"""Levels that are solved together: more need more memory and are no faster."""


class Tail(NamedTuple):
    """Return of a policy in tokens, exact."""

    mean: float
    cvar: float
    value_at_risk: float


@dataclass(frozen=True, eq=False)
class Tree:
    """All reachable wealths and where every bet leads."""

    rules: BettingRules
    wealth: tuple[Array, ...]
    """[S_t], ascending, before bet t and after the last one: H + 1 of them."""
    after: tuple[NDArray[np.int64], ...]
    """[2, S_t, A]: place in `wealth[t + 1]` after the bet paid, and after it was lost."""

    @classmethod
    def of(cls, rules: BettingRules) -> "Tree":
        """Return the tree of a game. Wealths 0 and the largest stay as they are: stakes are 0."""
        wealth, after = [np.array([rules.tokens])], []
        for _ in range(rules.bets):
            now = wealth[-1][:, None]
            stake = np.minimum(now * np.arange(rules.parts + 1) / rules.parts, rules.most - now)
            both = np.stack((now + stake, now - stake))  # [2, S, A]
            values, places = np.unique(both, return_inverse=True)
            wealth.append(values)
            after.append(places.reshape(both.shape))
        return cls(rules, tuple(wealth), tuple(after))

    @property
    def final(self) -> Array:
        """Reachable final wealths, [S_H]."""
        return self.wealth[-1]

    def distribution(self, policy: Policy) -> Array:
        """Return the probabilities of `final` under a policy, [S_H]."""
        chance = np.ones(1)
        for after, chosen, following in zip(self.after, policy, self.wealth[1:], strict=True):
            joint = chance[:, None] * chosen
            parts = (self.rules.win * joint, (1.0 - self.rules.win) * joint)
            chance = np.zeros(len(following))
            for place, part in zip(after, parts, strict=True):
                np.add.at(chance, place, part)
        return chance

    def tail(self, policy: Policy, *, alpha: float) -> Tail:
        """Return mean, CVaR and quantile of a policy's return."""
        chance = self.distribution(policy)
        atoms = torch.from_numpy(self.final - self.rules.tokens)
        probs = torch.from_numpy(chance)
        return Tail(
            mean=float(probs @ atoms),
            cvar=float(risk.categorical_cvar(probs, atoms, alpha=alpha)),
            value_at_risk=float(risk.categorical_value_at_risk(probs, atoms, alpha=alpha)),
        )


@functools.cache
def tree_of(rules: BettingRules) -> Tree:
    """Return the tree of a game, computed once."""
    return Tree.of(rules)


def agent_policy(agent: Agent, rules: BettingRules, *, greedy: bool) -> Policy:
    """Return the table of an agent without memory: what it draws from, or its likeliest action."""
    tree, table = tree_of(rules), []
    for done, wealth in enumerate(tree.wealth[:-1]):
        game = BettingGame(len(wealth), rules)
        seen = game.observe(torch.full((len(wealth),), done), torch.from_numpy(wealth).float())
        memory = agent.initial_memory(len(wealth))
        logits = agent.decide(seen, memory, deterministic=True).parameters.double()
        chosen = logits.softmax(-1)
        if greedy:
            chosen = torch.nn.functional.one_hot(logits.argmax(-1), rules.parts + 1).double()
        table.append(chosen.numpy())
    return table


class Utilities(NamedTuple):
    """Results of N problems at the start of the game, each solved by its own best policy."""

    mean: Array
    """Final wealth, [N]."""
    shortfall: Array
    """E[min(W - nu, 0)], [N]."""


def solve(tree: Tree, levels: Array, mean_weight: Array, shortfall_weight: Array) -> Utilities:
    """Maximise mean_weight E[W] + shortfall_weight E[min(W - nu, 0)] over all policies.

    Dynamic programming backwards over the tree, for N levels nu and pairs of weights at once.

    Args:
        tree: of the game.
        levels: nu, as wealth, [N].
        mean_weight: [N].
        shortfall_weight: [N].
    """
    mean = np.broadcast_to(tree.final, (len(levels), len(tree.final)))
    shortfall = np.minimum(tree.final - levels[:, None], 0.0)
    chance = tree.rules.win
    for pays, loses in reversed(tree.after):
        means = chance * mean[:, pays] + (1.0 - chance) * mean[:, loses]  # [N, S, A]
        shortfalls = chance * shortfall[:, pays] + (1.0 - chance) * shortfall[:, loses]
        utility = mean_weight[:, None, None] * means + shortfall_weight[:, None, None] * shortfalls
        best = utility.argmax(-1)[..., None]
        mean = np.take_along_axis(means, best, -1)[..., 0]
        shortfall = np.take_along_axis(shortfalls, best, -1)[..., 0]
    return Utilities(mean[:, 0], shortfall[:, 0])


class _Bound(NamedTuple):
    """Values at some levels, and how fast they can rise on either side of each."""

    value: Array
    """-inf where no policy fits the level."""
    slack: Array
    """By how much a constraint is met there at best; below 0 where none fits."""
    right: Array
    """Largest rise of the value for each token to the right."""
    left: Array
    """And to the left."""


def _largest(levels: Array, bound: Callable[[Array], _Bound], *, alpha: float) -> float:
    """Return the largest value over ascending levels.

    Branch and bound: what was computed at two neighbours bounds everything between them, and the
    middle of a gap is computed only while its bound exceeds the best value so far.
    """
    known: list[int] = []
    fresh = sorted({round(place) for place in np.linspace(0, len(levels) - 1, _LEVELS_AT_ONCE)})
    table = np.full((len(_Bound._fields), len(levels)), np.nan)
    while fresh:
        for start in range(0, len(fresh), _LEVELS_AT_ONCE):
            part = fresh[start : start + _LEVELS_AT_ONCE]
            table[:, part] = bound(levels[part])
        known = sorted({*known, *fresh})
        best = np.nanmax(table[0]) + _TOLERANCE
        fresh = [
            (low + high) // 2
            for low, high in itertools.pairwise(known)
            if high - low > 1
            and _highest(table[:, low], table[:, high], levels[high] - levels[low], alpha) > best
        ]
    return float(np.nanmax(table[0]))


def _highest(low: Array, high: Array, gap: float, alpha: float) -> float:
    """Return a bound on all values in a gap, from what was computed at its two ends.

    Slack rises by at most 1 for each token to the right and 1 / alpha - 1 to the left.
    """
    value, slack, right, _ = low
    from_low = value + right * gap if slack >= 0.0 else _if_met(slack + gap)
    value, slack, _, left = high
    from_high = value + left * gap if slack >= 0.0 else _if_met(slack + gap * (1.0 / alpha - 1.0))
    return float(min(from_low, from_high))


def _if_met(slack: float) -> float:
    return np.inf if slack >= 0.0 else -np.inf


@functools.cache
def best_cvar(rules: BettingRules, *, alpha: float) -> float:
    """Return the largest CVaR of the return that any policy has.

    As a function of nu, nu + E[min(W - nu, 0)] / alpha rises by at most 1 and falls by at most
    1 / alpha - 1 for each token, whatever the policy; so does the largest over policies.
    """
    tree = tree_of(rules)

    def bound(levels: Array) -> _Bound:
        ones = np.ones_like(levels)
        value = levels + solve(tree, levels, 0.0 * ones, ones).shortfall / alpha
        return _Bound(value, 0.0 * ones, ones, (1.0 / alpha - 1.0) * ones)

    return _largest(tree.final, bound, alpha=alpha) - rules.tokens


@functools.cache
def best_mean(rules: BettingRules, *, alpha: float, limit: float) -> float:
    """Return the largest mean return of a policy whose CVaR is at least `limit`; -inf for none.

    For each nu a linear program over occupancies with one constraint, solved by its dual

        min_lambda max_policy E[W] + lambda (nu + E[min(W - nu, 0)] / alpha - L)

    and the best nu is taken. The dual's optimal lambda bounds the slope in nu: at another nu the
    same lambda is a bound from above, which moves by at most lambda to the right and
    lambda (1 / alpha - 1) to the left.
    """
    tree = tree_of(rules)
    floor = limit + rules.tokens

    levels = tree.final[tree.final >= floor]  # a CVaR of at least L needs a nu of at least L
    if not len(levels):
        return -np.inf

    def bound(levels: Array) -> _Bound:
        return _constrained(tree, levels, alpha=alpha, floor=floor)

    return _largest(levels, bound, alpha=alpha) - rules.tokens


def _constrained(tree: Tree, levels: Array, *, alpha: float, floor: float) -> _Bound:
    """Return the largest mean with nu + E[min(W - nu, 0)] / alpha >= floor at each level nu.

    Policies are points (slack of the constraint, mean). The search goes along the upper edge of
    their convex hull to the segment over slack 0: two ends of a segment have a multiplier at which
    they are equally good, and where no policy is better there, the segment is the edge. The value
    on it is that of a mixture of the two.
    """
    ones = np.ones_like(levels)

    def point(mean_weight: Array, slack_weight: Array) -> tuple[Array, Array]:
        result = solve(tree, levels, mean_weight, slack_weight / alpha)
        return levels + result.shortfall / alpha - floor, result.mean

    low_slack, low_mean = point(ones, 0.0 * ones)
    high_slack, high_mean = point(0.0 * ones, ones)
    most = high_slack
    free, impossible = low_slack >= -_TOLERANCE, high_slack < -_TOLERANCE
    settled = free | impossible
    multiplier = np.zeros_like(levels)
    while not settled.all():
        width = np.where(settled, 1.0, high_slack - low_slack)
        multiplier = np.where(settled, multiplier, (low_mean - high_mean) / width)
        slack, mean = point(ones, multiplier)
        gain = mean + multiplier * slack - (low_mean + multiplier * low_slack)
        settled |= gain <= _TOLERANCE
        below, above = ~settled & (slack < 0.0), ~settled & (slack >= 0.0)
        low_slack, low_mean = np.where(below, (slack, mean), (low_slack, low_mean))
        high_slack, high_mean = np.where(above, (slack, mean), (high_slack, high_mean))
    value = np.where(impossible, -np.inf, low_mean + multiplier * low_slack)
    return _Bound(
        value,
        slack=np.where(impossible, most, 0.0),
        right=multiplier,
        left=multiplier * (1.0 / alpha - 1.0),
    )
