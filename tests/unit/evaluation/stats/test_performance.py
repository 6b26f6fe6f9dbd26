"""Calendar returns, drawdown table, regression on a benchmark, rolling figures."""

import math

import numpy as np
import pytest

from evaluation_peers import peer
from oracles import performance as oracle
from stormsail.core.errors import RangeError, ShapeError
from stormsail.evaluation.stats import figures
from stormsail.evaluation.stats.performance import (
    at_volatility,
    drawdowns_of,
    multiple_at_cvar,
    period_returns,
    relative_to,
    rolling_figures,
    window_cvar,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR = 8_760.0
START = 1_640_908_800_000
"""2021-12-31 00:00 UTC."""
SEEDS = pytest.mark.parametrize("seed", range(5))


def sample(seed, bars=1_500):
    generator = np.random.Generator(np.random.PCG64(seed))
    market = 0.006 * generator.standard_t(4, bars) + 0.0001
    own = 0.4 * market + 0.004 * generator.standard_normal(bars) + 0.0002
    return own, market


def closes(bars, bar_ms=HOUR_MS):
    return START + bar_ms * (1 + np.arange(bars, dtype=np.int64))


# ------------------------------------------------------------------ calendar


def test_a_bar_that_closes_at_midnight_ends_the_old_month():
    # 24 bars of 31 December, the last of which closes at 00:00 of 1 January, then 2 of January
    returns = np.concatenate((np.full(23, 0.0), [0.10], [0.20, -0.5]))
    rows = period_returns(returns, closes(26), bar_ms=HOUR_MS, period="month")
    assert [(row.year, row.month, row.bars) for row in rows] == [(2021, 12, 24), (2022, 1, 2)]
    assert [row.value for row in rows] == pytest.approx([0.10, 1.2 * 0.5 - 1.0], abs=1e-15)
    years = period_returns(returns, closes(26), bar_ms=HOUR_MS, period="year")
    assert [(row.year, row.month) for row in years] == [(2021, None), (2022, None)]


@SEEDS
def test_months_are_those_of_a_loop_and_compound_to_the_whole(seed):
    own, _ = sample(seed, 4_000)
    ts = closes(4_000)
    rows = period_returns(own, ts, bar_ms=HOUR_MS, period="month")
    expected = oracle.months(own.tolist(), ts.tolist(), HOUR_MS)
    assert {(row.year, row.month) for row in rows} == set(expected)
    for row in rows:
        assert row.value == pytest.approx(expected[row.year, row.month], abs=1e-12)
    whole = math.prod(1.0 + row.value for row in rows) - 1.0
    assert whole == pytest.approx(figures.total_return(own), rel=1e-12)
    full = [row for row in rows if row.year == 2022 and row.month <= 5]
    assert all(row.bars == 24 * oracle.days_in(row.year, row.month) for row in full)


@SEEDS
def test_quantstats_has_the_same_months(seed):
    quantstats, pandas = peer("quantstats.stats"), peer("pandas")
    own, _ = sample(seed, 400)
    ts = closes(400, DAY_MS)
    series = pandas.Series(own, index=pandas.to_datetime(ts - DAY_MS, unit="ms"))
    table = quantstats.monthly_returns(series, eoy=False)
    rows = period_returns(own, ts, bar_ms=DAY_MS, period="month")
    for row in rows:
        theirs = table.loc[str(row.year)].iloc[row.month - 1]
        assert row.value == pytest.approx(float(theirs), abs=1e-12)


def test_times_and_returns_must_be_as_many():
    with pytest.raises(ShapeError, match=r"the shape \[3\] of `returns`"):
        period_returns(np.zeros(3), closes(4), bar_ms=HOUR_MS, period="month")


# ------------------------------------------------------------------ drawdowns


def test_drawdowns_have_peak_trough_and_recovery():
    #                  0    1     2    3     4     5     6     7
    equity = np.array([100, 120, 90.0, 120, 130, 117, 104, 110])
    table = drawdowns_of(equity)
    assert [(row.peak, row.trough, row.recovery) for row in table] == [(1, 2, 3), (4, 6, None)]
    assert [row.depth for row in table] == pytest.approx([-0.25, -0.2], abs=1e-15)
    assert table[0] == figures.drawdown_of(equity)
    assert drawdowns_of([1.0, 1.0, 2.0]) == []
    with pytest.raises(RangeError, match="start above 0"):
        drawdowns_of([0.0, 1.0])


@SEEDS
def test_the_table_of_drawdowns_is_that_of_a_loop(seed):
    own, _ = sample(seed)
    equity = 1_000.0 * np.cumprod(np.concatenate(([1.0], 1.0 + own)))
    table, expected = drawdowns_of(equity), oracle.drawdowns(equity.tolist())
    assert [(row.peak, row.trough, row.recovery) for row in table] == [row[1:] for row in expected]
    assert [row.depth for row in table] == pytest.approx([row[0] for row in expected], abs=1e-14)


@SEEDS
def test_quantstats_has_the_same_drawdowns(seed):
    quantstats, pandas = peer("quantstats.stats"), peer("pandas")
    own, _ = sample(seed, 300)
    equity = np.cumprod(np.concatenate(([1.0], 1.0 + own)))
    index = pandas.date_range("2022-01-01", periods=301, freq="D")
    series = pandas.Series(equity, index=index)
    theirs = quantstats.drawdown_details(series / series.cummax() - 1.0)
    depths = sorted(float(value) for value in theirs["max drawdown"])
    assert [100.0 * row.depth for row in drawdowns_of(equity)] == pytest.approx(depths, abs=1e-9)


# ------------------------------------------------------------------ benchmark


def test_a_regression_by_hand():
    # b = 0, 1, 2 and r = 0, 0, 3 (in per cent): slope 3 / 2, constant 1 - 1.5 = -0.5, residuals
    # 0.5, -1, 0.5
    own, other = np.array([0.0, 0.0, 0.03]), np.array([0.0, 0.01, 0.02])
    result = relative_to(own, other, per_year=4.0)
    assert result.beta == pytest.approx(1.5, abs=1e-14)
    assert result.alpha == pytest.approx(4.0 * -0.005, abs=1e-15)
    # slope: sum of ((b - 1) / 2)^2 e^2 = 2 (0.25)(0.25) = 0.125, in units of 1
    assert result.beta_error == pytest.approx(math.sqrt(0.125), abs=1e-13)
    # constant: weights 1/3 - (b - 1) / 2 = 5/6, 1/3, -1/6; sum of w^2 e^2 = 42 / 144
    assert result.alpha_error == pytest.approx(4.0 * math.sqrt(42.0 / 144.0) / 100.0, abs=1e-14)
    low, high = result.interval("beta")
    assert (low + high) / 2.0 == pytest.approx(1.5)
    assert high - low == pytest.approx(2 * 1.959963984540054 * math.sqrt(0.125))
    # differences of 1, 0, 2 per cent: mean 1, deviation 1
    again = relative_to(own, np.array([-0.01, 0.0, 0.01]), per_year=4.0)
    assert again.tracking_error == pytest.approx(0.02, abs=1e-15)
    assert again.information_ratio == pytest.approx(2.0, abs=1e-13)
    # covariance 3, variances 2 and 6: 3 / sqrt(12)
    assert again.correlation == pytest.approx(3.0 / math.sqrt(12.0), abs=1e-13)


@SEEDS
def test_a_regression_is_that_of_a_loop_and_of_statsmodels(seed):
    own, other = sample(seed)
    result = relative_to(own, other, per_year=YEAR)
    assert tuple(result) == pytest.approx(
        oracle.regression(own.tolist(), other.tolist(), YEAR), rel=1e-9
    )
    api = peer("statsmodels.api")
    fitted = api.OLS(own, api.add_constant(other)).fit(cov_type="HC0")
    assert result.beta == pytest.approx(fitted.params[1], rel=1e-10)
    assert result.beta_error == pytest.approx(fitted.bse[1], rel=1e-9)
    assert result.alpha_error == pytest.approx(YEAR * fitted.bse[0], rel=1e-9)


@SEEDS
def test_quantstats_and_empyrical_have_the_same_alpha_beta_and_ratio(seed):
    quantstats, pandas, empyrical = peer("quantstats.stats"), peer("pandas"), peer("empyrical")
    own, other = sample(seed, 400)
    index = pandas.date_range("2022-01-01", periods=400, freq="D")
    series, market = pandas.Series(own, index=index), pandas.Series(other, index=index)
    result = relative_to(own, other, per_year=365.0)
    greeks = quantstats.greeks(series, market, periods=365.0, prepare_returns=False)
    assert result.beta == pytest.approx(float(greeks["beta"]), abs=1e-12)
    assert result.alpha == pytest.approx(float(greeks["alpha"]), abs=1e-12)
    assert result.beta == pytest.approx(float(empyrical.beta(series, market)), abs=1e-12)
    theirs = quantstats.information_ratio(series, market, prepare_returns=False)
    # theirs is that of one bar
    assert result.information_ratio / math.sqrt(365.0) == pytest.approx(float(theirs), abs=1e-12)


def test_a_benchmark_that_never_moves_has_no_beta():
    own, _ = sample(0, 50)
    result = relative_to(own, np.zeros(50), per_year=YEAR)
    assert math.isnan(result.beta)
    assert math.isnan(result.alpha)
    assert result.information_ratio == pytest.approx(figures.sharpe(own, per_year=YEAR), abs=1e-12)
    with pytest.raises(ShapeError, match="50 bars"):
        relative_to(own, np.zeros(49), per_year=YEAR)
    with pytest.raises(RangeError, match="at least 3 bars"):
        relative_to(own[:2], own[:2], per_year=YEAR)


def test_against_itself_beta_is_one_and_alpha_nothing():
    own, _ = sample(1, 80)
    result = relative_to(own, own, per_year=YEAR)
    assert result.beta == pytest.approx(1.0, abs=1e-12)
    assert result.alpha == pytest.approx(0.0, abs=1e-12)
    assert result.tracking_error == 0.0
    assert math.isnan(result.information_ratio)


# ------------------------------------------------------------------ rolling


@SEEDS
def test_rolling_figures_are_those_of_each_window_alone(seed):
    own, other = sample(seed, 700)
    rolled = rolling_figures(own, window=60, per_year=YEAR, benchmark=other)
    assert rolled.ends.tolist() == list(range(59, 700))
    for place in (0, 1, 511, 512, 640):
        end = int(rolled.ends[place]) + 1
        volatility, sharpe, beta = oracle.window(
            own[end - 60 : end].tolist(), other[end - 60 : end].tolist(), YEAR
        )
        assert rolled.volatility[place] == pytest.approx(volatility, rel=1e-11)
        assert rolled.sharpe[place] == pytest.approx(sharpe, rel=1e-10)
        assert rolled.beta[place] == pytest.approx(beta, rel=1e-10)


def test_rolling_reads_nothing_later_and_thins_evenly():
    own, other = sample(3, 700)
    rolled = rolling_figures(own, window=60, per_year=YEAR, benchmark=other, most=100)
    assert len(rolled.ends) == 100
    assert (rolled.ends[0], rolled.ends[-1]) == (59, 699)
    changed = own.copy()
    changed[400:] = 9.0
    again = rolling_figures(changed, window=60, per_year=YEAR, benchmark=other, most=100)
    early = rolled.ends < 400
    assert np.array_equal(rolled.sharpe[early], again.sharpe[early])
    assert np.array_equal(rolled.beta[early], again.beta[early])


@SEEDS
def test_pandas_rolls_the_same_volatility(seed):
    pandas = peer("pandas")
    own, _ = sample(seed, 300)
    rolled = rolling_figures(own, window=50, per_year=YEAR)
    theirs = pandas.Series(own).rolling(50).std().to_numpy()[49:] * math.sqrt(YEAR)
    assert rolled.volatility == pytest.approx(theirs, rel=1e-9)
    assert rolled.beta is None


def test_a_window_without_spread_has_no_ratio():
    own = np.concatenate((np.full(30, 0.001), [0.01]))
    rolled = rolling_figures(own, window=10, per_year=YEAR, benchmark=np.zeros(31))
    assert np.isnan(rolled.sharpe[:-1]).all()
    assert math.isfinite(rolled.sharpe[-1])
    assert np.isnan(rolled.beta).all()
    assert rolling_figures(own, window=40, per_year=YEAR).ends.size == 0
    with pytest.raises(RangeError, match="at least 2 bars"):
        rolling_figures(own, window=1, per_year=YEAR)


def test_at_equal_volatility_the_deviation_is_the_target_and_the_sharpe_ratio_stays():
    own, other = sample(4, 200)
    scaled = at_volatility(other, own)
    assert scaled.std(ddof=1) == pytest.approx(own.std(ddof=1), rel=1e-12)
    assert figures.sharpe(scaled, per_year=YEAR) == pytest.approx(
        figures.sharpe(other, per_year=YEAR), rel=1e-12
    )
    assert np.array_equal(at_volatility(np.zeros(5), own), np.zeros(5))


def looped_cvar(returns, window, alpha):
    """Mean of the worst share of sums over windows, the boundary one in part."""
    sums = sorted(
        sum(math.log(1.0 + x) for x in returns[t : t + window])
        for t in range(len(returns) - window + 1)
    )
    mass, total = alpha * len(sums), 0.0
    for value in sums:
        part = min(1.0, mass)
        total, mass = total + part * value, mass - part
    return total / (alpha * len(sums))


def test_the_cvar_of_windows_is_that_of_sums_of_logarithms():
    own = sample(6, 90)[0]
    for window, alpha in ((1, 0.05), (7, 0.1), (24, 0.33)):
        result = window_cvar(own, window=window, alpha=alpha)
        assert result == pytest.approx(looped_cvar(own.tolist(), window, alpha), rel=1e-12)
    # two windows of two bars: log(.9·1.1) and log(1.1·.8); the worse half is the second
    assert window_cvar([-0.1, 0.1, -0.2], window=2, alpha=0.5) == pytest.approx(math.log(0.88))
    with pytest.raises(RangeError, match="window=91 of 90 bars"):
        window_cvar(own, window=91, alpha=0.05)
    with pytest.raises(RangeError, match="-1 at bar 1"):
        window_cvar([0.1, -1.0], window=1, alpha=0.5)


def test_a_part_of_a_position_has_the_cvar_that_was_wanted():
    """Of returns +-.2, the worse half at a multiple k loses log(1 - .2 k): k = .5 for log(.9)."""
    swing = [0.2, -0.2]
    half = multiple_at_cvar(swing, math.log(0.9), window=1, alpha=0.5)
    assert half == pytest.approx(0.5, abs=1e-9)
    own = sample(7, 400)[0]
    whole = window_cvar(own, window=12, alpha=0.05)
    part = multiple_at_cvar(own, 0.3 * whole, window=12, alpha=0.05)
    scaled = window_cvar(part * own, window=12, alpha=0.05)
    assert scaled == pytest.approx(0.3 * whole, rel=1e-9)
    assert multiple_at_cvar(own, 2.0 * whole, window=12, alpha=0.05) == 1.0
    with pytest.raises(RangeError, match=r"target=0\.1"):
        multiple_at_cvar(own, 0.1, window=12, alpha=0.05)
