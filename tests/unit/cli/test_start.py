"""`stormsail init`, `configs` and `show`, and configurations by name."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledger_lab import rounds, write_ledger
from report_lab import passed, write_made_validation
from stormsail.algorithms.population.config import RunFile, load_training
from stormsail.cli.main import app
from stormsail.cli.start.init import TEMPLATES
from stormsail.core.errors import ConfigError
from stormsail.core.shipped import located, shipped, shipped_folder
from stormsail.evaluation.attack.files import attack_document, write_attack
from stormsail.evaluation.engine.files import write_backtest

ROOT = Path(__file__).resolve().parents[3]
TINY = [
    *("--set", "ppo.total_steps=64", "--set", "ppo.n_envs=2", "--set", "ppo.n_steps=16"),
    *("--set", "ppo.batch_size=1", "--set", "ppo.n_epochs=1", "--set", "validation.episodes=5"),
    *("--set", "validation.every_updates=2", "--set", "task.market.episode_bars=16"),
]
KINDS = ("bars", "env", "demo")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def shown(path):
    """Return the document of `show` and its exit status."""
    result = run("show", path, "--json", "--quiet")
    return json.loads(result.stdout), result.exit_code


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("market") / "bars of mine"
    done = run("synth", "regime", "--bars", 2000, "--symbols", 1, "--store", folder)
    assert done.exit_code == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", "--task", "CartPole-v1", "--out", out, *TINY[:-2], "-q").exit_code == 0
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_configuration_trains_as_it_is(kind, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--store", store) if kind == "bars" else ()
    done = run("init", kind, *options, "--out", "own.toml", "--json")
    assert done.exit_code == 0, done.output
    command = json.loads(done.stdout)["next"][0]
    assert command == "stormsail train own.toml"
    tiny = TINY[:-2] if kind == "env" else TINY
    result = run(*command.split()[1:], *tiny, "--json", "-q")
    assert json.loads(result.stdout)["status"] == "finished", result.output


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_template_has_a_comment_and_commands_name_the_file(kind, tmp_path):
    text = (TEMPLATES / f"{kind}.toml").read_text()
    settings = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert len(settings) > 10
    assert all(re.search(r"\S\s+# \S", line) for line in settings)
    assert max(map(len, text.splitlines())) <= 120
    run("init", kind, "--out", tmp_path / "x.toml")
    assert f"stormsail train {tmp_path / 'x.toml'}" in (tmp_path / "x.toml").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_template_has_as_a_comment_is_a_setting_too(kind):
    text = (TEMPLATES / f"{kind}.toml").read_text()
    opened = re.sub(r"^# (\[\w+\]|\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert opened.count("\ncvar_limit") == 1
    RunFile.from_mapping(tomllib.loads(opened))


def test_own_bars_take_interval_and_place_of_the_store(store, tmp_path):
    run("init", "bars", "--store", store, "--out", tmp_path / "a.toml")
    assert load_training(tmp_path / "a.toml").task.data.store == str(store)
    run("import", store / "AAA-USDT_USDT" / "1h.parquet", "--store", tmp_path / "two",
        "--symbol", "AAA/USDT", "--interval", "1h", "--resample", "4h")  # fmt: skip
    several = run("init", "bars", "--store", tmp_path / "two", "--out", tmp_path / "b.toml")
    assert several.exception.code == "config-value"
    assert "found bars of 1h, 4h" in str(several.exception)
    options = ("--interval", "4h", "--out", tmp_path / "b.toml")
    assert run("init", "bars", "--store", tmp_path / "two", *options).exit_code == 0
    assert load_training(tmp_path / "b.toml").task.data.interval == "4h"


def test_a_store_that_is_not_there_yet_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init", "bars")
    assert "data holds no bars of 1h yet: stormsail import FILES --store data" in result.stdout
    assert (tmp_path / "bars.toml").is_file()


@pytest.mark.parametrize("name", ['a "b"', "back\\slash", "ümlaut", "#hash"])
def test_a_strange_place_is_written_as_toml(name, tmp_path):
    assert run("init", "bars", "--store", name, "--out", tmp_path / "a.toml").exit_code == 0
    assert load_training(tmp_path / "a.toml").task.data.store == name


def test_init_overwrites_nothing_and_refuses_an_option_of_another_kind(tmp_path):
    (tmp_path / "a.toml").write_text("mine")
    assert run("init", "demo", "--out", tmp_path / "a.toml").exception.code == "output-exists"
    assert (tmp_path / "a.toml").read_text() == "mine"
    assert run("init", "demo", "--out", tmp_path / "a.toml", "--force").exit_code == 0
    assert load_training(tmp_path / "a.toml").task.name == "market"
    assert run("init", "demo", "--out", tmp_path, "--force").exception.code == "output-kind"
    refused = run("init", "demo", "--task", "gym:X", "--out", tmp_path / "b.toml")
    assert refused.exception.code == "config-inconsistent"
    assert not (tmp_path / "b.toml").exists()


def test_shipped_configurations_are_listed_and_copied(tmp_path):
    listed = json.loads(run("configs", "--json", "-q").stdout)["configs"]
    assert [row["name"] for row in listed] == list(shipped())
    assert all(row["purpose"] for row in listed)
    assert run("configs", "--out", tmp_path / "all").exit_code == 0
    copies = {file.relative_to(tmp_path / "all") for file in (tmp_path / "all").rglob("*.toml")}
    assert copies == {path.relative_to(shipped_folder()) for path in shipped().values()}
    assert run("configs", "quickstart", "--out", tmp_path).exit_code == 0
    copy = (tmp_path / "quickstart.toml").read_bytes()
    assert copy == (ROOT / "configs" / "quickstart.toml").read_bytes()
    again = run("configs", "hourly", "quickstart", "--out", tmp_path)
    assert again.exception.code == "output-exists"
    assert not (tmp_path / "hourly.toml").exists()
    (tmp_path / "quickstart.toml").write_text("old")
    assert run("configs", "quickstart", "--out", tmp_path, "--force").exit_code == 0
    assert (tmp_path / "quickstart.toml").read_bytes() == copy
    assert "Did you mean `quickstart`?" in str(run("configs", "quikstart").exception)


def test_a_wheel_carries_the_one_place_of_the_configurations():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"configs": "stormsail/configs"}
    assert shipped_folder() == ROOT / "configs"


def test_a_name_is_a_shipped_configuration_where_there_is_no_such_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = shipped()["quickstart"]
    for name in ("quickstart", "quickstart.toml", "configs/quickstart.toml"):
        assert located(Path(name)) == file
    assert located(Path("markets/oracle")) == shipped()["markets/oracle"]
    assert located(Path("nothing.toml")) == Path("nothing.toml")
    assert located(tmp_path / "quickstart") == tmp_path / "quickstart"
    (tmp_path / "quickstart").mkdir()  # a folder is no configuration
    assert located(Path("quickstart")) == file
    (tmp_path / "quickstart.toml").write_text("seed = 1")
    assert located(Path("quickstart.toml")) == Path("quickstart.toml")


def test_a_training_takes_a_shipped_configuration_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = ("--set", "task.data.world_bars=2000", "--set", "task.data.world_symbols=1")
    result = run("train", "quickstart", *TINY, *world, "--json", "-q")
    assert json.loads(result.stdout)["run"] == "runs/quickstart"


@pytest.mark.parametrize("text", ["", "# only words\n\n", "\n"])
def test_an_empty_configuration_is_refused_and_init_is_named(text, tmp_path):
    file = tmp_path / "empty.toml"
    file.write_text(text)
    with pytest.raises(
        ConfigError, match=r"must set something of a training; found an empty one\..*stormsail init"
    ):
        load_training(file)
    for verb in ("train", "population", "validate"):
        out = ("--out", tmp_path / "out")
        assert run(verb, file, *out).exception.code == "config-value"
    assert not (tmp_path / "out").exists()


def test_a_training_of_nothing_at_all_is_refused():
    assert "stormsail init" in str(run("train").exception)


# ------------------------------------------------------------------ show


def test_a_configuration_is_shown_with_what_can_be_done(tmp_path):
    run("init", "demo", "--out", tmp_path / "demo.toml")
    read, code = shown(tmp_path / "demo.toml")
    assert (read["kind"], code) == ("configuration", 0)
    assert read["facts"]["bars"] == "synthetic world regime"
    assert read["next"][0] == f"stormsail train {tmp_path / 'demo.toml'}"
    full, _ = shown(shipped()["full"])
    assert [command.split()[1] for command in full["next"]] == ["train", "validate", "population"]


def test_a_run_its_agent_and_its_workspace_are_shown(trained):
    read, code = shown(trained)
    assert (read["kind"], code) == ("run", 0)
    assert read["facts"]["finished"] is True
    assert read["facts"]["last_checkpoint"] == 64
    assert read["next"] == [
        f"stormsail resume {trained} --extend-to 128",
        f"stormsail attack {trained} --out run-attack",
    ]
    agent, _ = shown(trained / "best")
    assert (agent["kind"], agent["facts"]["actions"]) == ("agent", "discrete")
    assert shown(trained.parent)[0]["facts"]["runs"] == ["run"]
    checkpoint = max(p for p in (trained / "checkpoints").iterdir() if p.name.isdecimal())
    assert shown(checkpoint)[0]["kind"] == "checkpoint"


def test_what_is_missing_or_damaged_in_a_run_is_said(trained, tmp_path):
    run_folder = tmp_path / "copy"
    shutil.copytree(trained, run_folder)
    file = next((run_folder / "best").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    read, _ = shown(run_folder)
    assert "damaged" in read["facts"]["best_agent"]
    assert [command.split()[1] for command in read["next"]] == ["resume"]
    agent, code = shown(run_folder / "best")
    assert (agent["kind"], code) == ("agent", 1)
    assert "artifact-corrupt" in agent["problem"]
    shutil.rmtree(run_folder / "best")
    assert shown(run_folder)[0]["facts"]["best_agent"].startswith("missing")
    (run_folder / "config.toml").write_text("seed = ")
    broken, code = shown(run_folder)
    assert (broken["kind"], code) == ("run", 1)
    assert "config-syntax" in broken["problem"]


def test_results_are_shown_with_their_figures(tmp_path):
    result, _, _ = passed()
    write_backtest(tmp_path / "tested", result)
    write_made_validation(tmp_path / "judged")
    points = [{"value": 1.0}]

    class Point:
        def document(self):
            return points[0]

    settings = {"task": "market", "policy": "greedy", "norm": "linf", "episodes": 4}
    write_attack(tmp_path / "forged", attack_document([Point()], settings))
    tested, code = shown(tmp_path / "tested")
    assert (tested["kind"], code, tested["facts"]["bars"]) == ("backtest", 0, len(result.returns))
    assert [command.split()[1] for command in tested["next"]] == ["report", "performance"]
    judged, _ = shown(tmp_path / "judged")
    assert (judged["kind"], judged["facts"]["verdict"]) == ("validation", "not proven")
    forged, _ = shown(tmp_path / "forged")
    assert forged["kind"] == "attack"
    page = "--out forged.html"
    assert forged["next"] == [
        f"stormsail report {tmp_path / name} {tmp_path / 'forged'} {page}"
        for name in ("judged", "tested")
    ]
    (tmp_path / "tested" / "manifest.json").write_text("{")
    damaged, code = shown(tmp_path / "tested")
    assert (damaged["kind"], code) == ("backtest", 1)


def test_a_population_and_a_store_are_shown(tmp_path, store):
    root = write_ledger(tmp_path / "bred", rounds())
    read, code = shown(root)
    assert (read["kind"], code) == ("population", 0)
    assert (read["facts"]["members"], read["facts"]["best_member"]) == (3, 0)
    held, code = shown(store)
    assert (held["kind"], code) == ("store", 0)
    assert held["facts"]["AAA/USDT:USDT 1h"].startswith("2,000 bars, ")
    assert held["next"][0] == f"stormsail check --store '{store}'"  # as a shell takes it
    file = store / "AAA-USDT_USDT" / "1h.parquet"
    assert shown(file)[0]["kind"] == "data file"
    other = tmp_path / "store"
    shutil.copytree(store, other)
    file = other / "AAA-USDT_USDT" / "1h.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    assert shown(other)[1] == 1


def test_what_is_foreign_or_not_there_is_said(tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    read, code = shown(tmp_path)
    assert (code, read["facts"]["holds"], read["next"]) == (1, ["notes.md"], [])
    assert read["kind"].startswith("foreign")
    assert shown(tmp_path / "notes.md")[1] == 1
    assert run("show", tmp_path / "none").exception.code == "artifact-missing"


def test_each_command_that_show_names_is_one_of_ours(trained, store):
    import shlex

    for path in (trained, trained / "best", store, shipped()["quickstart"]):
        for command in shown(path)[0]["next"]:
            program, verb, *words = shlex.split(command)
            assert program == "stormsail"
            options = [word for word in words if word.startswith("--")]
            help_text = run(verb, "--help").output
            assert all(option in help_text for option in options), command
