"""Built-in features: returns, volatilities, indicators, volume, funding, time of day.

Every window is counted in bars. All are ratios, logarithms or shares: no price level enters. Each
neutral value is 0, what an uninformative bar would show, except for volatilities, which are never 0
in truth; scaling replaces the neutral value of an invalid row by the median of the training span.
"""

import math

import torch
from torch import Tensor

from stormsail.core.errors import RangeError
from stormsail.functional.market import indicators, rolling
from stormsail.market.features.feature_set import FeatureSet, FeatureSpec
from stormsail.market.features.registry import REGISTRY, feature
from stormsail.market.features.tensors import FUNDING, BarTensors
from stormsail.market.interval import Interval

SETTLEMENT_MS = 8 * 3_600_000
"""Time between two settlements of most perpetuals."""

_SETTLEMENTS_A_DAY = 3.0
_DAY_MS, _WEEK_MS = 86_400_000, 604_800_000
_MONDAY_MS = 4 * _DAY_MS  # 1970-01-05
_OHLC = ("open", "high", "low", "close")
_RANGE = ("high", "low", "close")


@feature(name="log_return", lookback=lambda horizon: horizon + 1)
def log_return(bars: BarTensors, *, horizon: int = 1) -> Tensor:
    """Return the log return over `horizon` bars."""
    if horizon == 1:
        return _one_bar_return(bars)
    return indicators.log_return(bars["close"], horizon=horizon)


@feature(name="realised_volatility", lookback=lambda window: window + 1)
def realised_volatility(bars: BarTensors, *, window: int = 24) -> Tensor:
    """Return the root mean square of one-bar log returns."""
    return indicators.root_mean_square(_one_bar_return(bars), window=window)


@feature(name="parkinson", lookback=lambda window: window, columns=("high", "low"))
def parkinson(bars: BarTensors, *, window: int = 24) -> Tensor:
    """Return Parkinson's volatility per bar."""
    return indicators.parkinson(bars["high"], bars["low"], window=window)


@feature(name="yang_zhang", lookback=lambda window: window + 1, columns=_OHLC)
def yang_zhang(bars: BarTensors, *, window: int = 24) -> Tensor:
    """Return Yang and Zhang's volatility per bar."""
    bar = [bars[name] for name in _OHLC]
    common, later = bars.keep("yang_zhang", lambda: indicators.YangZhang(*bar))
    return common.volatility(window=window)[later:]


@feature(name="garch", lookback=lambda beta, **_: rolling.taps(decay=beta) + 1)
def garch(
    bars: BarTensors, *, omega: float = 0.0, alpha: float = 0.06, beta: float = 0.94
) -> Tensor:
    """Return the volatility that GARCH(1,1) expects of the next bar.

    The defaults are RiskMetrics' average, which fits no asset best and needs no estimation. Pass
    what `arch` estimated on the training span otherwise.
    """
    returns = _one_bar_return(bars)
    return indicators.garch_variance(returns, omega=omega, alpha=alpha, beta=beta).sqrt()


def _wilder_lookback(period: int) -> int:
    return rolling.taps(decay=indicators.wilder_decay(period=period)) + 1


@feature(name="rsi", lookback=_wilder_lookback)
def rsi(bars: BarTensors, *, period: int = 14) -> Tensor:
    """Return the relative strength index, moved to [-1, 1]."""
    return indicators.rsi(bars["close"], period=period) / 50.0 - 1.0


@feature(name="atr", lookback=_wilder_lookback, columns=_RANGE)
def atr(bars: BarTensors, *, period: int = 14) -> Tensor:
    """Return the average true range as a share of the close."""
    size = indicators.atr(*(bars[name] for name in _RANGE), period=period)
    return size / _newest(bars["close"], size)


def _macd_lookback(fast: int, slow: int, signal: int) -> int:
    first, second, third = (
        rolling.taps(decay=indicators.ema_decay(span=span)) for span in (fast, slow, signal)
    )
    return max(first, second) + third - 1


@feature(name="macd", lookback=_macd_lookback)
def macd(bars: BarTensors, *, fast: int = 12, slow: int = 26, signal: int = 9) -> Tensor:
    """Return the MACD line as a share of the close."""
    line, _ = bars.once(indicators.macd, "close", fast=fast, slow=slow, signal=signal)
    return line / _newest(bars["close"], line)


@feature(name="macd_histogram", lookback=_macd_lookback)
def macd_histogram(bars: BarTensors, *, fast: int = 12, slow: int = 26, signal: int = 9) -> Tensor:
    """Return MACD line less signal line as a share of the close."""
    line, smooth = bars.once(indicators.macd, "close", fast=fast, slow=slow, signal=signal)
    return (line - smooth) / _newest(bars["close"], line)


@feature(name="bollinger_position", lookback=lambda window, **_: window)
def bollinger_position(bars: BarTensors, *, window: int = 20, deviations: float = 2.0) -> Tensor:
    """Return where the close lies between the bands: -1 on the lower, 1 on the upper."""
    return bars.once(indicators.bollinger, "close", window=window, deviations=deviations)[0]


@feature(name="bollinger_width", lookback=lambda window, **_: window)
def bollinger_width(bars: BarTensors, *, window: int = 20, deviations: float = 2.0) -> Tensor:
    """Return the width of the bands as a share of their middle."""
    return bars.once(indicators.bollinger, "close", window=window, deviations=deviations)[1]


@feature(name="cci", lookback=lambda window: window, columns=_RANGE)
def cci(bars: BarTensors, *, window: int = 20) -> Tensor:
    """Return the commodity channel index over 100."""
    return indicators.cci(*(bars[name] for name in _RANGE), window=window) / 100.0


@feature(name="sma_distance", lookback=lambda window: window)
def sma_distance(bars: BarTensors, *, window: int = 21) -> Tensor:
    """Return the log of the close over its simple average."""
    mean = rolling.window_mean(bars["close"], window=window)
    return (_newest(bars["close"], mean) / mean).log()


@feature(name="channel_position", lookback=lambda window: window, columns=_RANGE)
def channel_position(bars: BarTensors, *, window: int = 48) -> Tensor:
    """Return where the close lies in the window's range: -1 at its low, 1 at its high."""
    top = rolling.window_max(bars["high"], window=window)
    bottom = rolling.window_min(bars["low"], window=window)
    close = _newest(bars["close"], top)
    flat = top == bottom
    share = (close - bottom) / torch.where(flat, 1.0, top - bottom)
    return torch.where(flat, 0.0, share * 2.0 - 1.0)


@feature(name="on_balance", lookback=lambda window: window + 1, columns=("close", "volume"))
def on_balance(bars: BarTensors, *, window: int = 24) -> Tensor:
    """Return the change of on-balance volume as a share of the volume, in [-1, 1]."""
    change = indicators.obv_change(bars["close"], bars["volume"], window=window)
    total = rolling.window_sum(bars["volume"][1:], window=window)
    quiet = total == 0.0
    return torch.where(quiet, 0.0, change / torch.where(quiet, 1.0, total))


@feature(name="relative_volume", lookback=lambda window: window, columns=("volume",))
def relative_volume(bars: BarTensors, *, window: int = 24) -> Tensor:
    """Return log((1 + volume / mean volume) / 2)."""
    return indicators.relative_volume(bars["volume"], window=window)


@feature(name="taker_share", lookback=lambda window: window, columns=("taker_buy_base", "volume"))
def taker_share(bars: BarTensors, *, window: int = 24) -> Tensor:
    """Return taker buys less taker sells as a share of the volume, in [-1, 1]."""
    return bars.once(_signed_share, "taker_buy_base", "volume", window=window)[0]


@feature(
    name="taker_momentum",
    lookback=lambda window, horizon: window + horizon,
    columns=("taker_buy_base", "volume"),
)
def taker_momentum(bars: BarTensors, *, window: int = 24, horizon: int = 6) -> Tensor:
    """Return how much the taker share moved in `horizon` bars."""
    share = bars.once(_signed_share, "taker_buy_base", "volume", window=window)[0]
    return share[horizon:] - share[: max(share.shape[0] - horizon, 0)]


@feature(
    name="funding", lookback=lambda window, settlements: window * settlements, columns=(FUNDING,)
)
def funding(bars: BarTensors, *, window: int = 8, settlements: int = 1) -> Tensor:
    """Return the mean rate of the last `settlements` settlements, `window` bars apart.

    With one settlement in every window its sum is that settlement's rate, wherever in the window
    it stands. The oldest window may begin before the first known rate, as long as that rate lies
    in it: the shortest history that holds all settlements gives what a longer one gives.

    Raises:
        RangeError: if the bars are shorter than 8 hours and do not divide them.
    """
    if _uneven(bars.interval):
        raise RangeError(
            wrong="bars of feature `funding` must divide 8 hours, or be longer",
            found=str(bars.interval),
            remedy="Use `funding_day` if the bars divide a day; leave funding out otherwise.",
        )
    rates = bars[FUNDING]
    total = rolling.window_sum(torch.where(rates.isnan(), 0.0, rates), window=window * settlements)
    recent = rolling.window_sum(rates, window=window * (settlements - 1) + 1)
    return torch.where(_newest(recent, total).isnan(), torch.nan, total / settlements)


@feature(name="funding_day", lookback=lambda window: window + window // 3 + 1, columns=(FUNDING,))
def funding_day(bars: BarTensors, *, window: int = 8) -> Tensor:
    """Return the mean rate per settlement of 8 hours over a day, `window` bars.

    For bars that do not divide 8 hours: a whole day holds three settlements wherever it begins.
    The lookback is a settlement longer than a day, so that the shortest window has seen a rate
    before the day begins.

    Raises:
        RangeError: if `window` bars are not a day.
    """
    if window * bars.interval.milliseconds != _DAY_MS:
        raise RangeError(
            wrong="`window` bars of feature `funding_day` must be 24 hours",
            found=f"{window} bars of {bars.interval}",
            remedy="Pass 24 hours over the bar's length; leave funding out if that is no whole "
            "number.",
        )
    day = rolling.window_sum(bars[FUNDING], window=window) / _SETTLEMENTS_A_DAY
    return day[window // 3 + 1 :]


def _phase(bars: BarTensors, period_ms: int, origin_ms: int) -> Tensor:
    """Return the angle of the closing time, the moment of the decision, in a period, [T, 1]."""

    def angle() -> Tensor:
        since = (bars.ts + bars.interval.milliseconds - origin_ms) % period_ms
        return (since.to(bars["close"].dtype) * (2.0 * math.pi / period_ms)).unsqueeze(-1)

    common, later = bars.keep(("phase", period_ms), angle)
    return common[later:]


@feature(name="leak", lookback=1, columns=("leak",))
def leak(bars: BarTensors) -> Tensor:
    """Return the next return, as only the `oracle` world gives it away."""
    return bars["leak"]


@feature(name="warning", lookback=1, columns=("warning",))
def warning(bars: BarTensors) -> Tensor:
    """Return the warning that precedes some crashes of the `crash` world."""
    return bars["warning"]


@feature(name="day_sin", lookback=1, forgeable=False)
def day_sin(bars: BarTensors) -> Tensor:
    """Return the sine of the time of day in UTC."""
    return _phase(bars, _DAY_MS, 0).sin().expand_as(bars["close"])


@feature(name="day_cos", lookback=1, forgeable=False)
def day_cos(bars: BarTensors) -> Tensor:
    """Return the cosine of the time of day in UTC."""
    return _phase(bars, _DAY_MS, 0).cos().expand_as(bars["close"])


@feature(name="week_sin", lookback=1, forgeable=False)
def week_sin(bars: BarTensors) -> Tensor:
    """Return the sine of the time of week; weeks begin on Mondays."""
    return _phase(bars, _WEEK_MS, _MONDAY_MS).sin().expand_as(bars["close"])


@feature(name="week_cos", lookback=1, forgeable=False)
def week_cos(bars: BarTensors) -> Tensor:
    """Return the cosine of the time of week; weeks begin on Mondays."""
    return _phase(bars, _WEEK_MS, _MONDAY_MS).cos().expand_as(bars["close"])


def default_specs(interval: Interval) -> tuple[FeatureSpec, ...]:
    """Return the specifications of the default set for bars of one length.

    Bars shorter than 8 hours that divide neither 8 nor 24 hours have no funding column.
    """

    def each(name: str, key: str, *values: int) -> list[FeatureSpec]:
        return [FeatureSpec(name=name, parameters={key: value}) for value in values]

    plain = (
        *("garch", "rsi", "macd", "macd_histogram", "bollinger_position", "bollinger_width"),
        *("atr", "cci", "channel_position", "on_balance"),
    )
    return (
        *each("log_return", "horizon", 1, 3, 6, 24, 168),
        *each("realised_volatility", "window", 24, 168),
        *each("parkinson", "window", 24),
        *each("yang_zhang", "window", 24, 168),
        *(FeatureSpec(name=name) for name in plain),
        *each("sma_distance", "window", 5, 21, 50),
        *each("relative_volume", "window", 24, 168),
        *each("taker_share", "window", 1, 24),
        FeatureSpec(name="taker_momentum"),
        *_funding_specs(interval),
        *(FeatureSpec(name=name) for name in ("day_sin", "day_cos", "week_sin", "week_cos")),
    )


def _uneven(interval: Interval) -> bool:
    """Return whether 8 hours hold several bars, but not a whole number of them."""
    length = interval.milliseconds
    return length < SETTLEMENT_MS and SETTLEMENT_MS % length != 0


def _funding_specs(interval: Interval) -> list[FeatureSpec]:
    length = interval.milliseconds
    if not _uneven(interval):
        window = max(1, SETTLEMENT_MS // length)
        return [
            FeatureSpec(name="funding", parameters={"window": window, "settlements": count})
            for count in (1, 3)
        ]
    if _DAY_MS % length:
        return []
    return [FeatureSpec(name="funding_day", parameters={"window": _DAY_MS // length})]


def default_features(interval: Interval) -> FeatureSet:
    """Return the default set; `.available(columns)` leaves out what a source cannot serve."""
    return FeatureSet(default_specs(interval), interval=interval, registry=REGISTRY)


def _one_bar_return(bars: BarTensors) -> Tensor:
    return bars.once(_returned, "close")[0]


def _returned(close: Tensor) -> tuple[Tensor]:
    return (indicators.log_return(close, horizon=1),)


def _signed_share(part: Tensor, whole: Tensor, *, window: int) -> tuple[Tensor]:
    return (indicators.signed_share(part, whole, window=window),)


def _newest(x: Tensor, like: Tensor) -> Tensor:
    return x[x.shape[0] - like.shape[0] :]
