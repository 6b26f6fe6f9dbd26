"""Performance of the pooled account of a validation: costs and legs, regimes, capacity, folds."""

from collections.abc import Callable, Sequence

import numpy as np

from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import run_batch
from stormsail.evaluation.performance.attribution import (
    ITEMS,
    LEGS,
    Attribution,
    attribution_of,
    joined,
)
from stormsail.evaluation.performance.capacity import (
    FACTORS,
    CapacityPoint,
    capacity_point,
    capacity_requests,
)
from stormsail.evaluation.performance.document import Performance
from stormsail.evaluation.performance.regimes import by_regime, regime_labels
from stormsail.evaluation.stats.figures import Array, bars_per_year
from stormsail.evaluation.stats.metrics import Metrics, measure
from stormsail.evaluation.walk_forward.pool import FoldBacktests, Pooled, leg_closing_costs
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import MarketConfig

Pool = Callable[[Sequence[Backtest | None]], Pooled]
"""Makes one account of one backtest for each run."""

_FEES, _SPREAD, _WRITTEN_OFF = (ITEMS.index(name) for name in ("fees", "spread", "written_off"))


def pooled_performance(
    folds: Sequence[FoldBacktests],
    pooled: Pooled,
    panel: Panel,
    market: MarketConfig,
    *,
    pool: Pool | None,
    alpha: float,
) -> Performance:
    """Return the performance of an account of several folds and seeds.

    Args:
        folds: the backtests that were pooled, in order of time.
        pooled: the account.
        panel: bars that were traded, and before.
        market: rules of the backtests.
        pool: makes accounts with other capital, for the capacity curve; None leaves it out.
        alpha: share of worst bars of the figures of folds.
    """
    labels = regime_labels(panel, market, pooled.ts[:-1])
    per_year = bars_per_year(pooled.interval.milliseconds)
    return Performance(
        attribution=pooled_attribution(folds, pooled, panel),
        regimes=by_regime(pooled.returns, labels, per_year=per_year),
        capacity=() if pool is None else _capacity(folds, pooled, panel, pool, alpha),
        impact=market.costs.impact,
        folds=_fold_metrics(folds, pooled, alpha),
    )


def pooled_attribution(folds: Sequence[FoldBacktests], pooled: Pooled, panel: Panel) -> Attribution:
    """Return what the account made and cost, by leg, in its own money.

    Fee and half spread of closing what is held as agents change count at the last bar of a fold.
    """
    parts, first = [], 0
    for number, fold in enumerate(folds):
        last = first + len(fold.marks) - 1
        closed = number + 1 < len(folds)
        parts.append(_fold_attribution(fold, pooled.equity[first : last + 1], panel, closed=closed))
        first = last
    return joined(parts)


def _fold_attribution(
    fold: FoldBacktests, equity: Array, panel: Panel, *, closed: bool
) -> Attribution:
    bars = len(equity) - 1
    amounts = np.zeros((bars, len(LEGS), len(ITEMS)))
    exposure = np.zeros((bars, len(LEGS)))
    share = equity[0] / len(fold.backtests)
    whole = np.where(equity[1:] > 0.0, equity[1:], 1.0)[:, None]
    for backtest in fold.backtests:
        if backtest is None:
            continue
        own, scale = attribution_of(backtest, panel), share / backtest.equity[0]
        amounts += scale * own.amounts
        exposure += scale * own.exposure * backtest.equity[1:, None] / whole
        if closed:
            amounts[-1][:, [_FEES, _SPREAD]] += scale * leg_closing_costs(backtest)
    # a share that is worth less than nothing counts as nothing in the pooled account
    net = (amounts[:, :, 0] - amounts[:, :, 1:].sum(2)).sum(1)
    owed = np.diff(equity) - net
    tiny = 1e-9 * np.abs(equity).max()
    amounts[:, 0, _WRITTEN_OFF] -= np.where(np.abs(owed) > tiny, owed, 0.0)
    return Attribution(amounts, exposure)


def _capacity(
    folds: Sequence[FoldBacktests], pooled: Pooled, panel: Panel, pool: Pool, alpha: float
) -> list[CapacityPoint]:
    runs = [backtest for fold in folds for backtest in fold.backtests]
    requests = [
        request for run in runs if run is not None for request in capacity_requests(run, panel)
    ]
    traded = iter([results[0] for results in run_batch(requests)] if requests else [])
    curves = [None if run is None else [next(traded) for _ in FACTORS] for run in runs]
    points = []
    for place, factor in enumerate(FACTORS):
        own = [None if curve is None else curve[place] for curve in curves]
        account = pool(own)
        following = iter(own)
        larger = [
            FoldBacktests(fold.marks, [next(following) for _ in fold.backtests]) for fold in folds
        ]
        paid = pooled_attribution(larger, account, panel).totals()["both"]["impact"]
        capital = factor * float(pooled.equity[0])
        points.append(
            capacity_point(capital, account.total_return, account.metrics(alpha), factor * paid)
        )
    return points


def _fold_metrics(folds: Sequence[FoldBacktests], pooled: Pooled, alpha: float) -> list[Metrics]:
    """Return the figures of each fold that began with something."""
    measured, first = [], 0
    for fold in folds:
        last = first + len(fold.marks) - 1
        equity = pooled.equity[first : last + 1]
        if equity[0] > 0.0:
            marks = pooled.ts[first : last + 1]
            bar_ms = pooled.interval.milliseconds
            measured.append(measure(equity, marks, bar_ms=bar_ms, alpha=alpha))
        first = last
    return measured
