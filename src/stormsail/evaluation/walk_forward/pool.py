"""Pool the backtests of all folds and seeds into one account.

K folds, S seeds. In each fold the capital is divided equally among the seeds; each agent trades
its share; at the end of the fold everything is added up and divided anew. A training that failed
leaves its share in cash. Between two folds the agents change: what the old ones hold is closed, and
that costs the fee and the half spread of the notional (impact is left out, the price is the close),
taken from the last bar of the fold.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import Backtest, trades_table
from stormsail.evaluation.stats.figures import Array, returns_of
from stormsail.evaluation.stats.metrics import Flows, Metrics, key_figures, measure
from stormsail.evaluation.walk_forward.folds import FoldPlan
from stormsail.market.interval import Interval
from stormsail.modules.agent import Agent

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """One training of one fold, and the backtest of its agent."""

    fold: FoldPlan
    seed: int
    agent: Agent | None = None
    backtest: Backtest | None = None
    reason: str = ""
    """Why there is no backtest; empty where there is one."""


@dataclass(frozen=True, eq=False)
class FoldBacktests:
    """The backtests of one fold, one for each seed; None is a share that stayed in cash."""

    marks: Times
    """Close times, [N + 1]."""
    backtests: Sequence[Backtest | None]


@dataclass(frozen=True, eq=False)
class Pooled:
    """One account out of folds and seeds: N bars."""

    interval: Interval
    ts: Times
    """Close times of the marks, [N + 1]."""
    equity: Array
    """Of all together, [N + 1]."""
    seed_equity: Array
    """What each seed's agents made of their first share, compounded on their own, [N + 1, S]."""
    fold_returns: tuple[float, ...]
    """Return of each fold, [K]."""
    flows: Flows
    round_trips: Array
    """Profit of each round trip after costs, in money of the pooled account."""
    trades: int
    order_hash: str
    """SHA-256 over the order hashes of all backtests, fold by fold and seed by seed."""

    @property
    def returns(self) -> Array:
        """Simple return of each bar, [N]."""
        return returns_of(self.equity)

    @property
    def seed_returns(self) -> Array:
        """Simple return of each bar for each seed, [N, S]."""
        return np.stack([returns_of(column) for column in self.seed_equity.T], axis=1)

    @property
    def total_return(self) -> float:
        """Equity at the end over equity at the start, less 1."""
        return float(self.equity[-1] / self.equity[0] - 1.0)

    def metrics(self, alpha: float) -> Metrics:
        """Return every figure of the account."""
        return measure(
            self.equity,
            self.ts,
            bar_ms=self.interval.milliseconds,
            flows=self.flows,
            trade_pnl=self.round_trips,
            alpha=alpha,
        )

    def figures(self, alpha: float) -> dict[str, JsonValue]:
        """Return the figures by which backtests are set side by side, as JSON."""
        return key_figures(
            self.metrics(alpha),
            self.ts,
            self.equity,
            trades=self.trades,
            order_hash=self.order_hash,
        )


def growth(backtest: Backtest | None, bars: int, *, closed: bool) -> Array:
    """Return equity as a multiple of that at the start, [bars + 1]; never below 0.

    Args:
        backtest: None stays at 1.
        bars: of the backtest.
        closed: whether what is held at the end is sold there.
    """
    if backtest is None:
        return np.ones(bars + 1)
    path = backtest.equity / backtest.equity[0]
    if closed:
        fee, spread = closing_costs(backtest)
        path[-1] -= (fee + spread) / backtest.equity[0]
    return np.asarray(np.maximum(path, 0.0))


def closing_costs(backtest: Backtest) -> tuple[float, float]:
    """Return fee and half spread of selling, at the last close, whatever is held there."""
    fee, spread = leg_closing_costs(backtest).sum(0)
    return float(fee), float(spread)


def leg_closing_costs(backtest: Backtest) -> Array:
    """Return fee and half spread of `closing_costs` for the long and the short leg, [2, 2]."""
    held = backtest.bars["weight"][-1] * backtest.bars["equity"][-1]
    legs = np.stack((np.maximum(held, 0.0), np.maximum(-held, 0.0)))
    fees = np.array([backtest.market.fee_of(symbol) for symbol in backtest.symbols])
    half = backtest.market.costs.half_spread
    return np.stack(((legs * fees).sum(1), legs.sum(1) * half), 1)


def pool(folds: Sequence[FoldBacktests], interval: Interval, *, capital: float) -> Pooled:
    """Return folds and seeds as one account.

    Args:
        folds: in order of time; each begins at the mark at which the one before ends.
        interval: length of a bar.
        capital: at the start. Shares are scaled to it: exact where the backtests had these very
            amounts, and but for order steps everywhere else.
    """
    account = _Account(len(folds[0].backtests), capital)
    for number, fold in enumerate(folds):
        account.add(fold, closed=number + 1 < len(folds))
    backtests = [backtest for fold in folds for backtest in fold.backtests]
    hashes = ["" if backtest is None else backtest.order_hash for backtest in backtests]
    return Pooled(
        interval=interval,
        ts=np.concatenate([folds[0].marks[:1], *(fold.marks[1:] for fold in folds)]),
        equity=np.array(account.equity),
        seed_equity=np.stack([np.array(column) for column in account.seed_equity], axis=1),
        fold_returns=tuple(account.fold_returns),
        flows=Flows(**{name: np.concatenate(parts) for name, parts in account.flows.items()}),
        round_trips=np.concatenate([np.zeros(0), *account.round_trips]),
        trades=sum(len(backtest.trades) for backtest in backtests if backtest is not None),
        order_hash=hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
    )


class _Account:
    """The pooled account while folds are added to it."""

    def __init__(self, seeds: int, capital: float) -> None:
        self.equity = [capital]
        self.seed_equity = [[capital / seeds] for _ in range(seeds)]
        self.fold_returns: list[float] = []
        self.round_trips: list[Array] = []
        self.flows: dict[str, list[Array]] = {
            name: [] for name in ("turnover", "exposure", "fees", "funding", "slippage")
        }

    def add(self, fold: FoldBacktests, *, closed: bool) -> None:
        bars = len(fold.marks) - 1
        paths = [growth(backtest, bars, closed=closed) for backtest in fold.backtests]
        start, share = self.equity[-1], self.equity[-1] / len(paths)
        total = share * np.sum(paths, axis=0)
        self._add_flows(fold.backtests, share, total, closed=closed)
        self.equity.extend(total[1:].tolist())
        self.fold_returns.append(float(total[-1] / start - 1.0) if start > 0.0 else 0.0)
        for column, path in zip(self.seed_equity, paths, strict=True):
            column.extend((column[-1] * path[1:]).tolist())

    def _add_flows(
        self, backtests: Sequence[Backtest | None], share: float, total: Array, *, closed: bool
    ) -> None:
        """Add the flows of each bar, in money of this account or as shares of it."""
        sums = {name: np.zeros(len(total) - 1) for name in self.flows}
        before, after = (np.where(part > 0.0, part, 1.0) for part in (total[:-1], total[1:]))
        for backtest in backtests:
            if backtest is None:
                continue
            scale = share / backtest.equity[0]
            sums["turnover"] += backtest.turnover * scale * backtest.equity[:-1] / before
            sums["exposure"] += backtest.exposure * scale * backtest.equity[1:] / after
            for name, column in _MONEY.items():
                sums[name] += scale * backtest.bars[column].sum(1)
            if closed:
                fee, spread = closing_costs(backtest)
                sums["fees"][-1] += scale * fee
                sums["slippage"][-1] += scale * spread
            self.round_trips.append(scale * backtest.round_trips)
        for name, numbers in sums.items():
            self.flows[name].append(numbers)


_MONEY: Mapping[str, str] = {"fees": "fee_total", "funding": "funding", "slippage": "slippage"}


def charged_bp(backtests: Sequence[Backtest]) -> float | None:
    """Return what trading cost, all in, in basis points of the notional; None without a trade."""
    columns = [backtest.bars for backtest in backtests]
    notional = sum(
        float((np.abs(bars["traded"]) * np.nan_to_num(bars["price"])).sum()) for bars in columns
    )
    paid = sum(float(bars["fee_total"].sum() + bars["slippage"].sum()) for bars in columns)
    return 1e4 * paid / notional if notional > 0.0 else None


def tables_by_run(runs: Sequence[Run], table_of: Callable[[Backtest], pa.Table]) -> pa.Table:
    """Return the tables of all backtests below one another, with fold and seed of each row."""
    tables = []
    for run in runs:
        if run.backtest is not None:
            table = table_of(run.backtest)
            for name, value in (("fold", run.fold.number), ("seed", run.seed)):
                table = table.append_column(name, pa.array(np.full(len(table), value, np.int64)))
            tables.append(table)
    if not tables:
        empty = {name: pa.array([], pa.int64()) for name in ("ts", "fold", "seed")}
        return pa.table({**empty, "symbol": pa.array([], pa.string())})
    return pa.concat_tables(tables, promote_options="default")


def trades_by_run(runs: Sequence[Run]) -> pa.Table:
    """Return the trades of all backtests below one another, with fold and seed of each."""
    return tables_by_run(runs, lambda backtest: trades_table(backtest.trades))
