"""Messages of an exchange's streams as events, wherever the messages come from."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from stormsail.core.errors import DataError, VenueError
from stormsail.execution.connection import binance
from stormsail.execution.venue import (
    ZERO,
    BarClosed,
    Event,
    Order,
    OrderChanged,
    OrderStatus,
    StreamInterrupted,
    Trade,
)
from stormsail.market.bars import Bars
from stormsail.market.fetch.pages import number_of, whole
from stormsail.market.interval import Interval

Message = Mapping[str, object]

_CANDLE = {
    "ts": "t",
    "open": "o",
    "high": "h",
    "low": "l",
    "close": "c",
    "volume": "v",
    "quote_volume": "q",
    "trades": "n",
    "taker_buy_base": "V",
    "taker_buy_quote": "Q",
}


class Streams(Protocol):
    """A source of events."""

    def start(self, symbols: Mapping[str, str], interval: Interval) -> None:
        """Begin; `symbols` maps the exchange's names of markets to ours."""

    def take(self, timeout_s: float) -> Sequence[Event]:
        """Return the events since the last call, waiting at most so long for the first."""

    def held(self) -> AbstractContextManager[None]:
        """Read no message for a moment, in which orders leave: what they did can wait."""

    def age_ms(self) -> int | None:
        """Return the time since the last message; None before the first."""

    def close(self) -> None:
        """End the streams; a second call does nothing."""


def event_of(message: Message, symbols: Mapping[str, str], interval: Interval) -> Event | None:
    """Return what a message says; None where it says nothing that trading needs.

    A message that cannot be read is an interruption: what it meant must be asked for.
    """
    kind = message.get("e")
    try:
        if kind == "kline":
            return _bar(binance.row_of(message.get("k"), "a candle"), symbols, interval)
        if kind == "executionReport":
            return _spot_order(message, symbols)
        if kind == "ORDER_TRADE_UPDATE":
            return _futures_order(binance.row_of(message.get("o"), "an order"), symbols)
        if kind == "ALGO_UPDATE":
            return _stop(binance.row_of(message.get("o"), "an order"), message, symbols)
    except (VenueError, DataError) as error:
        return StreamInterrupted(f"a message that cannot be read: {error.found}")
    if kind in ("eventStreamTerminated", "listenKeyExpired", "MARGIN_CALL"):
        return StreamInterrupted(f"the exchange sent {kind}")
    return None


def _bar(candle: binance.Row, symbols: Mapping[str, str], interval: Interval) -> Event | None:
    symbol = symbols.get(str(candle.get("s")))
    if symbol is None or candle.get("i") != str(interval) or candle.get("x") is not True:
        return None
    columns: dict[str, list[float]] = {}
    for name, short in _CANDLE.items():
        value = candle.get(short)
        read = whole(value) if name in ("ts", "trades") else number_of(value)
        if read is None:
            raise binance.nonsense(f"`{name}`", f"{value!r:.80}")
        columns[name] = [read]
    return BarClosed(Bars(symbol, interval, pa.table(columns)))


def _spot_order(row: Message, symbols: Mapping[str, str]) -> Event | None:
    symbol = symbols.get(str(row.get("s")))
    if symbol is None:
        return None
    canceled = row.get("x") == "CANCELED" and row.get("C")
    order = _order(row, symbol, binance.text(row, "C" if canceled else "c"), stop="P", cost="Z")
    return OrderChanged(order, _trade(row, symbol, order))


def _futures_order(row: binance.Row, symbols: Mapping[str, str]) -> Event | None:
    symbol = symbols.get(str(row.get("s")))
    if symbol is None:
        return None
    mean, filled = binance.decimal(row, "ap"), binance.decimal(row, "z")
    whole_row = {**row, "cost": f"{mean * filled:f}"}
    order = _order(whole_row, symbol, binance.text(row, "c"), stop="sp", cost="cost")
    return OrderChanged(order, _trade(row, symbol, order))


def _order(row: Message, symbol: str, client_id: str, *, stop: str, cost: str) -> Order:
    return Order(
        client_id=client_id,
        order_id=binance.text(row, "i"),
        symbol=symbol,
        side="buy" if row.get("S") == "BUY" else "sell",
        type=binance.TYPES.get(str(row.get("o")), "limit"),
        status=_status(row),
        quantity=binance.decimal(row, "q"),
        filled=binance.decimal(row, "z"),
        cost=binance.decimal(row, cost),
        price=binance.decimal(row, "p") or None,
        stop_price=binance.decimal(row, stop) or None,
        reduce_only=row.get("R") is True,
        updated_ms=binance.milliseconds(row, "T"),
    )


def _status(row: Message) -> OrderStatus:
    status = binance.STATUSES.get(str(row.get("X")))
    if status is None:
        raise binance.nonsense("`X`", f"{row.get('X')!r:.80}")
    return status


def _trade(row: Message, symbol: str, order: Order) -> Trade | None:
    if row.get("x") not in ("TRADE", "CALCULATED"):
        return None
    return Trade(
        trade_id=binance.text(row, "t"),
        order_id=order.order_id,
        symbol=symbol,
        side=order.side,
        price=binance.decimal(row, "L"),
        quantity=binance.decimal(row, "l"),
        fee=binance.decimal(row, "n") if row.get("n") is not None else ZERO,
        fee_asset=str(row.get("N") or ""),
        ts_ms=order.updated_ms,
        realised=binance.decimal(row, "rp") if "rp" in row else ZERO,
    )


def _stop(row: binance.Row, message: Message, symbols: Mapping[str, str]) -> Event | None:
    symbol = symbols.get(str(row.get("s")))
    if symbol is None:
        return None
    filled, mean = binance.decimal(row, "aq"), binance.decimal(row, "ap")
    number = str(row.get("ai") or "")
    order = Order(
        client_id=binance.text(row, "caid"),
        order_id=number or f"algo-{binance.text(row, 'aid')}",
        symbol=symbol,
        side="buy" if row.get("S") == "BUY" else "sell",
        type="stop",
        status=_status(row),
        quantity=binance.decimal(row, "q"),
        filled=filled,
        cost=filled * mean,
        price=None,
        stop_price=binance.decimal(row, "tp"),
        reduce_only=row.get("R") is True,
        updated_ms=binance.milliseconds(message, "T", "E"),
    )
    return OrderChanged(order, None)
