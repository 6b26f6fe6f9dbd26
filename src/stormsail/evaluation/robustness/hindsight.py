"""Upper bounds by dynamic programming: the best target weights in hindsight, and the best policy.

The clairvoyant knows every bar; the policy knows the return distribution alone. Both are exact for
proportional costs, in float64. What one bar does to an account is what the simulator does to it
without impact, lots, ticks, minimum notional, limits and liquidation (`docs/life_of_a_bar.md`),
written with shares of equity instead of money:

1. between the last close and the open the position moves with the price: equity is multiplied by
   1 + wG, G the gap, and the weight becomes w(1 + G)/(1 + wG);
2. funding is paid on it: equity times 1 − wρ, weight over the same;
3. the order brings the weight to a level u: equity times `trade_left`;
4. the bar is earned: equity times 1 + uR with R = close/open − 1, and the weight drifts again.

Why weights on a list suffice as states: an order always brings the weight to a level *exactly*,
whatever it had drifted to. So the level of the last order and the prices since tell the weight
held, and the best continuation depends on nothing else. No approximation, no free rebalancing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormsail.core.errors import RangeError, ShapeError

Array = NDArray[np.float64]
Places = NDArray[np.intp]


class ProportionalCosts(NamedTuple):
    """What a fill costs, as shares of the traded notional."""

    fee: float = 0.0
    half_spread: float = 0.0


def trade_left(held: Array, target: Array, costs: ProportionalCosts) -> Array:
    r"""Return what an order from one weight to another leaves of the equity, as a share.

    Buying D of quote currency at a half spread h and a fee f costs D·c, c = h + f(1 + h); selling
    costs h + f(1 − h), because the fee is taken on the filled notional. The order is as large as
    makes the weight right *after* its costs: q + sD = u(E − Dc), with s the side. In shares of
    equity, from w to u,

    $$D = \frac{|u - w|}{1 + s\,u\,c},\qquad \text{left} = 1 - D\,c,$$

    and where the position is reduced, D is at most |w|: costs never turn it. The same rule as
    `functional.ledger.order_quantity` without impact and tick; ours.

    Args:
        held: weight before the order.
        target: weight after it; the two are broadcast.
        costs: fee and half spread.
    """
    gap = target - held
    side = np.sign(gap)
    rate = costs.half_spread + costs.fee * (1.0 + side * costs.half_spread)
    size = np.abs(gap) / (1.0 + side * target * rate)
    size = np.where(side * target < 0.0, np.minimum(size, np.abs(held)), size)
    return np.asarray(1.0 - size * rate)


def drifted(weight: Array, growth: Array) -> tuple[Array, Array]:
    """Return log growth of equity and the new weight after the price moved by a share of itself.

    log(1 + wR) and w(1 + R)/(1 + wR). Where nothing is left (1 + wR ≤ 0) the growth is −∞ and the
    weight 0.
    """
    left = 1.0 + weight * growth
    alive = left > 0.0
    safe = np.where(alive, left, 1.0)
    return np.where(alive, np.log(safe), -np.inf), np.where(
        alive, weight * (1.0 + growth) / safe, 0.0
    )


class Hindsight(NamedTuple):
    """The best path over bars that are all known."""

    log_growth: Array
    """Of each column over all bars, [S]."""
    choice: Places
    """Index of the level asked for before each bar, [T, S]."""
    weights: Array
    """That level, [T, S]."""


def clairvoyant(
    opens: Array,
    closes: Array,
    levels: Sequence[float],
    costs: ProportionalCosts,
    *,
    funding: Array | None = None,
    tradable: NDArray[np.bool_] | None = None,
) -> Hindsight:
    """Return the best target weights for someone who knows every bar beforehand: a bound.

    The row i of the answer is decided at the close before bar i, fills at its open and is marked
    at its close. The account starts flat and ends with whatever it holds, marked and not sold, as
    an episode does. Exact by dynamic programming forward in time over (bar, level of the last
    order); ties go to the lower level. With liquidation and a level 0 on offer it stays a bound,
    since margin that is gone is never better than having been flat.

    Where a bar cannot be traded the position stays; the level given there is the last one asked
    for (the lowest before the first order) and changes nothing.

    Args:
        opens: of the bars in which orders fill, [T, S], or [T] for one column.
        closes: of the same bars.
        levels: target weights on offer.
        costs: fee and half spread.
        funding: rates that settle at the opens; None is none.
        tradable: whether an order can be sent at the open; None is always.

    Raises:
        ShapeError: if the arrays differ in shape.
        RangeError: if a level or a price cannot be used.
    """
    opens, closes, rates, may = _bars(opens, closes, funding, tradable)
    offered = _offered(levels)
    count, columns, width = *opens.shape, len(offered)
    total = np.zeros((columns, width))
    held = np.zeros((columns, width))
    came_from = np.empty((count, columns, width), dtype=np.intp)
    stay = np.broadcast_to(np.arange(width), (columns, width))
    previous = opens[0]
    for bar in range(count):
        grown, held = drifted(held, (opens[bar] / previous - 1.0)[:, None])
        paid, held = _funded(held, rates[bar][:, None])
        total = total + grown + paid
        left = trade_left(held[:, :, None], offered, costs)  # [S, from, to]
        options = total[:, :, None] + _log(left)
        best = options.argmax(axis=1)
        traded = np.take_along_axis(options, best[:, None, :], axis=1)[:, 0]
        open_ = may[bar][:, None]
        came_from[bar] = np.where(open_, best, stay)
        total = np.where(open_, traded, total)
        held = np.where(open_, offered, held)
        grown, held = drifted(held, (closes[bar] / opens[bar] - 1.0)[:, None])
        total = total + grown
        previous = closes[bar]
    choice = _traced(came_from, total.argmax(axis=1))
    return Hindsight(total.max(axis=1), choice, offered[choice])


def _traced(came_from: Places, last: Places) -> Places:
    """Return the path that ends in `last`, by the predecessors of every state."""
    choice = np.empty(came_from.shape[:2], dtype=np.intp)
    columns = np.arange(came_from.shape[1])
    for bar in range(len(came_from) - 1, -1, -1):
        choice[bar] = last
        last = came_from[bar, columns, last]
    return choice


class Chain(NamedTuple):
    """A market whose return distribution is known, on a grid of what can be seen at a close.

    Attributes:
        points: what is seen, rising, [X].
        transition: probability of what is seen at the next close, [X, X]; rows sum to 1.
        returns: simple return of the bar between the two closes, [X, X].
    """

    points: Array
    transition: Array
    returns: Array


class Policy(NamedTuple):
    """What to do for the highest expected log growth until an episode ends."""

    levels: Array
    costs: ProportionalCosts
    points: Array
    worth: Array
    """Expected log growth of the bars left, without the cost of the first order: [bars, X, L] by
    bars left less 1, what was seen, and the level that the order reaches."""

    def choose(self, held: Array, seen: Array, *, bars_left: int) -> Places:
        """Return the index of the best level, [N]; ties go to the lower one.

        The cost from the weight held is exact; the worth is interpolated linearly between the
        points of the grid, and constant beyond them.

        Args:
            held: weight before the order, [N].
            seen: what the decision may know, [N].
            bars_left: of the episode, at least 1; more than planned for count as the most.
        """
        ahead = self.worth[min(bars_left, len(self.worth)) - 1]
        worth = np.stack([np.interp(seen, self.points, column) for column in ahead.T], axis=-1)
        cost = _log(trade_left(np.asarray(held)[:, None], self.levels, self.costs))
        return np.asarray((worth + cost).argmax(axis=-1))

    def expected(self, start: Array) -> float:
        """Return the expected log growth of a whole episode from a flat account.

        Args:
            start: probability of what is seen first, [X].
        """
        cost = _log(trade_left(np.zeros(1), self.levels, self.costs))
        return float(start @ (self.worth[-1] + cost).max(axis=-1))


def best_policy(
    chain: Chain, levels: Sequence[float], costs: ProportionalCosts, *, bars: int
) -> Policy:
    r"""Return the best policy of someone who sees the chain and the own account, nothing else.

    Let x be what is seen, w the weight held, u the level asked for, n the bars left. Equity is
    multiplied by left(w, u), then by 1 + uR, and the weight drifts to d(u, R). By the principle of
    optimality, with everything in logarithms so that it adds up,

    $$B_n(x, u) = \sum_{x'} P(x'|x)\,\bigl[\log(1 + uR) + V_{n-1}(d(u, R), x')\bigr],\qquad
    V_n(w, x) = \max_u\,\bigl[\log \text{left}(w, u) + B_n(x, u)\bigr],\qquad V_0 = 0,$$

    R = R(x, x′). V is needed at the weights d(u, R) only, so that a table over (x, u) holds all of
    it and the drift of the weight costs what it costs. Without costs log left is 0, V does not
    depend on w, and the best level is that of the largest E[log(1 + uR) | x], the sign of the
    conditional mean where levels are ±1 and variances small. Exact on the grid.

    Raises:
        RangeError: if a level cannot be used, or loses everything in one of the chain's returns.
    """
    offered = _offered(levels)
    grown, held = drifted(offered[:, None, None], chain.returns)  # [from, X, X']
    if np.isinf(grown).any():
        raise RangeError(
            wrong="every level must leave something after every return of the chain",
            found=f"levels {offered.tolist()} and returns from {chain.returns.min():.3g} to "
            f"{chain.returns.max():.3g}",
            remedy="Use levels nearer to 0.",
        )
    switch = _log(trade_left(held[..., None], offered, costs))  # [from, X, X', to]
    gain = np.einsum("uxy,xy->xu", grown, chain.transition)
    worth = np.empty((bars, len(chain.points), len(offered)))
    worth[0] = gain
    for left in range(1, bars):
        value = (switch + worth[left - 1]).max(axis=-1)  # [from, X, X']
        worth[left] = gain + np.einsum("uxy,xy->xu", value, chain.transition)
    return Policy(offered, costs, chain.points, worth)


def leaked_chain(deviation: float, *, grid: int = 161, width: float = 5.0) -> Chain:
    """Return the chain of independent N(0, deviation²) returns, each seen one bar before.

    What is seen is the return itself: R(x, x′) = x, and x′ is drawn anew. The grid of points covers
    `width` deviations on either side.
    """
    scores = np.linspace(-width, width, grid)
    mass = np.exp(-(scores**2) / 2.0)
    points = deviation * scores
    transition = np.tile(mass / mass.sum(), (grid, 1))
    return Chain(points, transition, np.tile(points[:, None], (1, grid)))


def autoregressive_chain(
    phi: float, deviation: float, *, grid: int = 161, width: float = 5.0
) -> Chain:
    """Return the chain of R′ = φR + e, stationary with that deviation; the last return is seen.

    R′ | R ~ N(φR, deviation²(1 − φ²)), and R′ is both the return of the bar and what is seen next:
    R(x, x′) = x′. The grid of points covers `width` deviations on either side.
    """
    scores = np.linspace(-width, width, grid)
    spread = np.sqrt(1.0 - phi**2)
    density = np.exp(-(((scores[None, :] - phi * scores[:, None]) / spread) ** 2) / 2.0)
    points = deviation * scores
    transition = density / density.sum(axis=1, keepdims=True)
    return Chain(points, transition, np.tile(points[None, :], (grid, 1)))


def _log(left: Array) -> Array:
    """Return the logarithm, −∞ where nothing is left."""
    alive = left > 0.0
    return np.where(alive, np.log(np.where(alive, left, 1.0)), -np.inf)


def _funded(held: Array, rate: Array) -> tuple[Array, Array]:
    """Return log growth and new weight after funding was paid on the position: cash, not price."""
    left = 1.0 - held * rate
    alive = left > 0.0
    return _log(left), np.where(alive, held / np.where(alive, left, 1.0), 0.0)


def _offered(levels: Sequence[float]) -> Array:
    offered = np.asarray(levels, dtype=np.float64)
    if offered.ndim != 1 or not len(offered) or not np.isfinite(offered).all():
        raise RangeError(
            wrong="`levels` must be one or more finite weights",
            found=f"{list(levels)}",
            remedy="Pass for example (-1, 0, 1).",
        )
    return offered


def _bars(
    opens: Array, closes: Array, funding: Array | None, tradable: NDArray[np.bool_] | None
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Return everything as [T, S], after refusing what does not belong together."""
    shape = np.shape(opens)
    rates = np.zeros(shape) if funding is None else np.asarray(funding, dtype=np.float64)
    may = np.ones(shape, dtype=np.bool_) if tradable is None else np.asarray(tradable)
    prices = {"opens": np.asarray(opens, np.float64), "closes": np.asarray(closes, np.float64)}
    for name, array in {**prices, "funding": rates, "tradable": may}.items():
        if array.shape != shape or array.ndim not in (1, 2) or not array.size:
            raise ShapeError(
                wrong="`opens` must be [T] or [T, S], and everything else shaped like it",
                found=f"{name} {array.shape} and opens {shape}",
                remedy="Pass one row for each bar in which an order fills.",
            )
    for name, array in prices.items():
        if not ((array > 0.0) & np.isfinite(array)).all():
            raise RangeError(
                wrong=f"`{name}` must be finite and greater than 0",
                found=f"{array.min()} to {array.max()}",
                remedy="Leave out rows before a symbol's first bar.",
            )
    rows = (shape[0], -1)
    first, last = (array.reshape(rows) for array in prices.values())
    return first, last, rates.reshape(rows), may.reshape(rows)
