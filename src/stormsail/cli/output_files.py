"""Options for output files: checked before the work begins, replaced only with `--force`."""

import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

_FORCE: ContextVar[bool] = ContextVar("stormsail_force", default=False)


def _remember(value: bool) -> bool:  # noqa: FBT001 - the shape typer calls
    _FORCE.set(value)
    return value


Force = Annotated[
    bool,
    typer.Option(
        "--force", is_eager=True, callback=_remember, help="Replace output files that exist."
    ),
]
"""An option of every verb; it speaks through its callback."""


def checked_output(value: Path | None) -> Path | None:
    """Refuse an output file before anything is computed; on a terminal ask before replacing one.

    Raises:
        ArtifactError: as `core.files.outputs.check_output`.
    """
    from stormsail.core.errors import ArtifactError
    from stormsail.core.files.outputs import check_output

    if value is None:
        return None
    try:
        check_output(value, replace=_FORCE.get())
    except ArtifactError as error:
        if error.code != "output-exists" or not _agreed(value):
            raise
    return value


def _agreed(path: Path) -> bool:
    """Ask whether a file may be replaced, where there is somebody to ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(f"{path} exists. Replace it?", err=True)


def write_checked(path: Path, data: bytes | str) -> int:
    """Write a file that `checked_output` let through; return its size in bytes."""
    from stormsail.core.files.outputs import write_output

    return write_output(path, data, replace=True)
