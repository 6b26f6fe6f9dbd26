"""What every action leads to: episodes played on from the states of a rollout, on the same draws.

A state of a task with `alternatives` fixes the draws of its episode. From some states of the newest
rollout, every action is taken once and the episode is played on by the present policy, all
branches of a state with the same draws and the same random numbers of the policy. What their ends
differ in is due to the action alone, whatever it made of the account. It is the sampling scheme
that Schulman et al. 2015 (Trust Region Policy Optimization, arXiv:1502.05477) call vine, with
common random numbers; what is learned from it, and how it is used, is ours.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.task import DiscreteActions, Task, alternatives, with_batch
from stormsail.functional import risk
from stormsail.modules.agent import Agent

LEAST_SHARE = 0.05
"""Share of the variance of rewards due to the account from which on branches are needed: below it,
returns so far can be shifted without changing what follows."""

MOST_STATES = 512
"""Largest number of states that are branched from in one update."""

LEAST_STATES = 64
"""Smallest number."""

STEPS = 8
"""Steps of all branches together, in those of a rollout."""

MEASURED = 256
"""Episodes by which the share is measured."""


class Branches(NamedTuple):
    """Ends of the branches of n states."""

    places: Tensor
    """Of the states in the flat rollout, int64 [n]."""
    total: Tensor
    """Return of the whole episode after every action, float64 [n, K]."""


@torch.no_grad()
def measure_account_share(task: Task[Any], grid: Tensor, *, steps: int) -> float:
    """Return `functional.risk.account_share` in the middle of a task's episodes.

    Every action is held throughout the first half of the same episodes; then all actions are asked
    what they would make of the coming step. A generator of its own draws the episodes.

    Args:
        task: has `alternatives`.
        grid: actions, [K], as the task takes them.
        steps: longest that an episode lasts.
    """
    generator = torch.Generator(device=task.device).manual_seed(0)
    state, _ = with_batch(task, MEASURED).reset(generator)
    whole, state = _repeated(task, state, MEASURED, len(grid))
    held = _actions(task, grid.repeat(MEASURED))
    running = torch.ones(whole.batch, dtype=torch.bool, device=task.device)
    for _ in range(steps // 2):
        state, step = whole.step(state, held, generator)
        running = running & ~(step.terminated | step.truncated)
    made = alternatives(whole, state, grid)
    if made is None:
        raise LookupError("a task without alternatives has no accounts to compare")
    shape = (MEASURED, len(grid))
    reward = made.reward.double().unflatten(0, shape)
    return float(risk.account_share(reward, running.double().unflatten(0, shape)))


def branched_states(rows: int, actions: int, horizon: int) -> int:
    """Return from how many states of a rollout branches are played."""
    affordable = STEPS * rows // max(actions * horizon, 1)
    return min(max(affordable, LEAST_STATES), MOST_STATES, rows)


@torch.no_grad()
def play_branches(
    task: Task[Any],
    agent: Agent,
    rollout: Rollout,
    grid: Tensor,
    *,
    steps: int,
    generators: tuple[torch.Generator, torch.Generator],
) -> Branches:
    """Take every action in some states of a rollout, and play each episode to its end.

    Args:
        task: has `alternatives`; it is played with another number of environments.
        agent: draws the actions after the first.
        rollout: with `options`.
        grid: actions, [K], as the task takes them.
        steps: longest that an episode lasts.
        generators: of states and actions, and of what the task draws beside the episode's own
            draws.
    """
    options, (choice, further) = rollout.options, generators
    if options is None or options.state is None:
        raise LookupError("a rollout without options has no states to branch from")
    counted = rollout.weight.flatten().nonzero()[:, 0]
    order = torch.randperm(len(counted), generator=choice, device=choice.device)
    count = branched_states(len(counted), len(grid), steps)
    places = counted[order[:count].to(counted.device)]
    actions = len(grid)
    state = type(options.state)(*(part.flatten(0, 1)[places] for part in options.state))
    whole, state = _repeated(task, state, count, actions)
    seen = options.seen[:-1].flatten(0, 1)[places]
    drawn = agent.draw(seen, options.memory.flatten(0, 1)[places], deterministic=True)
    memory = drawn.memory.repeat_interleave(actions, 0)
    total = rollout.return_so_far.double().flatten()[places].repeat_interleave(actions)
    running = torch.ones(whole.batch, dtype=torch.bool, device=total.device)
    action = _actions(task, grid.repeat(count))
    for played in range(steps):
        state, step = whole.step(state, action, further)
        total += torch.where(running, step.reward.double(), 0.0)
        running = running & ~(step.terminated | step.truncated)
        if played + 1 < steps:  # the last state decides nothing
            drawn = agent.draw(agent.normalised(step.observation), memory, deterministic=True)
            action, memory = _same_draws(agent, drawn.parameters, count, choice), drawn.memory
    return Branches(places, total.unflatten(0, (count, actions)))


def _same_draws(agent: Agent, parameters: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw an action for every branch, by the same numbers for all branches of a state."""
    head, before = agent.network.head, generator.get_state()
    raw = []
    for branch in parameters.unflatten(0, (count, -1)).unbind(1):
        generator.set_state(before)
        raw.append(head.sample(branch, generator))
    return head.to_task(torch.stack(raw, 1).flatten(0, 1))


def _actions(task: Task[Any], actions: Tensor) -> Tensor:
    """Return one action for each environment as `step` takes them."""
    return actions if isinstance(task.actions, DiscreteActions) else actions[:, None]


def _repeated(task: Task[Any], state: Any, count: int, actions: int) -> tuple[Task[Any], Any]:  # noqa: ANN401 - a named tuple of the task's own
    """Return the task for every action of `count` states, and these states, neighbours alike."""
    repeated = type(state)(*(part.repeat_interleave(actions, 0) for part in state))
    return with_batch(task, count * actions), repeated
