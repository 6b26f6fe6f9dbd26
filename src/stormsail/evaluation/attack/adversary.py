"""A learned adversary: a task in which the forger of an agent's observations is the learner.

Zhang et al. 2021, arXiv:2101.08452: for a fixed agent the best adversary is the best
policy of another decision process, whose state is that of the task, whose action is the
perturbation and whose reward is minus that of the agent.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.core.task import (
    ContinuousActions,
    ObservationLayout,
    Step,
    StepInfo,
    Task,
    action_mask,
    close,
    episode_steps,
    observation_layout,
)
from stormsail.evaluation.attack.attackers import Situation
from stormsail.evaluation.attack.columns import Ball
from stormsail.modules.agent import Agent, JudgedPolicy


class AdversaryState(NamedTuple):
    """State of the environments and of the agent that is attacked in them."""

    inner: Any
    """Of the agent's task."""
    observation: Tensor
    """True one, [B, F]."""
    memory: Tensor
    """Of the agent, [B, L, P, H]."""
    ignored: Tensor
    """Whether the coming step only starts a new episode, bool [B]."""
    fresh: Tensor
    """Whether the agent's coming decision is the first of an episode, bool [B]."""


class AdversaryTask:
    """The task of forging an agent's observations to its loss.

    The adversary observes what the task shows, acts by k numbers in [-1, 1] (`Ball.scaled`) and is
    rewarded by minus the agent's reward. The agent decides with the memory that it has under
    attack; the adversary does not see that memory, so it needs one of its own.

    Args:
        task: of the agent.
        agent: is attacked, and stays as it is.
        ball: of the perturbations.
        policy: of the agent; sampled actions are drawn from the generator of the steps.
    """

    def __init__(self, task: Task[Any], agent: Agent, ball: Ball, *, policy: JudgedPolicy) -> None:
        self._task, self._agent, self._ball, self._policy = task, agent, ball, policy
        count = len(ball.chosen)
        self.actions = ContinuousActions((-1.0,) * count, (1.0,) * count)
        self.batch, self.device, self.dtype = task.batch, task.device, task.dtype
        self.observation_size = task.observation_size
        self.observation_names = task.observation_names
        self.observation_layout: ObservationLayout = observation_layout(task)
        self.episode_steps = episode_steps(task)

    def reset(self, generator: torch.Generator) -> tuple[AdversaryState, Tensor]:
        """Start B episodes."""
        inner, observation = self._task.reset(generator)
        flags = torch.zeros(self.batch, dtype=torch.bool, device=self.device)
        memory = self._agent.initial_memory(self.batch)
        return AdversaryState(inner, observation, memory, flags, flags.clone()), observation

    @torch.no_grad()
    def step(
        self, state: AdversaryState, action: Tensor, generator: torch.Generator
    ) -> tuple[AdversaryState, Step[StepInfo]]:
        """Forge one observation of each environment, and let the agent act on it."""
        agent, ball = self._agent, self._ball
        initial = agent.initial_memory(self.batch)
        memory = torch.where(state.fresh[:, None, None, None], initial, state.memory)
        seen = agent.normalised(state.observation)
        drawn = agent.draw(
            ball.forged(seen, ball.scaled(action)),
            memory,
            deterministic=self._policy == "greedy",
            generator=generator,
            mask=action_mask(self._task, state.inner),
        )
        inner, step = self._task.step(state.inner, drawn.action, generator)
        after = AdversaryState(
            inner=inner,
            observation=step.observation,
            memory=drawn.memory,
            ignored=step.terminated | step.truncated,
            fresh=state.ignored,
        )
        return after, step._replace(reward=-step.reward)

    def close(self) -> None:
        """Let go what the agent's task holds."""
        close(self._task)


@dataclass(frozen=True, eq=False)
class LearnedAttack:
    """The greedy policy of an adversary that was trained in `AdversaryTask`."""

    adversary: Agent
    ball: Ball

    def initial_state(self, batch: int) -> Tensor:
        """Return the adversary's memory at the start of an episode."""
        return self.adversary.initial_memory(batch)

    def perturb(self, situation: Situation, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the perturbation that its action stands for, and its memory."""
        shown = self.adversary.normalised(situation.observation)
        drawn = self.adversary.draw(shown, state, deterministic=True)
        return self.ball.scaled(drawn.action), drawn.memory
