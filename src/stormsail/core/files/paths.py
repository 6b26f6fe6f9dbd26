"""Paths that Python calls are given: what is none is refused by the name of its argument."""

import errno
import os
from pathlib import Path

from stormsail.core.arguments import wrong_type
from stormsail.core.errors import ArgumentError


def given_path(value: object, *, name: str) -> Path:
    """Return a path that somebody passed: text, or an object that stands for a path.

    Raises:
        ArgumentError: if it is none, or no name that the system takes.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise wrong_type(
            value,
            name=name,
            must="a path, as text or as a `pathlib.Path`",
            remedy='Write for example "runs/first".',
        )
    problem = _no_name(path)
    if problem:
        raise ArgumentError(
            "argument-type",
            wrong=f"`{name}` must be a path that the system takes",
            found=problem,
            remedy="Name a file or a folder.",
        )
    return Path(path)


def _no_name(path: str) -> str | None:
    """Return why a text is no name of a file, in words; None where it is one."""
    if not path:
        return "an empty text"
    if "\0" in path:
        return "a text with a NUL in it"
    try:
        path.encode()
        Path(path).lstat()
    except UnicodeEncodeError:
        return "a text that is no UTF-8"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return f"a text of {len(path)} characters, too long for a name"
    return None
