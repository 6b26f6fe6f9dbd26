"""The kill switch: a file in the account's folder; while it is there, nothing is ordered.

It is tripped by the file itself (`touch KILL` will do), by `stormsail stop`, by a signal, by the
dashboard and by limits that halt. It is latched: no restart and no reconnection removes it. `rearm`
is called by the command of that name alone, with the words of the person who answers for it.
"""

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from stormsail.core.clock import Clock, iso
from stormsail.core.errors import ConfigError
from stormsail.core.files.atomic import open_folder, replace_file

NAME = "KILL"
_MOST_BYTES = 4096
_LOOKS, _LOOK_S = 20, 0.01

Way = Literal["stop", "flatten", "cancel"]
"""What is done with the account: cancel the agent's orders and leave the protective stops; close
every position as well; cancel every order, the protective stops included."""

_MORE: Mapping[Way, int] = {"stop": 0, "cancel": 1, "flatten": 2}
"""How much is taken back: what closes positions cancels every order before."""


@dataclass(frozen=True)
class Trip:
    """Who tripped the switch, when, why, and what is to be done with the account."""

    source: str
    words: str
    way: Way
    at: str


class KillSwitch:
    """The latch of one account.

    Args:
        folder: of the account; the switch is the file `KILL` in it.
        clock: for the time that is written down.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock
        self.path = folder / NAME

    def tripped(self) -> bool:
        """Return whether the switch is tripped; what cannot be looked at counts as tripped."""
        try:
            os.lstat(self.path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def trip(self, *, source: str, words: str, way: Way = "stop") -> Trip:
        """Trip the switch, on disk before this returns.

        A second trip may ask for more, from `stop` over `cancel` to `flatten`, and never for less,
        whichever process it comes from. Where a full disk takes no words, it is a plain `stop`.

        Raises:
            OSError: if nothing at all can be written.
        """
        with open_folder(self._folder, follow=True) as folder:
            self._alone(folder)
            before = self.read()
            if before is not None and _MORE[way] <= _MORE[before.way]:
                return before
            now = iso(self._clock.now_ns() // 1_000_000)
            made = Trip(source, words, way, now)
            try:
                replace_file(folder, NAME, json.dumps(asdict(made)).encode() + b"\n")
            except OSError:
                self._touch(folder)
                return self.read() or made
        return made

    @staticmethod
    def _touch(folder: int) -> None:
        """Trip the switch on a disk that has no room for words; a file without any is enough."""
        os.close(os.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=folder))
        os.fsync(folder)

    def _alone(self, folder: int) -> None:
        """Hold the folder until it is closed, so that two trips do not cross.

        Nobody holds it for long, but a signal may interrupt a trip by another one: then it is not
        waited for without end.
        """
        for _ in range(_LOOKS):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._clock.sleep(_LOOK_S)
                continue
            return

    def read(self) -> Trip | None:
        """Return who tripped the switch; a file that says nothing was made by a person."""
        if not self.tripped():
            return None
        unsigned = Trip("file", f"the file {NAME} is there", "stop", "")
        try:
            if not stat.S_ISREG(os.lstat(self.path).st_mode):
                return unsigned
            record = json.loads(self.path.read_bytes()[:_MOST_BYTES])
            way = record["way"]
            if way not in ("stop", "flatten", "cancel"):
                return unsigned
            return Trip(str(record["source"]), str(record["words"]), way, str(record["at"]))
        except (OSError, ValueError, KeyError, TypeError):
            return unsigned

    def check(self) -> None:
        """Refuse to go on while the switch is tripped.

        Raises:
            ConfigError: if it is.
        """
        trip = self.read()
        if trip is not None:
            raise ConfigError(
                "kill-switch",
                wrong=f"the kill switch of {self._folder} must be armed",
                found=f"tripped by {trip.source}: {trip.words}"
                + (f", {trip.at}" if trip.at else ""),
                remedy=f"Look at the account, then `stormsail rearm {self._folder} --words ...`.",
            )

    def rearm(self) -> Trip | None:
        """Remove the file on a person's word; return what it said.

        The file is renamed, not lost: `KILL-rearmed` is the last one that was lifted.
        """
        trip = self.read()
        if trip is not None:
            self.path.replace(self.path.with_name(f"{NAME}-rearmed"))
            with open_folder(self._folder, follow=True) as folder:
                os.fsync(folder)
        return trip
