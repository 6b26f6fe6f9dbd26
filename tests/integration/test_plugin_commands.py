"""Plug-ins through training, resuming, backtest, attack, population and the command line."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

import plugin_lab
from abuse_lab import call, check
from stormsail.algorithms import RunFile, TrainConfig, train, train_population
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.algorithms.run.folder import read_config
from stormsail.algorithms.run.tasks import make_task
from stormsail.cli.main import app
from stormsail.core import plugins
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.market import Interval
from stormsail.market.synthetic import generate
from stormsail.modules import Agent
from training_lab import image

KINDS = ["feature", "feature", "reward", "world", "network", "callback"]


@pytest.fixture(autouse=True)
def _forgets():
    with plugins.scope():
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the files of the page, a configuration, and a run of two updates."""
    root = tmp_path_factory.mktemp("plugins")
    files = plugin_lab.written(root / "own")
    config = TrainConfig.from_mapping({**plugin_lab.SETTINGS, "plugins": files})
    (root / "mine.toml").write_text(config.to_toml())
    with plugins.scope():
        run = train(config, out=root / "run", tensorboard=False)
    assert (run.status, run.updates) == ("paused", 2)
    assert "two updates are enough here" in run.reason
    return root


def command(*words):
    """Run a command in this process; return its exit status and what it refused with."""
    with plugins.scope():
        done = CliRunner().invoke(app, [str(word) for word in words])
    error = done.exception
    return done.exit_code, "" if isinstance(error, SystemExit | None) else str(error), done.output


def options(home, *names):
    chosen = names or plugin_lab.examples()
    return [word for name in chosen for word in ("--plugin", home / "own" / name)]


def test_every_example_of_the_page_is_short_and_registers_its_kind(tmp_path):
    for path in plugin_lab.written(tmp_path):
        (plugin,) = plugins.load([path])
        kinds = {kind for kind, _ in plugin.registered}
        assert {f"my_{kind}s.py" for kind in kinds} == {plugin.name}
    lines = {name: len(text.splitlines()) for name, text in plugin_lab.examples().items()}
    assert len(lines) == 6
    assert max(lines.values()) <= 18  # fifteen of code, a name and empty lines


def test_run_and_agent_name_what_they_use_and_no_folder(home):
    manifest = json.loads((home / "run" / "manifest.json").read_text())
    records = manifest["bound_plugins"]
    assert [record["kind"] for record in records] == KINDS
    names = {"overnight_gap", "range_share", "smooth_growth", "my_walk", "gated", "enough"}
    assert {record["name"] for record in records} == names
    with plugins.scope():
        loaded = plugins.load([home / "own" / name for name in plugin_lab.examples()])
        agent = Agent.load(home / "run" / "best")
    hashes = {plugin.name: plugin.sha256 for plugin in loaded}
    assert all(hashes[record["file"]] == record["sha256"] for record in records)
    assert agent.binding.values["plugins"] == records
    text = "".join(path.read_text() for path in (home / "run").glob("*.toml"))
    assert str(home) not in text + json.dumps(manifest)
    assert read_config(home / "run").plugins == ()


def test_a_resumed_run_has_the_bits_of_one_that_was_never_interrupted(home, tmp_path):
    config = TrainConfig.from_mapping(plugin_lab.SETTINGS).replace(
        **{"task.market.reward": "differential_sharpe", "task.market.reward_parameters": {}}
    )
    plugins.load([home / "own" / name for name in plugin_lab.examples()])
    first = train(config, out=tmp_path / "cut", tensorboard=False)
    assert first.updates == 2
    assert train(config, out=tmp_path / "cut", tensorboard=False).status == "finished"
    whole = config.replace(callbacks=())
    assert train(whole, out=tmp_path / "whole", tensorboard=False).updates == 4
    cut, plain = image(tmp_path / "cut"), image(tmp_path / "whole")
    same = {name for name in plain if cut.get(name) == plain[name]}
    weights = {name for name in plain if name.endswith((".safetensors", "metrics.parquet"))}
    assert weights
    assert weights <= same


def test_resume_asks_for_the_files_again_and_runs_none_by_itself(home, tmp_path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    code, error, _ = command("resume", run)
    assert code == 1
    assert "[plugin-missing]" in error
    assert "`--plugin my_features.py`" in error
    code, error, _ = command("resume", run, *options(home, "my_features.py", "my_rewards.py"))
    assert "needs the world `my_walk` of the plug-in `my_worlds.py`" in error
    changed = tmp_path / "my_features.py"
    changed.write_text((home / "own" / "my_features.py").read_text() + "# another\n")
    others = [name for name in plugin_lab.examples() if name != "my_features.py"]
    code, error, _ = command("resume", run, "--plugin", changed, *options(home, *others))
    assert code == 1
    assert "[plugin-mismatch]" in error
    code, error, _ = command("resume", run, *options(home))
    assert (code, error) == (0, "")


def test_a_plug_in_that_saved_settings_name_is_never_run(home, tmp_path):
    run = shutil.copytree(home / "run", tmp_path / "run")
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\n")
    text = (run / "config.toml").read_text()
    assert "plugins = []" in text
    (run / "config.toml").write_text(text.replace("plugins = []", f'plugins = ["{evil}"]'))
    for words in (("resume", run), ("train", run / "config.toml", "--out", tmp_path / "new")):
        code, error, _ = command(*words, *options(home))
        assert code == 1
        assert "a file that only they name is not run" in error
        assert "`--plugin evil.py`" in error
    with pytest.raises(ConfigError):
        read_config(run)
    assert not (tmp_path / "was_run").exists()


def test_a_configuration_of_the_user_runs_its_plug_ins(home, tmp_path):
    code, error, _ = command("train", home / "mine.toml", "--out", tmp_path / "run")
    assert (code, error) == (0, "")
    assert "plugins = []" in (tmp_path / "run" / "config.toml").read_text()


def test_a_backtest_of_an_agent_with_own_features(home, tmp_path):
    store = tmp_path / "data"
    code, error, output = command(
        "synth", "my_walk", "--store", store, "--symbols", 1, "--bars", 300,
        "--set", "weekly=0.004", *options(home, "my_worlds.py"),
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert "process: A random walk with a weekly wave." in output
    words = ("backtest", home / "run", "--data", store, "--out", tmp_path / "out")
    code, error, _ = command(*words)
    assert "needs the network `gated` of the plug-in `my_networks.py`" in error
    code, error, _ = command(*words, *options(home, "my_networks.py"))
    assert "the agent needs the feature `overnight_gap` of the plug-in `my_features.py`" in error
    brought = options(home, "my_networks.py", "my_features.py")
    code, error, output = command(*words, *brought, "--calibration")
    assert (code, error) == (0, "")
    assert "the critic predicts sums of the reward `smooth_growth`" in " ".join(output.split())
    code, error, _ = command("performance", tmp_path / "out")
    assert (code, error) == (0, "")


def test_an_attack_needs_everything_of_the_training(home):
    words = ("attack", home / "run", "--attacks", "random", "--epsilons", "0.1", "--episodes", 2)
    code, error, _ = command(*words)
    assert code == 1
    assert "[plugin-missing]" in error
    code, error, _ = command(*words, *options(home))
    assert (code, error) == (0, "")


def population(home, **changes):
    return RunFile.from_mapping(
        {
            **plugin_lab.SETTINGS,
            "callbacks": [],
            "plugins": [str(home / "own" / name) for name in plugin_lab.examples()],
            "population": {
                "population_size": 2,
                "perturbation_interval": 4,
                "search": {"ppo.learning_rate": {"min": 1e-4, "max": 1e-3}},
            },
            **changes,
        }
    )


def test_a_population_asks_for_its_plug_ins_again(home, tmp_path):
    with plugins.scope():
        done = train_population(population(home), out=tmp_path / "two")
    assert len(done.rounds) == 1
    assert "plugins = []" in (tmp_path / "two" / "config.toml").read_text()
    with pytest.raises(ArtifactError) as caught:
        train_population(population(home, plugins=[]), out=tmp_path / "two")
    assert caught.value.code == "plugin-missing"


def test_a_search_trains_with_plug_ins_and_asks_for_them_again(home, tmp_path):
    out = tmp_path / "s"
    words = ("--budget", 1, "--over", "ppo.n_epochs=int:1:2", "--out", out, "--json", "--quiet")
    settings = ("--set", "search.rungs=0", "--set", "ppo.total_steps=32", "--set", "callbacks=[]")
    code, error, output = command("search", home / "mine.toml", *words, *settings)
    assert (code, error) == (0, "")
    assert json.loads(output)["best_trial"] == 0
    bound = json.loads((out / "trial-0000" / "manifest.json").read_text())["bound_plugins"]
    assert [record["kind"] for record in bound] == KINDS[:-1]  # without the callback
    for file in ("config.toml", "best.toml", "trial-0000/config.toml"):
        assert "plugins = []" in (out / file).read_text()
    saved = ("search", out / "config.toml", "--budget", 2, "--out", out)
    code, error, _ = command(*saved)
    assert code == 1
    assert "needs the feature `overnight_gap` of the plug-in `my_features.py`" in error
    brought = options(home)
    code, error, output = command(*saved, *brought)
    assert (code, error) == (0, "")
    assert "2 trials, each in the trial ledger" in output
    plain = " ".join(output.split())
    assert f"best.toml {' '.join(str(word) for word in brought)}`" in plain


def test_saved_settings_of_a_search_run_no_plug_in(home, tmp_path):
    (tmp_path / "search.json").write_text("{}")
    (tmp_path / "config.toml").write_text((home / "mine.toml").read_text())
    code, error, _ = command("search", tmp_path / "config.toml", "--budget", 1)
    assert code == 1
    assert "a file that only they name is not run" in error


def test_show_says_which_plug_ins_to_bring(home, tmp_path):
    def shown(path, *words):
        code, error, output = command("show", path, *words, "--json", "--quiet")
        assert (code, error) == (0, "")
        return json.loads(output)

    files = [f"my_{kind}s.py" for kind in ("feature", "reward", "world", "network", "callback")]
    brought = " ".join(f"--plugin {file}" for file in files)
    run = shown(home / "run")
    assert run["facts"]["plug_ins"] == files
    assert [line.endswith(brought) for line in run["next"]] == [True] * len(run["next"])
    agent = shown(home / "run" / "best")
    assert agent["facts"] == {"plug_ins": files}
    assert agent["next"] == [f"stormsail show {home / 'run' / 'best'} {brought}"]
    known = shown(home / "run" / "best", *options(home, "my_networks.py"))
    assert known["facts"]["memory"] == "lstm"
    assert known["facts"]["plug_ins"] == files


def test_a_validation_with_plug_ins_from_end_to_end(home, tmp_path):
    store, file, out = tmp_path / "data", tmp_path / "own.toml", tmp_path / "judged"
    words = ("--store", store, "--symbols", 1, "--bars", 600, "--quiet")
    assert command("synth", "my_walk", *words, *options(home, "my_worlds.py"))[0] == 0
    used = ("my_features.py", "my_rewards.py", "my_networks.py")
    settings = {**plugin_lab.SETTINGS, "callbacks": []}
    settings["task"] = {**settings["task"], "data": {"store": str(store)}}
    with plugins.scope():
        plugins.load([home / "own" / name for name in used])
        file.write_text(TrainConfig.from_mapping(settings).to_toml())
    quick = [f"{name}=false" for name in ("costs", "stress", "baselines")]
    rules = [word for rule in ("burn_in=8", *quick) for word in ("--judge", rule)]
    words = ("validate", file, "--out", out, "--folds", 1, "--seeds", 1, *rules)
    words = (*words, "--workspace", tmp_path / "runs", "--json", "--quiet")
    code, error, _ = command(*words)
    assert "a feature must be registered; found `overnight_gap`" in error
    code, error, output = command(*words, *options(home, *used))
    assert (code, error) == (1, "")  # an agent of four updates is rejected
    assert json.loads(output)["decision"] == "reject"
    with plugins.scope():
        plugins.load([home / "own" / name for name in used])
        records = Agent.load(tmp_path / "judged-agent").binding.values["plugins"]
    assert {record["file"] for record in records} == set(used)


@pytest.mark.campaign
def test_other_processes_have_the_plug_ins(home, tmp_path):
    """The mechanism itself is tested in one process, with the engines' reports."""
    with plugins.scope():
        engine = Processes(workers=1)
        done = train_population(population(home), out=tmp_path / "two", engine=engine)
    assert len(done.rounds) == 1
    words = ("attack", home / "run", "--attacks", "random", "--epsilons", "0.1", "--episodes", 2)
    code, error, _ = command(*words, "--jobs", 2, *options(home))
    assert (code, error) == (0, "")


def test_evaluations_are_in_log_growth_whatever_the_reward(home):
    plugins.load([home / "own" / name for name in plugin_lab.examples()])
    config = TrainConfig.from_mapping(plugin_lab.SETTINGS)
    task = make_task(config, batch=2, purpose="evaluation")
    generator = torch.Generator().manual_seed(1)
    state, _ = task.reset(generator)
    after, step = task.step(state, torch.full((2,), 4), generator)
    assert torch.equal(step.reward, (after.equity / state.equity).log())
    trained = make_task(config, batch=2)
    state, _ = trained.reset(torch.Generator().manual_seed(1))
    after, step = trained.step(state, torch.full((2,), 4), generator)
    growth = (after.equity / state.equity).log()
    assert torch.allclose(step.reward, 0.2 * growth, rtol=1e-5)
    assert torch.equal(step.info.reward_raw_fraction, growth)


def test_own_worlds_only_append_and_take_parameters(home):
    plugins.load([home / "own" / "my_worlds.py"])

    def closes(bars, **parameters):
        world = generate(
            "my_walk", symbols=1, bars=bars, interval=Interval.parse("1h"), seed=3, **parameters
        )
        return world.bars[0].table["close"].to_numpy()

    short, long, other = closes(50), closes(80), closes(50, drift=0.01)
    assert short.tolist() == long[:50].tolist()
    assert other[-1] / short[-1] == pytest.approx(torch.tensor(0.5).exp().item(), rel=1e-4)


@pytest.mark.refusal
def test_a_limit_on_the_tail_refuses_rewards_that_are_no_money():
    limit = {
        "risk.cvar_use_constraint": True,
        "risk.cvar_limit": -0.1,
        "validation.every_updates": 0,
        "task.market.reward": "drawdown_growth",
    }
    with pytest.raises(ConfigError, match="must be `log_growth` with settings of `risk`"):
        TrainConfig().replace(**limit)
    allowed = TrainConfig().replace(**limit, **{"risk.cvar_reward": "any"})
    assert allowed.evaluated_limit is None
    money = allowed.replace(**{"task.market.reward": "log_growth"})
    assert money.evaluated_limit == -0.1


def test_what_nobody_knows_of_a_world_is_not_printed(tmp_path):
    source = "import stormsail as ss\n@ss.world(name='own_walk')\ndef own_walk(generator, bars):\n"
    (tmp_path / "own.py").write_text(f"{source}    return generator.standard_normal(bars) / 99\n")
    words = ("synth", "own_walk", "--plugin", "own.py", "--bars", 50, "--symbols", 1)
    drawn = call(*words, cwd=tmp_path)
    check(drawn, 0)
    assert "known answer: none is known" in drawn.out
    assert "nan" not in drawn.out
