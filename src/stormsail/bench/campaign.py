"""Rows of a campaign: one JSON line for each finished run, appended as it finishes.

A campaign that was interrupted continues with what is missing, and is judged again from its rows
without any training.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormsail.core.errors import ArtifactError


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, oldest first; none if there is no file yet.

    A last line that was cut off by an interruption is no row.

    Raises:
        ArtifactError: if any other line is not a JSON object.
    """
    if not file.exists():
        return []
    *lines, rest = file.read_text(encoding="utf-8").split("\n")
    del rest  # empty, or a line that was never finished
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ArtifactError(
                "artifact-document",
                wrong="every line of a campaign must be a JSON object",
                found=f"line {number} of {file}: {line[:60]!r}",
                remedy="Remove that line: its run is done again.",
            )
        rows.append(row)
    return rows


def append_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append a row durably: when this returns, it survives a crash of the machine.

    What an interruption left of a line is overwritten.
    """
    line = json.dumps(row, allow_nan=False) + "\n"
    with file.open("ab+") as stream:
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.seek(0, os.SEEK_END)
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())
