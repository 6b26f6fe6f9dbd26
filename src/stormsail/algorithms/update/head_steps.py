"""Steps of the critics' heads alone, from a memory of rollouts, after the epochs of an update.

The gradient of a quantile is bounded by its level, so how far a tail can travel is the number of
steps times the rate of the heads. It is smallest in the tail, so layers that all levels share serve
the middle. And a rollout has some ten or twenty rows in the tail of a state, so heads that follow
the newest one understate risk (docs/evidence.md, tails). The epochs cannot give more steps, since
the policy may move only so far with each rollout. The heads can: what is in front of them is
computed once, and a step costs two small matrix products.

Kept of a row are the output of the memory for the critics, as the weights of its own update gave
it, and a few returns drawn from its target, in reward units. A drawn return is an unbiased sample
of the loss of the whole target distribution, and stays what it is while return statistics and
support move. Features are not computed anew: the layers before the heads learn with a rate an order
of magnitude lower. Values, advantages and targets of the next rollout are those of these heads.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update import critic_targets
from stormsail.algorithms.update.losses import Batch
from stormsail.core.errors import ArtifactError
from stormsail.core.generators import Generators
from stormsail.core.precision import network_precision
from stormsail.functional import categorical, quantile, statistics
from stormsail.modules.agent import Agent

DRAWS = 4
"""Returns that are kept of each row's target."""


class Rows(NamedTuple):
    """What is kept of the rows of one rollout that have weight."""

    features: Tensor
    """Input of the critics' heads, [n, H]."""
    returns: Tensor
    """Drawn from the target, in reward units, [n, DRAWS]."""
    weight: Tensor
    """[n]."""


class HeadSteps:
    """Trains the heads of an agent's critics.

    Args:
        agent: whose heads.
        config: of the run.
        generator: draws returns and rows.
    """

    def __init__(self, agent: Agent, config: TrainConfig, generator: torch.Generator) -> None:
        self.agent, self.config, self.generator = agent, config, generator
        heads, chosen = agent.network.critic.parameters(), config.optimizer
        self.optimizer = AdamW(
            list(heads),
            lr=0.0,
            betas=(chosen.beta1, chosen.beta2),
            eps=chosen.eps,
            weight_decay=0.0,
            foreach=True,
        )
        self.memory: deque[Rows] = deque(maxlen=config.critic.head_rollouts)

    @property
    def factor(self) -> float:
        """Rate of the heads over that of the other weights."""
        return self.config.critic.learning_rate_factor or 1.0

    def learn(self, data: Batch, rate: float) -> None:
        """Remember the rows of a rollout and take the steps of an update.

        Args:
            data: all sequences, with encoded targets.
            rate: that of the other weights in this update.
        """
        self.memory.append(self._rows(data))
        rows = Rows(*(torch.cat(parts) for parts in zip(*self.memory, strict=True)))
        if len(rows.weight) == 0:
            return
        own = rate * self.factor * self.config.critic.head_rate
        for group in self.optimizer.param_groups:
            group["lr"] = own * (rate / self.config.ppo.learning_rate)
        for chosen, draw in zip(*self._chosen(len(rows.weight)), strict=True):
            sample = rows.returns[chosen, draw]
            loss = self._losses(rows.features[chosen], sample)
            self.optimizer.zero_grad(set_to_none=True)
            statistics.weighted_mean(loss, rows.weight[chosen]).backward()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _rows(self, data: Batch) -> Rows:
        network, config = self.agent.network, self.config
        with network_precision(config.precision, data.weight.device):
            features = network.critic_features(data.observation, data.memory, data.reset)
        kept = data.weight > 0.0
        return Rows(
            features[kept].to(data.weight.dtype), self._draw(data.target[kept]), data.weight[kept]
        )

    def _draw(self, target: Tensor) -> Tensor:
        """Return draws from encoded targets [n, M], in reward units."""
        shape, source = (len(target), DRAWS), self.generator
        uniform = torch.rand(shape, generator=source, device=source.device).to(target.device)
        if self.agent.spec.critic.kind == "categorical":
            atoms = self.agent.atoms.to(target.dtype)
            return atoms[_atoms(target.cumsum(-1), uniform)]
        mass = critic_targets.atom_weights(self.agent, target)
        if mass is None:
            mass = target.new_ones(target.shape[-1], dtype=torch.float64)
        below = (mass / mass.sum()).cumsum(-1).to(uniform.dtype)
        drawn: Tensor = target.gather(-1, _atoms(below, uniform))
        return self.agent.return_scale.decode(drawn)

    def _chosen(self, count: int) -> tuple[Tensor, Tensor]:
        """Return rows and draws of all steps, [S, b] each; each pass takes every row once."""
        critic, source = self.config.critic, self.generator
        wanted = critic.head_steps * critic.head_batch
        passes = [
            torch.randperm(count, generator=source, device=source.device)
            for _ in range(-(-wanted // count))
        ]
        shape = (critic.head_steps, critic.head_batch)
        draw = torch.randint(DRAWS, shape, generator=source, device=source.device)
        device = self.memory[0].weight.device
        return torch.cat(passes)[:wanted].view(shape).to(device), draw.to(device)

    def _losses(self, features: Tensor, sample: Tensor) -> Tensor:
        """Return the loss of each row for a return in reward units, mean of all critics, [n]."""
        agent, critic = self.agent, self.agent.network.critic
        predicted = critic(features)  # [n, C, W]
        if agent.spec.critic.kind == "categorical":
            target = categorical.project(sample, agent.atoms.to(sample.dtype))
            return critic_targets.losses(agent, predicted, target).mean(-1)
        wide = agent.return_scale.encode(sample)[:, None].expand(predicted.shape[:-1])
        return quantile.level_huber_loss(
            predicted,
            wide,
            critic.levels().to(predicted.dtype),
            kappa=agent.spec.critic.huber_kappa,
        ).mean(-1)

    def state_dict(self) -> dict[str, Any]:
        """Return what the coming updates depend on."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "memory": [rows._asdict() for rows in self.memory],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ArtifactError: if it is none of such heads.
        """
        self.load_memory(saved)
        self.load_optimizer(saved)

    def load_memory(self, saved: Mapping[str, Any]) -> None:
        """Take over the remembered rows.

        Raises:
            ArtifactError: if they are none of such heads.
        """
        rollouts = [Rows(**rows) for rows in saved["memory"]]
        width = self.agent.network.trunk.memory.width
        device = self.agent.return_scale.mean.device
        for rows in rollouts:
            count = len(rows.weight)
            wanted = ((count, width), (count, DRAWS), (count,))
            if tuple(tuple(part.shape) for part in rows) != wanted or not all(
                part.is_floating_point() for part in rows
            ):
                raise _unfit(f"rows of the shapes {[tuple(part.shape) for part in rows]}")
        self.memory.clear()
        self.memory.extend(Rows(*(part.to(device) for part in rows)) for rows in rollouts)

    def load_optimizer(self, saved: Mapping[str, Any]) -> None:
        """Take over the optimizer's moments; its settings stay those of this run.

        Raises:
            ArtifactError: if they are none of these weights.
        """
        own = self.optimizer.state_dict()
        entries = saved["optimizer"]["state"]
        weights = self.optimizer.param_groups[0]["params"]
        for number, entry in entries.items():
            for name, value in entry.items():
                shape = () if name == "step" else weights[number].shape
                if value.shape != shape or not value.is_floating_point():
                    raise _unfit(f"`{name}` of the shape {tuple(value.shape)}")
        self.optimizer.load_state_dict({**own, "state": entries})


def build_head_steps(agent: Agent, config: TrainConfig, generators: Generators) -> HeadSteps | None:
    """Return the steps of the heads alone; None where none are asked for."""
    if config.critic.head_steps == 0:
        return None
    return HeadSteps(agent, config, generators.stream("heads"))


def _atoms(below: Tensor, uniform: Tensor) -> Tensor:
    """Return the first atom of which more than a uniform number lies at or below it, [n, S]."""
    place = torch.searchsorted(below.to(uniform.dtype).contiguous(), uniform, right=True)
    return place.clamp(max=below.shape[-1] - 1)  # sums of masses end an ulp away from 1


def _unfit(problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong="the saved state of `heads` must be one of this run",
        found=problem,
        remedy="Go back to an older generation, or start a new run.",
    )
