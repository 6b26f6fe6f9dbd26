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
    r"""Q of R rewards for K actions, in reward units: the value of the state, and what actions add.

    .. math::
        Q(a) = u_V\,V + u_A \Big(A(a) - \frac{1}{K} \sum_b A(b)\Big)

    A dueling network (Wang et al. 2016, arXiv:1511.06581, section 3, the form with the mean). Here
    both parts have units of their own: what one step of a long episode changes is a hundredth of
    what the episode is worth, and would drown in the error of that.

    Args:
        inputs: number of input columns.
        rewards: R.
        actions: K; with 1 there is nothing to add to the value.
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
        self.shape = (rewards, actions)
        self._columns = 1 if actions == 1 else 1 + actions
        self.body = Mlp(inputs, sizes, activation="silu", generator=generator)
        self.last = linear(self.body.width, rewards * self._columns, gain=0.01, generator=generator)
        self.register_buffer("unit", torch.ones(rewards, 2))
        self.unit: Tensor
        """Of the value and of what actions add, [R, 2]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [*b, R, K]."""
        out: Tensor = self.last(self.body(x)).unflatten(-1, (-1, self._columns))
        value, added = out[..., :1], out[..., 1:]
        value = value * self.unit[:, :1]
        if self.shape[1] == 1:
            return value
        return value + (added - added.mean(-1, keepdim=True)) * self.unit[:, 1:]

    @torch.no_grad()
    def rescale(self, unit: Tensor) -> None:
        """Set the units of the outputs, [R, 2], and keep every prediction as it is."""
        factor = (self.unit / unit).repeat_interleave(
            torch.tensor([1, self._columns - 1], device=unit.device), dim=1
        )
        self.last.weight.mul_(factor.flatten()[:, None])
        self.last.bias.mul_(factor.flatten())
        self.unit.copy_(unit)


def parts(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over actions, [*b, 1], and what each adds to it, [*b, K]."""
    mean = q.mean(-1, keepdim=True)
    return mean, q - mean
