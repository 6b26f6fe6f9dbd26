"""`stormsail validate` as a user meets it: from stored bars to a verdict, and again."""

import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import pyarrow.parquet as pq
import pytest

from stormsail.algorithms import learner_tests
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.trainer import Trainer
from stormsail.cli.judging.validate import _rules
from stormsail.cli.main import main
from stormsail.core.files.artifact import read_artifact
from stormsail.evaluation.saved import read_result
from stormsail.evaluation.stats.trials import TrialLedger
from training_lab import small

QUICK = ("--folds", 2, "--seeds", 2, "--judge", "burn_in=8")
BARE = ("--judge", "costs=false", "--judge", "stress=false")
RUNS = {f"fold-{fold}-seed-{seed}" for fold in (0, 1) for seed in (0, 1)}


def command(*arguments):
    """The command line in this process: exit status, what it says, what it complains of."""
    told, complaint, status = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(told), redirect_stderr(complaint):
        patch.setattr(sys, "argv", ["stormsail", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    return status, told.getvalue(), complaint.getvalue()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A store with 700 bars of two symbols and a configuration of a tiny training on them."""
    place = tmp_path_factory.mktemp("validate")
    arguments = ("synth", "regime", "--store", place / "data", "--symbols", 2, "--bars", 700)
    status, _, complaint = command(*arguments, "--interval", "1h", "--seed", 3)
    assert status == 0, complaint
    config = small(
        "market",
        task__data__store=str(place / "data"),
        task__market__levels=(-1.0, 0.0, 1.0),
        task__market__stops={},
    )
    (place / "tiny.toml").write_text(config.to_toml())
    return place


@pytest.fixture(scope="module")
def whole(shared):
    """A validation that nothing disturbed: its place, and what the command said."""
    return shared, command(*arguments_for(shared, shared, "judged", *BARE))


def arguments_for(shared, place, out="judged", *more):
    return (
        "validate",
        shared / "tiny.toml",
        "--out",
        place / out,
        "--workspace",
        place / "runs",
        *QUICK,
        *more,
    )


def test_a_validation_trains_every_fold_and_seed_judges_and_writes_everything(whole):
    place, (status, told, complaint) = whole
    found = read_result(place / "judged")
    document = found.document
    decision = document["verdict"]["decision"]
    assert status == (1 if decision == "reject" else 0), complaint
    assert told.startswith(f"verdict: {decision}\n{document['verdict']['words']}\n")
    assert told.endswith(f"wrote {place / 'judged'} and {place / 'judged-agent'}\n")
    agent = read_artifact(place / "judged-agent", kind="agent").documents["validation"]
    assert agent["verdict"] == document["verdict"]
    assert agent["words"].startswith("seed 0 of the training on fold 1, ")
    assert "final test span of 105 bars: closed; --open-test judges it, once" in told
    assert "5 of 5: judging" in complaint
    steps = complaint[complaint.index("5 of 5: judging") :].splitlines()
    assert [line for line in steps if line.startswith("judging: ")] == [
        "judging: baselines, costs, stress and self-tests",
        "judging: resampling",
        "judging: calibration",
        "judging: break-even",
        "judging: self-tests",
    ]
    assert "trading fold 1 seed 1" in complaint.splitlines()
    folder = place / "runs" / "tiny-validation"
    assert {path.name for path in folder.iterdir()} == RUNS
    assert (document["seeds"], len(document["folds"])) == ([0, 1], 2)
    assert document["settings"]["burn_in"] == 8
    training = TrainConfig.load(place / "tiny.toml")
    assert document["training"] == training.model_dump(mode="json")
    for run in document["runs"]:
        assert run["status"] == "finished", run["reason"]
        own = TrainConfig.load(folder / f"fold-{run['fold']}-seed-{run['seed']}" / "config.toml")
        first, end = document["folds"][run["fold"]]["train"]
        data = own.model_dump(mode="json")["task"]["data"]
        assert (data["start"], data["end"], own.seed) == (first, end, run["seed"])
        # an agent is judged after an embargo of 24 + 8 + 1 bars behind the last it has seen
        tested = np.datetime64(document["folds"][run["fold"]]["test"][0][:-1])
        assert (tested - np.datetime64(end[:-1])) / np.timedelta64(1, "h") >= 33
    equity = pq.read_table(place / "judged" / "equity.parquet")
    assert equity.column_names == ["ts", "total", "seed_0", "seed_1"]
    tests = {one["name"]: one["holds"] for one in document["self_tests"]}
    assert tests["oracle"] is True


def test_a_plan_trains_nothing_and_says_what_would_be_found(whole, tmp_path):
    shared, _ = whole
    given = ("validate", shared / "tiny.toml", "--plan", "--workspace", tmp_path / "runs", *QUICK)
    status, told, complaint = command(*given)
    assert status == 0, complaint
    assert "bars to trade" in told.splitlines()[0]
    assert "deflated Sharpe: at least " in told
    assert "cannot be decided: tail over 230 bars: " in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.refusal
def test_a_folder_is_needed_and_an_explanation_must_explain(whole, tmp_path):
    shared, _ = whole
    status, _, complaint = command("validate", shared / "tiny.toml", *QUICK)
    assert status == 2
    assert "`--out` must name a new folder for the results" in complaint
    arguments = arguments_for(shared, tmp_path, "judged", *BARE, "--explain", "ruin=bad luck")
    status, _, complaint = command(*arguments)
    assert status == 2
    assert "an explanation must be some text about one of clairvoyant, losing year" in complaint
    assert not (tmp_path / "runs").exists()


def test_every_training_and_the_validation_are_on_record(whole):
    place, _ = whole
    ledger = TrialLedger(place / "runs" / "trials.jsonl")
    trials = ledger.read().counted()
    assert sorted(one.name for one in trials) == sorted([*RUNS, "tiny-validation"])
    assert {one.status for one in trials} == {"finished"}
    document = read_result(place / "judged").document
    (validation,) = (one for one in trials if one.kind == "validation")
    assert validation.extra["verdict"] == document["verdict"]["decision"]
    assert len({one.data_hash for one in trials if one.kind == "training"}) == 1


def test_an_interrupted_validation_goes_on_and_ends_with_the_same_bytes(
    whole, tmp_path, monkeypatch
):
    shared, expected = whole
    arguments = arguments_for(shared, tmp_path, "judged", *BARE)
    real, seen = Trainer._update, []

    def signalled(trainer):
        seen.append(trainer.folder.path.name)
        if len(seen) == 9:  # in the second of four trainings, after three of its updates
            os.kill(os.getpid(), signal.SIGTERM)
        return real(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", signalled)
        ended, told, complaint = command(*arguments)
    assert (ended, told) == (143, "")
    assert complaint.endswith("stormsail: interrupted and saved; the same command goes on.\n")
    assert not (tmp_path / "judged").exists()
    assert seen == ["fold-0-seed-0"] * 6 + ["fold-0-seed-1"] * 3
    seen.clear()

    def noted(trainer):
        seen.append(trainer.folder.path.name)
        return real(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", noted)
        status, told, _ = command(*arguments)
    assert status == expected[0]
    assert told.replace(str(tmp_path), str(shared)) == expected[1]
    assert seen == ["fold-0-seed-1"] * 3 + ["fold-1-seed-0"] * 6 + ["fold-1-seed-1"] * 6
    for path in (shared / "judged").iterdir():
        assert path.read_bytes() == (tmp_path / "judged" / path.name).read_bytes(), path.name
    assert TrialLedger(tmp_path / "runs" / "trials.jsonl").count() == 5


def test_trainings_side_by_side_end_with_the_same_bytes(whole, tmp_path, monkeypatch):
    shared, expected = whole

    def trained_here(_trainer):
        raise AssertionError("a training in the driver")

    monkeypatch.setattr(Trainer, "_update", trained_here)
    arguments = arguments_for(shared, tmp_path, "judged", *BARE, "--jobs", 2)
    status, told, complaint = command(*arguments)
    assert (status, told.replace(str(tmp_path), str(shared))) == expected[:2], complaint
    for path in (shared / "judged").iterdir():
        assert path.read_bytes() == (tmp_path / "judged" / path.name).read_bytes(), path.name
    trials = TrialLedger(tmp_path / "runs" / "trials.jsonl").read().counted()
    assert sorted(one.name for one in trials) == sorted([*RUNS, "tiny-validation"])


def test_the_final_span_is_opened_once(shared, tmp_path):
    opened = (*BARE, "--open-test", "--folds", 1, "--seeds", 1)
    status, told, complaint = command(*arguments_for(shared, tmp_path, "judged", *opened))
    assert status in {0, 1}, complaint
    assert "final test span of 105 bars: opened, " in told
    test = read_result(tmp_path / "judged").document["test"]
    assert test["verdict"]["decision"] in {"promote", "not proven", "reject"}
    folder = tmp_path / "runs" / "tiny-validation"
    assert {path.name for path in folder.iterdir()} == {"fold-0-seed-0", "fold-1-seed-0"}
    again = command(*arguments_for(shared, tmp_path, "again", *opened))
    assert (again[0], again[1]) == (2, "")
    assert "the final test span of these bars must be opened once only" in again[2]
    assert not (tmp_path / "again").exists()


@pytest.mark.refusal
def test_a_place_that_is_taken_is_refused_before_anything_is_trained(shared, tmp_path):
    (tmp_path / "judged").mkdir()
    status, told, complaint = command(*arguments_for(shared, tmp_path))
    assert (status, told) == (2, "")
    assert complaint == (
        f"stormsail: {tmp_path / 'judged'} must not exist yet; found something of that name. "
        "Choose another path; an artifact is never overwritten. [artifact-exists]\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.refusal
def test_too_few_bars_are_refused_with_the_number_needed(shared, tmp_path):
    status, told, complaint = command(*arguments_for(shared, tmp_path, "judged", "--folds", 9))
    assert (status, told) == (2, "")
    assert "a validation with 9 folds must have at least " in complaint
    assert "found 700 bars from " in complaint
    assert not (tmp_path / "runs" / "tiny-validation").exists()


@pytest.mark.refusal
def test_a_task_without_bars_is_refused(tmp_path):
    (tmp_path / "pole.toml").write_text(small().to_toml())
    status, told, complaint = command(
        "validate", tmp_path / "pole.toml", "--out", tmp_path / "judged",
        "--workspace", tmp_path / "runs",
    )  # fmt: skip
    assert (status, told) == (2, "")
    assert complaint.startswith("stormsail: `task.name` must be `market`, which has bars to walk")


def test_a_backtest_on_sealed_bars_warns_is_recorded_and_later_verdicts_say_so(whole, tmp_path):
    place, _ = whole
    shutil.copytree(place / "runs", tmp_path / "runs")
    span = read_result(place / "judged").document["test_span"]
    ledger = TrialLedger(tmp_path / "runs" / "trials.jsonl")
    tried = ledger.count()
    run = tmp_path / "runs" / "tiny-validation" / "fold-1-seed-0"
    base = ("backtest", run, "--data", place / "data")
    # up to the seal nothing is said and nothing is written
    status, _, complaint = command(*base, "--to", span["start"], "--out", tmp_path / "before")
    assert (status, "WARNING" in complaint, ledger.count()) == (0, False, tried)
    # the last bar but one of one symbol is enough; an agent elsewhere needs the workspace's name
    agent = ("backtest", place / "judged-agent", "--data", place / "data", "--from", span["start"])
    symbol = ("--symbols", read_result(place / "judged").document["symbols"][1])
    status, _, complaint = command(
        *agent, *symbol, "--workspace", tmp_path / "runs", "--out", tmp_path / "one"
    )
    assert status == 0, complaint
    assert complaint.startswith(
        "WARNING: this backtest trades bars that are sealed as the final test span of "
        "`tiny-validation`: it is recorded as their opening number 1 and counts as a trial, and "
        "every later verdict says so"
    )
    status, _, complaint = command(*base, "--from", span["start"], "--out", tmp_path / "two")
    assert "opening number 2" in complaint
    looks = [(line.kind, line.name, line.status) for line in ledger.read().trials[-4:]]
    assert looks == [
        ("backtest", name, how)
        for name in ("judged-agent", "fold-1-seed-0")
        for how in ("started", "finished")
    ]
    assert ledger.count() == tried + 2
    # a refused one leaves nothing
    status, _, _ = command(*base, "--from", "2035-01-01", "--out", tmp_path / "none")
    assert (status, ledger.count()) == (2, tried + 2)
    later = (*arguments_for(place, tmp_path, "later", *BARE), "--name", "later")
    status, told, complaint = command(*later)
    assert status in {0, 1}, complaint
    opened = "the final test span was opened 2 times before, by backtest `judged-agent` at "
    assert opened in told.splitlines()[1]
    assert (
        opened
        in read_artifact(tmp_path / "later-agent").documents["validation"]["verdict"]["words"]
    )
    again = (*arguments_for(place, tmp_path, "again", *BARE), "--name", "later", "--open-test")
    status, _, complaint = command(*again)
    assert (status, "must be opened once only" in complaint) == (2, True)


def test_a_ledger_that_lost_its_lines_is_refused(whole, tmp_path):
    place, _ = whole
    shutil.copytree(place / "runs", tmp_path / "runs")
    for name in ("trials.jsonl", "trials.jsonl.head"):
        (tmp_path / "runs" / name).unlink()
    for more in ((), ("--plan",)):
        status, _, complaint = command(*arguments_for(place, tmp_path, "lost", *BARE, *more))
        assert status == 2
        assert "must hold line 2, with which the run in " in complaint
        assert "[trials-missing]" in complaint


def test_other_folds_need_another_name(whole, tmp_path):
    shared, _ = whole
    more = (*BARE, "--folds", 3, "--out", tmp_path / "more")
    status, told, complaint = command(*arguments_for(shared, shared, "more", *more))
    assert (status, told) == (2, "")
    assert "`task.data.end` must stay what the run in " in complaint
    assert "fold-1-seed-0 was begun with" in complaint


def test_options_of_the_command_line_become_settings():
    training = small("market")
    options = {"folds": 4, "seeds": [0, 1], "test_share": 0.2, "open_test": True}
    rules = _rules(training, options, ["burn_in=9", "rules.deflated_sharpe=0.9"])
    assert (rules.folds, rules.seeds, rules.test_share, rules.open_test) == (4, (0, 1), 0.2, True)
    assert (rules.burn_in, rules.rules.deflated_sharpe) == (9, 0.9)
    assert rules.backtest.market == training.task.market
    nothing = dict.fromkeys(options)
    assert _rules(training, nothing, []).folds == 5


def test_learner_tests_join_the_self_tests(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(learner_tests, "BARS", 900)
    more = (*BARE, "--folds", 1, "--seeds", 1, "--learner-tests")
    status, told, complaint = command(*arguments_for(shared, tmp_path, "judged", *more))
    document = read_result(tmp_path / "judged").document
    found = {one["name"]: one["holds"] for one in document["self_tests"]}
    # 192 steps are no training: the learner does not find what it is told, and that is said
    assert (found["learner, oracle"], found["learner, noise"]) == (False, True)
    assert (status, document["verdict"]["decision"]) == (1, "reject"), complaint
    assert "learner, oracle" in told
    folder = tmp_path / "runs" / "tiny-validation"
    names = [
        json.loads(line)["name"] for line in (folder / "trials.jsonl").read_text().splitlines()
    ]
    assert names == ["learner-oracle"] * 2 + ["learner-noise"] * 2
    ledger = TrialLedger(tmp_path / "runs" / "trials.jsonl")
    assert sorted(one.name for one in ledger.read().counted()) == [
        "fold-0-seed-0", "tiny-validation",
    ]  # fmt: skip
