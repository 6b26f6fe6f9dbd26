"""Rows of a campaign in a file: one line of JSON for each finished run.

A line is forced to the disk before the next run is waited for, so a kill loses the runs under way
and none that was finished. A campaign that was interrupted continues with what is missing, and is
judged again from its rows without any training.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from stormsail.core.errors import ArtifactError
from stormsail.core.files.outputs import check_output, output_error
from stormsail.core.files.regular import open_regular

MOST_BYTES = 1 << 28
"""Of a file of rows; a larger one is none."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, oldest first; none if there is no file yet.

    A last line that a kill cut off is no row.

    Raises:
        ArtifactError: if any other line is not a JSON object.
    """
    if not os.path.lexists(path):
        return []
    whole, _ = _whole_lines(path)
    return [_parsed(path, *numbered) for numbered in enumerate(whole.splitlines(), start=1)]


class RowLog:
    """Rows of finished runs; this process alone writes to the file while it is open.

    Attributes:
        path: of the file.
        lines: its rows, oldest first.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        whole, cut = _whole_lines(path)
        if cut:  # by a kill: its run is done again
            os.ftruncate(descriptor, len(whole))
        self.lines = read_rows(path)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a file of rows, new or not, and be the only one who writes to it.

        Raises:
            ArtifactError: if it is no regular file or cannot be written, another process has it
                open, or a line of it is no row.
        """
        check_output(path, replace=True)  # rows are added; a device or a pipe keeps none
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise output_error(path, error) from error
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

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row and force it to the disk: then it survives a crash of the machine."""
        os.write(self._descriptor, json.dumps(row, allow_nan=False).encode() + b"\n")
        os.fsync(self._descriptor)
        self.lines.append(dict(row))


def damaged(path: Path, number: int, problem: str) -> ArtifactError:
    """Return the error for a line that is no row."""
    return ArtifactError(
        "artifact-corrupt",
        wrong=f"every line of {path} must be a row that the same command wrote",
        found=f"line {number}, {problem}",
        remedy="Remove that line, and its run is trained again; or name another file.",
    )


def _whole_lines(path: Path) -> tuple[bytes, bool]:
    """Return the whole lines of a file, and whether another one was cut off behind them."""
    try:
        with open_regular(path) as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ArtifactError(
            "artifact-unreadable",
            wrong=f"the rows {path} must be a file that can be read",
            found=error.strerror or type(error).__name__,
            remedy="Check the path and its permissions.",
        ) from error
    if len(text) > MOST_BYTES:
        raise ArtifactError(
            "artifact-limit",
            wrong=f"the rows {path} must have at most {MOST_BYTES >> 20} MiB",
            found="more",
            remedy="Check that it is the file you meant.",
        )
    whole = text[: text.rfind(b"\n") + 1]
    if text[len(whole) :].strip()[:1] not in (b"", b"{"):  # no row that a kill cut off
        raise damaged(path, whole.count(b"\n") + 1, "something else than an object")
    return whole, len(whole) < len(text)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise damaged(path, number, f"{type(error).__name__}: {error}") from None
    if not isinstance(row, dict):
        raise damaged(path, number, f"a {type(row).__name__} instead of an object")
    return row
