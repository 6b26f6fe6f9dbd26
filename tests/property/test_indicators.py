"""Indicators against plain loops, TA-Lib and arch, and against themselves on other windows."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import indicators as oracle
from stormsail.core.generators import Generators
from stormsail.functional.market import indicators, rolling

seeds = st.integers(0, 10_000)
windows = st.integers(1, 40)


class Walk(NamedTuple):
    """Columns of bars, [rows] or [rows, symbols], float64."""

    start: Any
    high: Any
    low: Any
    close: Any
    volume: Any
    bought: Any

    def map(self, change):
        return Walk(*(change(column) for column in self))


def walk(seed, rows, *, symbols=None):
    random = Generators(seed).numpy("walk")
    shape = rows if symbols is None else (rows, symbols)
    close = 100 * np.exp(np.cumsum(0.01 * random.standard_normal(shape), axis=0))
    start = close * np.exp(0.004 * random.standard_normal(shape))
    high = np.maximum(start, close) * (1 + 0.003 * random.random(shape))
    low = np.minimum(start, close) * (1 - 0.003 * random.random(shape))
    volume = np.exp(random.standard_normal(shape))
    return Walk(start, high, low, close, volume, volume * random.random(shape))


def tensors(*columns):
    return tuple(map(torch.from_numpy, columns))


def close_to(actual, expected, *, rtol=1e-9, atol=1e-12):
    expected = torch.as_tensor(np.asarray(expected, dtype=np.float64))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@given(seed=seeds, window=windows, rows=st.integers(1, 60), decay=st.floats(0.0, 1.0))
def test_rolling_functions_equal_the_loops(seed, window, rows, decay):
    x = 3 + Generators(seed).numpy("x").standard_normal(rows)
    (t,) = tensors(x)

    close_to(rolling.window_sum(t, window=window), oracle.window_sum(x, window))
    mean = [value / window for value in oracle.window_sum(x, window)]
    close_to(rolling.window_mean(t, window=window), mean)
    close_to(rolling.window_variance(t, window=window), oracle.window_variance(x, window, 0))
    assert rolling.window_max(t, window=window).tolist() == oracle.window_extreme(x, window, max)
    assert rolling.window_min(t, window=window).tolist() == oracle.window_extreme(x, window, min)
    actual = rolling.decayed_sum(t, decay=decay, window=window)
    close_to(actual, oracle.decayed_sum(x, decay, window))


@given(seed=seeds, window=st.integers(2, 40), offset=st.sampled_from([0.0, 1e6, -1e9]))
def test_the_variance_survives_a_large_mean(seed, window, offset):
    x = Generators(seed).numpy("x").integers(-9, 9, 60).astype(float)

    actual = rolling.window_variance(torch.from_numpy(x + offset), window=window, ddof=1)

    close_to(actual, oracle.window_variance(x, window, 1), rtol=1e-7, atol=1e-7)


@given(seed=seeds, window=st.integers(2, 30))
@settings(max_examples=30)
def test_windowed_indicators_equal_the_loops(seed, window):
    o, h, low, c, v, b = columns = walk(seed, 80)
    to, th, tl, tc, tv, tb = tensors(*columns)
    n = {"window": window}

    close_to(indicators.log_return(tc, horizon=window), oracle.log_return(c, window), atol=1e-14)
    close_to(indicators.realised_volatility(tc, **n), oracle.realised_volatility(c, window))
    close_to(indicators.parkinson(th, tl, **n), oracle.parkinson(h, low, window))
    close_to(indicators.yang_zhang(to, th, tl, tc, **n), oracle.yang_zhang(o, h, low, c, window))
    position, width = indicators.bollinger(tc, **n, deviations=1.7)
    expected = oracle.bollinger(c, window, 1.7)
    close_to(position, expected[0], atol=1e-9)
    close_to(width, expected[1])
    close_to(indicators.cci(th, tl, tc, **n), oracle.cci(h, low, c, window), atol=1e-8)
    close_to(indicators.true_range(th, tl, tc), oracle.true_range(h, low, c))
    close_to(indicators.obv_change(tc, tv, **n), oracle.obv_change(c, v, window), atol=1e-10)
    close_to(indicators.relative_volume(tv, **n), oracle.relative_volume(v, window), atol=1e-12)
    close_to(indicators.signed_share(tb, tv, **n), oracle.signed_share(b, v, window), atol=1e-12)


@given(seed=seeds, period=st.integers(2, 20))
@settings(max_examples=10)
def test_recursive_indicators_equal_the_loops_after_their_burn_in(seed, period):
    _, h, low, c, *_ = columns = walk(seed, 1600)
    _, th, tl, tc, *_ = tensors(*columns)

    def newest(values):
        return torch.as_tensor(values, dtype=torch.float64)[-100:]

    close_to(
        indicators.ema(tc, span=period)[-100:], newest(oracle.recursive_mean(c, 2 / (period + 1)))
    )
    close_to(indicators.rsi(tc, period=period)[-100:], newest(oracle.rsi(c, period)))
    close_to(
        indicators.atr(th, tl, tc, period=period)[-100:], newest(oracle.atr(h, low, c, period))
    )
    line, smooth = indicators.macd(tc, fast=period, slow=2 * period, signal=9)
    expected = oracle.macd(c, period, 2 * period, 9)
    close_to(line[-100:], newest(expected[0]), atol=1e-8)
    close_to(smooth[-100:], newest(expected[1]), atol=1e-8)
    e = np.diff(np.log(c))
    filtered = indicators.garch_variance(torch.from_numpy(e), omega=1e-6, alpha=0.05, beta=0.9)
    close_to(filtered[-100:], newest(oracle.garch_variance(e, 1e-6, 0.05, 0.9)))


def against_talib(actual, expected, *, atol=0.0):
    """The newest 500 rows, to 1e-8 of the value or `atol` where values cross zero."""
    np.testing.assert_allclose(actual[-500:].numpy(), expected[-500:], rtol=1e-8, atol=atol)


def test_indicators_equal_ta_lib_after_its_unstable_period():
    import talib  # loads pandas and polars, so not above

    _, h, low, c, v, _ = columns = walk(3, 4000)
    _, th, tl, tc, tv, _ = tensors(*columns)

    against_talib(rolling.window_mean(tc, window=30), talib.SMA(c, 30))
    against_talib(rolling.window_max(th, window=30), talib.MAX(h, 30))
    against_talib(indicators.ema(tc, span=26), talib.EMA(c, 26))
    against_talib(indicators.rsi(tc, period=14), talib.RSI(c, 14))
    against_talib(indicators.atr(th, tl, tc, period=14), talib.ATR(h, low, c, 14))
    against_talib(indicators.true_range(th, tl, tc), talib.TRANGE(h, low, c))
    against_talib(indicators.cci(th, tl, tc, window=20), talib.CCI(h, low, c, 20), atol=1e-6)
    line, smooth = indicators.macd(tc, fast=12, slow=26, signal=9)
    expected = talib.MACD(c, 12, 26, 9)
    against_talib(line, expected[0], atol=1e-10)
    against_talib(smooth, expected[1], atol=1e-10)
    upper, middle, lower = talib.BBANDS(c, 20, 2.0, 2.0)
    position, width = indicators.bollinger(tc, window=20, deviations=2.0)
    against_talib(width, (upper - lower) / middle)
    against_talib(position, (c - middle) / (upper - middle), atol=1e-8)
    level = talib.OBV(c, v)
    against_talib(indicators.obv_change(tc, tv, window=24), level - np.roll(level, 24), atol=1e-9)


@pytest.mark.parametrize(("alpha", "beta"), [(0.05, 0.9), (0.1, 0.8), (0.06, 0.93)])
def test_the_garch_filter_equals_archs_conditional_variance(alpha, beta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arch's imports, not its numbers
        from arch import arch_model

    *_, c, _, _ = walk(5, 3000)
    e = 100 * np.diff(np.log(c))
    omega = 0.02
    model = arch_model(e, mean="Zero", vol="GARCH", p=1, q=1, rescale=False)
    expected = np.asarray(model.fix([omega, alpha, beta]).conditional_volatility) ** 2

    actual = indicators.garch_variance(torch.from_numpy(e), omega=omega, alpha=alpha, beta=beta)

    # arch's entry t + 1 is what is known after e[t].
    np.testing.assert_allclose(actual[-1001:-1].numpy(), expected[-1000:], rtol=1e-9)


CALLS = {
    "window_sum": (lambda x: rolling.window_sum(x.close, window=21), 21),
    "window_variance": (lambda x: rolling.window_variance(x.close, window=21), 21),
    "window_max": (lambda x: rolling.window_max(x.close, window=21), 21),
    "decayed_mean": (lambda x: rolling.decayed_mean(x.close, decay=0.9), 256),
    "log_return": (lambda x: indicators.log_return(x.close, horizon=5), 6),
    "realised": (lambda x: indicators.realised_volatility(x.close, window=21), 22),
    "parkinson": (lambda x: indicators.parkinson(x.high, x.low, window=21), 21),
    "yang_zhang": (lambda x: indicators.yang_zhang(x.start, x.high, x.low, x.close, window=21), 22),
    "garch": (
        lambda x: indicators.garch_variance(x.close, omega=1.0, alpha=0.1, beta=0.8),
        128,
    ),
    "ema": (lambda x: indicators.ema(x.close, span=12), 256),
    "rsi": (lambda x: indicators.rsi(x.close, period=14), 513),
    "macd": (lambda x: indicators.macd(x.close, fast=12, slow=26, signal=9)[1], 639),
    "bollinger": (
        lambda x: indicators.bollinger(x.close, window=20, deviations=2.0)[0],
        20,
    ),
    "atr": (lambda x: indicators.atr(x.high, x.low, x.close, period=14), 513),
    "cci": (lambda x: indicators.cci(x.high, x.low, x.close, window=20), 20),
    "obv_change": (lambda x: indicators.obv_change(x.close, x.volume, window=24), 25),
    "relative_volume": (lambda x: indicators.relative_volume(x.volume, window=24), 24),
    "signed_share": (lambda x: indicators.signed_share(x.bought, x.volume, window=24), 24),
}


@pytest.mark.parametrize("name", CALLS)
@given(seed=seeds, symbols=st.integers(1, 5), data=st.data())
@settings(max_examples=10)
def test_history_window_and_last_row_are_equal_to_the_bit(name, seed, symbols, data):
    function, lookback = CALLS[name]
    columns = walk(seed, 800, symbols=symbols).map(torch.from_numpy)
    whole = function(columns)
    assert whole.shape[0] == 800 - lookback + 1

    end = data.draw(st.integers(lookback, 800))
    start = data.draw(st.integers(0, end - lookback))
    window = function(columns.map(lambda column: column[start:end]))
    row = function(columns.map(lambda column: column[end - lookback : end]))
    one = function(columns.map(lambda column: column[start:end, -1].clone()))

    stop = end - lookback + 1
    assert torch.equal(window, whole[start:stop])
    assert torch.equal(row, whole[stop - 1 : stop])
    assert torch.equal(one, whole[start:stop, -1])


@pytest.mark.parametrize("name", CALLS)
def test_a_nan_reaches_only_the_windows_that_hold_it(name):
    function, lookback = CALLS[name]
    columns = walk(1, 1500, symbols=2).map(torch.from_numpy)
    clean = function(columns)
    spoilt = columns.map(torch.clone)
    for column in spoilt:
        column[700, 1] = math.nan

    actual = function(spoilt)

    changed = (actual != clean).any(1).nonzero().flatten() + lookback - 1
    assert (changed.min(), changed.max()) == (700, 699 + lookback)
    assert torch.equal(actual[:, 0], clean[:, 0])


@pytest.mark.parametrize("name", CALLS)
def test_fewer_bars_than_the_lookback_give_no_row(name):
    function, lookback = CALLS[name]
    columns = walk(1, 700, symbols=2).map(torch.from_numpy)
    for rows in {0, 1, lookback - 1}:
        few = columns.map(lambda column, rows=rows: column[:rows])
        assert function(few).shape == (0, 2)


@given(seed=seeds, scale=st.sampled_from([2.0**-20, 0.25, 4.0, 2.0**30]))
@settings(max_examples=20)
def test_what_has_no_unit_does_not_see_the_price_level(seed, scale):
    columns = walk(seed, 700).map(torch.from_numpy)
    # a power of two scales without rounding, so nothing at all may change
    moved = columns._replace(
        **{name: getattr(columns, name) * scale for name in ("start", "high", "low", "close")}
    )
    for call in ("log_return", "realised", "parkinson", "yang_zhang", "rsi", "bollinger", "cci"):
        function, _ = CALLS[call]
        assert torch.equal(function(moved), function(columns)), call


def test_the_weight_beyond_the_last_tap_is_below_a_ten_billionth():
    for decay in (0.1, 0.5, 0.8, 11 / 13, 0.9, 25 / 27, 13 / 14, 0.94, 0.99):
        count = rolling.taps(decay=decay)
        assert decay**count < 1e-10 <= decay ** (count // 2)
