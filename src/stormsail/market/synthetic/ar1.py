"""`ar1`: momentum or reversal, returns that follow a Gaussian AR(1) process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from stormsail.market.synthetic.growth import Optimum, best_growth, gaussian_log_growth
from stormsail.market.synthetic.process import (
    Array,
    GaussianConfig,
    GaussianProcess,
    Path,
    Streams,
    ar1_path,
)

_GRID = 601  # points over ± 6 deviations


class Ar1Config(GaussianConfig):
    """Settings of `ar1`."""

    phi: Annotated[float, Field(gt=-0.95, lt=0.95)] = 0.2
    """φ, correlation of a return with the next; negative is reversal."""


@dataclass(frozen=True)
class Ar1Process(GaussianProcess):
    """Simple returns R_{t+1} = φ R_t + e, e Gaussian, stationary with deviation s.

    The next return is N(φ R_t, σ²) with σ² = s²(1 − φ²), whatever came before R_t.

    Known answers, before costs unless said:
    - E[w R_{t+1} | past] − ½ Var is largest at w = φ R_t/σ²; the mean of that maximum is
      φ²/(2(1 − φ²)), log growth to second order.
    - The weight sign(φ R_t) earns E|φ R_t| = |φ| s √(2/π) a bar: |R_t| has mean s√(2/π).
    - It flips with probability arccos(φ)/π (so often do two Gaussians of correlation φ differ in
      sign), each flip trading twice the equity: the break-even cost per traded notional is the gain
      over twice that probability.
    - Flat unless |R_t| > b, the gain is |φ| s √(2/π)·exp(−b²/2s²).
    - The best growth under costs from a list of weights is `optimal`.
    """

    config: Ar1Config

    @property
    def innovation_variance(self) -> float:
        """σ² = s²(1 − φ²), variance of the next return given the last."""
        return self.variance * (1.0 - self.config.phi**2)

    def autocorrelation(self, lag: int) -> float:
        """Return φ^lag."""
        return self.config.phi**lag

    def squared_autocorrelation(self, lag: int) -> float:
        """Return φ^{2·lag}: squares of two Gaussians of correlation c have correlation c²."""
        return self.config.phi ** (2 * lag)

    def optimal_weight(self, last_return: Array) -> Array:
        """Return φ R_t/σ², the mean-variance (second-order log growth) optimum without costs."""
        return self.config.phi * last_return / self.innovation_variance

    @property
    def optimal_utility(self) -> float:
        """Mean of w·E[R] − ½w²σ² at that weight: φ²/(2(1 − φ²))."""
        return self.config.phi**2 / (2.0 * (1.0 - self.config.phi**2))

    @property
    def sign_gain(self) -> float:
        """Mean return of the weight sign(φ R_t) before costs."""
        return self.threshold_gain(0.0)

    def threshold_gain(self, band: float) -> float:
        """Return the mean return of sign(φ R_t) where |R_t| > band, else 0, before costs."""
        s = self.config.volatility
        tail = np.exp(-(band**2) / (2.0 * s**2))
        return float(abs(self.config.phi) * s * np.sqrt(2.0 / np.pi) * tail)

    @property
    def sign_turnover(self) -> float:
        """Traded notional per bar of the sign strategy, in units of equity.

        sign(φR_t) and sign(φR_{t+1}) differ exactly where R_t and R_{t+1} do, with probability
        arccos(φ)/π; drift between trades not counted.
        """
        return float(2.0 * np.arccos(self.config.phi) / np.pi)

    @property
    def break_even_cost(self) -> float:
        """Cost per traded notional at which the sign strategy earns nothing."""
        return self.sign_gain / self.sign_turnover

    def optimal(
        self, *, cost_rate: float = 0.0, weights: Sequence[float] = (-1.0, 0.0, 1.0)
    ) -> Optimum:
        """Return the best log growth per bar for weights in a list, under proportional costs.

        Information is the last return, on a grid of 601 points over ± 6 deviations.
        """
        s = self.config.volatility
        grid = np.linspace(-6.0 * s, 6.0 * s, _GRID)
        sigma = np.sqrt(self.innovation_variance)
        density = np.exp(-(((grid[None, :] - self.config.phi * grid[:, None]) / sigma) ** 2) / 2.0)
        transition = density / density.sum(axis=1, keepdims=True)
        gain = gaussian_log_growth(self.config.phi * grid, np.full(_GRID, sigma), weights)
        return best_growth(gain, transition, weights, cost_rate=cost_rate)

    def numbers(self) -> dict[str, float]:
        """Gains and the cost that eats them."""
        return {
            "sign_gain": self.sign_gain,
            "sign_turnover": self.sign_turnover,
            "break_even_cost": self.break_even_cost,
            "optimal_utility": self.optimal_utility,
            "optimal_log_growth": self.optimal().log_growth,
            "optimal_log_growth_10bp": self.optimal(cost_rate=0.001).log_growth,
        }

    @property
    def statement(self) -> str:
        """How returns arise."""
        return (
            f"return = {self.config.phi:g} · last return + Gaussian noise, deviation"
            f" {self.config.volatility:g}"
        )

    @property
    def answer(self) -> str:
        """What momentum earns."""
        return (
            f"the sign strategy earns {self.sign_gain:.3g} a bar before costs, trades"
            f" {self.sign_turnover:.3g} of equity and breaks even at a cost of"
            f" {1e4 * self.break_even_cost:.3g} basis points; the best weight without costs is"
            f" {self.config.phi / self.innovation_variance:.4g} times the last return"
        )


def draw(config: Ar1Config, streams: Streams, count: int) -> Path:
    """Draw one symbol."""
    noise = streams("returns").standard_normal(count)
    returns = ar1_path(noise, persistence=config.phi, deviation=config.volatility)
    inside = np.full(count, config.volatility**2 * (1.0 - config.phi**2))
    return Path(np.log1p(returns), inside, config.volatility)
