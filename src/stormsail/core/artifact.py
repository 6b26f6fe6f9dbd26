"""An artifact: one folder of pure data with a manifest, written whole and read only if whole.

Tensors are safetensors, documents strict JSON, everything else bytes. Reading verifies names, sizes
and SHA-256 of every file before it parses any, then parses the very bytes that it verified. No
format here can hold code.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from torch import Tensor

from stormsail.core import atomic, documents, manifest, tensor_file
from stormsail.core.documents import DocumentError, JsonValue
from stormsail.core.errors import ArgumentError, ArtifactError
from stormsail.core.manifest import Manifest
from stormsail.core.tensor_file import TensorFileError
from stormsail.core.verified import MAX_BYTES, limit_error, size_limit, verified_files

_TENSORS = ".safetensors"
_DOCUMENT = ".json"


@dataclass(frozen=True, slots=True, eq=False)  # tensors do not compare to one truth value
class Contents:
    """What goes into an artifact.

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
    """What came out of an artifact, verified.

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
        """Refuse the artifact unless its metadata hold these values; name what differs."""
        for name, value in expected.items():
            found = self.metadata.get(name)
            if name not in self.metadata or found != documents.plain(value):
                raise ArtifactError(
                    "artifact-mismatch",
                    wrong=f"`{name}` of {self.path} must be {value!r}",
                    found=repr(found) if name in self.metadata else "no such field",
                    remedy="Use the artifact with what it was made for, or make a new one.",
                )

    def matching(self, group: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a group of tensors after checking names, types and shapes against `like`."""
        if group not in self.tensors:
            found: str | None = f"the groups {sorted(self.tensors)}"
        else:
            expected = tensor_file.specification(like)
            found = tensor_file.difference(expected, tensor_file.specification(self.tensors[group]))
        if found is not None:
            raise ArtifactError(
                "artifact-mismatch",
                wrong=f"the tensors `{group}` of {self.path} must fit their receiver",
                found=found,
                remedy="Build the receiver with the configuration saved in the artifact.",
            )
        return self.tensors[group]


def write_error(path: Path, error: OSError) -> ArtifactError:
    """Return the loud form of whatever the system said while `path` was written."""
    return ArtifactError(
        "artifact-write",
        wrong=f"{path} must be written completely before it counts as saved",
        found=f"{error.strerror or error}",
        remedy="Free space or permissions and save again; what was saved before is untouched.",
    )


def write_artifact(path: Path | str, *, kind: str, contents: Contents) -> None:
    """Write a new artifact: afterwards it is on the disk completely, or not at all.

    Raises:
        ArtifactError: if the path is taken, the disk refuses, or a tensor is not finite.
    """
    path = Path(path)
    files = encode_artifact(kind=kind, contents=contents)
    try:
        atomic.make_folders(path.parent)
        with atomic.open_folder(path.parent, follow=True) as parent:
            atomic.write_folder(parent, path.name, files)
    except FileExistsError as error:
        raise ArtifactError(
            "artifact-exists",
            wrong=f"{path} must not exist yet",
            found="something of that name",
            remedy="Choose another path; an artifact is never overwritten.",
        ) from error
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
    """
    _refuse_nonfinite(contents.tensors, contents.allow_nonfinite, "the new artifact")
    files: dict[str, bytes] = {}
    entries: dict[str, manifest.FileEntry] = {}
    for group, tensors in sorted(contents.tensors.items()):
        name = manifest.check_file_name(group + _TENSORS)
        files[name] = _encoded_tensors(group, tensors)
        spec = tensor_file.specification(tensors)
        entries[name] = manifest.describe(files[name], tensors=spec)
    for title, value in sorted(contents.documents.items()):
        name = manifest.check_file_name(title + _DOCUMENT)
        files[name] = _encoded_document(title, value)
        entries[name] = manifest.describe(files[name])
    for name, data in sorted(contents.blobs.items()):
        files[_check_blob_name(name)] = bytes(data)
        entries[name] = manifest.describe(files[name])
    metadata = documents.decode(_encoded_document("metadata", dict(contents.metadata)))
    index = Manifest(kind=kind, files=entries, metadata=cast("dict[str, JsonValue]", metadata))
    files[manifest.NAME] = index.encode()
    return _within_limits(files)


def _encoded_tensors(group: str, tensors: Mapping[str, Tensor]) -> bytes:
    try:
        return tensor_file.encode_tensors(tensors)
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
        raise ArtifactError(
            "artifact-document",
            wrong=f"the document `{title}` must be plain data: text, finite numbers, lists, tables",
            found=str(error),
            remedy="Convert it first; tensors belong in `tensors`.",
        ) from error


def _check_blob_name(name: str) -> str:
    if name.endswith((_TENSORS, _DOCUMENT)):
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
        found = tensor_file.difference(expected or {}, tensor_file.specification(tensors))
    except TensorFileError as error:
        found = str(error)
    if found is not None:
        raise ArtifactError(
            "artifact-tensors",
            wrong=f"`{name}` of {path} must hold the tensors that its manifest lists",
            found=found,
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
