"""Alerts: one line to the operator's phone or mail for each event that needs a person (apprise).

Sending happens in a thread of its own and never delays or stops trading; what could not be sent is
reported to `on_failure`, by which it reaches the journal. Services are addresses with credentials
inside (`tgram://token/chat`, `mailto://user:password@host`), so they are secrets: they come from
the environment or a file of mode 600, and only their privacy form is ever shown.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stormsail.core.clock import NANOSECONDS, Clock
from stormsail.core.errors import ConfigError

if TYPE_CHECKING:
    from apprise import Apprise

COOLDOWN_SECONDS = 300.0
"""Between two alerts of one kind; what came between is counted in the next."""

WAITING = 64
"""Alerts that wait to be sent; more than that are dropped and counted as not sent."""

LONGEST = 300
"""Characters of a line; the rest is cut, since services cut as well."""

CLOSING_SECONDS = 10.0
"""Time to send what still waits when trading ends."""


@dataclass(frozen=True)
class Alert:
    """One event: its kind, for the cool-down, and its line."""

    kind: str
    text: str


class AlertFilter:
    """Decides which alerts are sent: the first of a kind at once, others after the cool-down."""

    def __init__(self, clock: Clock, cooldown_seconds: float = COOLDOWN_SECONDS) -> None:
        self._clock, self._cooldown = clock, int(cooldown_seconds * NANOSECONDS)
        self._next_ns: dict[str, int] = {}
        self._held_back: dict[str, int] = {}

    def line(self, alert: Alert) -> str | None:
        """Return the line to be sent, or None during the cool-down of its kind."""
        now = self._clock.monotonic_ns()
        if now < self._next_ns.get(alert.kind, now):
            self._held_back[alert.kind] = self._held_back.get(alert.kind, 0) + 1
            return None
        self._next_ns[alert.kind] = now + self._cooldown
        more = self._held_back.pop(alert.kind, 0)
        text = " ".join(alert.text.split())
        suffix = f" (and {more} more of this kind)" if more else ""
        return text[: LONGEST - len(suffix)] + suffix


class Alerts:
    """Sends alerts to all services while it is entered.

    Args:
        services: addresses in the form of apprise; with none, nothing is ever sent.
        title: names the run, first in every message.
        clock: for the cool-down.
        on_failure: called with a sentence about every alert that no service or not every service
            took; from another thread.
        cooldown_seconds: between two alerts of one kind.
    """

    def __init__(
        self,
        services: Sequence[str],
        *,
        title: str,
        clock: Clock,
        on_failure: Callable[[str], None],
        cooldown_seconds: float = COOLDOWN_SECONDS,
    ) -> None:
        self._services = [(shown, service) for shown, service in map(_service, services)]
        self._title, self._on_failure = title, on_failure
        self._filter = AlertFilter(clock, cooldown_seconds)
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The services, without their credentials."""
        return tuple(shown for shown, _ in self._services)

    def __enter__(self) -> "Alerts":
        if self._services:
            self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            with suppress(queue.Full):  # a service that hangs must not keep a trader's locks
                self._lines.put(None, timeout=CLOSING_SECONDS)
            self._thread.join(CLOSING_SECONDS)
            if self._thread.is_alive():
                self._on_failure("alerts were still being sent when trading ended")

    def send(self, alert: Alert) -> None:
        """Send an alert, unless one of its kind was sent just now. Returns at once."""
        if self._thread is None:
            return
        line = self._filter.line(alert)
        if line is None:
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._on_failure(f"an alert was dropped, {WAITING} are waiting: {line}")

    def test(self) -> dict[str, bool]:
        """Send one line to every service; return which took it."""
        return {
            shown: _notify(service, self._title, "test of alerts: all is well")
            for shown, service in self._services
        }

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            for shown, service in self._services:
                if not _notify(service, self._title, line):
                    self._on_failure(f"{shown} did not take the alert: {line}")


def _service(address: str) -> tuple[str, "Apprise"]:
    """Return a service with the name that may be shown.

    Raises:
        ConfigError: if apprise is not installed, or does not know this kind of address.
    """
    try:
        import apprise
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="alerts need apprise",
            found=f"no module {error.name}",
            remedy="Install it: pip install 'stormsail[alerts]', or start without alerts.",
        ) from error
    service = apprise.Apprise()
    if not service.add(address):
        raise ConfigError(
            "config-value",
            wrong="an alert service must be an address that apprise knows",
            found=f"one that begins with {address.partition(':')[0][:20]!r}",
            remedy="See https://github.com/caronc/apprise/wiki for the form of each service.",
        )
    return str(service[0].url(privacy=True)).partition("?")[0], service


def _notify(service: "Apprise", title: str, line: str) -> bool:
    """Send one line; whatever goes wrong in a service's own code counts as not taken."""
    try:
        return bool(service.notify(title=title, body=line))
    except Exception:  # noqa: BLE001 - plug-ins of apprise may raise anything; trading must go on
        return False
