"""Indicators of closed bars, as pure functions with a finite memory.

Time is the first axis, every other axis a batch (symbols). An indicator with a lookback of L bars
returns T - L + 1 rows: row i belongs to bar i + L - 1 and reads that bar and the L - 1 before it.
The lookback stands in every docstring. See `rolling` for why no result depends on where the history
began, nor on its length.

Recursive indicators (exponential and Wilder's averages, GARCH) are cut off after
K = `taps(decay=...)` bars, where less than 1e-10 of the weight is left. Charting libraries start
the recursion from some first value instead; after their unstable period the two agree to that.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number
from stormsail.functional.market.rolling import (
    Moments,
    decayed_mean,
    decayed_sum,
    taps,
    window_mean,
    window_sum,
    window_variance,
)

FLAT = 1e-12
"""Share of the price level below which a spread is rounding, not movement; a tick is above 1e-9."""

_PERIOD = "Pass the number of bars, for example 14."


def log_return(price: Float[Tensor, " T *batch"], *, horizon: int) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\log(p_t / p_{t-h})`. Lookback h + 1.

    Definition.

    Raises:
        RangeError: if `horizon` is not a whole number of at least 1.
    """
    check.check_count(horizon, name="horizon", remedy="Pass the number of bars, for example 1.")
    return (price[horizon:] / price[: max(price.shape[0] - horizon, 0)]).log()


def realised_volatility(
    price: Float[Tensor, " T *batch"], *, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sqrt{\frac1n \sum_{k<n} r_{t-k}^2}` of the log returns. Lookback n + 1.

    Definition of realised volatility per bar (Andersen & Bollerslev 1998, International Economic
    Review 39(4):885-905, sum squared returns); the mean instead of the sum makes windows
    comparable. Not centred: over a few bars the mean return is noise.

    Raises:
        RangeError: if `window` is not a whole number of at least 1.
    """
    return root_mean_square(log_return(price, horizon=1), window=window)


def root_mean_square(
    x: Float[Tensor, " T *batch"], *, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sqrt{\frac1n \sum_{k<n} x_{t-k}^2}`. Lookback n.

    Definition.

    Raises:
        RangeError: if `window` is not a whole number of at least 1.
    """
    check.check_count(window, name="window", remedy=_PERIOD)
    return window_mean(x.square(), window=window).sqrt()


def parkinson(
    high: Float[Tensor, " T *batch"], low: Float[Tensor, " T *batch"], *, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sqrt{\frac{1}{4 n \log 2} \sum_{k<n} \log^2(h_{t-k} / l_{t-k})}`. Lookback n.

    Parkinson 1980, Journal of Business 53(1):61-65, & its square root: volatility per bar of a
    driftless walk, from ranges alone.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `window` is not a whole number of at least 1.
    """
    check.check_same_shape(high=high, low=low)
    check.check_count(window, name="window", remedy=_PERIOD)
    ranges = (high / low).log().square()
    return (window_mean(ranges, window=window) / (4.0 * math.log(2.0))).sqrt()


def yang_zhang(
    opening: Float[Tensor, " T *batch"],
    high: Float[Tensor, " T *batch"],
    low: Float[Tensor, " T *batch"],
    close: Float[Tensor, " T *batch"],
    *,
    window: int,
) -> Float[Tensor, " rows *batch"]:
    r"""Return the volatility per bar that neither drift nor opening jumps bias. Lookback n + 1.

    .. math::
        \sigma^2 = V_o + k V_c + (1 - k) V_{rs}, \quad k = \frac{0.34}{1.34 + (n + 1) / (n - 1)}

    with the sample variances (n - 1) V_o of o_t = log(O_t / C_{t-1}) and V_c of c_t = log(C_t /
    O_t), and the mean V_rs of u (u - c) + d (d - c), where u = log(H_t / O_t), d = log(L_t / O_t).
    Yang & Zhang 2000, Journal of Business 73(3):477-491.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `window` is not a whole number of at least 2.
    """
    check.check_same_shape(opening=opening, high=high, low=low, close=close)
    remedy = "A sample variance needs two bars."
    check.check_count(window - 1, name="window - 1", remedy=remedy)
    return YangZhang(opening, high, low, close).volatility(window=window)


class YangZhang:
    """What windows of several lengths over the same bars have in common; see `yang_zhang`."""

    def __init__(self, opening: Tensor, high: Tensor, low: Tensor, close: Tensor) -> None:
        previous = close[: max(close.shape[0] - 1, 0)]
        start, high, low, close = opening[1:], high[1:], low[1:], close[1:]
        drift = (close / start).log()
        up, down = (high / start).log(), (low / start).log()
        self._inside = up * (up - drift) + down * (down - drift)
        self._jump, self._drift = Moments((start / previous).log()), Moments(drift)

    def volatility(self, *, window: int) -> Tensor:
        """Return the volatility over a window of at least 2 bars."""
        k = 0.34 / (1.34 + (window + 1) / (window - 1))
        variance = (
            self._jump.variance(window=window, ddof=1)
            + self._drift.variance(window=window, ddof=1) * k
            + window_mean(self._inside, window=window) * (1.0 - k)
        )
        return variance.clamp(min=0.0).sqrt()  # rounding of a flat window may fall below 0


def garch_variance(
    residual: Float[Tensor, " T *batch"], *, omega: Number, alpha: Number, beta: Number
) -> Float[Tensor, " rows *batch"]:
    r"""Return the variance of the next bar under GARCH(1,1) with given parameters. Lookback K.

    .. math::
        \sigma^2_{t+1} = \omega + \alpha e_t^2 + \beta \sigma^2_t
            = \frac{\omega}{1 - \beta} + \alpha \sum_{k \ge 0} \beta^k e_{t-k}^2

    Bollerslev 1986, Journal of Econometrics 31(3):307-327, the case p = q = 1, & its solution.
    Row t holds what is known at the close of t about t + 1, which `arch` calls the conditional
    variance of t + 1. With omega = 0, alpha = 0.06, beta = 0.94 it is the RiskMetrics average.

    Args:
        residual: e_t, returns less their mean.
        omega: at least 0, in squared return units.
        alpha: at least 0.
        beta: in [0, 1).

    Raises:
        RangeError: if a parameter is out of range.
    """
    check.check_at_least_zero(omega, name="omega", remedy="Pass a variance.")
    check.check_at_least_zero(alpha, name="alpha", remedy="Pass for example 0.05.")
    memory = decayed_sum(residual.square(), decay=beta, window=taps(decay=beta))
    return memory * alpha + omega / (1.0 - beta)


def ema(price: Float[Tensor, " T *batch"], *, span: int) -> Float[Tensor, " rows *batch"]:
    r"""Return the exponential average with weight 2 / (span + 1). Lookback K of d below.

    :math:`\sum_k d^k p_{t-k} / \sum_k d^k` with d = 1 - 2 / (span + 1). Textbook, but for the cut.

    Raises:
        RangeError: if `span` is not a whole number of at least 1.
    """
    check.check_count(span, name="span", remedy=_PERIOD)
    return decayed_mean(price, decay=ema_decay(span=span))


def ema_decay(*, span: int) -> float:
    """Return 1 - 2 / (span + 1), the decay of an exponential average.

    Textbook.

    Raises:
        RangeError: if `span` is not a whole number of at least 1.
    """
    check.check_count(span, name="span", remedy=_PERIOD)
    return 1.0 - 2.0 / (span + 1)


def wilder_decay(*, period: int) -> float:
    """Return 1 - 1 / period, the decay of Wilder's average.

    Wilder 1978, New Concepts in Technical Trading Systems; textbook.

    Raises:
        RangeError: if `period` is not a whole number of at least 1.
    """
    check.check_count(period, name="period", remedy=_PERIOD)
    return 1.0 - 1.0 / period


def rsi(close: Float[Tensor, " T *batch"], *, period: int) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`100\, G / (G + L)`, in [0, 100]. Lookback K + 1.

    G and L are Wilder's averages of the gains and of the losses between closes. Wilder 1978;
    textbook. 50 where no close differed from the one before: neither side won (TA-Lib says 0).

    Raises:
        RangeError: if `period` is not a whole number of at least 1.
    """
    check.check_count(period, name="period", remedy=_PERIOD)
    decay = wilder_decay(period=period)
    change = close[1:] - close[: max(close.shape[0] - 1, 0)]
    gain = decayed_mean(change.clamp(min=0.0), decay=decay)
    loss = decayed_mean((-change).clamp(min=0.0), decay=decay)
    total = gain + loss
    moved = total > 0.0
    share = gain / torch.where(moved, total, 1.0)
    return torch.where(total == 0.0, 50.0, share * 100.0)


def macd(
    close: Float[Tensor, " T *batch"], *, fast: int, slow: int, signal: int
) -> tuple[Float[Tensor, " rows *batch"], Float[Tensor, " rows *batch"]]:
    r"""Return the line EMA_fast - EMA_slow and its EMA_signal, in price units.

    Textbook. Lookback K_slow + K_signal - 1, with the longer of the two K where `fast` is slower.

    Raises:
        RangeError: if a span is not a whole number of at least 1.
    """
    for name, span in (("fast", fast), ("slow", slow), ("signal", signal)):
        check.check_count(span, name=name, remedy=_PERIOD)
    first, second = ema(close, span=fast), ema(close, span=slow)
    rows = min(first.shape[0], second.shape[0])
    line = _newest(first, rows) - _newest(second, rows)
    smooth = ema(line, span=signal)
    return _newest(line, smooth.shape[0]), smooth


def bollinger(
    close: Float[Tensor, " T *batch"], *, window: int, deviations: Number
) -> tuple[Float[Tensor, " rows *batch"], Float[Tensor, " rows *batch"]]:
    r"""Return position in, and width of, the Bollinger bands. Lookback n.

    With mean m and population deviation s of the last n closes and w = `deviations`: position is
    (c - m) / (w s), -1 on the lower band and 1 on the upper; width is 2 w s / m. Textbook. The
    position is 0 where the window is flat: s below 1e-12 of m.

    Raises:
        RangeError: if `window` or `deviations` is out of range.
    """
    check.check_count(window, name="window", remedy=_PERIOD)
    check.check_positive(deviations, name="deviations", remedy="Pass for example 2.")
    middle = window_mean(close, window=window)
    variance = window_variance(close, window=window)
    floor = (middle * FLAT).square()  # compared as squares: the root has no slope at 0
    flat = variance <= floor
    half = torch.where(flat, 1.0, variance).sqrt() * deviations
    offset = _newest(close, middle.shape[0]) - middle
    width = torch.where(flat, 0.0, half * 2.0 / middle)
    return torch.where(flat, 0.0, offset / half), width


def true_range(
    high: Float[Tensor, " T *batch"],
    low: Float[Tensor, " T *batch"],
    close: Float[Tensor, " T *batch"],
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\max(h_t, c_{t-1}) - \min(l_t, c_{t-1})`, in price units. Lookback 2.

    Wilder 1978; textbook.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(high=high, low=low, close=close)
    previous = close[: max(close.shape[0] - 1, 0)]
    return torch.maximum(high[1:], previous) - torch.minimum(low[1:], previous)


def atr(
    high: Float[Tensor, " T *batch"],
    low: Float[Tensor, " T *batch"],
    close: Float[Tensor, " T *batch"],
    *,
    period: int,
) -> Float[Tensor, " rows *batch"]:
    """Return Wilder's average of the true range, in price units. Lookback K + 1.

    Wilder 1978; textbook.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `period` is not a whole number of at least 1.
    """
    check.check_count(period, name="period", remedy=_PERIOD)
    return decayed_mean(true_range(high, low, close), decay=wilder_decay(period=period))


def cci(
    high: Float[Tensor, " T *batch"],
    low: Float[Tensor, " T *batch"],
    close: Float[Tensor, " T *batch"],
    *,
    window: int,
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`(y_t - m_t) / (0.015\, D_t)` of the typical price y. Lookback n.

    y = (h + l + c) / 3, m its mean over the window, D the mean of \|y_{t-k} - m_t\|. Lambert 1980,
    Commodities 8(5):40-42; textbook. 0 where the window is flat: D below 1e-12 of m.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `window` is not a whole number of at least 1.
    """
    check.check_same_shape(high=high, low=low, close=close)
    check.check_count(window, name="window", remedy=_PERIOD)
    typical = (high + low + close) / 3.0
    middle = window_mean(typical, window=window)
    rows = middle.shape[0]
    spread = torch.zeros_like(middle)
    for start in range(window if rows else 0):  # about a mean of its own, so nothing doubles
        spread += (typical[start : start + rows] - middle).abs_()
    spread = spread / window
    flat = spread <= middle.abs() * FLAT
    offset = _newest(typical, rows) - middle
    return torch.where(flat, 0.0, offset / (torch.where(flat, 1.0, spread) * 0.015))


def obv_change(
    close: Float[Tensor, " T *batch"], volume: Float[Tensor, " T *batch"], *, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\sum_{k<n} sign(c_{t-k} - c_{t-k-1})\, v_{t-k}`. Lookback n + 1.

    Granville's on-balance volume is the sum since the beginning of time, so its level says when the
    file begins; this is its change over n bars. Textbook otherwise.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `window` is not a whole number of at least 1.
    """
    check.check_same_shape(close=close, volume=volume)
    check.check_count(window, name="window", remedy=_PERIOD)
    change = close[1:] - close[: max(close.shape[0] - 1, 0)]
    return window_sum(change.sign() * volume[1:], window=window)


def relative_volume(
    volume: Float[Tensor, " T *batch"], *, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`\log\frac{1 + v_t / \bar v_t}{2}` with the mean over the window. Lookback n.

    Ours: 0 at the mean, finite at no volume, and a bar of ten times the mean does not drown the
    rest. 0 where the whole window had none.

    Raises:
        RangeError: if `window` is not a whole number of at least 1.
    """
    check.check_count(window, name="window", remedy=_PERIOD)
    mean = window_mean(volume, window=window)
    quiet = mean == 0.0
    ratio = _newest(volume, mean.shape[0]) / torch.where(quiet, 1.0, mean)
    return torch.where(quiet, 0.0, ratio.log1p() - math.log(2.0))


def signed_share(
    part: Float[Tensor, " T *batch"], whole: Float[Tensor, " T *batch"], *, window: int
) -> Float[Tensor, " rows *batch"]:
    r"""Return :math:`2 \sum part / \sum whole - 1` over the window, in [-1, 1]. Lookback n.

    Definition; of taker buys in the volume it is 1 when every taker bought. 0 where the whole is 0.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `window` is not a whole number of at least 1.
    """
    check.check_same_shape(part=part, whole=whole)
    check.check_count(window, name="window", remedy=_PERIOD)
    total = window_sum(whole, window=window)
    empty = total == 0.0
    share = window_sum(part, window=window) / torch.where(empty, 1.0, total)
    return torch.where(empty, 0.0, share * 2.0 - 1.0)


def _newest(x: Tensor, rows: int) -> Tensor:
    return x[x.shape[0] - rows :]
