r"""Bets solved exactly: the best mean under a limit on CVaR, and what a trained policy makes.

**Best mean.** Over all policies that see time, regime, return so far and level,

.. math:: \max_\pi E[G] \quad\text{subject to}\quad
          \max_\nu\; \nu + E[\min(G - \nu, 0)] / \alpha \ge L

(Rockafellar & Uryasev 2000, Theorem 1, with the sign of a return). For one nu this is a linear
programme over occupancy measures with one constraint, so its optimum is the least value of
:math:`\max_\pi E[G] + \lambda (\nu + E[\min(G - \nu, 0)]/\alpha - L)` over lambda, and a mixture of
two policies that are best for the same lambda reaches it. Each is computed by dynamic programming
backwards over the reachable totals. The largest over nu is the answer; it lies at a reachable
total, and not below L.

Totals far below every nu are kept together, without an error: from a total that no gain can bring
back to nu, both values are the total plus a number that does not depend on it.

**A trained policy.** The distribution over regime, total and level is carried forward bar by bar
with the probabilities that the agent gives to its actions in each of these states.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stormsail.bench.bets.bets_worlds import Bets, World
from stormsail.core.errors import RangeError
from stormsail.functional import risk
from stormsail.modules.agent import Agent

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

EPISODES = 2**18
"""Drawn where a distribution cannot be carried forward."""

_DRAWN_SEED = 11
_SIDE_BY_SIDE = 2**14

_RESOLUTION = 1e-7
"""Totals closer than this are one."""

_NEGLIGIBLE = 1e-15
"""States of a trained policy that are less likely are left out; what that can change is given."""


class Solution(NamedTuple):
    """The best policy under a limit."""

    mean: float
    """E[G]."""
    value_at_risk: float
    """nu."""
    multiplier: float
    """lambda: what a unit of the limit costs in mean."""
    free_mean: float
    """Of the best policy without a limit."""


class _Layer(NamedTuple):
    """Nodes (total, level, ended) that can be reached before a bar, and where they lead."""

    total: Floats
    """[n]."""
    place: Places
    """Node of the next layer, [R, n, A, O]."""
    shift: Floats
    """What the total of that node leaves out, [R, n, A, O]."""


@dataclass(frozen=True, eq=False)
class _Nodes:
    layers: list[_Layer]
    ends: Floats
    """Totals after the last bar, [n]."""
    shares: Floats
    """Probabilities of payoffs, [R, O]."""
    moves: Floats
    """Of the next regime, [R, R]."""


class _Point(NamedTuple):
    """Mean and nu + E[min(G - nu, 0)] / alpha of a policy."""

    mean: float
    tail: float


def _payoff_table(world: World) -> tuple[Floats, Floats]:
    """Return probabilities and payoffs of all regimes, [R, O]; missing ones have probability 0."""
    width = max(map(len, world.payoffs))
    table = np.zeros((2, world.regimes, width))
    for regime, pairs in enumerate(world.payoffs):
        table[:, regime, : len(pairs)] = np.array(pairs).T
    return table[0], table[1]


def _children(
    world: World, payoffs: Floats, total: Floats, position: Places, ended: NDArray[np.bool_]
) -> Floats:
    """Return the totals after a bar, [R, n, A, O]; an episode that ended keeps its own."""
    levels = np.array(world.levels)
    before = np.append(levels, 0.0)[position]  # the place after the last level is the start's
    reward = world.reward(
        levels[None, None, :, None],
        payoffs[:, None, None, :],
        total[None, :, None, None],
        before[None, :, None, None],
    )
    return total[None, :, None, None] + np.where(ended[None, :, None, None], 0.0, reward)


def _keys(total: Floats, position: Places, ended: NDArray[np.bool_], levels: int) -> Places:
    whole = np.rint(total / _RESOLUTION).astype(np.int64)
    return (whole * (levels + 1) + position) * 2 + ended


def _nodes(world: World) -> _Nodes:
    """Enumerate what can be reached, with totals below a floor kept together."""
    shares, payoffs = _payoff_table(world)
    levels = len(world.levels)
    floor = -math.inf
    if world.wealth is None:
        gain = max(0.0, float(np.multiply.outer(world.levels, payoffs).max()))
        floor = world.limit - world.bars * gain
        if math.isfinite(world.ruin):  # whether an episode goes on depends on the total above it
            floor = min(floor, world.ruin)
    total, position = np.zeros(1), np.array([levels])
    ended = np.zeros(1, dtype=bool)
    layers = []
    for _ in range(world.bars):
        true = _children(world, payoffs, total, position, ended)
        child = np.maximum(true, floor)
        new_position = np.broadcast_to(position[None, :, None, None], child.shape)
        if world.has_position:
            new_position = np.broadcast_to(np.arange(levels)[None, None, :, None], child.shape)
        new_ended = ended[None, :, None, None] | (true <= world.ruin)
        keys = _keys(child, new_position, new_ended, levels)
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        layers.append(_Layer(total, place.reshape(child.shape), true - child))
        total = child.reshape(-1)[first]
        position, ended = new_position.reshape(-1)[first], new_ended.reshape(-1)[first]
    return _Nodes(layers, total, shares, np.array(world.moves))


def _best_response(nodes: _Nodes, *, nu: float, weight: float) -> tuple[float, float]:
    """Return E[G] and E[min(G - nu, 0)] of the policy that is best for their weighted sum.

    Args:
        nodes: reachable states.
        nu: threshold.
        weight: of the shortfall, lambda / alpha; infinity looks at the mean between equals only.
    """
    mean_weight = 1.0 if math.isfinite(weight) else 1e-9
    short_weight = weight if math.isfinite(weight) else 1.0
    mean = np.broadcast_to(nodes.ends, (len(nodes.moves), len(nodes.ends)))
    short = np.minimum(mean - nu, 0.0)
    for layer in reversed(nodes.layers):
        mean_after, short_after = nodes.moves @ mean, nodes.moves @ short  # [R, n']
        means, shorts = [], []
        for regime, share in enumerate(nodes.shares):
            place, shift = layer.place[regime], layer.shift[regime] @ share  # [n, A, O], [n, A]
            q_mean = mean_after[regime][place] @ share + shift
            q_short = short_after[regime][place] @ share + shift
            action = (mean_weight * q_mean + short_weight * q_short).argmax(-1)[:, None]
            means.append(np.take_along_axis(q_mean, action, -1)[:, 0])
            shorts.append(np.take_along_axis(q_short, action, -1)[:, 0])
        mean, short = np.stack(means), np.stack(shorts)
    return float(mean[0, 0]), float(short[0, 0])


class _AtThreshold:
    """The best mean for one nu.

    Attributes:
        duals: pairs of a lambda and the largest Lagrangian at it. Each is at least the best mean.
        best: the best mean and its lambda; None if no policy keeps the limit, or if it was clear
            that the mean is below `floor`.
    """

    def __init__(
        self, nodes: _Nodes, world: World, nu: float, *, floor: float, guess: float
    ) -> None:
        self._nodes, self._world, self.nu = nodes, world, nu
        self.duals: list[tuple[float, float]] = []
        self.best = self._search(floor, guess)

    def _point(self, multiplier: float) -> _Point:
        weight = multiplier / self._world.alpha
        mean, short = _best_response(self._nodes, nu=self.nu, weight=weight)
        tail = self.nu + short / self._world.alpha
        if math.isfinite(multiplier):
            self.duals.append((multiplier, mean + multiplier * (tail - self._world.limit)))
        return _Point(mean, tail)

    def _search(self, floor: float, guess: float) -> tuple[float, float] | None:
        limit = self._world.limit
        middle = self._point(guess)
        if self.duals[0][1] <= floor:
            return None
        bold, careful = self._point(0.0), self._point(math.inf)
        if bold.tail >= limit:
            return bold.mean, 0.0
        if careful.tail < limit - 1e-9:
            return None
        bold, careful = (bold, middle) if middle.tail >= limit else (middle, careful)
        while True:  # each pass adds a vertex of the frontier between the two, or ends
            width = careful.tail - bold.tail
            slope = (bold.mean - careful.mean) / width
            mixed = bold.mean + (limit - bold.tail) / width * (careful.mean - bold.mean)
            vertex = self._point(slope)
            upper = self.duals[-1][1]
            if upper <= floor:
                return None
            if upper - mixed <= 1e-7 * max(1.0, abs(mixed)):
                return mixed, slope
            bold, careful = (bold, vertex) if vertex.tail >= limit else (vertex, careful)

    def bound(self, distance: float) -> float:
        """Return what no mean exceeds for any nu between this one and one so much larger.

        nu + E[min(G - nu, 0)] / alpha grows at most as fast as nu.
        """
        return min(value + multiplier * distance for multiplier, value in self.duals)


@lru_cache(64)
def solve(world: World) -> Solution:
    """Return the best policy under the limit of a world, by branch and bound over nu.

    The mean is that of the best nu to a relative 1e-6.

    Raises:
        RangeError: if no policy keeps the limit.
    """
    nodes = _nodes(world)
    totals = np.unique(nodes.ends)
    candidates = totals[totals >= world.limit - _RESOLUTION].tolist()
    free_mean, _ = _best_response(nodes, nu=0.0, weight=0.0)
    best = Solution(-math.inf, math.nan, 1.0, free_mean)
    intervals: list[tuple[float, int, int, _AtThreshold]] = []

    def visit(place: int, end: int) -> None:
        """Try a candidate, and note what those after it, before `end`, could give."""
        nonlocal best
        margin = 1e-6 * max(1.0, abs(best.mean)) if math.isfinite(best.mean) else 0.0
        tried = _AtThreshold(
            nodes, world, candidates[place], floor=best.mean + margin, guess=best.multiplier
        )
        if tried.best is not None and tried.best[0] > best.mean:
            best = Solution(tried.best[0], tried.nu, tried.best[1], free_mean)
        note(tried, place, end)

    def note(tried: _AtThreshold, place: int, end: int) -> None:
        if end - place > 1:
            bound = tried.bound(candidates[end - 1] - tried.nu)
            heapq.heappush(intervals, (-bound, place, end, tried))

    if candidates:
        visit(0, len(candidates))
    while intervals:
        bound, place, end, tried = heapq.heappop(intervals)
        if -bound <= best.mean + 1e-6 * max(1.0, abs(best.mean)):
            break
        middle = (place + end) // 2
        visit(middle, end)
        note(tried, place, middle)
    if not math.isfinite(best.mean):
        raise RangeError(
            wrong=f"a policy of world `{world.name}` must be able to keep the limit",
            found=f"none for {world.limit:g}",
            remedy="Lower the limit.",
        )
    return best


class Evaluation(NamedTuple):
    """Mean and tail of the episodes of a policy that draws its actions."""

    mean: float
    cvar: float
    value_at_risk: float
    """The alpha-quantile of returns."""
    mean_error: float
    """Standard error; 0 where the distribution was carried forward."""
    cvar_error: float
    """The same, or the most that states left out can change."""


class _States(NamedTuple):
    """Distribution over states before a bar."""

    share: Floats
    """Probability of each, [n]."""
    regime: Places
    total: Floats
    position: Places
    """Place among the levels; the one after the last is the start's."""
    ended: NDArray[np.bool_]

    def of(self, places: Places | NDArray[np.bool_]) -> "_States":
        """Return those at some places."""
        share, regime, total, position, ended = self
        parts = (regime[places], total[places], position[places], ended[places])
        return _States(share[places], *parts)


def evaluate(agent: Agent, world: World) -> Evaluation:
    """Return what an agent makes of a world when it draws its actions.

    Exact for discrete actions and an agent without memory; otherwise from 2^18 episodes.
    """
    if world.continuous or agent.spec.network.memory != "none":
        return _drawn(agent, world)
    return propagate(world, _policy(agent, Bets(world, batch=1)))


Policy = Callable[[int, Places, Floats, Floats], Floats]
"""Probabilities [n, A] by bar, regimes [n], totals [n] and levels before [n]."""


def _policy(agent: Agent, task: Bets) -> Policy:
    @torch.no_grad()
    def probabilities(bar: int, regime: Places, total: Floats, before: Floats) -> Floats:
        numbers = [torch.from_numpy(part).to(task.dtype) for part in (total, before)]
        elapsed = torch.full((len(total),), bar)
        seen = agent.normalised(task.observed(torch.from_numpy(regime), elapsed, *numbers))
        drawn = agent.draw(seen, agent.initial_memory(len(total)), deterministic=True)
        return drawn.parameters.double().softmax(-1).numpy()

    return probabilities


def propagate(world: World, policy: Policy) -> Evaluation:
    """Carry the distribution of a policy forward, and return its mean and tail."""
    shares, payoffs = _payoff_table(world)
    zero = np.zeros(1, dtype=np.int64)
    start = np.array([len(world.levels)])
    states = _States(np.ones(1), zero, np.zeros(1), start, np.zeros(1, dtype=bool))
    lost = 0.0
    for bar in range(world.bars):
        before = np.append(np.array(world.levels), 0.0)[states.position]
        acts = policy(bar, states.regime, states.total, before)
        moved = _moved(world, states, acts, shares, payoffs)
        kept = moved.share > _NEGLIGIBLE
        lost += float(moved.share[~kept].sum())
        states = moved.of(kept)
    return _summary(states, world.alpha, error=lost * _largest_loss(world) / world.alpha)


def _largest_loss(world: World) -> float:
    """Return what an episode can lose at most; all of the wealth where levels are shares of it."""
    if world.wealth is not None:
        return world.wealth
    _, payoffs = _payoff_table(world)
    lowest = min(0.0, float(np.multiply.outer(world.levels, payoffs).min()))
    change = max(world.levels) - min(0.0, *world.levels)
    return world.bars * (world.change_cost * change - lowest)


def _moved(world: World, states: _States, acts: Floats, shares: Floats, payoffs: Floats) -> _States:
    """Return the distribution after a bar."""
    levels, regimes = len(world.levels), world.regimes
    parts: list[list[Any]] = [[], [], [], [], []]
    for regime in range(regimes):
        here = states.regime == regime
        total, position = states.total[here], states.position[here]
        ended = states.ended[here]
        child = _children(world, payoffs[regime : regime + 1], total, position, ended)[0]
        weight = states.share[here][:, None, None] * acts[here][:, :, None] * shares[regime]
        place = np.broadcast_to(position[:, None, None], child.shape)
        if world.has_position:
            place = np.broadcast_to(np.arange(levels)[None, :, None], child.shape)
        over = ended[:, None, None] | (child <= world.ruin)
        for after in range(regimes):
            columns = (weight * world.moves[regime][after], np.full(child.shape, after), child)
            for part, column in zip(parts, (*columns, place, over), strict=True):
                part.append(column.reshape(-1))
    every = _States(*(np.concatenate(part) for part in parts))
    keys = _keys(every.total, every.position, every.ended, levels) * regimes + every.regime
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    share = np.bincount(inverse, weights=every.share, minlength=len(first)).astype(np.float64)
    return every.of(first)._replace(share=share)


def _summary(states: _States, alpha: float, *, error: float) -> Evaluation:
    order = states.total.argsort(kind="stable")
    total, share = states.total[order], states.share[order] / states.share.sum()
    above = np.minimum(share.cumsum(), alpha)
    inside = np.diff(above, prepend=0.0)  # mass of each within the tail
    cvar = float(inside @ total) / alpha
    quantile = float(total[min(int(np.searchsorted(share.cumsum(), alpha)), len(total) - 1)])
    return Evaluation(float(share @ total), cvar, quantile, 0.0, error)


@torch.no_grad()
def _drawn(agent: Agent, world: World) -> Evaluation:
    """Return mean and tail of drawn episodes, with their errors."""
    task = Bets(world, batch=_SIDE_BY_SIDE)
    draws, actions = (torch.Generator().manual_seed(_DRAWN_SEED + k) for k in range(2))
    returns = []
    for _ in range(EPISODES // _SIDE_BY_SIDE):
        state, seen = task.reset(draws)
        memory = agent.initial_memory(task.batch)
        total = torch.zeros(task.batch, dtype=torch.float64)
        running = torch.ones(task.batch, dtype=torch.bool)
        for _ in range(world.bars):
            chosen = agent.decide(seen, memory, deterministic=False, generator=actions)
            state, step = task.step(state, chosen.action, draws)
            total += running * step.reward.double()
            running &= ~(step.terminated | step.truncated)
            seen, memory = step.observation, chosen.memory
        returns.append(total)
    drawn = torch.cat(returns)
    return Evaluation(
        mean=float(drawn.mean()),
        cvar=float(risk.empirical_cvar(drawn, alpha=world.alpha)),
        value_at_risk=float(drawn.sort().values[int(world.alpha * len(drawn))]),
        mean_error=float(drawn.std()) / math.sqrt(len(drawn)),
        cvar_error=float(risk.empirical_cvar_error(drawn, alpha=world.alpha)),
    )
