"""Messages of the loopback exchange's streams: candles that close, orders that change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stormsail.execution.loopback import futures, spot
from stormsail.execution.loopback.ledger import Ledger
from stormsail.execution.loopback.orders import Dialect, Fill, HeldOrder
from stormsail.execution.loopback.tape import Candle, between, interval_ms

Message = dict[str, object]


@dataclass(eq=False)
class Subscriber:
    """One connection: the streams that it asked for, and where its messages go.

    Attributes:
        dialect: whose messages these are.
        channels: names such as `btcusdt@kline_1m`; `user` is that of the account's orders.
        send: takes a message; None ends the connection.
    """

    dialect: Dialect
    send: Callable[[Message | None], None]
    channels: set[str] = field(default_factory=set)


class Feed:
    """Sends messages to subscribers, and does to them what a fault says."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self.sent = 0
        self._now = 0
        self._faults: dict[str, int] = {}
        self._kept: list[tuple[Dialect, str, Message]] = []

    def strike(self, kind: str, until_ms: int) -> None:
        """Let a fault last until a time; a disconnect ends every connection at once."""
        self._faults[kind] = until_ms
        if kind == "ws_disconnect":
            for subscriber in list(self.subscribers):
                subscriber.send(None)

    def is_down(self, now_ms: int) -> bool:
        """Whether connections are refused."""
        return now_ms < self._faults.get("ws_disconnect", 0)

    def advance(self, now_ms: int, ledgers: Mapping[Dialect, Ledger]) -> None:
        """Tell of the candles that have closed since the last time."""
        last, self._now = self._now, now_ms
        if now_ms >= self._faults.get("ws_reorder", 0):
            self._flush()
        if not last or not self.subscribers:
            return
        for dialect, book in ledgers.items():
            for (market_id, interval), rows in book.tapes.items():
                channel = f"{market_id.lower()}@kline_{interval}"
                length = interval_ms(interval)
                if any(channel in s.channels for s in self.subscribers):
                    for row in between(rows, last - length + 1, now_ms - length):
                        message = _kline(row, market_id, interval, now_ms)
                        self._publish(dialect, channel, message)

    def order(self, dialect: Dialect, order: HeldOrder, fill: Fill | None, now_ms: int) -> None:
        """Tell of a change of an order."""
        report = spot.report if dialect == "spot" else futures.report
        self._publish(dialect, "user", report(order, fill, now_ms))

    def _publish(self, dialect: Dialect, channel: str, message: Message) -> None:
        now = self._now
        if now < self._faults.get("ws_stall", 0) or self.is_down(now):
            return
        if now < self._faults.get("ws_reorder", 0):
            self._kept.append((dialect, channel, message))
            return
        self._send(dialect, channel, message)
        if now < self._faults.get("ws_duplicate", 0):
            self._send(dialect, channel, message)

    def _flush(self) -> None:
        kept, self._kept = self._kept, []
        for entry in reversed(kept):
            self._send(*entry)

    def _send(self, dialect: Dialect, channel: str, message: Message) -> None:
        for subscriber in list(self.subscribers):
            if subscriber.dialect == dialect and channel in subscriber.channels:
                self.sent += 1
                subscriber.send(message)


def _kline(row: Candle, market_id: str, interval: str, now_ms: int) -> Message:
    names = {"t": 0, "T": 6, "o": 1, "h": 2, "l": 3, "c": 4, "v": 5, "q": 7, "n": 8}
    names |= {"V": 9, "Q": 10, "B": 11}
    candle: Message = {name: row[place] for name, place in names.items()}
    candle |= {"s": market_id, "i": interval, "f": 1, "L": 2, "x": True}
    return {"e": "kline", "E": now_ms, "s": market_id, "k": candle}
