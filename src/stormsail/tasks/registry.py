"""Tasks by the names under which Gymnasium and rl-baselines3-zoo know them, and our own."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from stormsail.core import plugins
from stormsail.core.errors import (
    ArgumentError,
    ChoiceError,
    ConfigError,
    StormsailError,
    nearest,
)
from stormsail.core.task import Task
from stormsail.tasks.acrobot import Acrobot
from stormsail.tasks.base import ControlTask
from stormsail.tasks.cartpole import CartPole
from stormsail.tasks.mountain_car import MountainCarContinuous
from stormsail.tasks.pendulum import Pendulum
from stormsail.tasks.recall import Recall

_WHOLE: dict[str, type[ControlTask]] = {
    "Acrobot-v1": Acrobot,
    "CartPole-v1": CartPole,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}
_MASKED = {name.replace("-", "NoVel-"): kind for name, kind in _WHOLE.items()}
_OWN: dict[str, type[ControlTask]] = {"Recall-v0": Recall}

NAMES = tuple(sorted((*_WHOLE, *_MASKED, *_OWN)))
"""Every name that `make` knows.

`NoVel` ones show velocities as 0. Names and masks are those of rl-baselines3-zoo, save for
`AcrobotNoVel-v1` and `Recall-v0`, which are ours.
"""


Factory = Callable[..., Task[Any]]
"""`(batch, device, dtype)`, by keyword, to a task."""

AnyFactory = TypeVar("AnyFactory", bound=Factory)

TASKS = plugins.published(
    plugins.Registry[Factory](
        "task",
        form=re.compile(r"[A-Za-z][\w-]*"),
        like="letters, digits, underscores and hyphens, such as `Corridor-v0`",
    )
)
"""Where `task` puts what it decorates."""

_MEMBERS = ("actions", "batch", "device", "observation_names", "observation_size", "reset", "step")


def task(*, name: str) -> Callable[[AnyFactory], AnyFactory]:
    """Register a batched task: a class such as one made from `ControlTask`, or a function.

    It is called as `factory(batch=..., device=..., dtype=...)` and returns a `core.task.Task`.

    Args:
        name: unique; `task.name` names it.

    Raises:
        ArgumentError: if the name is taken or badly formed.
    """

    def register(factory: AnyFactory) -> AnyFactory:
        TASKS.check(name, factory)
        if name in NAMES or name == "market":
            raise ArgumentError(
                "plugin-duplicate",
                wrong=f"the name `{name}` must belong to one task",
                found="that of the package under that name",
                remedy="Choose another name.",
            )
        TASKS.register(name, factory, defined=factory)
        return factory

    return register


def _own(name: str, *, batch: int, device: torch.device | str, dtype: torch.dtype) -> Task[Any]:
    try:
        made = TASKS.get(name)(batch=batch, device=device, dtype=dtype)
    except StormsailError:
        raise
    except Exception as error:  # a user's factory may raise anything
        raise _wrong(name, "must be made", f"{type(error).__name__}: {error}") from error
    missing = [member for member in _MEMBERS if not hasattr(made, member)]
    if missing:
        raise _wrong(name, f"must have `{missing[0]}`", f"a {type(made).__name__} without it")
    return made


def _wrong(name: str, must: str, found: str) -> ConfigError:
    return ConfigError(
        "plugin-result",
        wrong=f"the task `{name}` {must}",
        found=found,
        remedy="Make it from `stormsail.tasks.ControlTask`, or as `stormsail.core.task.Task` says.",
    )


def make(
    name: str,
    *,
    batch: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Task[Any]:
    """Return a batch of the task called `name`.

    Args:
        name: one of `NAMES`, or of a plug-in; for example `CartPole-v1` or `CartPoleNoVel-v1`.
        batch: number of environments, at least 1.
        device: where all tensors live.
        dtype: float32 or float64.

    Raises:
        ChoiceError: for another name.
        RangeError: for a batch below 1.
        DtypeError: for another dtype.
        ConfigError: if a plug-in's task cannot be made, or is none.
    """
    plain = {**_WHOLE, **_OWN}
    if name in plain:
        return plain[name](batch=batch, device=device, dtype=dtype)
    if name in _MASKED:
        kind = _MASKED[name]
        return kind(batch=batch, device=device, dtype=dtype, hide=kind.velocity_names)
    if name in TASKS:
        return _own(name, batch=batch, device=device, dtype=dtype)
    close = nearest(name, (*NAMES, *TASKS.names()))
    raise ChoiceError(
        wrong=f"`name` must be one of {', '.join((*NAMES, *TASKS.names()))}",
        found=repr(name),
        remedy=f"Did you mean `{close}`?" if close else "Take one of these tasks.",
    )
