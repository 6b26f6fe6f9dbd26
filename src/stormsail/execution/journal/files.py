"""The file of the journal: opening it, and what is said when it cannot be read or written."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stormsail.core.errors import DataError
from stormsail.execution.journal import schema

_BUSY_MS = 5_000
_DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
"""How the names of SQLite's errors of a disk begin."""


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
    """Turn errors of SQLite into `journal-damaged`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise schema.damaged(path, str(error)) from error


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn errors of the disk into `data-write`; others are bugs, and stay what they are."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(_DISK):
            raise
        raise DataError(
            "data-write",
            wrong=f"the journal {path} must be written: nothing is sent that is not in it",
            found=str(error),
            remedy="Free space on that device, or mend it, then start again: the same command goes "
            "on, and protective stops stay at the exchange.",
        ) from error
