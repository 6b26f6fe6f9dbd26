"""Clocks that are passed as arguments, and UTC times as text.

A test, a simulation and a live run differ in the clock object only.
"""

import time
from typing import Literal, Protocol

import numpy as np

from stormsail.core.errors import RangeError

NANOSECONDS = 1_000_000_000


class Clock(Protocol):
    """Wall time, elapsed time and waiting.

    `now_ns` is wall time and may jump, when the machine's clock is set. `monotonic_ns` measures
    durations and never runs backwards; its zero is arbitrary.
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
    """The machine's clock, the only place of the package that reads it.

    Durations are measured with `monotonic_ns`, too; only `bench`, which measures the machine
    itself, reads the finer `time.perf_counter`.
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
    """A clock that starts at `now_ns` and is moved by calls: sleeping is exact and immediate."""

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


def iso(ts_ms: int, *, timespec: Literal["auto", "seconds"] = "auto") -> str:
    """Return a UTC time in milliseconds since 1970 as ISO 8601: `2021-05-19T13:00:00Z`.

    Args:
        ts_ms: milliseconds. Beyond the range of 64 bits they are returned as `123 ms`.
        timespec: `auto` shows milliseconds where they are not 0, `seconds` cuts them off.
    """
    try:
        moment = np.datetime64(int(ts_ms), "ms")
        whole = timespec == "seconds" or ts_ms % 1000 == 0
        return f"{moment.astype('datetime64[s]') if whole else moment}Z"
    except (OverflowError, ValueError):
        return f"{ts_ms} ms"


def _duration_ns(seconds: float) -> int:
    if not 0.0 <= seconds < float("inf"):  # false for NaN, too
        raise RangeError(
            wrong="`seconds` must be a finite number of at least 0",
            found=repr(seconds),
            remedy="Pass how long to wait; time does not run backwards.",
        )
    return round(seconds * NANOSECONDS)
