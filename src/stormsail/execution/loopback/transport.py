"""The loopback exchange inside the process: ccxt's own session, without a socket.

What a broken connection looks like to ccxt is decided by `requests`. This adapter raises what that
library raises over a socket, and lets the virtual clock pass where a socket would wait.
"""

import io
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from stormsail.core.clock import Clock
from stormsail.execution.connection.streams import event_of
from stormsail.execution.loopback.exchange import Exchange, Reply, Request
from stormsail.execution.loopback.orders import Dialect
from stormsail.execution.loopback.streams import Message, Subscriber
from stormsail.execution.venue import Event, StreamInterrupted
from stormsail.market.interval import Interval

if TYPE_CHECKING:
    from requests import PreparedRequest, Response


def in_process(exchange: Exchange) -> Any:  # noqa: ANN401 - a class of a library that may be absent
    """Return an adapter for a `requests` session that hands everything to an exchange.

    Mount it with `session.mount("http://", in_process(exchange))`.
    """
    from requests.adapters import BaseAdapter

    class Adapter(BaseAdapter):
        def send(
            self,
            request: "PreparedRequest",
            stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - the base class's signature
            timeout: Any = None,  # noqa: ANN401
            verify: Any = True,  # noqa: ANN401, ARG002, FBT002
            cert: Any = None,  # noqa: ANN401, ARG002
            proxies: Any = None,  # noqa: ANN401, ARG002
        ) -> "Response":
            reply = exchange.handle(_request(request))
            answer = _met(exchange, reply, request, float(timeout or 10.0))
            exchange.on_request(reply.group, reply.number, "after")
            return answer

        def close(self) -> None:
            pass

    return Adapter()


def _request(prepared: "PreparedRequest") -> Request:
    parts = urlsplit(str(prepared.url))
    body = prepared.body or b""
    text = body.decode() if isinstance(body, bytes) else str(body)
    params = dict(parse_qsl(parts.query)) | dict(parse_qsl(text))
    headers = {str(name): str(value) for name, value in prepared.headers.items()}
    return Request(parts.path, params, headers, prepared.method or "GET", text or parts.query)


def _met(
    exchange: Exchange, reply: Reply, prepared: "PreparedRequest", timeout: float
) -> "Response":
    from requests import Response, exceptions
    from requests.structures import CaseInsensitiveDict
    from urllib3.exceptions import ProtocolError

    body = reply.body
    if reply.wire == "refuse":
        raise exceptions.ConnectionError("Failed to establish a new connection: refused")
    if reply.wire == "reset":
        broken = ProtocolError("Connection aborted.", ConnectionResetError(104, "reset by peer"))
        raise exceptions.ConnectionError(broken)
    if reply.wire == "hang":
        _pass(exchange, timeout)
        raise exceptions.ReadTimeout("Read timed out.")
    if reply.wire == "torn":
        raise exceptions.ChunkedEncodingError("Connection broken: IncompleteRead")
    if reply.wire == "cut":
        body = body[: len(body) // 2]
    if reply.wire == "drip":
        _pass(exchange, reply.seconds)
    response = Response()
    response.status_code = reply.status
    response.reason = "OK" if reply.status == 200 else "No"
    response.url = str(prepared.url)
    response.request = prepared
    response.headers = CaseInsensitiveDict({"Content-Type": "application/json", **reply.headers})
    response.raw = io.BytesIO(body.encode())
    return response


def _pass(exchange: Exchange, seconds: float) -> None:
    if exchange.clock is not None:
        exchange.clock.sleep(seconds)


class LoopbackStreams:
    """The exchange's streams without a socket: its messages, in its order, with its faults.

    Args:
        exchange: whose messages.
        dialect: which of its markets.
        clock: waits for them.
    """

    def __init__(self, exchange: Exchange, dialect: Dialect, clock: Clock) -> None:
        self._exchange = exchange
        self._clock = clock
        self._subscriber = Subscriber(dialect, self._arrived)
        self._messages: deque[Message | None] = deque()
        self._symbols: Mapping[str, str] = {}
        self._interval: Interval | None = None
        self._last_ns: int | None = None

    def start(self, symbols: Mapping[str, str], interval: Interval) -> None:
        """Subscribe."""
        self._symbols, self._interval = symbols, interval
        names = {f"{market_id.lower()}@kline_{interval}" for market_id in symbols}
        self._subscriber.channels = {"user", *names}
        self._connect()

    def _connect(self) -> None:
        with self._exchange.lock:
            feed = self._exchange.feed
            if self._subscriber not in feed.subscribers:
                if feed.is_down(self._exchange.time_ms()):
                    return
                feed.subscribers.append(self._subscriber)

    def _arrived(self, message: Message | None) -> None:
        self._last_ns = self._clock.monotonic_ns()
        self._messages.append(message)
        if message is None:
            self._exchange.feed.subscribers.remove(self._subscriber)

    def take(self, timeout_s: float) -> Sequence[Event]:
        """Return the events since the last call, waiting at most so long for the first."""
        self._exchange.advance()
        if not self._messages:
            self._clock.sleep(timeout_s)
            self._exchange.advance()
        self._connect()
        events: list[Event] = []
        while self._messages and self._interval is not None:
            message = self._messages.popleft()
            if message is None:
                events.append(StreamInterrupted("connection lost"))
                continue
            event = event_of(message, self._symbols, self._interval)
            if event is not None:
                events.append(event)
        return events

    def held(self) -> AbstractContextManager[None]:
        """Do nothing: messages are read by `take` alone."""
        return nullcontext()

    def age_ms(self) -> int | None:
        """Return the time since the last message; None before the first."""
        if self._last_ns is None:
            return None
        return (self._clock.monotonic_ns() - self._last_ns) // 1_000_000

    def close(self) -> None:
        """End the subscription; a second call does nothing."""
        with self._exchange.lock:
            if self._subscriber in self._exchange.feed.subscribers:
                self._exchange.feed.subscribers.remove(self._subscriber)
