"""Agents and tasks that are small enough to know the worst forgery."""

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.core.generators import Generators
from stormsail.evaluation.attack.attackers import Situation
from stormsail.functional import statistics
from stormsail.modules.agent import Agent

SMALL = {
    "network.encoder_sizes": (6,),
    "network.lstm_hidden_size": 5,
    "network.head_sizes": (6,),
    "critic.num_quantiles": 5,
}
MARKET = {
    "task.name": "market",
    "task.data.world_bars": 700,
    "task.data.world_symbols": 2,
    "task.market.episode_bars": 12,
    "task.market.features": (
        {"name": "log_return", "parameters": {"horizon": 1}},
        {"name": "realised_volatility", "parameters": {"window": 24}},
        {"name": "day_sin", "parameters": {}},
    ),
}


def settings(name, **changes):
    """Return settings of a small agent; two underscores stand for a point."""
    further = {key.replace("__", "."): value for key, value in changes.items()}
    market = MARKET if name == "market" else {"task.name": name}
    return TrainConfig().replace(**{**SMALL, **market, **further})


def subject(name="Pendulum-v1", *, batch=4, seed=0, gain=30.0, **changes):
    """Return a task of `batch` environments, an agent with a policy that is not flat, and both's
    settings."""
    config = settings(name, **changes)
    task = make_task(config, batch=batch, purpose="evaluation")
    agent = Agent(agent_spec(config, task), Generators(seed).stream("weights"))
    with torch.no_grad():
        agent.network.actor_last.weight.mul_(gain)  # of 0.01, by which all policies start alike
        source = torch.Generator().manual_seed(seed)
        _, observation = task.reset(source)
        seen = agent.named_columns(observation.repeat(4, 1))
        noise = torch.randn(seen.shape, generator=source)
        agent.observation_scale.commit(statistics.moments(seen + noise))
    return task, agent, config


def situation(task, agent, *, seed=3):
    """Return the first decision of every environment with a memory that is not empty."""
    source = torch.Generator().manual_seed(seed)
    _, observation = task.reset(source)
    memory = agent.initial_memory(task.batch)
    memory = memory + 0.3 * torch.randn(memory.shape, generator=source)
    seen = agent.normalised(observation)
    clean = agent.draw(seen, memory, deterministic=True)
    return Situation(observation, seen, memory, None, clean)
