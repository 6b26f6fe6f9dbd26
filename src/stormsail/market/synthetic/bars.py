"""Bars (open, high, low, close, volume, trades) and funding rates of a drawn path."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.errors import RangeError
from stormsail.market.bars import Funding
from stormsail.market.interval import Interval
from stormsail.market.synthetic.process import (
    AnyArray,
    Array,
    Path,
    Streams,
    WorldConfig,
    ar1_path,
)

SETTLEMENT_MS = 8 * 3_600_000
"""Funding settles at 00:00, 08:00 and 16:00 UTC."""

_DIGITS = 8
_POWERS = np.array([float(f"1e{power}") for power in range(-300, 301)])
_SUBSTEPS = 4
_FARTHEST = 200.0 * np.log(10.0)
_DAY_MS = 86_400_000
_RATE_DECIMALS = 8  # of funding rates, as exchanges publish them
_PEAK_HOUR = 14.0
_MEAN_TRADE = 500.0  # quote currency; only the number of trades depends on it
_MOST_SCALES = 8.0  # a crash is loud, not ten thousand times as loud as a calm bar


def quantise(values: Array) -> Array:
    """Round positive values to eight significant decimal digits.

    A price grid, as markets have one. It also absorbs the last bits of `exp` and `log`, which
    differ between processors, so that equal seeds give equal bytes.
    """
    power = _DIGITS - 1 - np.floor(np.log10(values)).astype(np.int64)
    up = _POWERS[np.maximum(power, 0) + 300]
    down = _POWERS[np.maximum(-power, 0) + 300]
    return np.asarray(np.rint(values * up / down) / up * down, dtype=np.float64)


def build_columns(
    path: Path, config: WorldConfig, streams: Streams, *, interval: Interval, start_ms: int
) -> dict[str, AnyArray]:
    """Return the columns of one symbol's bars.

    Closes follow `path.log_return`. The open is the last close, moved by the gap. Between open and
    close runs a Brownian bridge of the bar's variance, so that highs and lows are what a
    continuous path would have reached (see `_extremes`). The volume-weighted price lies inside
    the bar and values every column that counts quote currency.
    """
    ts = start_ms + interval.milliseconds * np.arange(len(path.log_return), dtype=np.int64)
    close = _closes(path, config)
    before = np.concatenate(([config.start_price], close[:-1]))
    opening = quantise(before * np.exp(_gap(path, config, streams)))
    move = np.log(close / opening)
    highest, lowest, middle = _extremes(move, (1.0 - config.gap_share) * path.variance, streams)
    high = np.maximum.reduce([quantise(opening * np.exp(highest)), opening, close])
    low = np.minimum.reduce([quantise(opening * np.exp(lowest)), opening, close])
    inside = (opening * np.exp(middle) - low) / np.maximum(high - low, np.finfo(float).tiny)
    average = low + (high - low) * np.clip(inside, 0.1, 0.9)
    prices = {"ts": ts, "open": opening, "high": high, "low": low, "close": close}
    return prices | _volumes(path, config, streams, ts=ts, interval=interval, average=average)


def _closes(path: Path, config: WorldConfig) -> Array:
    level = np.log(config.start_price) + np.cumsum(path.log_return)
    far = np.abs(level) > _FARTHEST
    if far.any():
        bar = int(far.argmax())
        raise RangeError(
            wrong="the price must stay between 1e-200 and 1e200",
            found=f"10^{level[bar] / np.log(10.0):.0f} after {bar} bars",
            remedy="Draw fewer bars, or set a lower volatility or drift.",
        )
    return quantise(np.exp(level))


def _gap(path: Path, config: WorldConfig, streams: Streams) -> Array:
    """Return the part of each return that falls before the open: a bridge seen at `gap_share`.

    Close-to-close returns keep their distribution whatever the share is.
    """
    share = config.gap_share
    if share == 0.0:
        return np.zeros_like(path.log_return)
    noise = streams("gap").standard_normal(len(path.log_return))
    return share * path.log_return + np.sqrt(share * (1.0 - share) * path.variance) * noise


def _extremes(move: Array, variance: Array, streams: Streams) -> tuple[Array, Array, Array]:
    """Return maximum, minimum and mean of a Brownian bridge from 0 to `move`, per bar.

    The bridge is drawn at four points. Between two of them, a and b, with variance v, the maximum
    is (a + b + √((b − a)² + 2vE))/2 with E standard exponential, and the minimum the same with
    minus: by reflection, P(maximum > m) = exp(−2(m − a)(m − b)/v), and setting that to exp(−E)
    gives m. Each of the two is exact; that both are drawn independently inside a quarter of a bar
    approximates their joint process.
    """
    count = len(move)
    steps = streams("intrabar").standard_normal((count, _SUBSTEPS))
    steps *= np.sqrt(variance / _SUBSTEPS)[:, None]
    steps += ((move - steps.sum(axis=1)) / _SUBSTEPS)[:, None]  # pin the end
    end = np.cumsum(steps, axis=1)
    middle = end - 0.5 * steps
    spread = 2.0 * (variance / _SUBSTEPS)[:, None]
    up = streams("high").standard_exponential((count, _SUBSTEPS))
    down = streams("low").standard_exponential((count, _SUBSTEPS))
    highest = (middle + 0.5 * np.sqrt(steps**2 + spread * up)).max(axis=1)
    lowest = (middle - 0.5 * np.sqrt(steps**2 + spread * down)).min(axis=1)
    return highest, lowest, middle.mean(axis=1)


def _volumes(
    path: Path,
    config: WorldConfig,
    streams: Streams,
    *,
    ts: NDArray[np.int64],
    interval: Interval,
    average: Array,
) -> dict[str, AnyArray]:
    """Return volume, its value, the number of trades and the takers' part of them."""
    scales = np.minimum(np.abs(path.log_return) / path.scale, _MOST_SCALES)
    noise = ar1_path(
        streams("volume").standard_normal(len(ts)),
        persistence=config.volume_persistence,
        deviation=config.volume_deviation,
    )
    level = np.log(config.volume_per_day * interval.milliseconds / _DAY_MS)
    level = level + noise + config.volume_response * scales
    if interval.milliseconds < _DAY_MS:
        hour = (ts % _DAY_MS) / 3_600_000
        level += config.volume_season * np.cos(2.0 * np.pi * (hour - _PEAK_HOUR) / 24.0)
    if path.volume_lift is not None:
        level += path.volume_lift
    volume = quantise(np.exp(level) / average)
    push = np.clip(path.log_return / path.scale, -_MOST_SCALES, _MOST_SCALES)
    lean = 0.25 * push + 0.2 * streams("taker").standard_normal(len(ts))
    bought = quantise(volume / (1.0 + np.exp(-lean)))
    size = _MEAN_TRADE * np.exp(0.3 * streams("trades").standard_normal(len(ts)))
    return {
        "volume": volume,
        "quote_volume": quantise(volume * average),
        "trades": 1 + np.floor(volume * average / size).astype(np.int64),
        "taker_buy_base": bought,
        "taker_buy_quote": quantise(bought * average),
    }


def draw_funding(
    symbol: str, config: WorldConfig, streams: Streams, *, start_ms: int, end_ms: int
) -> Funding:
    """Return the rates of all settlements in [start, end).

    f_k − mean = persistence · (f_{k−1} − mean) + e_k, Gaussian and stationary: the expected
    distance from the mean shrinks by the factor `funding_persistence` per settlement.
    """
    first = -(-start_ms // SETTLEMENT_MS) * SETTLEMENT_MS
    ts = np.arange(first, end_ms, SETTLEMENT_MS, dtype=np.int64)
    noise = streams("funding").standard_normal(len(ts))
    away = ar1_path(
        noise, persistence=config.funding_persistence, deviation=config.funding_deviation
    )
    rate = np.round(config.funding_mean + away, _RATE_DECIMALS) + 0.0  # no negative zeros
    return Funding(symbol, pa.table({"ts": ts, "funding_rate": rate}))
