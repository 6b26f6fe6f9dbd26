"""Pendulum: swing a free pendulum up and hold it there with a weak torque."""

import math

import torch
from torch import Tensor

from stormsail.core.task import ContinuousActions
from stormsail.tasks.base import ControlTask

_GRAVITY = 10.0
_SECONDS = 0.05
_SPEED_LIMIT = 8.0
_TORQUE_LIMIT = 2.0


class Pendulum(ControlTask):
    """Gymnasium's `Pendulum-v1`, mass and length 1.

    With the angle θ from upright, its rate ω and the torque u clipped to [-2, 2]:
    reward = -(θ̄² + 0.1 ω² + 0.001 u²), where θ̄ is θ brought into [-π, π), all before the move;
    ω' = clip(ω + (15 sin θ + 3 u) · 0.05, -8, 8) and θ' = θ + 0.05 ω'. Nothing terminates.

    The angle itself is never wrapped, so after 200 steps it may be 80 and more. Gymnasium also
    keeps the last torque, for drawing only; we do not.
    """

    physical_names = ("angle", "angular_velocity")
    observation_names = ("cos_angle", "sin_angle", "angular_velocity")
    velocity_names = ("angular_velocity",)
    actions = ContinuousActions((-_TORQUE_LIMIT,), (_TORQUE_LIMIT,))
    limit = 200
    low = (-math.pi, -1.0)
    high = (math.pi, 1.0)

    def _move(self, physical: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, rate = physical.unbind(-1)
        torque = action[:, 0].clamp(-_TORQUE_LIMIT, _TORQUE_LIMIT)
        near = (angle + math.pi).remainder(2.0 * math.pi) - math.pi
        cost = near.square() + 0.1 * rate.square() + 0.001 * torque.square()
        rate = rate + (1.5 * _GRAVITY * angle.sin() + 3.0 * torque) * _SECONDS
        rate = rate.clamp(-_SPEED_LIMIT, _SPEED_LIMIT)
        moved = torch.stack((angle + rate * _SECONDS, rate), -1)  # [B, 2]
        return moved, -cost, torch.zeros_like(angle, dtype=torch.bool)

    def _observe(self, physical: Tensor) -> Tensor:
        angle, rate = physical.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), rate), -1)  # [B, 3]
