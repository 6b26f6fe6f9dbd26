"""The manifest of an artifact: kind, metadata, and size and SHA-256 of every file.

The manifest carries a SHA-256 of itself and has exactly one spelling, so any changed byte of any
file, itself included, is noticed. That guards against damage, not against an attacker who computes
new checksums; such a file is harmless because nothing in it is ever executed.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stormsail.core.errors import ArgumentError, ArtifactError
from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.tensor_file import TensorSpec

FORMAT = 1
NAME = "manifest.json"
MAX_BYTES = 4 << 20
MAX_FILES = 256

# Lower case only: `Model.json` and `model.json` are one file on some systems and two on others.
# A first letter or digit, no slash: neither `..` nor a hidden file nor a path can be written.
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}([.][a-z0-9_-]{1,32}){1,2}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size, checksum and tensor shapes of one file."""

    size: int
    sha256: str
    tensors: TensorSpec | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Kind, files and metadata of an artifact."""

    kind: str
    files: dict[str, FileEntry]
    metadata: dict[str, JsonValue]

    def encode(self) -> bytes:
        """Return the one text of this manifest."""
        body: dict[str, object] = {
            "files": {name: _entry_document(entry) for name, entry in self.files.items()},
            "format": FORMAT,
            "kind": self.kind,
            "metadata": self.metadata,
        }
        return documents.encode_readable({**body, "sha256": _digest(body)})

    @classmethod
    def decode(cls, data: bytes, *, place: str) -> "Manifest":
        """Return the manifest of a text, after checking its own checksum and its one spelling.

        Raises:
            ArtifactError: if the text is damaged, from another version, or not a manifest; it
                names the artifact as `place`.
        """
        try:
            body = _checked_body(data)
            if body.get("format") == FORMAT:
                return cls._from_document(body)
        except DocumentError as error:
            raise ArtifactError(
                "artifact-manifest",
                wrong=f"`{NAME}` of {place} must be as it was written",
                found=str(error),
                remedy="Use another copy of the artifact.",
            ) from error
        raise ArtifactError(
            "artifact-version",
            wrong=f"{place} must have the format {FORMAT}",
            found=f"{body.get('format')!r}",
            remedy="Read it with the version of the package that wrote it.",
        )

    @classmethod
    def _from_document(cls, value: dict[str, JsonValue]) -> "Manifest":
        kind, files, metadata = value.get("kind"), value.get("files"), value.get("metadata")
        if set(value) != {"files", "format", "kind", "metadata"}:
            raise DocumentError(f"the keys {sorted(value)}")
        if not isinstance(kind, str) or not isinstance(metadata, dict):
            raise DocumentError("no text as `kind` or no table as `metadata`")
        if not isinstance(files, dict) or len(files) > MAX_FILES:
            raise DocumentError(f"no table of at most {MAX_FILES} `files`")
        checked = {name: _entry(name, entry) for name, entry in files.items()}
        return cls(kind=kind, files=checked, metadata=metadata)


def describe(data: bytes, *, tensors: TensorSpec | None = None) -> FileEntry:
    """Return the entry of a file with these bytes."""
    return FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest(), tensors=tensors)


def check_file_name(name: str) -> str:
    """Return `name` if an artifact may hold a file of that name."""
    if not isinstance(name, str) or name == NAME or not _FILE_NAME.fullmatch(name):
        raise ArgumentError(
            "name-form",
            wrong="a file of an artifact must be named in lower-case letters, digits, `_`, `-`",
            found=f"`{name}`",
            remedy=f"Write for example `model`; `{NAME}` is taken.",
        )
    return name


def _checked_body(data: bytes) -> dict[str, JsonValue]:
    """Return everything but the checksum, once the checksum and the spelling are right."""
    value = documents.decode(data)
    if not isinstance(value, dict) or documents.encode_readable(value) != data:
        raise DocumentError("another spelling of it")
    if value.pop("sha256", None) != _digest(value):
        raise DocumentError("content that its own checksum contradicts")
    return value


def _entry_document(entry: FileEntry) -> dict[str, object]:
    document: dict[str, object] = {"bytes": entry.size, "sha256": entry.sha256}
    return document if entry.tensors is None else {**document, "tensors": entry.tensors}


def _entry(name: str, value: JsonValue) -> FileEntry:
    if name == NAME or not _FILE_NAME.fullmatch(name):
        raise DocumentError(f"the file name {name[:80]!r}")
    if not isinstance(value, dict) or not {"bytes", "sha256"} <= set(value):
        raise DocumentError(f"no size or checksum for `{name}`")
    size, sha256 = value["bytes"], value["sha256"]
    if type(size) is not int or size < 0:
        raise DocumentError(f"the size {size!r} for `{name}`")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise DocumentError(f"a checksum of `{name}` that is none")
    return FileEntry(size=size, sha256=sha256, tensors=_tensor_spec(name, value))


def _tensor_spec(name: str, value: Mapping[str, JsonValue]) -> TensorSpec | None:
    if set(value) - {"bytes", "sha256"} - {"tensors"}:
        raise DocumentError(f"unknown keys for `{name}`")
    tensors = value.get("tensors")
    if tensors is None:
        return None
    if not isinstance(tensors, dict):
        raise DocumentError(f"no table of tensors for `{name}`")
    return {key: _one_spec(name, spec) for key, spec in tensors.items()}


def _one_spec(name: str, spec: JsonValue) -> dict[str, str | list[int]]:
    if not isinstance(spec, dict) or set(spec) != {"dtype", "shape"}:
        raise DocumentError(f"a tensor of `{name}` without type and shape")
    dtype, shape = spec["dtype"], spec["shape"]
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise DocumentError(f"a tensor of `{name}` without type and shape")
    sizes = [size for size in shape if type(size) is int]
    if len(sizes) != len(shape):
        raise DocumentError(f"a shape of `{name}` that is not made of whole numbers")
    return {"dtype": dtype, "shape": sizes}


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(documents.encode(dict(body))).hexdigest()
