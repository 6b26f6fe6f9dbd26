"""A short session of a trader, and memory in which its venue outlives it."""

import contextlib
import mmap
import pickle
import struct
from pathlib import Path

from execution_lab import Desk

VENUE = ("cash", "held", "book", "fills", "hidden", "requests", "cancels", "_ids", "_triggered")
"""What a venue in memory consists of."""


class VenueMemory:
    """What a venue knows, in memory that outlives a process and costs no call of the kernel.

    Two records stand side by side, and a byte says which counts: a death in the middle of one
    leaves the other.
    """

    ROOM = 1 << 20

    def __init__(self) -> None:
        self._room = mmap.mmap(-1, 2 * self.ROOM + 1)

    def put(self, desk: Desk, phase: str) -> None:
        """Keep what the venue knows now, and how far the session has come."""
        state = {name: getattr(desk.venue, name) for name in VENUE}
        record = pickle.dumps((desk.clock.now_ns(), phase, state))
        other = 1 - self._room[0]
        start = 1 + other * self.ROOM
        self._room[start : start + 8 + len(record)] = struct.pack("<Q", len(record)) + record
        self._room[0] = other

    def take(self, desk: Desk) -> str:
        """Give a venue what another one knew; return how far the session had come."""
        start = 1 + self._room[0] * self.ROOM
        (size,) = struct.unpack("<Q", self._room[start : start + 8])
        record = self._room[start + 8 : start + 8 + size]
        now_ns, phase, state = pickle.loads(record)  # noqa: S301 - written by our own child
        desk.clock.set_now(now_ns)
        for name, value in state.items():
            setattr(desk.venue, name, value)
        return phase


def session(folder: Path, memory: VenueMemory) -> None:
    """Trade, restart, be stopped by the kill switch, re-arm, and trim the journal.

    The venue's memory is kept after every question, order and cancel.
    """
    desk = Desk(folder, symbols=1)
    phase = "trading"

    def enter(name: str) -> None:
        nonlocal phase
        phase = name
        memory.put(desk, phase)

    def kept(method: str) -> None:
        plain = getattr(desk.venue, method)

        def called(*args: object) -> object:
            answer = plain(*args)
            memory.put(desk, phase)
            return answer

        setattr(desk.venue, method, called)

    for method in ("trigger", "submit", "cancel"):
        kept(method)
    enter("trading")
    with desk.trader("live") as loop:
        loop.run(bars=2)
    with desk.trader("live") as loop:
        loop.run(bars=1)
        enter("tripping")
        desk.switch.trip(source="a test", words="enough", way="flatten")
        enter("tripped")
        loop.run(bars=1)
    enter("rearming")
    desk.switch.rearm()
    enter("rearmed")
    with contextlib.closing(desk.journal("live")) as journal:
        last = int(str(journal.rows("SELECT max(ts) FROM decisions")[0][0]))
        journal.trim(last, who="a person", now_ms=0, window_ms=10**12)
        journal.compact()
