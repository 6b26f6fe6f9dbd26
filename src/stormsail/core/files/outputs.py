"""Output files that a user names: regular files alone, and nothing is replaced unasked.

A file is written beside its place and renamed into it, so a device or a named pipe at that place
would be destroyed by it, and a link would stop being one. Hence what is no regular file is refused,
and a link is followed: the file that it leads to is replaced, and the link stays.
"""

import errno
import os
import stat
from pathlib import Path

from stormsail.core.errors import ArtifactError
from stormsail.core.files import atomic
from stormsail.core.files.regular import other_kind

REPLACE = "Name another file, or add `--force` to replace it."
"""What to do about a file that exists, on the command line."""


def check_output(path: Path, *, replace: bool) -> Path:
    """Return the file that `write_output` would write: the one behind links.

    A command that computes for hours calls this first.

    Raises:
        ArtifactError: if something is there that is no regular file; if a file is there and is not
            to be replaced; if the name is none that the system takes.
    """
    try:
        target = Path(os.path.realpath(path))
        try:
            exists = not stat.S_ISLNK(target.lstat().st_mode)
        except FileNotFoundError:
            exists = False
        else:
            if not exists:  # still a link, so they run in a circle
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except (OSError, ValueError) as error:
        raise output_error(path, error) from error
    kind = other_kind(target)
    if kind is not None:
        raise ArtifactError(
            "output-kind",
            wrong=f"the output {path} must be a regular file, new or not",
            found=kind,
            remedy="Name a file; devices, pipes, sockets and folders are never written over.",
        )
    if exists and not replace:
        raise exists_error(path)
    return target


def exists_error(path: Path) -> ArtifactError:
    """Return the refusal to replace an output file that nobody asked to replace."""
    return ArtifactError(
        "output-exists",
        wrong=f"the output {path} must not exist yet",
        found="a file of that name",
        remedy=REPLACE,
    )


def write_output(path: Path, data: bytes | str, *, replace: bool) -> int:
    """Write an output file completely, or not at all; return its size in bytes.

    Missing folders on the way are made.

    Raises:
        ArtifactError: as `check_output`, or if the disk refuses.
    """
    target = check_output(path, replace=replace)
    content = data.encode("utf-8") if isinstance(data, str) else data
    try:
        atomic.make_folders(target.parent)
        with atomic.open_folder(target.parent, follow=True) as folder:
            atomic.replace_file(folder, target.name, content)
    except OSError as error:
        raise output_error(path, error) from error
    return len(content)


def output_error(path: Path, error: OSError | ValueError) -> ArtifactError:
    """Return the refusal for what the system says about an output file."""
    problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ArtifactError(
        "artifact-write",
        wrong=f"the output {path} must be written completely",
        found=problem,
        remedy="Name a file in a folder that can be written, on a disk with space left.",
    )
