"""Base of every synthetic world: settings, drawn path, process with known moments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from stormsail.core.config import Config

Array = NDArray[np.float64]
AnyArray = NDArray[np.float64] | NDArray[np.int64]
Streams = Callable[[str], np.random.Generator]
"""The random stream of one quantity of one symbol."""

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Volatility = Annotated[float, Field(ge=1e-4, le=0.05)]
"""Standard deviation of a return per bar, as a fraction. The upper bound keeps a Gaussian simple
return, which must not lose more than everything, more than ten deviations away from that. The
lower one keeps it visible on the price grid of eight digits."""

WARNING = "warning"
"""Name of the feature: 1 at a close before which an alarm was seen, else 0."""


class WorldConfig(Config):
    """Settings that every world shares: the price level, gaps, volume and funding."""

    start_price: PositiveFloat = 100.0
    """Open of the first bar, in quote currency."""

    gap_share: Share = 0.0
    """Share of a bar's variance that falls between the last close and the open. The known answers
    hold for 0: a decision on a close is then filled at that price."""

    spot: bool = False
    """Whether the symbols are spot: no funding, and generated names without a settlement."""

    volume_per_day: PositiveFloat = 5e7
    """Median traded value per day, in quote currency."""

    volume_deviation: Annotated[float, Field(ge=0.0, le=3.0)] = 0.5
    """Standard deviation of the logarithm of volume that returns and hours do not explain."""

    volume_persistence: Share = 0.8
    """Autocorrelation of that part from one bar to the next."""

    volume_response: Annotated[float, Field(ge=0.0, le=2.0)] = 0.3
    """Rise of the logarithm of volume per typical absolute return."""

    volume_season: Annotated[float, Field(ge=0.0, le=2.0)] = 0.4
    """Amplitude of the daily wave of the logarithm of volume, highest at 14:00 UTC."""

    funding_mean: Annotated[float, Field(ge=-0.01, le=0.01)] = 0.0
    """Long-run mean of the funding rate per settlement, as a fraction of the notional."""

    funding_deviation: Annotated[float, Field(ge=0.0, le=0.01)] = 5e-5
    """Stationary standard deviation of the funding rate per settlement."""

    funding_persistence: Share = 0.9
    """Autocorrelation of the funding rate from one settlement to the next."""


@dataclass(frozen=True)
class Path:
    """Drawn returns of one symbol, one entry per bar.

    Attributes:
        log_return: close to close, in logarithms.
        variance: of the diffusion inside each bar, in squared logarithms.
        scale: typical absolute size of a return; volume answers to multiples of it.
        volume_lift: added to the logarithm of volume.
        features: columns an agent may see, aligned with the bars that they are known at the end of.
        hidden: states that no agent may see, for tests.
    """

    log_return: Array
    variance: Array
    scale: float
    volume_lift: Array | None = None
    features: Mapping[str, Array] = field(default_factory=dict)
    hidden: Mapping[str, Array] = field(default_factory=dict)


class Process(ABC):
    """Data-generating process of a world: exact moments of returns and the best strategy.

    Moments are those of one bar's return, `measured` as a simple return P_t/P_{t−1} − 1 or as its
    logarithm, before the rounding of prices to eight digits.
    """

    measured: ClassVar[Literal["simple", "log"]] = "simple"

    @property
    @abstractmethod
    def mean(self) -> float:
        """Mean of a return."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance of a return."""

    @property
    @abstractmethod
    def kurtosis(self) -> float:
        """Fourth central moment over the squared variance, 3 for a Gaussian; infinite if so."""

    def autocorrelation(self, lag: int) -> float:
        """Return the correlation of returns `lag` bars apart."""
        return float(lag == 0)

    def squared_autocorrelation(self, lag: int) -> float:
        """Return the correlation of squared centred returns `lag` bars apart."""
        return float(lag == 0)

    @abstractmethod
    def numbers(self) -> dict[str, float]:
        """Return the numbers of the known answer by name."""

    @property
    @abstractmethod
    def statement(self) -> str:
        """How returns arise, in one sentence."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """What is known about trading here, in one or two sentences."""


class WorldKind(NamedTuple):
    """A world by name: settings, process, draw of one symbol, and a line about it."""

    config: type[WorldConfig]
    process: Callable[[Any], Process]
    draw: Callable[[Any, Streams, int], Path]
    summary: str


class GaussianConfig(WorldConfig):
    """Settings of a world whose returns are Gaussian with mean zero."""

    volatility: Volatility = 0.01
    """s, stationary standard deviation of the simple return per bar."""


class GaussianProcess(Process):
    """Process whose simple returns are Gaussian with mean zero and deviation s."""

    config: GaussianConfig

    @property
    def mean(self) -> float:
        """Zero."""
        return 0.0

    @property
    def variance(self) -> float:
        """s²."""
        return self.config.volatility**2

    @property
    def kurtosis(self) -> float:
        """Gaussian."""
        return 3.0


def ar1_path(noise: Array, *, persistence: float, deviation: float) -> Array:
    """Return an AR(1) path x_t = persistence · x_{t−1} + e_t, stationary from its first value.

    x_0 = deviation · noise_0 and e_t = deviation · √(1 − persistence²) · noise_t, so that with
    standard noise every x_t has the same standard deviation. A longer noise leaves what it begins
    with unchanged.

    A loop over plain floats: a tenth of a second per million, where importing SciPy's filter takes
    a second.
    """
    shock = deviation * np.sqrt(1.0 - persistence**2) * noise
    shock[:1] = deviation * noise[:1]
    values = accumulate(shock.tolist(), lambda last, step: persistence * last + step)
    return np.fromiter(values, dtype=np.float64, count=len(shock))


def draw_warnings(
    event: NDArray[np.bool_], streams: Streams, *, share: float, false_alarms: float
) -> Array:
    """Return the feature `warning`: 1 on a bar whose close warns of the next bar, else 0.

    A share of the events is announced, and any other bar falsely with a probability. The last bar
    would need one bar more: no warning stands on it, and `generate` drops it.
    """
    chance = np.where(event, share, false_alarms)
    alarm = (streams("warnings").random(len(event)) < chance).astype(np.float64)
    return np.append(alarm[1:], 0.0)
