import os
import shutil
import stat

import numpy as np
import pytest
import torch

from stormsail.core.errors import ArtifactError, RangeError
from stormsail.core.files import atomic, documents
from stormsail.core.files import generations as generations_module
from stormsail.core.files.artifact import Contents
from stormsail.core.files.generations import Generations


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
    assert [skip.name for skip in latest.skipped] == ["000000000003", "000000000002"]
    aside = tmp_path / "c" / "set_aside"
    assert [skip.moved_to for skip in latest.skipped] == [
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
    assert moved == tmp_path / "c" / "set_aside" / "000000000002.2"


def test_rolling_back_frees_the_step(tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    moved = generations.set_aside(2, reason="three steps in a row were not finite")
    assert moved == tmp_path / "c" / "set_aside" / "000000000002.1"
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
        f"Start anew, or look into {tmp_path}/c/set_aside. [artifact-none-left]"
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
    assert [(skip.name, skip.reason, skip.moved_to) for skip in latest.skipped] == [
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
    assert (tmp_path / "c" / "set_aside" / "000000000003.1").is_symlink()


@pytest.mark.refusal
@pytest.mark.parametrize("step", [1, 2])
def test_steps_only_rise(step, tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    with pytest.raises(RangeError) as caught:
        generations.save(step, contents(9))
    assert str(caught.value) == (
        f"`step` must be above that of the newest generation in {tmp_path}/c; "
        f"found {step} after 2. Move what is in the way with `set_aside`; "
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
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["000000000001", "latest"]
    latest = generations.load_latest()
    assert (latest.step, latest.skipped) == (1, ())


def corrupting(monkeypatch, damage):
    """Let the disk damage what was written, just before it is read back."""
    real = generations_module.verify_artifact

    def verify(path):
        damage(path)
        return real(path)

    monkeypatch.setattr(generations_module, "verify_artifact", verify)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "model.safetensors").write_bytes(b"spoilt"),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "extra").mkdir(),
    ],
)
def test_what_does_not_read_back_right_is_gone_when_save_raises(damage, tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1])
    with monkeypatch.context() as patch:
        corrupting(patch, damage)
        with pytest.raises(ArtifactError):
            generations.save(2, contents(2))
    assert generations.steps() == [1]
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["000000000001", "latest"]
    assert (tmp_path / "c" / "latest").read_bytes() == b"000000000001\n"
    generations.save(2, contents(2))
    assert generations.load_latest().step == 2


def test_what_can_neither_be_read_back_nor_removed_is_reported_and_never_loaded(
    tmp_path, monkeypatch
):
    generations = saved(tmp_path / "c", [1])

    def refused(*_args):
        raise OSError(30, "Read-only file system")

    def damage(path):
        spoil(generations, 2)
        monkeypatch.setattr(atomic, "remove_tree", refused)

    with monkeypatch.context() as patch:
        corrupting(patch, damage)
        with pytest.raises(ArtifactError) as caught:
            generations.save(2, contents(2))
    assert caught.value.code == "artifact-corrupt"
    assert caught.value.__notes__ == [
        f"{tmp_path}/c/000000000002 could not be removed: Read-only file system."
    ]
    assert generations.load_latest().step == 1


def racing(generations: Generations, monkeypatch, *actions):
    """Run one action after each of the first listings, as another process would."""
    real, rest = Generations.steps, list(actions)

    def steps(self):
        listed = real(self)
        if rest:
            rest.pop(0)()
        return listed

    monkeypatch.setattr(Generations, "steps", steps)


def test_a_generation_pruned_before_it_is_read_gives_way_to_the_newer_one(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1], keep=1)
    actions = [lambda step=step: saved(tmp_path / "c", [step], keep=1) for step in (2, 3, 4)]
    racing(generations, monkeypatch, *actions)
    latest = generations.load_latest()
    assert (latest.step, latest.skipped) == (4, ())
    assert latest.artifact.tensors["model"]["w"].tolist() == [4.0] * 3
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["000000000004", "latest"]


def test_a_generation_pruned_while_it_is_read_is_not_called_damaged(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1], keep=1)
    real = atomic.read_file
    actions = [lambda: saved(tmp_path / "c", [2], keep=1)]

    def read_file(folder, name, *, limit):
        data = real(folder, name, limit=limit)
        if actions and name == "manifest.json":
            actions.pop()()
        return data

    monkeypatch.setattr(atomic, "read_file", read_file)
    latest = generations.load_latest()
    assert (latest.step, latest.skipped) == (2, ())
    assert not (tmp_path / "c" / "set_aside").exists()


def test_a_newer_generation_that_vanishes_is_reported(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1, 2])
    racing(generations, monkeypatch, lambda: shutil.rmtree(tmp_path / "c" / "000000000002"))
    latest = generations.load_latest()
    assert latest.step == 1
    assert [(skip.name, skip.moved_to) for skip in latest.skipped] == [("000000000002", None)]
    assert "nothing of that name" in latest.skipped[0].reason


def test_a_damaged_one_that_cannot_be_moved_is_reported_once(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1, 2, 3])
    spoil(generations, 3)

    def read_only(*_args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(atomic, "move", read_only)
    racing(generations, monkeypatch, lambda: shutil.rmtree(tmp_path / "c" / "000000000002"))
    latest = generations.load_latest()
    assert latest.step == 1
    assert [skip.name for skip in latest.skipped] == ["000000000003", "000000000002"]


@pytest.mark.refusal
def test_a_writer_that_always_overtakes_the_reader_is_named(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1], keep=1)
    actions = [lambda step=step: saved(tmp_path / "c", [step], keep=1) for step in range(2, 99)]
    racing(generations, monkeypatch, *actions)
    with pytest.raises(ArtifactError) as caught:
        generations.load_latest()
    assert str(caught.value) == (
        f"a generation in {tmp_path}/c must stay there until it is read; found 16 in a row that "
        "were removed before that. Save less often, or let `keep` be larger where they are saved. "
        "[artifact-missing]"
    )


@pytest.mark.refusal
def test_what_is_not_there_is_not_moved_aside(tmp_path):
    generations = saved(tmp_path / "c", [1, 2])
    with pytest.raises(ArtifactError) as caught:
        generations.set_aside(77, reason="x")
    assert str(caught.value) == (
        f"{tmp_path}/c must hold a generation of step 77 before it can be moved aside; "
        "found the steps [1, 2]. Pass one of those in `steps()`. [artifact-missing]"
    )
    assert not (tmp_path / "c" / "set_aside").exists()
    with pytest.raises(ArtifactError) as caught:
        Generations(tmp_path / "none").set_aside(77, reason="x")
    assert caught.value.found == "the steps []"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), OSError(30, "read-only")])
def test_a_reason_without_its_generation_is_taken_back(error, tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1, 2])

    def failing(*_args):
        raise error

    monkeypatch.setattr(atomic, "move", failing)
    with pytest.raises(ArtifactError) as caught:
        generations.set_aside(2, reason="x")
    gone = isinstance(error, FileNotFoundError)
    assert caught.value.code == ("artifact-missing" if gone else "artifact-write")
    assert list((tmp_path / "c" / "set_aside").iterdir()) == []


def test_a_generation_that_was_moved_keeps_its_reason_whatever_comes_after(tmp_path, monkeypatch):
    generations = saved(tmp_path / "c", [1, 2])
    real = atomic.move

    def late(*args):
        real(*args)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(atomic, "move", late)
    with pytest.raises(ArtifactError):
        generations.set_aside(2, reason="x")
    note = tmp_path / "c" / "set_aside" / "000000000002.1.reason.json"
    assert documents.decode(note.read_bytes()) == {"generation": "000000000002", "reason": "x"}
    assert note.with_name("000000000002.1").is_dir()


@pytest.mark.refusal
@pytest.mark.parametrize("step", [5.0, "5", None, True, float("nan")])
def test_a_step_that_is_no_whole_number_is_refused(step, tmp_path):
    generations = Generations(tmp_path / "c")
    for call in (
        lambda: generations.save(step, contents(1)),
        lambda: generations.load(step),
        lambda: generations.set_aside(step, reason="x"),
    ):
        with pytest.raises(RangeError) as caught:
            call()
        assert str(caught.value) == (
            f"`step` must be a whole number; found {step!r}. "
            "Pass the number of steps taken so far. [out-of-range]"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_whole_number_of_another_library_is_a_step(tmp_path):
    assert Generations(tmp_path / "c").save(np.int64(5), contents(5)).name == "000000000005"


@pytest.mark.refusal
@pytest.mark.parametrize("keep", [1.5, "3", True])
def test_keeping_a_part_is_refused(keep, tmp_path):
    with pytest.raises(RangeError) as caught:
        Generations(tmp_path, keep=keep)
    assert caught.value.wrong == "`keep` must be a whole number"
