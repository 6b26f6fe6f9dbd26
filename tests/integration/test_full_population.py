"""The shipped files with every part on train as a population and as a run, end to end and small."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.population.config import RunFile, load_training
from stormsail.algorithms.population.population import read_population
from stormsail.algorithms.run.folder import read_config, read_lineage
from stormsail.api.agent_folders import agent_folder
from stormsail.bench.learner import learn
from stormsail.cli.judging import validate
from stormsail.cli.judging.attack import _training
from stormsail.cli.main import app

CONFIGS = Path(__file__).parents[2] / "configs"
SEARCHED = {
    "full": {
        "ppo.learning_rate", "entropy.ent_coef", "ppo.clip_range", "adversary.epsilon",
        "adversary.robust_kl_coef",
    },
}  # fmt: skip
SEARCHED["full-categorical"] = {*SEARCHED["full"], "adversary.adversarial_ratio"}
SMALL = {
    "ppo.total_steps": 2 * 64, "ppo.n_steps": 16, "ppo.n_envs": 4, "ppo.batch_size": 2,
    "ppo.microbatch_size": 1, "ppo.n_epochs": 1, "bc.bc_warmup_steps": 64, "bc.bc_decay_steps": 64,
    "checkpoint.every_updates": 1, "validation.every_updates": 1,
    "task.data.validation_share": 0.05, "population.population_size": 2,
    "population.perturbation_interval": 1,
}  # fmt: skip
"""Two members, two rounds of one update; what is on stays on."""


def called(command, name, out):
    words = [f"--set={path}={value}" for path, value in SMALL.items()]
    result = CliRunner().invoke(
        app, [command, str(CONFIGS / f"{name}.toml"), "--out", str(out), *words]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize("name", SEARCHED)
def test_a_file_with_every_part_on_trains_as_a_population(name, tmp_path):
    output = called("population", name, tmp_path / "pop")
    run = read_population(tmp_path / "pop")
    assert len(run.rounds) == 2
    assert f"best member: {run.best_folder}" in output
    (copy,) = (one for one in run.rounds[0].decisions if one.copies)
    place = tmp_path / "pop" / "members" / f"{copy.member:02d}"
    (taken,) = read_lineage(place).copies
    assert set(taken.new) == SEARCHED[name]
    applied = run.rounds[1].outcomes[copy.member].applied
    assert dict(copy.values) == dict(taken.new)
    # at half of the budget, in the second update of those in which the radius grows
    moved = {
        "ppo.learning_rate": 0.5,
        "adversary.epsilon": 1.0 / read_config(place).adversary.warmup_updates,
    }
    for path in SEARCHED[name]:
        wanted = copy.values[path] * moved.get(path, 1.0)
        assert applied[path] == pytest.approx(wanted, rel=1e-12), path
    assert agent_folder(tmp_path / "pop") == run.best_folder / "best"


@pytest.mark.parametrize("name", SEARCHED)
def test_the_same_file_trains_as_a_run_that_knows_no_population(name, tmp_path):
    called("train", name, tmp_path / "run")
    settings = [f"{path}={value}" for path, value in SMALL.items()]
    own = TrainConfig.load(tmp_path / "run" / "config.toml")
    assert own == derive(load_training(CONFIGS / f"{name}.toml", settings))


def test_both_files_search_what_they_have():
    for name, paths in SEARCHED.items():
        plan = RunFile.load(CONFIGS / f"{name}.toml")
        assert set(plan.population.search) == paths
        for path, search in plan.population.search.items():
            section, field = path.split(".")
            base = getattr(getattr(plan, section), field)
            inside = base in search.values if search.values else search.low <= base <= search.high
            assert inside, f"{path} of {name} starts outside of its own search"


def test_every_verb_that_reads_a_file_of_a_training_reads_these(tmp_path, monkeypatch):
    file = CONFIGS / "full.toml"
    wanted = load_training(file)
    assert _training(tmp_path, None, file) == wanted
    seen = []
    monkeypatch.setattr(validate, "_rules", lambda training, *_: seen.append(training) or 1 / 0)
    words = ["validate", str(file), "--workspace", str(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ZeroDivisionError), done.output
    assert seen == [wanted]
    (line,) = learn.reference_lines([str(file)])
    assert line.config == derive(wanted)
