"""A small artifact whose contents depend on the step only, and proof that it came back whole."""

import shutil
from pathlib import Path

import torch

from stormsail.core.files.artifact import Artifact, Contents
from stormsail.core.files.generations import Generations


def contents(step: int) -> Contents:
    weight = torch.arange(2048, dtype=torch.float32).reshape(32, 64) * 0.5 + step
    return Contents(
        tensors={"model": {"weight": weight, "steps": torch.tensor([step])}},
        documents={"run": {"step": step, "note": "état", "rates": [0.1, 2.5e-4]}},
        blobs={"config.toml": f"step = {step}\n".encode()},
        metadata={"config": f"hash-{step}", "shape": [32, 64]},
    )


def assert_whole(artifact: Artifact, step: int) -> None:
    expected = contents(step)
    assert set(artifact.tensors) == {"model"}
    assert set(artifact.tensors["model"]) == {"weight", "steps"}
    for name, tensor in expected.tensors["model"].items():
        assert artifact.tensors["model"][name].dtype == tensor.dtype
        assert torch.equal(artifact.tensors["model"][name], tensor)
    assert artifact.documents == expected.documents
    assert artifact.blobs == expected.blobs
    assert artifact.metadata == expected.metadata


def prepared(root: Path, steps: list[int], *, keep: int = 2) -> Generations:
    """A folder with some generations and what a killed writer left behind."""
    generations = Generations(root, keep=keep)
    for step in steps:
        generations.save(step, contents(step))
    leftover = root / ".tmp-1-0"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"torn")
    return generations


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target
