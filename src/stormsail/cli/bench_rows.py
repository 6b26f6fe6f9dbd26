"""Rows of a benchmark that were written before, so that its tables can be made again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

Row = TypeVar("Row")


def read_rows(file: Path, row: Callable[..., Row]) -> list[Row]:
    """Return the rows of a file that `--out` wrote.

    Args:
        file: JSON, an object whose `rows` are objects.
        row: makes one of them from its fields; TypeError for fields that are not its own.

    Raises:
        BadParameter: if there is no such file, or it holds anything else.
    """
    try:
        rows = json.loads(file.read_text())["rows"]
        return [row(**one) for one in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = (
            f"`--rows` must be a file that `--out` of this command wrote; found {file}: {error}. "
            "Write one first."
        )
        raise typer.BadParameter(message) from error
