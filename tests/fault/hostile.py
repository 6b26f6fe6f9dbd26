"""Artifacts made by an enemy: right checksums, wrong intentions.

Each maker gets a folder with a good artifact and the path of a canary, and turns the folder into
something that would like to create the canary, read outside, hang or swell.
"""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stormsail.core.files import documents, manifest
from stormsail.core.files.manifest import FileEntry, Manifest

Maker = Callable[[Path, Path], None]


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def pickled(canary: Path) -> bytes:
    return pickle.dumps(Bomb(canary))


def torch_saved(canary: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": Bomb(canary)}, buffer)
    return buffer.getvalue()


def numpy_saved(canary: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def zipped(canary: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../" + canary.name, b"escaped")
        archive.writestr("data.pkl", pickled(canary))
    return buffer.getvalue()


def yaml_tag(canary: Path) -> bytes:
    return f"!!python/object/apply:os.mkdir ['{canary}']\n".encode()


def python_source(canary: Path) -> bytes:
    return f"__import__('os').mkdir({str(canary)!r})\n".encode()


def framed(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def tensor(dtype: str, shape: list[int], offsets: list[int], body: bytes = b"\0" * 16) -> bytes:
    entry = {"weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    return framed(json.dumps(entry).encode(), body)


def resigned(folder: Path, name: str, data: bytes) -> None:
    """Put `data` in the place of a file, with a manifest that vouches for it."""
    index = Manifest.decode((folder / manifest.NAME).read_bytes(), place="here")
    fresh = manifest.describe(data)
    old = index.files.get(name)
    index.files[name] = FileEntry(fresh.size, fresh.sha256, old.tensors if old else None)
    (folder / name).write_bytes(data)
    (folder / manifest.NAME).write_bytes(index.encode())


def listed(folder: Path, name: str) -> None:
    """Let the manifest list a file of any name, with a right checksum of itself."""
    body = documents.decode((folder / manifest.NAME).read_bytes())
    assert isinstance(body, dict)
    files = body["files"]
    assert isinstance(files, dict)
    files[name] = files["run.json"]
    restated(folder, body)


def restated(folder: Path, body: dict[str, Any]) -> None:
    body.pop("sha256", None)
    digest = manifest.hashlib.sha256(documents.encode(body)).hexdigest()
    text = documents.encode_readable({**body, "sha256": digest})
    (folder / manifest.NAME).write_bytes(text)


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    body = documents.decode((folder / manifest.NAME).read_bytes())
    assert isinstance(body, dict)
    change(body)
    restated(folder, body)


def _payload(name: str, make: Callable[[Path], bytes]) -> Maker:
    return lambda folder, canary: resigned(folder, name, make(canary))


def _fixed(name: str, data: bytes) -> Maker:
    return lambda folder, _canary: resigned(folder, name, data)


def _listed(name: str) -> Maker:
    return lambda folder, _canary: listed(folder, name)


def _edited(change: Callable[[dict[str, Any]], None]) -> Maker:
    return lambda folder, _canary: edited(folder, change)


def _as_manifest(make: Callable[[Path], bytes]) -> Maker:
    return lambda folder, canary: (folder / manifest.NAME).write_bytes(make(canary)) and None


def _link(name: str, target: str) -> Maker:
    def make(folder: Path, _canary: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return make


def _pipe(name: str) -> Maker:
    def make(folder: Path, _canary: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return make


def _folder_link(folder: Path, _canary: Path) -> None:
    real = folder.with_name("real")
    folder.rename(real)
    folder.symlink_to(real)


def _sparse(name: str, size: int) -> Maker:
    def make(folder: Path, _canary: Path) -> None:
        os.truncate(folder / name, size)

    return make


def _sparse_and_vouched(folder: Path, _canary: Path) -> None:
    os.truncate(folder / "config.toml", 1 << 40)
    edited(folder, lambda body: body["files"]["config.toml"].update(bytes=1 << 40))


def _ten_thousand_files(body: dict[str, Any]) -> None:
    body["files"] = {f"f{number}.bin": body["files"]["run.json"] for number in range(10_000)}


PAYLOADS = (pickled, torch_saved, numpy_saved, zipped, yaml_tag, python_source)

HOSTILE: dict[str, Maker] = {
    **{f"{make.__name__} as tensors": _payload("model.safetensors", make) for make in PAYLOADS},
    **{f"{make.__name__} as document": _payload("run.json", make) for make in PAYLOADS},
    **{f"{make.__name__} as manifest": _as_manifest(make) for make in PAYLOADS},
    "header of 2**63 bytes": _fixed("model.safetensors", struct.pack("<Q", 1 << 63) + b"{}"),
    "header of 2**64-1 bytes": _fixed("model.safetensors", b"\xff" * 8 + b"{}"),
    "header longer than the file": _fixed("model.safetensors", struct.pack("<Q", 90) + b"{}"),
    "header beyond the limit": _fixed("model.safetensors", framed(b" " * (17 << 20))),
    "header that is no JSON": _fixed("model.safetensors", framed(b"{'weight': 1}")),
    "header nested without end": _fixed("model.safetensors", framed(b'{"a":' * 9999)),
    "header with a repeated name": _fixed(
        "model.safetensors",
        framed(
            b'{"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
            b'"weight":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
            bytes(16),
        ),
    ),
    "file of no bytes": _fixed("model.safetensors", b""),
    "shape that overflows": _fixed("model.safetensors", tensor("F32", [1 << 40, 1 << 40], [0, 16])),
    "shape of a terabyte": _fixed("model.safetensors", tensor("F32", [1 << 38], [0, 1 << 40])),
    "negative shape": _fixed("model.safetensors", tensor("F32", [-4], [0, 16])),
    "offsets beyond the end": _fixed("model.safetensors", tensor("F32", [4], [16, 32])),
    "offsets backwards": _fixed("model.safetensors", tensor("F32", [4], [16, 0])),
    "unknown type": _fixed("model.safetensors", tensor("PYOBJ", [4], [0, 16])),
    "bytes that no tensor owns": _fixed(
        "model.safetensors", tensor("F32", [4], [0, 16], bytes(4096))
    ),
    "empty tensor of a terabyte": _fixed(
        "model.safetensors", tensor("F32", [0, 1 << 60, 1 << 60], [0, 0], b"")
    ),
    "document nested without end": _fixed("run.json", b"[" * 100_000),
    "number of 10,000 digits": _fixed("run.json", b"9" * 10_000),
    "text that is no UTF-8": _fixed("run.json", b'"\xff\xfe"'),
    "path upwards": _listed("../run.json"),
    "absolute path": _listed("/etc/passwd"),
    "path downwards": _listed("a/run.json"),
    "hidden file": _listed(".bashrc"),
    "name with a zero byte": _listed("run.json\0.bin"),
    "name with a line break": _listed("run\n.json"),
    "name with a backslash": _listed("..\\run.json"),
    "name that is the manifest's": _listed(manifest.NAME),
    "name too long": _listed("a" * 300 + ".json"),
    "link to a system file": _link("config.toml", "/etc/passwd"),
    "link to itself": _link("config.toml", "config.toml"),
    "link to a device": _link("config.toml", "/dev/zero"),
    "link as manifest": _link(manifest.NAME, "/dev/zero"),
    "link as folder": _folder_link,
    "pipe as file": _pipe("config.toml"),
    "pipe as manifest": _pipe(manifest.NAME),
    "manifest of a terabyte": _sparse(manifest.NAME, 1 << 40),
    "file of a terabyte": _sparse("config.toml", 1 << 40),
    "file of a terabyte with a manifest": _sparse_and_vouched,
    "ten thousand files": _edited(_ten_thousand_files),
    "files that are no table": _edited(lambda body: body.update(files=[1])),
    "entry that is no table": _edited(lambda body: body["files"].update({"run.json": 3})),
    "negative size": _edited(lambda body: body["files"]["run.json"].update(bytes=-1)),
    "size that is true": _edited(lambda body: body["files"]["run.json"].update(bytes=True)),
    "checksum that is none": _edited(lambda body: body["files"]["run.json"].update(sha256="x")),
    "kind that is no text": _edited(lambda body: body.update(kind=["agent"])),
    "unknown key": _edited(lambda body: body.update(run="os.system")),
    "unknown key of a file": _edited(lambda body: body["files"]["run.json"].update(loader="x")),
    "tensors that are no table": _edited(
        lambda body: body["files"]["model.safetensors"].update(tensors=[1])
    ),
    "tensor without a shape": _edited(
        lambda body: body["files"]["model.safetensors"]["tensors"].update(steps={"dtype": "int64"})
    ),
    "shape of text": _edited(
        lambda body: body["files"]["model.safetensors"]["tensors"]["steps"].update(shape=["1"])
    ),
    "shape that is text": _edited(
        lambda body: body["files"]["model.safetensors"]["tensors"]["steps"].update(shape="1")
    ),
    "tensors that nobody listed": _edited(
        lambda body: body["files"]["model.safetensors"].pop("tensors")
    ),
}
