r"""`garch-states`: the process of `garch-jump` with its variance observed, judged state by state.

An episode of n bars holds one unit; a bar pays its log return

.. math::
    r_t = d - \lambda m + \sqrt{h_t}\,x_t + J_t, \qquad
    h_{t+1} = \omega + \alpha h_t x_t^2 + \beta h_t,

with the settings of `market.synthetic.garch_jump`: x Student with variance 1, J the sum of
Poisson(:math:`\lambda`) many :math:`N(m, \delta^2)`. What is observed is :math:`\log(h_t / \bar h)`
with the mean variance :math:`\bar h`, and the share of bars that are left. The market of
`garch-jump` shows prices only, so what a state is there depends on everything before it; here it is
one number, and many continuations of it are drawn: with 400,000 of them, CVaR at 5 % has
a standard error of less than 1 %.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.bench.risk.tails_chain import Truth
from stormsail.bench.risk.tails_states import JudgedState, WorldInfo
from stormsail.core.task import DiscreteActions, Step
from stormsail.market.synthetic.garch_jump import GarchJumpConfig

WIDEST = 9.0
"""Variance of the wildest start over the mean one; that of the calmest is its inverse."""
_DRAW_SEED = 0


@dataclass(frozen=True)
class GarchStates:
    """Settings of the world, and the states that are judged."""

    name: str = "garch-states"
    process: GarchJumpConfig = field(default_factory=GarchJumpConfig)
    steps: int = 20
    judged: tuple[tuple[float, int], ...] = tuple(
        (ratio, left) for ratio in (0.25, 1.0, 6.0) for left in (20, 5)
    )
    """Variance over the mean one, and bars left."""
    draws: int = 400_000
    """Continuations of each state."""

    def task(self, batch: int) -> "GarchTask":
        """Return its episodes as a task."""
        return GarchTask(self, batch=batch)

    def states(self, *, gamma: float) -> list[JudgedState]:
        """Return the states that are judged; noise makes their tails, so their event is sure."""
        return [
            JudgedState(
                name=f"{ratio:g} of the variance, {left} left",
                event=1.0,
                path=tuple(
                    torch.tensor([[math.log(ratio), before / self.steps]])
                    for before in range(self.steps, left - 1, -1)
                ),
                truth=self.truth(ratio, left, gamma=gamma),
            )
            for ratio, left in self.judged
        ]

    def truth(self, ratio: float, left: int, *, gamma: float) -> Truth:
        """Return the discounted returns of many continuations from a state."""
        generator = torch.Generator().manual_seed(_DRAW_SEED)
        variance = torch.full((self.draws,), ratio * self.process.volatility**2).double()
        total = torch.zeros(self.draws, dtype=torch.float64)
        for step in range(left):
            paid, variance = one_bar(self.process, variance, generator)
            total += gamma**step * paid
        return Truth(float(total.std()), total.sort().values, float(total.mean()))


def one_bar(
    process: GarchJumpConfig, variance: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the log return of a bar and the variance of the next, each as `variance`."""
    degrees = round(process.degrees)

    def normal(*more: int) -> Tensor:
        shape = (*more, *variance.shape)
        return torch.randn(shape, dtype=variance.dtype, generator=generator)

    unit = math.sqrt((degrees - 2.0) / degrees)
    innovation = unit * normal() / normal(degrees).square().mean(0).sqrt()
    jumps = torch.poisson(torch.full_like(variance, process.jump_rate), generator=generator)
    jump = jumps * process.jump_mean + jumps.sqrt() * process.jump_deviation * normal()
    centre = process.drift - process.jump_rate * process.jump_mean
    omega = process.volatility**2 * (1.0 - process.alpha - process.beta)
    following = omega + variance * (process.alpha * innovation.square() + process.beta)
    return centre + variance.sqrt() * innovation + jump, following


class GarchState(NamedTuple):
    """Where each episode stands."""

    variance: Tensor
    """[B]."""
    left: Tensor
    """Bars that are left, [B] int64."""
    over: Tensor
    """[B] bool: the episode ended, and the coming step starts another."""


class GarchTask:
    """B episodes side by side, as a task; each starts with a variance of its own.

    Args:
        world: its settings.
        batch: B.
    """

    dtype = torch.float32
    observation_size = 2
    observation_names = ("log_variance", "left")
    actions = DiscreteActions(2)

    def __init__(self, world: GarchStates, *, batch: int) -> None:
        self.world, self.batch = world, batch
        self.device = torch.device("cpu")
        self._mean = world.process.volatility**2

    def reset(self, generator: torch.Generator) -> tuple[GarchState, Tensor]:
        """Start all episodes."""
        state = self._fresh(generator)
        return state, self._seen(state)

    def step(
        self, state: GarchState, action: Tensor, generator: torch.Generator
    ) -> tuple[GarchState, Step[WorldInfo]]:
        """Pay the log return of a bar; actions change nothing."""
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        fresh = self._fresh(generator)
        paid, variance = one_bar(self.world.process, state.variance, generator)
        ended = (state.left == 1) & ~state.over
        going = GarchState(variance, state.left - 1, ended)
        pairs = zip(fresh, going, strict=True)
        after = GarchState(*(torch.where(state.over, new, old) for new, old in pairs))
        reward = torch.where(state.over, 0.0, paid)
        info = WorldInfo((~state.over).to(self.dtype))
        return after, Step(self._seen(after), reward, ended, torch.zeros_like(ended), info)

    def _seen(self, state: GarchState) -> Tensor:
        return torch.stack([(state.variance / self._mean).log(), state.left / self.world.steps], -1)

    def _fresh(self, generator: torch.Generator) -> GarchState:
        exponent = 2.0 * torch.rand(self.batch, generator=generator) - 1.0
        left = torch.full((self.batch,), self.world.steps)
        return GarchState(self._mean * WIDEST**exponent, left, torch.zeros(self.batch).bool())


GARCH_STATES = GarchStates()
