"""A lock file: one writer at a time, and the others learn who it is.

The lock is the kernel's (`flock`), so it ends with its holder, however that dies; what the file
says is only read to be told. A holder removes the file when it is done, so that nothing is left.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from stormsail.core.clock import NANOSECONDS, Clock, SystemClock, iso

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MOST_BYTES = 4096
_PAUSE_S = 0.02


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: a process on a machine, since when, and what it does."""

    pid: int
    host: str
    since: str
    verb: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.verb}), which holds it since {self.since}"


class BusyError(Exception):
    """Another writer holds the lock, and went on holding it for as long as was waited."""

    def __init__(self, path: Path, holder: Holder | None) -> None:
        super().__init__(str(path))
        self.holder = str(holder or "another process, which did not say who it is")


@contextlib.contextmanager
def held(path: Path, *, verb: str, wait_s: float, clock: Clock | None = None) -> Iterator[None]:
    """Hold the lock of a path; wait for another holder, but not for ever.

    Args:
        path: of the lock file, in a folder that exists.
        verb: what the lock is held for, told to those who wait.
        wait_s: seconds after which waiting ends.
        clock: measures them; the machine's if None.

    Raises:
        BusyError: if another writer held the lock all that time; it names the holder.
        OSError: if the file cannot be made or locked.
    """
    clock = clock or SystemClock()
    descriptor = _acquired(path, clock, wait_s)
    try:
        now = iso(clock.now_ns() // 1_000_000, timespec="seconds")
        with contextlib.suppress(OSError):  # on a full disk the lock holds, and says less
            _write(descriptor, Holder(os.getpid(), socket.gethostname(), now, verb))
        yield
    finally:
        # What was done under the lock stays done, whatever happens to the lock file.
        with contextlib.suppress(OSError):
            path.unlink()  # before the lock is free: afterwards it may be another's
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile keeps no lock
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _acquired(path: Path, clock: Clock, wait_s: float) -> int:
    deadline = clock.monotonic_ns() + round(wait_s * NANOSECONDS)
    while True:
        descriptor = os.open(path, _OPEN, 0o644)
        holder = None
        try:
            _check_kind(path, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
            os.close(descriptor)  # its holder removed it; the lock that counts is another file
            continue
        except BlockingIOError:
            holder = _read(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if clock.monotonic_ns() >= deadline:
            raise BusyError(path, holder)
        clock.sleep(_PAUSE_S)


def _check_kind(path: Path, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "the lock is no regular file", os.fspath(path))


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def _read(descriptor: int) -> Holder | None:
    """Return who wrote the file; None if that cannot be read."""
    try:
        record = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        return Holder(
            int(record["pid"]), str(record["host"]), str(record["since"]), str(record["verb"])
        )
    except (ValueError, KeyError, TypeError):
        return None
