"""What a run needs from the machine and the task, asked before its folder is made."""

from typing import Any

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.tasks import make_task
from stormsail.core.errors import ConfigError
from stormsail.core.task import Task
from stormsail.modules.actions import action_head


def check_start(config: TrainConfig) -> None:
    """Refuse a run that this machine or its task cannot carry out.

    Raises:
        ConfigError: if there is no such device or task, or the task's actions cannot be drawn from
            the chosen distribution.
        DataError: if the bars are not there or do not suffice.
    """
    check_device(config.device)
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
