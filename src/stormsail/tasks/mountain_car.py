"""MountainCarContinuous: leave a valley with an engine too weak to climb out at once."""

import torch
from torch import Tensor

from stormsail.core.task import ContinuousActions
from stormsail.tasks.base import ControlTask

_POWER = 0.0015
_SLOPE = 0.0025
_SPEED_LIMIT = 0.07
_LEFT = -1.2
_RIGHT = 0.6
_GOAL = 0.45
_FORCE_LIMIT = 1.0


class MountainCarContinuous(ControlTask):
    """Gymnasium's `MountainCarContinuous-v0`, after Moore (1990).

    With the force u clipped to [-1, 1]: v' = clip(v + 0.0015 u - 0.0025 cos 3x, ±0.07) and
    x' = clip(x + v', -1.2, 0.6); at the left wall a leftward speed becomes 0. Terminated from 0.45
    on, unless the car rolls backwards. The reward is 100 at the goal, less 0.1 a² at every step,
    where a is the action as given: as in Gymnasium the cost is not clipped with the force.

    Gymnasium rounds its state to float32 after every step whatever went in; we keep the dtype of
    the task, so a float64 task is the unrounded one.
    """

    physical_names = ("position", "velocity")
    observation_names = physical_names
    velocity_names = ("velocity",)
    actions = ContinuousActions((-_FORCE_LIMIT,), (_FORCE_LIMIT,))
    limit = 999
    low = (-0.6, 0.0)
    high = (-0.4, 0.0)

    def _move(self, physical: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, velocity = physical.unbind(-1)
        given = action[:, 0]
        force = given.clamp(-_FORCE_LIMIT, _FORCE_LIMIT)
        velocity = velocity + (force * _POWER - _SLOPE * (3.0 * position).cos())
        velocity = velocity.clamp(-_SPEED_LIMIT, _SPEED_LIMIT)
        position = position + velocity
        stopped = (position <= _LEFT) & (velocity < 0.0)
        velocity = torch.where(stopped, 0.0, velocity)
        position = position.clamp(_LEFT, _RIGHT)
        terminated = (position >= _GOAL) & (velocity >= 0.0)
        reward = 100.0 * terminated.to(given.dtype) - given.square() * 0.1
        return torch.stack((position, velocity), -1), reward, terminated

    def _observe(self, physical: Tensor) -> Tensor:
        return physical
