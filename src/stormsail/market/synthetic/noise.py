"""`noise`: a martingale price, on which no strategy earns and costs only lose."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy import special  # its `stats` takes longer to import than a world to draw

from stormsail.core.errors import RangeError
from stormsail.market.synthetic.process import Array, Path, Process, Share, Streams, Volatility
from stormsail.market.synthetic.process import WorldConfig as Base

_STEP = 0.01
_FARTHEST = 100.0  # the score e^100/2, past which a Student score with a variance has no weight


class NoiseConfig(Base):
    """Settings of `noise`."""

    volatility: Volatility = 0.01
    """Standard deviation of the score z per bar; that of the return is the same but for z³."""

    degrees: Annotated[float, Field(gt=2.0)] | None = None
    """Degrees of freedom of a Student score; Gaussian if not given."""

    funding_persistence: Share = 0.0
    """0 here: a funding rate that persists could be collected, and nothing may be predictable."""


@dataclass(frozen=True)
class NoiseProcess(Process):
    """Simple returns R = tanh z, z independent and symmetric: Gaussian, or Student scaled to `sd`.

    tanh is odd, so E[P_{t+1}/P_t | past] = 1 + E[tanh z] = 1 exactly, for tails as heavy as one
    likes, where a logarithm with Student tails would have E[P_{t+1}/P_t] = ∞. R stays in (−1, 1).

    Known answer: for a weight chosen from the past, E[wR | past] = 0, so every Sharpe ratio before
    costs has numerator zero and after costs less; by Jensen's inequality
    E log(1 + wR) = ½ E log(1 − w²R²) ≤ 0, with equality for w = 0 only.
    """

    config: NoiseConfig

    @property
    def mean(self) -> float:
        """Zero: the price is a martingale."""
        return 0.0

    @property
    def variance(self) -> float:
        """E tanh² z."""
        return self._expectation(lambda z: np.tanh(z) ** 2)

    @property
    def kurtosis(self) -> float:
        """E tanh⁴ z / (E tanh² z)²: finite for every score, because R is bounded."""
        return self._expectation(lambda z: np.tanh(z) ** 4) / self.variance**2

    def exceedance(self, size: float) -> float:
        """Return P(|R| > size) for a size in (0, 1)."""
        score = float(np.arctanh(size)) / self._unit
        return 2.0 * upper_tail(score, self.config.degrees)

    def log_growth(self, weight: float) -> float:
        """Return E log(1 + wR) = ½ E log(1 − w²R²) of a constant weight, before costs.

        Raises:
            RangeError: if the weight lies outside [−1, 1], where a bar can lose everything.
        """
        if not abs(weight) <= 1.0:
            raise RangeError(
                wrong="a weight must lie in [-1, 1], or a return near 1 loses everything",
                found=f"{weight:g}",
                remedy="Use a smaller weight.",
            )
        return 0.5 * self._expectation(lambda z: _log_left(z, weight))

    def numbers(self) -> dict[str, float]:
        """Growth of holding, which only loses."""
        return {"best_weight": 0.0, "best_log_growth": 0.0, "hold_log_growth": self.log_growth(1.0)}

    @property
    def statement(self) -> str:
        """How returns arise."""
        degrees = self.config.degrees
        score = "Gaussian" if degrees is None else f"Student({degrees:g})"
        return f"return = tanh(z), z independent {score} with deviation {self.config.volatility:g}"

    @property
    def answer(self) -> str:
        """Nothing earns."""
        return (
            "the price is a martingale: no causal strategy has a positive mean return, and the best"
            f" expected log growth is 0, by not trading; holding loses {-self.log_growth(1.0):.3g}"
            " a bar"
        )

    @property
    def _unit(self) -> float:
        """Return what a standard score is multiplied by."""
        return _unit(self.config)

    def _expectation(self, even: Callable[[Array], Array]) -> float:
        """Return E even(z), an even function that is 0 at 0.

        With score = sinh t the integrand is analytic within π/2 of the real line, so that equal
        steps in t are exact to rounding: the error is about exp(−π²/step).
        """
        t = np.arange(_STEP, _FARTHEST, _STEP)
        score = np.sinh(t)
        mass = np.cosh(t) * density(score, self.config.degrees)
        return 2.0 * _STEP * float(even(self._unit * score) @ mass)


def density(x: Array, degrees: float | None) -> Array:
    """Return the density of a standard score at x: Student, or Gaussian where `degrees` is None."""
    if degrees is None:
        return np.asarray(np.exp(-(x**2) / 2.0) / math.sqrt(2.0 * math.pi))
    half = degrees / 2.0
    # Γ(half + ½)/Γ(half) over √(π·degrees), without the cancellation of two large logarithms
    level = float(special.poch(half, 0.5)) / math.sqrt(math.pi * degrees)
    return np.asarray(level * np.exp(-(half + 0.5) * np.log1p(x**2 / degrees)))


def upper_tail(x: float, degrees: float | None) -> float:
    """Return the probability of a standard score above x."""
    return float(special.ndtr(-x) if degrees is None else special.stdtr(degrees, -x))


def _log_left(z: Array, weight: float) -> Array:
    """Return log(1 − w² tanh² z) for z > 0, where it is small and where tanh z rounds to 1."""
    near = np.log1p(-(weight**2) * np.tanh(np.minimum(z, 1.0)) ** 2)
    log_cosh = z + np.log1p(np.exp(-2.0 * z)) - np.log(2.0)
    kept = np.log1p(-(weight**2)) if abs(weight) < 1.0 else -np.inf
    # 1 − w² tanh² = 1/cosh² + (1 − w²) tanh²
    far = np.logaddexp(-2.0 * log_cosh, kept + 2.0 * np.log(np.tanh(np.maximum(z, 1.0))))
    return np.where(z < 1.0, near, far)


def _unit(config: NoiseConfig) -> float:
    degrees = config.degrees
    widening = 1.0 if degrees is None else np.sqrt((degrees - 2.0) / degrees)
    return float(config.volatility * widening)


def draw(config: NoiseConfig, streams: Streams, count: int) -> Path:
    """Draw one symbol: returns, and the variance that was behind each."""
    unit = np.full(count, _unit(config))
    if config.degrees is not None:  # a Student variable is a Gaussian of random variance
        chi = streams("mixing").chisquare(config.degrees, count)
        unit = unit * np.sqrt(config.degrees / chi)
    score: Array = unit * streams("returns").standard_normal(count)
    # log(1 + tanh z), also where tanh z rounds to −1
    log_return = 2.0 * score - np.logaddexp(0.0, 2.0 * score) + np.log(2.0)
    return Path(log_return, unit**2, config.volatility)
