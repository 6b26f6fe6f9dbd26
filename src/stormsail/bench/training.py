"""Train an agent without run folder, evaluations or logs."""

from collections.abc import Callable
from typing import Any

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.core.generators import Generators
from stormsail.core.task import Task
from stormsail.modules.agent import Agent


def train_agent(
    task: Task[Any],
    config: TrainConfig,
    *,
    on_update: Callable[[Ppo, Update], None] = lambda _learner, _update: None,
) -> Ppo:
    """Return the learner after the last update of a run; its agent is that of this update."""
    config = derive(config)
    generators = Generators(config.seed)
    agent = Agent(agent_spec(config, task), generators.stream("weights"))
    learner = Ppo(task, agent, config, generators)
    while learner.steps < config.ppo.total_steps:
        on_update(learner, learner.update())
    return learner
