"""The control of the tail without a host sync: what an update needs of it, on the device.

The host keeps what carries over. It gives the device the window and the numbers of the update
before; when the epochs are over it reads the new window, with what the device alone knows, and goes
by the same rules itself (`RiskControl.conclude`). T rows, B environments, W outcomes in the window.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import RiskConfig
from stormsail.algorithms.risk.multiplier import moved
from stormsail.algorithms.update.rollout import Rollout
from stormsail.functional import risk


class Carried(NamedTuple):
    """What carries over from the update before: float64, without dimensions."""

    average: Tensor
    """Moving average of the CVaR; NaN without one."""
    multiplier: Tensor
    integral: Tensor
    gap: Tensor
    """Of the update before; NaN without one."""
    is_open: Tensor
    """Whether the gate is open, 1 or 0."""
    updates: Tensor
    """For how many updates in a row it has been."""
    count: Tensor  # type: ignore[assignment]  # the tuple method is not missed
    """Outcomes in the window."""


def carried(row: Tensor) -> tuple[Carried, Tensor]:
    """Return the numbers at the beginning of a row, and the window behind them."""
    width = len(Carried._fields)
    return Carried(*row[:width].unbind()), row[width:]


class Window(NamedTuple):
    """The last outcomes, oldest first."""

    outcomes: Tensor
    """float64 [W]; the newest last, and 0 where there are not as many."""
    count: Tensor  # type: ignore[assignment]  # the tuple method is not missed
    """How many there are, float64."""

    @property
    def is_there(self) -> Tensor:
        """Which of the places hold an outcome, bool [W]."""
        size = len(self.outcomes)
        return torch.arange(size, device=self.outcomes.device) >= size - self.count

    def add(self, rollout: Rollout) -> "Window":
        """Return the window with the episodes that ended in a rollout, as `EpisodeWindow.add`."""
        total = (rollout.return_so_far.double() + rollout.reward.double()).flatten()
        ended = rollout.ended.flatten().cumsum(0)
        size, new = len(self.outcomes), ended[-1]
        place = torch.arange(size, device=total.device)
        rank = new - size + 1 + place  # among the new ones, from 1 on
        row = torch.searchsorted(ended, rank.clamp(min=1)).clamp(max=len(total) - 1)
        kept = self.outcomes[(place + new).clamp(max=size - 1)]
        count = (self.count + new).clamp(max=size)
        return Window(torch.where(rank >= 1, total[row], kept), count)


class Tailed(NamedTuple):
    """Statistics of a window that the multiplier reads; float64, without dimensions."""

    cvar: Tensor
    level: Tensor
    """Value at risk."""
    spread: Tensor
    """Standard deviation; 0 for fewer than two outcomes."""


class Decided(NamedTuple):
    """What acts in an update; float64, without dimensions."""

    coefficient: Tensor
    """Of the risk advantage: fixed weight plus multiplier; 0 before there are enough outcomes."""
    multiplier: Tensor


def tail_of(window: Window, *, alpha: float) -> Tailed:
    """Return the statistics of `RiskControl.measure` that something follows."""
    outcomes, weight = window.outcomes, window.is_there.double()
    count = window.count
    mean = (weight * outcomes).sum() / count.clamp(min=1.0)
    square = (weight * (outcomes - mean).square()).sum()
    return Tailed(
        cvar=risk.empirical_cvar(outcomes, alpha=alpha, weight=weight),
        level=risk.weighted_value_at_risk(outcomes, weight, alpha=alpha),
        spread=torch.where(count > 1.0, square / (count - 1.0).clamp(min=1.0), 0.0).sqrt(),
    )


def decide(
    config: RiskConfig,
    before: Carried,
    tail: Tailed,
    explained_variance: Tensor,
    term: Tensor,
    scale: Tensor,
    *,
    is_ready: Tensor,
    trains_policy: bool,
) -> Decided:
    """Return what the rules of `RiskControl` make of an update.

    Args:
        config: of the control.
        before: what carries over.
        tail: of the outcomes.
        explained_variance: of the returns, for the gate.
        term: mean of the risk advantage.
        scale: deviation of the advantages, which its contribution is bounded by.
        is_ready: whether there are enough outcomes to act on.
        trains_policy: whether multiplier and ramp move at all.
    """
    multiplier = before.multiplier
    if config.cvar_use_constraint and config.cvar_limit is not None and trains_policy:
        limit, beta = config.cvar_limit, config.cvar_ema_beta
        average = beta * before.average + (1.0 - beta) * tail.cvar
        average = torch.where(before.average.isnan(), tail.cvar, average)
        unit = tail.spread.clamp(min=abs(limit))
        unit = torch.where(unit > 0.0, unit, 1.0)
        gap = (limit - average) / unit  # without a risk critic the aim is the limit itself
        growth = torch.where(before.gap.isnan(), 0.0, (gap - before.gap).clamp(min=0.0))
        new, _ = moved(config, multiplier, before.integral, gap, growth)
        multiplier = torch.where(is_ready & gap.isfinite(), new, multiplier)
    coefficient = _weight(config, before, explained_variance, term, scale, is_ready, trains_policy)
    return Decided(torch.where(is_ready, coefficient + multiplier, 0.0), multiplier)


def _weight(
    config: RiskConfig,
    before: Carried,
    explained_variance: Tensor,
    term: Tensor,
    scale: Tensor,
    is_ready: Tensor,
    trains_policy: bool,  # noqa: FBT001 - as `decide` names it
) -> Tensor:
    """Return the fixed weight that acts: behind the gate, ramped, and bounded in its effect."""
    if not config.cvar_use_penalty or config.cvar_weight == 0.0:
        return torch.zeros_like(term)
    is_open, updates = before.is_open > 0.0, before.updates
    if trains_policy:
        threshold = config.cvar_activation_threshold
        shuts = explained_variance < threshold - config.cvar_activation_hysteresis
        now = (explained_variance >= threshold) | (is_open & ~shuts)
        updates = torch.where(is_ready, torch.where(now, updates + 1.0, 0.0), updates)
        is_open = torch.where(is_ready, now, is_open)
    ramp = config.cvar_ramp_updates
    share = torch.ones_like(updates) if ramp == 0 else (updates / ramp).clamp(max=1.0)
    share = torch.where(is_open, share, 0.0)
    weight = (config.cvar_weight * share).clamp(max=config.cvar_penalty_cap)
    bound = config.cvar_cap * scale
    return torch.where(weight * term.abs() > bound, bound / term.abs(), weight)
