"""What a person meets of a run: alarms in every place, and what loggers are shown."""

import json
import logging

import pyarrow.parquet as pq
import pytest

from logger_lab import Recorder
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Trainer, train
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.monitors.alarms import ALARM_NAMES
from stormsail.monitors.loggers import Ending
from training_lab import UPDATES, image, run_for, small

STEPS = [32 * update for update in range(1, UPDATES + 1)]
LOUD = {"ppo__adv_std_floor": 100.0, "value_clip__clip_range_vf": 0.2}
"""The spread of advantages is below this floor in every update; only means are held."""


def table(out):
    return pq.read_table(out / "metrics.parquet").to_pydict()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.spec("S4-R1")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_alarm_is_a_scalar_of_every_update_a_line_of_the_log_and_an_event(tmp_path, caplog):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(small(**LOUD), out=tmp_path / "loud")
    events = EventAccumulator(str(tmp_path / "loud" / "tb"))
    events.Reload()
    columns = table(tmp_path / "loud")
    assert set(ALARM_NAMES) <= set(events.Tags()["scalars"])
    for name in ALARM_NAMES:
        shown = [(scalar.step, scalar.value) for scalar in events.Scalars(name)]
        assert shown == list(zip(STEPS, columns[name], strict=True))
        assert set(columns[name]) <= {0.0, 1.0}
    assert columns["warn/advantages_std_below_floor"] == [1.0] * UPDATES
    assert columns["warn/vf_clip_mean_only"] == [1.0] * UPDATES
    assert columns["alert/loss"] == [0.0] * UPDATES
    begun = [event for event in lines(tmp_path / "loud" / "events.jsonl") if "severity" in event]
    assert {event["kind"] for event in begun} == {"alarm"}
    names = [event["name"] for event in begun]
    assert names.count("warn/advantages_std_below_floor") == 1
    assert names.count("warn/vf_clip_mean_only") == 1
    records = [record for record in caplog.records if record.name == "stormsail"]
    assert {record.levelno for record in records} == {logging.WARNING}
    assert [record.message for record in records] == [
        f"ALERT: loud, update {event['update']}: {event['message']} [{event['name']}]"
        for event in begun
    ]


def test_a_logger_is_shown_every_row_and_changes_nothing(tmp_path):
    plain, logger = tmp_path / "plain", Recorder()
    train(small(), out=plain, tensorboard=False)
    done = train(small(), out=tmp_path / "logged", tensorboard=False, loggers=[logger])
    assert image(tmp_path / "logged") == image(plain)
    columns = table(plain)
    assert [step for step, _ in logger.rows] == STEPS
    for update, (_, row) in enumerate(logger.rows):
        wanted = {name: values[update] for name, values in columns.items()}
        assert row == {name: value for name, value in wanted.items() if value == value}
        assert set(ALARM_NAMES) <= set(row)
    assert logger.batches == [2, 2, 2]  # after each checkpoint, and at the end
    ((run, run_id),) = logger.started
    assert (run.name, run.path, run_id) == ("logged", tmp_path / "logged", None)
    assert run.parameters["ppo.n_envs"] == 4
    assert run.parameters["task.name"] == "CartPoleNoVel-v1"
    assert run.tags["config_hash"] == done.config.config_hash()
    raised = tuple(name for name in ALARM_NAMES if any(columns[name]))
    best = tmp_path / "logged" / "best"
    assert logger.endings == [Ending("finished", "", best, done.best_score, raised)]


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_run_that_is_continued_shows_every_step_once(tmp_path, updates):
    whole = Recorder()
    train(small(), out=tmp_path / "whole", tensorboard=False, loggers=[whole])
    first, second, config = Recorder(), Recorder(), small()
    bound = binding(config)
    with open_run(tmp_path / "run", config, bound) as folder:
        trainer = Trainer(folder, bound, loggers=[first])

        def watch(progress):
            if progress.update >= updates:
                trainer.stop(15)

        trainer._on_progress = watch
        trainer.run()
    train(config, out=tmp_path / "run", tensorboard=False, loggers=[second])
    assert [run_id for _, run_id in (*first.started, *second.started)] == [None, "recorder-1"]
    assert [ending.status for ending in (*first.endings, *second.endings)] == [
        "interrupted",
        "finished",
    ]
    assert first.rows + second.rows == whole.rows


def test_a_logger_that_is_added_to_a_finished_run_gets_its_history(tmp_path):
    logger = Recorder()
    run_for(small(), tmp_path / "run", 4)
    train(small(), out=tmp_path / "run", tensorboard=False, loggers=[logger])
    assert [step for step, _ in logger.rows] == STEPS
    assert logger.batches[0] == 4


def test_a_logger_that_fails_ends_no_training(tmp_path, caplog):
    broken = Recorder(failing=range(100))
    train(small(), out=tmp_path / "plain", tensorboard=False)
    done = train(small(), out=tmp_path / "run", tensorboard=False, loggers=[broken])
    assert done.status == "finished"
    assert image(tmp_path / "run") == image(tmp_path / "plain")
    failures = [
        line for line in lines(tmp_path / "run" / "process.jsonl") if "logger" in line["kind"]
    ]
    assert failures == [
        {
            "kind": "logger-failed",
            "logger": "recorder",
            "reason": "ConnectionError: call 0 failed",
            "update": 0,
        }
    ]
    said = [record.message for record in caplog.records if "logger" in record.message]
    assert [line[:38] for line in said] == ["ALERT: run: the logger `recorder` failed"[:38]] * 2


def test_an_error_of_the_training_is_shown_as_a_failure(tmp_path, monkeypatch):
    logger = Recorder()

    def broken(*_arguments):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Trainer, "advance", broken)
    with pytest.raises(ZeroDivisionError):
        train(small(), out=tmp_path / "run", tensorboard=False, loggers=[logger])
    assert logger.endings == [Ending("failed", "ZeroDivisionError: planted")]


def test_a_run_that_was_rolled_back_shows_the_rows_that_count(tmp_path, monkeypatch):
    """The fourth update fails once: the run goes back to the checkpoint after the second."""
    logger, real, failed = Recorder(), Trainer._update, []

    def update(trainer):
        if trainer.ppo.update_count == 3 and not failed:
            failed.append(True)
            raise Diverged("planted")
        return real(trainer)

    monkeypatch.setattr(Trainer, "_update", update)
    train(small(), out=tmp_path / "run", tensorboard=False, loggers=[logger])
    assert failed == [True]
    assert [step for step, _ in logger.rows] == STEPS
    columns = table(tmp_path / "run")
    assert [row["train/loss"] for _, row in logger.rows] == columns["train/loss"]
