"""Tasks by the names under which Gymnasium and rl-baselines3-zoo know them, and our own."""

import torch

from stormsail.core.errors import ChoiceError, nearest
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


def make(
    name: str,
    *,
    batch: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> ControlTask:
    """Return a batch of the task called `name`.

    Args:
        name: one of `NAMES`, for example `CartPole-v1` or `CartPoleNoVel-v1`.
        batch: number of environments, at least 1.
        device: where all tensors live.
        dtype: float32 or float64.

    Raises:
        ChoiceError: for another name.
        RangeError: for a batch below 1.
        DtypeError: for another dtype.
    """
    plain = {**_WHOLE, **_OWN}
    if name in plain:
        return plain[name](batch=batch, device=device, dtype=dtype)
    if name in _MASKED:
        kind = _MASKED[name]
        return kind(batch=batch, device=device, dtype=dtype, hide=kind.velocity_names)
    close = nearest(name, NAMES)
    raise ChoiceError(
        wrong=f"`name` must be one of {', '.join(NAMES)}",
        found=repr(name),
        remedy=f"Did you mean `{close}`?" if close else "Take one of these tasks.",
    )
