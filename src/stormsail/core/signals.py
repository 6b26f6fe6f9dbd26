"""Ctrl-C and SIGTERM as calls of a function, while something runs that must end cleanly.

Python hands signals to the main thread alone. What runs in other threads is told by a `Relay`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_elsewhere: list[Callable[[int], None]] = []
"""What threads other than the main one want to be called."""


class Relay:
    """Passes a signal of the main thread on to all others, those that begin later included."""

    def __init__(self) -> None:
        self.number: int | None = None
        """Of the last signal."""
        self._informed: list[Callable[[int], None]] = []

    def __call__(self, number: int) -> None:
        """Take a signal."""
        self.number = number
        self._informed.clear()
        self.repeat()

    def repeat(self) -> None:
        """Tell who has not been told yet."""
        if self.number is None:
            return
        for handle in tuple(_elsewhere):
            if handle not in self._informed:
                self._informed.append(handle)
                handle(self.number)


@contextmanager
def handled_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call a function on Ctrl-C and SIGTERM; outside of the main thread, if a `Relay` says so."""
    if threading.current_thread() is not threading.main_thread():
        _elsewhere.append(handle)
        try:
            yield
        finally:
            _elsewhere.remove(handle)
        return

    def handler(number: int, _frame: FrameType | None) -> None:
        handle(number)

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, handler) for kind in kinds]
    try:
        yield
    finally:
        for kind, previous in zip(kinds, before, strict=True):
            signal.signal(kind, previous)
