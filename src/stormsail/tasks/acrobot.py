"""Acrobot: swing the free end of two hanging links up by a torque at the joint between them."""

import math

import torch
from torch import Tensor

from stormsail.core.task import DiscreteActions
from stormsail.tasks.base import ControlTask

# Both links have mass 1, length 1, centre of mass at 0.5 and moment of inertia 1.
_GRAVITY = 9.8
_CENTRE = 0.5
_SECONDS = 0.2
_FIRST_SPEED_LIMIT = 4.0 * math.pi
_SECOND_SPEED_LIMIT = 9.0 * math.pi
_TURN = 2.0 * math.pi


class Acrobot(ControlTask):
    """Gymnasium's `Acrobot-v1`, with the equations of Sutton & Barto's book.

    Actions 0, 1, 2 are torques -1, 0, 1. One Runge-Kutta step of fourth order over 0.2 s; then the
    angles are brought into [-π, π] and the speeds cut at 4π and 9π. Terminated, with reward 0, once
    -cos θ₁ - cos(θ₁ + θ₂) > 1; the reward is -1 for every other step.

    Gymnasium rounds its starts to float32; we keep the dtype of the task.
    """

    physical_names = ("first_angle", "second_angle", "first_velocity", "second_velocity")
    observation_names = (
        "cos_first_angle",
        "sin_first_angle",
        "cos_second_angle",
        "sin_second_angle",
        "first_velocity",
        "second_velocity",
    )
    velocity_names = ("first_velocity", "second_velocity")
    actions = DiscreteActions(3)
    limit = 500
    low = (-0.1,) * 4
    high = (0.1,) * 4

    def _move(self, physical: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torque = (action - 1).to(physical.dtype)
        k1 = _derivative(physical, torque)
        k2 = _derivative(physical + _SECONDS / 2.0 * k1, torque)
        k3 = _derivative(physical + _SECONDS / 2.0 * k2, torque)
        k4 = _derivative(physical + _SECONDS * k3, torque)
        moved = physical + _SECONDS / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        first, second, first_rate, second_rate = moved.unbind(-1)
        first, second = _wrap(first), _wrap(second)
        first_rate = first_rate.clamp(-_FIRST_SPEED_LIMIT, _FIRST_SPEED_LIMIT)
        second_rate = second_rate.clamp(-_SECOND_SPEED_LIMIT, _SECOND_SPEED_LIMIT)
        moved = torch.stack((first, second, first_rate, second_rate), -1)  # [B, 4]
        terminated = -first.cos() - (second + first).cos() > 1.0
        return moved, terminated.to(physical.dtype) - 1.0, terminated

    def _observe(self, physical: Tensor) -> Tensor:
        first, second, first_rate, second_rate = physical.unbind(-1)
        seen = (first.cos(), first.sin(), second.cos(), second.sin(), first_rate, second_rate)
        return torch.stack(seen, -1)  # [B, 6]


def _derivative(physical: Tensor, torque: Tensor) -> Tensor:
    """Return the time derivative of (θ₁, θ₂, ω₁, ω₂) under a constant torque."""
    first, second, first_rate, second_rate = physical.unbind(-1)
    cosine, sine = second.cos(), second.sin()
    d1 = _CENTRE**2 + (1.0 + _CENTRE**2 + 2.0 * _CENTRE * cosine) + 2.0
    d2 = _CENTRE**2 + _CENTRE * cosine + 1.0
    phi2 = _CENTRE * _GRAVITY * (first + second - math.pi / 2.0).cos()
    phi1 = (
        -_CENTRE * second_rate.square() * sine
        - 2.0 * _CENTRE * second_rate * first_rate * sine
        + (_CENTRE + 1.0) * _GRAVITY * (first - math.pi / 2.0).cos()
        + phi2
    )
    pull = torque + d2 / d1 * phi1 - _CENTRE * first_rate.square() * sine - phi2
    second_gain = pull / (_CENTRE**2 + 1.0 - d2.square() / d1)
    first_gain = -(d2 * second_gain + phi1) / d1
    return torch.stack((first_rate, second_rate, first_gain, second_gain), -1)  # [B, 4]


def _wrap(angle: Tensor) -> Tensor:
    """Return the angle in [-π, π], to rounding, by whole turns; π and -π stay as they are.

    Gymnasium subtracts turns in a loop. Here they are counted: ceil((|θ| - π) / 2π), never below 0.
    """
    turns = ((angle.abs() - math.pi) / _TURN).ceil().clamp(min=0.0)
    return angle - angle.sign() * turns * _TURN
