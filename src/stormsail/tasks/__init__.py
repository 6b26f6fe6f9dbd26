"""Classic control tasks as batched tensor code, equal to Gymnasium's step by step.

On them the learner is compared with published results. The velocity-masked versions, called NoVel,
leave the rates to be worked out from memory. `Recall` is our own: a memory is all that it needs.
"""

from stormsail.core.task import ContinuousActions, DiscreteActions
from stormsail.tasks.acrobot import Acrobot
from stormsail.tasks.base import ControlInfo, ControlState, ControlTask
from stormsail.tasks.cartpole import CartPole
from stormsail.tasks.mountain_car import MountainCarContinuous
from stormsail.tasks.pendulum import Pendulum
from stormsail.tasks.recall import Recall
from stormsail.tasks.registry import NAMES, TASKS, make, task

__all__ = [
    "NAMES",
    "TASKS",
    "Acrobot",
    "CartPole",
    "ContinuousActions",
    "ControlInfo",
    "ControlState",
    "ControlTask",
    "DiscreteActions",
    "MountainCarContinuous",
    "Pendulum",
    "Recall",
    "make",
    "task",
]
