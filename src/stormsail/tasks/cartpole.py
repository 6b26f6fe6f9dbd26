"""CartPole: keep a pole upright on a cart by pushing left or right."""

import math

import torch
from torch import Tensor

from stormsail.core.task import DiscreteActions
from stormsail.tasks.base import ControlTask

_GRAVITY = 9.8
_POLE_MASS = 0.1
_TOTAL_MASS = _POLE_MASS + 1.0
_HALF_LENGTH = 0.5
_POLE_MOMENT = _POLE_MASS * _HALF_LENGTH
_FORCE = 10.0
_SECONDS = 0.02
_ANGLE_LIMIT = 12 * 2 * math.pi / 360
_POSITION_LIMIT = 2.4


class CartPole(ControlTask):
    """Gymnasium's `CartPole-v1`, after Barto, Sutton & Anderson (1983), without friction.

    Action 0 pushes left, 1 right. The reward is 1 for every step, the last one included. Positions
    move by the old velocities (explicit Euler). Terminated beyond 2.4 or 12 degrees.
    """

    physical_names = ("position", "velocity", "angle", "angular_velocity")
    observation_names = physical_names
    velocity_names = ("velocity", "angular_velocity")
    actions = DiscreteActions(2)
    limit = 500
    low = (-0.05,) * 4
    high = (0.05,) * 4

    def _move(self, physical: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, velocity, angle, rate = physical.unbind(-1)
        force = (2 * action - 1).to(physical.dtype) * _FORCE
        cosine, sine = angle.cos(), angle.sin()
        pushed = (force + _POLE_MOMENT * rate.square() * sine) / _TOTAL_MASS
        inertia = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cosine.square() / _TOTAL_MASS)
        turning = (_GRAVITY * sine - cosine * pushed) / inertia
        driving = pushed - _POLE_MOMENT * turning * cosine / _TOTAL_MASS
        position = position + _SECONDS * velocity
        angle = angle + _SECONDS * rate
        moved = torch.stack(
            (position, velocity + _SECONDS * driving, angle, rate + _SECONDS * turning), -1
        )  # [B, 4]
        terminated = (position.abs() > _POSITION_LIMIT) | (angle.abs() > _ANGLE_LIMIT)
        return moved, torch.ones_like(position), terminated

    def _observe(self, physical: Tensor) -> Tensor:
        return physical
