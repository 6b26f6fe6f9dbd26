"""Damaged artifacts are refused, all of them; undamaged ones never."""

import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from fault.conftest import MEMORY
from fault.mutants import MUTATIONS, Mutation
from fault.sample import assert_whole, contents, copied, prepared
from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents, manifest
from stormsail.core.files.artifact import Contents, encode_artifact, read_artifact, write_artifact
from stormsail.core.files.generations import Generations
from stormsail.core.files.manifest import FileEntry, Manifest

DAMAGE = {"artifact-corrupt", "artifact-files", "artifact-manifest"}


@pytest.fixture
def clean(tmp_path) -> Path:
    path = tmp_path / "clean"
    write_artifact(path, kind="checkpoint", contents=contents(7))
    return path


def image(folder: Path) -> dict[str, bytes | None]:
    return {
        path.name: None if path.is_symlink() or path.is_dir() else path.read_bytes()
        for path in folder.iterdir()
    }


def refused(clean: Path, scratch: Path, mutate: Mutation, trials: int) -> int:
    """Return how many of the trials changed something; each of those must be refused."""
    before, count = image(clean), 0
    for seed in range(trials):
        folder = copied(clean, scratch / f"{seed}")
        mutate(folder, random.Random(f"{mutate.__name__} {seed}"))
        if image(folder) != before:
            with pytest.raises(ArtifactError) as caught:
                read_artifact(folder)
            assert caught.value.code in DAMAGE
            count += 1
        else:
            assert_whole(read_artifact(folder), 7)
        shutil.rmtree(folder)
    return count


@pytest.mark.parametrize(("mutate", "trials"), MUTATIONS, ids=lambda x: getattr(x, "__name__", ""))
def test_every_mutant_is_refused(mutate, trials, clean, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert refused(clean, scratch, mutate, trials) >= 0.9 * trials  # the rest changed no byte


@pytest.mark.campaign
@pytest.mark.parametrize(("mutate", "trials"), MUTATIONS, ids=lambda x: getattr(x, "__name__", ""))
def test_twenty_thousand_mutants_are_refused(mutate, trials, clean, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert refused(clean, scratch, mutate, trials * 36) >= 0.9 * trials * 36


def test_every_single_bit_of_the_manifest_matters(clean):
    path = clean / manifest.NAME
    data = path.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises(ArtifactError):
            Manifest.decode(bytes(changed), place="here")


names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,10}", fullmatch=True)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
arrays = st.tuples(
    st.sampled_from(["float32", "float64", "float16", "int64", "uint8", "bool"]),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 2**32 - 1),
).map(lambda x: torch.from_numpy(np.random.default_rng(x[2]).normal(size=x[1]).astype(x[0])))


@given(
    tensors=st.dictionaries(names, st.dictionaries(names, arrays, max_size=3), max_size=2),
    texts=st.dictionaries(names, plain, max_size=2),
    metadata=st.dictionaries(st.text(max_size=5), plain, max_size=3),
    blob=st.binary(max_size=50),
)
def test_no_clean_artifact_is_refused(tensors, texts, metadata, blob):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "artifact"
        check_round_trip(path, tensors, texts, metadata, blob)


def check_round_trip(path, tensors, texts, metadata, blob):
    given_contents = Contents(
        tensors=tensors, documents=texts, metadata=metadata, blobs={"a.bin": blob}
    )
    write_artifact(path, kind="test", contents=given_contents)
    artifact = read_artifact(path, kind="test")
    assert artifact.documents == texts
    assert artifact.metadata == metadata
    assert artifact.blobs == {"a.bin": blob}
    assert set(artifact.tensors) == set(tensors)
    for group, expected in tensors.items():
        assert set(artifact.tensors[group]) == set(expected)
        for name, tensor in expected.items():
            assert artifact.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(artifact.tensors[group][name], tensor)


def test_a_manifest_of_another_generation_is_refused(tmp_path):
    generations = prepared(tmp_path / "runs", [1, 2])
    old, new = (generations.root / f"{step:012d}" for step in (1, 2))
    shutil.copy(old / manifest.NAME, new / manifest.NAME)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(new)
    assert caught.value.code == "artifact-corrupt"


def resign(folder: Path, name: str, data: bytes, *, spec: object = None) -> None:
    """Replace a file and make the checksums agree, as no accident does."""
    index = Manifest.decode((folder / manifest.NAME).read_bytes(), place="here")
    tensors = index.files[name].tensors if spec is None else spec
    fresh = manifest.describe(data)
    index.files[name] = FileEntry(fresh.size, fresh.sha256, tensors)
    (folder / name).write_bytes(data)
    (folder / manifest.NAME).write_bytes(index.encode())


@pytest.mark.refusal
def test_nan_weights_are_noticed_even_with_right_checksums(clean):
    tensors = load((clean / "model.safetensors").read_bytes())
    tensors["weight"][3, 4] = float("nan")
    tensors["weight"][0, 0] = float("-inf")
    resign(clean, "model.safetensors", save(tensors))
    with pytest.raises(ArtifactError) as caught:
        read_artifact(clean)
    assert str(caught.value) == (
        f"every number in `model/weight` of {clean} must be finite; found 2 of 2048 that are not. "
        "Find what made them; if they are meant, allow them for `model`. [artifact-nonfinite]"
    )
    allowed = read_artifact(clean, allow_nonfinite={"model"})
    assert torch.equal(
        allowed.tensors["model"]["weight"].isfinite().logical_not().sum(), torch.tensor(2)
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda t: t.double(), "`weight` float64 (32, 64) instead of float32 (32, 64)"),
        (lambda t: t.reshape(64, 32), "`weight` float32 (64, 32) instead of float32 (32, 64)"),
        (lambda t: t[:31].clone(), "`weight` float32 (31, 64) instead of float32 (32, 64)"),
        (lambda t: t.half(), "`weight` float16 (32, 64) instead of float32 (32, 64)"),
    ],
)
def test_another_type_or_shape_is_noticed_by_the_manifest(change, found, clean):
    tensors = load((clean / "model.safetensors").read_bytes())
    tensors["weight"] = change(tensors["weight"])
    resign(clean, "model.safetensors", save(tensors))
    with pytest.raises(ArtifactError) as caught:
        read_artifact(clean)
    assert str(caught.value) == (
        f"`model.safetensors` of {clean} must hold the tensors that its manifest lists; "
        f"found {found}. Use another copy of the artifact. [artifact-tensors]"
    )


@pytest.mark.refusal
def test_what_agrees_with_itself_is_refused_by_a_receiver_that_it_does_not_fit(tmp_path):
    path = tmp_path / "agent"
    small = Contents(tensors={"model": {"weight": torch.zeros(2, 3)}})
    write_artifact(path, kind="agent", contents=small)
    artifact = read_artifact(path)
    with pytest.raises(ArtifactError) as caught:
        artifact.matching("model", {"weight": torch.zeros(3, 2)})
    assert str(caught.value) == (
        f"the tensors `model` of {path} must fit their receiver; found `weight` float32 (2, 3) "
        "instead of float32 (3, 2). Build the receiver with the configuration saved in the "
        "artifact. [artifact-mismatch]"
    )
    assert torch.equal(
        artifact.matching("model", {"weight": torch.ones(2, 3)})["weight"], torch.zeros(2, 3)
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"step": 7, "step": 8}', "it repeats the key 'step'"),
        (b'{"step": NaN}', "it holds the number NaN"),
        (b'{"step": -Infinity}', "it holds the number -Infinity"),
        (b'{"step": 1e999}', "it holds the number 1e999, which is not finite"),
        (b"[" * 65 + b"]" * 65, "it is nested more than 64 levels deep"),
    ],
)
def test_a_loose_document_is_refused_even_with_right_checksums(text, found, clean):
    resign(clean, "run.json", text)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(clean)
    assert str(caught.value) == (
        f"`run.json` of {clean} must be strict JSON; found {found}. "
        "Use another copy of the artifact. [artifact-document]"
    )


def test_a_repeated_key_in_the_manifest_is_refused(clean):
    path = clean / manifest.NAME
    text = path.read_text().replace(
        '"kind": "checkpoint"', '"kind": "agent",\n  "kind": "checkpoint"'
    )
    path.write_text(text)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(clean)
    assert caught.value.found == "it repeats the key 'kind'"


def test_the_same_manifest_in_another_spelling_is_refused(clean):
    path = clean / manifest.NAME
    path.write_bytes(documents.encode(documents.decode(path.read_bytes())))
    with pytest.raises(ArtifactError) as caught:
        read_artifact(clean)
    assert caught.value.found == "another spelling of it"


@pytest.mark.refusal
def test_a_newer_format_is_no_damage(tmp_path, monkeypatch):
    generations = prepared(tmp_path / "runs", [1])
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", 2)
        files = encode_artifact(kind="checkpoint", contents=contents(2))
    folder = generations.root / f"{2:012d}"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        generations.load_latest()
    assert str(caught.value) == (
        f"{folder} must have the format 1; found 2. "
        "Read it with the version of the package that wrote it. [artifact-version]"
    )
    assert generations.steps() == [1, 2]


@pytest.mark.parametrize(("mutate", "trials"), MUTATIONS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_damaged_generation_is_put_aside_and_the_older_one_used(mutate, trials, tmp_path):
    generations = prepared(tmp_path / "runs", [1, 2, 3], keep=3)
    mutate(generations.root / f"{3:012d}", random.Random(f"{mutate.__name__} 0"))
    latest = generations.load_latest()
    assert latest.step == 2
    assert_whole(latest.artifact, 2)
    aside = generations.root / "set_aside" / "000000000003.1"
    assert [skip.moved_to for skip in latest.skipped] == [aside]
    assert aside.is_dir()
    reason = documents.decode(aside.with_name("000000000003.1.reason.json").read_bytes())
    assert reason == {"generation": "000000000003", "reason": latest.skipped[0].reason}
    assert generations.steps() == [1, 2]
    generations.save(3, contents(3))
    assert_whole(generations.load_latest().artifact, 3)


@pytest.mark.refusal
def test_with_no_generation_left_the_refusal_names_what_was_tried(tmp_path):
    generations = prepared(tmp_path / "runs", [1, 2])
    for step in (1, 2):
        (generations.root / f"{step:012d}" / "run.json").unlink()
    with pytest.raises(ArtifactError) as caught:
        generations.load_latest()
    root = tmp_path / "runs"
    tried = "; ".join(
        f"{step:012d}: {root}/{step:012d} must hold the files of its manifest and no others; "
        "`run.json` must agree; found no such file. Use another copy of the artifact. "
        "[artifact-files]"
        for step in (2, 1)
    )
    assert str(caught.value) == (
        f"{root} must hold a whole `checkpoint`; found {tried}. "
        f"Start anew, or look into {root}/set_aside. [artifact-none-left]"
    )
    assert Generations(root).steps() == []
