"""Lagrange multiplier of the CVaR constraint: PID or integral controller, infeasibility check.

The gap is limit minus CVaR, so it is positive while the constraint is broken. It comes in units of
the larger of the limit's size and the spread of outcomes, so that gains fit any reward.
"""

import math
import statistics
from typing import TypeVar

from torch import Tensor

from stormsail.algorithms.config import RiskConfig
from stormsail.core.config import Config

_CLOSING = 0.1
"""A gap that became smaller by this share of itself is closing: one that creeps towards something
above 0 ever more slowly is not."""

_PATIENCE = 5
"""Stretches in which a gap must close while lambda can grow; at its bound one."""


class DualState(Config):
    """Saved state of the multiplier."""

    multiplier: float
    """lambda."""
    integral: float
    """Sum of the gaps, bounded."""
    gap: float | None
    """Of the update before."""
    broken: tuple[float, ...]
    """Gaps since the constraint last held, oldest first, as many as the check needs."""
    bound_updates: int
    """Updates in a row at the largest multiplier."""


Number = TypeVar("Number", float, Tensor)


def moved(
    config: RiskConfig, multiplier: Number, integral: Number, gap: Number, growth: Number
) -> tuple[Number, Number]:
    """Return lambda and its integral after a gap, by the rule that is configured.

    Args:
        config: of the controller.
        multiplier: lambda before.
        integral: before.
        gap: of this update.
        growth: of the gap since the update before; 0 if it shrank.
    """
    if config.dual_controller == "integral":
        wanted = multiplier + config.cvar_lambda_lr * gap
        return _within(wanted, config.cvar_lambda_max), integral
    most = config.cvar_lambda_max / config.cvar_ki if config.cvar_ki > 0.0 else math.inf
    integral = _within(integral + gap, most)
    wanted = config.cvar_kp * gap + config.cvar_ki * integral + config.cvar_kd * growth
    return _within(wanted, config.cvar_lambda_max), integral


def _within(number: Number, most: float) -> Number:
    """Return a number that is at least 0 and at most another."""
    if isinstance(number, Tensor):
        return number.clamp(0.0, most)
    return min(max(number, 0.0), most)


class RiskDual:
    r"""Multiplier lambda, updated once per update by one of two rules.

    `pid`: lambda = [k_p g + k_i I + k_d D]_+ with I = [I + g]_+ and D = [g - g_before]_+, as
    Stooke, Achiam & Abbeel 2020, arXiv:2007.03964. The integral never goes below 0, so a long calm
    gives no credit; ours: nor above lambda_max / k_i, so that it falls again at once.

    `integral`: lambda <- clip(lambda + rate * g, 0, lambda_max), plain ascent of the dual.

    A limit counts as infeasible when the gap no longer closes. Let n be
    `cvar_infeasible_updates` and G(k) the mean gap of n updates in a row, k updates ago; all gaps
    since then are positive. With lambda at its bound for n updates, G(0) > 0.9 G(n) is enough; with
    lambda still growing, or a rule that never gets there, G(0) > 0.9 G(5 n). So a constant gap is
    reported after 2 n updates at the bound, and after 6 n anywhere.
    """

    def __init__(self, config: RiskConfig) -> None:
        self.config = config
        self.multiplier = 0.0
        self.integral = 0.0
        self.gap: float | None = None
        self.broken: list[float] = []
        self.bound_updates = 0

    def step(self, gap: float) -> None:
        """Update lambda with the gap of an update; an unknown one changes nothing."""
        if not math.isfinite(gap):
            return
        growth = 0.0 if self.gap is None else max(gap - self.gap, 0.0)
        self.multiplier, self.integral = moved(
            self.config, self.multiplier, self.integral, gap, growth
        )
        self.gap = gap
        self._watch(gap)

    def _watch(self, gap: float) -> None:
        """Record the gap for the infeasibility check."""
        at_bound = self.multiplier >= self.config.cvar_lambda_max
        self.bound_updates = self.bound_updates + 1 if at_bound else 0
        kept = (_PATIENCE + 1) * self.config.cvar_infeasible_updates
        self.broken = [*self.broken, gap][-kept:] if gap > 0.0 else []

    @property
    def is_infeasible(self) -> bool:
        """Whether the limit seems infeasible."""
        at_bound = self.bound_updates >= self.config.cvar_infeasible_updates
        return (at_bound and self._stalls(1)) or self._stalls(_PATIENCE)

    def _stalls(self, stretches: int) -> bool:
        """Whether the mean gap is not smaller by a tenth than it was so many stretches ago."""
        size = self.config.cvar_infeasible_updates
        looked = self.broken[-(stretches + 1) * size :]
        if len(looked) < (stretches + 1) * size:
            return False
        before, now = statistics.fmean(looked[:size]), statistics.fmean(looked[-size:])
        return now > (1.0 - _CLOSING) * before

    def state(self) -> DualState:
        """Return the state for a checkpoint."""
        return DualState(
            multiplier=self.multiplier,
            integral=self.integral,
            gap=self.gap,
            broken=tuple(self.broken),
            bound_updates=self.bound_updates,
        )

    def restore(self, state: DualState) -> None:
        """Restore a saved state."""
        self.multiplier, self.integral = state.multiplier, state.integral
        self.gap = state.gap
        self.broken, self.bound_updates = list(state.broken), state.bound_updates
