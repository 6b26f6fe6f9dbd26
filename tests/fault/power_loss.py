"""A disk that forgets what was never forced onto it.

A killed process loses nothing that the kernel already has; a power failure does. So every change
that a save makes is recorded, replayed on a model of a disk, and the disk is then cut off after
each event. What was not forced down may be there or not, in any combination: names in folders, and
the bytes of files, which may be empty, short or zero.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class File:
    """Bytes as forced to the disk, and as the running system sees them."""

    durable: bytes = b""
    volatile: bytes = b""


@dataclass
class Folder:
    """Names as forced to the disk, and the changes that are not."""

    durable: dict[str, "File | Folder"] = field(default_factory=dict)
    volatile: dict[str, "File | Folder"] = field(default_factory=dict)
    pending: list[tuple[str, str, "File | Folder | None"]] = field(default_factory=list)

    def change(self, remove: str, add: str, node: "File | Folder | None") -> None:
        """Take away one name and give another, in one step that may be lost as a whole."""
        self.pending.append((remove, add, node))
        _apply(self.volatile, remove, add, node)

    def force(self) -> None:
        self.durable = dict(self.volatile)
        self.pending.clear()


def _apply(
    names: dict[str, "File | Folder"], remove: str, add: str, node: "File | Folder | None"
) -> None:
    names.pop(remove, None)
    if node is not None:
        names[add] = node


class RecordingOs:
    """Passes everything to `os` and writes down what changes the disk.

    `skip_fsync` leaves out the record of one fsync, as if the code did not make that call.
    """

    def __init__(self, *, skip_fsync: int | None = None) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.fsyncs = 0
        self._skip = skip_fsync
        self._paths: dict[int, str] = {}
        self._handles: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _full(self, path: Any, dir_fd: int | None) -> str:
        return str(path) if dir_fd is None else f"{self._paths[dir_fd]}/{path}"

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        handle = len(self.events)
        self._paths[descriptor] = self._full(path, dir_fd)
        self._handles[descriptor] = handle
        kind = "create" if flags & os.O_CREAT else "open"
        self.events.append((kind, self._paths[descriptor], handle))
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        count = os.write(descriptor, data)
        self.events.append(("write", self._handles[descriptor], bytes(data[:count])))
        return count

    def fsync(self, descriptor: int) -> None:
        self.fsyncs += 1
        if self.fsyncs != self._skip:
            self.events.append(("fsync", self._handles[descriptor]))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        os.mkdir(path, mode, dir_fd=dir_fd)
        self.events.append(("mkdir", self._full(path, dir_fd)))

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        os.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        assert src_dir_fd == dst_dir_fd  # the model knows renames inside one folder only
        self.events.append(("rename", self._full(src, src_dir_fd), str(dst)))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        os.unlink(path, dir_fd=dir_fd)
        self.events.append(("remove", self._full(path, dir_fd)))

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        os.rmdir(path, dir_fd=dir_fd)
        self.events.append(("remove", self._full(path, dir_fd)))


class Disk:
    """The model: starts as a copy of a real folder that is safely on the disk."""

    def __init__(self, base: Path) -> None:
        self._base = str(base)
        self.top = _durable_copy(base)
        self._handles: dict[int, File | Folder] = {}

    def replay(self, event: tuple[Any, ...]) -> None:
        kind, *arguments = event
        getattr(self, f"_{kind}")(*arguments)

    def _split(self, path: str) -> tuple[Folder, str]:
        assert path.startswith(self._base)
        *parents, name = [part for part in path.removeprefix(self._base).split("/") if part]
        folder = self.top
        for part in parents:
            child = folder.volatile[part]
            assert isinstance(child, Folder)
            folder = child
        return folder, name

    def _open(self, path: str, handle: int) -> None:
        if path == self._base:
            self._handles[handle] = self.top
        else:
            folder, name = self._split(path)
            self._handles[handle] = folder.volatile[name]

    def _create(self, path: str, handle: int) -> None:
        folder, name = self._split(path)
        self._handles[handle] = File()
        folder.change("", name, self._handles[handle])

    def _write(self, handle: int, data: bytes) -> None:
        file = self._handles[handle]
        assert isinstance(file, File)
        file.volatile += data

    def _fsync(self, handle: int) -> None:
        node = self._handles[handle]
        if isinstance(node, Folder):
            node.force()
        else:
            node.durable = node.volatile

    def _mkdir(self, path: str) -> None:
        folder, name = self._split(path)
        folder.change("", name, Folder())

    def _rename(self, path: str, new: str) -> None:
        folder, name = self._split(path)
        folder.change(name, new, folder.volatile[name])

    def _remove(self, path: str) -> None:
        folder, name = self._split(path)
        folder.change(name, "", None)


def _durable_copy(path: Path) -> Folder:
    names: dict[str, File | Folder] = {}
    for entry in path.iterdir():
        if entry.is_dir():
            names[entry.name] = _durable_copy(entry)
        else:
            names[entry.name] = File(entry.read_bytes(), entry.read_bytes())
    return Folder(dict(names), dict(names))


Keep = Callable[[], bool]
Bytes = Callable[[File], bytes]


def _forgotten(file: File) -> bytes:
    return file.durable


def _short(file: File) -> bytes:
    return file.volatile[: len(file.volatile) // 2]


def _zeroed(file: File) -> bytes:
    return bytes(len(file.volatile))


def _complete(file: File) -> bytes:
    return file.volatile


def outcomes(seed: int) -> Iterator[tuple[Keep, Bytes]]:
    """Yield ways in which a cut-off disk may have settled: the extremes, then seeded mixtures."""
    contents = (_forgotten, _short, _zeroed, _complete)
    yield (lambda: False), _forgotten
    for content in contents:
        yield (lambda: True), content
    for number in range(6):
        chance = random.Random(seed * 1000 + number)
        yield (lambda c=chance: c.random() < 0.5), (lambda file, c=chance: c.choice(contents)(file))


def settle(folder: Folder, target: Path, keep: Keep, content: Bytes) -> None:
    """Write out what one outcome leaves of the model."""
    target.mkdir()
    names = dict(folder.durable)
    for change in folder.pending:
        if keep():
            _apply(names, *change)
    for name, node in names.items():
        if isinstance(node, Folder):
            settle(node, target / name, keep, content)
        else:
            data = node.durable if node.durable == node.volatile else content(node)
            (target / name).write_bytes(data)
