import hashlib
import os
import warnings

import pytest
import torch

from stormsail.core.errors import ArgumentError, ArtifactError
from stormsail.core.files import artifact as artifact_module
from stormsail.core.files import atomic, documents, manifest, tensor_file, verified
from stormsail.core.files.artifact import Contents, read_artifact, verify_artifact, write_artifact
from stormsail.core.files.generations import Generations

CONTENTS = Contents(
    tensors={"model": {"weight": torch.tensor([[1.0, 2.0]]), "count": torch.tensor(3)}},
    documents={"normaliser": {"mean": [0.5], "name": "x"}},
    blobs={"config.toml": b"a = 1\n"},
    metadata={"schema": "abc", "shape": (1, 2)},
)

MANIFEST = """\
{
  "files": {
    "config.toml": {
      "bytes": 6,
      "sha256": "SHA-CONFIG"
    },
    "model.safetensors": {
      "bytes": 144,
      "sha256": "SHA-MODEL",
      "tensors": {
        "count": {
          "dtype": "int64",
          "shape": []
        },
        "weight": {
          "dtype": "float32",
          "shape": [
            1,
            2
          ]
        }
      }
    },
    "normaliser.json": {
      "bytes": 43,
      "sha256": "SHA-NORMALISER"
    }
  },
  "format": 1,
  "kind": "agent",
  "metadata": {
    "schema": "abc",
    "shape": [
      1,
      2
    ]
  },
  "sha256": "SHA-SELF"
}
"""


@pytest.fixture
def path(tmp_path):
    write_artifact(tmp_path / "agent", kind="agent", contents=CONTENTS)
    return tmp_path / "agent"


def test_what_is_written_is_read(path):
    artifact = read_artifact(path, kind="agent")
    assert artifact.path == path
    assert artifact.kind == "agent"
    assert artifact.documents == {"normaliser": {"mean": [0.5], "name": "x"}}
    assert artifact.blobs == {"config.toml": b"a = 1\n"}
    assert artifact.metadata == {"schema": "abc", "shape": [1, 2]}
    assert set(artifact.tensors) == {"model"}
    assert torch.equal(artifact.tensors["model"]["weight"], torch.tensor([[1.0, 2.0]]))
    assert torch.equal(artifact.tensors["model"]["count"], torch.tensor(3))
    assert artifact.digest == verify_artifact(path)


def test_the_manifest_is_plain_to_read(path):
    def sha(name):
        return hashlib.sha256((path / name).read_bytes()).hexdigest()

    text = (path / manifest.NAME).read_text()
    body = documents.decode(text.encode())
    own = body.pop("sha256")
    assert own == hashlib.sha256(documents.encode(body)).hexdigest()
    expected = (
        MANIFEST.replace("SHA-CONFIG", sha("config.toml"))
        .replace("SHA-MODEL", sha("model.safetensors"))
        .replace("SHA-NORMALISER", sha("normaliser.json"))
        .replace("SHA-SELF", own)
    )
    assert text == expected


def test_equal_contents_give_equal_bytes(path, tmp_path):
    turned = Contents(
        tensors={"model": dict(reversed(CONTENTS.tensors["model"].items()))},
        documents={"normaliser": {"name": "x", "mean": (0.5,)}},
        blobs=CONTENTS.blobs,
        metadata={"shape": [1, 2], "schema": "abc"},
    )
    write_artifact(tmp_path / "other", kind="agent", contents=turned)
    names = sorted(p.name for p in path.iterdir())
    assert names == ["config.toml", "manifest.json", "model.safetensors", "normaliser.json"]
    for name in names:
        assert (path / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_tied_strided_and_tracked_tensors_are_written_by_value(tmp_path):
    base = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    group = {"a": base, "tied": base, "turned": base.T, "row": base[1]}
    write_artifact(tmp_path / "x", kind="agent", contents=Contents(tensors={"g": group}))
    back = read_artifact(tmp_path / "x").tensors["g"]
    assert set(back) == set(group)
    for name, tensor in group.items():
        assert torch.equal(back[name], tensor.detach())
    back["a"].zero_()
    assert torch.equal(back["tied"], base.detach())


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8, torch.bool],
)
def test_every_type_comes_back(dtype, tmp_path):
    tensor = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    group = {"x": tensor, "empty": tensor[:0]}
    write_artifact(tmp_path / "x", kind="agent", contents=Contents(tensors={"g": group}))
    back = read_artifact(tmp_path / "x").tensors["g"]
    assert back["x"].dtype == dtype
    assert back["x"].float().tolist() == tensor.float().tolist()
    assert back["empty"].shape == (0,)


@pytest.mark.refusal
def test_nothing_is_overwritten(path):
    before = verify_artifact(path)
    with pytest.raises(ArtifactError) as caught:
        write_artifact(path, kind="agent", contents=Contents())
    assert str(caught.value) == (
        f"{path} must not exist yet; found something of that name. "
        "Choose another path; an artifact is never overwritten. [artifact-exists]"
    )
    assert verify_artifact(path) == before
    file = path.parent / "file"
    file.write_text("")
    for taken in (file, path.parent / "empty"):
        taken.mkdir() if taken.name == "empty" else None
        with pytest.raises(ArtifactError) as caught:
            write_artifact(taken, kind="agent", contents=Contents())
        assert caught.value.code == "artifact-exists"
    assert sorted(p.name for p in path.parent.iterdir()) == ["agent", "empty", "file"]


def test_a_path_is_free_before_the_work_exactly_where_it_is_free_at_the_end(tmp_path):
    link, file, folder, free = (tmp_path / name for name in ("link", "file", "folder", "free"))
    link.symlink_to(tmp_path / "nowhere")  # `Path.exists` says that nothing is there
    file.write_text("")
    folder.mkdir()
    for taken in (link, file, folder):
        errors = []
        for call in (
            lambda taken=taken: atomic.check_free(taken),
            lambda taken=taken: write_artifact(taken, kind="agent", contents=Contents()),
        ):
            with pytest.raises(ArtifactError) as caught:
                call()
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
        assert errors[0].endswith("[artifact-exists]")
    atomic.check_free(free)
    write_artifact(free, kind="agent", contents=Contents())


@pytest.mark.refusal
def test_a_missing_artifact_says_so(tmp_path):
    with pytest.raises(ArtifactError) as caught:
        read_artifact(tmp_path / "none")
    assert str(caught.value) == (
        f"{tmp_path}/none must be a folder with an artifact; found nothing of that name. "
        "Check the path. [artifact-missing]"
    )


@pytest.mark.refusal
def test_another_kind_is_refused(path):
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path, kind="checkpoint")
    assert str(caught.value) == (
        f"{path} must be a `checkpoint`; found `agent`. Pass the path of a `checkpoint`. "
        "[artifact-kind]"
    )


def flipped(path):
    data = bytearray((path / "config.toml").read_bytes())
    data[0] ^= 1
    (path / "config.toml").write_bytes(data)


@pytest.mark.refusal
def test_a_changed_byte_names_both_checksums(path):
    flipped(path)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path)
    right = manifest.describe(b"a = 1\n").sha256
    wrong = manifest.describe(b"` = 1\n").sha256
    assert str(caught.value) == (
        f"`config.toml` of {path} must have the SHA-256 {right}; found {wrong}. "
        "Use another copy of the artifact. [artifact-corrupt]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("damage", "name", "found"),
    [
        (lambda p: (p / "config.toml").unlink(), "config.toml", "no such file"),
        (lambda p: (p / "notes.txt").write_text(""), "notes.txt", "an extra file"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json", "no such file"),
        (
            lambda p: (
                (p / "config.toml").unlink(),
                (p / "config.toml").symlink_to("normaliser.json"),
            ),
            "config.toml",
            "a symbolic link",
        ),
        (
            lambda p: ((p / "config.toml").unlink(), (p / "config.toml").mkdir()),
            "config.toml",
            "something else than a regular file",
        ),
        (
            lambda p: ((p / "config.toml").unlink(), os.mkfifo(p / "config.toml")),
            "config.toml",
            "something else than a regular file",
        ),
    ],
)
def test_the_set_of_files_must_be_exactly_the_manifest_s(damage, name, found, path):
    damage(path)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path)
    assert str(caught.value) == (
        f"{path} must hold the files of its manifest and no others; `{name}` must agree; "
        f"found {found}. Use another copy of the artifact. [artifact-files]"
    )


@pytest.mark.refusal
def test_a_file_or_a_link_is_no_artifact(path):
    link = path.with_name("link")
    link.symlink_to(path)
    for other in (link, path / "config.toml"):
        with pytest.raises(ArtifactError) as caught:
            read_artifact(other)
        assert caught.value.code == "artifact-files"
        assert caught.value.found == "something else than a folder, or a symbolic link"


def test_nothing_is_parsed_before_everything_is_verified(path, monkeypatch):
    def must_not(*_args, **_kwargs):
        raise AssertionError("parsed too early")

    (path / "normaliser.json").write_bytes((path / "normaliser.json").read_bytes()[:-1] + b" ")
    monkeypatch.setattr(artifact_module.tensor_file, "decode_tensors", must_not)
    monkeypatch.setattr(artifact_module, "_parsed_document", must_not)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path)
    assert caught.value.code == "artifact-corrupt"


def test_each_file_is_opened_once_and_what_was_verified_is_what_is_parsed(path, monkeypatch):
    opened = []
    real = verified.atomic.read_file

    def watched(folder, name, *, limit):
        opened.append(name)
        data = real(folder, name, limit=limit)
        if name != manifest.NAME:
            (path / name).write_bytes(b"swapped after the check")
        return data

    monkeypatch.setattr(verified.atomic, "read_file", watched)
    artifact = read_artifact(path)
    assert opened == ["manifest.json", "config.toml", "model.safetensors", "normaliser.json"]
    assert artifact.blobs == {"config.toml": b"a = 1\n"}
    assert torch.equal(artifact.tensors["model"]["weight"], torch.tensor([[1.0, 2.0]]))


@pytest.mark.refusal
def test_a_mismatch_names_the_field(path):
    artifact = read_artifact(path)
    artifact.require(schema="abc", shape=(1, 2))
    with pytest.raises(ArtifactError) as caught:
        artifact.require(schema="abc", shape=(1, 3))
    assert str(caught.value) == (
        f"`shape` of {path} must be (1, 3); found [1, 2]. "
        "Use the artifact with what it was made for, or make a new one. [artifact-mismatch]"
    )
    with pytest.raises(ArtifactError) as caught:
        artifact.require(bar_size=None)
    assert caught.value.found == "no such field"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("like", "found"),
    [
        ({"weight": torch.zeros(1, 2)}, "an unexpected tensor `count`"),
        (
            {"weight": torch.zeros(1, 2), "count": torch.tensor(1), "z": torch.zeros(1)},
            "no tensor `z`",
        ),
        (
            {"weight": torch.zeros(2, 1), "count": torch.tensor(1)},
            "`weight` float32 (1, 2) instead of float32 (2, 1)",
        ),
        (
            {"weight": torch.zeros(1, 2), "count": torch.tensor(1.0)},
            "`count` int64 () instead of float32 ()",
        ),
    ],
)
def test_tensors_must_fit_their_receiver(like, found, path):
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path).matching("model", like)
    assert str(caught.value) == (
        f"the tensors `model` of {path} must fit their receiver; found {found}. "
        "Build the receiver with the configuration saved in the artifact. [artifact-mismatch]"
    )


def test_a_missing_group_is_named(path):
    artifact = read_artifact(path)
    assert artifact.matching("model", CONTENTS.tensors["model"]) is artifact.tensors["model"]
    with pytest.raises(ArtifactError) as caught:
        artifact.matching("critic", {})
    assert caught.value.found == "the groups ['model']"


@pytest.mark.refusal
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_what_is_not_finite_is_not_written_unless_it_is_meant(value, dtype, tmp_path):
    tensors = {"model": {"w": torch.tensor([1.0, value, 2.0]).to(dtype)}}
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=Contents(tensors=tensors))
    assert str(caught.value) == (
        "every number in `model/w` of the new artifact must be finite; found 1 of 3 that are not. "
        "Find what made them; if they are meant, allow them for `model`. [artifact-nonfinite]"
    )
    assert list(tmp_path.iterdir()) == []
    meant = Contents(tensors=tensors, allow_nonfinite={"model"})
    write_artifact(tmp_path / "x", kind="agent", contents=meant)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(tmp_path / "x")
    assert caught.value.code == "artifact-nonfinite"
    back = read_artifact(tmp_path / "x", allow_nonfinite={"model"}).tensors["model"]["w"]
    assert back.isfinite().tolist() == [True, False, True]


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("contents", "code", "found"),
    [
        (
            Contents(documents={"a": {"x": object()}}),
            "artifact-document",
            "it holds a value of the type object",
        ),
        (
            Contents(metadata={"a": float("nan")}),
            "artifact-document",
            "it holds the number nan",
        ),
        (
            Contents(tensors={"a": {"__metadata__": torch.zeros(1)}}),
            "artifact-tensors",
            "the name `__metadata__`, which the format keeps for itself",
        ),
    ],
)
def test_what_has_no_place_in_a_file_is_refused(contents, code, found, tmp_path):
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=contents)
    assert (caught.value.code, caught.value.found) == (code, found)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.refusal
@pytest.mark.parametrize(
    "contents",
    [
        Contents(documents={"../a": 1}),
        Contents(documents={"manifest": 1}),
        Contents(documents={"": 1}),
        Contents(documents={"A": 1}),
        Contents(tensors={"a/b": {}}),
        Contents(tensors={".a": {}}),
        Contents(blobs={"a": b""}),
        Contents(blobs={"a.tar.gz.x": b""}),
        Contents(blobs={"a" * 65 + ".txt": b""}),
    ],
)
def test_a_name_that_could_leave_or_hide_is_refused(contents, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=contents)
    assert caught.value.code == "name-form"
    assert caught.value.wrong == (
        "a file of an artifact must be named in lower-case letters, digits, `_`, `-`"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["a.json", "a.safetensors"])
def test_bytes_do_not_pass_as_something_that_is_checked(name, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=Contents(blobs={name: b""}))
    assert str(caught.value) == (
        f"a file of bytes must not end in `.safetensors` or `.json`; found `{name}`. "
        "Pass it as tensors or as a document, so that it is checked as such. [name-form]"
    )


@pytest.mark.refusal
def test_limits_hold_in_both_directions(path, tmp_path, monkeypatch):
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path, max_bytes=100)
    assert str(caught.value) == (
        f"{path} must stay within its limit of 100; found more in `its manifest`. "
        "Check where it comes from; raise `max_bytes` if it is meant to be so large. "
        "[artifact-limit]"
    )
    many = {f"f{number}.bin": b"" for number in range(257)}
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "many", kind="agent", contents=Contents(blobs=many))
    assert caught.value.code == "artifact-limit"
    monkeypatch.setattr(manifest, "MAX_BYTES", 10)
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "big", kind="agent", contents=CONTENTS)
    assert caught.value.found == "more in `manifest.json`"
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path)
    assert caught.value.found == "more in `manifest.json`"


def test_a_file_that_shrinks_while_it_is_read_is_noticed(path, monkeypatch):
    monkeypatch.setattr(os, "read", lambda _descriptor, _count: b"")
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path)
    assert caught.value.code == "artifact-manifest"


def test_missing_parents_are_made(tmp_path):
    write_artifact(tmp_path / "a" / "b" / "c", kind="agent", contents=CONTENTS)
    assert read_artifact(tmp_path / "a" / "b" / "c").kind == "agent"


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that it will drop them
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def compressed() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them beta
        return torch.eye(2).to_sparse_csr()


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("name", "make", "found"),
    [
        ("w", lambda: torch.zeros(2, dtype=torch.complex128), "`w`, a tensor of torch.complex128"),
        ("w", quantized, "`w`, a tensor of torch.qint8"),
        ("w", lambda: torch.eye(2).to_sparse(), "`w`, a tensor that is sparse or nested"),
        ("w", compressed, "`w`, a tensor that is sparse or nested"),
        (
            "w",
            lambda: torch.zeros(2, device="meta"),
            "`w`, a tensor without numbers, on the device `meta`",
        ),
        ("w", lambda: [1.0, 2.0], "`w`, a value of the type list"),
        (5, lambda: torch.zeros(2), "the name 5, which is not a string"),
        (None, lambda: torch.zeros(2), "the name None, which is not a string"),
        ("\ud800", lambda: torch.zeros(2), "the name '\\ud800', which has no UTF-8 form"),
    ],
)
@pytest.mark.parametrize("allowed", [(), ("model",)])
def test_a_tensor_that_the_format_cannot_hold_is_refused(name, make, found, allowed, tmp_path):
    contents = Contents(tensors={"model": {name: make()}}, allow_nonfinite=allowed)
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=contents)
    assert str(caught.value) == (
        "the tensors `model` must be ones that the file format can hold; "
        f"found {found}. Rename or convert them. [artifact-tensors]"
    )
    with pytest.raises(ArtifactError):
        Generations(tmp_path / "c").save(1, contents)
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_is_no_table_is_refused(tmp_path):
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=Contents(tensors={"model": [1]}))
    assert caught.value.code == "artifact-tensors"
    assert caught.value.found == "a value of the type list"


def test_every_type_that_may_be_written_can_be_read(tmp_path):
    group = {str(dtype): torch.zeros(2).to(dtype) for dtype in tensor_file.DTYPES}
    write_artifact(tmp_path / "x", kind="agent", contents=Contents(tensors={"g": group}))
    back = read_artifact(tmp_path / "x").tensors["g"]
    assert {name: tensor.dtype for name, tensor in back.items()} == {
        name: tensor.dtype for name, tensor in group.items()
    }


@pytest.mark.refusal
@pytest.mark.parametrize("name", [5, None, ("a",)])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: Contents(tensors={name: {}}),
        lambda name: Contents(tensors={name: {}, "model": {}}),
        lambda name: Contents(documents={name: 1}),
        lambda name: Contents(documents={name: 1, "a": 2}),
        lambda name: Contents(blobs={name: b""}),
        lambda name: Contents(blobs={name: b"", "a.bin": b""}),
    ],
)
def test_a_name_that_is_no_text_is_refused(name, make, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=make(name))
    assert str(caught.value) == (
        "a file of an artifact must be named in lower-case letters, digits, `_`, `-`; "
        f"found `{name}`. Write for example `model`; `manifest.json` is taken. [name-form]"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("contents", "title", "found"),
    [
        (
            Contents(documents={"a": {"n": 10**5000}}),
            "a",
            "it holds a whole number of thousands of digits",
        ),
        (
            Contents(documents={"a": {10**5000: 1}}),
            "a",
            "it holds a whole number of thousands of digits",
        ),
        (
            Contents(metadata={"n": -(10**5000)}),
            "metadata",
            "it holds a whole number of thousands of digits",
        ),
        (Contents(metadata={5: 1}), "metadata", "it holds the key 5, which is not a string"),
        (Contents(metadata=[1]), "metadata", "it is a value of the type list"),
        (Contents(metadata={"a": nested(63)}), "metadata", "it is nested more than 64 levels deep"),
    ],
)
def test_a_document_that_no_reader_would_take_is_not_written(contents, title, found, tmp_path):
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=contents)
    assert str(caught.value) == (
        f"the document `{title}` must be plain data: text, finite numbers, lists, tables; "
        f"found {found}. Convert it first; tensors belong in `tensors`. [artifact-document]"
    )
    assert list(tmp_path.iterdir()) == []


def test_metadata_as_deep_as_they_may_be_are_read(tmp_path):
    contents = Contents(metadata={"a": nested(62)})
    write_artifact(tmp_path / "x", kind="agent", contents=contents)
    assert read_artifact(tmp_path / "x").metadata == {"a": nested(62)}


@pytest.mark.refusal
@pytest.mark.parametrize("data", [5, "text", [1]])
def test_bytes_must_be_bytes(data, tmp_path):
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "x", kind="agent", contents=Contents(blobs={"a.bin": data}))
    assert str(caught.value) == (
        "the file `a.bin` must be given as bytes; "
        f"found a value of the type {type(data).__name__}. "
        "Encode it first; plain data belong in `documents`. [artifact-document]"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.refusal
@pytest.mark.parametrize("kind", [5, None, b"agent"])
def test_a_kind_that_is_no_text_is_refused(kind, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        write_artifact(tmp_path / "x", kind=kind, contents=CONTENTS)
    assert str(caught.value) == (
        "the kind of an artifact must be text; "
        f"found a value of the type {type(kind).__name__}. "
        "Write for example `checkpoint`. [name-form]"
    )
    with pytest.raises(ArgumentError):
        Generations(tmp_path / "c", kind=kind).save(1, CONTENTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [object(), float("nan"), [10**5000]])
def test_metadata_are_never_compared_with_what_they_cannot_hold(value, path):
    with pytest.raises(ArtifactError) as caught:
        read_artifact(path).require(schema=value)
    assert caught.value.code == "artifact-document"
