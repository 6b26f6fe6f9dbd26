"""Control tasks by the names under which Gymnasium and rl-baselines3-zoo know them."""

import torch

from stormsail.core.errors import ChoiceError, nearest
from stormsail.tasks.acrobot import Acrobot
from stormsail.tasks.base import ControlTask
from stormsail.tasks.cartpole import CartPole
from stormsail.tasks.mountain_car import MountainCarContinuous
from stormsail.tasks.pendulum import Pendulum

_WHOLE: dict[str, type[ControlTask]] = {
    "Acrobot-v1": Acrobot,
    "CartPole-v1": CartPole,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}
_MASKED = {name.replace("-", "NoVel-"): kind for name, kind in _WHOLE.items()}

NAMES = tuple(sorted((*_WHOLE, *_MASKED)))
"""Every name that `make` knows.

`NoVel` ones show velocities as 0. Names and masks are those of rl-baselines3-zoo, save for
`AcrobotNoVel-v1`, which is ours: the zoo has none.
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
    if name in _WHOLE:
        return _WHOLE[name](batch=batch, device=device, dtype=dtype)
    if name in _MASKED:
        kind = _MASKED[name]
        return kind(batch=batch, device=device, dtype=dtype, hide=kind.velocity_names)
    close = nearest(name, NAMES)
    raise ChoiceError(
        wrong=f"`name` must be one of {', '.join(NAMES)}",
        found=repr(name),
        remedy=f"Did you mean `{close}`?" if close else "Take one of these tasks.",
    )
