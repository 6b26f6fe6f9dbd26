"""An `os` that fails, or kills the process, at its Nth call."""

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = frozenset(
    {
        "close",
        "fstat",
        "fsync",
        "listdir",
        "mkdir",
        "open",
        "read",
        "rename",
        "rmdir",
        "stat",
        "unlink",
        "write",
    }
)


class FaultyOs:
    """Passes everything to `os`, but hands each call in CALLS to `fault` first."""

    def __init__(self, fault: Callable[[str, int, tuple[Any, ...]], None]) -> None:
        self._fault = fault
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            try:
                self._fault(name, len(self.calls), args)
            except OSError:
                if name == "close":
                    os.close(*args)  # the kernel frees the descriptor even when close complains
                raise
            return real(*args, **kwargs)

        return call


def never(_name: str, _number: int, _args: tuple[Any, ...]) -> None:
    return None


def fail_at(target: int, code: int, *, forever: bool) -> Callable[..., None]:
    def fault(_name: str, number: int, _args: tuple[Any, ...]) -> None:
        if number == target or (forever and number > target):
            raise OSError(code, os.strerror(code))

    return fault


def kill_at(target: int, *, tear: bool) -> Callable[..., None]:
    """Die before the Nth call; with `tear`, after writing half of what it was to write."""

    def fault(name: str, number: int, args: tuple[Any, ...]) -> None:
        if number == target:
            if tear and name == "write":
                os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
