"""The default features as TA-Lib and pandas compute them, one function a column.

Neither library is needed to run the package; without one, its columns have no peer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Columns = Mapping[str, Array]
"""Columns of one symbol's bars, [T] each, with `ts` as the closing time in milliseconds."""
Peer = Callable[[Columns], Array]

_DAY_MS, _WEEK_MS = 86_400_000, 604_800_000
_MONDAY_MS = 4 * _DAY_MS


def peers() -> dict[str, tuple[str, Peer]]:
    """Return library and function by the label of the column, for the libraries that are here."""
    functions = dict(_numpy())
    with suppress(ImportError):
        functions.update(_pandas())
    with suppress(ImportError):
        functions.update(_talib())
    return functions


def missing() -> list[str]:
    """Return the libraries that are not installed."""
    absent = []
    for name, load in (("pandas", _pandas), ("TA-Lib", _talib)):
        try:
            dict(load())
        except ImportError:
            absent.append(name)
    return absent


def _numpy() -> Iterator[tuple[str, tuple[str, Peer]]]:
    def wave(function: Callable[[Array], Array], period: int, origin: int) -> Peer:
        return lambda x: function((x["ts"] - origin) % period * (2 * np.pi / period))

    for name, period, origin in (("day", _DAY_MS, 0), ("week", _WEEK_MS, _MONDAY_MS)):
        yield f"{name}_sin", ("numpy", wave(np.sin, period, origin))
        yield f"{name}_cos", ("numpy", wave(np.cos, period, origin))
    for horizon in (1, 3, 6, 24, 168):
        yield f"log_return(horizon={horizon})", ("numpy", _returns(horizon))


def _returns(horizon: int) -> Peer:
    def run(x: Columns) -> Array:
        result = np.full_like(x["close"], np.nan)
        result[horizon:] = np.log(x["close"][horizon:] / x["close"][:-horizon])
        return result

    return run


def _pandas() -> Iterator[tuple[str, tuple[str, Peer]]]:
    import pandas as pd

    def mean(values: Array, window: int) -> Array:
        return np.asarray(pd.Series(values).rolling(window).mean())

    def total(values: Array, window: int) -> Array:
        return np.asarray(pd.Series(values).rolling(window).sum())

    def garch(x: Columns) -> Array:
        squares = pd.Series(_returns(1)(x)[1:] ** 2)
        filtered = np.sqrt(squares.ewm(alpha=0.06, adjust=False).mean().to_numpy())
        return np.concatenate([[np.nan], filtered])

    def share(window: int) -> Peer:
        return lambda x: total(x["taker_buy_base"], window) / total(x["volume"], window) * 2 - 1

    table: dict[str, Peer] = {
        "parkinson(window=24)": lambda x: np.sqrt(
            mean(np.log(x["high"] / x["low"]) ** 2, 24) / (4 * np.log(2))
        ),
        "garch(omega=0, alpha=0.06, beta=0.94)": garch,
        "taker_share(window=1)": share(1),
        "taker_share(window=24)": share(24),
        "taker_momentum(window=24, horizon=6)": lambda x: np.asarray(
            pd.Series(share(24)(x)).diff(6)
        ),
        "funding(window=8, settlements=1)": lambda x: total(x["funding"], 8),
        "funding(window=8, settlements=3)": lambda x: total(x["funding"], 24) / 3,
        "realised_volatility(window=24)": lambda x: np.sqrt(mean(_returns(1)(x) ** 2, 24)),
        "realised_volatility(window=168)": lambda x: np.sqrt(mean(_returns(1)(x) ** 2, 168)),
        "relative_volume(window=24)": lambda x: np.log(
            (1 + x["volume"] / mean(x["volume"], 24)) / 2
        ),
        "relative_volume(window=168)": lambda x: np.log(
            (1 + x["volume"] / mean(x["volume"], 168)) / 2
        ),
        "yang_zhang(window=24)": _yang_zhang(24),
        "yang_zhang(window=168)": _yang_zhang(168),
    }
    for label, peer in table.items():
        yield label, ("pandas", peer)


def _yang_zhang(window: int) -> Peer:
    import pandas as pd

    def run(x: Columns) -> Array:
        start, close = pd.Series(x["open"]), pd.Series(x["close"])
        up, down = np.log(x["high"] / start), np.log(x["low"] / start)
        drift, jump = np.log(close / start), np.log(start / close.shift(1))
        inside = (up * (up - drift) + down * (down - drift)).rolling(window).mean()
        k = 0.34 / (1.34 + (window + 1) / (window - 1))
        variance = jump.rolling(window).var() + k * drift.rolling(window).var() + (1 - k) * inside
        return np.asarray(np.sqrt(variance))

    return run


def _talib() -> Iterator[tuple[str, tuple[str, Peer]]]:
    import talib

    def position(x: Columns) -> Array:
        upper, middle, _ = talib.BBANDS(x["close"], 20, 2.0, 2.0)
        return np.asarray((x["close"] - middle) / (upper - middle))

    def width(x: Columns) -> Array:
        upper, middle, lower = talib.BBANDS(x["close"], 20, 2.0, 2.0)
        return np.asarray((upper - lower) / middle)

    def channel(x: Columns) -> Array:
        top, bottom = talib.MAX(x["high"], 48), talib.MIN(x["low"], 48)
        return np.asarray((x["close"] - bottom) / (top - bottom) * 2 - 1)

    def on_balance(x: Columns) -> Array:
        level = talib.OBV(x["close"], x["volume"])
        change = np.full_like(level, np.nan)
        change[24:] = level[24:] - level[:-24]
        return np.asarray(change / talib.SUM(x["volume"], 24))

    def distance(window: int) -> Peer:
        return lambda x: np.log(x["close"] / talib.SMA(x["close"], window))

    spans = "(fast=12, slow=26, signal=9)"
    bands = "(window=20, deviations=2)"
    table: dict[str, Peer] = {
        "rsi(period=14)": lambda x: talib.RSI(x["close"], 14) / 50 - 1,
        "atr(period=14)": lambda x: talib.ATR(x["high"], x["low"], x["close"], 14) / x["close"],
        f"macd{spans}": lambda x: talib.MACD(x["close"], 12, 26, 9)[0] / x["close"],
        f"macd_histogram{spans}": lambda x: talib.MACD(x["close"], 12, 26, 9)[2] / x["close"],
        f"bollinger_position{bands}": position,
        f"bollinger_width{bands}": width,
        "cci(window=20)": lambda x: talib.CCI(x["high"], x["low"], x["close"], 20) / 100,
        "channel_position(window=48)": channel,
        "on_balance(window=24)": on_balance,
    }
    table |= {f"sma_distance(window={window})": distance(window) for window in (5, 21, 50)}
    for label, peer in table.items():
        yield label, ("TA-Lib", peer)
