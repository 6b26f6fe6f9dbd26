"""Marks of the trial ledger in the manifests of runs: a ledger that forgets is noticed."""

import json
import shutil

import pytest

from stormsail.core.errors import ArtifactError
from stormsail.evaluation.stats.trial_marks import check_marks, mark_of
from stormsail.evaluation.stats.trials import HEAD, TrialLedger


@pytest.fixture
def ledger(tmp_path):
    return TrialLedger(tmp_path / "runs" / "trials.jsonl")


def begin(ledger, name):
    """Write a line and the manifest of a run that begins with it."""
    line = ledger.record(
        "training", name, config_hash="", data_hash="", sharpe_per_bar=None, bars=0
    )
    run = ledger.path.parent / name
    run.mkdir(parents=True)
    document = {"kind": "run", "trials": mark_of(ledger, line.number, line.hash, run)}
    (run / "manifest.json").write_text(json.dumps(document))
    return document["trials"]


def test_a_whole_ledger_holds_every_mark(ledger):
    assert begin(ledger, "a")["ledger"] == "../trials.jsonl"
    mark = begin(ledger, "v/fold-0-seed-0")
    assert (mark["ledger"], mark["line"]) == ("../../trials.jsonl", 2)
    assert begin(ledger, "pop/members/00")["ledger"] == "../../../trials.jsonl"
    check_marks(ledger, ledger.read())


@pytest.mark.parametrize("name", ["a", "v/fold-0-seed-0", "search/trial-0000", "pop/members/00"])
def test_the_runs_of_every_verb_are_looked_at(ledger, name):
    begin(ledger, name)
    for file in (ledger.path.name, ledger.path.name + HEAD):
        (ledger.path.parent / file).unlink()
    with pytest.raises(ArtifactError, match=f"line 1, with which the run in .*{name} began"):
        check_marks(ledger, ledger.read())


def test_a_deleted_ledger_is_noticed(ledger):
    begin(ledger, "a")
    for name in (ledger.path.name, ledger.path.name + HEAD):
        (ledger.path.parent / name).unlink()
    with pytest.raises(ArtifactError) as refused:
        check_marks(ledger, ledger.read())
    assert str(refused.value) == (
        f"{ledger.path} must hold line 1, with which the run in {ledger.path.parent / 'a'} began; "
        "found 0 lines, without it. Restore the newest copy of the ledger and of its `.head`, or "
        "move the run to the workspace in which it was trained: the trials of either are not "
        "counted. [trials-missing]"
    )


def test_a_restored_ledger_is_noticed_and_so_is_one_that_was_written_anew(ledger, tmp_path):
    begin(ledger, "a")
    shutil.copytree(ledger.path.parent, tmp_path / "copy")
    begin(ledger, "v/fold-0-seed-0")
    for name in (ledger.path.name, ledger.path.name + HEAD):
        shutil.copy(tmp_path / "copy" / name, ledger.path.parent / name)
    with pytest.raises(ArtifactError, match=r"line 2, .*fold-0-seed-0 began; found 1 lines"):
        check_marks(ledger, ledger.read())
    ledger.record("training", "z", config_hash="", data_hash="", sharpe_per_bar=None, bars=0)
    with pytest.raises(ArtifactError, match=r"line 2, .*found 2 lines, without it"):
        check_marks(ledger, ledger.read())


def test_runs_of_other_ledgers_and_damaged_manifests_are_passed_over(ledger):
    begin(ledger, "a")
    begin(TrialLedger(ledger.path.parent / "v" / "trials.jsonl"), "learner-oracle")
    (ledger.path.parent / "b").mkdir()
    (ledger.path.parent / "b" / "manifest.json").write_text("{")
    (ledger.path.parent / "c").mkdir()
    (ledger.path.parent / "c" / "manifest.json").write_text('{"trials": 3}')
    check_marks(ledger, ledger.read())
