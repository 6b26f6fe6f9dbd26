"""Candles as Binance writes them, and the price that a market shows between them."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from stormsail.market.bars import Bars
from stormsail.market.interval import Interval

HOUR = 3_600_000
Candle = list[int | str]
"""The twelve fields of a kline: times and counts are numbers, prices and volumes decimal texts."""


def candles(seed: int, count: int, *, start: int, step: int = HOUR) -> list[Candle]:
    """Draw candles of a random walk from 20,000 on, two decimals in the prices."""
    generator = np.random.Generator(np.random.PCG64(seed))
    close = 20_000.0 * np.exp(np.cumsum(generator.normal(0.0, 0.01, count)))
    rows: list[Candle] = []
    for number in range(count):
        ts = start + number * step
        opens = close[number - 1] if number else close[0]
        low, high = sorted((opens, close[number]))
        volume = float(generator.uniform(1.0, 999.0))
        quote = volume * close[number]
        trades = int(generator.integers(1, 100_000))
        share = float(generator.uniform(0.0, 1.0))
        rows.append(
            [
                ts,
                f"{opens:.2f}",
                f"{high * 1.001:.2f}",
                f"{low * 0.999:.2f}",
                f"{close[number]:.2f}",
                f"{volume:.8f}",
                ts + step - 1,
                f"{quote:.8f}",
                trades,
                f"{volume * share:.8f}",
                f"{quote * share:.8f}",
                "0",
            ]
        )
    return rows


def candles_of(bars: Bars, *, decimals: int = 2) -> list[Candle]:
    """Return bars as candles; volumes that the bars lack are half of what they have."""
    length = bars.interval.milliseconds
    prices = [bars.column(name) for name in ("open", "high", "low", "close")]
    volume = bars.column("volume")
    quote = bars.column("quote_volume") if "quote_volume" in bars.columns else volume * prices[3]
    rows: list[Candle] = []
    for number, ts in enumerate(bars.ts.tolist()):
        texts = [f"{price[number]:.{decimals}f}" for price in prices]
        base, worth = float(volume[number]), float(quote[number])
        tail: Candle = [f"{worth:.8f}", 1, f"{base / 2:.8f}", f"{worth / 2:.8f}", "0"]
        rows.append([ts, *texts, f"{base:.8f}", ts + length - 1, *tail])
    return rows


def rates(seed: int, count: int, *, start: int, step: int = 8 * HOUR) -> list[tuple[int, str]]:
    """Draw funding rates; like the real ones, they settle some milliseconds late."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [
        (start + number * step + int(generator.integers(0, 12)), f"{value:.8f}")
        for number, value in enumerate(generator.normal(1e-4, 2e-4, count))
    ]


def interval_ms(text: str) -> int:
    """Return the length of a candle by Binance's name for it."""
    return Interval.parse(text).milliseconds


def waypoints(candle: Candle, length: int) -> list[tuple[int, Decimal]]:
    """Return when the price of a candle changes, and to what: a step for each quarter.

    It goes from the open to the extreme on the other side, to the extreme on its way, to the close.
    """
    opens, high, low, close = (Decimal(str(candle[place])) for place in (1, 2, 3, 4))
    turns = (low, high) if close >= opens else (high, low)
    start = int(candle[0])
    return [(start + length * n // 4, p) for n, p in enumerate((opens, *turns, close))]


def between(rows: Sequence[Candle], start_ms: int, end_ms: int) -> Sequence[Candle]:
    """Return the candles that open in [start, end]."""
    first = bisect_left(rows, start_ms, key=lambda row: int(row[0]))
    last = bisect_right(rows, end_ms, key=lambda row: int(row[0]))
    return rows[first:last]


def candle_at(rows: Sequence[Candle], now_ms: int) -> Candle | None:
    """Return the last candle that has opened by then."""
    place = bisect_right(rows, now_ms, key=lambda row: int(row[0]))
    return rows[place - 1] if place else None


def price_at(rows: Sequence[Candle], length: int, now_ms: int) -> Decimal | None:
    """Return the price at a time: that of the last step that has been taken."""
    candle = candle_at(rows, now_ms)
    if candle is None:
        return None
    return [price for start, price in waypoints(candle, length) if start <= now_ms][-1]


def forming(candle: Candle, length: int, now_ms: int) -> Candle:
    """Return a candle as it is seen at a time before its end."""
    if now_ms >= int(candle[0]) + length:
        return candle
    seen = [price for start, price in waypoints(candle, length) if start <= now_ms]
    texts = [f"{value:f}" for value in (max(seen), min(seen), seen[-1])]
    return [candle[0], candle[1], *texts, *candle[5:]]
