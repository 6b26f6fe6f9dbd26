"""Small tasks that say what every action would make, and agents to play them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stormsail.algorithms.update.rollout import EnvState, Rollout, begin, collect
from stormsail.bench.bets.bets_worlds import Bets, World
from stormsail.core.task import Task, account_names, observation_layout
from stormsail.functional import statistics
from stormsail.modules.agent import ActionSpec, Agent, AgentSpec
from stormsail.modules.config import NetworkConfig

COIN = World("coin", -2.0, 3, (0.0, 1.0, 2.0), (((0.3, -2.0), (0.5, 1.0), (0.2, 0.5)),))
"""Three bars, three levels, nothing but the draw and the level matters."""

RUIN = World("ruin", -2.0, 4, (0.0, 1.0), (((0.4, -2.0), (0.6, 1.0)),), ruin=-3.0)
"""Episodes of two to four bars."""

COSTLY = World("costly", -2.0, 3, (0.0, 1.0, 2.0), COIN.payoffs, change_cost=0.25)
"""What a level makes depends on the one before."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def agent_of(task: Task[Any], *, seed: int = 0, memory: str = "lstm") -> Agent:
    """Return an agent with statistics and weights as after some training."""
    layout = observation_layout(task)
    agent = Agent(
        AgentSpec(
            observation_names=layout.names,
            unscaled=layout.unscaled,
            after_memory=account_names(task),
            actions=ActionSpec.of(task.actions),
            network=NetworkConfig(
                memory=memory, encoder_sizes=(5,), lstm_hidden_size=4, head_sizes=(5,)
            ),
        ),
        seeded(seed),
    )
    raw = 0.3 + 0.5 * torch.randn(50, len(layout.names), generator=seeded(1))
    agent.observation_scale.commit(statistics.moments(raw))
    with torch.no_grad():
        for parameter in agent.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=seeded(2)))
    return agent


def grid_of(agent: Agent) -> Tensor:
    """Return the actions that stand for all, as the task takes them, [K]."""
    network = agent.network
    return network.head.to_task(network.grid[:, None]).flatten()


def rollouts(
    task: Task[Any], agent: Agent, *, steps: int, count: int, seed: int = 0, first: int = 1
) -> Iterator[tuple[EnvState, Rollout]]:
    """Yield the state before each of some rollouts in a row, and the rollout.

    Args:
        task: the environments.
        agent: draws the actions.
        steps: of each rollout.
        count: number of rollouts.
        seed: of actions.
        first: added to it, the seed of the task.
    """
    draws, nature = seeded(seed), seeded(seed + first)
    env_state = begin(task, agent, nature)
    for _ in range(count):
        before = env_state
        env_state, rollout = collect(
            task,
            agent,
            before,
            steps=steps,
            sequence_length=steps,
            generators=(draws, nature),
            grid=grid_of(agent),
        )
        yield before, rollout


def rollout_of(task: Task[Any], agent: Agent, *, steps: int, seed: int = 0) -> Rollout:
    """Return the first rollout."""
    return next(rollouts(task, agent, steps=steps, count=1, seed=seed))[1]


def bets(world: World = COIN, *, batch: int = 4, dtype: torch.dtype = torch.float32) -> Bets:
    return Bets(world, batch=batch, dtype=dtype)
