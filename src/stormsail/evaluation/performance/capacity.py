"""Capacity curve: what the same decisions gain with larger accounts, through impact.

The target weights of a backtest are traded again by the simulator's own rules with other capital.
Costs that are shares of the notional leave returns as they are; impact grows with the size of an
order over what the market trades, and order steps matter less. The agent does not decide anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stormsail.core.errors import RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import ReplayRequest, run_batch
from stormsail.evaluation.performance.attribution import attribution_of
from stormsail.evaluation.robustness.costs import on_panel
from stormsail.evaluation.stats.metrics import Metrics
from stormsail.market.panel import Panel

FACTORS = (0.1, 1.0, 10.0, 100.0, 1_000.0)
"""Sizes of the account, in multiples of the backtest's."""


@dataclass(frozen=True)
class CapacityPoint:
    """The same decisions with another capital."""

    capital: float
    """Of all accounts together at the start."""
    gain: float
    """Equity at the end less that at the start, money."""
    total_return: float
    sharpe: float | None
    """Annualised; None where there is not enough data."""
    impact: float
    """Money paid for impact."""

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {
            "capital": self.capital,
            "gain": self.gain,
            "total_return": self.total_return,
            "sharpe": self.sharpe,
            "impact": self.impact,
        }


def capacity_point(
    capital: float, total_return: float, measured: Metrics, impact: float
) -> CapacityPoint:
    """Return a point of the curve; its gain follows from capital and return."""
    return CapacityPoint(
        capital, capital * total_return, total_return, measured.sharpe.value, impact
    )


def capacity_curve(
    result: Backtest, panel: Panel, *, factors: Sequence[float] = FACTORS
) -> list[CapacityPoint]:
    """Return gain and return of the decisions of a backtest at several sizes of the account.

    Args:
        result: of the backtest or replay in question; its span and rules are taken.
        panel: bars that it was made of.
        factors: sizes in multiples of its capital, greater than 0.

    Raises:
        RangeError: if a factor is not greater than 0.
    """
    results = run_batch(capacity_requests(result, panel, factors=factors))
    return [
        capacity_point(
            float(traded.equity[0]),
            traded.total_return,
            traded.metrics,
            attribution_of(traded, panel).totals()["both"]["impact"],
        )
        for (traded,) in results
    ]


def capacity_requests(
    result: Backtest, panel: Panel, *, factors: Sequence[float] = FACTORS
) -> list[ReplayRequest]:
    """Return what `capacity_curve` trades, in the order of the factors."""
    for factor in factors:
        if not factor > 0.0:
            raise RangeError(
                wrong="the size of an account must be a multiple greater than 0",
                found=f"{factor:g}",
                remedy="Pass for example 10 for ten times the capital.",
            )
    # what was decided is replayed as it reached the gate, so a delay must not act twice
    prompt = result.config.during(result.span).replace(delay_bars=0)
    weights = on_panel(result.weights, result, panel)
    capital = float(result.equity[0])
    return [
        ReplayRequest(weights, panel, prompt.replace(capital=capital * factor))
        for factor in factors
    ]
