"""What the machine or the task cannot do is refused before there is a folder."""

import pytest
import torch

from stormsail.algorithms.run.start_checks import check_device, check_start
from stormsail.algorithms.trainer import train
from stormsail.core.errors import ConfigError
from training_lab import small


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("count", "name", "devices"),
    [
        (0, "cuda", "`cpu`"),
        (0, "cuda:0", "`cpu`"),
        (2, "cuda:9", "`cpu` or `cuda:0` or `cuda:1`"),
        (1, "cuda:1", "`cpu` or `cuda:0`"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch, count, name, devices
):
    gpus(monkeypatch, count)
    with pytest.raises(ConfigError) as caught:
        check_device(name)
    assert str(caught.value) == (
        f"`device` must be one that this machine has; found `{name}`. Set `device` to {devices}. "
        "[config-value]"
    )


@pytest.mark.parametrize(
    ("count", "name"), [(0, "cpu"), (1, "cpu"), (1, "cuda"), (1, "cuda:0"), (3, "cuda:2")]
)
def test_a_device_that_is_there_is_accepted(monkeypatch, count, name):
    gpus(monkeypatch, count)
    check_device(name)


UNFIT = {
    "beta on classes": (
        small("cartpole-lstm", policy__distribution="beta"),
        "`policy.distribution` must be `auto` or `categorical` for discrete actions, which "
        "`task.name` `CartPoleNoVel-v1` takes; found `beta`. Set `policy.distribution` to "
        "`auto`, which fits every task, or change `task.name`. [config-inconsistent]",
    ),
    "a Gaussian on levels": (
        small("market", policy__distribution="squashed_gaussian"),
        "`policy.distribution` must be `auto` or `categorical` for discrete actions, which "
        "`task.name` `market` takes; found `squashed_gaussian`. Set `policy.distribution` to "
        "`auto`, which fits every task, or change `task.name`. [config-inconsistent]",
    ),
    "classes on numbers": (
        small("pendulum", policy__distribution="categorical"),
        "`policy.distribution` must be `auto`, `squashed_gaussian` or `beta` for continuous "
        "actions, which `task.name` `Pendulum-v1` takes; found `categorical`. Set "
        "`policy.distribution` to `auto`, which fits every task, or change `task.name`. "
        "[config-inconsistent]",
    ),
    "a GPU of another machine": (small("cartpole-lstm", device="cuda:99"), None),
}


@pytest.mark.refusal
@pytest.mark.parametrize("name", UNFIT)
def test_a_run_that_cannot_start_leaves_nothing_behind(name, tmp_path):
    config, words = UNFIT[name]
    with pytest.raises(ConfigError) as caught:
        train(config, out=tmp_path / "runs" / "refused", tensorboard=False)
    assert words is None or str(caught.value) == words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", ["cartpole", "pendulum", "market"])
def test_what_fits_is_accepted(task):
    check_start(small(task))
    fitting = {"pendulum": "beta"}.get(task, "categorical")
    check_start(small(task, policy__distribution=fitting))
