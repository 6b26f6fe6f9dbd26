"""What a logger is shown: every saved row once, whatever dies or fails in between."""

import json
import math
import sys

import pytest

from logger_lab import Recorder
from stormsail.core.errors import ChoiceError, ConfigError
from stormsail.monitors import logger_names
from stormsail.monitors.loggers import (
    STEP,
    Ending,
    LoggedRun,
    Loggers,
    flattened,
    raised_alarms,
)
from stormsail.monitors.sinks import MetricsFile


def run_in(path):
    return LoggedRun("demo", path, {"ppo.gamma": 0.99}, {"seed": "1"})


def group(path, *loggers, failures=None):
    failures = [] if failures is None else failures
    return Loggers(
        loggers, run_in(path), on_failure=lambda name, problem: failures.append((name, problem))
    )


def file_with(path, rows, file=None):
    file = file or MetricsFile(path / "metrics.parquet")
    for update in range(len(file), rows):
        file.append(
            {STEP: 32.0 * (update + 1), "train/loss": update / 4, "rollout/win_rate": math.nan}
        )
    return file


def row(update):
    return 32 * (update + 1), {STEP: 32.0 * (update + 1), "train/loss": update / 4}


def saved(path):
    return json.loads((path / "loggers.json").read_text())


def alerts(caplog):
    return [record.message for record in caplog.records]


def test_every_row_is_sent_once_without_what_is_unknown(tmp_path):
    logger, file = Recorder(), file_with(tmp_path, 0)
    loggers = group(tmp_path, logger)
    loggers.send(file)
    assert logger.started == [(run_in(tmp_path), None)]
    assert saved(tmp_path) == {"recorder": {"id": "recorder-1", "rows": 0}}
    for count in (2, 2, 5):
        loggers.send(file_with(tmp_path, count, file))
    assert logger.rows == [row(update) for update in range(5)]
    assert logger.batches == [2, 3]
    assert len(logger.started) == 1
    assert saved(tmp_path) == {"recorder": {"id": "recorder-1", "rows": 5}}


def test_many_rows_are_sent_in_calls_of_at_most_64(tmp_path):
    logger = Recorder()
    group(tmp_path, logger).send(file_with(tmp_path, 150))
    assert logger.batches == [64, 64, 22]
    assert logger.rows == [row(update) for update in range(150)]


def test_another_process_continues_the_same_run_where_it_was(tmp_path):
    first, second, late = Recorder(), Recorder(), Recorder("late")
    file = file_with(tmp_path, 3)
    group(tmp_path, first).send(file)
    group(tmp_path, second, late).send(file_with(tmp_path, 5, file))
    assert second.started == [(run_in(tmp_path), "recorder-1")]
    assert second.rows == [row(3), row(4)]
    # a logger that was added later gets the whole history
    assert late.started == [(run_in(tmp_path), None)]
    assert late.rows == [row(update) for update in range(5)]


def test_a_run_that_went_back_sends_what_it_does_again(tmp_path):
    logger, file = Recorder(), file_with(tmp_path, 4)
    loggers = group(tmp_path, logger)
    loggers.send(file)
    loggers.rewind(2)
    loggers.rewind(3)  # further on than that is known to be lost
    loggers.send(file)
    assert [step for step, _ in logger.rows] == [32, 64, 96, 128, 96, 128]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_warned_of_once_and_made_up_for(tmp_path, caplog, failing):
    logger, other, failures = Recorder(failing=[failing]), Recorder("other"), []
    loggers = group(tmp_path, logger, other, failures=failures)
    file = file_with(tmp_path, 2)
    loggers.send(file)
    assert logger.rows == []
    assert other.rows == [row(0), row(1)]
    assert failures == [("recorder", f"ConnectionError: call {failing} failed")]
    assert alerts(caplog) == [
        "ALERT: demo: the logger `recorder` failed, and the training goes on without it; what it "
        f"misses is sent with the next checkpoint (ConnectionError: call {failing} failed)"
    ]
    loggers.send(file_with(tmp_path, 3, file))
    assert logger.rows == [row(0), row(1), row(2)]
    assert len(logger.started) == 1
    assert len(alerts(caplog)) == len(failures) == 1


def test_a_logger_that_keeps_failing_is_left_alone(tmp_path, caplog):
    logger, failures = Recorder(failing=range(100)), []
    loggers = group(tmp_path, logger, failures=failures)
    file = file_with(tmp_path, 0)
    for count in range(1, 7):
        loggers.send(file_with(tmp_path, count, file))
    assert logger.calls == 3
    assert len(failures) == 1
    assert alerts(caplog)[1:] == [
        "ALERT: demo: the logger `recorder` failed 3 times in a row and is left alone; resume the "
        "run with it to send what it missed (ConnectionError: call 2 failed)"
    ]
    loggers.finish(file, Ending("finished"))
    assert logger.calls == 3  # it was never begun


def test_failures_in_a_row_are_counted_and_not_all_of_them(tmp_path):
    logger = Recorder(failing=[1, 3, 5, 7, 9])
    loggers, file = group(tmp_path, logger), file_with(tmp_path, 0)
    for count in range(1, 11):
        loggers.send(file_with(tmp_path, count, file))
    assert logger.rows == [row(update) for update in range(10)]


def test_an_end_sends_the_rest_and_its_status(tmp_path):
    logger = Recorder()
    loggers = group(tmp_path, logger)
    ending = Ending("stopped", "it diverged", tmp_path / "best", 0.25, ("alert/loss",))
    loggers.finish(file_with(tmp_path, 1), ending)
    assert logger.rows == [row(0)]
    assert logger.endings == [ending]


def test_an_error_of_the_run_is_its_end(tmp_path):
    logger = Recorder()
    loggers = group(tmp_path, logger)
    loggers.send(file_with(tmp_path, 1))
    with pytest.raises(ZeroDivisionError), loggers.closing():
        raise ZeroDivisionError("by zero")
    assert logger.endings == [Ending("failed", "ZeroDivisionError: by zero")]


def test_an_error_at_the_end_is_only_warned_of(tmp_path, caplog):
    logger = Recorder(failing=[2])
    group(tmp_path, logger).finish(file_with(tmp_path, 1), Ending("finished"))
    assert len(alerts(caplog)) == 1
    assert logger.endings == []


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"recorder": 3}', b'{"recorder": {"id": "x"}}', b"\xff"]
)
def test_a_damaged_file_of_ids_begins_new_runs_and_says_so(tmp_path, caplog, content):
    (tmp_path / "loggers.json").write_bytes(content)
    logger = Recorder()
    group(tmp_path, logger).send(file_with(tmp_path, 1))
    assert logger.started == [(run_in(tmp_path), None)]
    assert alerts(caplog)[0].startswith(
        "ALERT: demo: `loggers.json` is damaged, so loggers begin new runs ("
    )
    assert saved(tmp_path) == {"recorder": {"id": "recorder-1", "rows": 1}}


def test_without_loggers_nothing_is_read_or_written(tmp_path):
    (tmp_path / "loggers.json").write_bytes(b"{")
    group(tmp_path).send(file_with(tmp_path, 1))
    assert (tmp_path / "loggers.json").read_bytes() == b"{"


@pytest.mark.refusal
def test_two_loggers_of_a_name_are_refused(tmp_path):
    with pytest.raises(ChoiceError) as refusal:
        group(tmp_path, Recorder(), Recorder())
    assert str(refusal.value) == (
        "each logger of a run must have a name of its own; found `recorder`, `recorder`. "
        "Pass each of them once. [unknown-choice]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("name", logger_names.NAMES)
def test_a_missing_package_is_refused_with_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ConfigError) as refusal:
        logger_names.make_logger(name)
    assert str(refusal.value) == (
        f"the logger `{name}` needs the package {name}; found no such package in this environment. "
        f"Run `pip install 'stormsail[{name}]'`, or leave the logger out. [missing-extra]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("name", "remedy"),
    [("mlfow", "Did you mean `mlflow`?"), ("none", "Leave it out, or choose one of them.")],
)
def test_an_unknown_logger_is_refused(name, remedy):
    with pytest.raises(ChoiceError) as refusal:
        logger_names.make_logger(name)
    assert str(refusal.value) == (
        f"a logger must be `mlflow` or `wandb`; found `{name}`. {remedy} [unknown-choice]"
    )


def test_settings_are_flat_and_plain():
    nested = {"a": {"b": {"c": 1, "d": None}, "e": [1, {"x": 2}]}, "f": True, "g": {}, "h": "text"}
    assert flattened(nested) == {
        "a.b.c": 1,
        "a.b.d": None,
        "a.e": "[1, {'x': 2}]",
        "f": True,
        "g": "{}",
        "h": "text",
    }


def test_alarms_that_were_raised_are_found_in_the_rows(tmp_path):
    file = MetricsFile(tmp_path / "metrics.parquet")
    for loss in (0.0, 1.0, 0.0):
        file.append({"alert/loss": loss, "warn/log_ratio_concerning": 0.0})
    assert raised_alarms(file) == ("alert/loss",)
