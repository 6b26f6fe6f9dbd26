"""Values of states, and what each of K actions adds to the shortfall of an episode.

Networks of their own behind the agent's memory. What another action would have changed, the account
and what the episode has earned, enters here and not before the memory, so that the values of
actions that were not taken can be asked with the memory that the agent really had.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from stormsail.modules.layers import Mlp, linear

RETURN_INPUTS = 5
"""Columns of `return_inputs`."""

FINE = 0.1
"""Finer scale of the distance to the level, in spreads of returns: where the shortfall begins."""

_BOUND = 3.0
"""Largest size of an input, in its own unit."""


def return_inputs(return_so_far: Tensor, level: Tensor, spread: Tensor, left: Tensor) -> Tensor:
    """Return what an episode has earned as columns for a network, [*b, 5].

    Time left as a share of the episode; earned, and its distance to the level, in spreads of
    returns; the distance on a finer scale; and the shortfall so far. All are bounded.

    Args:
        return_so_far: C, [*b], in reward units.
        level: nu.
        spread: standard deviation of returns.
        left: share of the episode that is left, [*b].
    """
    distance = (return_so_far - level) / spread
    columns = (
        left,
        (return_so_far / spread).clamp(-_BOUND, _BOUND),
        distance.clamp(-_BOUND, _BOUND),
        (distance / FINE).clamp(-_BOUND, _BOUND),
        distance.clamp(-_BOUND, 0.0),
    )
    return torch.stack(torch.broadcast_tensors(*columns), -1)


class ActionValues(nn.Module):
    r"""Values V of a state for R rewards, and what each of K actions adds to the last of them.

    .. math::
        V_r = u_r\,v_r(s), \qquad
        A(a) = u_A \Big(q(s, a) - \frac{1}{K} \sum_b q(s, b)\Big)

    Three networks apart, each with a unit of its own: what one step of a long episode changes is a
    hundredth of what the episode is worth, and in shared layers it drowns in the error of that.

    Args:
        inputs: number of input columns.
        rewards: R.
        actions: K; with 1 there is nothing to add.
        sizes: widths of the hidden layers.
        generator: source of the weights.
        hidden: input columns that the value of the last reward does not see.
    """

    def __init__(
        self,
        inputs: int,
        *,
        rewards: int,
        actions: int,
        sizes: tuple[int, ...],
        generator: torch.Generator,
        hidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.actions = actions
        self.states = nn.ModuleList(
            _layers(inputs, 1, sizes, generator=generator) for _ in range(rewards)
        )
        self.advantages = (
            _layers(inputs, actions, sizes, generator=generator) if actions > 1 else None
        )
        self.register_buffer("unit", torch.ones(rewards + 1))
        self.unit: Tensor
        """Of each value, and of what actions add, [R + 1]."""
        shown = torch.ones(rewards, inputs)
        shown[-1, list(hidden)] = 0.0
        self.register_buffer("shown", shown, persistent=False)
        self.shown: Tensor
        """1 for the columns that each value sees, [R, X]."""
        self._hides = (*(False,) * (rewards - 1), bool(hidden))

    def value(self, x: Tensor, reward: int) -> Tensor:
        """Return the value of a state for one of the rewards, [*b]."""
        layers = self.states[reward]
        if self._hides[reward]:
            body, last = cast("tuple[Mlp, nn.Linear]", tuple(layers.children()))
            out: Tensor = last(body.seeing(self.shown[reward], x))
        else:
            out = layers(x)
        return out[..., 0] * self.unit[reward]

    def values(self, x: Tensor) -> Tensor:
        """Return the values of a state, [*b, R]."""
        return torch.stack([self.value(x, reward) for reward in range(len(self.states))], -1)

    def added(self, x: Tensor) -> Tensor:
        """Return what each action adds to the last reward, about their mean, [*b, K]."""
        if self.advantages is None:
            return torch.zeros_like(x[..., :1])
        return about_mean(self.advantages(x)) * self.unit[-1]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of a state, [*b, R], and what each action adds, [*b, K]."""
        return self.values(x), self.added(x)

    @torch.no_grad()
    def rescale(self, unit: Tensor) -> None:
        """Set the units of the outputs, [R + 1], and keep every prediction as it is."""
        factor = self.unit / unit
        networks = [*self.states, *([] if self.advantages is None else [self.advantages])]
        for layers, each in zip(networks, factor, strict=False):  # without actions one unit more
            layers[-1].weight.mul_(each)
            layers[-1].bias.mul_(each)
        self.unit.copy_(unit)


def about_mean(q: Tensor) -> Tensor:
    """Return what each action adds to the mean over all of them, [*b, K]."""
    return q - q.mean(-1, keepdim=True)


def _layers(
    inputs: int, outputs: int, sizes: tuple[int, ...], *, generator: torch.Generator
) -> nn.Sequential:
    body = Mlp(inputs, sizes, activation="silu", generator=generator)
    return nn.Sequential(body, linear(body.width, outputs, gain=0.01, generator=generator))
