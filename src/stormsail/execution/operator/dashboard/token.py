"""The token of the kill button: random, one for each folder, readable by its owner alone."""

import os
import secrets
from pathlib import Path

from stormsail.core.errors import ConfigError
from stormsail.execution.secrets import read_private

TOKEN_FILE = "dashboard.token"  # noqa: S105 - the name of a file
TOKEN_BYTES = 32
"""256 bits: twice what E3 of the reliability rules asks for."""


def load_or_create_token(folder: Path) -> str:
    """Return the token of a folder; make one if there is none.

    Raises:
        ConfigError: if others may read the file, or it holds no token.
    """
    path = folder / TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    return token


def _read(path: Path) -> str:
    token = read_private(path).strip()
    if len(token) < TOKEN_BYTES:
        raise ConfigError(
            "secret-missing",
            wrong=f"{path} must hold a token of at least {TOKEN_BYTES} characters",
            found=f"{len(token)} characters",
            remedy="Delete it: a new one is made at the next start.",
        )
    return token
