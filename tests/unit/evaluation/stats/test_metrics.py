"""The figures of one backtest, and what they need."""

import json
import math

import numpy as np
import pytest

from stormsail.core.errors import ShapeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.metrics import Flows, measure

HOUR_MS = 3_600_000
START_MS = 1_609_459_200_000


def curve(bars, seed=0):
    generator = np.random.Generator(np.random.PCG64(seed))
    growth = np.cumprod(1.0 + 0.01 * generator.standard_normal(bars))
    equity = 1_000.0 * np.concatenate(([1.0], growth))
    return equity, START_MS + HOUR_MS * np.arange(bars + 1)


def test_every_figure_is_that_of_the_formula_for_hours():
    equity, ts = curve(720)
    x = figures.returns_of(equity)
    result = {
        name: each.value for name, each in measure(equity, ts, bar_ms=HOUR_MS).statements().items()
    }
    year = 8_760.0
    assert (
        result
        | {
            "total_return": figures.total_return(x),
            "annual_return": figures.annual_return(x, per_year=year),
            "volatility": figures.volatility(x, per_year=year),
            "sharpe": figures.sharpe(x, per_year=year),
            "sharpe_per_bar": float(figures.per_bar_sharpe(x)),
            "sortino": figures.sortino(x, per_year=year),
            "calmar": figures.calmar(x, per_year=year),
            "value_at_risk": figures.value_at_risk(x, alpha=0.05),
            "cvar": figures.cvar(x, alpha=0.05),
            "skew": figures.skew(x),
            "win_rate": np.count_nonzero(x > 0) / 720,
            "profit_factor": figures.profit_factor(x),
            "max_drawdown": figures.drawdown_of(equity).depth,
        }
        == result
    )


@pytest.mark.parametrize(
    ("bars", "absent"),
    [
        (0, 12),
        (29, 11),
        (30, 6),  # ratios and shape appear
        (199, 6),
        (200, 4),  # the tail at 5 %
        (719, 4),
        (720, 2),  # a month of hours: what is per year
    ],
)
def test_figures_appear_with_the_data_they_need(bars, absent):
    names = (
        *("total_return", "annual_return", "volatility", "sharpe", "sharpe_per_bar", "sortino"),
        *("calmar", "value_at_risk", "cvar", "skew", "turnover", "exposure"),
    )
    result = measure(*curve(bars), bar_ms=HOUR_MS).statements()
    assert sum(result[name].value is None for name in names) == absent
    for name in names:
        assert (result[name].value is None) == (result[name].reason != "")


def test_the_missing_data_is_named():
    result = measure(*curve(100), bar_ms=HOUR_MS)
    assert result.cvar.reason == "not enough data: needs 200 bars, found 100"
    assert result.annual_return.reason == "not enough data: needs 720 bars, found 100"
    assert measure(*curve(29), bar_ms=HOUR_MS).sharpe.reason == (
        "not enough data: needs 30 bars, found 29"
    )


def test_a_month_of_days_is_thirty_bars():
    equity, _ = curve(30)
    result = measure(equity, START_MS + 24 * HOUR_MS * np.arange(31), bar_ms=24 * HOUR_MS)
    x = figures.returns_of(equity)
    assert result.annual_return.value == figures.annual_return(x, per_year=365.0)


def test_the_drawdown_has_its_dates():
    equity = [100.0, 120.0, 90.0, 100.0, 125.0]
    ts = START_MS + HOUR_MS * np.arange(5)
    result = measure(equity, ts, bar_ms=HOUR_MS).max_drawdown
    assert result.depth.value == -0.25
    assert (result.peak_ts, result.trough_ts, result.recovery_ts) == tuple(
        START_MS + HOUR_MS * place for place in (1, 2, 4)
    )
    assert measure(equity[:4], ts[:4], bar_ms=HOUR_MS).max_drawdown.recovery_ts is None
    rising = measure([1.0, 2.0], ts[:2], bar_ms=HOUR_MS).max_drawdown
    assert (rising.depth.value, rising.peak_ts, rising.trough_ts) == (0.0, None, None)


def test_flows_are_summed_averaged_and_counted_per_day():
    equity, ts = curve(48)
    weight = np.zeros(48)
    weight[:12], weight[12:24] = 0.5, -1.0
    flows = Flows(
        turnover=np.full(48, 0.25),
        exposure=weight,
        fees=np.full(48, 2.0),
        funding=np.tile([1.0, -0.5], 24),
        slippage=np.full(48, 0.125),
    )
    result = measure(equity, ts, bar_ms=HOUR_MS, flows=flows)
    # 48 hours are 2 days: 12 / 2. |weight|: (12 * 0.5 + 12) / 48. Held in 24 of 48.
    assert result.turnover.value == 6.0
    assert result.exposure.value == 0.375
    assert result.exposure_time.value == 0.5
    assert (result.fees.value, result.funding.value, result.slippage.value) == (96.0, 12.0, 6.0)


def test_what_was_not_recorded_is_not_zero():
    result = measure(*curve(48), bar_ms=HOUR_MS)
    for name in ("turnover", "exposure", "exposure_time", "fees", "funding", "slippage"):
        statement = result.statements()[name]
        assert (statement.value, statement.reason) == (None, "it was not recorded")


def test_trades_replace_bars_in_win_rate_and_profit_factor():
    result = measure(*curve(48), bar_ms=HOUR_MS, trade_pnl=[3.0, -1.0, 0.0, 2.0])
    assert result.win_rate.value == result.win_rate_exact.value == 2 / 3
    assert (result.win_rate.low, result.win_rate.high) == figures.binomial_interval(2, 3)
    assert (result.win_rate_exact.low, result.win_rate_exact.high) == figures.binomial_interval(
        2, 3, method="exact"
    )
    assert result.win_rate.low > result.win_rate_exact.low
    assert result.profit_factor.value == 5.0
    assert result.win_rate.found == 3


def test_nothing_traded_has_no_win_rate_and_no_loss_no_factor():
    none = measure(*curve(48), bar_ms=HOUR_MS, trade_pnl=[])
    assert none.win_rate.reason == (
        "not enough data: needs 1 trades with a gain or a loss, found 0"
    )
    assert none.profit_factor.value is None
    lucky = measure(*curve(48), bar_ms=HOUR_MS, trade_pnl=[1.0, 2.0])
    assert lucky.profit_factor.reason == "there was no loss"


def test_an_account_that_never_traded_has_no_ratio():
    flat = measure(np.full(721, 100.0), START_MS + HOUR_MS * np.arange(721), bar_ms=HOUR_MS)
    assert flat.sharpe.reason == "all returns are equal"
    assert flat.sortino.reason == "no bar lies below the target"
    assert flat.calmar.reason == "equity never fell"
    assert (flat.volatility.value, flat.total_return.value) == (0.0, 0.0)


def test_a_ruined_account_lost_everything_and_nothing_after():
    equity = np.concatenate((np.linspace(100.0, 10.0, 400), [-5.0], np.full(400, -5.0)))
    result = measure(equity, START_MS + HOUR_MS * np.arange(801), bar_ms=HOUR_MS)
    assert result.annual_return.value == -1.0
    assert result.total_return.value == pytest.approx(-1.05, abs=1e-12)
    assert result.max_drawdown.depth.value == pytest.approx(-1.05, abs=1e-12)


def test_the_document_is_json():
    document = measure(*curve(100), bar_ms=HOUR_MS).document()
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["cvar"] == {
        "value": None,
        "low": None,
        "high": None,
        "needed": 200,
        "found": 100,
        "unit": "bars",
        "reason": "not enough data: needs 200 bars, found 100",
    }
    assert document["bars"] == 100
    assert math.isfinite(document["max_drawdown_dates"]["peak_ts"])


@pytest.mark.refusal
def test_other_lengths_are_refused():
    equity, ts = curve(48)
    with pytest.raises(
        ShapeError, match=r"`ts` must have the shape \[49\] of `equity`; found \[48\]"
    ):
        measure(equity, ts[:-1], bar_ms=HOUR_MS)
    with pytest.raises(ShapeError, match="`fees` must have one number for each of the 48 bars"):
        measure(equity, ts, bar_ms=HOUR_MS, flows=Flows(fees=np.zeros(49)))
