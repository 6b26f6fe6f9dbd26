"""Performance of a result as one object and one JSON document, `performance.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.performance.attribution import Attribution, attribution_of
from stormsail.evaluation.performance.capacity import CapacityPoint, capacity_curve
from stormsail.evaluation.performance.regimes import RegimeFigures, by_regime, regime_labels
from stormsail.evaluation.stats.figures import bars_per_year
from stormsail.evaluation.stats.metrics import Metrics
from stormsail.market.panel import Panel


@dataclass(frozen=True, eq=False)
class Performance:
    """Where a result came from: costs, legs, exposure, regimes, capacity, folds."""

    attribution: Attribution
    regimes: Mapping[str, Mapping[str, RegimeFigures]]
    """By kind and name."""
    capacity: Sequence[CapacityPoint]
    """By size of the account; empty where it was not measured."""
    impact: float
    """Impact of the market's costs; where it is 0, no account is too large."""
    folds: Sequence[Metrics] = ()
    """Figures of each fold of a validation; empty for a backtest."""

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        shown = ("total_return", "sharpe", "volatility", "max_drawdown")
        folds: list[JsonValue] = [
            {name: fold.statements()[name].document() for name in shown} for fold in self.folds
        ]
        regimes: list[JsonValue] = [
            {"kind": kind, "regime": name, **figures.document()}
            for kind, rows in self.regimes.items()
            for name, figures in rows.items()
        ]
        return {
            "attribution": self.attribution.document(),
            "regimes": regimes,
            "capacity": [point.document() for point in self.capacity],
            "impact": self.impact,
            "folds": folds,
        }


def performance_of(result: Backtest, panel: Panel, *, capacity: bool = True) -> Performance:
    """Return the performance of a backtest.

    Args:
        result: of a backtest or replay.
        panel: bars that it traded, and before.
        capacity: whether the decisions are traded again with other capital.
    """
    labels = regime_labels(panel, result.market, result.ts[:-1])
    per_year = bars_per_year(result.interval.milliseconds)
    return Performance(
        attribution=attribution_of(result, panel),
        regimes=by_regime(result.returns, labels, per_year=per_year),
        capacity=capacity_curve(result, panel) if capacity else (),
        impact=result.market.costs.impact,
    )
