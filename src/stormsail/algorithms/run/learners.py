"""New learners: a task, an agent with its first weights, and PPO around them."""

from collections.abc import Mapping
from typing import Any

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.start_from import Start
from stormsail.algorithms.run.tasks import agent_spec
from stormsail.algorithms.update.schedules import NEW_RUN, History
from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.core.group import ALONE, Group
from stormsail.core.task import Task
from stormsail.modules.agent import Agent


def new_learner(
    config: TrainConfig,
    task: Task[Any],
    bound: Mapping[str, JsonValue],
    history: History = NEW_RUN,
    start: Start | None = None,
    group: Group = ALONE,
) -> Ppo:
    """Return a learner before its first update.

    Args:
        config: of the run, without open settings.
        task: the environments.
        bound: what the agent is bound to, from `run.tasks.binding`.
        history: how the run began and grew.
        start: what it begins from; None draws random weights.
        group: processes that train together.

    Raises:
        ConfigError: if the agent to begin from has another network, columns or actions.
        ArtifactError: if its optimizer does not fit.
    """
    generators = Generators(config.seed, config.device)
    # Weights are drawn on the CPU, so that every device begins with the same ones.
    first = Generators(config.seed).stream("weights")
    agent = Agent(agent_spec(config, task), first, binding=dict(bound))
    if config.validation.policy == "sampled":
        agent.judged_policy = "sampled"
    if start is not None:  # before the learner: it begins with the agent's first memory
        start.fill(agent)
    ppo = Ppo(task, agent.to(config.device), config, generators, history, group)
    if start is not None:
        start.fill_optimizer(ppo)
    return ppo
