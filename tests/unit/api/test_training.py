"""`ss.train`: settings, files and environments as people have them, one and the same run."""

import json
import sys

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import stormsail as ss
from api_lab import CARTPOLE
from stormsail.api.settings import dotted
from stormsail.cli.main import main
from stormsail.core.clock import ManualClock
from stormsail.core.errors import ArgumentError, ArtifactError, ConfigError
from training_lab import SMALL, UPDATES, image, small


class Corridor(gymnasium.Env):
    """Six steps; right is rewarded by what the maker says."""

    observation_space = Box(0.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, reward=1.0):
        self.reward, self.place = reward, 0

    def reset(self, *, seed=None, options=None):  # noqa: ARG002 - as Gymnasium has it
        super().reset(seed=seed)
        self.place = 0
        return self._seen(), {}

    def step(self, action):
        self.place += 1
        return self._seen(), self.reward * float(action == 1), self.place >= 6, False, {}

    def _seen(self):
        return np.array([self.place / 6, 1.0], np.float32)


class Uncopied(Corridor):
    """An environment that holds something which cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle 'SwigPyObject' object")


def nested(settings):
    """Return dotted settings as sections."""
    tables = {}
    for path, value in settings.items():
        *above, name = path.split(".")
        table = tables
        for part in above:
            table = table.setdefault(part, {})
        table[name] = value
    return tables


def test_sections_and_dotted_names_say_the_same():
    sections = nested(SMALL)
    assert sections["ppo"]["n_envs"] == 4
    assert dotted(sections) == SMALL


def test_the_command_line_and_a_call_train_the_same_agent(cartpole, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(small().to_toml())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stormsail", "train", "tiny.toml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "finished after 192 steps" in capsys.readouterr().out
    by_command = image(tmp_path / "runs" / "tiny")
    again = ss.train("tiny.toml", out="called", tensorboard=False)
    by_call, by_settings = image(tmp_path / "called"), image(cartpole.folder)
    best = {name for name in by_command if name.startswith("best/")}
    assert len(best) == 3
    for name in best:
        assert by_call[name] == by_command[name] == by_settings[name], name
    tensors = {name for name in by_command if name.startswith("checkpoints/") and "tensors" in name}
    assert tensors
    for name in tensors:  # every weight, moment and random stream
        assert by_call[name] == by_command[name] == by_settings[name], name
    assert again.status == "finished"
    # without a folder of its own a file finds the run of the command line, finished as it is
    assert ss.train("tiny.toml", tensorboard=False).folder.resolve() == tmp_path / "runs" / "tiny"


def test_settings_change_a_file_and_a_configuration(tmp_path):
    (tmp_path / "tiny.toml").write_text(small().to_toml())
    one = {"ppo": {"total_steps": 32, "learning_rate": 5e-4}, "seed": 9}
    by_file = ss.train(tmp_path / "tiny.toml", out=tmp_path / "file", tensorboard=False, **one)
    assert (by_file.updates, by_file.config.seed, by_file.config.ppo.n_envs) == (1, 9, 4)
    by_config = ss.train(small(), out=tmp_path / "config", tensorboard=False, **one)
    assert by_config.config == by_file.config
    assert image(by_config.folder) == image(by_file.folder)


def test_a_run_holds_its_metrics_its_best_agent_and_its_last(cartpole):
    assert (cartpole.status, cartpole.updates, cartpole.steps) == ("finished", UPDATES, 192)
    table = pq.read_table(cartpole.folder / "metrics.parquet").to_pydict()
    assert cartpole.metrics.keys() == table.keys()
    np.testing.assert_array_equal(cartpole.metrics["train/approx_kl"], table["train/approx_kl"])
    assert isinstance(cartpole.best_agent, ss.Agent)
    assert isinstance(cartpole.agent, ss.Agent)
    read = ss.Agent.load(cartpole.best).state_dict()
    for name, tensor in cartpole.best_agent.state_dict().items():
        assert torch.equal(tensor, read[name]), name


class StopAtThree(ss.Callback):
    """Stops after three updates."""

    def on_update(self, progress):
        return ss.Stop("enough") if progress.update == 3 else None


def test_a_stopped_run_goes_on_by_its_folder_to_the_same_bytes(cartpole, tmp_path):
    out = tmp_path / "run"
    same = {"tensorboard": False, "clock": ManualClock()}  # times of events are equal, too
    stopped = ss.train(out=out, callbacks=[StopAtThree()], **same, **CARTPOLE)
    assert (stopped.status, stopped.updates) == ("paused", 3)
    assert stopped.reason == "StopAtThree stopped it: enough"
    with pytest.raises(ArtifactError, match="a run that has saved none yet"):
        _ = stopped.best_agent
    ended = ss.train(out, **same)
    assert (ended.status, ended.updates, ended.folder) == ("finished", UPDATES, out)
    assert image(out) == image(cartpole.folder)


# ------------------------------------------------------------------ environments


QUICK = {**SMALL, "ppo.total_steps": 64, "network.memory": "none"}


def test_an_object_a_factory_and_a_registered_id_train_the_same_agent(tmp_path):
    gymnasium.register("CorridorOfTheTest-v0", entry_point=Corridor)
    try:
        runs = {
            name: ss.train(env=env, out=tmp_path / name, tensorboard=False, **QUICK)
            for name, env in {
                "object": Corridor(),
                "factory": lambda: Corridor(),
                "class": Corridor,
                "id": "CorridorOfTheTest-v0",
                "gym": "gym:CorridorOfTheTest-v0",
            }.items()
        }
    finally:
        del gymnasium.registry["CorridorOfTheTest-v0"]
    names = {name: run.config.task.name for name, run in runs.items()}
    assert names["id"] == names["gym"] == "gym:CorridorOfTheTest-v0"
    assert names["object"] == names["factory"] == names["class"]
    assert names["object"].startswith("gym:own/Corridor-")
    weights = [run.agent.state_dict() for run in runs.values()]
    for other in weights[1:]:
        for name, tensor in weights[0].items():
            assert torch.equal(tensor, other[name]), name


def test_copies_of_an_object_keep_what_it_was_made_with_and_leave_it_alone(tmp_path):
    env = Corridor(reward=3.0)
    run = ss.train(env=env, out=tmp_path / "run", tensorboard=False, **QUICK)
    assert run.best_score is not None
    assert run.best_score % 3.0 == 0.0
    agent = run.best_agent
    assert agent.evaluate(env, 4, policy="sampled").score > 3.0
    assert agent.evaluate(Corridor(), 4, policy="sampled").score <= 6.0
    assert env.place == 0


def test_the_name_of_a_task_of_ours_means_ours(tmp_path):
    run = ss.train(env="CartPole-v1", out=tmp_path / "run", tensorboard=False, **QUICK)
    assert run.config.task.name == "CartPole-v1"
    assert json.loads((run.best / "manifest.json").read_text())["metadata"]["binding"] == {
        "task": "CartPole-v1"
    }


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("env", "found"),
    [
        (7, "a value of the type int"),
        (dict, "a function that returned a value of the type dict"),
        (Uncopied(), "an object that cannot be copied, TypeError: cannot pickle 'SwigPyObject' ob"),
    ],
)
def test_what_is_no_environment_is_refused(env, found, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        ss.train(env=env, out=tmp_path / "run", **QUICK)
    assert caught.value.code == "environment-form"
    assert caught.value.found.startswith(found)
    assert not list(tmp_path.iterdir())


@pytest.mark.refusal
def test_a_vector_environment_is_refused(tmp_path):
    envs = gymnasium.vector.SyncVectorEnv([Corridor, Corridor])
    with pytest.raises(ArgumentError, match=r"found a vector environment\. Pass a single one"):
        ss.train(env=envs, out=tmp_path / "run", **QUICK)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ppo": {"n_env": 8}}, "ppo.n_envs"),
        ({"ppo.n_env": 8}, "ppo.n_envs"),
        ({"sed": 1}, "seed"),
        ({"env": "NoSuchThing-v0"}, "NoSuchThing"),
    ],
)
def test_an_unknown_setting_or_environment_is_named(settings, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        ss.train(out=tmp_path / "run", **settings)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.refusal
def test_a_configuration_of_another_kind_is_refused():
    with pytest.raises(ArgumentError, match=r"must be a `TrainConfig`, or the path .* type dict"):
        ss.train({"seed": 1})


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({}, "missing-argument", "neither a configuration, nor an environment, nor a setting"),
        ({"callbacks": []}, "missing-argument", "must be told what to train"),
        (
            {"env": "CartPole-v1", "task": {"name": "Pendulum-v1"}},
            "config-inconsistent",
            "`env` beside `task.name`",
        ),
        (
            {"env": "CartPole-v1", "callbacks": ss.Callback()},
            "callback-form",
            "`callbacks` must be a list of callbacks; found a value of the type Callback",
        ),
    ],
)
def test_a_call_says_once_what_to_train(arguments, code, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as caught:
        ss.train(**arguments)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())
