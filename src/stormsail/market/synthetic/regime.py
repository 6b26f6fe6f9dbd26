"""`regime`: a hidden Markov chain switches drift and volatility."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from stormsail.core.errors import ConfigError, RangeError
from stormsail.market.synthetic.growth import (
    Optimum,
    best_growth,
    gaussian_log_growth,
    gaussian_nodes,
)
from stormsail.market.synthetic.process import (
    Array,
    Path,
    Probability,
    Process,
    Streams,
    Volatility,
    WorldConfig,
)

_BELIEFS = 201
_LONG_ONLY = (0.0, 1.0)
_TINY = np.finfo(np.float64).tiny


class RegimeConfig(WorldConfig):
    """Settings of `regime`: one entry per state, two or three states."""

    drifts: tuple[float, ...] = (0.001, -0.001)
    """Mean simple return per bar, from -0.3 to 0.05: a crash is a state that falls far and ends."""

    volatilities: tuple[Volatility, ...] = (0.006, 0.012)
    """Standard deviation of the simple return per bar."""

    stay: tuple[Probability, ...] = (0.99, 0.98)
    """Probability that the next bar has the same state; otherwise each other is as likely."""

    @model_validator(mode="after")
    def _states_agree(self) -> Self:
        counts = {len(self.drifts), len(self.volatilities), len(self.stay)}
        if counts not in ({2}, {3}):
            raise ConfigError(
                "config-inconsistent",
                wrong="`drifts`, `volatilities` and `stay` must have 2 entries each, or 3 each",
                found=f"{len(self.drifts)}, {len(self.volatilities)} and {len(self.stay)}",
                remedy="Give every state one entry in each.",
            )
        if min(self.drifts) < -0.3 or max(self.drifts) > 0.05 or max(self.stay) >= 1.0:
            raise ConfigError(
                "config-inconsistent",
                wrong="`drifts` must lie between -0.3 and 0.05 and every `stay` below 1",
                found=f"drifts={list(self.drifts)}, stay={list(self.stay)}",
                remedy="A state that is never left hides the others; lower its `stay`.",
            )
        return self


@dataclass(frozen=True)
class RegimeProcess(Process):
    """Simple returns R_t ~ N(μ_k, σ_k²) in state k; the states are a stationary Markov chain.

    Known answers, for weights from a list and costs per traded notional:
    - `clairvoyant`: the state of the next bar is known; an upper bound for every strategy.
    - `filtered`: only returns are seen. The Bayes filter (`bayes_filter`) is all that the past says
      about the next state, so the best weight is a function of it and of the weight held; for two
      states it is one number, on a grid of 201 points, and value iteration gives the optimum.
    - `hold_log_growth`: of the weight 1.
    """

    config: RegimeConfig

    @property
    def transition(self) -> Array:
        """Probability of the next state, by state."""
        stay = np.asarray(self.config.stay)
        count = len(stay)
        matrix = np.repeat(((1.0 - stay) / (count - 1))[:, None], count, axis=1)
        np.fill_diagonal(matrix, stay)
        return np.asarray(matrix, dtype=np.float64)

    @property
    def shares(self) -> Array:
        """Stationary probability of each state: leaving uniformly, π_k ∝ 1/(1 − stay_k)."""
        stays = 1.0 / (1.0 - np.asarray(self.config.stay))
        return np.asarray(stays / stays.sum())

    @property
    def mean(self) -> float:
        """Σ π_k μ_k."""
        return float(self.shares @ self._drifts)

    @property
    def variance(self) -> float:
        """Σ π_k (σ_k² + (μ_k − mean)²)."""
        return float(self.shares @ self._second)

    @property
    def kurtosis(self) -> float:
        """Of the mixture: E[(d + σz)⁴] = d⁴ + 6d²σ² + 3σ⁴ in a state, d its drift less the mean."""
        return float(self.shares @ self._fourth) / self.variance**2

    def autocorrelation(self, lag: int) -> float:
        """Return the correlation that persistent drifts leave in returns."""
        if lag == 0:
            return 1.0
        away = self._drifts - self.mean
        return self._joint(away, lag) / self.variance

    def squared_autocorrelation(self, lag: int) -> float:
        """Return the clustering that persistent volatilities leave."""
        if lag == 0:
            return 1.0
        spread = float(self.shares @ self._fourth) - self.variance**2
        return (self._joint(self._second, lag) - self.variance**2) / spread

    @property
    def hold_log_growth(self) -> float:
        """E log(1 + R)."""
        return float(self.shares @ self._gain((1.0,))[:, 0])

    def clairvoyant(
        self, *, cost_rate: float = 0.0, weights: Sequence[float] = _LONG_ONLY
    ) -> Optimum:
        """Return the best log growth per bar of a trader who knows the next bar's state."""
        return best_growth(self._gain(weights), self.transition, weights, cost_rate=cost_rate)

    def filtered(self, *, cost_rate: float = 0.0, weights: Sequence[float] = _LONG_ONLY) -> Optimum:
        """Return the best log growth per bar of a trader who sees bars only; two states.

        Bars say what their returns say: see `draw`.

        Raises:
            RangeError: for three states, where a belief is no single number.
        """
        if len(self.config.drifts) != 2:
            raise RangeError(
                wrong="the filtered optimum is worked out for 2 states",
                found=f"{len(self.config.drifts)}",
                remedy="Draw a world and use `bayes_filter` and `best_weights` on it.",
            )
        belief = np.linspace(0.0, 1.0, _BELIEFS)
        both = np.stack([belief, 1.0 - belief], axis=1)
        gain = both @ self._gain(weights)
        return best_growth(gain, self._belief_moves(both), weights, cost_rate=cost_rate)

    def bayes_filter(self, returns: Array) -> Array:
        """Return P(state of bar t+1 | returns up to bar t), one row per return, a loop over bars.

        With p the last row (at first the stationary shares): posterior_k ∝ p_k N(R_t; μ_k, σ_k²),
        and the next row is the posterior times the transition matrix.
        """
        deviations = np.asarray(self.config.volatilities)
        scores = (np.asarray(returns)[:, None] - self._drifts) / deviations
        squared = scores**2
        nearest = squared.min(axis=1, keepdims=True)  # or an outlier has density 0 in every state
        likelihood = np.exp((nearest - squared) / 2.0) / deviations
        matrix, belief = self.transition, self.shares
        rows = np.empty(likelihood.shape)
        for bar, density in enumerate(likelihood):
            posterior = belief * density
            belief = (posterior / posterior.sum()) @ matrix
            rows[bar] = belief
        return rows

    def best_weights(self, beliefs: Array, weights: Sequence[float] = _LONG_ONLY) -> Array:
        """Return the weight of the largest expected log growth in the next bar, without costs.

        Without costs no weight binds the next one, so this is the filtered optimum.
        """
        best = (beliefs @ self._gain(weights)).argmax(axis=1)
        chosen: Array = np.asarray(weights, dtype=np.float64)[best]
        return chosen

    def numbers(self) -> dict[str, float]:
        """Growths, worst first."""
        numbers = {"hold_log_growth": self.hold_log_growth}
        if len(self.config.drifts) == 2:
            numbers["filtered_log_growth"] = self.filtered().log_growth
            numbers["filtered_log_growth_10bp"] = self.filtered(cost_rate=0.001).log_growth
        numbers["clairvoyant_log_growth"] = self.clairvoyant().log_growth
        numbers["clairvoyant_log_growth_10bp"] = self.clairvoyant(cost_rate=0.001).log_growth
        return numbers

    @property
    def statement(self) -> str:
        """How returns arise."""
        config = self.config
        states = "; ".join(
            f"{drift:g} ± {deviation:g}, stays with {stay:g}"
            for drift, deviation, stay in zip(
                config.drifts, config.volatilities, config.stay, strict=True
            )
        )
        return f"Gaussian return of a hidden state: {states}"

    @property
    def answer(self) -> str:
        """What knowing and inferring the state are worth."""
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in self.numbers().items())
        return f"log growth a bar for weights 0 and 1: {numbers}"

    @property
    def _drifts(self) -> Array:
        return np.asarray(self.config.drifts)

    @property
    def _second(self) -> Array:
        """Mean squared distance from the overall mean, by state."""
        return np.asarray(self.config.volatilities) ** 2 + (self._drifts - self.mean) ** 2

    @property
    def _fourth(self) -> Array:
        away, variance = self._drifts - self.mean, np.asarray(self.config.volatilities) ** 2
        return np.asarray(away**4 + 6.0 * away**2 * variance + 3.0 * variance**2)

    def _joint(self, values: Array, lag: int) -> float:
        """Return E[values(state_t)·values(state_{t+lag})]."""
        ahead = np.linalg.matrix_power(self.transition, lag) @ values
        return float((self.shares * values) @ ahead)

    def _gain(self, weights: Sequence[float]) -> Array:
        return gaussian_log_growth(self._drifts, np.asarray(self.config.volatilities), weights)

    def _belief_moves(self, beliefs: Array) -> Array:
        """Return where beliefs go, as weights on the two grid points around each new belief."""
        points, mass = gaussian_nodes()
        deviations = np.asarray(self.config.volatilities)
        moves = np.zeros((len(beliefs), len(beliefs)))
        rows = np.arange(len(beliefs))
        for state in range(len(deviations)):
            for point, weight in zip(points, mass, strict=True):
                seen = self._drifts[state] + deviations[state] * point
                squared = ((seen - self._drifts) / deviations) ** 2
                posterior = beliefs * np.exp((squared.min() - squared) / 2.0) / deviations
                known = posterior / np.maximum(posterior.sum(axis=1, keepdims=True), _TINY)
                place = (known @ self.transition)[:, 0] * (len(beliefs) - 1)
                lower = np.minimum(place.astype(np.intp), len(beliefs) - 2)
                share = beliefs[:, state] * weight
                moves[rows, lower] += share * (1.0 - (place - lower))
                moves[rows, lower + 1] += share * (place - lower)
        return moves


def draw(config: RegimeConfig, streams: Streams, count: int) -> Path:
    """Draw one symbol; hidden is the state of each bar.

    The path inside a bar has the overall variance, whatever the state: given the return, neither
    range nor volume says more about the state, and `filtered` is the best that bars allow.
    """
    state = _chain(RegimeProcess(config), streams, count)
    drift, deviation = np.asarray(config.drifts)[state], np.asarray(config.volatilities)[state]
    returns = drift + deviation * streams("returns").standard_normal(count)
    variance = RegimeProcess(config).variance
    hidden = {"state": state.astype(np.float64)}
    return Path(
        np.log1p(returns), np.full(count, variance), float(np.sqrt(variance)), hidden=hidden
    )


def _chain(process: RegimeProcess, streams: Streams, count: int) -> NDArray[np.intp]:
    """Return the states.

    A stay lasts a geometric number of bars and ends in one of the other states, so the chain is
    drawn stay by stay, which is a loop over changes instead of bars.
    """
    lengths, ways = streams("stays"), streams("ways")
    states = len(process.config.stay)
    state = int(np.searchsorted(np.cumsum(process.shares)[:-1], ways.random(), side="right"))
    parts: list[NDArray[np.intp]] = []
    drawn = 0
    while drawn < count:
        length = int(lengths.geometric(1.0 - process.config.stay[state]))
        parts.append(np.full(min(length, count - drawn), state, dtype=np.intp))
        drawn += length
        state = (state + 1 + int(ways.integers(states - 1))) % states
    return np.concatenate(parts)
