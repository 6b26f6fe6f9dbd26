r"""What a professional reads off a track record: calendar returns, drawdowns, benchmark, rolling.

Pure functions of float64 arrays, beside the figures of the whole span in `figures`. A return
belongs to the month in which its bar opens, UTC: the bar that closes at midnight ends the old
month. No risk-free rate is subtracted, as in `figures`.

Where quantstats has the same definition it gives the same number (tests hold it to 1e-12): monthly
returns, greeks (alpha and beta), rolling volatility. It differs here: its information ratio is that
of one bar, ours a year's; its drawdown table counts from the first bar below a peak, ours from the
peak itself.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.stats.figures import (
    DAY_MS,
    Array,
    Drawdown,
    as_series,
    cvar,
    drawdown_of,
)

Period = Literal["month", "year"]
Times = NDArray[np.int64]

MINIMUM_PAIRS = 3
"""Bars below which a regression on a benchmark has no error left to measure."""

_NORMAL_95 = 1.959963984540054
_HALVINGS = 40
"""Of an interval of length 1: below 1e-12."""

_CHUNK = 512
"""Windows that are held in memory at once."""


class PeriodReturn(NamedTuple):
    """The return of one calendar month or year."""

    year: int
    month: int | None
    """1 to 12; None for a year."""
    value: float
    bars: int
    """Bars of the track record in it; a month at either end may be cut."""


def period_returns(
    returns: ArrayLike, ts: Times, *, bar_ms: int, period: Period
) -> list[PeriodReturn]:
    r"""Return the compounded return of each calendar month or year, in order.

    :math:`\prod_{t \in m} (1 + r_t) - 1` over the bars that open in the month, UTC. Definition.

    Args:
        returns: [T] simple returns of one bar.
        ts: [T] close of each bar, UTC milliseconds, ascending.
        bar_ms: length of a bar.
        period: `month` or `year`.

    Raises:
        ShapeError: if there is not one time for each return.
    """
    returns = as_series(returns, name="returns")
    if ts.shape != returns.shape:
        raise ShapeError(
            wrong=f"`ts` must have the shape {list(returns.shape)} of `returns`",
            found=str(list(ts.shape)),
            remedy="Pass the close of each bar, without that of the first mark.",
        )
    days, place = np.unique((ts - bar_ms) // DAY_MS, return_inverse=True)
    dates = [datetime.fromtimestamp(day * DAY_MS / 1000, UTC) for day in days.tolist()]
    keys = [(date.year, date.month if period == "month" else None) for date in dates]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    group = np.array([numbers[key] for key in keys], np.int64)[place] if len(keys) else place
    return [
        PeriodReturn(*key, float(np.prod(1.0 + returns[own]) - 1.0), int(np.count_nonzero(own)))
        for key, number in numbers.items()
        for own in [group == number]
    ]


def drawdowns_of(equity: ArrayLike) -> list[Drawdown]:
    """Return all drawdowns of an equity curve, largest first; the first is `drawdown_of`'s.

    A drawdown lasts from the last mark at a running maximum to the first that is at or above it
    again, or to the end; places are as in `Drawdown`.

    Args:
        equity: [T + 1], the start included; the first must be above 0.
    """
    equity = as_series(equity, name="equity")
    drawdown_of(equity)  # refuses what does not start above 0
    top = np.maximum.accumulate(equity)
    below = np.concatenate(([False], equity[1:] < top[1:], [False]))
    edges = np.flatnonzero(below[1:] != below[:-1]) + 1
    spells = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    drawdowns = []
    for first, last in spells:  # below the peak from `first` to the place before `last`
        trough = first + int(np.argmin(equity[first:last]))
        depth = float(equity[trough] / top[trough] - 1.0)
        recovery = last if last < equity.size else None
        drawdowns.append(Drawdown(depth, first - 1, trough, recovery))
    return sorted(drawdowns, key=lambda drawdown: drawdown.depth)


class Relative(NamedTuple):
    """A track record against a benchmark."""

    alpha: float
    """A year: what was earned beside beta times the benchmark, arithmetic."""
    alpha_error: float
    """Standard error of alpha."""
    beta: float
    beta_error: float
    correlation: float
    tracking_error: float
    """Annualised deviation of the difference of returns."""
    information_ratio: float
    """Annualised mean of the difference over its deviation."""

    def interval(self, name: Literal["alpha", "beta"]) -> tuple[float, float]:
        """Return the 95 % interval of alpha or beta, by the normal distribution."""
        middle, error = getattr(self, name), getattr(self, f"{name}_error")
        return middle - _NORMAL_95 * error, middle + _NORMAL_95 * error


def relative_to(returns: ArrayLike, benchmark: ArrayLike, *, per_year: float) -> Relative:
    r"""Return alpha, beta, correlation, tracking error and information ratio.

    Ordinary least squares of :math:`r_t = a + \beta b_t + e_t`:

    .. math::
        \beta = \frac{\sum (b_t - \bar b)(r_t - \bar r)}{\sum (b_t - \bar b)^2},\qquad
        \alpha = P\,(\bar r - \beta \bar b)

    with P bars a year (Jensen 1968 without a risk-free rate). The errors are White's (1980, HC0),
    :math:`(X'X)^{-1} (\sum e_t^2 x_t x_t') (X'X)^{-1}`, which hold where volatility clusters.
    The information ratio is :math:`\sqrt P\, \bar d / s_d` of the differences d = r - b, s with
    T - 1 degrees of freedom (Grinold & Kahn). NaN where the benchmark never moves, or for the
    ratio where the difference does not.

    Args:
        returns: [T].
        benchmark: [T] over the same bars.
        per_year: P, the number of bars in a year.

    Raises:
        ShapeError: if the two differ in length.
        RangeError: if there are fewer than 3 bars.
    """
    own, other = as_series(returns, name="returns"), as_series(benchmark, name="benchmark")
    _check_pairs(own, other)
    if np.ptp(other) == 0.0:
        beta = alpha = correlation = alpha_error = beta_error = math.nan
    else:
        moved, away = other - other.mean(), own - own.mean()
        beta = float(moved @ away / (moved @ moved))
        alpha = float(own.mean() - beta * other.mean())
        rest = own - alpha - beta * other
        errors = _white_errors(other, rest)
        alpha, alpha_error, beta_error = per_year * alpha, per_year * errors[0], errors[1]
        flat = np.ptp(own) == 0.0
        correlation = math.nan if flat else float(np.corrcoef(own, other)[0, 1])
    difference = own - other
    spread = float(difference.std(ddof=1))
    ratio = float(difference.mean()) / spread if np.ptp(difference) != 0.0 else math.nan
    root = math.sqrt(per_year)
    return Relative(alpha, alpha_error, beta, beta_error, correlation, root * spread, root * ratio)


def _check_pairs(own: Array, other: Array) -> None:
    if own.shape != other.shape:
        raise ShapeError(
            wrong=f"`benchmark` must have the {own.size} bars of `returns`",
            found=str(other.size),
            remedy="Take the returns of both over the same bars.",
        )
    if own.size < MINIMUM_PAIRS:
        raise RangeError(
            wrong=f"a regression must have at least {MINIMUM_PAIRS} bars",
            found=str(own.size),
            remedy="Take a longer span.",
        )


def _white_errors(x: Array, rest: Array) -> tuple[float, float]:
    """Return the standard errors of constant and slope, White's HC0."""
    columns = np.stack((np.ones_like(x), x), 1)
    bread = np.linalg.inv(columns.T @ columns)
    meat = (columns * (rest**2)[:, None]).T @ columns
    variance = np.diag(bread @ meat @ bread)
    return float(math.sqrt(variance[0])), float(math.sqrt(variance[1]))


class Rolling(NamedTuple):
    """Figures over a window that ends at each of some bars, [E] each."""

    ends: NDArray[np.int64]
    """Places of the last bars of the windows, ascending."""
    volatility: Array
    """Annualised."""
    sharpe: Array
    """Annualised; NaN in a window without any spread."""
    beta: Array | None
    """On the benchmark; NaN in a window in which it never moves; None without one."""


def rolling_figures(
    returns: ArrayLike,
    *,
    window: int,
    per_year: float,
    benchmark: ArrayLike | None = None,
    most: int | None = None,
) -> Rolling:
    r"""Return volatility, Sharpe ratio and beta over the last `window` bars at each bar.

    Those of `figures.volatility`, `figures.sharpe` and `relative_to`, window by window; nothing
    that lies after a window's last bar is read.

    Args:
        returns: [T].
        window: bars of a window, at least 2.
        per_year: bars in a year.
        benchmark: [T] over the same bars.
        most: at most so many windows, evenly spaced, the last among them; None takes all.

    Raises:
        ShapeError: if the benchmark has another length.
        RangeError: if the window has fewer than 2 bars.
    """
    own = as_series(returns, name="returns")
    other = None if benchmark is None else as_series(benchmark, name="benchmark")
    if other is not None:
        _check_pairs(own, other)
    if window < 2:
        raise RangeError(
            wrong="`window` must be at least 2 bars",
            found=str(window),
            remedy="One return has no deviation.",
        )
    count = own.size - window + 1
    if count < 1:
        nothing = np.zeros(0)
        return Rolling(np.zeros(0, np.int64), nothing, nothing, None if other is None else nothing)
    starts = np.arange(count)
    if most is not None and count > most:
        starts = np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
    parts = list(_windows(own, other, starts, window))
    deviation, mean, beta = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    root = math.sqrt(per_year)
    ratio = np.divide(mean, deviation, out=np.full_like(mean, np.nan), where=deviation > 0.0)
    return Rolling(
        starts + window - 1, root * deviation, root * ratio, None if other is None else beta
    )


def _windows(
    own: Array, other: Array | None, starts: NDArray[np.int64], window: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield deviation, mean and beta of some windows at a time."""
    views = sliding_window_view(own, window)
    others = None if other is None else sliding_window_view(other, window)
    for first in range(0, starts.size, _CHUNK):
        chosen = starts[first : first + _CHUNK]
        block = views[chosen]
        mean = block.mean(1)
        moved = np.ptp(block, axis=1) > 0.0  # of equal returns rounding leaves a deviation
        deviation = np.where(moved, block.std(1, ddof=1), 0.0)
        beta = np.full(len(chosen), np.nan)
        if others is not None:
            market = others[chosen]
            away = market - market.mean(1, keepdims=True)
            power = (away**2).sum(1)
            shared = (away * (block - mean[:, None])).sum(1)
            np.divide(shared, power, out=beta, where=np.ptp(market, axis=1) > 0.0)
        yield deviation, mean, beta


def at_volatility(returns: ArrayLike, target: ArrayLike) -> Array:
    r"""Return the returns times :math:`s_{target} / s`, so that both have the same deviation.

    What an account earns that holds a constant multiple of the strategy, rebalanced at every bar
    without costs: the form in which strategies of different risk are drawn on one axis. Ours.
    Returns without any spread are left as they are.
    """
    own, like = as_series(returns, name="returns"), as_series(target, name="target")
    if own.size < 2 or np.ptp(own) == 0.0:
        return own
    return np.asarray(own * (like.std(ddof=1) / own.std(ddof=1)))


def window_cvar(returns: ArrayLike, *, window: int, alpha: float) -> float:
    r"""Return the CVaR of the log growth over `window` bars, of all windows that the bars hold.

    .. math::
        \mathrm{CVaR}_\alpha\Big(\sum_{i=t}^{t+w-1} \log(1 + r_i)\Big), \quad t = 0, \dots, T - w

    Windows overlap: as an estimate it is that of all of them, its error that of T / w.

    Raises:
        RangeError: if there are fewer bars than a window has, or a return is -1 or less.
    """
    own = as_series(returns, name="returns")
    if not 1 <= window <= own.size:
        raise RangeError(
            wrong="a window must hold at least a bar and no more than there are",
            found=f"window={window} of {own.size} bars",
            remedy="Pass more bars, or a shorter window.",
        )
    if (own <= -1.0).any():
        raise RangeError(
            wrong="no return may lose everything: its logarithm is not finite",
            found=f"{own.min():g} at bar {int(own.argmin())}",
            remedy="Pass a smaller multiple of the position.",
        )
    growth = np.concatenate(([0.0], np.cumsum(np.log1p(own))))
    return cvar(growth[window:] - growth[:-window], alpha=alpha)


def multiple_at_cvar(returns: ArrayLike, target: float, *, window: int, alpha: float) -> float:
    r"""Return the multiple k of a position, in [0, 1], at which k r has a CVaR of `target`.

    .. math::
        \mathrm{CVaR}_\alpha\Big(\sum \log(1 + k r_i)\Big) = c

    by bisection between 0, where it is 0, and 1. What an account earns that holds a constant part
    of the strategy, rebalanced at every bar without costs. Ours. 1 where the whole position has
    that CVaR or a better one.

    Raises:
        RangeError: if the target is above 0, or as in `window_cvar`.
    """
    own = as_series(returns, name="returns")
    if not target <= 0.0:
        raise RangeError(
            wrong="the CVaR to be reached must be at most 0, that of holding nothing",
            found=f"target={target:g}",
            remedy="Scale the other strategy instead.",
        )
    if window_cvar(own, window=window, alpha=alpha) >= target:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if window_cvar(middle * own, window=window, alpha=alpha) >= target:
            low = middle
        else:
            high = middle
    return low
