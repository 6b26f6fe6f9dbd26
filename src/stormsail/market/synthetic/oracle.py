"""`oracle`: a column leaks the next return, so every working learner must earn here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from stormsail.market.synthetic.growth import Optimum, best_growth, gaussian_log_growth
from stormsail.market.synthetic.process import (
    AnyArray,
    Array,
    GaussianConfig,
    GaussianProcess,
    Path,
    Streams,
)

_GRID = 601
LEAK = "leak"
"""Name of the feature: known at a close, about the bar that opens then."""


class OracleConfig(GaussianConfig):
    """Settings of `oracle`."""

    leak_noise: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Standard deviation of what is added to the leaked return, in the return's unit; 0 leaks
    exactly."""


@dataclass(frozen=True)
class OracleProcess(GaussianProcess):
    """Simple returns independent N(0, s²); the column `leak` of bar t is R_{t+1} + noise.

    R_{t+1} is close over open of bar t+1 less 1, from the stored prices, bit for bit. With noise of
    deviation n, R given the leak L is N(ρL, ρn²) with ρ = s²/(s² + n²).

    Known answer: without costs, the sign of the leak earns √(2/π)·s²/√(s² + n²) a bar. Under costs
    the best growth of a trader who knows the leak is `optimal`; `growth.path_optimum` is the bound
    for a trader who knows all returns of given bars at once, which is more where costs make it
    worthwhile to look further than one bar. Nothing but the leak predicts.
    """

    config: OracleConfig

    @property
    def trust(self) -> float:
        """ρ = s²/(s² + n²): the mean of the next return per unit of leak."""
        return self.variance / (self.variance + self.config.leak_noise**2)

    @property
    def sign_gain(self) -> float:
        """Mean return of the weight sign(leak) before costs."""
        return float(np.sqrt(2.0 / np.pi * self.variance * self.trust))

    def optimal(
        self, *, cost_rate: float = 0.0, weights: Sequence[float] = (-1.0, 0.0, 1.0)
    ) -> Optimum:
        """Return the best log growth per bar for weights in a list, under proportional costs.

        Information is the leak, on a grid of 601 points over ± 6 deviations.
        """
        points = np.linspace(-6.0, 6.0, _GRID)
        mass = np.exp(-(points**2) / 2.0)
        transition = np.tile(mass / mass.sum(), (_GRID, 1))
        mean = self.trust * points * np.sqrt(self.variance / self.trust)
        deviation = np.full(_GRID, np.sqrt(self.trust) * self.config.leak_noise)
        gain = gaussian_log_growth(mean, deviation, weights)
        return best_growth(gain, transition, weights, cost_rate=cost_rate)

    def numbers(self) -> dict[str, float]:
        """The clairvoyant optimum."""
        return {
            "sign_gain": self.sign_gain,
            "optimal_log_growth": self.optimal().log_growth,
            "optimal_log_growth_10bp": self.optimal(cost_rate=0.001).log_growth,
        }

    @property
    def statement(self) -> str:
        """How returns arise."""
        noise = self.config.leak_noise
        exactly = "exactly" if noise == 0.0 else f"with noise of deviation {noise:g}"
        return (
            f"return independent Gaussian, deviation {self.config.volatility:g}; the column"
            f" `{LEAK}` tells the next one {exactly}"
        )

    @property
    def answer(self) -> str:
        """The clairvoyant optimum."""
        free, dear = self.optimal().log_growth, self.optimal(cost_rate=0.001).log_growth
        return (
            f"for weights -1, 0, 1 the best log growth is {free:.4g} a bar without costs and"
            f" {dear:.4g} at 10 basis points; nothing but the leak predicts"
        )


def draw(config: OracleConfig, streams: Streams, count: int) -> Path:
    """Draw one symbol; its leak is made by `leaked` once the prices are on their grid."""
    returns = config.volatility * streams("returns").standard_normal(count)
    return Path(np.log1p(returns), np.full(count, config.volatility**2), config.volatility)


def leaked(config: OracleConfig, streams: Streams, columns: Mapping[str, AnyArray]) -> Array:
    """Return the leak of every bar but the last: what the bar behind it makes of its open."""
    leak = np.asarray(columns["close"][1:] / columns["open"][1:] - 1.0, dtype=np.float64)
    if config.leak_noise > 0.0:
        leak += config.leak_noise * streams("leak").standard_normal(len(leak))
    return leak
