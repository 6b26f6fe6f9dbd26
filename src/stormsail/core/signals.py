"""Ctrl-C and SIGTERM as calls of a function, while something runs that must end cleanly."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call a function on Ctrl-C and SIGTERM; outside of the main thread change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
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
