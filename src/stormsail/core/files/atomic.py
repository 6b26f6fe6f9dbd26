"""Atomic writes: a file or folder is there completely or not at all, even after a crash.

A new folder is filled under a temporary name, every file and then the folder itself is forced to
the disk, and only then does a rename make it visible; forcing the parent makes the rename last. A
process killed at any point leaves at most a folder whose name begins with `.tmp-`. A power failure
loses at most what was never announced as saved.

Names are resolved once, inside folders that are held open: what was checked is what is used. There
is no pathlib form of that, of forcing a folder to the disk, or of refusing links. POSIX only.
"""

import contextlib
import errno
import fcntl
import io
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stormsail.core.errors import ArtifactError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TEMPORARY = ".tmp-"

_COUNTER = itertools.count()
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for a writer that never comes.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@contextlib.contextmanager
def open_folder(
    path: Path | str, *, parent: int | None = None, follow: bool = False
) -> Iterator[int]:
    """Open a folder and close it at the end; behind a symbolic link only if `follow`."""
    flags = _FOLDER if follow else _FOLDER | os.O_NOFOLLOW
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class FolderBusyError(Exception):
    """Another process holds the folder."""


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[int]:
    """Open a folder and be the only one who holds it, or raise FolderBusyError.

    The kernel frees the lock when its holder dies, so there is no stale lock to clear away.
    """
    with open_folder(path, follow=True) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderBusyError(path) from error
        yield descriptor


def make_folders(path: Path) -> None:
    """Create a folder and its missing parents so that they survive a power failure."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with open_folder(folder.parent, follow=True) as parent:
            with contextlib.suppress(FileExistsError):  # somebody else made it meanwhile
                os.mkdir(folder.name, dir_fd=parent)
            os.fsync(parent)


def write_folder(parent: int, name: str, files: Mapping[str, bytes]) -> None:
    """Write a new folder of files under an open parent: completely, or not at all.

    Raises:
        FileExistsError: if the name is taken; nothing is ever overwritten.
        OSError: if anything fails; what was written so far is removed where that is possible.
    """
    if exists(parent, name):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    current = _make_temporary_folder(parent)
    try:
        with open_folder(current, parent=parent) as folder:
            for file, data in files.items():
                _write_file(folder, file, data)
            os.fsync(folder)
        os.rename(current, name, src_dir_fd=parent, dst_dir_fd=parent)
        current = name
        os.fsync(parent)
    except BaseException:  # an interrupt must not leave rubbish behind either
        with contextlib.suppress(OSError):
            remove_tree(parent, current)
        raise


def replace_file(parent: int, name: str, data: bytes) -> None:
    """Write a small file so that a reader sees the old content or the new, never a mixture."""
    with replacing_file(parent, name) as sink:
        sink.write(data)


@contextlib.contextmanager
def replacing_file(parent: int, name: str) -> Iterator["Sink"]:
    """Give a file to write to, which takes the place of another one when it is complete."""
    temporary = _temporary_name()
    try:
        with _new_file(parent, temporary) as sink:
            yield sink
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        os.fsync(parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


class Sink(io.RawIOBase):
    """An open file that is written completely, piece by piece."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written = 0

    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write all the bytes; return how many they are."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._written += size
        return size

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._written


def remove_leftovers(folder: int) -> None:
    """Remove temporary entries of killed writers; the caller holds the folder's lock."""
    remove_tree(folder, *(name for name in entries(folder) if name.startswith(TEMPORARY)))


def remove_tree(parent: int, *names: str) -> None:
    """Remove files or folders so that none is ever seen half removed.

    They first get temporary names, and that is forced to the disk before anything inside goes.
    """
    hidden = []
    for name in names:
        if name.startswith(TEMPORARY):
            hidden.append(name)
        else:
            hidden.append(_temporary_name())
            os.rename(name, hidden[-1], src_dir_fd=parent, dst_dir_fd=parent)
    if any(hide != name for hide, name in zip(hidden, names, strict=True)):
        os.fsync(parent)
    for name in hidden:
        _remove(parent, name)


def move(parent: int, name: str, target: int, new_name: str) -> None:
    """Move an entry into another folder of the same file system, for good."""
    os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=target)
    os.fsync(target)
    os.fsync(parent)


def entries(folder: int) -> list[str]:
    """Return the names in an open folder, sorted."""
    return sorted(os.listdir(folder))


def exists(parent: int, name: str) -> bool:
    """Return whether something of that name exists, a link that leads nowhere included."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def check_free(path: Path) -> None:
    """Refuse a path at which something exists, be it a link that leads nowhere.

    A command that computes for hours calls this first: what writes at the end refuses the same
    paths with the same error.

    Raises:
        ArtifactError: if the path is taken, or none that the system takes.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # a name that is too long, a file where a folder must be
        raise ArtifactError(
            "artifact-write",
            wrong=f"{path} must be a path that can be written",
            found=error.strerror or type(error).__name__,
            remedy="Choose another path.",
        ) from error
    raise exists_error(path)


def exists_error(path: Path) -> ArtifactError:
    """Return the refusal to overwrite what exists at a path."""
    return ArtifactError(
        "artifact-exists",
        wrong=f"{path} must not exist yet",
        found="something of that name",
        remedy="Choose another path; an artifact is never overwritten.",
    )


def read_file(parent: int, name: str, *, limit: int) -> bytes:
    """Return the bytes of a regular file that is no longer than `limit`.

    Raises:
        OSError: ELOOP for a symbolic link, EINVAL for what is no regular file, EFBIG if longer,
            or what the system says.
    """
    descriptor = os.open(name, _READ, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"more than {limit} bytes", name)
        return _read_all(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    """Read `size` bytes, or fewer if the file has shrunk meanwhile; its hash will tell."""
    parts = []
    while size > 0:
        part = os.read(descriptor, min(size, 1 << 24))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _temporary_name() -> str:
    return f"{TEMPORARY}{os.getpid()}-{next(_COUNTER)}"


def _make_temporary_folder(parent: int) -> str:
    """Create a folder under a name that is free, past what a dead namesake may have left."""
    while True:
        name = _temporary_name()
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
            return name


def _write_file(folder: int, name: str, data: bytes) -> None:
    with _new_file(folder, name) as sink:
        sink.write(data)


@contextlib.contextmanager
def _new_file(folder: int, name: str) -> Iterator[Sink]:
    """Give a new file to write to, and force it onto the disk."""
    descriptor = os.open(name, _CREATE, 0o644, dir_fd=folder)
    try:
        yield Sink(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)  # a full remote disk may complain only here


def _remove(parent: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    with open_folder(name, parent=parent) as folder:
        for entry in entries(folder):
            _remove(folder, entry)
    os.rmdir(name, dir_fd=parent)
