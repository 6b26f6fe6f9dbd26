"""Cost sweep of a backtest, and its break-even cost.

A cost here is the whole price of a fill as a share of its notional, one way: it stands as the fee,
with no half spread and no impact beside it. Order steps stay as configured. Two modes:

- `replay`: the target weights of the backtest, traded at the other cost. The decisions are the
  same, what they buy follows the equity that is left. It measures the edge of the decisions.
- `decide`: the agent trades again at the other cost, sees the account that results, and may decide
  differently. It measures the agent, which has not been trained for that cost.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from stormsail.core.errors import RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import Array, Backtest
from stormsail.evaluation.engine.run import ReplayRequest, backtests, run_batch
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import Costs
from stormsail.modules.agent import Agent

SWEEP_BP = (0.0, 2.0, 5.0, 10.0, 20.0)
"""Costs of a sweep, in basis points of the notional."""

MOST_BP = 1_000.0
"""Largest cost that is tried."""

Mode = Literal["replay", "decide"]
_BP = 1e-4
_POINTS = 17
"""Costs that are tried at once; each round makes the interval 16 times smaller."""


def all_in(cost_bp: float, like: Costs) -> Costs:
    """Return costs that are one share of the notional and nothing else."""
    return Costs(taker_fee=cost_bp * _BP, half_spread=0.0, impact=0.0, **_kept(like))


def _kept(like: Costs) -> dict[str, int]:
    return {"impact_window": like.impact_window}


def cost_sweep(
    result: Backtest,
    panel: Panel,
    *,
    agent: Agent | None = None,
    costs_bp: Sequence[float] = SWEEP_BP,
    mode: Mode = "replay",
) -> dict[float, Backtest]:
    """Return the backtest at each of several costs, in basis points of the notional.

    Args:
        result: of the backtest or replay in question; its span and rules are taken.
        panel: bars that it was made of.
        agent: needed to decide anew.
        costs_bp: whole cost of a fill, one way.
        mode: see above.

    Raises:
        RangeError: if a cost is negative or 100 % or more, or `decide` has no agent.
    """
    return dict(zip(costs_bp, _at_costs(result, panel, agent, costs_bp, mode), strict=True))


def _at_costs(
    result: Backtest,
    panel: Panel,
    agent: Agent | None,
    costs_bp: Sequence[float],
    mode: Mode,
    *,
    whole: bool = True,
) -> list[Backtest]:
    if mode == "replay":
        return run_batch([cost_request(result, panel, costs_bp, whole=whole)])[0]
    chosen = _costs(result, costs_bp)
    if agent is None:
        raise RangeError(
            wrong="to decide anew there must be an agent",
            found="none",
            remedy="Pass `agent`, or use the mode `replay`.",
        )
    config = result.config.during(result.span)
    return backtests(agent, panel, config, costs=chosen)


def _costs(result: Backtest, costs_bp: Sequence[float]) -> list[Costs]:
    for cost in costs_bp:
        if not 0.0 <= cost < 1.0 / _BP:
            raise RangeError(
                wrong="a cost must be at least 0 and below 10000 basis points",
                found=f"{cost:g}",
                remedy="A basis point is a hundredth of a percent: 5 means 0.05 %.",
            )
    return [all_in(cost, result.market.costs) for cost in costs_bp]


def cost_request(
    result: Backtest, panel: Panel, costs_bp: Sequence[float], *, whole: bool = True
) -> ReplayRequest:
    """Return the decisions of a backtest, to be traded at several costs as in `cost_sweep`.

    `whole` says whether more is wanted than where each begins and ends.
    """
    chosen = tuple(_costs(result, costs_bp))
    # what was decided is replayed as it reached the gate, so a delay must not act twice
    prompt = result.config.during(result.span).replace(delay_bars=0)
    weights = on_panel(result.weights, result, panel)
    return ReplayRequest(weights, panel, prompt, chosen, whole)


def on_panel(weights: Array, result: Backtest, panel: Panel) -> Array:
    """Return weights of the decisions of a backtest at the rows of the panel, NaN elsewhere."""
    placed = np.full(panel.shape, np.nan)
    first = int(np.searchsorted(panel.ts.cpu().numpy(), result.span.start_ms))
    placed[first : first + len(weights)] = weights
    return placed


class BreakEven(NamedTuple):
    """The cost at which a backtest ends with what it began with."""

    cost_bp: float | None
    """Basis points of the notional, one way; None where there is none."""
    low_bp: float
    """Largest cost tried below it with a positive return."""
    high_bp: float
    """Smallest cost tried above it without one."""
    reason: str
    """Why there is none; empty where there is one."""

    def document(self) -> dict[str, JsonValue]:
        """Return it as plain data."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in self._asdict().items()
        }


NOTHING_TRADED = BreakEven(None, 0.0, math.inf, "nothing was traded, so no cost matters")


def break_even(
    result: Backtest,
    panel: Panel,
    *,
    agent: Agent | None = None,
    mode: Mode = "replay",
    tolerance_bp: float = 0.01,
) -> BreakEven:
    """Return the lowest cost at which the total return is no longer above 0.

    By section search: 17 costs at once, all in one batch, then the same inside the first interval
    that loses its gain, until it is narrow enough; the answer is its middle. Where lots or a drawn
    limit make the return wave about 0, the lowest crossing that the grid of 62.5 basis points sees
    is taken. The search ends at a width of `tolerance_bp`; the rest is as in `cost_sweep`.
    """

    def returns_at(costs_bp: Sequence[float]) -> list[float]:
        results = _at_costs(result, panel, agent, costs_bp, mode, whole=False)
        return [traded.total_return for traded in results]

    if not result.trades:
        return NOTHING_TRADED
    if mode == "replay":
        returns_at = PrefetchedReturns(returns_at, most_bp=MOST_BP, tolerance_bp=tolerance_bp)
    return search_break_even(returns_at, most_bp=MOST_BP, tolerance_bp=tolerance_bp)


def search_break_even(
    returns_at: Callable[[Sequence[float]], list[float]], *, most_bp: float, tolerance_bp: float
) -> BreakEven:
    """Return where a return falls to 0 or below, between no cost and the most.

    `returns_at` gives total returns for several costs. The search ends at a width of
    `tolerance_bp`.
    """
    low, high = 0.0, most_bp
    while True:
        grid = _grid(low, high)
        gains = [gain > 0.0 for gain in returns_at(grid)]
        if not gains[0]:
            return BreakEven(None, 0.0, 0.0, "nothing is earned even without costs")
        if all(gains):
            return BreakEven(None, high, math.inf, f"something is earned even at {high:g} bp")
        place = gains.index(False)
        low, high = grid[place - 1], grid[place]
        if high - low <= tolerance_bp:
            return BreakEven((low + high) / 2.0, low, high, "")


class PrefetchedReturns:
    """Total returns at several costs, computed ahead for the next rounds of `search_break_even`.

    Hundreds of costs take little longer than one, but each round of the search is a batch of its
    own. So the first batch holds the costs of the first two rounds. From them the root is known
    well enough to name the grids of all later rounds, with those to the left and right; the second
    batch holds them. A guess that was wrong costs one batch more, and changes no answer.

    Args:
        returns_at: total returns for several costs in basis points.
        most_bp: largest cost that is tried.
        tolerance_bp: width at which the search ends.
    """

    def __init__(
        self,
        returns_at: Callable[[Sequence[float]], list[float]],
        *,
        most_bp: float,
        tolerance_bp: float,
    ) -> None:
        self._returns_at, self._tolerance = returns_at, tolerance_bp
        self._known: dict[float, float] = {}
        self._most = most_bp

    def add(self, costs_bp: Sequence[float], returns: Sequence[float]) -> None:
        """Add returns that are known."""
        self._known.update(zip(costs_bp, returns, strict=True))

    def __call__(self, costs_bp: Sequence[float]) -> list[float]:
        """Return the total return at each cost."""
        if not all(cost in self._known for cost in costs_bp):
            wanted = sorted({*costs_bp, *self._ahead(costs_bp[0], costs_bp[-1])})
            new = [cost for cost in wanted if cost not in self._known]
            self.add(new, self._returns_at(new))
        return [self._known[cost] for cost in costs_bp]

    def _ahead(self, low: float, high: float) -> list[float]:
        """Return costs that later rounds may need, after one from `low` to `high`."""
        if not self._known:
            return first_costs(self._most)
        root = self._root(low, high)
        ahead: list[float] = []
        while (high - low) / (_POINTS - 1) > self._tolerance:
            grid = _grid(low, high)
            place = min(max(bisect_right(grid, root) - 1, 0), _POINTS - 2)
            for near in range(max(place - 1, 0), min(place + 2, _POINTS - 1)):
                ahead.extend(_grid(grid[near], grid[near + 1]))
            low, high = grid[place], grid[place + 1]
        return ahead

    def _root(self, low: float, high: float) -> float:
        """Return where the log of equity, all but straight in costs, reaches 0; or the middle."""
        above, below = self._known.get(low, math.nan), self._known.get(high, math.nan)
        if not above > 0.0 >= below > -1.0:
            return (low + high) / 2.0
        gained, lost = math.log1p(above), -math.log1p(below)
        return low + (high - low) * gained / (gained + lost)


def first_costs(most_bp: float) -> list[float]:
    """Return the costs that the first two rounds of `search_break_even` may need."""
    ends = _grid(0.0, most_bp)
    return sorted({cost for low, high in pairwise(ends) for cost in _grid(low, high)})


def _grid(low: float, high: float) -> list[float]:
    return [float(cost) for cost in np.linspace(low, high, _POINTS)]
