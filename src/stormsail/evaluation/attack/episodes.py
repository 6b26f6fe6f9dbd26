"""Episodes of an agent whose observations are forged, in closed loop.

The task never sees the forgery: it goes on from the true state with the action that the forgery
led to. The agent's memory is the one that it has after all forgeries before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import Actions, ContinuousActions, Task, action_mask
from stormsail.evaluation.attack.attackers import Attacker, Situation
from stormsail.evaluation.attack.columns import Ball
from stormsail.modules.agent import Agent, Draw, JudgedPolicy

MAX_STEPS = 20_000
"""Episodes are cut off after this many steps."""


class AttackedEpisodes(NamedTuple):
    """The first episode of every environment."""

    returns: Tensor
    """Sum of rewards, float64 [B]."""
    changed: float
    """Mean of `action_change` over all decisions."""
    decisions: int
    """Decisions of all episodes."""
    unfinished: int
    """Episodes that were cut off."""


@torch.no_grad()
def run_attacked(
    task: Task[Any],
    agent: Agent,
    ball: Ball,
    attacker: Attacker,
    *,
    starts: torch.Generator,
    policy: JudgedPolicy,
    actions: torch.Generator | None = None,
    max_steps: int = MAX_STEPS,
) -> AttackedEpisodes:
    """Run the first episode of every environment to its end under attack.

    Within a ball of radius 0 every bit is that of the evaluation without an attack
    (`algorithms.run.evaluate`) from equal generators: the attack draws from a generator of its own,
    and the decision on the true observation, which it is compared with, takes nothing out of
    `actions`.

    Args:
        task: a batch as large as the number of episodes.
        agent: decides.
        ball: of the perturbations.
        attacker: chooses one at every decision.
        starts: of the task; equal ones give equal episodes.
        policy: the likeliest action, or actions drawn from `actions`.
        actions: needed for `sampled`.
        max_steps: see `MAX_STEPS`.

    Raises:
        ConfigError: if actions must be sampled and there is no generator for them.
    """
    state, observation = task.reset(starts)
    memory = agent.initial_memory(task.batch)
    remembered = attacker.initial_state(task.batch)
    running = torch.ones(task.batch, dtype=torch.bool, device=task.device)
    totals = torch.zeros(task.batch, dtype=torch.float64, device=task.device)
    changes, decisions = torch.zeros_like(totals), torch.zeros_like(totals)
    drawn_from = actions if policy == "sampled" else None
    for _ in range(max_steps):
        mask, seen = action_mask(task, state), agent.normalised(observation)

        def decided(shown: Tensor, memory: Tensor = memory, mask: Tensor | None = mask) -> Draw:
            greedy = policy == "greedy"
            return agent.draw(shown, memory, deterministic=greedy, generator=drawn_from, mask=mask)

        with _unmoved(drawn_from):
            clean = decided(seen)
        situation = Situation(observation, seen, memory, mask, clean)
        delta, remembered = attacker.perturb(situation, remembered)
        decision = decided(ball.forged(seen, delta))
        change = action_change(task.actions, clean.action, decision.action)
        state, step = task.step(state, decision.action, starts)
        observation, memory = step.observation, decision.memory
        totals = totals + torch.where(running, step.reward.double(), 0.0)
        changes, decisions = changes + torch.where(running, change, 0.0), decisions + running
        running = running & ~(step.terminated | step.truncated)
        if not bool(running.any()):
            break
    count = int(decisions.sum())
    return AttackedEpisodes(totals, float(changes.sum()) / count, count, int(running.sum()))


def action_change(actions: Actions, clean: Tensor, attacked: Tensor) -> Tensor:
    """Return how much a decision was changed, between 0 and 1, float64 [B].

    Classes: 1 where any of them is another one. Numbers: the mean over dimensions of the distance
    as a share of the range, since any perturbation changes a number at least a little.
    """
    if not isinstance(actions, ContinuousActions):
        other = clean != attacked
        return (other if other.ndim == 1 else other.any(-1)).double()
    low, high = clean.new_tensor(actions.low), clean.new_tensor(actions.high)
    first, second = (part.clamp(low, high).double() for part in (clean, attacked))
    return ((first - second).abs() / (high - low).double()).mean(-1)


@contextmanager
def _unmoved(generator: torch.Generator | None) -> Iterator[None]:
    """Put a generator back to where it was."""
    before = None if generator is None else generator.get_state()
    yield
    if generator is not None and before is not None:
        generator.set_state(before)
