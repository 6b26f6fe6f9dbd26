"""How far a long computation has come, for whoever watches it.

A computation says what begins and how far it is; a display watches while it runs. Nothing between
the two hands anything on, and nothing that is computed depends on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Watcher(Protocol):
    """Shows the steps of a computation."""

    def began(self, what: str) -> None:
        """Show that a step begins."""

    def advanced(self, done: int, total: int, unit: str) -> None:
        """Show how far the step is; called often."""


_STAGE: ContextVar[str] = ContextVar("stormsail_stage", default="")
_WATCHER: ContextVar[Watcher | None] = ContextVar("stormsail_steps", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let a watcher see every step of what is computed inside."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def began(what: str) -> None:
    """Say that a step begins."""
    _STAGE.set(what)
    if (watcher := _WATCHER.get()) is not None:
        watcher.began(what)


def stage() -> str:
    """Return the step that began last; empty where none was announced."""
    return _STAGE.get()


def advanced(done: int, total: int, unit: str) -> None:
    """Say how far the step is."""
    if (watcher := _WATCHER.get()) is not None:
        watcher.advanced(done, total, unit)
