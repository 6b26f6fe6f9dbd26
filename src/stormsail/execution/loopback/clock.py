"""`VirtualClock`: the loopback exchange's time, moved by hand or faster than the machine's."""

import threading
from collections.abc import Callable

from stormsail.core.clock import NANOSECONDS, Clock, SystemClock
from stormsail.core.errors import RangeError


class VirtualClock:
    """A clock for an exchange and its clients.

    Without a speed it stands still until somebody sleeps or calls `advance`: a simulation then
    depends on nothing but its seed. With one it runs, 1,000 for 1,000 times as fast as the machine.

    Args:
        now_ns: where it starts.
        speed: virtual seconds in a real one; None stands still.
        machine: measures real time, and really sleeps.
    """

    def __init__(
        self, now_ns: int = 0, *, speed: float | None = None, machine: Clock | None = None
    ) -> None:
        if speed is not None and not 0.0 < speed <= 1e6:
            raise RangeError(
                wrong="`speed` must be greater than 0 and at most a million",
                found=repr(speed),
                remedy="1000 passes a day in a minute and a half.",
            )
        self._machine = machine or SystemClock()
        self._speed = speed
        self._lock = threading.Lock()
        self._start_ns = now_ns
        self._elapsed_ns = 0
        self._real_ns = self._machine.monotonic_ns()
        self._listeners: list[Callable[[], None]] = []

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01T00:00:00 UTC."""
        return self._start_ns + self.monotonic_ns()

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01T00:00:00 UTC."""
        return self.now_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was made."""
        if self._speed is None:
            return self._elapsed_ns
        real = self._machine.monotonic_ns() - self._real_ns
        return self._elapsed_ns + round(real * self._speed)

    def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock: at once where it stands still."""
        if self._speed is None:
            self.advance(seconds)
        else:
            self._machine.sleep(seconds / self._speed)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once, and tell those who wait for a change."""
        if not 0.0 <= seconds < float("inf"):
            raise RangeError(
                wrong="`seconds` must be a finite number of at least 0",
                found=repr(seconds),
                remedy="Pass how long to wait; time does not run backwards.",
            )
        with self._lock:
            self._elapsed_ns += round(seconds * NANOSECONDS)
        for listener in tuple(self._listeners):
            listener()

    def real_seconds(self, seconds: float) -> float | None:
        """Return how long `seconds` last on the machine; None where the clock stands still."""
        return None if self._speed is None else seconds / self._speed

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every `advance`."""
        self._listeners.append(listener)


class SkewedClock:
    """Another machine's view of a clock: off by a fixed time, which can be set in between."""

    def __init__(self, clock: Clock, offset_ms: int = 0) -> None:
        self._clock = clock
        self.offset_ms = offset_ms

    def now_ns(self) -> int:
        """Return nanoseconds since 1970, as this machine believes."""
        return self._clock.now_ns() + self.offset_ms * 1_000_000

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some fixed instant; a wrong wall clock does not touch it."""
        return self._clock.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        self._clock.sleep(seconds)
