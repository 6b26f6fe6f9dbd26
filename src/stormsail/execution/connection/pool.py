"""`ConnectionPool`: several connections to an exchange; no request waits for another's answer.

A ccxt client sends one request at a time and remembers the last answer, so each thread has a client
of its own. Markets are shared: what the first client loaded is what all of them know.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stormsail.core.clock import NANOSECONDS, Clock, SystemClock
from stormsail.execution.connection.ccxt_client import TradingClient
from stormsail.market.fetch.client import Requester
from stormsail.market.fetch.pages import Source
from stormsail.market.interval import Interval

T = TypeVar("T")

IDLE_S = 20.0
"""Age from which a connection is not trusted any more: an exchange, or something between, may have
closed it without a word, and an order on it would have no answer."""

_SHARED = ("markets", "markets_by_id", "symbols", "ids", "currencies", "currencies_by_id")


@dataclass
class Connection:
    """One connection: a client, its way to ask, and the sources of bars that use it."""

    client: TradingClient
    requester: Requester
    sources: dict[tuple[str, Interval], Source] = field(default_factory=dict)
    used_ns: int = 0


class ConnectionPool:
    """The connections of one account.

    Args:
        make: opens a connection, given its number.
        count: most of them; 1 sends everything one after the other, in the caller's thread.
    """

    def __init__(self, make: Callable[[int], Connection], count: int) -> None:
        self._make, self._count = make, count
        self._first, self._others = make(0), list[Connection]()
        self._own, self._opening = threading.local(), threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._machine: Clock = SystemClock()

    @property
    def here(self) -> Connection:
        """The connection of this thread."""
        own: Connection = getattr(self._own, "connection", self._first)
        return own

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of calls that do not depend on each other, in their order.

        All of them have ended when this returns; the first error is raised then.
        """
        if self._count == 1 or len(calls) < 2:
            return [call() for call in calls]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, "exchange", initializer=self._enter)
        ended = list(self._threads.map(self._run, calls))
        for _, error in ended:
            if error is not None:
                raise error
        return [result for result, _ in ended]  # type: ignore[misc]

    def _enter(self) -> None:
        with self._opening:
            self._own.connection = self._make(1 + len(self._others))
            self._others.append(self._own.connection)

    def _run(self, call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        connection, now = self.here, self._machine.monotonic_ns()
        for name in _SHARED:
            setattr(connection.client, name, getattr(self._first.client, name))
        if now - connection.used_ns > IDLE_S * NANOSECONDS:
            _drop(connection)
        connection.used_ns = now
        try:
            return call(), None
        except BaseException as error:  # noqa: BLE001 - raised by whoever asked, after all ended
            return None, error

    def close(self) -> None:
        """End all connections; a second call does nothing."""
        if self._threads is not None:
            self._threads.shutdown()
        for connection in (self._first, *self._others):
            _drop(connection)


def _drop(connection: Connection) -> None:
    session: Any = connection.client.session
    session.close()
