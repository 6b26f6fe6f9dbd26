"""`RateBudget`: one request budget for an address, shared by every process on this machine.

An exchange counts requests by IP address, and each client library believes that it is alone there.
The budget is therefore a small file that all processes lock, read and change. What is used counts
for a minute and a bit after it was used, so that no minute of the exchange's clock, wherever it
begins, holds more than the limit. 429 and 418 silence all of them.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stormsail.core.clock import NANOSECONDS, Clock, iso
from stormsail.core.errors import DataError, RangeError, VenueError

WINDOW_S = 61.0
"""Time after which used weight is free again: the exchange's minute and a second of delay."""

RESERVE = 0.2
"""Share of the budget that is kept for cancellations and stops."""

_BUCKET_S = 1.0
_MOMENT_S = 0.001
_RECORD_BYTES = 4096
_MS = 1_000_000


@dataclass
class _State:
    """The shared record. Times are seconds of the monotonic clock, but for the ban's `until_ms`."""

    buckets: list[list[float]] = field(default_factory=list)
    quiet_until_s: float = 0.0
    banned_until_s: float = 0.0
    banned_until_ms: int = 0
    written_s: float = 0.0


class RateBudget:
    """Weight that may still be used of an exchange's limit.

    Args:
        path: the shared file; one for each exchange and address.
        limit: weight that the exchange allows in a minute.
        clock: durations are measured with its monotonic side: a wall clock that is set cannot
            make a ban look over.
        share: part of the limit that these processes use; the rest is for the browser.
    """

    def __init__(self, path: Path, *, limit: int, clock: Clock, share: float = 0.8) -> None:
        if limit < 1 or not 0.0 < share <= 1.0:
            raise RangeError(
                wrong="`limit` must be at least 1 and `share` in (0, 1]",
                found=f"limit={limit}, share={share}",
                remedy="Take the exchange's limit of request weight in a minute.",
            )
        self.limit = limit
        self._allowed = limit * share
        self._clock = clock
        self._threads = threading.Lock()
        self._known: tuple[bytes, _State] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise DataError(
                "file-unusable",
                wrong=f"the request budget must be kept in {path}",
                found=str(error),
                remedy="Free the path, or set XDG_RUNTIME_DIR to a folder of yours.",
            ) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def acquire(self, weight: float, *, urgent: bool = False, patience_s: float = 0.0) -> None:
        """Take weight from the budget, waiting for it if need be.

        Args:
            weight: of the request.
            urgent: may use the reserve.
            patience_s: longest time to wait.

        Raises:
            VenueError: `venue-ban`, or `venue-rate-limit`, also where the budget cannot be written;
                then nothing must be sent.
        """
        deadline = self._now_s() + patience_s
        while True:
            with self._shared() as state:
                wait = self._wait_s(state, weight, urgent=urgent)
                if wait <= 0.0:
                    self._use(state, weight)
                    return
                ban = self._ban_s(state)
                until = state.banned_until_ms
            if not self._now_s() + wait <= deadline:
                raise _ban_error(until) if ban > 0.0 else _rate_error(wait, weight)
            # A moment more: what is left of a rounding error would be waited for without end.
            self._clock.sleep(wait + _MOMENT_S)

    def observed(self, used: int) -> None:
        """Take over what the exchange says is used in this minute, if it is more."""
        with self._shared() as state:
            missing = used - sum(weight for _start, weight in state.buckets)
            if missing > 0:
                self._use(state, missing)

    def quiet(self, seconds: float) -> None:
        """Send nothing for so long: the exchange said 429."""
        with self._shared() as state:
            state.quiet_until_s = max(state.quiet_until_s, self._now_s() + seconds)

    def ban(self, seconds: float) -> None:
        """Send nothing until a ban ends: the exchange said 418."""
        with self._shared() as state:
            state.banned_until_s = max(state.banned_until_s, self._now_s() + seconds)
            until = self._clock.now_ns() // _MS + round(seconds * 1000)
            state.banned_until_ms = max(state.banned_until_ms, until)

    def check_ban(self) -> None:
        """Refuse a request that has its weight already, if a ban has begun since.

        Raises:
            VenueError: `venue-ban`; then nothing must be sent.
        """
        state = self._seen()
        if self._ban_s(state) > 0.0:
            raise _ban_error(state.banned_until_ms)

    def used(self) -> float:
        """Return the share of the budget that is used, 0 to 1."""
        buckets = self._seen().buckets
        return min(1.0, sum(weight for _start, weight in buckets) / self._allowed)

    def banned_until_ms(self) -> int | None:
        """Return when the ban ends; None outside of one."""
        state = self._seen()
        return state.banned_until_ms if self._ban_s(state) > 0.0 else None

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NANOSECONDS

    def _ban_s(self, state: _State) -> float:
        return state.banned_until_s - self._now_s()

    def _wait_s(self, state: _State, weight: float, *, urgent: bool) -> float:
        """Return how long to wait before this weight is free; 0 if it is."""
        now = self._now_s()
        silent = max(self._ban_s(state), state.quiet_until_s - now)
        if silent > 0.0:
            return silent
        allowed = self._allowed if urgent else self._allowed * (1.0 - RESERVE)
        if weight > allowed:
            return math.inf
        used = sum(weight for _start, weight in state.buckets)
        for start, bucket in state.buckets:
            if used + weight <= allowed:
                break
            used -= bucket
            silent = start + WINDOW_S + _BUCKET_S - now
        return max(0.0, silent)

    def _use(self, state: _State, weight: float) -> None:
        start = self._now_s() // _BUCKET_S * _BUCKET_S
        if state.buckets and state.buckets[-1][0] >= start:
            state.buckets[-1][1] += weight
        else:
            state.buckets.append([start, weight])

    def _seen(self) -> _State:
        """Return the record as it is; it is not to be changed."""
        with self._threads, self._locked(fcntl.LOCK_SH):
            return self._read()

    @contextlib.contextmanager
    def _shared(self) -> Iterator[_State]:
        """Hold the record: read it, let it be changed, write it back."""
        with self._threads, self._locked(fcntl.LOCK_EX):
            state = self._read()
            self._known = None  # until what changed is in the file
            yield state
            state.written_s = self._now_s()
            data = json.dumps(vars(state)).encode().ljust(_RECORD_BYTES)
            try:
                os.pwrite(self._descriptor, data, 0)
            except OSError as error:
                raise _unkept_error(error) from error
            self._known = data, state

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Hold the file's lock, which is the process's: its threads share it."""
        fcntl.flock(self._descriptor, how)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _read(self) -> _State:
        """Return the record; bytes that this process wrote or read last are not read anew."""
        data = os.pread(self._descriptor, 2 * _RECORD_BYTES, 0)
        if self._known is None or self._known[0] != data:
            state = self._parsed(data)
            if state is None:
                return self._unread(data)
            self._known = data, state
        state = self._known[1]
        now = self._now_s()
        if now < state.written_s:  # the machine was started again, and its clock with it
            left = max(0.0, (state.banned_until_ms - self._clock.now_ns() // _MS) / 1000.0)
            return _State(banned_until_s=now + left, banned_until_ms=state.banned_until_ms)
        state.buckets = [b for b in state.buckets if b[0] + WINDOW_S + _BUCKET_S > now]
        return state

    def _parsed(self, data: bytes) -> _State | None:
        """Return the record that bytes hold; None where they hold none."""
        try:
            state = _State(**json.loads(data))
            state.buckets = [[float(start), float(weight)] for start, weight in state.buckets]
        except (TypeError, ValueError):
            return None
        return state

    def _unread(self, data: bytes) -> _State:
        """Return the record of a file without one: a new one, or one that somebody damaged."""
        if not data.strip():
            return _State()
        # Nobody knows what was used: wait a minute rather than risk a ban.
        return _State(quiet_until_s=self._now_s() + WINDOW_S)


def _ban_error(until_ms: int) -> VenueError:
    return VenueError(
        "venue-ban",
        wrong="the exchange must accept requests from this address",
        found=f"a ban until {iso(until_ms)}",
        remedy="Nothing was sent. Wait until then, and stop other programs that use the same "
        "address: asking during a ban prolongs it.",
    )


def _unkept_error(error: OSError) -> VenueError:
    return VenueError(
        "venue-rate-limit",
        wrong="the request budget of this address must be written before a request is sent",
        found=str(error),
        remedy="Free space where XDG_RUNTIME_DIR, or the folder of temporary files, is.",
    )


def _rate_error(wait_s: float, weight: float) -> VenueError:
    return VenueError(
        "venue-rate-limit",
        wrong=f"the request budget of this address must have {weight:g} left",
        found=f"none for another {wait_s:.1f} s",
        remedy="Nothing was sent. Fewer symbols, a longer interval or fewer programs on this "
        "address need less.",
    )


def budget_path(exchange: str, base_url: str | None) -> Path:
    """Return the file of the request budget: one for this user, this exchange and this address."""
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    place = hashlib.sha256((base_url or "").encode()).hexdigest()[:8] if base_url else "hosts"
    return Path(folder) / f"stormsail-{os.getuid()}" / f"rate-{exchange}-{place}.json"
