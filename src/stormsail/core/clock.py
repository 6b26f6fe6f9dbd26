"""Time as an argument, so that a test, a simulation and a live run differ in one object only."""

import time
from typing import Protocol

from stormsail.core.errors import RangeError

NANOSECONDS = 1_000_000_000


class Clock(Protocol):
    """What code that needs the time may ask for.

    `now_ns` says when something happened and may jump, when the machine's clock is set.
    `monotonic_ns` measures how long something took and never runs backwards; its zero means
    nothing.
    """

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01T00:00:00 UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some fixed instant."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, at least 0."""
        ...


class SystemClock:
    """The machine's own time. No other place in the package asks when it is.

    How long something takes is measured with `monotonic_ns`, too; only `bench`, whose subject is
    the machine itself, reads the finer `time.perf_counter` instead.
    """

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01T00:00:00 UTC."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds since some fixed instant."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        time.sleep(_duration_ns(seconds) / NANOSECONDS)


class ManualClock:
    """A clock that moves only when told to: sleeping costs nothing and is exact.

    Args:
        now_ns: the time at the start, nanoseconds since 1970 UTC.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        """Return nanoseconds since 1970-01-01T00:00:00 UTC."""
        return self._now_ns

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was made, however often it was set."""
        return self._monotonic_ns

    def sleep(self, seconds: float) -> None:
        """Advance by `seconds` and return at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        elapsed = _duration_ns(seconds)
        self._now_ns += elapsed
        self._monotonic_ns += elapsed

    def set_now(self, now_ns: int) -> None:
        """Set the wall clock, also backwards, as an operator or a time server does."""
        self._now_ns = now_ns


def _duration_ns(seconds: float) -> int:
    if not 0.0 <= seconds < float("inf"):  # false for NaN, too
        raise RangeError(
            wrong="`seconds` must be a finite number of at least 0",
            found=repr(seconds),
            remedy="Pass how long to wait; time does not run backwards.",
        )
    return round(seconds * NANOSECONDS)
