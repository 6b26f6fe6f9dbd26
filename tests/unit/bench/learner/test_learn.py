"""`stormsail bench learn`: fair jobs, honest rows, and files that say what they claim."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.tasks import make_task
from stormsail.algorithms.trainer import train
from stormsail.bench.learner import learn as bench
from stormsail.bench.learner import learn_peers
from stormsail.cli.main import app
from stormsail.core.errors import ArgumentError, RangeError
from stormsail.core.generators import Generators

ROOT = Path(__file__).resolve().parents[4]
CONFIGS = ROOT / "configs"
TINY = ["ppo.total_steps=256", "ppo.n_envs=4", "ppo.n_steps=32", "ppo.batch_size=2"]


def tiny(name="cartpole", *more):
    (line,) = bench.reference_lines([name], configs=CONFIGS, overrides=[*TINY, *more])
    return line


def outcome(score, *, seconds=2.0, reason=""):
    return bench.Outcome(score, 1.0, 100, seconds, reason)


def differing(one, other, path=""):
    """Return the settings in which two configurations differ."""
    found = set()
    for name, value in one.items():
        if isinstance(value, dict):
            found |= differing(value, other[name], f"{path}{name}.")
        elif value != other[name]:
            found.add(path + name)
    return found


# ------------------------------------------------------------------------------------ the files


def test_every_reference_has_its_file_and_every_file_its_reference():
    files = {path.stem for path in (CONFIGS / "reference").glob("*.toml")}
    assert files == set(bench.REFERENCES)
    lines = bench.reference_lines(bench.names(None), configs=CONFIGS)
    assert {line.name: (line.config.task.name, line.steps) for line in lines} == {
        "cartpole": ("CartPole-v1", 100_000),
        "cartpole-categorical": ("CartPole-v1", 100_000),
        "cartpole-masked": ("CartPoleNoVel-v1", 150_000),
        "cartpole-masked-no-memory": ("CartPoleNoVel-v1", 150_000),
        "acrobot": ("Acrobot-v1", 500_000),
        "pendulum": ("Pendulum-v1", 500_000),
        "mountaincar-continuous": ("MountainCarContinuous-v0", 300_000),
    }


@pytest.mark.parametrize(
    ("name", "other", "settings"),
    [
        ("cartpole", "cartpole-categorical", {"critic.kind"}),
        ("cartpole-masked", "cartpole-masked-no-memory", {"network.memory"}),
    ],
)
def test_a_comparison_differs_in_what_it_compares_only(name, other, settings):
    found = [
        TrainConfig.load(CONFIGS / "reference" / f"{one}.toml").model_dump()
        for one in (name, other)
    ]
    assert differing(*found) == settings


def test_the_bars_are_those_that_were_set():
    assert {name: str(bar) for name, bar in bench.REFERENCES.items()} == {
        "cartpole": "mean ≥ 475",
        "cartpole-categorical": "mean ≥ 475",
        "cartpole-masked": "median ≥ 450",
        "cartpole-masked-no-memory": "median < 100",
        "acrobot": "mean ≥ -90",
        "pendulum": "mean ≥ -220",
        "mountaincar-continuous": "None",
    }


# ------------------------------------------------------------------------------------- one run


def test_a_run_is_that_of_the_trainer_and_evaluates_the_last_agent(tmp_path):
    line = tiny()
    found = bench.run(bench.Job(line, seed=3, episodes=5))
    config = line.config.replace(seed=3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    done = train(config, out=tmp_path / "run", tensorboard=False)
    task = make_task(config, batch=5, purpose="evaluation")
    generators = Generators(bench.EVALUATION_SEED)
    starts, actions = generators.stream("judge"), generators.stream("judge.actions")
    evaluation = evaluate(task, done.agent, starts, policy="both", actions=actions)
    torch.set_num_threads(threads)
    assert (found.score, found.spread) == (evaluation.score, evaluation.spread)
    assert found.policy == evaluation.policy
    assert (found.steps, found.reason) == (256, "")


def test_seeds_give_runs_of_their_own_and_the_thread_count_is_put_back():
    before = torch.get_num_threads()
    jobs = [bench.Job(tiny("pendulum"), seed, episodes=3) for seed in (0, 1, 0)]
    scores = [one.score for one in bench.run_all(jobs, workers=1)]
    assert scores[0] == scores[2] != scores[1]
    assert torch.get_num_threads() == before


def test_processes_give_what_one_process_gives_in_the_same_order():
    # The longer job is last and starts first.
    lines = [tiny(), tiny("cartpole", "ppo.total_steps=384")]
    jobs = [bench.Job(line, seed, episodes=3) for line in lines for seed in (0, 1)]
    alone, told = bench.run_all(jobs, workers=1), []
    together = bench.run_all(jobs, workers=2, say=told.append)
    assert [one.steps for one in together] == [256, 256, 384, 384]
    assert [one.score for one in together] == [one.score for one in alone]
    assert sorted(words.split(":")[0] for words in told) == [
        "cartpole stormsail, seed 0",
        "cartpole stormsail, seed 0",
        "cartpole stormsail, seed 1",
        "cartpole stormsail, seed 1",
    ]


def test_a_run_that_keeps_diverging_has_no_score(monkeypatch):
    def stopped(config, **_):
        return type("Run", (), {"status": "stopped", "reason": "it burst", "steps": 64})()

    monkeypatch.setattr(bench, "train", stopped)
    found = bench.run(bench.Job(tiny(), seed=0, episodes=3))
    assert math.isnan(found.score)
    row = bench.row(tiny(), (0, 1), [found, outcome(500.0)])
    assert all(math.isnan(value) for value in (row.mean, row.median, row.least))
    assert (row.passed, row.reasons) == (False, ("it burst",))


# ------------------------------------------------------------------------------------- the rows


def test_a_row_holds_mean_median_and_least_of_its_seeds():
    line = replace(tiny(), bar=bench.Bar("median", 300.0))
    row = bench.row(
        line, (0, 1, 2), [outcome(s, seconds=t) for s, t in ((100, 1), (500, 5), (300, 2))]
    )
    assert (row.mean, row.median, row.least) == (300.0, 300.0, 100.0)
    assert row.steps_per_second == 50.0
    assert (row.passed, row.bar, row.scores) == (True, "median ≥ 300", (100, 500, 300))


@pytest.mark.parametrize(
    ("bar", "scores", "met"),
    [
        (bench.Bar("mean", 475.0), (450.0, 500.0), True),
        (bench.Bar("mean", 475.0), (449.0, 500.0), False),
        (bench.Bar("median", 450.0), (0.0, 450.0, 500.0), True),
        (bench.Bar("median", 100.0, at_least=False), (99.0, 99.0, 500.0), True),
        (bench.Bar("median", 100.0, at_least=False), (100.0,), False),
        (bench.Bar("median", 100.0, at_least=False), (1.0, 1.0, math.nan), False),
    ],
)
def test_a_bar_is_met_from_its_value_on(bar, scores, met):
    assert bar.met(scores) is met


def test_a_task_without_a_bar_neither_passes_nor_fails():
    row = bench.row(tiny("mountaincar-continuous"), (0,), [outcome(-1.0)])
    assert (row.passed, row.bar) == (None, "")


# --------------------------------------------------------------------------------- the ablation


def test_the_ablation_is_every_optimizer_with_and_without_scaler_at_every_rate():
    lines = bench.ablation_lines((1e-3, 3e-3), configs=CONFIGS)
    found = {
        (
            line.config.task.name,
            line.config.optimizer.optimizer_class,
            line.config.vgs.enabled,
            line.config.ppo.learning_rate,
        )
        for line in lines
    }
    assert len(lines) == len(found) == 16
    assert found == {
        (task, optimizer, scaled, rate)
        for task in ("CartPole-v1", "market")
        for optimizer in ("AdamW", "AdaptiveUPGD")
        for scaled in (False, True)
        for rate in (1e-3, 3e-3)
    }
    assert [line.variant for line in lines[:8:2]] == [
        "AdamW",
        "AdamW + VGS",
        "AdaptiveUPGD",
        "AdaptiveUPGD + VGS",
    ]
    assert {line.config.task.data.world for line in lines[8:]} == {"regime"}


def test_each_variant_is_shown_at_its_best_rate_beside_the_first():
    lines = bench.ablation_lines((1e-3, 3e-3), configs=CONFIGS)[:4]
    scores = [(1.0, 3.0), (2.0, 4.0), (5.0, 9.0), (math.nan, 100.0)]
    rows = [
        bench.row(line, (0, 1), [outcome(s) for s in own])
        for line, own in zip(lines, scores, strict=True)
    ]
    best = bench.best(lines, rows)
    assert [(row.name, row.variant, row.rate) for row in best] == [
        ("cartpole", "AdamW", 3e-3),
        ("cartpole", "AdamW + VGS", 1e-3),
    ]
    assert [(row.score.mean, row.score.standard_error) for row in best] == [(3.0, 1.0), (7.0, 2.0)]
    assert [(row.gain.mean, row.gain.standard_error) for row in best] == [(0.0, 0.0), (4.0, 1.0)]


# ------------------------------------------------------------------------------------ the peers


def test_peers_stand_behind_the_task_and_take_as_many_steps():
    lines = bench.reference_lines(bench.names(None), configs=CONFIGS, peers=True)
    assert [(line.name, line.learner, line.steps) for line in lines if line.peer] == [
        ("cartpole", "sb3 PPO", 100_000),
        ("cartpole-masked", "sb3-contrib RecurrentPPO", 150_000),
        ("acrobot", "sb3 PPO", 500_000),
        ("acrobot", "sb3-contrib RecurrentPPO", 500_000),
        ("pendulum", "sb3 PPO", 500_000),
        ("mountaincar-continuous", "sb3 PPO", 20_000),
    ]
    assert not any(line.peer for line in bench.reference_lines(["cartpole"], configs=CONFIGS))


def test_a_masked_peer_sees_position_and_angle_only():
    pytest.importorskip("stable_baselines3")
    (peer,) = learn_peers.PEERS["cartpole-masked"]
    environments = learn_peers._environments(peer, 3, seed=0)
    shown = environments.reset()
    assert (shown != 0.0).tolist() == [[True, False, True, False]] * 3
    assert len({tuple(row) for row in shown.tolist()}) == 3


@pytest.mark.parametrize("name", ["cartpole", "cartpole-masked", "acrobot"])
def test_a_peer_learns_with_its_published_settings(name):
    pytest.importorskip("sb3_contrib")
    peer = learn_peers.PEERS[name][-1]
    small = replace(
        peer, environments=2, settings={**peer.settings, "n_steps": 32, "batch_size": 64}
    )
    line = replace(tiny(name, "ppo.total_steps=64"), peer=small)
    found = bench.run(bench.Job(line, seed=0, episodes=2))
    assert found.steps == 64
    low, high = {"acrobot": (-500.0, -60.0)}.get(name, (8.0, 500.0))
    assert low <= found.score <= high


# ------------------------------------------------------------------------------ the command line


def test_the_command_prints_rows_writes_them_and_fails_below_a_bar(tmp_path):
    out = tmp_path / "rows.json"
    options = ["--tasks", "cartpole,mountaincar-continuous", "--seeds", "2", "--jobs", "1"]
    words = [
        *options,
        "--episodes",
        "2",
        "--no-peers",
        "--configs",
        str(CONFIGS),
        "--out",
        str(out),
    ]
    for setting in TINY:
        words += ["--set", setting]
    done = CliRunner().invoke(app, ["bench", "learn", *words], env={"COLUMNS": "132"})
    assert done.exit_code == 1, done.output
    assert "cartpole stormsail, seed 1: " in done.output
    rows = json.loads(out.read_text())
    assert [(row["name"], row["passed"], row["seeds"]) for row in rows] == [
        ("cartpole", False, [0, 1]),
        ("mountaincar-continuous", None, [0, 1]),
    ]
    assert rows[0]["mean"] == pytest.approx(sum(rows[0]["scores"]) / 2)
    row = next(line for line in done.output.splitlines() if line.startswith("│ cartpole "))
    assert f"{rows[0]['mean']:,.4g}" in row
    assert "FAIL" in row


def test_a_file_of_ones_own_is_a_task_without_a_bar(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[task]\nname = "Acrobot-v1"\n')
    (line,) = bench.reference_lines(bench.names(str(file)), overrides=["seed=7"])
    assert (line.name, line.bar, line.config.task.name, line.config.seed) == (
        "mine",
        None,
        "Acrobot-v1",
        7,
    )


@pytest.mark.refusal
def test_a_task_that_is_not_shipped_is_refused():
    with pytest.raises(ArgumentError) as caught:
        bench.names("cartpole,acrobat")
    assert str(caught.value) == (
        "`--tasks` must name cartpole, cartpole-categorical, cartpole-masked, "
        "cartpole-masked-no-memory, acrobot, pendulum, mountaincar-continuous, full-cartpole, "
        "or TOML files; found `acrobat`. Did you mean `acrobot`? [missing-argument]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("text", ["", "a", "0", "-1e-3", "1e-3,", "inf", "nan"])
def test_rates_that_are_no_positive_numbers_are_refused(text):
    with pytest.raises(RangeError) as caught:
        bench.rates(text)
    assert str(caught.value) == (
        "`--rates` must be positive numbers with commas between them; "
        f"found {text!r}. Write it as 3e-4,1e-3. [out-of-range]"
    )


def test_rates_are_read_in_their_order():
    assert bench.rates("3e-3,1e-3") == (3e-3, 1e-3)
    assert bench.rates(None) == bench.RATES
