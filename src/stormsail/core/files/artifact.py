"""Artifacts: folders of tensors, documents and bytes, written atomically, verified when read.

Tensors are safetensors, documents strict JSON, everything else bytes. Reading verifies names, sizes
and SHA-256 of every file before it parses any, then parses the very bytes that it verified. No
format here can hold code.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from torch import Tensor

from stormsail.core.errors import ArgumentError, ArtifactError
from stormsail.core.files import atomic, documents, manifest, tensor_file
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.manifest import Manifest
from stormsail.core.files.tensor_file import TensorFileError
from stormsail.core.files.verified import MAX_BYTES, limit_error, size_limit, verified_files

_TENSORS = ".safetensors"
_DOCUMENT = ".json"

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, eq=False)  # tensors do not compare to one truth value
class Contents:
    """Contents to write into an artifact.

    Attributes:
        tensors: groups of named tensors; each group becomes one file, `model.safetensors`.
        documents: plain data; each becomes one file, `normaliser.json`.
        blobs: bytes of other files, by file name, `config.toml`.
        metadata: plain data kept in the manifest: what must agree before the artifact is used,
            such as hashes of the configuration, the features and the data.
        allow_nonfinite: groups whose tensors may hold NaN or infinity. Everywhere else such a
            number is refused, in writing and in reading: a NaN weight must never be resumed from.
    """

    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    documents: Mapping[str, object] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    allow_nonfinite: Collection[str] = ()


@dataclass(frozen=True, slots=True, eq=False)  # tensors do not compare to one truth value
class Artifact:
    """Contents of an artifact after verification.

    Attributes:
        path: the folder.
        kind: what it is, such as `checkpoint`.
        metadata: the plain data of the manifest.
        tensors: groups of named tensors, on the CPU.
        documents: plain data by name.
        blobs: bytes by file name.
        digest: SHA-256 of the manifest, and so of everything: the artifact's identity.
    """

    path: Path
    kind: str
    metadata: dict[str, JsonValue]
    tensors: dict[str, dict[str, Tensor]]
    documents: dict[str, JsonValue]
    blobs: dict[str, bytes]
    digest: str

    def require(self, **expected: object) -> None:
        """Refuse the artifact unless its metadata hold these values; name what differs.

        Raises:
            ArtifactError: if one differs, or is nothing that metadata can hold.
        """
        for name, value in expected.items():
            saved = self.metadata.get(name)
            wanted = documents.decode(_encoded_document(name, value))
            if name not in self.metadata or saved != wanted:
                raise ArtifactError(
                    "artifact-mismatch",
                    wrong=f"`{name}` of {self.path} must be {value!r}",
                    found=repr(saved) if name in self.metadata else "no such field",
                    remedy="Use the artifact with what it was made for, or make a new one.",
                )

    def matching(self, group: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a group of tensors after checking names, types and shapes against `like`."""
        if group not in self.tensors:
            problem: str | None = f"the groups {sorted(self.tensors)}"
        else:
            expected = tensor_file.specification(like)
            actual = tensor_file.specification(self.tensors[group])
            problem = tensor_file.difference(expected, actual)
        if problem is not None:
            raise ArtifactError(
                "artifact-mismatch",
                wrong=f"the tensors `{group}` of {self.path} must fit their receiver",
                found=problem,
                remedy="Build the receiver with the configuration saved in the artifact.",
            )
        return self.tensors[group]


def write_error(path: Path, error: OSError) -> ArtifactError:
    """Return the refusal for an error of the operating system while `path` was written."""
    return ArtifactError(
        "artifact-write",
        wrong=f"{path} must be written completely before it counts as saved",
        found=f"{error.strerror or error}",
        remedy="Free space or permissions and save again; what was saved before is untouched.",
    )


def write_artifact(path: Path | str, *, kind: str, contents: Contents) -> None:
    """Write a new artifact: afterwards it is on the disk completely, or not at all.

    Raises:
        ArtifactError: if the path is taken, the disk refuses, or the contents have no place in
            such a file, as in `encode_artifact`.
        ArgumentError: if `kind` or the name of a file has another form.
    """
    path = Path(path)
    files = encode_artifact(kind=kind, contents=contents)
    try:
        atomic.make_folders(path.parent)
        with atomic.open_folder(path.parent, follow=True) as parent:
            atomic.write_folder(parent, path.name, files)
    except FileExistsError as error:
        raise atomic.exists_error(path) from error
    except OSError as error:
        raise write_error(path, error) from error


def read_artifact(
    path: Path | str,
    *,
    kind: str | None = None,
    allow_nonfinite: Collection[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Artifact:
    """Return the contents of an artifact after verifying every byte of it.

    Args:
        path: the folder.
        kind: refuse any other kind.
        allow_nonfinite: groups of tensors in which NaN and infinity mean something.
        max_bytes: refuse an artifact that is larger.

    Raises:
        ArtifactError: if it is missing, damaged, of another kind, or not finite.
    """
    path = Path(path)
    verified = verified_files(path, max_bytes=max_bytes)
    index = verified.manifest
    if kind is not None and index.kind != kind:
        raise ArtifactError(
            "artifact-kind",
            wrong=f"{path} must be a `{kind}`",
            found=f"`{index.kind}`",
            remedy=f"Pass the path of a `{kind}`.",
        )
    tensors: dict[str, dict[str, Tensor]] = {}
    texts: dict[str, JsonValue] = {}
    blobs: dict[str, bytes] = {}
    for name, data in verified.files.items():
        if name.endswith(_TENSORS):
            tensors[name.removesuffix(_TENSORS)] = _parsed_tensors(path, name, data, index)
        elif name.endswith(_DOCUMENT):
            texts[name.removesuffix(_DOCUMENT)] = _parsed_document(path, name, data)
        else:
            blobs[name] = data
    _refuse_nonfinite(tensors, allow_nonfinite, str(path))
    return Artifact(path, index.kind, index.metadata, tensors, texts, blobs, verified.digest)


def verify_artifact(path: Path | str, *, max_bytes: int = MAX_BYTES) -> str:
    """Check names, sizes and checksums of an artifact without parsing it; return its digest."""
    return verified_files(Path(path), max_bytes=max_bytes).digest


def encode_artifact(*, kind: str, contents: Contents) -> dict[str, bytes]:
    """Return the files of an artifact, the manifest last, as they will be written.

    Raises:
        ArtifactError: if a tensor is not finite, or a value has no place in such a file.
        ArgumentError: if `kind` or the name of a file has another form.
    """
    _check_kind(kind)
    groups = _named(contents.tensors, _TENSORS)
    for _, group, tensors in groups:
        _check_tensors(group, tensors)
    _refuse_nonfinite(contents.tensors, contents.allow_nonfinite, "the new artifact")
    files: dict[str, bytes] = {}
    entries: dict[str, manifest.FileEntry] = {}
    for name, _, tensors in groups:
        files[name] = tensor_file.encode_tensors(tensors)
        spec = tensor_file.specification(tensors)
        entries[name] = manifest.describe(files[name], tensors=spec)
    for name, title, value in _named(contents.documents, _DOCUMENT):
        files[name] = _encoded_document(title, value)
        entries[name] = manifest.describe(files[name])
    for name, _, data in _named(contents.blobs):
        files[name] = _checked_bytes(name, data)
        entries[name] = manifest.describe(files[name])
    files[manifest.NAME] = _encoded_manifest(kind, entries, contents.metadata)
    return _within_limits(files)


def _check_kind(kind: object) -> None:
    if type(kind) is not str:
        raise ArgumentError(
            "name-form",
            wrong="the kind of an artifact must be text",
            found=f"a value of the type {type(kind).__name__}",
            remedy="Write for example `checkpoint`.",
        )


def _named(values: Mapping[str, _Value], ending: str = "") -> list[tuple[str, str, _Value]]:
    """Return file name, name and value of each entry, sorted by file name."""
    names = {_file_name(name, ending): name for name in values}
    return [(file, names[file], values[names[file]]) for file in sorted(names)]


def _file_name(name: str, ending: str) -> str:
    if ending and isinstance(name, str):
        return manifest.check_file_name(name + ending)
    return _check_blob_name(name)


def _encoded_manifest(kind: str, entries: dict[str, manifest.FileEntry], metadata: object) -> bytes:
    if not isinstance(metadata, Mapping):
        problem = f"it is a value of the type {type(metadata).__name__}"
        raise _document_error("metadata", problem)
    plain = documents.decode(_encoded_document("metadata", dict(metadata)))
    index = Manifest(kind=kind, files=entries, metadata=cast("dict[str, JsonValue]", plain))
    try:
        return index.encode()
    except DocumentError as error:  # inside the manifest, metadata lie one level deeper
        raise _document_error("metadata", str(error)) from error


def _checked_bytes(name: str, data: object) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):  # `bytes(5)` would be five zeros
        raise ArtifactError(
            "artifact-document",
            wrong=f"the file `{name}` must be given as bytes",
            found=f"a value of the type {type(data).__name__}",
            remedy="Encode it first; plain data belong in `documents`.",
        )
    return bytes(data)


def _check_tensors(group: str, tensors: Mapping[str, Tensor]) -> None:
    try:
        tensor_file.check_tensors(tensors)
    except TensorFileError as error:
        raise ArtifactError(
            "artifact-tensors",
            wrong=f"the tensors `{group}` must be ones that the file format can hold",
            found=str(error),
            remedy="Rename or convert them.",
        ) from error


def _encoded_document(title: str, value: object) -> bytes:
    try:
        return documents.encode_readable(value)
    except DocumentError as error:
        raise _document_error(title, str(error)) from error


def _document_error(title: str, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"the document `{title}` must be plain data: text, finite numbers, lists, tables",
        found=found,
        remedy="Convert it first; tensors belong in `tensors`.",
    )


def _check_blob_name(name: str) -> str:
    if isinstance(name, str) and name.endswith((_TENSORS, _DOCUMENT)):
        raise ArgumentError(
            "name-form",
            wrong=f"a file of bytes must not end in `{_TENSORS}` or `{_DOCUMENT}`",
            found=f"`{name}`",
            remedy="Pass it as tensors or as a document, so that it is checked as such.",
        )
    return manifest.check_file_name(name)


def _within_limits(files: dict[str, bytes]) -> dict[str, bytes]:
    """Refuse to write what could not be read back."""
    for name, data in files.items():
        limit = size_limit(name, MAX_BYTES)
        if len(data) > limit:
            raise limit_error("the new artifact", name, limit)
    if len(files) > manifest.MAX_FILES:
        raise limit_error("the new artifact", f"{len(files)} files", manifest.MAX_FILES)
    return files


def _parsed_tensors(path: Path, name: str, data: bytes, index: Manifest) -> dict[str, Tensor]:
    expected = index.files[name].tensors
    try:
        tensors = tensor_file.decode_tensors(data)
        problem = tensor_file.difference(expected or {}, tensor_file.specification(tensors))
    except TensorFileError as error:
        problem = str(error)
    if problem is not None:
        raise ArtifactError(
            "artifact-tensors",
            wrong=f"`{name}` of {path} must hold the tensors that its manifest lists",
            found=problem,
            remedy="Use another copy of the artifact.",
        )
    return tensors


def _parsed_document(path: Path, name: str, data: bytes) -> JsonValue:
    try:
        return documents.decode(data)
    except DocumentError as error:
        raise ArtifactError(
            "artifact-document",
            wrong=f"`{name}` of {path} must be strict JSON",
            found=str(error),
            remedy="Use another copy of the artifact.",
        ) from error


def _refuse_nonfinite(
    tensors: Mapping[str, Mapping[str, Tensor]], allowed: Collection[str], place: str
) -> None:
    for group in sorted(set(tensors) - set(allowed)):
        for name, tensor in tensors[group].items():
            count = tensor_file.count_nonfinite(tensor)
            if count:
                raise ArtifactError(
                    "artifact-nonfinite",
                    wrong=f"every number in `{group}/{name}` of {place} must be finite",
                    found=f"{count} of {tensor.numel()} that are not",
                    remedy=f"Find what made them; if they are meant, allow them for `{group}`.",
                )
