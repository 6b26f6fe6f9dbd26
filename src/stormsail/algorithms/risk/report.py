"""What a control of the tail measures, decides and reports in an update."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

LEVEL_STEP = 0.1
"""Share by which the level follows the value at risk with every update."""

SOURCES = ("none", "empirical", "predicted")
"""CVaR that the multiplier followed in an update."""


class Tail(NamedTuple):
    """Statistics of the outcomes and of their lower tail; NaN where there are none."""

    samples: int
    is_ready: bool
    """Whether there are enough outcomes to act on."""
    raw: float
    """CVaR of the outcomes as they are."""
    empirical: float
    """The same after winsorising, which is off by default."""
    error: float
    """Standard error of the CVaR; parts of episodes are grouped by environment."""
    level: float
    """Value at risk nu."""
    spread: float
    """Standard deviation of the outcomes."""


MOST_ERROR = 0.15
"""Largest standard error that a margin is made of, in sizes of the limit."""


OTHER_DRAWS = 2.0
"""Standard errors for each of the margin where episodes share draws. The agent meets others later,
which are off themselves, and has learned from those of the estimate: on `crash` six agents had a
CVaR on other bars that was away from the estimate by two errors, root mean square."""


def aim_inside(limit: float, tail: "Tail", unit: float, *, margin: float) -> float:
    """Return the CVaR that is aimed at: inside the limit by what the estimate may be off.

    Args:
        limit: least CVaR.
        tail: with the standard error of its estimate.
        unit: size that distances to the limit are measured in.
        margin: standard errors.
    """
    return limit + margin * min(tail.error, MOST_ERROR * unit)


NOTHING = Tail(
    samples=0,
    is_ready=False,
    raw=math.nan,
    empirical=math.nan,
    error=math.nan,
    level=math.nan,
    spread=0.0,
)


@dataclass(frozen=True, eq=False)
class RiskReport:
    """Result of the control in one update, in reward units of the quantity."""

    advantage: Tensor
    """Mixed, before normalisation, [T, B]."""
    risk: Tensor
    """Risk advantage, [T, B]; zeros while there are too few outcomes."""
    tail: Tail
    average: float
    """Moving average of the estimate, which the multiplier follows."""
    predicted: float
    """CVaR that the critics predict where episodes begin."""
    realised: float
    """CVaR of the returns of the episodes of the window."""
    unit: float
    """Divisor of gaps before the multiplier's step."""
    gap: float
    """Limit minus the CVaR that is followed."""
    multiplier: float
    weight: float
    """Fixed weight that acts, after gate, ramp and bounds."""
    share: float
    """Of the ramp."""
    legacy: float
    """Weight of `losses.legacy_cvar`; 0 in every other mode."""
    term: float
    """Mean of the risk advantage; of the normalised predicted CVaR in `critic_legacy`."""
    source: str
    """One of `SOURCES`."""
    is_infeasible: bool
    factor: float
    """Coefficient of the risk advantage in the mix: weight plus multiplier, rescaled; 0 before it
    acts."""
    gradient_norm: Tensor | None = None
    """Gradient norm of the risk term alone, where it is measured."""
    options: Tensor | None = None
    """Mixed advantage of every action, scaled, [T, B, K]; None where only taken ones are known."""
    risk_options: Tensor | None = None
    """Part of it that is due to risk."""
    level: float = math.nan
    """nu of the shortfall that is learned."""
    loss: float = math.nan
    """Of the risk critic; NaN without one."""
    aim: float = math.nan
    """CVaR that is aimed at, inside the limit."""
    trust: float = math.nan
    """Share of the critic's differences between states that outcomes do not refute."""
    floor: float = math.nan
    """Share of the pull to the best action that keeps the limit if held throughout."""


class Decision(NamedTuple):
    """What a control has decided on in an update, see `RiskReport`."""

    predicted: float
    unit: float
    gap: float
    source: str
    aim: float
    share: float


class Plan(NamedTuple):
    """What a control makes of a rollout before the host knows of it."""

    mixed: Tensor
    """Advantages, mixed, before normalisation, [T, B]."""
    risk: Tensor
    """Risk advantage, [T, B]."""
    numbers: Tensor
    """What the host is told, float64: predicted CVaR, mean and scale of the risk advantage, how
    many outcomes the window holds, and its places."""


class Mix(NamedTuple):
    """All-action advantages of a rollout, mixed."""

    options: Tensor
    """Scaled, [T, B, K]."""
    risk_options: Tensor
    """Part of it that is due to risk, [T, B, K]."""
    taken: Tensor
    """Risk advantage of the likeliest of the recorded actions, in reward units, [T, B]."""
    term: float
    """Mean size of the risk advantage, in reward units."""
    predicted: float
    """CVaR that the critic predicts where episodes begin."""
    loss: float
    """Of the critic."""
    trust: float
    """In differences of risk between states."""
    floor: float
    """Share of the pull to the best action that is held throughout."""
