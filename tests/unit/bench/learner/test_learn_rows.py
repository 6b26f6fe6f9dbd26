"""`bench learn --rows`: finished runs are kept, found again, and judged without training."""

import fcntl
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stormsail import __version__
from stormsail.algorithms.config.derive import derive
from stormsail.bench.learner import learn as bench
from stormsail.bench.learner import learn_peers
from stormsail.bench.learner.learn_rows import RowFile
from stormsail.cli.main import app
from stormsail.core.errors import ArgumentError, ArtifactError

ROOT = Path(__file__).resolve().parents[4]
CONFIGS = ROOT / "configs"
TINY = ["ppo.total_steps=256", "ppo.n_envs=4", "ppo.n_steps=32", "ppo.batch_size=2"]


def line(*more):
    (made,) = bench.reference_lines(["cartpole"], configs=CONFIGS, overrides=[*TINY, *more])
    return made


@pytest.fixture
def trained(monkeypatch):
    """Let a run cost nothing; return the seeds of the runs so far."""
    seeds = []

    def run(job):
        seeds.append(job.seed)
        if job.seed == 3:
            return bench.Outcome(math.nan, math.nan, 128, 1.0, "it burst")
        return bench.Outcome(400.0 + job.seed, 2.5, 256, 4.0)

    monkeypatch.setattr(bench, "run", run)
    return seeds


def measured(path, seeds, *lines):
    with RowFile.open(path) as file:
        return bench.measure(lines or (line(),), seeds, workers=1, episodes=7, kept=file)


# ------------------------------------------------------------------------------------- the file


def test_a_finished_run_is_not_trained_again_and_is_judged_the_same(trained, tmp_path):
    path = tmp_path / "rows.jsonl"
    (first,) = measured(path, (0, 1))
    (again,) = measured(path, (0, 1))
    assert trained == [0, 1]
    assert first == again
    assert first.scores == (400.0, 401.0)
    (more,) = measured(path, (1, 2))
    assert trained == [0, 1, 2]
    assert more.scores == (401.0, 402.0)
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    job = bench.Job(line(), 1, 7)
    assert rows[1] == {
        "key": job.key, "name": "cartpole", "learner": "stormsail", "variant": "", "seed": 1,
        "episodes": 7, "score": 401.0, "spread": 2.5, "steps": 256, "seconds": 4.0, "reason": "",
        "policy": "greedy", "version": __version__,
    }  # fmt: skip


def test_a_run_that_burst_is_finished_too_and_has_no_score(trained, tmp_path):
    path = tmp_path / "rows.jsonl"
    measured(path, (3,))
    assert json.loads(path.read_text())["score"] is None
    (row,) = measured(path, (3,))
    assert trained == [3]
    assert math.isnan(row.mean)
    assert row.reasons == ("it burst",)


@pytest.mark.parametrize(
    "other",
    [
        lambda job: replace(job, seed=1),
        lambda job: replace(job, episodes=8),
        lambda job: replace(job, line=line("ppo.gamma=0.98")),
        lambda job: replace(job, line=line("ppo.total_steps=512")),
        lambda job: replace(job, line=replace(line(), peer=learn_peers.PEERS["cartpole"][0])),
    ],
)
def test_the_key_holds_all_that_a_run_depends_on(other):
    job = bench.Job(line(), 0, 7)
    assert other(job).key != job.key == bench.Job(line(), 0, 7).key


def test_the_key_of_a_peer_is_of_its_own_settings_and_seed_alone():
    (peer,) = learn_peers.PEERS["cartpole"]
    key = bench.Job(replace(line(), peer=peer), 0).key
    assert bench.Job(replace(line("ppo.gamma=0.98"), peer=peer), 0).key == key
    assert bench.Job(replace(line(), peer=peer), 1).key != key
    changed = replace(peer, settings={**peer.settings, "gamma": 0.5})
    assert bench.Job(replace(line(), peer=changed), 0).key != key


def test_each_row_is_on_the_disk_before_the_next_run_is_done(trained, tmp_path, monkeypatch):
    path, held, forced = tmp_path / "rows.jsonl", [], []
    monkeypatch.setattr(os, "fsync", lambda _: forced.append(path.read_text().count("\n")))
    plain = bench.run
    monkeypatch.setattr(bench, "run", lambda job: held.append(len(forced)) or plain(job))
    measured(path, (0, 1, 2))
    assert held == [0, 1, 2]
    assert forced == [1, 2, 3]


def test_a_line_that_a_kill_cut_off_is_trained_again(trained, tmp_path):
    path = tmp_path / "rows.jsonl"
    measured(path, (0, 1))
    whole = path.read_bytes()
    for cut in (1, 40):
        path.write_bytes(whole[:-cut])
        measured(path, (0, 1))
        assert path.read_bytes() == whole
    assert trained == [0, 1, 1, 1]


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text[:9] + "\n" + text, "line 1, JSONDecodeError: "),
        (lambda text: text + "[]\n", "line 3, a list"),
        (lambda text: text + "{}\n", "line 3, KeyError: 'key'"),
        (lambda text: text.replace('"seed": 1', '"seed": "1"'), "line 2, another type in seed"),
        (lambda text: text.replace("401.0", "true"), "line 2, another type in score"),
    ],
)
def test_a_file_with_anything_else_is_refused_and_left_alone(trained, tmp_path, change, problem):
    path = tmp_path / "rows.jsonl"
    measured(path, (0, 1))
    path.write_text(change(path.read_text()))
    before = path.read_text()
    with pytest.raises(ArtifactError, match=re.escape(problem)) as caught:
        measured(path, (0, 1))
    assert str(caught.value).endswith(
        ". Remove that line, and its run is trained again; or name another file. [artifact-corrupt]"
    )
    assert path.read_text() == before


@pytest.mark.refusal
def test_a_file_that_another_process_writes_is_refused(trained, tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ArtifactError) as caught:
            measured(path, (0,))
    assert str(caught.value) == (
        f"{path} must not be written by another process; found one that has it open. "
        "Wait for it, or give this command a file of its own. [run-busy]"
    )
    assert trained == []


# ----------------------------------------------------------------------------------- bare tasks


def test_a_bare_task_has_default_settings_and_its_steps():
    chosen = bench.bare_tasks("gym:CartPole-v1=100_000, Recall-v0=2000")
    assert chosen == {"gym:CartPole-v1": 100_000, "Recall-v0": 2000}
    first, second = bench.bare_lines(chosen, overrides=["seed=4"])
    plain = bench.TrainConfig()
    changes = {"task.name": "gym:CartPole-v1", "ppo.total_steps": 100_000, "seed": 4}
    assert first.config == derive(plain.replace(**changes))
    assert (first.name, first.bar, first.peer) == (
        "gym:CartPole-v1",
        bench.Bar("mean", 475.0),
        None,
    )
    assert (second.name, second.steps) == ("Recall-v0", 2000)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("gym:CartPole-v1", {"n_steps": 32, "gamma": 0.98, "n_epochs": 20}),
        ("gym:Acrobot-v1", {"n_steps": 256, "gamma": 0.99, "n_epochs": 4}),
        ("gym:Pendulum-v1", {"n_steps": 1024, "gamma": 0.9, "n_epochs": 10}),
        ("gym:MountainCarContinuous-v0", {"n_steps": 8, "gamma": 0.9999, "n_epochs": 10}),
        ("gym:MountainCar-v0", {"n_steps": 16, "gamma": 0.99, "n_epochs": 4}),
        ("gym:LunarLander-v3", {"n_steps": 1024, "gamma": 0.999, "n_epochs": 4}),
    ],
)
def test_a_bare_task_has_the_peer_of_its_environment(task, settings):
    ours, peer = bench.bare_lines({task: 50}, peers=True)
    assert ours.peer is None
    assert task == f"gym:{peer.peer.environment}"
    assert {name: peer.peer.settings[name] for name in settings} == settings
    assert peer.steps == (20_000 if "Continuous" in task else 50)


def test_the_recall_task_has_a_peer_with_a_memory_that_can_be_trained():
    pytest.importorskip("sb3_contrib")
    _, peer = bench.bare_lines({"Recall-v0": 64}, peers=True)
    assert (peer.learner, peer.peer.settings) == ("sb3-contrib RecurrentPPO", {})
    small = replace(peer.peer, environments=2, settings={"n_steps": 32, "batch_size": 64})
    outcome = bench.run(bench.Job(replace(peer, peer=small), seed=0, episodes=8))
    assert outcome.steps == 64
    assert outcome.score in {k / 4 - 1.0 for k in range(9)}  # of 8 answers each 1 or -1


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gym:CartPole-v1", "`gym:CartPole-v1`"),
        ("=5", "`=5`"),
        ("a=0", "`a=0`"),
        ("a=-5", "`a=-5`"),
        ("a=1e5", "`a=1e5`"),
        ("a=1,,b=2", "``"),
        ("a=1,a=2", "`a=2`, a task that was named before"),
    ],
)
def test_bare_tasks_without_steps_are_refused(text, part):
    with pytest.raises(ArgumentError) as caught:
        bench.bare_tasks(text)
    assert str(caught.value) == (
        "`--bare` must be tasks with their steps, each once, and commas between them; "
        f"found {part}. Write it as gym:CartPole-v1=100000,gym:Acrobot-v1=500000. "
        "[missing-argument]"
    )


# ------------------------------------------------------------------------------ the command line


def invoked(*words):
    # as wide as the whole table, which is broken into two at 80 columns
    words = ["bench", "learn", "--no-peers", "--jobs", "1", *words]
    return CliRunner().invoke(app, words, env={"COLUMNS": "132"})


def test_the_command_judges_from_rows_without_training(trained, tmp_path):
    path = tmp_path / "rows.jsonl"
    words = ["--tasks", str(CONFIGS / "full-cartpole.toml"), "--configs", str(CONFIGS)]
    words += ["--seeds", "2", "--first-seed", "60", "--rows", str(path)]
    first, again = invoked(*words), invoked(*words)
    assert trained == [60, 61]
    assert [done.exit_code for done in (first, again)] == [1, 1]  # 460 and 461 are below 475
    assert "rows.jsonl holds 0 finished runs" in first.output
    assert "rows.jsonl holds 2 finished runs" in again.output
    (row,) = [text for text in again.output.splitlines() if text.startswith("│ full-cartpole ")]
    assert ("460.5" in row, "min ≥ 475" in row, "FAIL" in row) == (True, True, True)


def test_the_command_says_where_rows_are_of_another_version(trained, tmp_path):
    path = tmp_path / "rows.jsonl"
    words = ["--bare", "AcrobotNoVel-v1=256", "--seeds", "1", "--rows", str(path)]
    assert invoked(*words).exit_code == 0
    path.write_text(path.read_text().replace(f'"{__version__}"', '"0.0.1"'))
    done = invoked(*words)
    assert trained == [0]
    assert "rows.jsonl holds 1 finished runs, some by version 0.0.1" in done.output.replace(
        "\n", ""
    )
    assert not any("cartpole-masked" in text for text in done.output.splitlines())


def test_bare_tasks_and_files_stand_in_one_table(trained):
    done = invoked("--bare", "AcrobotNoVel-v1=256", "--tasks", "acrobot", "--configs", str(CONFIGS))
    names = [text.split()[1] for text in done.output.splitlines() if text.startswith("│ ")]
    assert names == ["AcrobotNoVel-v1", "acrobot"]


def test_every_seed_of_the_full_file_is_held_to_its_bar():
    (by_name,) = bench.reference_lines(["full-cartpole"], configs=CONFIGS)
    (by_path,) = bench.reference_lines([str(CONFIGS / "full-cartpole.toml")], configs=CONFIGS)
    assert by_name == by_path
    assert (by_name.name, str(by_name.bar)) == ("full-cartpole", "min ≥ 475")
    assert by_name.bar.met((475.0, 500.0))
    assert not by_name.bar.met((474.9, 500.0, 500.0, 500.0, 500.0))
