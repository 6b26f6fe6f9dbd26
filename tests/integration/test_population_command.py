"""`stormsail population`: table, log, continuation, refusals; `train` reads the same file."""

import pytest
from typer.testing import CliRunner

from population_lab import plan
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population import population as population_module
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.cli.learning.population import EngineName, _engine
from stormsail.cli.main import app
from stormsail.core.errors import ConfigError


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(population_module, "check_search", lambda *_: None)
    path = tmp_path / "tiny.toml"
    path.write_text(plan(population_size=2, changes={"ppo__total_steps": 4 * 32}).to_toml())
    return path


def test_the_command_trains_shows_every_round_and_goes_on(file, tmp_path):
    out = tmp_path / "pop"
    result = CliRunner().invoke(app, ["population", str(file), "--out", str(out)])
    assert result.exit_code == 0, result.output
    for text in ("round 1 of 2", "round 2 of 2", "best member:"):
        assert text in result.output
    lines = (out / "logs" / "pbt_training.log").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].removeprefix("round 1: ") in result.output
    again = CliRunner().invoke(app, ["population", str(file), "--out", str(out)])
    assert again.exit_code == 0
    assert "round 1 of 2" not in again.output
    assert again.output.splitlines()[-1] == result.output.splitlines()[-1]


def test_train_reads_the_same_file(file, tmp_path):
    result = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    wanted = plan(changes={"ppo__total_steps": 4 * 32}).training()
    assert TrainConfig.load(tmp_path / "run" / "config.toml") == wanted


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("option", "value", "owner"),
    [("address", "auto", "ray"), ("gpus", 0.5, "ray"), ("storage", "shared", "ray")],
)
def test_an_option_without_its_engine_is_refused(option, value, owner):
    with pytest.raises(ConfigError, match=f"`--{option}` must come with `--engine {owner}`"):
        _engine(EngineName.IN_PROCESS, **{option: value})
    assert isinstance(_engine(EngineName.IN_PROCESS, **{option: None}), InProcess)
