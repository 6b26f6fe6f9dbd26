"""Schedules: learning rate, clip range and loss coefficients of each update.

Pure functions of the update's number or of the steps done, so that a checkpoint needs nothing but
the counters.

A run whose budget was extended goes on from where its schedules stood: what is a share of the
budget moves from its value at the extension to its last value at the new end, in a straight line.
What had reached its end stays there.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from stormsail.algorithms.config import (
    AdversaryConfig,
    BcConfig,
    PpoConfig,
    ValueClipConfig,
    Whole,
)
from stormsail.core.config import Config
from stormsail.functional import perturbation


class Extension(Config):
    """An extension of a run's budget."""

    steps: Whole
    """Steps of the run when it was extended."""
    old_total: Whole
    """`ppo.total_steps` before."""
    new_total: Whole
    """`ppo.total_steps` from then on; more than `steps` and `old_total`."""
    finished: bool
    """Whether the old budget was used up, so that its result was known."""
    old_rates: tuple[float, float] | None = None
    """First and last learning rate before, where new ones were given; None keeps them."""
    new_rates: tuple[float, float] | None = None
    """First and last learning rate of the extension, where they were given."""


class History(NamedTuple):
    """How a run began and how its budget grew."""

    extensions: tuple[Extension, ...] = ()
    """Extensions of its budget, in order."""
    derived: frozenset[str] = frozenset()
    """Paths of the settings that were derived when it began."""
    pretrained: bool = False
    """Whether it began with the weights and normalisers of another agent."""

    def planned_steps(self, steps: int, shares: Sequence[str]) -> float:
        """Return the place of a number of steps in the first budget.

        Args:
            steps: of the run.
            shares: settings that are shares of the budget if they were derived. Given ones count
                steps or updates, so an extension changes nothing for them.
        """
        if not self.extensions or not self.derived.issuperset(shares):
            return steps
        first = self.extensions[0].old_total
        return first * _share_of_way(0, first, steps, self.extensions)


NEW_RUN = History()
"""Of a run with its first budget and random weights."""


Coefficient = float | Tensor


def is_zero(coefficient: Coefficient) -> bool:
    """Return whether a coefficient is known to be 0, without asking the device."""
    return not isinstance(coefficient, Tensor) and coefficient == 0.0


class Scheduled(NamedTuple):
    """Scheduled values of one update.

    Those that enter the loss may be float64 tensors without dimensions: a captured graph sees them
    change. A number that is 0.0 is known to be, so that its term need not be computed.
    """

    learning_rate: float
    clip_range: Coefficient
    vf_coef: Coefficient
    bc_coef: Coefficient
    ent_coef: Coefficient
    kl_beta: Coefficient
    """Weight of the KL divergence in the loss; 0 without a penalty."""
    clips_values: bool
    """Whether critic predictions are clipped to the old ones."""
    trains_policy: bool
    """False while only the critics learn."""
    legacy_risk: Coefficient = 0.0
    """Weight of `losses.legacy_cvar`, which trains only critics."""
    epsilon: float = 0.0
    """Radius of the adversary's perturbations; 0 is no attack."""


def linear(start: float, end: float, done: float) -> float:
    """Return the point between start and end after a share of the way; outside, the nearer one."""
    share = min(max(done, 0.0), 1.0)
    return start + (end - start) * share


def _share_of_way(begin: int, end: int, steps: int, later: Sequence[Extension]) -> float:
    """Return the share of the way from one number of steps to another, with later extensions.

    Each extension that the steps have reached divides what is left of the way anew over what is
    left of the budget.
    """
    done = 0.0
    for extension in later:
        if steps < extension.steps:
            break
        done += (1.0 - done) * min((extension.steps - begin) / (end - begin), 1.0)
        begin, end = extension.steps, extension.new_total
    return done + (1.0 - done) * min((steps - begin) / (end - begin), 1.0)


def learning_rate(config: PpoConfig, steps: int, extensions: Sequence[Extension] = ()) -> float:
    """Return the learning rate after that many environment steps, within its bounds.

    Args:
        config: as it is after all extensions.
        steps: of the run.
        extensions: of its budget. One with new rates begins a line of its own, from the first of
            them at the extension to the last at its end.
    """
    rates = (config.learning_rate, config.learning_rate_final)
    begin, end, later = 0, extensions[0].old_total if extensions else config.total_steps, 0
    for number, extension in enumerate(extensions):
        if extension.old_rates is None:
            continue
        if steps < extension.steps:
            rates = extension.old_rates
            break
        begin, end, later = extension.steps, extension.new_total, number + 1
    planned = linear(*rates, _share_of_way(begin, end, steps, extensions[later:]))
    floored = max(planned, config.optimizer_lr_min)
    return floored if config.optimizer_lr_max is None else min(floored, config.optimizer_lr_max)


def clip_range(config: PpoConfig, update: int) -> float:
    """Return the clip of the ratio; it moves from its warm-up value at update 0."""
    return _warmed(
        config.clip_range_warmup, config.clip_range, update, config.clip_range_warmup_updates
    )


def vf_coef(config: PpoConfig, update: int, explained_variance: float | None) -> float:
    """Return the weight of the critics' loss, smaller while they are worse than a constant."""
    planned = _warmed(config.vf_coef_warmup, config.vf_coef, update, config.vf_coef_warmup_updates)
    if explained_variance is not None and explained_variance < 0.0:
        reduced = planned * config.vf_bad_explained_scale
        return max(reduced, min(planned, config.vf_bad_explained_floor))
    return planned


def total_updates(config: PpoConfig, total_steps: int) -> int:
    """Return the updates of that many steps: the last one begins before all are taken."""
    return math.ceil(total_steps / (config.n_steps * config.n_envs))


def bc_coef(config: BcConfig, steps: float) -> float:
    """Return the weight of the AWR term: constant, then falling linearly to its last value."""
    if config.awr_coef == 0.0:
        return 0.0
    after = steps - config.bc_warmup_steps
    if config.bc_decay_steps == 0:
        return config.awr_coef if after < 0 else config.bc_final_coef
    return linear(config.awr_coef, config.bc_final_coef, after / config.bc_decay_steps)


def epsilon(config: AdversaryConfig, progress: float, *, update: int) -> float:
    """Return the radius of the adversary; 0 without one.

    Args:
        config: of the adversary.
        progress: share of the budget that is used.
        update: of the run.
    """
    if not config.acts:
        return 0.0
    planned = perturbation.epsilon_at(
        progress,
        initial=config.epsilon,
        final=config.epsilon_final,
        schedule=config.epsilon_schedule,
    )
    return float(planned) * perturbation.ramp(update=update, updates=config.warmup_updates)


def progress(config: PpoConfig, steps: int, extensions: Sequence[Extension] = ()) -> float:
    """Return the share of the budget that is used, or of the way to the end after extensions."""
    first = extensions[0].old_total if extensions else config.total_steps
    return _share_of_way(0, first, steps, extensions)


def clips_values(config: ValueClipConfig, update: int, explained_variance: float | None) -> bool:
    """Return whether value clipping is on, warmed up and its critics good enough."""
    if not config.clips or update < config.vf_clip_warmup_updates:
        return False
    if config.vf_clip_threshold_ev is None:
        return True
    if explained_variance is None or not math.isfinite(explained_variance):
        return False
    return explained_variance >= config.vf_clip_threshold_ev


def _warmed(start: float, end: float, update: int, updates: int) -> float:
    return end if updates == 0 else linear(start, end, update / updates)
