"""Values of all actions: what each of K actions is expected to earn, and to add to the shortfall.

A network of its own behind the agent's memory. What another action would have changed, the account
and what the episode has earned, enters here and not before the memory, so that the values of
actions that were not taken can be asked with the memory that the agent really had.
"""

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
    """Q of R rewards for K actions, in reward units.

    Args:
        inputs: number of input columns.
        rewards: R.
        actions: K.
        sizes: widths of the hidden layers.
        generator: source of the weights.
    """

    def __init__(
        self,
        inputs: int,
        *,
        rewards: int,
        actions: int,
        sizes: tuple[int, ...],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.body = Mlp(inputs, sizes, activation="silu", generator=generator)
        self.last = linear(self.body.width, rewards * actions, gain=0.01, generator=generator)
        self.shape = (rewards, actions)
        self.register_buffer("unit", torch.ones(rewards, 1))
        self.unit: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return [*b, R, K]."""
        out: Tensor = self.last(self.body(x)).unflatten(-1, self.shape)
        return out * self.unit

    @torch.no_grad()
    def rescale(self, unit: Tensor) -> None:
        """Set the unit of the outputs, [R], and keep every prediction as it is."""
        factor = (self.unit[:, 0] / unit).repeat_interleave(self.shape[1])
        self.last.weight.mul_(factor[:, None])
        self.last.bias.mul_(factor)
        self.unit.copy_(unit[:, None])
