"""The multiplier of the CVaR constraint: grows while the tail is too heavy, and comes back.

The gap is limit minus CVaR, so it is positive while the constraint is broken. It comes in units of
the larger of the limit's size and the spread of outcomes, so that gains fit any reward.
"""

import math

from stormsail.algorithms.config import RiskConfig
from stormsail.core.config import Config

_CLOSING = 0.1
"""A gap that became smaller by this share of itself is closing: one that creeps towards something
above 0 ever more slowly is not."""


class DualState(Config):
    """What a resumed multiplier needs."""

    multiplier: float
    """lambda."""
    integral: float
    """Sum of the gaps, bounded."""
    gap: float | None
    """Of the update before."""
    best_gap: float | None
    """Smallest since the multiplier reached its bound."""
    stuck_updates: int
    """Updates at that bound without a smaller one."""


class RiskDual:
    r"""Moves lambda once an update, by one of two rules.

    `pid`: lambda = [k_p g + k_i I + k_d D]_+ with I = [I + g]_+ and D = [g - g_before]_+, as
    Stooke, Achiam & Abbeel 2020, arXiv:2007.03964. The integral never goes below 0, so a long calm
    is no credit; ours: nor above lambda_max / k_i, so that it comes back at once.

    `integral`: lambda <- clip(lambda + rate * g, 0, lambda_max), plain ascent of the dual.

    A limit is called out of reach when lambda has been at its bound for `cvar_infeasible_updates`
    updates with a positive gap that did not become smaller by a tenth of itself.
    """

    def __init__(self, config: RiskConfig) -> None:
        self.config = config
        self.multiplier = 0.0
        self.integral = 0.0
        self.gap: float | None = None
        self.best_gap: float | None = None
        self.stuck_updates = 0

    def step(self, gap: float) -> None:
        """Take the gap of an update in; one that is unknown changes nothing."""
        if not math.isfinite(gap):
            return
        config = self.config
        if config.dual_controller == "integral":
            wanted = self.multiplier + config.cvar_lambda_lr * gap
        else:
            wanted = self._pid(gap)
        self.multiplier = min(max(wanted, 0.0), config.cvar_lambda_max)
        self.gap = gap
        self._watch(gap)

    def _pid(self, gap: float) -> float:
        config = self.config
        self.integral = max(self.integral + gap, 0.0)
        if config.cvar_ki > 0.0:
            self.integral = min(self.integral, config.cvar_lambda_max / config.cvar_ki)
        growth = 0.0 if self.gap is None else max(gap - self.gap, 0.0)
        return config.cvar_kp * gap + config.cvar_ki * self.integral + config.cvar_kd * growth

    def _watch(self, gap: float) -> None:
        """Count the updates at the bound in which the gap did not close."""
        if self.multiplier < self.config.cvar_lambda_max or gap <= 0.0:
            self.best_gap, self.stuck_updates = None, 0
        elif self.best_gap is None or gap < self.best_gap * (1.0 - _CLOSING):
            self.best_gap, self.stuck_updates = gap, 0
        else:
            self.stuck_updates += 1

    @property
    def is_infeasible(self) -> bool:
        """Whether the limit is out of reach, as far as can be seen."""
        return self.stuck_updates >= self.config.cvar_infeasible_updates

    def state(self) -> DualState:
        """Return what a resumed run needs."""
        return DualState(
            multiplier=self.multiplier,
            integral=self.integral,
            gap=self.gap,
            best_gap=self.best_gap,
            stuck_updates=self.stuck_updates,
        )

    def restore(self, state: DualState) -> None:
        """Take up where another multiplier stood."""
        self.multiplier, self.integral = state.multiplier, state.integral
        self.gap, self.best_gap = state.gap, state.best_gap
        self.stuck_updates = state.stuck_updates
