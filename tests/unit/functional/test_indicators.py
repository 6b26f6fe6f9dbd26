"""Rolling functions and indicators against numbers worked out by hand."""

import math

import pytest
import torch

from stormsail.core.errors import RangeError, ShapeError
from stormsail.functional.market import indicators, rolling


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def same(actual, *expected):
    torch.testing.assert_close(actual, double(*expected), rtol=1e-12, atol=1e-15)


def test_a_window_ends_at_its_row_and_nothing_is_padded():
    x = double(1, 2, 4, 8, 16)
    same(rolling.window_sum(x, window=3), 7, 14, 28)
    same(rolling.window_mean(x, window=2), 1.5, 3, 6, 12)
    same(rolling.window_max(-x, window=2), -1, -2, -4, -8)
    same(rolling.window_min(-x, window=2), -2, -4, -8, -16)
    assert rolling.window_sum(x, window=6).shape == (0,)


def test_variance_by_hand():
    # (1, 2, 6): mean 3, squares 4 + 1 + 9 = 14. (2, 6, 7): mean 5, squares 9 + 1 + 4 = 14.
    x = double(1, 2, 6, 7)
    same(rolling.window_variance(x, window=3), 14 / 3, 14 / 3)
    same(rolling.window_variance(x, window=3, ddof=1), 7, 7)


def plain_variance(x, window):
    """Merge every half with everything it has, by the digits of the window, newest first."""

    def merged(old, n_old, new, n_new):
        rows = len(new[0]) - n_old
        old, new = [part[:rows] for part in old], [part[n_old:] for part in new]
        gap = new[0] - old[0]
        mean = old[0] + gap * (n_new / (n_old + n_new))
        return mean, old[1] + new[1] + gap * gap * (n_old * n_new / (n_old + n_new))

    block, size, total, done = (x, torch.zeros_like(x)), 1, None, 0
    while True:
        if window & size:
            total = block if total is None else merged(block, size, total, done)
            done += size
        if done == window:
            return total[1] / window
        block, size = merged(block, size, block, size), 2 * size


def test_windows_that_share_halves_have_the_bits_of_windows_that_do_not():
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).exp()
    windows = [1, 2, 3, 5, 7, 8, 11, 21, 24, 31, 64, 90, 91]
    for order in (windows, windows[::-1]):
        shared = rolling.Moments(x)
        for window in order:
            variance = shared.variance(window=window)
            expected = plain_variance(x, window) if window <= len(x) else x[:0]
            assert torch.equal(variance, expected), window
            assert torch.equal(rolling.window_variance(x, window=window), expected)


def test_a_constant_has_no_variance_at_all():
    x = torch.full((40,), 0.1, dtype=torch.float64)
    for window in (3, 7, 20, 33):
        assert rolling.window_variance(x, window=window).eq(0).all()


def test_decayed_sum_by_hand():
    # newest first: 8 + 4/2 + 2/4 = 10.5, and 4 + 2/2 + 1/4 = 5.25
    same(rolling.decayed_sum(double(1, 2, 4, 8), decay=0.5, window=3), 5.25, 10.5)
    same(rolling.decayed_sum(double(3, 5), decay=0.0, window=2), 5)


def test_decayed_mean_of_a_constant_is_that_constant():
    x = torch.full((80,), 7.0, dtype=torch.float64)
    same(rolling.decayed_mean(x, decay=0.5), *[7.0] * 17)


def test_taps_by_hand():
    # 0.5^33 = 1.2e-10 and 0.5^34 = 5.8e-11: 34, and the next power of two is 64
    assert rolling.taps(decay=0.5) == 64
    # 0.1^10 = 1e-10 is not below 1e-10: 11, so 16
    assert rolling.taps(decay=0.1) == 16
    assert rolling.taps(decay=0.0) == 1


def test_returns_and_volatility_by_hand():
    price = double(1, math.e, math.e**3, math.e**2)
    same(indicators.log_return(price, horizon=1), 1, 2, -1)
    same(indicators.log_return(price, horizon=2), 3, 1)
    # squares 1, 4, 1: means 2.5 and 2.5
    same(indicators.realised_volatility(price, window=2), math.sqrt(2.5), math.sqrt(2.5))


def test_parkinson_by_hand():
    # ranges e and e^3: log squares 1 and 9, mean 5, over 4 log 2
    high, low = double(math.e, math.e**3), double(1, 1)
    same(indicators.parkinson(high, low, window=2), math.sqrt(5 / (4 * math.log(2))))


def test_yang_zhang_by_hand():
    # Two bars after the first; logs. Jumps 1 and 3: variance 2. Moves 0 and 2: variance 2.
    # Bar 1: u = 1, d = -1, c = 0: 1 * 1 + -1 * -1 = 2. Bar 2: u = 2, d = 0, c = 2: 0. Mean 1.
    # n = 2: k = 0.34 / (1.34 + 3 / 1) = 0.34 / 4.34.
    opening = double(0, 1, 4).exp()
    high, low = double(0, 2, 6).exp(), double(0, 0, 4).exp()
    close = double(0, 1, 6).exp()
    k = 0.34 / 4.34
    same(indicators.yang_zhang(opening, high, low, close, window=2), math.sqrt(2 + 2 * k + 1 - k))


def test_garch_by_hand():
    # beta = 0: one tap; omega + alpha e^2
    residual = double(1, -2, 3)
    same(indicators.garch_variance(residual, omega=0.5, alpha=0.1, beta=0.0), 0.6, 0.9, 1.4)
    # beta = 0.1, constant e = 1: 0.5 / 0.9 + 0.1 (1 - 0.1^16) / 0.9
    ones = torch.ones(16, dtype=torch.float64)
    same(indicators.garch_variance(ones, omega=0.5, alpha=0.1, beta=0.1), 0.6 / 0.9)


def test_decays_by_hand():
    assert indicators.ema_decay(span=3) == 0.5
    assert indicators.wilder_decay(period=4) == 0.75
    same(indicators.ema(double(5, 7), span=1), 5, 7)


def test_rsi_by_hand():
    # period 1 looks at one change: all gain, all loss, none
    same(indicators.rsi(double(1, 2, 1, 1), period=1), 100, 0, 50)


def test_rsi_of_gains_only_and_of_stillness():
    rising = torch.arange(1, 700, dtype=torch.float64)
    assert indicators.rsi(rising, period=14).eq(100).all()
    assert indicators.rsi(torch.ones(700, dtype=torch.float64), period=14).eq(50).all()


def test_macd_of_a_straight_line_is_the_difference_of_the_lags():
    # An average with decay d trails a line of slope 1 by d / (1 - d): 1 for span 3, 3 for span 7.
    line, smooth = indicators.macd(torch.arange(400, dtype=torch.float64), fast=3, slow=7, signal=3)
    torch.testing.assert_close(line, torch.full_like(line, 2.0), rtol=1e-7, atol=0)
    torch.testing.assert_close(smooth, torch.full_like(smooth, 2.0), rtol=1e-7, atol=0)


def test_bollinger_by_hand():
    # (1, 3): mean 2, deviation 1; 3 lies one deviation above, bands are 2 wide each side of 2
    position, width = indicators.bollinger(double(1, 3), window=2, deviations=2.0)
    same(position, 0.5)
    same(width, 2.0)


def test_a_flat_window_has_no_position_width_or_cci():
    flat = torch.full((30,), 0.1, dtype=torch.float64)
    position, width = indicators.bollinger(flat, window=20, deviations=2.0)
    assert position.eq(0).all()
    assert width.eq(0).all()
    assert indicators.cci(flat, flat, flat, window=19).eq(0).all()


def test_true_range_and_atr_by_hand():
    high, low, close = double(5, 6, 9), double(4, 5, 8), double(4.5, 5.5, 8.5)
    # max(6, 4.5) - min(5, 4.5) = 1.5; max(9, 5.5) - min(8, 5.5) = 3.5
    same(indicators.true_range(high, low, close), 1.5, 3.5)
    same(indicators.atr(high, low, close, period=1), 1.5, 3.5)


def test_cci_by_hand():
    # typical 1, 2, 6: mean 3, deviations 2, 1, 3, mean 2; (6 - 3) / (0.015 * 2) = 100
    price = double(1, 2, 6)
    same(indicators.cci(price, price, price, window=3), 100)


def test_on_balance_volume_by_hand():
    # signs +, 0, -: 2 + 0 = 2 and 0 - 8 = -8
    same(indicators.obv_change(double(1, 2, 2, 1), double(1, 2, 4, 8), window=2), 2, -8)


def test_relative_volume_by_hand():
    # 3 over a mean of 2: log(2.5 / 2); no volume at all is 0
    same(indicators.relative_volume(double(1, 3), window=2), math.log(1.25))
    same(indicators.relative_volume(double(0, 0), window=2), 0)
    same(indicators.relative_volume(double(2, 0), window=2), -math.log(2))


def test_signed_share_by_hand():
    # bought 1 + 2 of 2 + 2: 0.75, so 0.5
    same(indicators.signed_share(double(1, 2), double(2, 2), window=2), 0.5)
    same(indicators.signed_share(double(0, 0), double(0, 0), window=2), 0)


@pytest.mark.refusal
@pytest.mark.parametrize("window", [0, -1, 1.5, True])
def test_a_window_must_be_a_whole_number(window):
    with pytest.raises(RangeError) as caught:
        rolling.window_sum(double(1, 2), window=window)
    assert str(caught.value) == (
        f"`window` must be a whole number of at least 1; found {window!r}. "
        "Pass the number of bars, for example 20. [out-of-range]"
    )


@pytest.mark.refusal
def test_time_must_be_the_first_axis():
    with pytest.raises(ShapeError) as caught:
        rolling.window_sum(torch.tensor(1.0), window=1)
    assert str(caught.value) == (
        "`x` must have time as its first dimension; found a single number. "
        "Pass one row for each bar. [shape-mismatch]"
    )


@pytest.mark.refusal
def test_a_decay_that_never_forgets_is_refused():
    with pytest.raises(RangeError, match=r"`1 - decay` must be greater than 0; found 0\.0\."):
        rolling.taps(decay=1.0)
    with pytest.raises(RangeError, match=r"`decay` must lie in \[0, 1\]; found 1\.5\."):
        indicators.garch_variance(double(1), omega=0.0, alpha=0.1, beta=1.5)


@pytest.mark.refusal
def test_columns_never_broadcast():
    with pytest.raises(ShapeError, match="`high` and `low` must have the same shape"):
        indicators.parkinson(torch.ones(5, 2), torch.ones(5, 1), window=2)
    with pytest.raises(ShapeError, match="`part` and `whole` must have the same shape"):
        indicators.signed_share(torch.ones(5), torch.ones(4), window=2)


@pytest.mark.refusal
def test_a_sample_variance_needs_two_bars():
    with pytest.raises(RangeError, match="`window - 1` must be a whole number of at least 1"):
        indicators.yang_zhang(*[torch.ones(5)] * 4, window=1)
    with pytest.raises(
        RangeError, match="`window - ddof` must be a whole number of at least 1; found 0"
    ):
        rolling.window_variance(torch.ones(5), window=1, ddof=1)
