"""Checks of single bars: prices, high-low ranges, volumes, swapped columns."""

from functools import partial
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from stormsail.market.bars import OPTIONAL, PRICES
from stormsail.market.checks.columns import Columns
from stormsail.market.checks.report import Collector
from stormsail.market.checks.times import Order

_SAMPLE = 2_000  # rows that are tried in every order of columns
_ENOUGH = 30
_MOST = 0.9
_ROUNDING = 1e-6
"""Relative tolerance of a volume-weighted price: exchanges round volumes to 8 decimals."""

_VOLUMES = ("volume", *OPTIONAL)


def check_prices(collector: Collector, columns: Columns, order: Order) -> bool:
    """Report defects of single bars; return whether the columns carry the right names.

    Where columns carry each other's names, everything else about them is noise and left out.
    """
    values = columns.values
    for name in PRICES:
        column = values[name]
        if not bool((column > 0).all()):
            collector.mark("negative-price", column < 0, partial(_cell, values, name))
            collector.mark("zero-price", column == 0, partial(_cell, values, name))
    for name in _VOLUMES:
        if name in values and bool((values[name] < 0).any()):
            negative = values[name] < 0
            collector.mark("negative-volume", negative, partial(_cell, values, name))
    if _check_swapped(collector, columns, order.rows):
        return False
    _check_range(collector, values)
    _check_flow(collector, values)
    return True


def _cell(values: dict[str, NDArray[np.float64]], name: str, row: int) -> str:
    return f"{name}={float(values[name][row])!r}"


def _cells(values: dict[str, NDArray[np.float64]], names: tuple[str, ...], row: int) -> str:
    return " ".join(_cell(values, name, row) for name in names)


def _ohlc(values: dict[str, NDArray[np.float64]], row: int) -> str:
    return " ".join(f"{name[0]}={float(values[name][row])!r}" for name in PRICES)


def _check_range(collector: Collector, values: dict[str, NDArray[np.float64]]) -> None:
    o, h, low, c = (values[name] for name in PRICES)
    inverted = h < low
    collector.mark("high-below-low", inverted, lambda row: _ohlc(values, row))
    outside = (np.maximum(o, c) > h) | (np.minimum(o, c) < low)
    outside &= ~inverted
    collector.mark("outside-range", outside, lambda row: _ohlc(values, row))


def _check_swapped(collector: Collector, columns: Columns, rows: NDArray[np.int64]) -> bool:
    """Report columns whose names are exchanged; return whether there are any.

    Two signs. Where most bars are impossible, every order of the five columns is tried on a sample:
    the names are wrong if some other order makes nearly all of them possible. Open and close can be
    exchanged without making a bar impossible, but a market goes on where it stopped: the open is
    near the close before it. If instead the close is nearer to the open before it, by a factor of
    two, the names are exchanged; bars of a random walk have a factor of at least 1.4 the right way.
    """
    names = [name for name in (*PRICES, "volume") if name in columns.values]
    rows = _sample(columns, names, rows)
    if len(rows) < _ENOUGH:
        return False
    data = np.stack([columns.values[name][rows] for name in names])
    swapped = ""
    if _possible(data) < 1.0 - _MOST:
        order = max(permutations(range(len(names))), key=lambda p: _score(data[list(p)]))
        if _possible(data[list(order)]) > _MOST:
            pairs = [(names[i], names[j]) for i, j in enumerate(order) if i != j]
            swapped = ", ".join(f"`{theirs}` holds {ours}" for ours, theirs in pairs)
    elif _continuity(data) > 2.0 * _continuity(data[[3, 1, 2, 0]]) and _possible(data) > _MOST:
        swapped = "`open` holds close, `close` holds open"
    if swapped:
        collector.add("swapped-columns", rows[:1], lambda _: swapped)
    return bool(swapped)


def _sample(columns: Columns, names: list[str], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return up to a few thousand usable rows in the order of time, from the beginning."""
    rows = rows[: 2 * _SAMPLE]
    for name in names:
        part = columns.values[name][rows]
        rows = rows[np.isfinite(part) & (part > 0)]
    return rows[:_SAMPLE]


def _possible(data: NDArray[np.float64]) -> float:
    """Return the share of bars with low <= open, close <= high; flat bars count half."""
    o, h, low, c = data[:4]
    possible = (h >= np.maximum(o, c)) & (low <= np.minimum(o, c)) & (h >= low)
    return float(np.mean(np.where(h == low, 0.5, possible)))


def _continuity(data: NDArray[np.float64]) -> float:
    """Return the usual distance between an open and the close before it."""
    return float(np.median(np.abs(np.log(data[0][1:] / data[3][:-1]))))


def _score(data: NDArray[np.float64]) -> tuple[float, float]:
    return round(_possible(data), 2), -_continuity(data)


def _check_flow(collector: Collector, values: dict[str, NDArray[np.float64]]) -> None:
    """Report volumes that contradict each other or the prices."""
    if "volume" not in values:
        return
    volume = values["volume"]
    for part, whole in (("taker_buy_base", "volume"), ("taker_buy_quote", "quote_volume")):
        if part in values and whole in values:
            above = values[part] > values[whole] * (1.0 + 1e-9)
            collector.mark(
                "taker-above-volume",
                above,
                partial(_cells, values, (part, whole)),
            )
    for quote, base in (("quote_volume", "volume"), ("taker_buy_quote", "taker_buy_base")):
        if quote in values and base in values:
            _check_average(collector, values, quote, base)
    moved = (volume == 0) & (values["high"] > values["low"])
    collector.mark("trades-without-volume", moved, lambda row: f"volume=0 {_ohlc(values, row)}")
    if "trades" in values:
        trades = values["trades"]
        collector.mark(
            "trades-without-volume",
            (trades == 0) & (volume > 0) | (trades > 0) & (volume == 0),
            lambda row: f"trades={trades[row]:g} volume={volume[row]:g}",
        )


def _check_average(
    collector: Collector, values: dict[str, NDArray[np.float64]], quote: str, base: str
) -> None:
    """Report average prices outside the range of their bar.

    Compared as money, so that no division blows up the rounding of tiny volumes: both volumes are
    rounded to 8 decimals, which the second term of the slack allows for.
    """
    money, coins = values[quote], values[base]
    slack = _ROUNDING * np.abs(money) + 1e-8 * (1.0 + values["high"])
    outside = (money > values["high"] * coins + slack) | (money < values["low"] * coins - slack)
    outside &= (coins > 0) & np.isfinite(coins) & np.isfinite(money)
    collector.mark(
        "vwap-outside-range",
        outside,
        lambda row: f"{quote}/{base}={money[row] / coins[row]:.8g} {_ohlc(values, row)}",
    )
