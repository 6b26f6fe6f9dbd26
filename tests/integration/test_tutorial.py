"""The tutorial and the demonstration say commands that exist, with settings that exist."""

import importlib.util
import math
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.cli.main import app
from stormsail.core.config.overrides import apply_overrides
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.market.synthetic import config_of
from stormsail.market.synthetic.garch_jump import GarchJumpProcess

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
README = (ROOT / "README.md").read_text()
DEMO = ("free", "limited")


def load_demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


demo = load_demo()


def shell(text):
    """Return the lines of the shell examples that call stormsail, without what is piped in."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    bare = re.sub(r"<<'END'\n.*?\nEND\n", "\n", blocks, flags=re.DOTALL)
    lines = re.findall(r"^(?:\.venv/bin/)?stormsail (.*)$", bare, re.MULTILINE)
    return [tuple(shlex.split(line, comments=True)) for line in lines]


def parsed(arguments):
    """Parse a command line as the program would, without running it; return its values."""
    command, rest = get_command(app), list(arguments)
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    return command.make_context(command.name, rest).params


def test_the_tutorial_goes_from_a_file_to_a_verdict():
    assert [command[0] for command in shell(TUTORIAL)] == [
        *("synth", "check", "import", "check"),
        *("train", "train", "resume", "backtest", "report"),
        *("validate", "report", "validate", "compare"),
    ]


@pytest.mark.parametrize("command", [*shell(TUTORIAL), *shell(README)], ids=" ".join)
def test_a_command_of_the_pages_has_the_verb_and_the_options_it_names(command):
    parsed(command)


def test_an_option_that_does_not_exist_would_be_noticed():
    with pytest.raises(Exception, match="No such option: --fold"):
        parsed(("validate", "own.toml", "--out", "judged", "--fold", "3"))
    with pytest.raises(KeyError, match="judge"):
        parsed(("judge", "own.toml"))


def test_the_configuration_of_the_tutorial_is_one(tmp_path):
    (text,) = re.findall(r"^cat > own.toml <<'END'\n(.*?)\nEND\n", TUTORIAL, re.DOTALL | re.M)
    (tmp_path / "own.toml").write_text(text)
    for command in shell(TUTORIAL):
        if command[0] in ("train", "validate"):
            config = TrainConfig.load(tmp_path / "own.toml", parsed(command)["settings"] or [])
            assert config.task.data.symbols == ("MINE/USDT",)


def test_settings_that_the_pages_name_exist():
    for command in [*shell(TUTORIAL), *(step.command for step in demo.STEPS)]:
        values = parsed(command)
        if command[0] == "synth":
            config_of(values["world"], apply_overrides({}, values["settings"] or []))
        if command[0] == "validate":
            ValidationConfig(folds=values["folds"], seeds=tuple(range(values["seeds"])))


def test_both_agents_of_the_demonstration_differ_in_one_setting():
    free, limited = (
        TrainConfig.load(ROOT / "configs" / "demo" / f"{name}.toml").model_dump(mode="json")
        for name in DEMO
    )
    assert (free["risk"].pop("cvar_limit"), limited["risk"].pop("cvar_limit")) == (-1.0, -0.1)
    assert free == limited


def test_the_demonstration_evaluates_its_agents_and_also_after_the_last_update():
    for name in DEMO:
        config = derive(TrainConfig.load(ROOT / "configs" / "demo" / f"{name}.toml"))
        updates, rest = divmod(config.ppo.total_steps, config.ppo.n_steps * config.ppo.n_envs)
        assert (rest, updates) == (0, 6 * config.validation.every_updates)


def test_the_market_of_the_demonstration_has_the_facts_that_the_pages_state():
    given = apply_overrides({}, parsed(demo.STEPS[0].command)["settings"])
    world = config_of("garch_jump", given)
    process = GarchJumpProcess(world)
    bars, settlements = 8760, 3 * 365
    assert math.sqrt(bars * process.variance) == pytest.approx(0.70, abs=0.005)
    assert process.tail_index == pytest.approx(3.0, abs=0.05)
    assert bars * world.jump_rate == pytest.approx(13.0, abs=0.5)
    assert (world.jump_mean, world.warning_share) == (-0.06, 0.7)
    false_ones = 1.0 / process.jumps_given(warning=True) - 1.0
    assert false_ones == pytest.approx(5.0, abs=0.5)
    weekly = (bars * process.mean - settlements * world.funding_mean) * 168 / bars
    assert weekly == pytest.approx(0.008, abs=0.0005)
    facts = "70 % a year in clusters, a tail index of 3.0, thirteen falls of about 6 % a year"
    assert facts in " ".join(README.split())


def test_each_step_of_the_demonstration_needs_only_what_earlier_ones_made():
    made = {"configs/demo/free.toml", "configs/demo/limited.toml"}
    for step in demo.STEPS:
        values = parsed(step.command)
        needs = [values.get("config"), *(values.get("results") or []), *(values.get("run") or [])]
        for needed in filter(None, needs):
            assert str(needed) in made, step.command
        for out in (values.get("out"), values.get("store")):
            made.add(str(out))
    for name in DEMO:
        config = TrainConfig.load(ROOT / "configs" / "demo" / f"{name}.toml")
        assert config.task.data.store in made
    assert demo.PAGE in made


def validation_step(tmp_path):
    return demo.Step("judge", ("validate", "x.toml"), str(tmp_path / "judged"))


def ends_with(code, *, leaves=None):
    def run(command, *, check, env):
        assert (command[1:4], check) == (["-m", "stormsail", "validate"], False)
        assert env["OMP_NUM_THREADS"] == "1"
        if leaves:
            Path(leaves).mkdir()
        return type("Ended", (), {"returncode": code})()

    return run


def test_a_rejection_is_a_result_of_the_demonstration(tmp_path, monkeypatch, capsys):
    step = validation_step(tmp_path)
    monkeypatch.setattr(demo.subprocess, "run", ends_with(1, leaves=step.makes))
    assert demo.run(step) == 0
    assert capsys.readouterr().out == "$ stormsail validate x.toml\n"


@pytest.mark.parametrize(("code", "status"), [(1, 1), (2, 2), (130, 130), (-9, 137)])
def test_a_verb_that_fails_ends_the_demonstration(code, status, tmp_path, monkeypatch):
    monkeypatch.setattr(demo.subprocess, "run", ends_with(code))
    assert demo.run(validation_step(tmp_path)) == status


def test_a_validation_that_exists_is_kept(tmp_path, monkeypatch, capsys):
    step = validation_step(tmp_path)
    Path(step.makes).mkdir()
    monkeypatch.setattr(demo.subprocess, "run", None)
    assert demo.run(step) == 0
    assert capsys.readouterr().out == (
        f"$ stormsail validate x.toml\n{step.makes} exists and is kept; remove it to judge anew.\n"
    )


def test_the_readme_begins_with_the_demonstration():
    assert README.index("make demo") < README.index("make test")
    assert "\ndemo: " in (ROOT / "Makefile").read_text()
