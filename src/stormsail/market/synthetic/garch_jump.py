"""`garch_jump`: clustered volatility, fat tails and jumps, of which some may be announced."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy import optimize, special

from stormsail.core.errors import ConfigError
from stormsail.market.synthetic.process import (
    WARNING,
    Array,
    Path,
    Probability,
    Process,
    Share,
    Streams,
    Volatility,
    WorldConfig,
    draw_warnings,
)

_STEP = 1e-3
_BURN_IN = 2_000  # bars until the start at the mean variance is forgotten: 0.98²⁰⁰⁰ = 3e-18


class GarchJumpConfig(WorldConfig):
    """Settings of `garch_jump`."""

    volatility: Volatility = 0.01
    """Unconditional standard deviation of the part without jumps, per bar."""

    alpha: Share = 0.06
    """Weight of the last squared shock in the variance."""

    beta: Share = 0.92
    """Weight of the last variance in the variance."""

    degrees: Annotated[float, Field(gt=2.0)] = 8.0
    """Degrees of freedom of the Student innovations, which are scaled to variance 1."""

    drift: Annotated[float, Field(ge=-0.01, le=0.01)] = 0.0
    """Mean log return per bar."""

    jump_rate: Annotated[float, Field(ge=0.0, le=1.0)] = 0.005
    """Expected jumps per bar."""

    jump_mean: Annotated[float, Field(ge=-0.5, le=0.5)] = -0.01
    """Mean of a jump's logarithm; the drift is corrected for it."""

    jump_deviation: Annotated[float, Field(ge=0.0, le=0.5)] = 0.03
    """Standard deviation of a jump's logarithm."""

    warning_share: Probability = 0.0
    """Share of the bars with jumps that a warning precedes, seen at the close before."""

    false_alarms: Probability = 0.0
    """Probability of a warning before a bar without a jump."""

    warning_volume: Annotated[float, Field(ge=0.0, le=4.0)] = 1.5
    """What a warning adds to the logarithm of the volume of the bar that shows it."""

    funding_mean: Annotated[float, Field(ge=-0.01, le=0.01)] = 1e-4
    """Long-run mean of the funding rate per settlement, as a fraction of the notional."""

    @model_validator(mode="after")
    def _variance_is_finite(self) -> Self:
        if self.alpha + self.beta >= 1.0:
            raise ConfigError(
                "config-inconsistent",
                wrong="`alpha` + `beta` must be below 1, or the variance has no mean",
                found=f"alpha={self.alpha:g}, beta={self.beta:g}",
                remedy="Lower one of the two.",
            )
        return self


@dataclass(frozen=True)
class GarchJumpProcess(Process):
    """Log returns r_t = drift − λm + √h_t·x_t + J_t.

    h_{t+1} = ω + α h_t x_t² + β h_t; x Student with variance 1; J the sum of Poisson(λ) many
    N(m, δ²), independent of everything.

    With κ = E x⁴ = 3(ν − 2)/(ν − 4): E h² / (E h)² = (1 − (α+β)²)/(1 − β² − 2αβ − κα²), where that
    denominator is positive. ε² = h x² is an ARMA(1,1), so its autocorrelation is
    ρ_1 = α(1 − αβ − β²)/(1 − 2αβ − β²), ρ_k = ρ_1 (α+β)^{k−1}. Jumps add independent terms to the
    moments and none to the covariances.

    `volatility`² is ω/(1 − α − β).

    Known answer: the sign of r_t − drift cannot be predicted but for the skewness of jumps, its
    size can; the log growth of holding is `drift` a bar, exactly. With warnings of a share s of the
    bars that jump, which are p = 1 − e^{−λ} of all, and false ones with probability f:
    P(jump | warning) = ps/(ps + (1 − p)f), and behind a warning, or behind none, the mean of a bar
    is `drift` + (P/p − 1)λm.
    """

    config: GarchJumpConfig
    measured: ClassVar[Literal["simple", "log"]] = "log"

    @property
    def mean(self) -> float:
        """Mean log return."""
        return self.config.drift

    @property
    def variance(self) -> float:
        """ω/(1 − α − β) + λ(m² + δ²)."""
        return self.config.volatility**2 + self._jump_moments()[0]

    @property
    def kurtosis(self) -> float:
        """Kurtosis, infinite where the fourth moment is."""
        return self._fourth_moment() / self.variance**2

    @property
    def tail_index(self) -> float:
        """The κ with E[(α x² + β)^{κ/2}] = 1: P(|ε| > u) falls like u^{−κ} (Kesten's theorem).

        It lies between 2, where the mean is α + β < 1, and ν, where it is infinite. Where the two
        cannot be told apart, clustering adds nothing to the tail of the innovations: ν.
        """
        degrees = self.config.degrees
        if self.config.alpha == 0.0:
            return degrees
        excess = _log_moment(self.config)
        rising = (2.0 + 2.0**power for power in range(64))
        nearing = (degrees - (degrees - 2.0) * 0.5**power for power in range(1, 30))
        below = 2.0
        for above in (*(index for index in rising if index < (2.0 + degrees) / 2.0), *nearing):
            if excess(above) > 0.0:
                return float(optimize.brentq(excess, below, above, xtol=1e-6))
            below = above
        return degrees

    def squared_autocorrelation(self, lag: int) -> float:
        """Return corr((r_t − drift)², (r_{t+lag} − drift)²); nan where the fourth moment is not."""
        if lag == 0:
            return 1.0
        a, b = self.config.alpha, self.config.beta
        first = a * (1.0 - a * b - b**2) / (1.0 - 2.0 * a * b - b**2)
        own = self._diffusion_fourth() - self.config.volatility**4
        whole = self._fourth_moment() - self.variance**2
        return float(first * (a + b) ** (lag - 1) * own / whole)

    def jumps_given(self, *, warning: bool) -> float:
        """Return the probability that the next bar jumps, after a warning or without one."""
        share, false = self.config.warning_share, self.config.false_alarms
        p = -float(np.expm1(-self.config.jump_rate))
        jump, calm = (
            (p * share, (1 - p) * false) if warning else (p * (1 - share), (1 - p) * (1 - false))
        )
        return jump / (jump + calm) if jump + calm > 0.0 else 0.0

    def mean_given(self, *, warning: bool) -> float:
        """Return the mean log return of the next bar, after a warning or without one."""
        p = -float(np.expm1(-self.config.jump_rate))
        if p == 0.0:
            return self.config.drift
        times = self.jumps_given(warning=warning) / p
        return self.config.drift + (times - 1.0) * self.config.jump_rate * self.config.jump_mean

    def numbers(self) -> dict[str, float]:
        """Moments, tail, and what a warning says."""
        return {
            "hold_log_growth": self.config.drift,
            "tail_index": self.tail_index,
            "jumps_per_bar": self.config.jump_rate,
            "squared_autocorrelation_1": self.squared_autocorrelation(1),
            "mean_log_return_warned": self.mean_given(warning=True),
            "mean_log_return_unwarned": self.mean_given(warning=False),
        }

    @property
    def statement(self) -> str:
        """How returns arise."""
        config = self.config
        return (
            f"log return = GARCH(1,1) with alpha {config.alpha:g}, beta {config.beta:g}, deviation"
            f" {config.volatility:g}, Student({config.degrees:g}) innovations, and"
            f" {config.jump_rate:g} jumps a bar"
        )

    @property
    def answer(self) -> str:
        """Sizes are predictable, signs are not."""
        return (
            f"holding grows by {self.config.drift:g} a bar in logarithms before funding; the size"
            f" of moves is predictable (autocorrelation of squares"
            f" {self.squared_autocorrelation(1):.3f}), their direction is not but for the"
            f" skewness of jumps; tail index {self.tail_index:.2f}{self._warned}"
        )

    @property
    def _warned(self) -> str:
        if self.config.warning_share == 0.0:
            return ""
        return f"; behind a warning the mean is {self.mean_given(warning=True):.3g} a bar"

    def _jump_moments(self) -> tuple[float, float]:
        """Return second and fourth central moments of the jump sum: cumulants are λ E[Yⁿ]."""
        rate, m, d = self.config.jump_rate, self.config.jump_mean, self.config.jump_deviation
        second = rate * (m**2 + d**2)
        fourth = rate * (m**4 + 6.0 * m**2 * d**2 + 3.0 * d**4)
        return second, fourth + 3.0 * second**2

    def _diffusion_fourth(self) -> float:
        a, b, v = self.config.alpha, self.config.beta, self.config.degrees
        if v <= 4.0:
            return float("inf")
        kurtosis = 3.0 * (v - 2.0) / (v - 4.0)
        left = 1.0 - b**2 - 2.0 * a * b - kurtosis * a**2
        if left <= 0.0:
            return float("inf")
        return self.config.volatility**4 * kurtosis * (1.0 - (a + b) ** 2) / left

    def _fourth_moment(self) -> float:
        second, fourth = self._jump_moments()
        return self._diffusion_fourth() + 6.0 * self.config.volatility**2 * second + fourth


def _log_moment(config: GarchJumpConfig) -> Callable[[float], float]:
    """Return κ ↦ log E[(α x² + β)^{κ/2}].

    A sum over the logarithm s of the score, which converges exponentially; both the moment and its
    norming are taken in logarithms, where neither a large κ nor many degrees overflow. Past the
    last point the integrand is exp((κ − ν)s) to the last bit, which is summed in closed form.
    """
    degrees = config.degrees
    shock = np.log(config.alpha) + np.log1p(-2.0 / degrees)
    calm = np.log(config.beta) if config.beta > 0.0 else -np.inf
    last = 20.0 + max(0.0, np.log(degrees), calm - shock) / 2.0
    s = np.arange(-40.0, last, _STEP)
    weight = s - (degrees + 1.0) / 2.0 * np.logaddexp(0.0, 2.0 * s - np.log(degrees))
    factor = np.logaddexp(shock + 2.0 * s, calm)

    def total(kappa: float) -> float:
        level = weight + kappa / 2.0 * factor
        tail = level[-1] - np.log(degrees - kappa)
        return float(np.logaddexp(special.logsumexp(level) + np.log(_STEP), tail))

    norm = total(0.0)
    return lambda kappa: total(kappa) - norm


def draw(config: GarchJumpConfig, streams: Streams, count: int) -> Path:
    """Draw one symbol; the hidden state is each bar's variance and number of jumps."""
    total = count + _BURN_IN
    unit = np.sqrt((config.degrees - 2.0) / config.degrees)
    innovation = unit * streams("returns").standard_t(config.degrees, total)
    variance = _variances(config, innovation)[_BURN_IN:]
    jumps = streams("jump_count").poisson(config.jump_rate, count)
    noise = streams("jump_size").standard_normal(count)
    jump = jumps * config.jump_mean + np.sqrt(jumps) * config.jump_deviation * noise
    centre = config.drift - config.jump_rate * config.jump_mean
    log_return = centre + np.sqrt(variance) * innovation[_BURN_IN:] + jump
    hidden = {"variance": variance, "jumps": jumps.astype(np.float64)}
    if config.warning_share == 0.0 and config.false_alarms == 0.0:
        return Path(log_return, variance, config.volatility, hidden=hidden)
    warning = draw_warnings(
        jumps > 0, streams, share=config.warning_share, false_alarms=config.false_alarms
    )
    return Path(
        log_return,
        variance,
        config.volatility,
        volume_lift=config.warning_volume * warning,
        features={WARNING: warning},
        hidden=hidden,
    )


def _variances(config: GarchJumpConfig, innovation: Array) -> Array:
    """Return h: each depends on the one before through a factor of its own, so this is a loop.

    Over plain floats it takes a tenth of a second per million bars.
    """
    level = config.volatility**2
    omega = level * (1.0 - config.alpha - config.beta)
    factor = config.alpha * innovation[:-1] ** 2 + config.beta
    steps = accumulate(factor.tolist(), lambda h, a: omega + a * h, initial=level)
    return np.fromiter(steps, dtype=np.float64, count=len(innovation))
