"""Rows of `stormsail bench learn` in a file: one line of JSON for each finished run.

A line is forced to the disk before the next run is waited for, so a kill loses the runs under way
and none that was finished. A later call with the same file trains what is missing, and judges.

A run is known by its key, a hash of everything that it depends on: settings with all defaults
spelt out, seed, episodes, and for another library its own settings. Where a default changes, so
does the key: rows of other settings stay in the file and are never taken for those of a new one.
The version of the package is in each row and not in the key: a released version may judge the rows
of an earlier one, and the command says so.
"""

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from stormsail import __version__
from stormsail.core.errors import ArtifactError

FIELDS = {
    "key": str, "name": str, "learner": str, "variant": str, "seed": int, "episodes": int,
    "score": float, "spread": float, "steps": int, "seconds": float, "reason": str, "version": str,
}  # fmt: skip
"""That every row has, with their types; a number that is not finite is written as null."""


def run_key(document: Mapping[str, Any]) -> str:
    """Return the hash of what a run depends on, whatever the order of its parts."""
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RowFile:
    """Rows of finished runs, by key; this process alone writes to the file while it is open.

    Attributes:
        path: of the file.
        rows: those that it holds, by key; of two with one key the later.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):  # a line that a kill cut off: its run is trained again
            os.ftruncate(descriptor, len(whole))
        lines = enumerate(whole.splitlines(), start=1)
        parsed = [self._parsed(number, line) for number, line in lines]
        self.rows: dict[str, dict[str, Any]] = {row["key"]: row for row in parsed}

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a file of rows, new or not, and be the only one who writes to it.

        Raises:
            ArtifactError: if another process has it open, or a line of it is no row.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArtifactError(
                    "run-busy",
                    wrong=f"{path} must not be written by another process",
                    found="one that has it open",
                    remedy="Wait for it, or give this command a file of its own.",
                ) from None
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row and force it to the disk; the version is added here."""
        document = {**row, "version": __version__}
        for name in ("score", "spread"):
            document[name] = None if math.isnan(document[name]) else document[name]
        line = json.dumps(document, allow_nan=False).encode() + b"\n"
        os.write(self._descriptor, line)
        os.fsync(self._descriptor)
        self.rows[row["key"]] = {**row, "version": __version__}

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
            absent = {name for name, kind in FIELDS.items() if not _fits(row[name], kind)}
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(number, f"{type(error).__name__}: {error}") from None
        if absent:
            raise self._damaged(number, f"another type in {', '.join(sorted(absent))}")
        for name in ("score", "spread"):
            row[name] = math.nan if row[name] is None else float(row[name])
        return dict(row)

    def _damaged(self, number: int, problem: str) -> ArtifactError:
        return ArtifactError(
            "artifact-corrupt",
            wrong=f"every line of {self.path} must be a row that `bench learn --rows` wrote",
            found=f"line {number}, {problem}",
            remedy="Remove that line, and its run is trained again; or name another file.",
        )


def _fits(value: object, kind: type) -> bool:
    """Return whether JSON gave a value of that type; null is a number that is not finite."""
    if kind is float:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return isinstance(value, kind) and not isinstance(value, bool)
