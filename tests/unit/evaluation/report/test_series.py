"""Series of a report: downsampling, drawdown, rolling risk, positions and prices."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_lab import write_made_validation
from simulator_lab import HOUR_MS
from stormsail.evaluation.report.series import (
    drawdown,
    growth,
    position_of,
    rolling,
    rolling_needs,
    thinned,
)
from stormsail.evaluation.saved import Result, read_result
from stormsail.evaluation.stats import figures


def made(equity, **more):
    """Return a backtest of one symbol from its equity alone."""
    ts = HOUR_MS * np.arange(len(equity))
    table = pa.table({"ts": ts, "total": np.asarray(equity, float), "A": np.asarray(equity, float)})
    none = pa.table({"ts": pa.array([], pa.int64())})
    document = {"symbols": ["A"], "metrics": {"bar_ms": HOUR_MS}}
    return Result("one", "backtest", document, table, none, more.get("decisions", none), {})


def test_thinning_keeps_the_extremes_of_every_stretch_at_their_own_times():
    # two stretches of five: 1 5 2 3 4 and 9 6 0 7 8; first and last are kept too
    values = np.array([1.0, 5.0, 2.0, 3.0, 4.0, 9.0, 6.0, 0.0, 7.0, 8.0])
    line = thinned(np.arange(10) * 100, values, most=6)
    assert line.values.tolist() == [1.0, 5.0, 9.0, 0.0, 8.0]
    assert line.ts.tolist() == [0, 100, 500, 700, 900]


def test_a_short_series_is_left_as_it_is():
    values = np.array([3.0, np.nan, 1.0])
    line = thinned(np.arange(3), values, most=3)
    assert line.values is values


def test_a_stretch_without_numbers_stays_a_gap():
    values = np.array([1.0, 2.0, 3.0, np.nan, np.nan, np.nan, 4.0, 9.0, 5.0])
    line = thinned(np.arange(9), values, most=8)
    assert line.ts.tolist() == [0, 2, 3, 6, 7, 8]
    assert np.isnan(line.values[2])


@given(st.integers(0, 10_000), st.integers(30, 400), st.integers(8, 28))
def test_thinning_never_loses_the_highest_the_lowest_or_an_end(seed, count, most):
    values = np.random.default_rng(seed).normal(size=count)
    line = thinned(np.arange(count), values, most=most)
    assert len(line.values) <= most
    assert line.values.max() == values.max()
    assert line.values.min() == values.min()
    assert (line.ts[0], line.ts[-1]) == (0, count - 1)
    assert (values[line.ts] == line.values).all()
    assert (np.diff(line.ts) > 0).all()


def test_growth_and_drawdown_are_multiples_of_start_and_peak():
    equity = np.array([100.0, 120.0, 90.0, 150.0])
    assert growth(equity).tolist() == [1.0, 1.2, 0.9, 1.5]
    assert drawdown(equity).tolist() == [0.0, 0.0, -0.25, 0.0]


def test_returns_after_ruin_are_nothing():
    assert made([100.0, 50.0, 0.0, 0.0]).returns.tolist() == [-0.5, -1.0, 0.0]


def test_rolling_risk_ends_with_that_of_the_last_window():
    returns = np.random.default_rng(1).normal(0.0, 0.01, 900)
    result = made(100.0 * np.concatenate(([1.0], np.cumprod(1.0 + returns))))
    risk = rolling(result)
    assert risk is not None
    assert risk.window == 225  # a quarter of 900 bars is less than 30 days of 24 hours
    assert risk.ts[0] == 225 * HOUR_MS
    assert risk.ts[-1] == 900 * HOUR_MS
    last, first = result.returns[-225:], result.returns[:225]
    assert risk.cvar[-1] == pytest.approx(figures.cvar(last, alpha=0.05), rel=1e-12)
    assert risk.cvar[0] == pytest.approx(figures.cvar(first, alpha=0.05), rel=1e-12)
    # a year has 8,760 hours
    assert risk.volatility[-1] == pytest.approx(last.std(ddof=1) * 8760**0.5, rel=1e-9)
    assert risk.sharpe[-1] == pytest.approx(figures.sharpe(last, per_year=8760.0), rel=1e-9)
    assert risk.beta is None  # nobody bought and held


def test_rolling_risk_needs_two_windows_of_a_tail():
    assert rolling_needs() == 400  # 10 outcomes in a tail of 5 %, twice
    assert rolling(made(np.full(400, 100.0))) is None
    assert rolling(made(np.full(401, 100.0))) is not None


def test_a_price_is_what_weight_equity_and_quantity_say():
    decisions = pa.table(
        {
            "ts": [0, HOUR_MS, 2 * HOUR_MS],
            "symbol": ["A", "A", "A"],
            "weight": [0.5, 0.0, -1.0],
            "quantity": [2.0, 0.0, -3.0],
        }
    )
    position = position_of(made([100.0, 120.0, 120.0, 90.0], decisions=decisions), "A")
    assert position.ts.tolist() == [HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS]
    assert position.weight.tolist() == [0.5, 0.0, -1.0]
    assert position.price[0] == 30.0  # 0.5 of 120 in 2 units
    assert np.isnan(position.price[1])
    assert position.price[2] == 30.0  # -1 of 90 in -3 units


def test_the_columns_of_seeds_are_no_accounts_that_a_price_could_be_read_from(tmp_path):
    write_made_validation(tmp_path / "v", bars=80)
    position = position_of(read_result(tmp_path / "v"), "AAA/USDT:USDT")
    assert np.isnan(position.price).all()
    # spells of 20 bars: flat, long, half short, flat; both seeds hold the same
    assert position.weight.tolist() == [0.0] * 20 + [1.0] * 20 + [-0.5] * 20 + [0.0] * 20


def test_nothing_decided_is_nothing_held(tmp_path):
    position = position_of(made([1.0, 1.0]), "A")
    assert position.ts.size == position.weight.size == position.price.size == 0
