"""Baselines of `bench frontier`: a reward with a penalty, and a fixed rule that sees warnings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import (
    Alternatives,
    Step,
    StepInfo,
    Task,
    account_names,
    alternatives,
    draw_places,
    episode_steps,
    with_batch,
)
from stormsail.market.synthetic.process import WARNING


class Penalised:
    """A task whose reward has k times its square taken off: mean and variance of each step."""

    def __init__(self, task: Task[Any], penalty: float) -> None:
        self._task, self._penalty = task, penalty
        self.batch, self.device, self.dtype = task.batch, task.device, task.dtype
        self.observation_size = task.observation_size
        self.observation_names, self.actions = task.observation_names, task.actions
        self.account_names, self.episode_steps = account_names(task), episode_steps(task)

    def reset(self, generator: torch.Generator) -> tuple[Any, Tensor]:
        """Start, as the task does."""
        return self._task.reset(generator)

    def step(
        self,
        state: Any,  # noqa: ANN401 - the task's own
        action: Tensor,
        generator: torch.Generator,
    ) -> tuple[Any, Step[StepInfo]]:
        """Step as the task does, and take the penalty off."""
        state, shown = self._task.step(state, action, generator)
        return state, shown._replace(reward=self._penalised(shown.reward))

    def alternatives(
        self,
        state: Any,  # noqa: ANN401 - the task's own
        actions: Tensor,
    ) -> Alternatives | None:
        """Return what the task says of other actions, the penalty taken off; None if it cannot."""
        outcomes = alternatives(self._task, state, actions)
        if outcomes is None:
            return None
        return outcomes._replace(reward=self._penalised(outcomes.reward))

    def draw_places(
        self,
        state: Any,  # noqa: ANN401 - the task's own
    ) -> Tensor | None:
        """Return where the task says that its draws lie."""
        return draw_places(self._task, state)

    def with_batch(self, batch: int) -> "Penalised":
        """Return the same task for another number of environments."""
        return Penalised(with_batch(self._task, batch), self._penalty)

    def _penalised(self, reward: Tensor) -> Tensor:
        return reward - self._penalty * reward.square()


class RuleDecision(NamedTuple):
    """Actions of the rule."""

    action: Tensor
    memory: Tensor


class StepsAside:
    """Holds nothing while a warning stands, and as much as may be held otherwise.

    Args:
        names: what is observed, one of them the warning.
        actions: how many there are, from weight 0 to the largest.
    """

    def __init__(self, names: Sequence[str], actions: int) -> None:
        self._column, self._most = names.index(WARNING), actions - 1

    def initial_memory(self, batch: int) -> Tensor:
        """Return nothing for each episode."""
        return torch.zeros(batch, 0)

    def decide(
        self,
        observation: Tensor,
        memory: Tensor,
        *,
        deterministic: bool,
        generator: torch.Generator | None = None,
    ) -> RuleDecision:
        """Return the action of each episode, the same with and without exploration."""
        del deterministic, generator
        # most bars have none, so that scaling puts the median, no warning, at 0
        warned = observation[:, self._column] > 0.0
        return RuleDecision(torch.where(warned, 0, self._most), memory)
