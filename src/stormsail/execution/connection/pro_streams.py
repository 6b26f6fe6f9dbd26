"""Streams through ccxt.pro: WebSocket connections in a thread of their own.

ccxt.pro keeps the connections and signs the subscriptions. Its messages are read raw, because its
own view of a candle does not say whether the candle has closed.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from stormsail.core.clock import Clock
from stormsail.execution.connection.ccxt_client import TradingClient
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.connection.streams import event_of
from stormsail.execution.secrets import Credentials
from stormsail.execution.venue import Event, StreamInterrupted
from stormsail.market.fetch.client import one_line
from stormsail.market.interval import Interval

_MS = 1_000_000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_HEAD_START_S = 0.02
HELD_S = 0.25
"""Longest time in which no message is read."""


class ProStreams:
    """Closed bars and changes of orders, as the exchange pushes them.

    Args:
        client: the REST client, whose markets are shared.
        credentials: of the account; without them only bars come.
        clock: stamps requests and measures the age of messages.
        budget: request budget of this address.
        base_url: an address in place of the exchange's hosts.
    """

    def __init__(
        self,
        client: TradingClient,
        credentials: Credentials | None,
        clock: Clock,
        budget: RateBudget,
        *,
        base_url: str | None = None,
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._clock = clock
        self._budget = budget
        self._base_url = base_url
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._last_ns: int | None = None

    def start(self, symbols: Mapping[str, str], interval: Interval) -> None:
        """Connect; a second call does nothing."""
        if self._thread is None:
            run = self._run
            self._thread = threading.Thread(
                target=lambda: asyncio.run(run(symbols, interval)), name="streams", daemon=True
            )
            self._thread.start()

    def take(self, timeout_s: float) -> Sequence[Event]:
        """Return the events since the last call, waiting at most so long for the first."""
        events = self._taken()
        if events:
            return events
        convert: Callable[[float], float | None] | None = getattr(self._clock, "real_seconds", None)
        real = timeout_s if convert is None else convert(timeout_s)
        with contextlib.suppress(queue.Empty):
            # A clock that stands still waits for us: give the other threads a moment first.
            events.append(self._events.get(timeout=_HEAD_START_S if real is None else real))
        if not events and real is None:
            self._clock.sleep(timeout_s)
        return [*events, *self._taken()]

    def _taken(self) -> list[Event]:
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Read no message for a moment: it would take the processor from the orders that cause it.

        The thread waits inside of its own loop, and no longer than `HELD_S`.
        """
        over, loop = threading.Event(), self._loop
        with contextlib.suppress(RuntimeError):  # the loop has ended
            if loop is not None:
                loop.call_soon_threadsafe(over.wait, HELD_S)
        try:
            yield
        finally:
            over.set()

    def age_ms(self) -> int | None:
        """Return the time since the last message; None before the first."""
        last = self._last_ns
        return None if last is None else (self._clock.monotonic_ns() - last) // _MS

    def close(self) -> None:
        """End the connections; a second call does nothing."""
        self._stopping.set()
        thread, loop = self._thread, self._loop
        if thread is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(lambda: None)
            thread.join()
            self._thread = None

    async def _run(self, symbols: Mapping[str, str], interval: Interval) -> None:
        self._loop = asyncio.get_running_loop()

        def arrived(message: Mapping[str, object]) -> None:
            self._last_ns = self._clock.monotonic_ns()
            event = event_of(message, symbols, interval)
            if event is not None:
                self._events.put(event)

        exchange = self._connected(arrived)
        pairs = [[symbol, str(interval)] for symbol in symbols.values()]
        watched: list[Callable[[], Awaitable[object]]] = [
            lambda: exchange.watch_ohlcv_for_symbols(pairs)
        ]
        if self._credentials is not None:
            watched.append(exchange.watch_orders)
        tasks = [asyncio.create_task(self._keep(watch)) for watch in watched]
        try:
            while not self._stopping.is_set():
                await asyncio.sleep(0.02)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await exchange.close()

    async def _keep(self, watch: Callable[[], Awaitable[object]]) -> None:
        """Watch, and begin again after an interruption, more and more slowly.

        Whatever ccxt raises: a stream that ended for good would be missed by nobody.
        """
        pause = _FIRST_PAUSE_S
        while True:
            try:
                await watch()
                pause = _FIRST_PAUSE_S
            except Exception as error:  # noqa: BLE001
                words = f"{type(error).__name__}: {one_line(error)}"
                self._events.put(StreamInterrupted(words))
                await asyncio.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE_S)

    def _connected(self, arrived: Callable[[Mapping[str, object]], None]) -> Any:  # noqa: ANN401 - a ccxt exchange
        """Return the ccxt.pro twin of the REST client."""
        import ccxt.pro

        clock, budget = self._clock, self._budget

        class Watched(getattr(ccxt.pro, self._client.id)):  # type: ignore[misc]
            def milliseconds(self) -> int:
                return clock.now_ns() // _MS

            async def throttle(self, cost: float | None = None) -> None:
                budget.acquire(1.0 if cost is None else cost)

            def handle_message(self, client: object, message: object) -> None:
                inner = _inner(message)
                if inner is not None:
                    arrived(inner)
                super().handle_message(client, message)

        Watched.__name__ = self._client.id
        quiet = {"fetchBalanceSnapshot": False, "awaitBalanceSnapshot": False}
        quiet |= {"fetchPositionsSnapshot": False, "awaitPositionsSnapshot": False}
        settings: dict[str, object] = {
            "enableRateLimit": True,
            "newUpdates": True,
            # What the account holds is asked for by us, within the budget.
            "options": {"watchBalance": quiet, "watchPositions": quiet},
        }
        if self._credentials is not None:
            settings["apiKey"] = self._credentials.key.reveal()
            settings["secret"] = self._credentials.secret.reveal()
        exchange = Watched(settings)
        exchange.set_markets(list((self._client.markets or {}).values()))
        exchange.has["fetchCurrencies"] = False
        if self._base_url is not None:
            _redirect(exchange, self._client.urls["api"], self._base_url)
        return exchange


def _inner(message: object) -> Mapping[str, object] | None:
    """Return the event inside of the envelopes of combined and of account streams."""
    for name in ("data", "event"):
        if isinstance(message, dict) and isinstance(message.get(name), dict):
            message = message[name]
    return message if isinstance(message, dict) else None


def _redirect(exchange: Any, rest: object, base_url: str) -> None:  # noqa: ANN401 - a ccxt exchange
    base = base_url.replace("http", "ws", 1)
    # ccxt tells spot from futures by the word `stream` in the address.
    sockets = {
        "spot": f"{base}/stream/ws",
        "linear": f"{base}/ws",
        "ws-api": {"spot": f"{base}/ws-api/v3"},
    }
    exchange.urls["api"] = {**(rest if isinstance(rest, dict) else {}), "ws": sockets}
