"""MLflow in a local database and W&B without a network: what a run that was interrupted leaves."""

import json
import struct

import pyarrow.parquet as pq
import pytest

from command_lab import forked
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Trainer, train
from stormsail.monitors import MlflowLogger, WandbLogger
from stormsail.monitors.alarms import ALARM_NAMES
from training_lab import UPDATES, small

STEPS = [32 * update for update in range(1, UPDATES + 1)]
SHOWN = ("train/loss", "train/explained_variance", "validation/score", *ALARM_NAMES)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the services themselves


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def trained_in_two_parts(out, make):
    """Interrupt a run after its third update, and continue it with another logger object."""
    config = small(ppo__adv_std_floor=100.0)
    bound = binding(config)
    with open_run(out, config, bound) as folder:
        trainer = Trainer(folder, bound, loggers=[make()])

        def watch(progress):
            if progress.update == 3:
                trainer.stop(15)

        trainer._on_progress = watch
        assert trainer.run().status == "interrupted"
    return train(config, out=out, tensorboard=False, loggers=[make()])


def wanted(out, name):
    """Return step and value of a metric in the run's own file, where it is known."""
    values = pq.read_table(out / "metrics.parquet")[name].to_pylist()
    return [(step, value) for step, value in zip(STEPS, values, strict=True) if value == value]


def test_mlflow_shows_a_run_that_was_interrupted_as_one(tmp_path):
    from mlflow import MlflowClient

    out, uri = tmp_path / "demo", f"sqlite:///{tmp_path / 'mlflow.db'}"
    done = trained_in_two_parts(out, lambda: MlflowLogger(tracking_uri=uri))
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("stormsail")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((out / "loggers.json").read_text())["mlflow"]["id"]
    assert (run.info.run_name, run.info.status) == ("demo", "FINISHED")
    assert run.data.params["ppo.n_envs"] == "4"
    assert run.data.params["network.encoder_sizes"] == "[6]"
    assert len(run.data.params) > 100
    for name in SHOWN:
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda m: m.step)
        assert [(metric.step, metric.value) for metric in history] == wanted(out, name)
    assert wanted(out, "warn/advantages_std_below_floor") == [(step, 1.0) for step in STEPS]
    tags = run.data.tags
    assert (tags["status"], tags["seed"], tags["task"]) == ("finished", "5", "CartPoleNoVel-v1")
    assert "warn/advantages_std_below_floor" in tags["alarms"].split()
    assert tags["best_agent"] == str(done.best.resolve())
    assert float(tags["best_score"]) == done.best_score
    assert tags["run_folder"] == str(out.resolve())
    assert tags["config_hash"] == done.config.config_hash()


def records(path):
    """Yield the records of a `.wandb` file: blocks of 32 KiB, fragments with CRC, length, kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), 7, b""  # after the header
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block is padding
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last of several
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items(entries):
    return {
        entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in entries
    }


def test_wandb_keeps_a_run_that_was_interrupted_under_one_id(tmp_path):
    import wandb

    out = tmp_path / "demo"
    try:
        done = trained_in_two_parts(out, WandbLogger)
    finally:
        wandb.teardown()
    files = sorted((out / "wandb").glob("offline-run-*/run-*.wandb"))
    read = [record for path in files for record in records(path)]
    run_id = json.loads((out / "loggers.json").read_text())["wandb"]["id"]
    begun = [record.run for record in read if record.WhichOneof("record_type") == "run"]
    assert {run.run_id for run in begun} == {run_id}
    assert {(run.project, run.display_name) for run in begun} == {("stormsail", "demo")}
    parameters = items(begun[0].config.update)
    assert parameters["ppo.n_envs"] == 4
    history = {}
    for record in read:
        if record.WhichOneof("record_type") == "history":
            row = items(record.history.item)
            assert row["_step"] not in history
            history[row["_step"]] = row
    assert sorted(history) == STEPS
    for name in SHOWN:
        seen = [(step, row[name]) for step, row in sorted(history.items()) if name in row]
        assert seen == wanted(out, name)
    summary = {}
    for record in read:
        if record.WhichOneof("record_type") == "summary":
            summary |= items(record.summary.update)
    assert summary["status"] == "finished"
    assert summary["best_agent"] == str(done.best.resolve())
    assert "warn/advantages_std_below_floor" in summary["alarms"]
    exits = [record.exit.exit_code for record in read if record.WhichOneof("record_type") == "exit"]
    assert exits == [0, 0]


def test_a_mistyped_logger_is_refused_before_anything_is_made(tmp_path):
    out = tmp_path / "run"
    done = forked("train", "--task", "CartPole-v1", "--out", out, "--logger", "mlfow")
    assert done.returncode == 2
    assert done.stderr == (
        "stormsail: a logger must be `mlflow` or `wandb`; found `mlfow`. Did you mean `mlflow`? "
        "[unknown-choice]\n"
    )
    assert not out.exists()


def test_the_command_prints_each_alarm_once(tmp_path):
    config = tmp_path / "loud.toml"
    config.write_text(small(ppo__adv_std_floor=100.0).to_toml())
    done = forked("train", config, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "advantages_std_below_floor" in line]
    assert len(lines) == 1
    assert lines[0].startswith("ALERT: run, update 1: the spread of advantages is ")
    assert lines[0].endswith("learns next to nothing [warn/advantages_std_below_floor]")
