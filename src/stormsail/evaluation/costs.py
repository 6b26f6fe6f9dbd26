"""What trading may cost before nothing is left: a sweep of costs, and the cost that breaks even.

A cost here is the whole price of a fill as a share of its notional, one way: it stands as the fee,
with no half spread and no impact beside it. Order steps stay as configured. Two ways to ask:

- `replay`: the target weights of the backtest, traded at the other cost. The decisions are the
  same, what they buy follows the equity that is left. It says how much edge the decisions have.
- `decide`: the agent trades again at the other cost, sees the account that results, and may decide
  differently. It says how the agent would do. It has not been trained for that cost.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from stormsail.core.documents import JsonValue
from stormsail.core.errors import RangeError
from stormsail.evaluation.backtest_result import Array
from stormsail.evaluation.backtesting import Backtest, backtests, replays
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import Costs
from stormsail.modules.agent import Agent

SWEEP_BP = (0.0, 2.0, 5.0, 10.0, 20.0)
"""Costs of a sweep, in basis points of the notional."""

MOST_BP = 1_000.0
"""Largest cost that is tried."""

Mode = Literal["replay", "decide"]
_BP = 1e-4
_GRID = 17
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
    result: Backtest, panel: Panel, agent: Agent | None, costs_bp: Sequence[float], mode: Mode
) -> list[Backtest]:
    for cost in costs_bp:
        if not 0.0 <= cost < 1.0 / _BP:
            raise RangeError(
                wrong="a cost must be at least 0 and below 10000 basis points",
                found=f"{cost:g}",
                remedy="A basis point is a hundredth of a percent: 5 means 0.05 %.",
            )
    chosen = [all_in(cost, result.market.costs) for cost in costs_bp]
    config = result.config.during(result.span)
    if mode == "decide":
        if agent is None:
            raise RangeError(
                wrong="to decide anew there must be an agent",
                found="none",
                remedy="Pass `agent`, or use the mode `replay`.",
            )
        return backtests(agent, panel, config, costs=chosen)
    # what was decided is replayed as it reached the gate, so a delay must not act twice
    prompt = config.replace(delay_bars=0)
    return replays(on_panel(result, panel), panel, prompt, costs=chosen)


def on_panel(result: Backtest, panel: Panel) -> Array:
    """Return the weights of a backtest at the rows of the panel, NaN elsewhere, [T, S]."""
    weights = np.full(panel.shape, np.nan)
    first = int(np.searchsorted(panel.ts.cpu().numpy(), result.span.start_ms))
    weights[first : first + len(result.weights)] = result.weights
    return weights


class BreakEven(NamedTuple):
    """The cost at which a backtest ends with what it began with."""

    cost_bp: float | None
    """Basis points of the notional, one way; None where there is none."""
    low_bp: float
    """Largest cost tried below it at which something was earned."""
    high_bp: float
    """Smallest cost tried above it at which nothing was."""
    reason: str
    """Why there is none; empty where there is one."""

    def document(self) -> dict[str, JsonValue]:
        """Return it as plain data."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in self._asdict().items()
        }


def break_even(
    result: Backtest,
    panel: Panel,
    *,
    agent: Agent | None = None,
    mode: Mode = "replay",
    tolerance_bp: float = 0.01,
) -> BreakEven:
    """Return the lowest cost at which the total return is no longer above 0.

    By sections: 17 costs at once, all traded side by side, then the same inside the first interval
    that loses its gain, until it is narrow enough; the answer is its middle. Where lots or a drawn
    limit make the return wave about 0, the lowest crossing that the grid of 62.5 basis points sees
    is taken.

    Args:
        result: of the backtest in question.
        panel: bars that it was made of.
        agent: needed to decide anew.
        mode: see above.
        tolerance_bp: width at which the search ends.
    """

    def earned(costs_bp: Sequence[float]) -> list[float]:
        return [one.total_return for one in _at_costs(result, panel, agent, costs_bp, mode)]

    if not result.trades:
        return BreakEven(None, 0.0, math.inf, "nothing was traded, so no cost matters")
    return sectioned(earned, most_bp=MOST_BP, tolerance_bp=tolerance_bp)


def sectioned(
    earned: Callable[[Sequence[float]], list[float]], *, most_bp: float, tolerance_bp: float
) -> BreakEven:
    """Return where a return falls to 0 or below, between no cost and the most.

    Args:
        earned: total returns for several costs in basis points.
        most_bp: largest cost that is tried.
        tolerance_bp: width at which the search ends.
    """
    low, high = 0.0, most_bp
    while True:
        grid = np.linspace(low, high, _GRID).tolist()
        gains = [gain > 0.0 for gain in earned(grid)]
        if not gains[0]:
            return BreakEven(None, 0.0, 0.0, "nothing is earned even without costs")
        if all(gains):
            return BreakEven(None, high, math.inf, f"something is earned even at {high:g} bp")
        place = gains.index(False)
        low, high = grid[place - 1], grid[place]
        if high - low <= tolerance_bp:
            return BreakEven((low + high) / 2.0, low, high, "")
