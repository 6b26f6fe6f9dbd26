"""Action heads: sampling, probabilities and entropies of an action distribution.

A head has no weights. It samples a raw action, in which probabilities are exact even at the bounds:
a class, a Gaussian number before squashing, or a share in (0, 1). `to_task` converts it to the
action of a task.
"""

from typing import Protocol

import torch
from torch import Tensor

from stormsail.core.errors import ConfigError, ShapeError
from stormsail.core.task import (
    Actions,
    ContinuousActions,
    DiscreteActions,
    MultiDiscreteActions,
)
from stormsail.functional import distribution
from stormsail.functional.kernels.decisions import drawn_classes, serves
from stormsail.modules.config import PolicyConfig

ENTROPY_SAMPLES = 4
"""Draws of the corrected entropy of a squashed Gaussian."""

_EDGE = 1e-6  # keeps a Beta draw inside the open interval in which its density exists


class ActionHead(Protocol):
    """Interface of all action distributions. `parameters` is [*b, `width`]."""

    width: int
    """Number of parameters, so of the actor's outputs."""

    def masked(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Return the parameters of the distribution over allowed actions only.

        Everything else is asked of the result: then sampling, mode, probabilities, entropy and
        divergence are those of allowed actions.

        Args:
            parameters: [*b, `width`].
            mask: allowed classes, bool [*b, `width`]; None, or a last dimension of 0, allows all.

        Raises:
            ShapeError: if there is not one entry of the mask for each class.
        """

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return a raw action for each decision."""

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the raw action of the greedy policy."""

    def log_prob(self, parameters: Tensor, raw: Tensor) -> Tensor:
        """Return the log probability or density of a raw action, [*b]."""

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the entropy in closed form, before squashing, [*b]."""

    def squashed_entropy(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the entropy after squashing, by sampling where there is no closed form."""

    def kl(self, parameters: Tensor, other: Tensor) -> Tensor:
        """Return KL(first || other) in closed form, [*b]."""

    def to_task(self, raw: Tensor) -> Tensor:
        """Return the action of the task."""

    def grid(self) -> Tensor | None:
        """Return K raw actions that stand for all, on the CPU; None of several dimensions."""


GRID_POINTS = 21
"""Actions that stand for a continuous one, in the middle of equal parts of its range."""


def grid_log_prob(head: ActionHead, parameters: Tensor, grid: Tensor) -> Tensor:
    """Return the log probability of each of the K actions of a head's grid, [*b, K].

    Of classes, their own; of a number, its density at the grid's points, divided by the sum over
    them: the probability of the part of the range that a point stands for.

    Args:
        head: of one dimension.
        parameters: [*b, D].
        grid: from `head.grid`, on the device of the parameters.
    """
    if isinstance(head, CategoricalHead):
        return parameters.log_softmax(-1)
    raw = grid.expand(*parameters.shape[:-1], -1)[..., None]
    each = parameters[..., None, :].expand(*raw.shape[:-1], -1)
    return head.log_prob(each, raw).log_softmax(-1)


class CategoricalHead:
    """Categorical distribution over A classes."""

    def __init__(self, actions: DiscreteActions) -> None:
        self.width = actions.count

    def masked(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of allowed classes."""
        return _masked(parameters, mask)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Draw by the Gumbel-max trick, which needs no host sync."""
        if serves(parameters):
            return drawn_classes(parameters, _uniform(parameters, generator))
        return _perturbed(parameters, generator).argmax(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the likeliest class."""
        return parameters.argmax(-1)

    def log_prob(self, parameters: Tensor, raw: Tensor) -> Tensor:
        """Return the log probability of a class."""
        return distribution.categorical_log_prob(parameters, raw)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the entropy."""
        return distribution.categorical_entropy(parameters)

    def squashed_entropy(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the entropy; classes are not squashed."""
        del generator
        return self.entropy(parameters)

    def kl(self, parameters: Tensor, other: Tensor) -> Tensor:
        """Return KL(first || other)."""
        return distribution.categorical_kl(parameters, other)

    def to_task(self, raw: Tensor) -> Tensor:
        """Return the class itself."""
        return raw

    def grid(self) -> Tensor:
        """Return all classes."""
        return torch.arange(self.width)


class MultiCategoricalHead:
    """Independent categorical distributions, one for each dimension of the action."""

    def __init__(self, actions: MultiDiscreteActions) -> None:
        self._counts = actions.counts
        self.width = sum(actions.counts)

    def _likeliest(self, scores: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in scores.split(self._counts, -1)], -1)

    def masked(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of allowed classes."""
        return _masked(parameters, mask)

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Draw each dimension by the Gumbel-max trick."""
        return self._likeliest(_perturbed(parameters, generator))

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the likeliest class of each dimension."""
        return self._likeliest(parameters)

    def log_prob(self, parameters: Tensor, raw: Tensor) -> Tensor:
        """Return the log probability of all choices together."""
        return distribution.multi_categorical_log_prob(parameters, raw, counts=self._counts)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the entropy of all choices together."""
        return distribution.multi_categorical_entropy(parameters, counts=self._counts)

    def squashed_entropy(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the entropy; classes are not squashed."""
        del generator
        return self.entropy(parameters)

    def kl(self, parameters: Tensor, other: Tensor) -> Tensor:
        """Return KL(first || other)."""
        return distribution.multi_categorical_kl(parameters, other, counts=self._counts)

    def to_task(self, raw: Tensor) -> Tensor:
        """Return the classes themselves."""
        return raw

    def grid(self) -> None:
        """Return None: the combinations of all dimensions are too many."""


class SquashedGaussianHead:
    """Gaussian u for each dimension, squashed by tanh into the allowed range.

    The standard deviation is std_min + (std_max - std_min) * sigmoid(rho), so that exploration can
    neither vanish nor explode.
    """

    def __init__(self, actions: ContinuousActions, config: PolicyConfig) -> None:
        self.width = 2 * actions.count
        self._actions = actions
        self._low, self._span = config.std_min, config.std_max - config.std_min

    def masked(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Return the parameters; numbers have no mask."""
        return _unmasked(parameters, mask)

    def _mean_and_std(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = parameters.chunk(2, -1)
        return mean, self._low + self._span * spread.sigmoid()

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Draw u."""
        mean, std = self._mean_and_std(parameters)
        return mean + std * torch.empty_like(mean).normal_(generator=generator)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the mean of u."""
        return self._mean_and_std(parameters)[0]

    def log_prob(self, parameters: Tensor, raw: Tensor) -> Tensor:
        """Return the log density of the squashed action, computed from u."""
        mean, std = self._mean_and_std(parameters)
        return distribution.squashed_gaussian_log_prob(raw, mean, std, kind="tanh")

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the entropy of u."""
        return distribution.gaussian_entropy(self._mean_and_std(parameters)[1])

    def squashed_entropy(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the entropy of the squashed action from a few draws."""
        mean, std = self._mean_and_std(parameters)
        shape = (ENTROPY_SAMPLES, *mean.shape)
        noise = torch.empty(shape, dtype=mean.dtype, device=mean.device)
        drawn = mean + std * noise.normal_(generator=generator)
        return distribution.squashed_gaussian_entropy(drawn, std, kind="tanh")

    def kl(self, parameters: Tensor, other: Tensor) -> Tensor:
        """Return KL(first || other) of u, which squashing does not change."""
        return distribution.gaussian_kl(*self._mean_and_std(parameters), *self._mean_and_std(other))

    def to_task(self, raw: Tensor) -> Tensor:
        """Return the action within its bounds."""
        unit = 0.5 * (1.0 + distribution.squash(raw, kind="tanh"))
        return _between(unit, self._actions)

    def grid(self) -> Tensor | None:
        """Return u at the middles of equal parts of the range."""
        return None if self._actions.count > 1 else (2.0 * _middles() - 1.0).atanh()


class BetaHead:
    """Beta distribution on (0, 1) for each dimension, both parameters above 1: one mode."""

    def __init__(self, actions: ContinuousActions) -> None:
        self.width = 2 * actions.count
        self._actions = actions

    def masked(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """Return the parameters; numbers have no mask."""
        return _unmasked(parameters, mask)

    def _alpha_and_beta(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        alpha, beta = (1.0 + torch.nn.functional.softplus(parameters)).chunk(2, -1)
        return alpha, beta

    def sample(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Draw two Gamma numbers and take the share of the first."""
        alpha, beta = self._alpha_and_beta(parameters)
        first = torch._standard_gamma(alpha, generator=generator)
        second = torch._standard_gamma(beta, generator=generator)
        return (first / (first + second)).clamp(_EDGE, 1.0 - _EDGE)

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the mean, which is inside the interval always."""
        alpha, beta = self._alpha_and_beta(parameters)
        return alpha / (alpha + beta)

    def log_prob(self, parameters: Tensor, raw: Tensor) -> Tensor:
        """Return the log density of the share."""
        return distribution.beta_log_prob(raw, *self._alpha_and_beta(parameters))

    def entropy(self, parameters: Tensor) -> Tensor:
        """Return the entropy of the share."""
        return distribution.beta_entropy(*self._alpha_and_beta(parameters))

    def squashed_entropy(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """Return the entropy; a Beta distribution is not squashed."""
        del generator
        return self.entropy(parameters)

    def kl(self, parameters: Tensor, other: Tensor) -> Tensor:
        """Return KL(first || other)."""
        return distribution.beta_kl(*self._alpha_and_beta(parameters), *self._alpha_and_beta(other))

    def to_task(self, raw: Tensor) -> Tensor:
        """Return the action within its bounds."""
        return _between(raw, self._actions)

    def grid(self) -> Tensor | None:
        """Return the middles of equal parts of (0, 1)."""
        return None if self._actions.count > 1 else _middles()


def action_head(actions: Actions, config: PolicyConfig) -> ActionHead:
    """Return the head that fits the task's actions.

    Raises:
        ConfigError: if the chosen distribution cannot draw such actions.
    """
    chosen = config.distribution
    if isinstance(actions, DiscreteActions | MultiDiscreteActions):
        if chosen in ("auto", "categorical"):
            if isinstance(actions, MultiDiscreteActions):
                return MultiCategoricalHead(actions)
            return CategoricalHead(actions)
        fitting = "`auto` or `categorical` for discrete actions"
    elif chosen == "beta":
        return BetaHead(actions)
    elif chosen in ("auto", "squashed_gaussian"):
        return SquashedGaussianHead(actions, config)
    else:
        fitting = "`auto`, `squashed_gaussian` or `beta` for continuous actions"
    raise ConfigError(
        "config-inconsistent",
        wrong=f"`policy.distribution` must be {fitting}",
        found=f"`{chosen}`",
        remedy="Change the distribution, or the task's actions.",
    )


def _middles() -> Tensor:
    return (torch.arange(GRID_POINTS) + 0.5) / GRID_POINTS


def _masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None or mask.shape[-1] == 0:
        return logits
    return distribution.masked_logits(logits, mask)


def _unmasked(parameters: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None and mask.shape[-1] > 0:
        raise ShapeError(
            wrong="a mask must belong to classes, not to continuous actions",
            found=f"a mask of {mask.shape[-1]} entries",
            remedy="Leave `action_mask` out of the task, or give it discrete actions.",
        )
    return parameters


def _perturbed(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return the logits with Gumbel noise; the largest belongs to a draw from their softmax."""
    uniform = _uniform(logits, generator)
    least = torch.finfo(uniform.dtype).tiny
    return logits - (-uniform.clamp(min=least).log()).log()


def _uniform(logits: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(logits).uniform_(generator=generator)


def _between(unit: Tensor, actions: ContinuousActions) -> Tensor:
    """Return shares of [0, 1] as actions; rounding never leaves the bounds."""
    low, high = (_filled(unit, bounds) for bounds in (actions.low, actions.high))
    return torch.minimum(torch.maximum(low + (high - low) * unit, low), high)


def _filled(like: Tensor, numbers: tuple[float, ...]) -> Tensor:
    """Return the numbers as one row; a copy from the host could not be captured in a graph."""
    return torch.stack([like.new_full((), number) for number in numbers])
