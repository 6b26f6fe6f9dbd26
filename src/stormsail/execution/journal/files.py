"""The file of the journal: opening it, and what is said when it cannot be read or written."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stormsail.core.errors import DataError
from stormsail.execution.journal import schema

_BUSY_MS = 5_000
_ROOM = ("SQLITE_FULL", "SQLITE_IOERR")
"""How the names of SQLite's errors begin that room on the disk, or its mending, may cure."""
_DISK = (*_ROOM, "SQLITE_READONLY", "SQLITE_CANTOPEN")
"""How the names of all its errors of a disk begin."""
_OPENING = ("SQLITE_FULL", "SQLITE_IOERR_SHM", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE")
"""Those that say, where a journal is opened or read, that SQLite's own files have no room."""


class NoRoomError(DataError):
    """The disk takes nothing at present: what is written is whole, and time may cure it."""


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open a database, for reading alone or for writing too.

    Raises:
        DataError: if it is none.
    """
    with readable(path):
        database = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={'rwc' if write else 'ro'}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            database.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            database.close()
            raise
        return database


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into `journal-damaged`, but those of a disk that is full."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _named(error, _OPENING):
            raise _unwritten(path, error) from error
        raise schema.damaged(path, str(error)) from error


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn errors of the disk into `data-write`; others are bugs, and stay what they are."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not _named(error, _DISK):
            raise
        raise _unwritten(path, error) from error


def _named(error: sqlite3.Error, names: tuple[str, ...]) -> bool:
    """Return whether the name of an error begins so; errors of Python's own part have none."""
    return str(getattr(error, "sqlite_errorname", "")).startswith(names)


def _unwritten(path: Path, error: sqlite3.Error) -> DataError:
    kind = NoRoomError if _named(error, _ROOM) else DataError
    return kind(
        "data-write",
        wrong=f"the journal {path} must be written: nothing is sent that is not in it",
        found=str(error),
        remedy="Free space on that device, or mend it: a trader that waits goes on by itself, the "
        "same command starts another, and protective stops stay at the exchange.",
    )
