"""Attacks on single decisions: uniform noise, and gradient ascent on what the agent's network says.

An attack is asked for one perturbation at every decision. It knows the agent's weights, the memory
that the agent really has after all that it was shown, and the true observation; it does not know
what the task will do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stormsail.evaluation.attack.columns import Ball
from stormsail.functional import perturbation
from stormsail.modules.agent import Agent, Draw

STEP_SHARE = 2.5
"""Length of all ascent steps together, in radii: enough to cross the ball and turn."""

Objective = Callable[[Tensor], Tensor]
"""From perturbations [B, k] to what is to grow, [B]; a row depends on its own perturbation only."""


class Situation(NamedTuple):
    """B decisions that are about to be made."""

    observation: Tensor
    """As the task gives it, [B, F]."""
    seen: Tensor
    """Normalised, [B, F]."""
    memory: Tensor
    """Of the agent, after everything that it was shown before, [B, L, P, H]."""
    mask: Tensor | None
    """Actions that are allowed, bool [B, D]."""
    clean: Draw
    """Decision on the true observation with this memory."""


class Attacker(Protocol):
    """Perturbs the observation before each decision."""

    def initial_state(self, batch: int) -> Tensor:
        """Return what the attack remembers at the start of an episode; B comes first."""

    def perturb(self, situation: Situation, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the perturbation of each decision, [B, k], and what the attack remembers."""


@dataclass(frozen=True, eq=False)
class RandomAttack:
    """A new point of the ball for every decision, uniformly distributed."""

    ball: Ball
    generator: torch.Generator

    def initial_state(self, batch: int) -> Tensor:
        """Return an empty tensor: noise remembers nothing."""
        return torch.empty(batch, 0)

    def perturb(self, situation: Situation, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return uniform noise."""
        seen = situation.seen
        return self.ball.random(len(seen), self.generator, seen), state


@dataclass(frozen=True, eq=False)
class GradientAttack:
    """Projected gradient ascent on an objective of the agent's own network.

    Every start is a random point of the ball: at 0 the gradient of a divergence between a policy
    and itself is exactly 0. Of all starts and steps the perturbation with the largest objective is
    taken, decision by decision, so it is never worse than the first random start.
    """

    agent: Agent
    ball: Ball
    generator: torch.Generator
    objective: Callable[[Agent, Ball, Situation], Objective]
    steps: int
    """Ascent steps from each start."""
    starts: int
    """Random starts."""

    def initial_state(self, batch: int) -> Tensor:
        """Return an empty tensor: each decision is attacked by itself."""
        return torch.empty(batch, 0)

    def perturb(self, situation: Situation, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the perturbation with the largest objective."""
        objective = self.objective(self.agent, self.ball, situation)
        points = [
            self.ball.random(len(situation.seen), self.generator, situation.seen)
            for _ in range(self.starts)
        ]
        return ascend(objective, points, self.ball, steps=self.steps), state


def ascend(objective: Objective, points: list[Tensor], ball: Ball, *, steps: int) -> Tensor:
    r"""Return for each row the best perturbation on the way of all ascents, [B, k].

    .. math::
        \delta_{i+1} = \Pi_\epsilon\Big(\delta_i + \eta \, \mathrm{sign}\,
        \nabla_\delta J(\delta_i)\Big), \qquad \eta = \frac{2.5\,\epsilon}{n}

    for linf, and along the gradient over its length for l2: projected gradient ascent of Madry et
    al. 2018, arXiv:1706.06083, Section 2.1 (`functional.perturbation.pgd_step`). Deviation: the
    best of all iterates counts and not the last one.

    Args:
        objective: J, of each row by itself.
        points: starts, [B, k] each.
        ball: that no iterate leaves.
        steps: n, from each start.
    """
    best = points[0]
    value = torch.full_like(best[..., 0], -torch.inf)
    length = STEP_SHARE * ball.epsilon / max(steps, 1)
    for start in points:
        delta = start
        for step in range(steps + 1):
            with torch.enable_grad():
                moved = delta.detach().requires_grad_()
                height = objective(moved)
                total = height.sum()  # rows do not depend on each other
            better = height.detach() > value  # not where it is NaN
            value = torch.where(better, height.detach(), value)
            best = torch.where(better[..., None], delta, best)
            if step < steps:
                # with respect to the perturbation alone: no weight gets a gradient
                (gradient,) = torch.autograd.grad(total, moved)
                delta = perturbation.pgd_step(
                    delta, gradient, step=length, epsilon=ball.epsilon, norm=ball.norm
                )
    return best


def policy_divergence(agent: Agent, ball: Ball, situation: Situation) -> Objective:
    r"""Return J(delta) = KL(pi(. | s) || pi(. | s + delta)), both with the memory that there is.

    The maximal action difference attack of Zhang et al. 2020, arXiv:2003.08938, Appendix D.
    Deviation: ascent without Langevin noise, and the divergence of the whole policy where the
    authors' program takes the distance of its mean alone.
    """
    head = agent.network.head
    clean = situation.clean.parameters

    def objective(delta: Tensor) -> Tensor:
        return head.kl(clean, _parameters(agent, ball, situation, delta))

    return objective


def value_loss(agent: Agent, ball: Ball, situation: Situation) -> Objective:
    r"""Return J(delta) = -V(s + delta), the critics' value of what is shown, normalised.

    Critic-guided, after Pattanaik et al. 2018, arXiv:1712.03632, whose critic values actions. Ours
    value states, so the attack shows the worst state that the ball holds, and the agent acts as if
    it were there: the form of the program of Zhang et al. 2020 for PPO (`apply_attack`, `critic`).
    """

    def objective(delta: Tensor) -> Tensor:
        predicted = _predicted(agent, ball, situation, delta)
        return -agent.network.critic.value(predicted)

    return objective


def _parameters(agent: Agent, ball: Ball, situation: Situation, delta: Tensor) -> Tensor:
    """Return the policy's parameters of a forgery, [B, D], without a pass through the critics."""
    network, shown = agent.network, ball.forged(situation.seen, delta)[None]
    features, _ = network.features(shown, situation.memory, _no_reset(shown))
    actor = network.actor(features, network.account(shown))
    return network.head.masked(actor[0], situation.mask)


def _predicted(agent: Agent, ball: Ball, situation: Situation, delta: Tensor) -> Tensor:
    """Return the critics' predictions of a forgery, [B, C, W]."""
    shown = ball.forged(situation.seen, delta)[None]
    predicted: Tensor = agent.network(shown, situation.memory, _no_reset(shown)).critic[0]
    return predicted


def _no_reset(shown: Tensor) -> Tensor:
    return torch.zeros(shown.shape[:2], dtype=torch.bool, device=shown.device)
