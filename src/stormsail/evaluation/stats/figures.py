"""Return, risk and drawdown of an equity curve, for a market that never closes.

T bars, S strategies; returns are simple, `equity[t + 1] / equity[t] - 1`, in float64, along the
first axis. A year has 365 days of 24 hours, so one of hourly bars has 8,760. No risk-free rate is
subtracted: cash at an exchange earns none. The plain functions compute from whatever they get and
answer NaN where a figure is not defined; `evaluation.metrics` marks what has too little data.

Other libraries agree where their definition is the same (tests hold it to 1e-12) and differ here:

* empyrical and quantstats assume 252 periods a year unless told otherwise;
* empyrical's VaR interpolates between two returns, and its CVaR averages whole returns; ours are
  the ones of `functional.risk`, where the last return of the tail counts in part;
* quantstats' and pandas' skew carry a small-sample correction; ours is the plain moment ratio;
* a Sharpe ratio of returns without any spread is NaN here, not infinite.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from stormsail.core.errors import RangeError, ShapeError
from stormsail.functional import risk

Array = NDArray[np.float64]

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


def bars_per_year(bar_ms: int) -> float:
    """Return how many bars of this length a year of 365 days has.

    Raises:
        RangeError: if a bar does not last at least a millisecond.
    """
    if bar_ms < 1:
        raise RangeError(
            wrong="`bar_ms` must be at least 1 millisecond",
            found=repr(bar_ms),
            remedy="Pass the length of a bar, such as 3_600_000 for an hour.",
        )
    return YEAR_MS / bar_ms


def as_series(values: ArrayLike, *, name: str, columns: bool = False) -> Array:
    """Return finite float64 numbers along time: `[T]`, or `[T, S]` where columns are allowed.

    Raises:
        ShapeError: if there is another number of dimensions.
        RangeError: if a number is not finite.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1 and not (columns and series.ndim == 2):
        raise ShapeError(
            wrong=f"`{name}` must have the shape [T]{' or [T, S]' if columns else ''}",
            found=str(list(series.shape)),
            remedy="Pass one number per bar.",
        )
    wrong = int(np.count_nonzero(~np.isfinite(series)))
    if wrong:
        raise RangeError(
            wrong=f"`{name}` must hold finite numbers only",
            found=f"{wrong} of {series.size} that are not",
            remedy="Look for the bar where the first of them arises.",
        )
    return series


def returns_of(equity: ArrayLike) -> Array:
    """Return the simple return of every bar, [T] from equity [T + 1].

    After ruin, that is from an equity of 0 or less, a return has no meaning; it is 0 there.
    """
    equity = as_series(equity, name="equity")
    before, after = equity[:-1], equity[1:]
    alive = before > 0.0
    ratio = np.divide(after, before, out=np.ones_like(after), where=alive)
    return ratio - 1.0


def total_return(returns: ArrayLike) -> float:
    r"""Return :math:`\prod_t (1 + r_t) - 1`."""
    return float(np.prod(1.0 + as_series(returns, name="returns")) - 1.0)


def annual_return(returns: ArrayLike, *, per_year: float) -> float:
    r"""Return the yearly rate that compounds to the same end, :math:`\prod(1+r_t)^{P/T} - 1`.

    P is `per_year`, the number of bars in a year. An end at or below nothing is -1.
    """
    returns = as_series(returns, name="returns")
    if not returns.size:
        return math.nan
    end = float(np.prod(1.0 + returns))
    return end ** (per_year / returns.size) - 1.0 if end > 0.0 else -1.0


def volatility(returns: ArrayLike, *, per_year: float) -> float:
    r"""Return :math:`\sqrt{P}\, s`, with s the standard deviation of T - 1 degrees of freedom."""
    returns = as_series(returns, name="returns")
    return float(returns.std(ddof=1) * math.sqrt(per_year)) if returns.size > 1 else math.nan


def per_bar_sharpe(returns: ArrayLike) -> Array:
    r"""Return mean over standard deviation of one bar, :math:`\bar r / s`, for each column.

    The form that tests of significance use: Bailey & López de Prado 2014 (The Deflated Sharpe
    Ratio) never annualise. s has T - 1 degrees of freedom. NaN where all returns are equal: the
    deviation that rounding leaves there would give any number. Returns of shape [T] or [T, S] give
    a ratio of shape [] or [S].
    """
    returns = as_series(returns, name="returns", columns=True)
    if returns.shape[0] < 2:
        return np.full(returns.shape[1:], np.nan)
    flat = np.ptp(returns, axis=0) == 0.0
    std = np.where(flat, np.nan, returns.std(axis=0, ddof=1))
    return np.asarray(returns.mean(axis=0) / std, dtype=np.float64)


def sharpe(returns: ArrayLike, *, per_year: float) -> float:
    r"""Return the annualised Sharpe ratio, :math:`\sqrt{P}\, \bar r / s`.

    The root assumes returns without serial correlation.
    """
    return float(per_bar_sharpe(as_series(returns, name="returns")) * math.sqrt(per_year))


def sortino(returns: ArrayLike, *, per_year: float, target: float = 0.0) -> float:
    r"""Return the annualised mean excess over the downside deviation.

    .. math::
        \sqrt{P}\, \frac{\bar r - m}{\sqrt{\frac1T \sum_t \min(r_t - m, 0)^2}}

    m is `target`, per bar. The sum is divided by all T bars, not by the losing ones alone. NaN
    where no bar lies below the target.
    """
    excess = as_series(returns, name="returns") - target
    if not excess.size:
        return math.nan
    downside = math.sqrt(float(np.mean(np.minimum(excess, 0.0) ** 2)))
    return float(excess.mean() / downside * math.sqrt(per_year)) if downside else math.nan


def skew(returns: ArrayLike) -> float:
    r"""Return :math:`m_3 / m_2^{3/2}`, central moments divided by T; NaN without spread."""
    returns = as_series(returns, name="returns")
    if not returns.size or np.ptp(returns) == 0.0:
        return math.nan
    from scipy import stats  # half a second of imports, so not above

    return float(stats.skew(returns))


def kurtosis(returns: ArrayLike) -> float:
    r"""Return :math:`m_4 / m_2^2`, 3 for a normal distribution; NaN without spread."""
    returns = as_series(returns, name="returns")
    if not returns.size or np.ptp(returns) == 0.0:
        return math.nan
    from scipy import stats  # half a second of imports, so not above

    return float(stats.kurtosis(returns, fisher=False))


def value_at_risk(returns: ArrayLike, *, alpha: float) -> float:
    """Return the return that is not passed with probability `alpha`: the ceil(alpha T)-th lowest.

    `functional.risk.value_at_risk` of the empirical distribution. It has the sign of a return.
    """
    returns = as_series(returns, name="returns")
    return float(risk.value_at_risk(torch.from_numpy(returns), alpha=alpha))


def cvar(returns: ArrayLike, *, alpha: float) -> float:
    """Return the mean of the worst `alpha` share of returns, the last one counted in part.

    `functional.risk.empirical_cvar`. It has the sign of a return: a bad tail is negative.
    """
    returns = as_series(returns, name="returns")
    return float(risk.empirical_cvar(torch.from_numpy(returns), alpha=alpha))


@dataclass(frozen=True)
class Drawdown:
    """The maximum drawdown of an equity curve, by places in it.

    Attributes:
        depth: lowest equity over the highest before it, minus 1; 0 where equity never fell.
        peak: where the drawdown begins: the last place at the highest equity.
        trough: where it is deepest: the first such place.
        recovery: first place at or above the peak again; None while it lasts.
    """

    depth: float
    peak: int
    trough: int
    recovery: int | None


def drawdown_of(equity: ArrayLike) -> Drawdown:
    r"""Return the maximum drawdown, :math:`\min_t e_t / \max_{u \le t} e_u - 1`, with its places.

    Args:
        equity: [T + 1], the start included; the first must be above 0.
    """
    equity = as_series(equity, name="equity")
    if not equity.size or equity[0] <= 0.0:
        raise RangeError(
            wrong="`equity` must start above 0",
            found=f"{equity[0]}" if equity.size else "no number",
            remedy="Pass the equity before the first bar as its first entry.",
        )
    top = np.maximum.accumulate(equity)
    below = equity / top - 1.0
    trough = int(np.argmin(below))
    peak = int(np.flatnonzero(equity[: trough + 1] == top[trough])[-1])
    back = np.flatnonzero(equity[trough:] >= top[trough])
    recovery = trough + int(back[0]) if back.size else None
    return Drawdown(float(below[trough]), peak, trough, recovery)


def max_drawdown(returns: ArrayLike) -> float:
    """Return the depth of the maximum drawdown of the compounded returns, 0 or negative."""
    growth = np.cumprod(1.0 + as_series(returns, name="returns"))
    return drawdown_of(np.concatenate(([1.0], growth))).depth


def calmar(returns: ArrayLike, *, per_year: float) -> float:
    """Return the annual return over the depth of the maximum drawdown; NaN without one."""
    depth = max_drawdown(returns)
    return annual_return(returns, per_year=per_year) / -depth if depth < 0.0 else math.nan


def profit_factor(outcomes: ArrayLike) -> float:
    """Return what was gained over what was lost; infinite without a loss, NaN without either."""
    outcomes = as_series(outcomes, name="outcomes")
    gain = float(outcomes[outcomes > 0.0].sum())
    loss = float(-outcomes[outcomes < 0.0].sum())
    if loss == 0.0:
        return math.inf if gain > 0.0 else math.nan
    return gain / loss


def wins(outcomes: ArrayLike) -> tuple[int, int]:
    """Return how many outcomes were gains, and of how many; one of exactly 0 is neither."""
    outcomes = as_series(outcomes, name="outcomes")
    return int(np.count_nonzero(outcomes > 0.0)), int(np.count_nonzero(outcomes))


def binomial_interval(
    successes: int, count: int, *, confidence: float = 0.95, method: str = "wilson"
) -> tuple[float, float]:
    """Return an interval for the probability behind `successes` of `count`, by scipy.

    Args:
        successes: at least 0 and at most `count`.
        count: at least 1.
        confidence: coverage of the interval, in (0, 1).
        method: `wilson` (on average as wide as it says) or `exact` (Clopper & Pearson: never
            covers less than it says, so it is wider).
    """
    from scipy import stats  # half a second of imports, so not above

    interval = stats.binomtest(successes, count).proportion_ci(confidence, method=method)
    return float(interval.low), float(interval.high)
