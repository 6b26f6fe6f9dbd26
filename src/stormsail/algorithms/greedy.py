"""Judging an agent while it learns: episodes without exploration, one for each environment."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import Task
from stormsail.modules.agent import Agent

MAX_STEPS = 20_000
"""An episode that has not ended by then is judged by what it has earned."""


class Judged(NamedTuple):
    """What greedy episodes earned."""

    score: float
    """Mean return."""
    spread: float
    """Standard deviation of the returns; 0 for a single one."""
    episodes: int
    unfinished: int
    """Episodes that were cut off because they did not end."""


@torch.no_grad()
def judge(
    task: Task[Any], agent: Agent, generator: torch.Generator, *, max_steps: int = MAX_STEPS
) -> Judged:
    """Play the first episode of every environment to its end, always the likeliest action.

    One episode each, not as many as fit into some time: short ones would count more often.

    Args:
        task: a batch as large as the number of episodes.
        agent: who plays.
        generator: of the starts; equal ones give equal episodes, so that agents can be compared.
        max_steps: see `MAX_STEPS`.
    """
    state, observation = task.reset(generator)
    memory = agent.initial_memory(task.batch)
    running = torch.ones(task.batch, dtype=torch.bool, device=task.device)
    earned = torch.zeros(task.batch, dtype=torch.float64, device=task.device)
    for _ in range(max_steps):
        decision = agent.decide(observation, memory, deterministic=True)
        state, step = task.step(state, decision.action, generator)
        observation, memory = step.observation, decision.memory
        earned = earned + torch.where(running, step.reward.double(), 0.0)
        running = running & ~(step.terminated | step.truncated)
        if not bool(running.any()):
            break
    return _judged(earned, running)


def _judged(earned: Tensor, running: Tensor) -> Judged:
    spread = float(earned.std()) if len(earned) > 1 else 0.0
    return Judged(float(earned.mean()), spread, len(earned), int(running.sum()))
