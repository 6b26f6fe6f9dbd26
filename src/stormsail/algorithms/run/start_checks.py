"""What a run needs from the machine and the task, asked before its folder is made."""

import itertools
from typing import Any

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.run.tasks import make_task
from stormsail.core.errors import ConfigError
from stormsail.core.memory import check_memory
from stormsail.core.precision import check_precision
from stormsail.core.task import Task
from stormsail.modules.actions import action_head

_NUMBER = 4
"""Bytes of a number."""

_LEAST_COLUMNS = 8
"""Numbers of a sample beside predictions: observation, action, reward, flags, weights."""

_COPIES = 4
"""Of a weight: itself, its gradient and two moments."""


def check_start(config: TrainConfig) -> None:
    """Refuse a run that this machine or its task cannot carry out.

    Raises:
        ConfigError: if there is no such device or task, or the task's actions cannot be drawn from
            the chosen distribution.
        DataError: if the bars are not there or do not suffice.
    """
    check_device(config.device)
    check_precision(derive(config).precision, torch.device(config.device))
    check_rollout(config)
    if config.policy.distribution != "auto":  # which fits every task
        plain = config.replace(**{"task.compile_step": False})
        _check_actions(config, make_task(plain, batch=1))


def _check_actions(config: TrainConfig, task: Task[Any]) -> None:
    """Refuse a distribution that cannot draw the task's actions, naming both settings."""
    try:
        action_head(task.actions, config.policy)
    except ConfigError as error:
        raise ConfigError(
            error.code,
            wrong=f"{error.wrong}, which `task.name` `{config.task.name}` takes",
            found=error.found,
            remedy="Set `policy.distribution` to `auto`, which fits every task, or change "
            "`task.name`.",
        ) from None


def check_rollout(config: TrainConfig) -> None:
    """Refuse a rollout, networks or evaluations that do not fit into the memory of this machine.

    Counted is what must exist at once at the least, so nothing that fits is refused.

    Raises:
        ConfigError: if they do not; it names the sizes.
    """
    if torch.device(config.device).type != "cpu":  # a GPU has its own memory, and says so itself
        return
    derived = derive(config)
    ppo, critic = derived.ppo, derived.critic
    predicted = {"quantile": critic.num_quantiles, "categorical": critic.num_atoms, "scalar": 1}
    sample = _LEAST_COLUMNS + critic.critics * predicted[critic.kind]
    check_memory(
        _NUMBER * ppo.n_envs * ppo.n_steps * sample,
        what="a rollout",
        found=f"`ppo.n_envs` {ppo.n_envs:,} and `ppo.n_steps` {ppo.n_steps:,}",
        remedy="Lower `ppo.n_envs` or `ppo.n_steps`.",
    )
    network = derived.network
    memory = network.num_layers * network.lstm_hidden_size**2 * (network.memory != "none")
    widths = (*network.encoder_sizes, network.lstm_hidden_size)
    layers = sum(a * b for a, b in itertools.pairwise(widths))
    heads = sum(
        a * b for a, b in itertools.pairwise((network.lstm_hidden_size, *network.head_sizes))
    )
    check_memory(
        _NUMBER * _COPIES * (3 * memory + layers + (1 + critic.critics) * heads),
        what="the weights, their gradients and the optimizer",
        found=f"`network.encoder_sizes` {list(network.encoder_sizes)}, "
        f"`network.lstm_hidden_size` {network.lstm_hidden_size:,}, "
        f"`network.num_layers` {network.num_layers} and `network.head_sizes` "
        f"{list(network.head_sizes)}",
        remedy="Lower the widths.",
    )
    if derived.validation.every_updates:
        episodes = derived.validation.episodes
        check_memory(
            _NUMBER * episodes * (_LEAST_COLUMNS + network.lstm_hidden_size),
            what="an evaluation",
            found=f"`validation.episodes` {episodes:,}",
            remedy="Lower `validation.episodes`.",
        )


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ConfigError: if it does not; it lists those there are.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(f"cuda:{index}" for index in range(count))]
    if name in devices or (name == "cuda" and count):
        return
    raise ConfigError(
        "config-value",
        wrong="`device` must be one that this machine has",
        found=f"`{name}`",
        remedy=f"Set `device` to {' or '.join(f'`{device}`' for device in devices)}.",
    )
