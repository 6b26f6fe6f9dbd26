"""Every file-system call of a save fails once, and then for good: loud, and nothing is lost."""

import errno
import os

import pytest

from fault.faulty_os import ERRORS, FaultyOs, fail_at, never
from fault.sample import assert_whole, contents, copied, prepared
from stormsail.core.errors import ArtifactError
from stormsail.core.files import atomic
from stormsail.core.files.artifact import read_artifact, write_artifact
from stormsail.core.files.generations import Generations

OLD = [100, 200]
NEW = 300


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The calls of one undisturbed save, in order."""
    generations = prepared(tmp_path / "count", OLD)
    recorder = FaultyOs(never)
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", recorder)
        generations.save(NEW, contents(NEW))
    return recorder.calls


def test_a_save_makes_the_calls_that_the_faults_are_injected_into(calls):
    assert calls.count("fsync") == 9  # 4 files, folder, root, pointer, root, root before pruning
    assert calls.count("rename") == 3  # the generation, the pointer, the pruned generation
    assert calls.count("mkdir") == 1
    assert {"open", "write", "read", "close", "unlink", "rmdir", "stat", "listdir"} <= set(calls)


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_no_failing_call_is_silent_or_costs_an_old_generation(
    code, forever, calls, tmp_path, monkeypatch
):
    template = prepared(tmp_path / "template", OLD).root
    for number in range(1, len(calls) + 1):
        root = copied(template, tmp_path / f"n{number}")
        generations = Generations(root, keep=2)
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", FaultyOs(fail_at(number, code, forever=forever)))
            with pytest.raises(ArtifactError) as caught:
                generations.save(NEW, contents(NEW))

        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == code
        latest = generations.load_latest()
        assert latest.step in {200, NEW}
        assert latest.skipped == ()
        assert_whole(latest.artifact, latest.step)
        assert_whole(generations.load(200), 200)
        again = latest.step + 100
        generations.save(again, contents(again))
        assert_whole(generations.load_latest().artifact, again)
        assert not [path for path in root.iterdir() if path.name.startswith(".tmp-")]


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_a_failed_single_artifact_leaves_nothing_behind(code, tmp_path, monkeypatch):
    recorder = FaultyOs(never)
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", recorder)
        write_artifact(tmp_path / "whole", kind="agent", contents=contents(1))
    for number in range(1, len(recorder.calls)):  # the last call closes the parent folder
        folder = tmp_path / f"n{number}"
        folder.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", FaultyOs(fail_at(number, code, forever=False)))
            with pytest.raises(ArtifactError):
                write_artifact(folder / "agent", kind="agent", contents=contents(1))
        assert list(folder.iterdir()) == []
        write_artifact(folder / "agent", kind="agent", contents=contents(1))
        assert_whole(read_artifact(folder / "agent"), 1)


@pytest.mark.refusal
def test_a_full_disk_says_so(tmp_path, monkeypatch):
    generations = prepared(tmp_path / "full", OLD)

    def full(name, _number, _args):
        if name == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "os", FaultyOs(full))
    with pytest.raises(ArtifactError) as caught:
        generations.save(NEW, contents(NEW))
    assert str(caught.value) == (
        f"{tmp_path}/full/000000000300 must be written completely before it counts as saved; "
        "found No space left on device. Free space or permissions and save again; "
        "what was saved before is untouched. [artifact-write]"
    )


def test_short_writes_are_completed(tmp_path, monkeypatch):
    class Stingy(FaultyOs):
        def __getattr__(self, name):
            real = super().__getattr__(name)
            return (lambda fd, data: real(fd, data[:7])) if name == "write" else real

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", Stingy(never))
        write_artifact(tmp_path / "agent", kind="agent", contents=contents(3))
    assert_whole(read_artifact(tmp_path / "agent"), 3)


def test_a_disk_that_cannot_read_a_generation_costs_that_generation_only(tmp_path, monkeypatch):
    generations = prepared(tmp_path / "eio", OLD)
    bad = (generations.root / "000000000200" / "model.safetensors").stat().st_ino

    def unreadable(name, _number, args):
        if name == "read" and os.fstat(args[0]).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(atomic, "os", FaultyOs(unreadable))
    latest = generations.load_latest()
    assert latest.step == 100
    assert [skip.name for skip in latest.skipped] == ["000000000200"]
    assert "bytes that the disk cannot read" in latest.skipped[0].reason


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_an_obstacle_stops_the_load_instead_of_undoing_work(code, tmp_path, monkeypatch):
    generations = prepared(tmp_path / "obstacle", OLD)

    def obstacle(name, _number, args):
        if name == "open" and args[0] == "model.safetensors":
            raise OSError(code, "obstacle")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", FaultyOs(obstacle))
        with pytest.raises(ArtifactError) as caught:
            generations.load_latest()
    assert caught.value.code == "artifact-unreadable"
    assert generations.steps() == OLD
