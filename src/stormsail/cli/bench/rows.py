"""Rows of a benchmark that were written before, so that its tables can be made again."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import typer

Row = TypeVar("Row")


def read_rows(files: Sequence[Path], row: Callable[..., Row]) -> list[Row]:
    """Return the rows of files that `--out` wrote, one file after the other.

    Args:
        files: JSON, each an object whose `rows` are objects.
        row: makes one of them from its fields; TypeError for fields that are not its own.

    Raises:
        BadParameter: if there is no such file, or one holds anything else.
    """
    return [one for file in files for one in _rows(file, row)]


def _rows(file: Path, row: Callable[..., Row]) -> list[Row]:
    try:
        rows = json.loads(file.read_text())["rows"]
        return [row(**one) for one in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = (
            f"`--rows` must be a file that `--out` of this command wrote; found {file}: {error}. "
            "Write one first."
        )
        raise typer.BadParameter(message) from error
