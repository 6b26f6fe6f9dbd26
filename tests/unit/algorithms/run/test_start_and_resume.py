"""What a caller leaves open is derived when a run begins, and taken from the run afterwards."""

import pytest

from stormsail.algorithms.config import TrainConfig, derive
from stormsail.algorithms.run.folder import read_config, read_lineage
from stormsail.algorithms.trainer import train
from stormsail.core.errors import ConfigError
from training_lab import SMALL, TASKS, run_for

OPENED = ("ppo.n_envs", "ppo.n_epochs", "ppo.batch_size", "ppo.learning_rate")
GIVEN = {**SMALL, **TASKS["cartpole"], "ppo.total_steps": 512, "validation.every_updates": 0}
OPEN = TrainConfig().replace(**{name: value for name, value in GIVEN.items() if name not in OPENED})


@pytest.fixture
def begun(tmp_path):
    """A run of open settings after one of its four updates."""
    run_for(OPEN, tmp_path / "run", 1)
    return tmp_path / "run"


def test_derived_values_stand_in_the_folder(begun):
    config = read_config(begun)
    assert config == derive.derive(OPEN)
    assert (config.ppo.n_envs, config.ppo.batch_size, config.ppo.learning_rate) == (16, 4, 1e-3)
    assert config.threads == 1
    assert set(read_lineage(begun).derived) == set(derive.open_settings(OPEN))


def test_what_a_later_version_derives_changes_no_run_that_has_begun(begun, monkeypatch):
    expected = read_config(begun)
    sizes = {key: value._replace(n_envs=8, learning_rate=0.5)
             for key, value in derive._SIZES.items()}  # fmt: skip
    monkeypatch.setattr(derive, "_SIZES", sizes)
    assert derive.derive(OPEN) != expected
    done = train(OPEN, out=begun, tensorboard=False)
    assert (done.status, done.config, done.updates) == ("finished", expected, 4)
    assert read_config(begun) == expected


@pytest.mark.refusal
def test_what_is_given_must_be_what_was_derived(begun):
    same = OPEN.replace(**{"ppo.n_envs": 16, "ppo.batch_size": 4})
    with pytest.raises(ConfigError) as caught:
        train(OPEN.replace(**{"ppo.n_envs": 8, "threads": 2}), out=begun, tensorboard=False)
    assert caught.value.found == "`ppo.n_envs` 8 instead of 16, `threads` 2 instead of 1"
    assert train(same, out=begun, tensorboard=False).status == "finished"


def test_the_default_folder_is_named_after_what_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = train(OPEN, tensorboard=False)
    given = done.path.name
    monkeypatch.setattr(derive, "_THREADS", 2)
    assert train(OPEN, tensorboard=False).path.name == given
