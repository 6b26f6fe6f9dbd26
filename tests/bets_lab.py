"""Learners of bets, whose policies can be solved by hand, and memories made by hand."""

from typing import Any

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.bench.bets.bets_unseen import UNSEEN
from stormsail.bench.bets.bets_worlds import KNOWN, Bets, World
from stormsail.core.generators import Generators
from stormsail.modules.agent import Agent

WORLDS = {**KNOWN, **UNSEEN}

COST = World("cost", -0.5, 2, (0.0, 1.0), (((0.4, -1.0), (0.6, 0.5)),), alpha=0.2, change_cost=0.1)
"""Two columns belong to the account."""

SMALL: dict[str, Any] = {
    "task.name": "CartPole-v1",  # not made: the task is passed beside the settings
    "network.encoder_sizes": (8,),
    "network.head_sizes": (8,),
    "network.memory": "none",
    "critic.num_quantiles": 4,
    "target.kind": "mc",
    "ppo.gamma": 1.0,
    "ppo.n_envs": 16,
    "ppo.n_epochs": 1,
    "ppo.learning_rate": 1e-2,
    "validation.every_updates": 0,
    "observation.warmup_steps": 0,
}


def limited(world: World, **changes: Any) -> dict[str, Any]:
    """Return settings that hold the limit of a world, and act from the first episodes on."""
    return {
        "risk.cvar_use_constraint": True,
        "risk.cvar_alpha": world.alpha,
        "risk.cvar_limit": world.limit,
        "risk.cvar_min_samples": 8,
        "risk.cvar_min_tail_samples": 1,
        **changes,
    }


def bets_learner(world: World | str, *, seed: int = 0, **changes: Any) -> Ppo:
    """Return a small learner of a world; its settings have dots."""
    world = WORLDS[world] if isinstance(world, str) else world
    rows = world.bars + 1  # the row after an end starts the next episode
    steps = {"ppo.n_steps": rows, "ppo.total_steps": 100 * 16 * rows}
    config = derive(TrainConfig().replace(**{**SMALL, **steps, **changes}))
    task = Bets(world, batch=config.ppo.n_envs, device=config.device)
    agent = Agent(agent_spec(config, task), Generators(seed).stream("weights"))
    return Ppo(task, agent.to(config.device), config, Generators(seed, device=config.device))


def bets_policy(agent: Agent, world: World, shares: tuple[float, ...]) -> None:
    """Let an agent draw its actions with these probabilities in every state."""
    last = agent.network.actor_last
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(shares).log())
