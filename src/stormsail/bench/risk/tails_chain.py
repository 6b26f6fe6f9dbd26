r"""A chain that pays independent noise for ever: its return distribution is known.

Every step pays :math:`r \sim D` with mean 0 and variance 1 whatever is done, and nothing ends. The
return :math:`Z = \sum_k \gamma^k r_k` therefore has one distribution for every state:
:math:`N(0, 1 / (1 - \gamma^2))` for normal noise, and for other noise what drawing gives.
"""

from typing import NamedTuple

import torch
from scipy.special import ndtr
from scipy.stats import norm
from torch import Tensor

from stormsail.core.task import DiscreteActions, Step


class ChainState(NamedTuple):
    """Nothing but a count, since every step is like every other."""

    elapsed: Tensor
    """[B] int64."""


class ChainInfo(NamedTuple):
    """What comes with a step."""

    sample_weight: Tensor
    """[B], always 1."""


class Chain:
    """B chains side by side.

    Args:
        batch: B.
        noise: `normal`, or `skewed`: 1 - Exp(1), whose left tail is long.
    """

    observation_size = 1
    observation_names = ("constant",)
    dtype = torch.float32
    actions = DiscreteActions(2)

    def __init__(self, *, batch: int, noise: str = "normal") -> None:
        self.batch, self.noise = batch, noise
        self.device = torch.device("cpu")

    def reset(self, generator: torch.Generator) -> tuple[ChainState, Tensor]:
        """Start; draws nothing."""
        del generator
        return ChainState(torch.zeros(self.batch, dtype=torch.int64)), self._seen()

    def step(
        self, state: ChainState, action: Tensor, generator: torch.Generator
    ) -> tuple[ChainState, Step[ChainInfo]]:
        """Pay noise; actions change nothing."""
        self.actions.check(action, batch=self.batch, dtype=self.dtype)
        never = torch.zeros(self.batch, dtype=torch.bool)
        reward = draw(self.noise, (self.batch,), generator)
        info = ChainInfo(torch.ones(self.batch))
        return ChainState(state.elapsed + 1), Step(self._seen(), reward, never, never.clone(), info)

    def _seen(self) -> Tensor:
        return torch.ones(self.batch, 1)


def draw(noise: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return noise of mean 0 and variance 1."""
    if noise == "normal":
        return torch.randn(shape, generator=generator)
    return 1.0 - torch.empty(shape).exponential_(generator=generator)


class Truth(NamedTuple):
    """A return distribution, by a large sorted sample or in closed form."""

    spread: float
    """Standard deviation."""
    sample: Tensor | None
    """Sorted, float64 [n]; None for the normal distribution."""
    mean: float = 0.0
    """Expected return; 0 for the normal distribution."""

    def below(self, value: Tensor) -> Tensor:
        """Return the probability of a return of at most this."""
        if self.sample is None:
            return torch.from_numpy(ndtr((value.double() / self.spread).numpy()))
        count = torch.searchsorted(self.sample, value.double().contiguous(), right=True)
        return count / len(self.sample)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Return the exact quantiles at these levels."""
        if self.sample is None:
            return torch.from_numpy(self.spread * norm.ppf(levels.double().numpy()))
        return torch.quantile(self.sample[:: max(1, len(self.sample) // 1_000_000)], levels)

    def cvar(self, alpha: float) -> float:
        """Return the mean of the worst share of returns."""
        if self.sample is None:
            return float(-self.spread * norm.pdf(norm.ppf(alpha)) / alpha)
        return float(self.sample[: int(alpha * len(self.sample))].mean())


def truth(noise: str, *, gamma: float, draws: int = 400_000) -> Truth:
    """Return the distribution of discounted returns of a chain.

    Other noise than normal is drawn over as many steps as leave a millionth of the variance out.
    """
    spread = (1.0 - gamma**2) ** -0.5
    if noise == "normal":
        return Truth(spread, None)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(draws, dtype=torch.float64)
    weight = 1.0
    while weight > 1e-3:
        total += weight * draw(noise, (draws,), generator).double()
        weight *= gamma
    return Truth(spread, total.sort().values)
