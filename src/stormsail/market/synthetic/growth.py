"""Best expected log growth where the distribution of the next return is known.

Equity is multiplied by 1 + wR in a bar whose simple return is R and by 1 − c·|w′ − w| where the
weight changes from w to w′ at a cost of c per traded notional.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormsail.core.errors import RangeError
from stormsail.market.synthetic.process import Array

_ITERATIONS = 20_000
_NODES = 32


class Optimum(NamedTuple):
    """The best average log growth per bar, and how to reach it."""

    log_growth: float
    error: float
    """The true optimum of the discretised problem lies within this of `log_growth`."""
    choice: NDArray[np.intp]
    """Index of the best next weight, by index of the weight held and of the information."""


def gaussian_nodes() -> tuple[Array, Array]:
    """Return points and weights with which Σ weight·f(point) is the mean of f under N(0, 1)."""
    points, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return points, weights / weights.sum()


def check_solvent(weights: Sequence[float], returns: Array) -> None:
    """Refuse weights w with which a return R takes everything: 1 + wR must be above 0."""
    for weight in weights:
        left = 1.0 + weight * returns
        if not (left > 0.0).all():
            raise RangeError(
                wrong="a weight must leave something after every return that its growth counts",
                found=f"weight {weight:g} and a return of {returns.flat[int(left.argmin())]:.3g}",
                remedy="Use a weight nearer to 0.",
            )


def gaussian_log_growth(mean: Array, deviation: Array, weights: Sequence[float]) -> Array:
    """Return E log(1 + wR) for R ~ N(mean, deviation²): one row per process, one column per weight.

    Raises:
        RangeError: if a weight loses everything at one of the points of the sum.
    """
    points, mass = gaussian_nodes()
    returns = np.asarray(mean)[:, None] + np.asarray(deviation)[:, None] * points
    check_solvent(weights, returns)
    held = np.asarray(weights, dtype=np.float64)[:, None, None]
    return np.asarray(np.log1p(held * returns) @ mass).T


def switching_gain(weights: Sequence[float], *, cost_rate: float) -> Array:
    """Return log(1 − c·|w′ − w|) for every held weight w (rows) and next weight w′ (columns)."""
    held = np.asarray(weights, dtype=np.float64)
    return np.asarray(np.log1p(-cost_rate * np.abs(held[None, :] - held[:, None])))


def best_growth(
    gain: Array, transition: Array, weights: Sequence[float], *, cost_rate: float
) -> Optimum:
    """Return the best average of gains less costs over an endless path, by value iteration.

    With x the information at a close and w the weight held, iterate
    h(w, x) ← max over w′ of log(1 − c·|w′ − w|) + gain(x, w′) + Σ P(x′|x) h(w′, x′);
    the least and the largest change of one iteration bound the best average from both sides,
    because a policy that gains at least δ over h in every state gains δ a bar for ever, and none
    can gain more than the largest. A weight counts as staying where it was put: what it drifts by
    is rebalanced free of charge, which is exact for the weights 0 and 1 and otherwise favours the
    trader by about c·|w(1 − w)R| a bar.

    Args:
        gain: expected log growth of a bar, by information and weight.
        transition: probability of the next information, by information.
        weights: on offer.
        cost_rate: c, per traded notional.
    """
    switch = switching_gain(weights, cost_rate=cost_rate)
    value = np.zeros((gain.shape[0], len(weights)))  # by information and weight held
    for _ in range(_ITERATIONS):
        options = (gain + transition @ value)[:, None, :] + switch[None, :, :]
        updated = options.max(axis=2)
        change = updated - value
        value = updated - updated[0, 0]
        if np.ptp(change) < 1e-12:
            break
    return Optimum(
        log_growth=float(change.max() + change.min()) / 2.0,
        error=float(np.ptp(change)) / 2.0,
        choice=options.argmax(axis=2).T,
    )


def path_optimum(
    returns: Array, weights: Sequence[float], *, cost_rate: float, start_weight: float = 0.0
) -> tuple[float, Array]:
    """Return the most log growth that hindsight can make of these simple returns, and its weights.

    Exact by dynamic programming, drift included: a weight w held through R becomes
    w(1 + R)/(1 + wR) before the next trade. Ours; no liquidation, no other limit.

    Args:
        returns: of the bars in which a weight is held, one decision before each.
        weights: on offer.
        cost_rate: c, per traded notional.
        start_weight: held before the first decision.

    Returns:
        The total log growth, and the weight held in each bar.
    """
    held = np.asarray(weights, dtype=np.float64)
    total = np.log1p(-cost_rate * np.abs(held - start_weight)) + np.log1p(held * returns[0])
    came_from = np.zeros((len(returns), len(held)), dtype=np.intp)
    for bar in range(1, len(returns)):
        last = returns[bar - 1]
        drifted = held * (1.0 + last) / (1.0 + held * last)
        options = total[:, None] + np.log1p(-cost_rate * np.abs(held[None, :] - drifted[:, None]))
        came_from[bar] = options.argmax(axis=0)
        total = options.max(axis=0) + np.log1p(held * returns[bar])
    chosen = np.empty(len(returns), dtype=np.intp)
    chosen[-1] = int(total.argmax())
    for bar in range(len(returns) - 1, 0, -1):
        chosen[bar - 1] = came_from[bar, chosen[bar]]
    return float(total.max()), held[chosen]
