"""The figures of one backtest, each with the data behind it, or the reason why there is none.

Every figure needs a least amount of data, named in `statements` with its reason. What has less is
marked and has no value: a Sharpe ratio of a week is a number, but it says nothing.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormsail.core.errors import ShapeError
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.figures import DAY_MS, Array
from stormsail.evaluation.stats.statement import (
    MINIMUM_BARS,
    MINIMUM_DAYS,
    Statement,
    needed_for_tail,
    state,
)


@dataclass(frozen=True)
class DatedDrawdown:
    """The maximum drawdown with its dates, milliseconds since 1970 UTC.

    Attributes:
        depth: 0 or negative, as a share of the peak.
        peak_ts: when it began; None where equity never fell.
        trough_ts: when it was deepest.
        recovery_ts: when the peak was reached again; None while it lasts.
    """

    depth: Statement
    peak_ts: int | None
    trough_ts: int | None
    recovery_ts: int | None


@dataclass(frozen=True)
class Metrics:
    """All figures of one equity curve. Money is in units of the account.

    Attributes:
        bars: how many returns there are.
        bar_ms: length of a bar.
        total_return: growth over the whole span, minus 1.
        annual_return: the yearly rate that compounds to it.
        volatility: annualised standard deviation.
        sharpe: annualised mean over standard deviation.
        sharpe_per_bar: the same for one bar, as tests of significance use it.
        sortino: annualised mean over downside deviation.
        calmar: annual return over the maximum drawdown.
        max_drawdown: with its dates.
        value_at_risk: return of one bar that is not passed with probability alpha.
        cvar: mean of the worst share alpha of one-bar returns.
        skew: third standardised moment of one-bar returns.
        turnover: traded value over equity, per day.
        exposure: mean absolute weight.
        exposure_time: share of bars with a position.
        fees: sum of fees, money.
        funding: sum of funding, money; positive is paid, negative received.
        slippage: sum of spread and impact, money.
        win_rate: share of outcomes above 0, with Wilson's interval.
        win_rate_exact: the same with the interval of Clopper & Pearson.
        profit_factor: gains over losses.
    """

    bars: int
    bar_ms: int
    total_return: Statement
    annual_return: Statement
    volatility: Statement
    sharpe: Statement
    sharpe_per_bar: Statement
    sortino: Statement
    calmar: Statement
    max_drawdown: DatedDrawdown
    value_at_risk: Statement
    cvar: Statement
    skew: Statement
    turnover: Statement
    exposure: Statement
    exposure_time: Statement
    fees: Statement
    funding: Statement
    slippage: Statement
    win_rate: Statement
    win_rate_exact: Statement
    profit_factor: Statement

    def shown(self) -> dict[str, str]:
        """Return the figures that one looks at first, as text."""
        stated = self.statements()
        forms = {
            "return": ("total_return", "+.2%"),
            "Sharpe ratio": ("sharpe", ".2f"),
            "max drawdown": ("max_drawdown", ".2%"),
            "CVaR of a bar": ("cvar", ".3%"),
        }
        values = {name: (stated[metric], form) for name, (metric, form) in forms.items()}
        return {
            name: one.reason if one.value is None else format(one.value, form)
            for name, (one, form) in values.items()
        }

    def statements(self) -> dict[str, Statement]:
        """Return every figure by name, the depth of the drawdown as `max_drawdown`."""
        named = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        named["max_drawdown"] = self.max_drawdown.depth
        return {name: figure for name, figure in named.items() if isinstance(figure, Statement)}

    def document(self) -> dict[str, JsonValue]:
        """Return the figures as JSON, each with its interval, data and reason."""
        drawdown = self.max_drawdown
        return {
            "bars": self.bars,
            "bar_ms": self.bar_ms,
            **{name: figure.document() for name, figure in self.statements().items()},
            "max_drawdown_dates": {
                "peak_ts": drawdown.peak_ts,
                "trough_ts": drawdown.trough_ts,
                "recovery_ts": drawdown.recovery_ts,
            },
        }


@dataclass(frozen=True)
class Flows:
    """What happened in each bar, [T] each; None where it was not recorded.

    Attributes:
        turnover: traded value over equity.
        exposure: signed weight held during the bar.
        fees: money paid to the exchange.
        funding: money paid as funding; negative where it was received.
        slippage: money lost to spread and impact.
    """

    turnover: ArrayLike | None = None
    exposure: ArrayLike | None = None
    fees: ArrayLike | None = None
    funding: ArrayLike | None = None
    slippage: ArrayLike | None = None

    def series(self, name: str, bars: int) -> Array | None:
        """Return one of them, checked, or None.

        Raises:
            ShapeError: if it has not one number per bar.
        """
        values = getattr(self, name)
        if values is None:
            return None
        series = figures.as_series(values, name=name)
        if series.size != bars:
            raise ShapeError(
                wrong=f"`{name}` must have one number for each of the {bars} bars",
                found=f"{series.size}",
                remedy="Pass what happened in each bar, 0 where nothing did.",
            )
        return series


def measure(
    equity: ArrayLike,
    ts: ArrayLike,
    *,
    bar_ms: int,
    flows: Flows | None = None,
    trade_pnl: ArrayLike | None = None,
    alpha: float = 0.05,
) -> Metrics:
    """Return every figure of an equity curve.

    Args:
        equity: [T + 1], the start included; the start must be above 0.
        ts: [T + 1], when each equity was measured, milliseconds since 1970 UTC.
        bar_ms: length of a bar in milliseconds.
        flows: what happened in each bar.
        trade_pnl: what each closed trade earned after costs, money. Without it win rate and profit
            factor are those of bars.
        alpha: share of worst bars, in (0, 1].

    Raises:
        ShapeError: if lengths differ.
        RangeError: if a number is not finite, or the equity does not start above 0.
    """
    equity = figures.as_series(equity, name="equity")
    returns = figures.returns_of(equity)
    flows = flows or Flows()
    return Metrics(
        bars=returns.size,
        bar_ms=bar_ms,
        max_drawdown=_drawdown(equity, ts),
        **_growth(returns, bar_ms),
        **_tail(returns, alpha),
        **_activity(flows, returns.size, bar_ms),
        **_outcomes(returns, trade_pnl),
    )


def key_figures(
    measured: Metrics, ts: NDArray[np.int64], equity: Array, *, trades: int, order_hash: str
) -> dict[str, JsonValue]:
    """Return the few figures by which backtests are set side by side, as JSON.

    `ts` are the close times of the marks, [T + 1], and `equity` is measured there.
    """
    shown = ("total_return", "sharpe", "max_drawdown", "cvar", "turnover", "fees")
    figure = measured.statements()
    return {
        "start": int(ts[0]) - measured.bar_ms,
        "end": int(ts[-1]),
        "bars": measured.bars,
        "trades": trades,
        "final_equity": float(equity[-1]),
        "order_hash": order_hash,
        **{name: figure[name].value for name in shown},
    }


def _growth(returns: Array, bar_ms: int) -> dict[str, Statement]:
    bars, per_year = returns.size, figures.bars_per_year(bar_ms)
    month = max(MINIMUM_BARS, math.ceil(MINIMUM_DAYS * DAY_MS / bar_ms))
    flat = "all returns are equal"
    return {
        "total_return": state(lambda: figures.total_return(returns), needed=1, found=bars),
        "annual_return": state(
            lambda: figures.annual_return(returns, per_year=per_year),
            needed=month,
            found=bars,
            why="the yearly rate is beyond any number",
        ),
        "volatility": state(
            lambda: figures.volatility(returns, per_year=per_year), needed=MINIMUM_BARS, found=bars
        ),
        "sharpe": state(
            lambda: figures.sharpe(returns, per_year=per_year),
            needed=MINIMUM_BARS,
            found=bars,
            why=flat,
        ),
        "sharpe_per_bar": state(
            lambda: float(figures.per_bar_sharpe(returns)),
            needed=MINIMUM_BARS,
            found=bars,
            why=flat,
        ),
        "sortino": state(
            lambda: figures.sortino(returns, per_year=per_year),
            needed=MINIMUM_BARS,
            found=bars,
            why="no bar lies below the target",
        ),
        "calmar": state(
            lambda: figures.calmar(returns, per_year=per_year),
            needed=month,
            found=bars,
            why="equity never fell",
        ),
        "skew": state(lambda: figures.skew(returns), needed=MINIMUM_BARS, found=bars, why=flat),
    }


def _tail(returns: Array, alpha: float) -> dict[str, Statement]:
    needed = needed_for_tail(alpha)
    return {
        "value_at_risk": state(
            lambda: figures.value_at_risk(returns, alpha=alpha), needed=needed, found=returns.size
        ),
        "cvar": state(
            lambda: figures.cvar(returns, alpha=alpha), needed=needed, found=returns.size
        ),
    }


def _activity(flows: Flows, bars: int, bar_ms: int) -> dict[str, Statement]:
    exposure = flows.series("exposure", bars)
    position = None if exposure is None else np.abs(exposure)
    days = bars * bar_ms / DAY_MS
    sums = {name: flows.series(name, bars) for name in ("fees", "funding", "slippage")}
    turnover = flows.series("turnover", bars)
    values = {
        "turnover": None if turnover is None or not bars else float(turnover.sum()) / days,
        "exposure": None if position is None or not bars else float(position.mean()),
        "exposure_time": None if position is None or not bars else float(np.mean(position > 0.0)),
        **{name: None if each is None else float(each.sum()) for name, each in sums.items()},
    }
    return {
        name: Statement(value, needed=1 if bars else 0, found=bars, why="it was not recorded")
        for name, value in values.items()
    }


def _outcomes(returns: Array, trade_pnl: ArrayLike | None) -> dict[str, Statement]:
    unit = "bars" if trade_pnl is None else "trades"
    outcomes = returns if trade_pnl is None else figures.as_series(trade_pnl, name="trade_pnl")
    won, count = figures.wins(outcomes)
    unit = f"{unit} with a gain or a loss"
    if count == 0:
        nothing = Statement(None, needed=1, found=0, unit=unit)
        return {"win_rate": nothing, "win_rate_exact": nothing, "profit_factor": nothing}
    rates = {
        name: Statement(
            won / count,
            *figures.binomial_interval(won, count, method=method),
            needed=1,
            found=count,
            unit=unit,
        )
        for name, method in (("win_rate", "wilson"), ("win_rate_exact", "exact"))
    }
    factor = state(
        lambda: figures.profit_factor(outcomes),
        needed=1,
        found=count,
        unit=unit,
        why="there was no loss",
    )
    return {**rates, "profit_factor": factor}


def _drawdown(equity: Array, ts: ArrayLike) -> DatedDrawdown:
    times: NDArray[np.int64] = np.asarray(ts, dtype=np.int64)
    if times.shape != equity.shape:
        raise ShapeError(
            wrong=f"`ts` must have the shape {list(equity.shape)} of `equity`",
            found=str(list(times.shape)),
            remedy="Pass when each equity was measured, the start included.",
        )
    drawdown = figures.drawdown_of(equity)
    bars = equity.size - 1
    depth = Statement(drawdown.depth if bars else None, needed=1, found=bars)
    if drawdown.depth == 0.0:
        return DatedDrawdown(depth, None, None, None)
    recovery = None if drawdown.recovery is None else int(times[drawdown.recovery])
    return DatedDrawdown(depth, int(times[drawdown.peak]), int(times[drawdown.trough]), recovery)
