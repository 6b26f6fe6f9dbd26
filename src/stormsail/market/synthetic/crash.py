"""`crash`: steady gains of a long position, and rare crashes that ruin it."""

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from scipy import optimize

from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.functional.risk import empirical_cvar
from stormsail.market.synthetic.growth import check_solvent, gaussian_nodes
from stormsail.market.synthetic.process import (
    WARNING,
    Array,
    Path,
    Probability,
    Process,
    Streams,
    Volatility,
    WorldConfig,
    draw_warnings,
)

_EPISODES = 100_000


class CrashConfig(WorldConfig):
    """Settings of `crash`."""

    drift: Annotated[float, Field(ge=0.0, le=0.01)] = 0.0006
    """Mean simple return of a calm bar."""

    volatility: Volatility = 0.004
    """Standard deviation of the simple return of a calm bar."""

    crash_probability: Annotated[float, Field(ge=0.0, le=0.1)] = 0.0005
    """p, probability that a bar is a crash."""

    drop: tuple[float, float] = (0.25, 0.45)
    """Bounds between which the loss of a crash is uniform, as a fraction."""

    warning_share: Probability = 0.0
    """Share of the crashes that a warning precedes, seen at the close before."""

    false_alarms: Probability = 0.0
    """Probability of a warning before a calm bar."""

    warning_volume: Annotated[float, Field(ge=0.0, le=4.0)] = 1.5
    """What a warning adds to the logarithm of the volume of the bar that shows it."""

    @model_validator(mode="after")
    def _drop_is_a_loss(self) -> Self:
        low, high = self.drop
        if not 0.0 < low <= high <= 0.9:
            raise ConfigError(
                "config-inconsistent",
                wrong="`drop` must be two fractions, 0 < lowest <= highest <= 0.9",
                found=f"{[low, high]}",
                remedy="The default is [0.25, 0.45].",
            )
        return self


@dataclass(frozen=True)
class CrashProcess(Process):
    """Simple returns: with probability p a loss D uniform on [a, b], else N(μ, σ²); independent.

    Known answers for a weight w in [0, 1]:
    - growth(w) = (1 − p)·E log(1 + w(μ + σz)) + p·E log(1 − wD) per bar, where
      E log(1 − wD) = [F(1 − wa) − F(1 − wb)]/(w(b − a)) with F(x) = x log x − x, and the calm part
      is a Gauss-Hermite sum of 32 points (exact to rounding for these sizes).
    - `optimal_weight`: where growth is largest. `episode_cvar`: what it costs in the tail.
    - With warnings: P(crash | warning) = ps/(ps + (1 − p)f) for the share s and false alarms f.
    """

    config: CrashConfig

    @property
    def mean(self) -> float:
        """(1 − p)μ − p E D."""
        return self._moment(1)

    @property
    def variance(self) -> float:
        """Variance of the mixture."""
        return self._moment(2) - self.mean**2

    @property
    def kurtosis(self) -> float:
        """Kurtosis of the mixture, from raw moments."""
        first, second, third, fourth = (self._moment(power) for power in (1, 2, 3, 4))
        central = fourth - 4.0 * first * third + 6.0 * first**2 * second - 3.0 * first**4
        return central / self.variance**2

    def log_growth(self, weight: float, *, crash_probability: float | None = None) -> float:
        """Return E log(1 + wR) per bar before costs, for this or another probability of a crash.

        Raises:
            RangeError: if the weight loses everything in a crash, or at a point of the calm sum.
        """
        p = self.config.crash_probability if crash_probability is None else crash_probability
        check_solvent([weight], self._extremes(p))
        points, mass = gaussian_nodes()
        calm = float(
            np.log1p(weight * (self.config.drift + self.config.volatility * points)) @ mass
        )
        return (1.0 - p) * calm + (p * self._crash_log(weight) if p > 0.0 else 0.0)

    def optimal_weight(self, *, most: float = 1.0, crash_probability: float | None = None) -> float:
        """Return the weight in [0, most] of the largest mean log growth, whatever the tail."""

        def loss(weight: float) -> float:
            return -self.log_growth(weight, crash_probability=crash_probability)

        p = self.config.crash_probability if crash_probability is None else crash_probability
        worst = -float(self._extremes(p).min())
        if worst > 0.0:
            most = min(most, (1.0 - 1e-9) / worst)  # beyond it one bar takes everything
        best = optimize.minimize_scalar(loss, bounds=(0.0, most), options={"xatol": 1e-9})
        # Growth is concave; the search never tries the very ends, so they are tried here.
        return float(min((0.0, float(best.x), most), key=loss))

    def crash_given(self, *, warning: bool) -> float:
        """Return the probability that the next bar is a crash, after a warning or without one."""
        config = self.config
        p, s, f = config.crash_probability, config.warning_share, config.false_alarms
        crash, calm = (p * s, (1 - p) * f) if warning else (p * (1 - s), (1 - p) * (1 - f))
        return crash / (crash + calm) if crash + calm > 0.0 else 0.0

    def warned_log_growth(self, *, most: float = 1.0) -> float:
        """Return the best mean log growth of a trader who heeds warnings, without costs."""
        config = self.config
        p = config.crash_probability
        seen = p * config.warning_share + (1.0 - p) * config.false_alarms
        total = 0.0
        for warning, probability in ((True, seen), (False, 1.0 - seen)):
            risk = self.crash_given(warning=warning)
            best = self.optimal_weight(most=most, crash_probability=risk)
            total += probability * self.log_growth(best, crash_probability=risk)
        return total

    def episode_returns(
        self, weight: float, *, bars: int, episodes: int = _EPISODES, seed: int = 0
    ) -> Array:
        """Draw total log returns of episodes at a constant weight, before costs.

        Crashes are drawn from their exact distribution. The calm bars are summed as a Gaussian with
        their exact mean and variance, whose error is of order bars^{−1/2} of their small skewness.

        Raises:
            RangeError: if the weight loses everything in one bar.
        """
        check_solvent([weight], self._extremes(self.config.crash_probability))
        draws = Generators(seed).numpy("crash_law.episodes")
        crashes = draws.binomial(bars, self.config.crash_probability, episodes)
        points, mass = gaussian_nodes()
        logs = np.log1p(weight * (self.config.drift + self.config.volatility * points))
        centre, calm = float(logs @ mass), bars - crashes
        spread = float(((logs - centre) ** 2) @ mass)
        total = calm * centre + np.sqrt(calm * spread) * draws.standard_normal(episodes)
        losses = np.log1p(-weight * draws.uniform(*self.config.drop, int(crashes.sum())))
        owner = np.repeat(np.arange(episodes), crashes)
        return np.asarray(total + np.bincount(owner, weights=losses, minlength=episodes))

    def episode_cvar(
        self,
        weight: float,
        *,
        bars: int,
        alpha: float = 0.05,
        episodes: int = _EPISODES,
        seed: int = 0,
    ) -> float:
        """Return the mean of the worst `alpha` of the episodes' log returns, by drawing."""
        sample = self.episode_returns(weight, bars=bars, episodes=episodes, seed=seed)
        return float(empirical_cvar(torch.from_numpy(sample), alpha=alpha))

    def numbers(self) -> dict[str, float]:
        """Growth and tail of a full and of a small weight."""
        best = self.optimal_weight()
        return {
            "optimal_weight": best,
            "optimal_log_growth": self.log_growth(best),
            "warned_log_growth": self.warned_log_growth(),
            "episode_cvar_5_at_optimum": self.episode_cvar(best, bars=256),
            "episode_cvar_5_at_0.1": self.episode_cvar(0.1, bars=256),
        }

    @property
    def statement(self) -> str:
        """How returns arise."""
        config = self.config
        low, high = config.drop
        return (
            f"return = {config.drift:g} ± {config.volatility:g}, and with probability"
            f" {config.crash_probability:g} a loss of {low:g} to {high:g}"
        )

    @property
    def answer(self) -> str:
        """Mean and tail disagree."""
        numbers = self.numbers()
        return (
            f"the mean of log growth is best at weight {numbers['optimal_weight']:.3g}"
            f" ({numbers['optimal_log_growth']:.3g} a bar); over 256 bars the worst 5 % then"
            f" average {numbers['episode_cvar_5_at_optimum']:.3g}, at weight 0.1"
            f" {numbers['episode_cvar_5_at_0.1']:.3g}"
        )

    def _extremes(self, crash_probability: float) -> Array:
        """Return the calm points that a growth is summed over, and both ends of a crash."""
        points, _ = gaussian_nodes()
        calm = self.config.drift + self.config.volatility * points
        return np.append(calm, [-drop for drop in self.config.drop if crash_probability > 0.0])

    def _crash_log(self, weight: float) -> float:
        low, high = self.config.drop
        if abs(weight) * (high - low) < 1e-9:  # the quotient below would be 0/0
            return float(np.log1p(-weight * (low + high) / 2.0))
        ends = 1.0 - weight * np.array([low, high])
        primitive = ends * np.log(ends) - ends
        return float((primitive[0] - primitive[1]) / (weight * (high - low)))

    def _moment(self, power: int) -> float:
        config = self.config
        points, mass = gaussian_nodes()
        calm = float((config.drift + config.volatility * points) ** power @ mass)
        low, high = config.drop
        # E Dⁿ of a uniform distribution as a mean of mixed powers, which also holds for low = high.
        crash = sum(low**k * high ** (power - k) for k in range(power + 1)) / (power + 1)
        p = config.crash_probability
        return (1.0 - p) * calm + p * float((-1.0) ** power * crash)


def draw(config: CrashConfig, streams: Streams, count: int) -> Path:
    """Draw one symbol; the hidden state is which bars are crashes."""
    crashed = streams("crashes").random(count) < config.crash_probability
    low, high = config.drop
    loss = low + (high - low) * streams("drops").random(count)
    calm = config.drift + config.volatility * streams("returns").standard_normal(count)
    warning = draw_warnings(
        crashed, streams, share=config.warning_share, false_alarms=config.false_alarms
    )
    return Path(
        np.log1p(np.where(crashed, -loss, calm)),
        np.full(count, config.volatility**2),
        config.volatility,
        volume_lift=config.warning_volume * warning,
        features={WARNING: warning},
        hidden={"crash": crashed.astype(np.float64)},
    )
