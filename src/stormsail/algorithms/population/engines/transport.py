"""Folders as bytes, for workers that do not see the driver's disk.

A folder travels as a tar file behind the SHA-256 of it: every byte, the folders without a file and
which files may be executed, nothing else. Links and devices do not belong into a member's folder
and are refused.

What comes home replaces the member's folder by two renames. A driver that is killed between them
leaves the old folder elsewhere; `restore` puts it back, and must come before anything reads the
members.
"""

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stormsail.core.errors import ArtifactError
from stormsail.core.files.atomic import make_folders, open_folder

ARRIVALS = ".arrivals"
"""Folder of the population in which folders that come home are unpacked."""

_NEW, _OLD = "new", "old"
_DIGEST = hashlib.sha256().digest_size


def pack_folders(root: Path, names: Sequence[str]) -> bytes:
    """Return files and folders below a folder, by their names relative to it; missing ones not.

    Raises:
        ArtifactError: if there is something else than files and folders among them.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _below(root, names):
            _add(tar, path, path.relative_to(root).as_posix())
    content = stream.getvalue()
    return hashlib.sha256(content).digest() + content


def unpack_folders(data: bytes, root: Path) -> None:
    """Write what `pack_folders` has packed below another folder, which exists, and to the disk.

    Raises:
        ArtifactError: if the bytes are not all there, or not those that were packed.
    """
    digest, content = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise ArtifactError(
            "artifact-corrupt",
            wrong="a folder must arrive as it was sent",
            found=f"{len(content)} bytes with another SHA-256",
            remedy="Send it again: the sender has it still.",
        )
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        tar.extractall(root, filter="data")
        for name in tar.getnames():
            _force(root / name)
    _force(root)


def install(data: bytes, root: Path, name: str) -> None:
    """Replace one folder of a population by the same folder as a worker has sent it home.

    Args:
        data: of `pack_folders`, with the folder `name` in it and nothing else.
        root: folder of the population.
        name: of the folder, relative to it: `members/03`.
    """
    restore(root)
    arrivals, target = root / ARRIVALS, root / name
    arrival, before = arrivals / _NEW / name, arrivals / _OLD / name
    make_folders(arrivals / _NEW)
    make_folders(before.parent)
    make_folders(target.parent)
    unpack_folders(data, arrivals / _NEW)
    if target.exists():
        target.rename(before)
        _force(before.parent)
    arrival.rename(target)
    _force(target.parent)
    shutil.rmtree(arrivals)


def restore(root: Path) -> None:
    """Undo an installation that was cut off: the old folder or the new one, whole."""
    arrivals = root / ARRIVALS
    if not arrivals.exists():
        return
    for before in sorted((arrivals / _OLD).glob("*/*")):
        target = root / before.relative_to(arrivals / _OLD)
        if not target.exists():
            before.rename(target)
            _force(target.parent)
    shutil.rmtree(arrivals)


def _below(root: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in sorted(names):
        path = root / name
        if path.exists():
            yield path
        if path.is_dir() and not path.is_symlink():
            yield from sorted(path.rglob("*"))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tar.gettarinfo(path, name)
    if not (entry.isfile() or entry.isdir()):
        raise ArtifactError(
            "artifact-files",
            wrong=f"{path} must be a file or a folder to be sent to a worker",
            found="a link, or a file of a special kind",
            remedy="Remove it; nothing of this package has made it.",
        )
    # Who owns a file and when it was written is the business of each machine.
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    if entry.isdir():
        tar.addfile(entry)
        return
    with path.open("rb") as file:
        tar.addfile(entry, file)


def _force(path: Path) -> None:
    """Force a file or folder to the disk."""
    if path.is_dir():
        with open_folder(path) as descriptor:
            os.fsync(descriptor)
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
