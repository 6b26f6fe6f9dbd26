"""`torchrun ... -m stormsail train`: two real processes go on with a run that one has begun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import stormsail
from stormsail.modules import Agent
from training_lab import run_all, run_for, small


def newest(run):
    """Return the weights of the last checkpoint."""
    from stormsail.algorithms.run import checkpoint
    from stormsail.core.files.artifact import read_artifact

    place = max((run / "checkpoints").glob("[0-9]*"))
    found = read_artifact(place, kind=checkpoint.KIND, allow_nonfinite=(checkpoint.METRICS,))
    return checkpoint.unpack(found)


def test_two_processes_continue_a_run_as_one_would(tmp_path):
    config = small("cartpole-lstm", ppo__total_steps=3 * 32)
    whole = run_all(config, tmp_path / "whole" / "run")
    run_for(config, tmp_path / "run", 1)
    (tmp_path / "config.toml").write_text(config.to_toml())
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "stormsail", "train", "config.toml", "--out", "run"]
    source = str(Path(stormsail.__file__).parents[1])
    done = subprocess.run(
        [*start, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run: finished after 96 steps") == 1
    own, other = (
        pq.read_table(p / "metrics.parquet").to_pydict() for p in (whole.path, tmp_path / "run")
    )
    assert own.keys() == other.keys()
    for name, values in own.items():
        assert other[name] == pytest.approx(values, rel=2e-3, abs=1e-5, nan_ok=True), name
    first, second = newest(whole.path), newest(tmp_path / "run")
    for name, tensor in first["agent"].items():
        assert torch.allclose(second["agent"][name], tensor, rtol=1e-3, atol=1e-5), name
    for name, tensor in first["generators"].items():
        assert torch.equal(second["generators"][name], tensor), name
    assert Agent.load(tmp_path / "run" / "best").binding == whole.agent.binding
    events = (tmp_path / "run" / "process.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in events]
    assert kinds == ["started", "interrupted", "resumed", "finished"]
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2
