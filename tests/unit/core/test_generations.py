import os
import stat

import pytest
import torch

from stormsail.core import atomic
from stormsail.core.artifact import Contents
from stormsail.core.errors import ArtifactError, RangeError
from stormsail.core.generations import Generations


def contents(step: int) -> Contents:
    return Contents(tensors={"model": {"w": torch.full((3,), float(step))}})


def saved(root, steps, *, keep=3) -> Generations:
    generations = Generations(root, keep=keep)
    for step in steps:
        generations.save(step, contents(step))
    return generations


def spoil(generations: Generations, step: int) -> None:
    (generations.root / f"{step:012d}" / "model.safetensors").write_bytes(b"spoilt")


def test_the_newest_is_loaded(tmp_path):
    generations = saved(tmp_path / "c", [5, 10])
    latest = generations.load_latest()
    assert latest.step == 10
    assert latest.skipped == ()
    assert latest.artifact.path == tmp_path / "c" / "000000000010"
    assert latest.artifact.tensors["model"]["w"].tolist() == [10.0, 10.0, 10.0]
    assert generations.load(5).tensors["model"]["w"].tolist() == [5.0, 5.0, 5.0]
    assert (tmp_path / "c" / "latest").read_bytes() == b"000000000010\n"


def test_the_newest_are_kept_and_the_rest_pruned(tmp_path):
    generations = saved(tmp_path / "c", [0, 1, 2, 3, 4], keep=3)
    assert generations.steps() == [2, 3, 4]
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "000000000002",
        "000000000003",
        "000000000004",
        "latest",
    ]
    assert saved(tmp_path / "one", [1, 2], keep=1).steps() == [2]


def test_a_damaged_generation_is_put_aside_with_its_reason(tmp_path):
    generations = saved(tmp_path / "c", [1, 2, 3])
    spoil(generations, 3)
    spoil(generations, 2)
    latest = generations.load_latest()
    assert latest.step == 1
    assert [one.name for one in latest.skipped] == ["000000000003", "000000000002"]
    aside = tmp_path / "c" / "quarantine"
    assert [one.moved_to for one in latest.skipped] == [
        aside / "000000000003.1",
        aside / "000000000002.1",
    ]
    assert latest.skipped[0].reason == (
        f"`model.safetensors` of {tmp_path}/c/000000000003 must have 76 bytes; found 6. "
        "Use another copy of the artifact. [artifact-corrupt]"
    )
    assert sorted(p.name for p in aside.iterdir()) == [
        "000000000002.1",
        "000000000002.1.reason.json",
        "000000000003.1",
        "000000000003.1.reason.json",
    ]
    assert generations.load_latest().skipped == ()


def test_the_same_step_may_be_put_aside_again(tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    spoil(generations, 2)
    generations.load_latest()
    generations.save(2, contents(2))
    spoil(generations, 2)
    moved = generations.load_latest().skipped[0].moved_to
    assert moved == tmp_path / "c" / "quarantine" / "000000000002.2"


def test_rolling_back_frees_the_step(tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    moved = generations.quarantine(2, reason="three steps in a row were not finite")
    assert moved == tmp_path / "c" / "quarantine" / "000000000002.1"
    reason = moved.with_name("000000000002.1.reason.json").read_text()
    assert reason == (
        '{\n  "generation": "000000000002",\n'
        '  "reason": "three steps in a row were not finite"\n}\n'
    )
    assert generations.load_latest().step == 1
    assert generations.load_latest().skipped == ()
    assert generations.save(2, contents(2)).name == "000000000002"


@pytest.mark.refusal
def test_an_empty_folder_says_so(tmp_path):
    generations = Generations(tmp_path / "c")
    assert generations.steps() == []
    with pytest.raises(ArtifactError) as caught:
        generations.load_latest()
    assert str(caught.value) == (
        f"{tmp_path}/c must hold a whole `checkpoint`; found none at all. "
        f"Start anew, or look into {tmp_path}/c/quarantine. [artifact-none-left]"
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "text", [None, b"", b"000000000001\n", b"../../etc\n", b"\xff", b"x" * 100, b"999"]
)
def test_the_pointer_decides_nothing(text, tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    pointer = tmp_path / "c" / "latest"
    pointer.unlink()
    if text is not None:
        pointer.write_bytes(text)
    latest = generations.load_latest()
    assert (latest.step, latest.skipped) == (2, ())


def test_a_generation_that_the_pointer_names_and_that_is_gone_is_reported(tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    (tmp_path / "c" / "000000000002").rename(tmp_path / "elsewhere")
    latest = generations.load_latest()
    assert latest.step == 1
    assert [(one.name, one.reason, one.moved_to) for one in latest.skipped] == [
        ("000000000002", "`latest` names it, but it is not there.", None)
    ]


def test_a_pointer_that_is_a_link_is_not_followed(tmp_path):
    generations = saved(tmp_path / "c", [1])
    secret = tmp_path / "secret"
    secret.write_text("000000000009\n")
    (tmp_path / "c" / "latest").unlink()
    (tmp_path / "c" / "latest").symlink_to(secret)
    assert generations.load_latest().skipped == ()
    generations.save(2, contents(2))
    assert secret.read_text() == "000000000009\n"
    assert not (tmp_path / "c" / "latest").is_symlink()


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    generations = saved(tmp_path / "c", [1])
    leftover = tmp_path / "c" / ".tmp-77-0"
    (leftover / "deep").mkdir(parents=True)
    (leftover / "deep" / "file").write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (leftover / "link").symlink_to(outside)
    (tmp_path / "c" / ".tmp-77-1").write_text("pointer")
    assert generations.load_latest().step == 1
    generations.save(2, contents(2))
    names = sorted(p.name for p in (tmp_path / "c").iterdir())
    assert names == ["000000000001", "000000000002", "latest"]
    assert (outside / "precious").read_text() == "x"


def test_a_leftover_of_the_same_name_is_passed_by(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_COUNTER", iter([5, 6, 7]))
    taken = tmp_path / f".tmp-{os.getpid()}-5"
    taken.mkdir()
    with atomic.open_folder(tmp_path) as parent:
        atomic.write_folder(parent, "new", {"a.txt": b"x"})
    assert sorted(p.name for p in tmp_path.iterdir()) == [taken.name, "new"]


def test_other_entries_are_left_alone(tmp_path):
    generations = saved(tmp_path / "c", [1])
    (tmp_path / "c" / "notes.txt").write_text("mine")
    (tmp_path / "c" / "12").mkdir()
    generations.save(2, contents(2))
    assert generations.steps() == [1, 2]
    assert (tmp_path / "c" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "c" / "12").is_dir()


def test_the_folder_may_lie_behind_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "disk")
    assert saved(tmp_path / "c", [1]).load_latest().step == 1
    assert (tmp_path / "disk" / "000000000001").is_dir()


def test_a_generation_that_is_a_link_is_put_aside(tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    (tmp_path / "c" / "000000000003").symlink_to(tmp_path / "c" / "000000000002")
    latest = generations.load_latest()
    assert latest.step == 2
    assert (tmp_path / "c" / "quarantine" / "000000000003.1").is_symlink()


@pytest.mark.refusal
@pytest.mark.parametrize("step", [1, 2])
def test_steps_only_rise(step, tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    with pytest.raises(RangeError) as caught:
        generations.save(step, contents(9))
    assert str(caught.value) == (
        f"`step` must be above that of the newest generation in {tmp_path}/c; "
        f"found {step} after 2. Move what must go aside with `quarantine`; "
        "nothing is overwritten. [out-of-range]"
    )
    assert generations.load_latest().artifact.tensors["model"]["w"].tolist() == [2.0] * 3


@pytest.mark.refusal
@pytest.mark.parametrize("step", [-1, 10**12])
def test_a_step_outside_its_range_is_refused(step, tmp_path):
    with pytest.raises(RangeError) as caught:
        Generations(tmp_path).save(step, contents(1))
    assert str(caught.value) == (
        f"`step` must be at least 0 and at most 999999999999; found {step}. "
        "Pass the number of steps taken so far. [out-of-range]"
    )


@pytest.mark.refusal
def test_keeping_nothing_is_refused(tmp_path):
    with pytest.raises(RangeError) as caught:
        Generations(tmp_path, keep=0)
    assert str(caught.value) == (
        "`keep` must be at least 1; found 0. Keep 3, so that two damaged generations cost "
        "no more than their steps. [out-of-range]"
    )


@pytest.mark.refusal
def test_two_writers_at_once_are_refused(tmp_path):
    generations = saved(tmp_path / "c", [1])
    with (
        atomic.locked_folder(tmp_path / "c"),
        pytest.raises(ArtifactError) as caught,
    ):
        generations.save(2, contents(2))
    assert str(caught.value) == (
        f"one process at a time must save to {tmp_path}/c; "
        "found another one that is saving now. Stop the other run, or give this one a name of "
        "its own. [artifact-write]"
    )
    assert generations.save(2, contents(2)).name == "000000000002"


def test_a_nan_never_reaches_the_disk(tmp_path):
    generations = saved(tmp_path / "c", [1])
    bad = Contents(tensors={"model": {"w": torch.tensor([float("nan")])}})
    with pytest.raises(ArtifactError) as caught:
        generations.save(2, bad)
    assert caught.value.code == "artifact-nonfinite"
    assert generations.steps() == [1]
    meant = Contents(tensors=bad.tensors, allow_nonfinite={"model"})
    generations.save(2, meant)
    assert generations.load_latest(allow_nonfinite={"model"}).step == 2
    assert generations.load_latest().step == 1  # unannounced, it counts as damage


def test_another_kind_stops_the_load(tmp_path):
    saved(tmp_path / "c", [1])
    with pytest.raises(ArtifactError) as caught:
        Generations(tmp_path / "c", kind="agent").load_latest()
    assert caught.value.code == "artifact-kind"
    assert Generations(tmp_path / "c").steps() == [1]


def test_what_cannot_be_moved_is_passed_over_and_reported(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1, 2])
    spoil(generations, 2)

    def read_only(*_args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(atomic, "move", read_only)
    latest = generations.load_latest()
    assert latest.step == 1
    assert latest.skipped[0].moved_to is None
    assert latest.skipped[0].reason.endswith(
        "[artifact-corrupt] It could not be moved: Read-only file system."
    )


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path):
    (tmp_path / "c").write_text("a file")
    with pytest.raises(ArtifactError) as caught:
        Generations(tmp_path / "c").steps()
    assert caught.value.code == "artifact-files"


def test_saving_again_after_an_interrupt_works(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1])
    real = os.fsync

    def interrupt(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise KeyboardInterrupt
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            generations.save(2, contents(2))
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["000000000001", "latest"]
    generations.save(2, contents(2))
    assert generations.load_latest().step == 2


def test_a_save_that_does_not_read_back_is_loud(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1])
    real = os.write

    def lying(descriptor, data):
        real(descriptor, bytes(len(data)))
        return len(data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lying)
        with pytest.raises(ArtifactError) as caught:
            generations.save(2, contents(2))
    assert caught.value.code == "artifact-manifest"
    assert generations.load_latest().step == 1
