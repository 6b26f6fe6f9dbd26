"""Columns of an observation that an adversary may forge, and the ball that bounds it.

Market features only: what an agent reads off its own account or off the clock cannot be forged by
whoever feeds it prices, nor can flags and one-hots, which know no small change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stormsail.core import task as tasks
from stormsail.core.errors import ChoiceError, ConfigError, RangeError, nearest
from stormsail.core.task import Task
from stormsail.functional import perturbation, statistics
from stormsail.modules.agent import Agent
from stormsail.modules.scale import CLIP

EPS = 1e-8
"""That `statistics.standardise` adds to a variance."""


def forgeable_names(task: Task[Any], patterns: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the columns that may be forged, in order.

    Those that come from outside (`core.task.forgeable_names`), without pixels.

    Args:
        task: whose columns they are.
        patterns: names, or patterns such as `log_return_*`, of which a column must match one; none
            takes all that may be forged.

    Raises:
        ChoiceError: if a pattern matches no column that may be forged.
        ConfigError: if there is no such column at all.
    """
    outside = tasks.forgeable_names(task)
    allowed = tuple(name for name in task.observation_names if name in outside)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in allowed):
            near = nearest(pattern, allowed)
            raise ChoiceError(
                wrong="a feature to forge must be a column that is no account, clock, flag, "
                f"one-hot or pixel: {', '.join(allowed) or 'this task has none'}",
                found=f"`{pattern}`",
                remedy=f"Did you mean `{near}`?" if near else "Name one of these, or a pattern.",
            )
    chosen = tuple(
        name
        for name in allowed
        if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    if not chosen:
        raise ConfigError(
            "config-inconsistent",
            wrong="a task must have a column that may be forged",
            found="accounts, clocks, flags, one-hots and pixels only",
            remedy="Attack an agent of another task.",
        )
    return chosen


@dataclass(frozen=True, eq=False)
class Ball:
    """Perturbations of k of F columns in the units of a network's input, and their bounds."""

    epsilon: float
    """Radius, at least 0. The unit is one standard deviation of a column in training, where the
    agent normalises its observations, and that of the column itself where it does not."""
    norm: str
    """`linf` or `l2`, over the k columns."""
    mask: Tensor
    """Columns that are forged, bool [F]."""
    normalised: Tensor
    """Columns that the agent normalises, bool [F]: no observation is beyond the normaliser's clip
    there, so no forgery may be."""
    unit: Tensor | None = None
    """What a perturbation of 1 adds to each column of a network's input, [F]; None is 1."""

    @classmethod
    def of(
        cls,
        agent: Agent,
        names: Sequence[str],
        *,
        epsilon: float,
        norm: str,
        units: Mapping[str, float] | None = None,
    ) -> "Ball":
        """Return the ball over columns of an agent's observation.

        Args:
            agent: is attacked.
            names: of the columns that are forged.
            epsilon: radius.
            norm: `linf` or `l2`.
            units: what a radius of 1 stands for in columns of the task, so that agents with other
                normalisers are attacked alike; a column that is not named, and None, takes the
                agent's own standard deviation.

        Raises:
            RangeError: if the radius is no finite number of at least 0, or a unit not a positive
                one.
            ChoiceError: if the norm is unknown.
        """
        if not 0.0 <= epsilon < float("inf"):
            raise RangeError(
                wrong="`epsilon` must be a finite number of at least 0",
                found=repr(epsilon),
                remedy="Pass the radius in standard deviations of a column, such as 0.1.",
            )
        if norm not in perturbation.NORMS:
            raise ChoiceError(
                wrong=f"`norm` must be one of {', '.join(perturbation.NORMS)}",
                found=f"`{norm}`",
                remedy="Choose one of them.",
            )
        scale = agent.observation_scale
        named = agent.spec.observation_names
        pixels = agent.spec.columns - len(named)
        chosen = [name in names for name in named] + [False] * pixels
        normalised = ~scale.frozen & (scale.count > 0.0)
        for name, length in (units or {}).items():
            if not 0.0 < length < float("inf"):
                raise RangeError(
                    wrong=f"the unit of `{name}` must be a positive finite number",
                    found=repr(length),
                    remedy="Pass a standard deviation of the column.",
                )
        device = normalised.device
        return cls(
            epsilon=epsilon,
            norm=norm,
            mask=torch.tensor(chosen, dtype=torch.bool, device=device),
            normalised=torch.cat((normalised, normalised.new_zeros(pixels))),
            unit=_shared_unit(agent, normalised, units) if units else None,
        )

    @cached_property
    def chosen(self) -> Tensor:
        """Indices of the forged columns, int64 [k]."""
        return self.mask.nonzero()[:, 0]

    def forged(self, seen: Tensor, delta: Tensor) -> Tensor:
        """Return a normalised observation [B, F] with a perturbation [B, k] of the ball.

        A perturbation stops at the bound of the normaliser; all other columns keep their bits.
        """
        whole = torch.zeros_like(seen).index_copy(-1, self.chosen, delta.to(seen.dtype))
        if self.unit is not None:
            whole = whole * self.unit
        bounded = perturbation.apply_mask(
            seen, whole, self.mask & self.normalised, low=-CLIP, high=CLIP
        )
        return perturbation.apply_mask(bounded, whole, self.mask & ~self.normalised)

    def random(self, batch: int, generator: torch.Generator, like: Tensor) -> Tensor:
        """Return B points of the ball, uniformly distributed, [B, k]."""
        normal = torch.empty(batch, len(self.chosen), dtype=like.dtype, device=like.device)
        uniform = torch.empty(batch, dtype=like.dtype, device=like.device)
        normal.normal_(generator=generator)
        uniform.uniform_(generator=generator)
        return perturbation.random_start(normal, uniform, epsilon=self.epsilon, norm=self.norm)

    def scaled(self, action: Tensor) -> Tensor:
        """Return the perturbation [B, k] that an adversary's action in [-1, 1]^k stands for.

        linf: epsilon times the action. l2: the same, projected onto the ball, whose surface every
        direction reaches.
        """
        delta = self.epsilon * action.clamp(-1.0, 1.0)
        if self.norm == "linf":
            return delta
        return perturbation.project_l2(delta, epsilon=self.epsilon)


def _shared_unit(agent: Agent, normalised: Tensor, units: Mapping[str, float]) -> Tensor:
    """Return `Ball.unit` of an agent, so that a radius of 1 moves each column by its unit."""
    variance = statistics.variance(agent.observation_scale.moments)
    own = torch.where(normalised, (variance + EPS).sqrt(), 1.0).tolist()
    named = zip(agent.spec.observation_names, own, strict=True)
    ratios = [units[name] / std if name in units else 1.0 for name, std in named]
    ratios += [1.0] * (agent.spec.columns - len(ratios))
    return torch.tensor(ratios, device=normalised.device)
