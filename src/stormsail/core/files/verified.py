"""Reading of an artifact's files with names, sizes and hashes checked against the manifest."""

import errno
import hashlib
from pathlib import Path
from typing import NamedTuple

from stormsail.core.errors import ArtifactError, ErrorCode
from stormsail.core.files import atomic, manifest
from stormsail.core.files.manifest import FileEntry, Manifest

MAX_BYTES = 8 << 30
MAX_DOCUMENT_BYTES = 64 << 20

# System errors that mean a file or folder is not what it must be, or not whole. After any other
# (no permission, too many open files) the artifact may be fine.
_REFUSALS: dict[int, tuple[ErrorCode, str]] = {
    errno.ENOENT: ("artifact-files", "no such file"),
    errno.ELOOP: ("artifact-files", "a symbolic link"),
    errno.ENOTDIR: ("artifact-files", "something else than a folder, or a symbolic link"),
    errno.EINVAL: ("artifact-files", "something else than a regular file"),
    errno.ENXIO: ("artifact-files", "something else than a regular file"),
    errno.EIO: ("artifact-corrupt", "bytes that the disk cannot read"),
}


class VerifiedFiles(NamedTuple):
    """Files whose bytes agree with their manifest."""

    manifest: Manifest
    files: dict[str, bytes]
    digest: str


def verified_files(path: Path, *, max_bytes: int) -> VerifiedFiles:
    """Return every file of an artifact but the manifest itself, verified and not yet parsed.

    Raises:
        ArtifactError: at the first thing that is not exactly as the manifest says.
    """
    try:
        with atomic.open_folder(path) as folder:
            return _read(path, folder, max_bytes)
    except FileNotFoundError as error:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must be a folder with an artifact",
            found="nothing of that name",
            remedy="Check the path.",
        ) from error
    except OSError as error:
        raise read_error(path, path.name, error) from error


def size_limit(name: str, max_bytes: int) -> int:
    """Return how long a file of that name may be."""
    if name == manifest.NAME:
        return manifest.MAX_BYTES
    return min(MAX_DOCUMENT_BYTES, max_bytes) if name.endswith(".json") else max_bytes


def limit_error(place: Path | str, what: str, limit: int) -> ArtifactError:
    """Return the refusal of something larger than any artifact of ours."""
    return ArtifactError(
        "artifact-limit",
        wrong=f"{place} must stay within its limit of {limit}",
        found=f"more in `{what}`",
        remedy="Check where it comes from; raise `max_bytes` if it is meant to be so large.",
    )


def read_error(path: Path, name: str, error: OSError) -> ArtifactError:
    """Return the refusal for an error of the operating system about one file of an artifact."""
    code, problem = _REFUSALS.get(error.errno or 0, (None, ""))
    if code == "artifact-files":
        return _files_error(path, name, problem)
    if code is not None:
        return ArtifactError(
            code,
            wrong=f"`{name}` of {path} must be readable to the last byte",
            found=problem,
            remedy="Use another copy of the artifact, and check the disk.",
        )
    return ArtifactError(
        "artifact-unreadable",
        wrong=f"`{name}` of {path} must be open to this process",
        found=f"{error.strerror or error}",
        remedy="Check permissions and limits; the artifact itself may be fine.",
    )


def _read(path: Path, folder: int, max_bytes: int) -> VerifiedFiles:
    present = set(atomic.entries(folder))
    if manifest.NAME not in present:
        raise _files_error(path, manifest.NAME, "no such file")
    text = _bytes(path, folder, manifest.NAME, max_bytes)
    index = Manifest.decode(text, place=str(path))
    for name in sorted({*index.files} ^ (present - {manifest.NAME})):
        raise _files_error(path, name, "no such file" if name in index.files else "an extra file")
    if sum(entry.size for entry in index.files.values()) > max_bytes:
        raise limit_error(path, "its manifest", max_bytes)
    files = {}
    for name, entry in index.files.items():
        files[name] = _bytes(path, folder, name, max_bytes)
        _check(path, name, files[name], entry)
    return VerifiedFiles(index, files, hashlib.sha256(text).hexdigest())


def _bytes(path: Path, folder: int, name: str, max_bytes: int) -> bytes:
    limit = size_limit(name, max_bytes)
    try:
        return atomic.read_file(folder, name, limit=limit)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise limit_error(path, name, limit) from error
        raise read_error(path, name, error) from error


def _check(path: Path, name: str, data: bytes, entry: FileEntry) -> None:
    if len(data) != entry.size:
        wanted, actual = f"{entry.size} bytes", f"{len(data)}"
    else:
        wanted, actual = f"the SHA-256 {entry.sha256}", hashlib.sha256(data).hexdigest()
        if actual == entry.sha256:
            return
    raise ArtifactError(
        "artifact-corrupt",
        wrong=f"`{name}` of {path} must have {wanted}",
        found=actual,
        remedy="Use another copy of the artifact.",
    )


def _files_error(path: Path, name: str, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-files",
        wrong=f"{path} must hold the files of its manifest and no others; `{name}` must agree",
        found=found,
        remedy="Use another copy of the artifact.",
    )
