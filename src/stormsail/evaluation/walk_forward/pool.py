"""Passes of many agents as one account: folds one after the other, seeds side by side.

K folds, S seeds. In each fold the capital is divided equally among the seeds; each agent trades
its share; at the end of the fold everything is added up and divided anew. A training that failed
leaves its share in cash. Between two folds the agents change: what the old ones hold is closed, and
that costs the fee and the half spread of the notional (impact is left out, the price is the close),
taken from the last bar of the fold.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats.figures import Array, returns_of
from stormsail.evaluation.stats.metrics import Flows, Metrics, measure
from stormsail.evaluation.walk_forward.folds import FoldPlan
from stormsail.market.interval import Interval
from stormsail.modules.agent import Agent

Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """One training of one fold and what its agent traded."""

    fold: FoldPlan
    seed: int
    agent: Agent | None = None
    backtest: Backtest | None = None
    reason: str = ""
    """Why there is no backtest; empty where there is one."""


@dataclass(frozen=True, eq=False)
class FoldPass:
    """The passes of one fold, one for each seed; None is a share that stayed in cash."""

    marks: Times
    """Close times, [N + 1]."""
    passes: Sequence[Backtest | None]


@dataclass(frozen=True, eq=False)
class Pooled:
    """One account out of folds and seeds: N bars."""

    interval: Interval
    ts: Times
    """Close times of the marks, [N + 1]."""
    equity: Array
    """Of all together, [N + 1]."""
    seeds: Array
    """What each seed's agents made of their first share, compounded on their own, [N + 1, S]."""
    folds: tuple[float, ...]
    """Return of each fold, [K]."""
    flows: Flows
    trips: Array
    """What each round trip earned, in money of the pooled account."""
    trades: int
    order_hash: str
    """SHA-256 over the order hashes of all passes, fold by fold and seed by seed."""

    @property
    def returns(self) -> Array:
        """Simple return of each bar, [N]."""
        return returns_of(self.equity)

    @property
    def seed_returns(self) -> Array:
        """Simple return of each bar for each seed, [N, S]."""
        return np.stack([returns_of(column) for column in self.seeds.T], axis=1)

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
            trade_pnl=self.trips,
            alpha=alpha,
        )

    def figures(self, alpha: float) -> dict[str, JsonValue]:
        """Return the figures by which passes are set side by side, as `stress.figures` does."""
        measured = self.metrics(alpha).statements()
        shown = ("total_return", "sharpe", "drawdown", "cvar", "turnover", "fees")
        return {
            "start": int(self.ts[0]) - self.interval.milliseconds,
            "end": int(self.ts[-1]),
            "bars": len(self.returns),
            "trades": self.trades,
            "final_equity": float(self.equity[-1]),
            "order_hash": self.order_hash,
            **{name: measured[name].value for name in shown},
        }


def growth(found: Backtest | None, bars: int, *, closed: bool) -> Array:
    """Return equity as a multiple of that at the start, [bars + 1]; never below 0.

    Args:
        found: the pass; None stays at 1.
        bars: of the pass.
        closed: whether what is held at the end is sold there.
    """
    if found is None:
        return np.ones(bars + 1)
    path = found.equity / found.equity[0]
    if closed:
        fee, spread = closing_costs(found)
        path[-1] -= (fee + spread) / found.equity[0]
    return np.asarray(np.maximum(path, 0.0))


def closing_costs(found: Backtest) -> tuple[float, float]:
    """Return fee and half spread of selling, at the last close, whatever is held there."""
    held = float(np.abs(found.bars["weight"][-1] * found.bars["equity"][-1]).sum())
    costs = found.market.costs
    return held * costs.taker_fee, held * costs.half_spread


def pool(folds: Sequence[FoldPass], interval: Interval, *, capital: float) -> Pooled:
    """Return folds and seeds as one account.

    Args:
        folds: in order of time; each begins at the mark at which the one before ends.
        interval: length of a bar.
        capital: at the start. Shares are scaled to it: exact where the passes had these very
            amounts, and but for order steps everywhere else.
    """
    book = _Book(len(folds[0].passes), capital)
    for number, one in enumerate(folds):
        book.add(one, closed=number + 1 < len(folds))
    hashes = ["" if found is None else found.order_hash for one in folds for found in one.passes]
    return Pooled(
        interval=interval,
        ts=np.concatenate([folds[0].marks[:1], *(one.marks[1:] for one in folds)]),
        equity=np.array(book.equity),
        seeds=np.stack([np.array(column) for column in book.seeds], axis=1),
        folds=tuple(book.folds),
        flows=Flows(**{name: np.concatenate(parts) for name, parts in book.flows.items()}),
        trips=np.concatenate([np.zeros(0), *book.trips]),
        trades=sum(len(found.trades) for one in folds for found in one.passes if found is not None),
        order_hash=hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
    )


class _Book:
    """The account while folds are added to it."""

    def __init__(self, seeds: int, capital: float) -> None:
        self.equity = [capital]
        self.seeds = [[capital / seeds] for _ in range(seeds)]
        self.folds: list[float] = []
        self.trips: list[Array] = []
        self.flows: dict[str, list[Array]] = {
            name: [] for name in ("turnover", "exposure", "fees", "funding", "slippage")
        }

    def add(self, fold: FoldPass, *, closed: bool) -> None:
        bars = len(fold.marks) - 1
        paths = [growth(found, bars, closed=closed) for found in fold.passes]
        start, share = self.equity[-1], self.equity[-1] / len(paths)
        total = share * np.sum(paths, axis=0)
        self._flow(fold.passes, share, total, closed=closed)
        self.equity.extend(total[1:].tolist())
        self.folds.append(float(total[-1] / start - 1.0) if start > 0.0 else 0.0)
        for column, path in zip(self.seeds, paths, strict=True):
            column.extend((column[-1] * path[1:]).tolist())

    def _flow(
        self, passes: Sequence[Backtest | None], share: float, total: Array, *, closed: bool
    ) -> None:
        """Add what happened in each bar, in money of this account or as shares of it."""
        sums = {name: np.zeros(len(total) - 1) for name in self.flows}
        before, after = (np.where(part > 0.0, part, 1.0) for part in (total[:-1], total[1:]))
        for found in passes:
            if found is None:
                continue
            scale = share / found.equity[0]
            sums["turnover"] += found.turnover * scale * found.equity[:-1] / before
            sums["exposure"] += found.exposure * scale * found.equity[1:] / after
            for name, column in _MONEY.items():
                sums[name] += scale * found.bars[column].sum(1)
            if closed:
                fee, spread = closing_costs(found)
                sums["fees"][-1] += scale * fee
                sums["slippage"][-1] += scale * spread
            self.trips.append(scale * found.round_trips)
        for name, numbers in sums.items():
            self.flows[name].append(numbers)


_MONEY: Mapping[str, str] = {"fees": "fee_total", "funding": "funding", "slippage": "slippage"}


def charged_bp(passes: Sequence[Backtest]) -> float | None:
    """Return what trading cost, all in, in basis points of the notional; None without a trade."""
    notional = sum(
        float((np.abs(one.bars["traded"]) * np.nan_to_num(one.bars["price"])).sum())
        for one in passes
    )
    paid = sum(float(one.bars["fee_total"].sum() + one.bars["slippage"].sum()) for one in passes)
    return 1e4 * paid / notional if notional > 0.0 else None
