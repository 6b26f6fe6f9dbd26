"""Regimes of the market: told by what was known, counted by hand."""

import numpy as np
import pytest

from simulator_lab import HOUR_MS, START_MS, market, settings, steady
from stormsail.evaluation.calibration.predictions import REGIME_BARS
from stormsail.evaluation.performance.regimes import KINDS, by_regime, regime_labels
from stormsail.evaluation.stats import figures

YEAR = 8_760.0


def closes(rows):
    return START_MS + HOUR_MS * np.asarray(rows, np.int64)


def waves(count):
    """Return prices that wave quietly, then rise steadily, then fall steadily."""
    step = np.arange(count)
    moves = 0.001 * np.where(step % 2 == 0, 1.0, -1.0)
    moves = moves + np.where(step < 200, 0.0, np.where(step < 400, 0.002, -0.002))
    return 100.0 * np.exp(np.cumsum(moves))


def test_trend_and_funding_by_hand():
    # Rates settle every 8th row: longs pay up to row 300, then shorts pay.
    funding = {row: 0.0001 if row <= 300 else -0.0001 for row in range(0, 600, 8)}
    bars = market(steady(waves(600)), funding=funding)
    # decided at the close of rows 63, 64, 199, 300, 500: the bar that follows has its regime
    rows = np.array([62, 63, 64, 199, 300, 500])
    labels = regime_labels(bars, settings(), closes(rows + 1))
    # 64 moves are known from row 64 on; 64 settled rates from row 63 on
    assert labels["trend"].tolist() == ["", "", "sideways", "sideways", "rising", "falling"]
    assert labels["funding"].tolist() == [
        "", "longs pay", "longs pay", "longs pay", "longs pay", "shorts pay",
    ]  # fmt: skip
    assert set(labels) == set(KINDS)


def test_nothing_later_is_read():
    prices = waves(600)
    rows = np.arange(150, 400)
    calm = regime_labels(market(steady(prices)), settings(), closes(rows + 1))
    changed = prices.copy()
    changed[400:] *= 0.8
    again = regime_labels(market(steady(changed)), settings(), closes(rows + 1))
    for kind in KINDS:
        assert calm[kind].tolist() == again[kind].tolist()
        assert (calm[kind] != "").all()


def test_a_market_without_funding_has_none():
    bars = market(steady(waves(200)))
    labels = regime_labels(bars, settings(), closes([150]))
    assert labels["funding"].tolist() == ["none"]


def test_figures_of_a_regime_are_those_of_its_bars():
    returns = np.array([0.01, -0.02, 0.03, 0.04] * 20)
    names = np.array(["calm", "calm", "stormy", ""] * 20)
    empty = np.full(80, "")
    rows = by_regime(
        returns, {"volatility": names, "trend": empty, "funding": empty}, per_year=YEAR
    )
    assert list(rows["volatility"]) == ["calm", "stormy"]
    assert rows["trend"] == {}
    calm = rows["volatility"]["calm"]
    own = returns[names == "calm"]
    assert (calm.bars, calm.total_return) == (40, pytest.approx((1.01 * 0.98) ** 20 - 1.0))
    assert calm.mean_return == pytest.approx(-0.005)
    assert calm.sharpe.value == pytest.approx(figures.sharpe(own, per_year=YEAR))
    assert rows["volatility"]["stormy"].sharpe.value is None
    short = rows["volatility"]["stormy"].sharpe
    assert (short.needed, short.found) == (30, 20)
    assert REGIME_BARS == 64
