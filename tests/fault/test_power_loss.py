"""Power fails after every event of a save: what was announced is there, what is seen is whole."""

import shutil
from pathlib import Path

import pytest

from fault.power_loss import Disk, RecordingOs, outcomes, settle
from fault.sample import assert_whole, contents, prepared
from stormsail.core.errors import ArtifactError
from stormsail.core.files import atomic
from stormsail.core.files.generations import Generations


class Scenario:
    """One save, recorded, on a disk that held some generations before."""

    def __init__(
        self, base: Path, monkeypatch, old: list[int], *, keep: int = 2, skip: int | None = None
    ):
        self.old = old
        self.new = max(old, default=0) + 100
        self.keep = keep
        base.mkdir(parents=True)
        root = base / "run" / "checkpoints"
        if old:
            prepared(root, old, keep=keep)
        self.disk = Disk(base)
        recorder = RecordingOs(skip_fsync=skip)
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", recorder)
            Generations(root, keep=keep).save(self.new, contents(self.new))
        self.events, self.fsyncs = recorder.events, recorder.fsyncs

    def check(self, scratch: Path) -> int:
        """Cut the power after every change; return how many outcomes were looked at."""
        count = 0
        for number, event in enumerate(self.events, start=1):
            self.disk.replay(event)
            if event[0] == "open":
                continue  # changes nothing
            for keep, content in outcomes(number):
                settle(self.disk.top, scratch, keep, content)
                self.check_outcome(scratch / "run" / "checkpoints", done=False)
                shutil.rmtree(scratch)
                count += 1
        for keep, content in outcomes(0):
            settle(self.disk.top, scratch, keep, content)
            self.check_outcome(scratch / "run" / "checkpoints", done=True)
            shutil.rmtree(scratch)
            count += 1
        return count

    def check_outcome(self, root: Path, *, done: bool) -> None:
        generations = Generations(root, keep=self.keep)
        steps = generations.steps()
        for step in steps:
            assert_whole(generations.load(step), step)
        newest = max(steps, default=0)
        assert newest in ({self.new} if done else {max(self.old, default=0), self.new})
        assert len(steps) >= min(self.keep, len(self.old) + done)
        pointer = root / "latest"
        if done or self.old or pointer.exists():
            assert int(pointer.read_text()) in ({self.new} if done else set(steps))
        if steps:
            assert generations.load_latest().step == newest


@pytest.mark.parametrize(
    ("old", "changes"),
    [([], 25), ([100], 23), ([100, 200], 30)],
    ids=["first", "second", "pruning"],
)
def test_power_failure_never_tears_and_never_loses_what_was_saved(
    old, changes, tmp_path, monkeypatch
):
    scenario = Scenario(tmp_path / "disk", monkeypatch, old)
    assert scenario.check(tmp_path / "scratch") == (changes + 1) * 11


# A first save makes its folders; with `keep=1`, the second prunes the first. Together they make
# every call to fsync that there is.
FSYNCS = [([], 2, number) for number in range(1, 11)] + [([100], 1, n) for n in range(1, 10)]


def test_the_list_names_every_fsync(tmp_path, monkeypatch):
    assert Scenario(tmp_path / "first", monkeypatch, [], keep=2).fsyncs == 10
    assert Scenario(tmp_path / "second", monkeypatch, [100], keep=1).fsyncs == 9


@pytest.mark.parametrize(("old", "keep", "skip"), FSYNCS)
def test_without_any_one_fsync_the_model_finds_a_loss(old, keep, skip, tmp_path, monkeypatch):
    scenario = Scenario(tmp_path / "disk", monkeypatch, old, keep=keep, skip=skip)
    with pytest.raises((AssertionError, ArtifactError, FileNotFoundError, ValueError)):
        scenario.check(tmp_path / "scratch")
