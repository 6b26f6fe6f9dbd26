"""Options for output files: checked before the work begins, replaced only with `--force`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

_FORCE = "stormsail.force"


def _remember(context: typer.Context, value: bool) -> bool:  # noqa: FBT001 - the shape typer calls
    context.meta[_FORCE] = value
    return value


def checked_output(context: typer.Context, value: Path | None) -> Path | None:
    """Refuse an output file before anything is computed; on a terminal ask before replacing one.

    Raises:
        ArtifactError: as `core.files.outputs.check_output`.
    """
    from stormsail.core.errors import ArtifactError
    from stormsail.core.files.outputs import check_output

    if value is None or context.resilient_parsing:
        return value
    try:
        check_output(value, replace=bool(context.meta.get(_FORCE)))
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


Force = Annotated[
    bool,
    typer.Option(
        "--force", is_eager=True, callback=_remember, help="Replace output files that exist."
    ),
]
