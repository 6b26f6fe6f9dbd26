"""A run that is refused before its first update leaves nothing: no folder, no trial."""

import shutil

import pytest

from stormsail.algorithms import trainer
from stormsail.algorithms.run import records
from stormsail.algorithms.trainer import Trainer, train
from stormsail.core.errors import ArtifactError, ConfigError, DataError, StormsailError
from stormsail.evaluation.stats.trials import TrialLedger
from training_lab import image, run_all, run_for, small


def tree(folder):
    """Return every path below a folder with the bytes of the files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


BAD = {
    "an unknown task": {"task__name": "Cartpole"},
    "an unknown environment": {"task__name": "gym:NoSuchEnvironment-v7"},
    "missing data": {"task__name": "market", "task__data__store": "no/such/store"},
    "too few bars": {"task__name": "market", "task__data__world_bars": 4},
    "an unknown world": {"task__name": "market", "task__data__world": "atlantis"},
    "too few threads": {"threads": 2},
}


@pytest.mark.refusal
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_made_leaves_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    config = small(**BAD[name])
    with pytest.raises(StormsailError):
        train(config, out=tmp_path / "deep" / "run", tensorboard=False)
    assert tree(tmp_path) == {}
    # and the place is free for the right settings
    assert run_all(small(), tmp_path / "deep" / "run").status == "finished"
    assert TrialLedger(tmp_path / "deep" / "trials.jsonl").count() == 1


def broken(*_arguments, **_options):
    raise DataError("data-span", wrong="it must be there", found="nothing", remedy="Wait.")


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("place", "name"),
    [(Trainer, "_new_learner"), (Trainer, "save"), (records, "MetricsFile"),
     (trainer, "make_task"), (trainer, "ProcessLog")],
)  # fmt: skip
def test_a_refusal_anywhere_before_the_first_update_leaves_nothing(
    place, name, tmp_path, monkeypatch
):
    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(place, name, broken)
        for folder in ("run", "empty"):
            with pytest.raises(DataError):
                run_all(small(), tmp_path / folder)
    assert tree(tmp_path) == {"empty": None}  # which was there before


@pytest.mark.refusal
def test_a_refusal_of_an_existing_run_changes_nothing_of_it(tmp_path, monkeypatch):
    run_for(small(), tmp_path / "run", 3)
    before = tree(tmp_path)
    with pytest.raises(ConfigError):
        run_all(small(ppo__gamma=0.5), tmp_path / "run")
    assert tree(tmp_path) == before
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "make_task", broken)
        with pytest.raises(DataError):
            run_all(small(checkpoint__keep_last=1), tmp_path / "run")
    assert tree(tmp_path) == before
    assert run_all(small(), tmp_path / "run").status == "finished"


@pytest.mark.refusal
def test_a_ledger_that_cannot_be_written_is_found_before_the_first_update(tmp_path):
    (tmp_path / "trials.jsonl").mkdir()
    with pytest.raises(ArtifactError):
        run_all(small(), tmp_path / "run")
    assert tree(tmp_path) == {"trials.jsonl": None}


def test_the_line_of_a_trial_is_written_before_its_first_update(tmp_path, monkeypatch):
    """A kill in the first update leaves a trial that counts, and the run goes on."""
    run_all(small(), tmp_path / "whole" / "run")
    lines = []

    def killed(_trainer):
        lines.extend(TrialLedger(tmp_path / "trials.jsonl").read().trials)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", killed)
        with pytest.raises(KeyboardInterrupt):
            run_all(small(), tmp_path / "run")
    assert [(line.name, line.status) for line in lines] == [("run", "started")]
    run_all(small(), tmp_path / "run")
    assert image(tmp_path / "run") == image(tmp_path / "whole" / "run")
    assert TrialLedger(tmp_path / "trials.jsonl").count() == 1


@pytest.mark.parametrize("left", [("lineage.json",), ("lineage.json", "config.toml")])
def test_a_kill_before_the_manifest_leaves_what_the_same_command_continues(left, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    run_all(small(), whole)
    out.mkdir()
    for name in left:
        shutil.copy(whole / name, out / name)
    assert run_all(small(), out).status == "finished"
    assert image(out) == image(whole)


def test_a_kill_between_manifest_and_first_checkpoint_is_continued(tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    run_all(small(), whole)
    out.mkdir()
    for name in ("lineage.json", "config.toml", "manifest.json"):
        shutil.copy(whole / name, out / name)
    assert run_all(small(), out).status == "finished"
    assert image(out) == image(whole)
