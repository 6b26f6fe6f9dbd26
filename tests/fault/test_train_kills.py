"""Training under kills, full disks and enemies: the run goes on, and ends with the same bytes."""

import errno
import os
import random
import re
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fault.faulty_os import FaultyOs, fail_at, kill_at
from fault.hostile import HOSTILE, restated
from fault.mutants import MUTATIONS
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Trainer
from stormsail.core.errors import ArtifactError, DataError
from stormsail.core.files import atomic, documents, manifest
from stormsail.core.files.artifact import read_artifact
from training_lab import image, run_all, run_for, small

CONFIG = small("cartpole-lstm", optimizer__optimizer_class="AdaptiveUPGD", vgs__enabled=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the run is if nobody disturbs it, and how long that takes."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_all(CONFIG, out)  # warms everything up that a forked child then has
    shutil.rmtree(out)
    start = time.monotonic()
    run_all(CONFIG, out)
    return image(out), time.monotonic() - start


def forked(work) -> int:
    """Do some work in a child; return its process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork and threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def ended(child: int, *, seconds: float = 120.0) -> int:
    """Wait for a child, but not for ever; return its wait status."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("a child did not end")


def killed_until_done(out: Path, chance: random.Random, longest: float, kills: int) -> int:
    """Train in children that are killed at random moments; the last one may finish."""
    count = 0
    while True:
        child = forked(lambda: run_all(CONFIG, out))
        if count < kills:
            time.sleep(chance.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
        status = ended(child)
        if status == 0:
            return count
        assert status == signal.SIGKILL
        count += 1


def kill_runs(expected, longest, tmp_path, kills, seed):
    """Kill until that many kills have hit a run that was not done; compare each run at its end."""
    chance, done, runs = random.Random(seed), 0, 0
    while done < kills:
        out = tmp_path / f"run{runs}"
        done += killed_until_done(out, chance, longest, kills - done)
        assert image(out) == expected
        shutil.rmtree(out)
        runs += 1
    return runs


def test_twenty_kills_at_random_moments_change_no_byte(whole, tmp_path):
    expected, seconds = whole
    assert kill_runs(expected, seconds, tmp_path, 20, seed=1) >= 1


@pytest.mark.campaign
def test_a_thousand_kills_at_random_moments_change_no_byte(whole, tmp_path):
    expected, seconds = whole
    runs = kill_runs(expected, seconds, tmp_path, 1_000, seed=2)
    # Read by scripts/campaign.py, which runs this with -s: one trial for each kill.
    sys.stdout.write(f"\n1000 kills in {runs} runs\n")
    assert runs >= 20


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run after its first update, so that the coming one ends with a checkpoint."""
    out = tmp_path_factory.mktemp("begun") / "run"
    run_for(CONFIG, out, 1)
    return out


@pytest.mark.parametrize("tear", [pytest.param(False, marks=pytest.mark.campaign), True])
def test_every_call_of_a_checkpoint_may_be_the_last(tear, begun, tmp_path):
    out, template = tmp_path / "run", tmp_path / "template"
    shutil.copytree(begun, out)
    bound = binding(CONFIG)
    with open_run(out, CONFIG, bound) as folder:
        trainer = Trainer(folder, bound)
        _without_saving(trainer)
        shutil.copytree(out, template)
        status, number, seen = -1, 0, []
        while status != 0:
            number += 1
            status = ended(forked(lambda n=number: _saved_under(trainer, n, tear)))
            assert status in {0, signal.SIGKILL}
            steps = sorted(int(path.name) for path in (out / "checkpoints").glob("[0-9]*"))
            assert steps in ([0, 32], [0, 32, 64])
            for step in steps:
                read_artifact(out / "checkpoints" / f"{step:012d}", kind="checkpoint")
            pq.read_table(out / "metrics.parquet")
            seen.append(steps[-1])
            _reset(out, template)
    assert number > 60
    assert seen == sorted(seen)  # the new generation appears at one call, and stays
    assert (seen[0], seen[-1]) == (32, 64)


def _saved_under(trainer: Trainer, number: int, tear: bool) -> None:
    atomic.os = FaultyOs(kill_at(number, tear=tear))
    trainer.save()


def _reset(out: Path, template: Path) -> None:
    """Put a run's folder back as it was, without touching the folder itself, which is held."""
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(template, out, dirs_exist_ok=True)


def _without_saving(trainer: Trainer) -> None:
    """Do an update as the trainer does, but leave the checkpoint to the caller."""
    real, trainer.save = trainer.save, lambda: None
    trainer.advance()
    trainer.save = real


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("place", [1, 25, 45])
def test_a_disk_that_refuses_is_loud_and_the_run_goes_on_later(
    code, place, begun, whole, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    shutil.copytree(begun, out)
    bound = binding(CONFIG)
    with open_run(out, CONFIG, bound) as folder:
        trainer = Trainer(folder, bound)
        _without_saving(trainer)
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", FaultyOs(fail_at(place, code, forever=True)))
            with pytest.raises(DataError) as caught:
                trainer.save()
    assert caught.value.code in {"artifact-write", "data-write"}
    assert run_all(CONFIG, out).status == "finished"
    assert image(out) == whole[0]


NAMES = {"agent.safetensors": "model.safetensors", "state.json": "run.json"}
"""Files of a checkpoint that take the place of those that the makers of hostile files know."""


def renamed(folder: Path, names: dict[str, str]) -> None:
    """Rename files of an artifact, in its manifest too where that can still be read."""
    for old, new in names.items():
        if os.path.lexists(folder / old):
            (folder / old).rename(folder / new)
    index = folder / manifest.NAME
    if index.is_symlink() or not index.is_file() or index.stat().st_size > 1 << 20:
        return
    try:
        body = documents.decode(index.read_bytes())
    except documents.DocumentError:
        return
    if isinstance(body["files"], dict):
        body["files"] = {names.get(name, name): entry for name, entry in body["files"].items()}
    restated(folder, body)


def hostile(make, folder: Path, canary: Path) -> None:
    renamed(folder, NAMES)
    make(folder, canary)
    renamed(folder, {new: old for old, new in NAMES.items()})


@pytest.mark.parametrize("part", range(4))
def test_two_hundred_damaged_or_hostile_checkpoints_are_passed_over(part, tmp_path):
    out, canary, kept = tmp_path / "run", tmp_path / "canary", tmp_path / "kept"
    run_for(CONFIG, out, 5)
    newest = max((out / "checkpoints").glob("[0-9]*"))
    shutil.copytree(newest, kept)
    metrics = (out / "metrics.parquet").read_bytes()
    chance = random.Random(part)
    # Two makers name a tensor that a checkpoint does not have.
    foreign = {"shape of text", "shape that is text"}
    makers = [maker for name, maker in HOSTILE.items() if name not in foreign]
    attacks = [lambda path, make=make: hostile(make, path, canary) for make in makers]
    attacks += [
        lambda path, mutate=mutate: mutate(path, chance)
        for mutate, _ in MUTATIONS
        for _ in range(12)
    ]
    assert len(attacks) >= 200
    bound = binding(CONFIG)
    with open_run(out, CONFIG, bound) as folder:
        trainer = Trainer(folder, bound)
        hostile(lambda _folder, _canary: None, newest, canary)
        trainer._load()
        assert trainer.ppo.update_count == 5  # renaming alone is no damage
        for place, attack in enumerate(attacks[part::4]):
            attack(newest)
            unchanged, there = _same_files(newest, kept), os.path.lexists(newest)
            trainer._load()
            assert trainer.ppo.update_count == (5 if unchanged else 4), place
            notes = sorted((out / "checkpoints" / "set_aside").glob("*.reason.json"))
            assert len(notes) == (there and not unchanged), place
            for note in notes:  # refused by an error of ours, with its code
                assert re.search(
                    r" \[artifact-[a-z-]+\]$", documents.decode(note.read_bytes())["reason"]
                )
            _put_back(out, newest, kept)
            # An earlier checkpoint cuts the metrics to its rows, which the newest one would miss.
            (out / "metrics.parquet").write_bytes(metrics)
    assert not canary.exists()
    assert not list(tmp_path.glob("**/canary*"))


def _same_files(first: Path, other: Path) -> bool:
    if first.is_symlink():
        return False
    names = {path.name for path in first.iterdir()}
    return names == {path.name for path in other.iterdir()} and all(
        not (first / name).is_symlink()
        and (first / name).is_file()
        and (first / name).stat().st_size == (other / name).stat().st_size
        and (first / name).read_bytes() == (other / name).read_bytes()
        for name in names
    )


def _put_back(out: Path, newest: Path, kept: Path) -> None:
    shutil.rmtree(out / "checkpoints" / "set_aside", ignore_errors=True)
    for path in (newest, newest.with_name("real")):
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    shutil.copytree(kept, newest)


def test_a_checkpoint_that_is_whole_but_no_run_wrote_is_passed_over(whole, tmp_path):
    out = tmp_path / "run"
    run_for(CONFIG, out, 5)
    bound = binding(CONFIG)
    with open_run(out, CONFIG, bound) as folder:
        trainer = Trainer(folder, bound)
        state = {**checkpoint.learner_state(trainer.ppo), **trainer.records.state()}
        state["optimizer"]["param_groups"][0]["eps"] = 1.0
        folder.save(6 * 32, checkpoint.pack(state, CONFIG, folder.identity))
    assert run_all(CONFIG, out).status == "finished"
    assert image(out) == whole[0]
    aside = list((out / "checkpoints" / "set_aside").glob("*.reason.json"))
    assert len(aside) == 1
    assert "the saved state of `optimizer` must be one of this run" in aside[0].read_text()


def test_with_no_generation_left_the_run_is_refused_and_stays_so(tmp_path):
    out = tmp_path / "run"
    run_for(CONFIG, out, 2)
    for path in (out / "checkpoints").glob("[0-9]*"):
        (path / "state.json").write_text("{}")
    for _ in range(2):  # a second try must not quietly begin anew
        with pytest.raises(ArtifactError) as caught:
            run_all(CONFIG, out)
        assert caught.value.code == "artifact-none-left"
