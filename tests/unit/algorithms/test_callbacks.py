"""Callbacks are told what a run does, change nothing of it, and can stop it without a trace."""

import dataclasses
import json

import pytest

from stormsail.algorithms import Callback, Checkpoint, Evaluated, Progress, Stop, train
from stormsail.cli.learning.train import finish
from stormsail.core.errors import ArgumentError
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.modules import Agent
from training_lab import UPDATES, image, run_all, small


class Diary(Callback):
    """Writes down all that it is told."""

    def __init__(self):
        self.told = []

    def on_update(self, progress):
        self.told.append(progress)

    def on_evaluation(self, evaluated):
        self.told.append(evaluated)

    def on_checkpoint(self, checkpoint):
        self.told.append(checkpoint)


class StopAt(Callback):
    """Stops at an update, asked by one of the three methods."""

    def __init__(self, method, update):
        self.method, self.update = method, update
        setattr(self, method, self.answer)

    def answer(self, told):
        return Stop("enough") if told.update >= self.update else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a run without callbacks."""
    out = tmp_path_factory.mktemp("callbacks") / "whole"
    run_all(small(), out)
    return out


def test_a_callback_is_told_in_order_and_changes_nothing(whole, tmp_path):
    diary = Diary()
    done = train(small(), out=tmp_path / "run", tensorboard=False, callbacks=[Callback(), diary])
    assert image(tmp_path / "run") == image(whole)
    # checkpoints every 2 updates, at the beginning and at the end; evaluations after 4 and 6
    assert [(type(one), one.update) for one in diary.told] == [
        (Checkpoint, 0),
        (Progress, 1),
        (Checkpoint, 2),
        (Progress, 2),
        (Progress, 3),
        (Evaluated, 4),
        (Checkpoint, 4),
        (Progress, 4),
        (Progress, 5),
        (Evaluated, 6),
        (Progress, 6),
        (Checkpoint, 6),
    ]
    assert all(one.steps == 32 * one.update for one in diary.told)
    progress = [one for one in diary.told if isinstance(one, Progress)]
    assert {one.total_steps for one in progress} == {UPDATES * 32}
    assert "train/approx_kl" in progress[0].metrics
    first, last = (one for one in diary.told if isinstance(one, Evaluated))
    assert first.is_best
    assert first.evaluation.score == progress[3].metrics["validation/score"]
    assert last.is_best == (last.evaluation.score > first.evaluation.score)
    assert done.best_score == max(first.evaluation.score, last.evaluation.score)
    assert Agent.load(first.best).spec == done.agent.spec
    written = [one.path for one in diary.told if isinstance(one, Checkpoint)]
    assert written[-1] == max((tmp_path / "run" / "checkpoints").glob("[0-9]*"))


def test_what_a_callback_is_told_cannot_be_changed(tmp_path):
    diary = Diary()
    config = small(ppo__total_steps=32)
    train(config, out=tmp_path / "run", tensorboard=False, callbacks=[diary])
    for one in diary.told:
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.update = 9
    told = next(one for one in diary.told if isinstance(one, Progress))
    with pytest.raises(TypeError):
        told.metrics["train/approx_kl"] = 0.0


@pytest.mark.parametrize(
    ("method", "asked", "ends"),
    [
        ("on_update", 3, 3),  # between two checkpoints
        ("on_evaluation", 4, 4),
        ("on_checkpoint", 0, 0),  # before the first update
        ("on_checkpoint", 1, 2),
    ],
)
def test_a_stopped_run_is_saved_and_goes_on_to_the_same_bytes(method, asked, ends, whole, tmp_path):
    out = tmp_path / "run"
    diary = Diary()
    stopped = train(small(), out=out, tensorboard=False, callbacks=[StopAt(method, asked), diary])
    assert (stopped.status, stopped.updates, stopped.signal) == ("paused", ends, None)
    assert stopped.reason == "StopAt stopped it: enough"
    assert max((out / "checkpoints").glob("[0-9]*")).name == f"{32 * ends:012d}"
    # those after it in the list are told of the same update, which is finished
    assert diary.told[-1].update == ends
    events = [json.loads(line) for line in (out / "process.jsonl").read_text().splitlines()]
    assert (events[-1]["kind"], events[-1]["reason"]) == ("paused", stopped.reason)
    ended = run_all(small(), out)
    assert (ended.status, ended.updates, ended.reason) == ("finished", UPDATES, "")
    assert image(out) == image(whole)


def test_a_stopped_run_is_one_trial_with_what_was_seen_of_it(tmp_path):
    config = small("market")
    stop = StopAt("on_evaluation", 4)
    stopped = train(config, out=tmp_path / "run", tensorboard=False, callbacks=[stop])
    lines = TrialLedger(tmp_path / "trials.jsonl").read()
    assert [line.status for line in lines.trials] == ["started", "stopped"]
    assert stopped.sharpe_per_bar is not None
    assert lines.trials[-1].sharpe_per_bar == stopped.sharpe_per_bar
    run_all(config, tmp_path / "run")
    lines = TrialLedger(tmp_path / "trials.jsonl").read()
    assert [line.status for line in lines.trials] == ["started", "stopped", "finished"]
    assert [line.status for line in lines.counted()] == ["finished"]


def test_a_stop_in_the_last_update_leaves_a_finished_run(whole, tmp_path):
    stop = StopAt("on_evaluation", UPDATES)
    done = train(small(), out=tmp_path / "run", tensorboard=False, callbacks=[stop])
    assert (done.status, done.reason) == ("finished", "")
    assert image(tmp_path / "run") == image(whole)


def test_the_command_line_says_that_a_callback_stopped_the_run(tmp_path, capsys):
    stop = StopAt("on_update", 1)
    finish(train(small(), out=tmp_path / "run", tensorboard=False, callbacks=[stop]))
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'run'}: paused after 32 steps\n"
    assert said.err == "stormsail: StopAt stopped it: enough; the same command goes on.\n"


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("callback", "found"),
    [(Diary, "the class Diary itself"), (print, "a value of the type builtin_function_or_method")],
)
def test_what_is_no_callback_is_refused_before_the_first_update(callback, found, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        train(small(), out=tmp_path / "run", tensorboard=False, callbacks=[callback])
    assert caught.value.code == "callback-form"
    assert caught.value.found == found
    assert not list(tmp_path.iterdir())


@pytest.mark.refusal
def test_another_answer_is_refused_and_keeps_the_checkpoint(whole, tmp_path):
    class Old(Callback):
        def on_update(self, progress):
            return progress.update < 3  # as other libraries have it

    with pytest.raises(ArgumentError) as caught:
        train(small(), out=tmp_path / "run", tensorboard=False, callbacks=[Old()])
    assert str(caught.value) == (
        "`Old.on_update` must return None, or `Stop` to stop the run; found True. "
        'Return `ss.Stop("why")`, or nothing. [callback-form]'
    )
    run_all(small(), tmp_path / "run")
    assert image(tmp_path / "run") == image(whole)
