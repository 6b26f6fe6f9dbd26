"""Regular files behind a path: links are followed; pipes, devices, sockets and folders are refused.

Opening a named pipe waits for a writer that may never come, and a device may answer for ever. So a
path is looked at first, opened without waiting, and looked at again.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def other_kind(path: Path | str) -> str | None:
    """Return what is behind a path, if it is there and no regular file: `a named pipe`."""
    try:
        return _other(Path(path).stat().st_mode)
    except OSError:
        return None


def check_regular(path: Path | str) -> os.stat_result:
    """Return the state of a regular file.

    Raises:
        OSError: EINVAL with the kind in words for anything else, or what the system says.
    """
    status = Path(path).stat()
    _refuse_other(path, status.st_mode)
    return status


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading, without ever waiting for another process.

    Raises:
        OSError: EINVAL with the kind in words for anything else, or what the system says.
    """
    check_regular(path)
    descriptor = os.open(path, _READ)
    try:
        _refuse_other(path, os.fstat(descriptor).st_mode)  # it may have been exchanged since
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_other(path: Path | str, mode: int) -> None:
    kind = _other(mode)
    if kind is not None:
        raise OSError(errno.EINVAL, f"{kind} instead of a file", os.fspath(path))


def _other(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return None
    return next((words for test, words in _KINDS if test(mode)), "something else")
