"""Turns of threads that train on one device: one runs Python at a time, the others wait.

An update is a few launches of graphs and thousands of short calls of torch, each of which lets go
of the interpreter's lock and takes it again: threads that do so at the same time hand it around,
and all of them together take longer than one after the other. With turns a thread keeps the
interpreter until it waits for the device, and the device works for the others meanwhile.

Nothing here changes what is computed. A thread that has joined none, as that of a single run, takes
no turn and waits for nobody.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Turns:
    """One turn, which threads that joined get in the order in which they ask for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._queue: deque[threading.Lock] = deque()
        """Of those who wait, first come first; each is let through by who had the turn before."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Let this thread take turns with all others that have joined."""
        before, _OWN.turns = _OWN.turns, self
        try:
            yield
        finally:
            _OWN.turns = before

    def _take(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._queue.append(gate)
        try:
            gate.acquire()
        except BaseException:  # a signal in the main thread: nobody else may wait for it
            with self._lock:
                has_turn = gate not in self._queue
                if not has_turn:
                    self._queue.remove(gate)
            if has_turn:
                self._leave()
            raise

    def _leave(self) -> None:
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._is_taken = False


class _Own(threading.local):
    """What a thread has joined, and whether it has the turn now."""

    turns: Turns | None = None
    has_turn: bool = False


_OWN = _Own()


def has_turn() -> bool:
    """Return whether this thread has a turn that others may wait for."""
    return _OWN.has_turn


@contextmanager
def taken(device: torch.device) -> Iterator[None]:
    """Have the turn of this thread; without effect on a CPU, which computes in the threads."""
    turns = _OWN.turns
    if turns is None or _OWN.has_turn or device.type == "cpu":
        yield
        return
    turns._take()
    _OWN.has_turn = True
    try:
        yield
    finally:
        if _OWN.has_turn:  # not where a signal kept it from getting its turn back
            _OWN.has_turn = False
            turns._leave()


@contextmanager
def given_up() -> Iterator[None]:
    """Let the others run, as long as this thread waits for something, and take the turn again."""
    turns = _OWN.turns
    if turns is None or not _OWN.has_turn:
        yield
        return
    _OWN.has_turn = False
    turns._leave()
    try:
        yield
    finally:
        turns._take()
        _OWN.has_turn = True
