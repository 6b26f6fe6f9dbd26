"""Time series of a report: downsampling, growth, drawdown, rolling risk, positions, prices."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormsail.evaluation.saved import Result, Times, column, texts
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import DAY_MS, Array
from stormsail.evaluation.stats.frames import BENCHMARK
from stormsail.evaluation.stats.performance import rolling_figures
from stormsail.evaluation.stats.statement import needed_for_tail

MOST_POINTS = 1_600
"""Points that are drawn of one series: about two for each pixel of a wide page."""

TAIL = 0.05
"""Share of worst bars that a tail is."""

ROLLING_DAYS = 30
"""Days of a rolling window, where there is data for several."""

_LEAST_WINDOWS = 4


class Line(NamedTuple):
    """Points of a series, as they are drawn."""

    ts: Times
    values: Array


def thinned(ts: Times, values: Array, *, most: int = MOST_POINTS) -> Line:
    """Downsample a series for drawing: keep minimum and maximum of every stretch.

    The series is cut into equal stretches, and of each the lowest and the highest point are kept,
    at their own times; first and last are kept too. So no extreme is lost, and highest, lowest and
    max drawdown between stretches are drawn exactly. Where a whole stretch is NaN, its first point
    is kept, so that the gap is seen.

    Args:
        ts: [T] ascending.
        values: [T], NaN where there is none.
        most: about how many points are kept, at least 4.
    """
    count = len(values)
    if count <= most:
        return Line(ts, values)
    edges = np.linspace(0, count, (most - 2) // 2 + 1).astype(np.int64)
    kept = {0, count - 1}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[first:last]
        if np.isnan(stretch).all():
            kept.add(first)
            continue
        kept |= {first + int(np.nanargmin(stretch)), first + int(np.nanargmax(stretch))}
    places = np.array(sorted(kept))
    return Line(ts[places], values[places])


def growth(equity: Array) -> Array:
    """Return equity as a multiple of the equity at the start."""
    return np.asarray(equity / equity[0])


def drawdown(equity: Array) -> Array:
    """Return the drawdown at each mark: equity over its running maximum, minus 1 (0 or less)."""
    top = np.maximum.accumulate(equity)
    return np.asarray(equity / top - 1.0)


class Rolling(NamedTuple):
    """Volatility, CVaR, Sharpe ratio and beta of a rolling window."""

    window: int
    """Bars of it."""
    ts: Times
    """Time at which each window ends."""
    volatility: Array
    """Annualised."""
    cvar: Array
    """Mean of the worst 5 % of returns of one bar."""
    sharpe: Array
    """Annualised; NaN in a window without any spread."""
    beta: Array | None
    """On buy and hold; None where that was not measured."""


def rolling_needs() -> int:
    """Return the bars that a rolling tail needs: twice those of one window."""
    return 2 * needed_for_tail(TAIL)


def rolling(result: Result) -> Rolling | None:
    """Return rolling volatility, CVaR, Sharpe ratio and beta; None where there are too few bars.

    The window is 30 days, or a quarter of the data where that is less, and never too short for its
    own tail. Each point is exact; where there are very many bars, every k-th is computed.
    """
    returns, ts = result.returns, result.ts[1:]
    if len(returns) < rolling_needs():
        return None
    usual = min(round(ROLLING_DAYS * DAY_MS / result.bar_ms), len(returns) // _LEAST_WINDOWS)
    window = max(usual, needed_for_tail(TAIL))
    per_year = figures.bars_per_year(result.bar_ms)
    rolled = rolling_figures(
        returns,
        window=window,
        per_year=per_year,
        benchmark=_holding(result),
        most=MOST_POINTS // 2,
    )
    pieces = [returns[end + 1 - window : end + 1] for end in rolled.ends.tolist()]
    return Rolling(
        window,
        ts[rolled.ends],
        rolled.volatility,
        np.array([figures.cvar(piece, alpha=TAIL) for piece in pieces]),
        rolled.sharpe,
        rolled.beta,
    )


def _holding(result: Result) -> Array | None:
    """Return the returns of buy and hold over the same bars; None where it was not measured."""
    equity = result.frames.benchmarks.get(BENCHMARK)
    return None if equity is None or len(equity) != len(result.ts) else figures.returns_of(equity)


class Position(NamedTuple):
    """Weight and price of one symbol over time."""

    ts: Times
    """Closes of bars, ascending."""
    weight: Array
    """Share of the account's equity held at that close; the mean of the accounts where several
    trade the symbol."""
    price: Array
    """Price of the close where something was held; NaN elsewhere."""


def position_of(result: Result, symbol: str) -> Position:
    """Return weights and prices of one symbol, from the table of decisions.

    A folder of results holds no bars. But w = q p / e gives the closing price p wherever the
    account holds q at equity e and weight w.
    """
    if not result.decisions.num_rows:
        return Position(result.ts[:0], np.zeros(0), np.zeros(0))
    own = np.flatnonzero(texts(result.decisions, "symbol") == symbol)
    decided = result.decisions.take(own)
    ts = np.asarray(decided["ts"].to_numpy(), np.int64) + result.bar_ms
    weight = np.nan_to_num(column(decided, "weight"))
    equity = _account(result, symbol, ts)
    quantity = column(decided, "quantity")
    held = (quantity != 0.0) & np.isfinite(quantity)
    price = np.where(held, weight * equity / np.where(held, quantity, 1.0), np.nan)
    times, place = np.unique(ts, return_inverse=True)
    return Position(times, _means(weight, place, len(times)), _means(price, place, len(times)))


def _account(result: Result, symbol: str, ts: Times) -> Array:
    """Return the equity of a symbol's account at these times, NaN where it is not known.

    A validation keeps no account of a symbol: its columns are those of seeds, chained over folds.
    """
    if result.kind != "backtest" or symbol not in result.equity.column_names[2:]:
        return np.full(len(ts), np.nan)
    place = np.clip(np.searchsorted(result.ts, ts), 0, len(result.ts) - 1)
    return np.where(result.ts[place] == ts, column(result.equity, symbol)[place], np.nan)


def _means(values: Array, place: NDArray[np.intp], count: int) -> Array:
    """Return the mean of the numbers at each place, NaN where there is none."""
    known = np.isfinite(values)
    number = np.bincount(place[known], minlength=count)
    total = np.bincount(place[known], values[known], minlength=count)
    return np.asarray(np.where(number > 0, total / np.maximum(number, 1), np.nan))
