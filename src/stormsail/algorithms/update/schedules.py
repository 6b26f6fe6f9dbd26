"""Schedules: learning rate, clip range and loss coefficients of each update.

Pure functions of the update's number or of the steps done, so that a checkpoint needs nothing but
the counters.
"""

import math
from typing import NamedTuple

from stormsail.algorithms.config import BcConfig, PpoConfig, ValueClipConfig


class Scheduled(NamedTuple):
    """Scheduled values of one update."""

    learning_rate: float
    clip_range: float
    vf_coef: float
    bc_coef: float
    ent_coef: float
    kl_beta: float
    """Weight of the KL divergence in the loss; 0 without a penalty."""
    clips_values: bool
    """Whether critic predictions are clipped to the old ones."""
    trains_policy: bool
    """False while only the critics learn."""
    legacy_risk: float = 0.0
    """Weight of `losses.legacy_cvar`, which trains only critics."""


def linear(start: float, end: float, done: float) -> float:
    """Return the point between start and end after a share of the way; outside, the nearer one."""
    share = min(max(done, 0.0), 1.0)
    return start + (end - start) * share


def learning_rate(config: PpoConfig, steps: int) -> float:
    """Return the learning rate after that many environment steps, within its bounds."""
    planned = linear(config.learning_rate, config.learning_rate_final, steps / config.total_steps)
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


def bc_coef(config: BcConfig, steps: int) -> float:
    """Return the weight of the AWR term: constant, then falling linearly to its last value."""
    if config.awr_coef == 0.0:
        return 0.0
    after = steps - config.bc_warmup_steps
    if config.bc_decay_steps == 0:
        return config.awr_coef if after < 0 else config.bc_final_coef
    return linear(config.awr_coef, config.bc_final_coef, after / config.bc_decay_steps)


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
