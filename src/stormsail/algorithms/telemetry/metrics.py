"""Everything an update reports, by name. `docs/metrics.md` has one row for each.

Each metric is one number an update. Most are computed where the data lie and all of them are read
at once; what remains of the work is a handful of numbers on the host.
"""

import math

import torch
from scipy.stats import binomtest
from torch import Tensor

from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.telemetry import learning, settings
from stormsail.algorithms.telemetry import risk as tails
from stormsail.algorithms.telemetry import rollout as played
from stormsail.algorithms.update.readings import Values

CLIPS = ("norm", "vf", "limit", "quantile", "ratio")
"""Bounds whose use is counted; `train/clip_dominant` is 1 plus the place in this list."""

CONFIDENCE = 0.95
"""Of the intervals around a win rate."""

NOT_FINITE = "debug/nonfinite_metrics"

MAY_BE_UNKNOWN = frozenset(
    {
        # without a finished episode, or without two
        "rollout/win_rate",
        "rollout/win_rate_wilson_low",
        "rollout/win_rate_wilson_high",
        "rollout/win_rate_cp_low",
        "rollout/win_rate_cp_high",
        "rollout/steps_to_win_mean",
        "rollout/steps_to_win_p50",
        "rollout/steps_to_win_p90",
        "rollout/episode_return_mean",
        "rollout/episode_return_std",
        "rollout/episode_return_min",
        "rollout/episode_return_p05",
        "rollout/episode_return_p50",
        "rollout/episode_return_max",
        "rollout/episode_length_mean",
        "lstm/h_norm_pre_reset",
        "lstm/h_norm_post_reset",
        # without returns that differ
        "train/explained_variance",
        "train/ev/global",
        "train/ev/mean_grouped",
        "train/ev/median_grouped",
        "train/ev/corr",
        # without something to compare with, or switched off
        "debug/vecnormalize_mean_drift",
        "debug/vecnormalize_std_drift",
        "train/policy_entropy_slope",
        "train/approx_kl_ema",
        "train/kl_analytic",
        "train/kl_target",
        "train/optimizer_lr_max",
        "train/vf_clip_effective",
        "train/critics_grad_ratio",
        "train/policy_bc_vs_ppo_ratio",
        "config/target_kl",
    }
    | tails.UNKNOWN
)
"""Metrics that are NaN where there is nothing to measure. That is no fault and is not counted."""


@torch.no_grad()
def metrics(ppo: Ppo, update: Update) -> dict[str, float]:
    """Return every metric of the update that was just done, sorted by name.

    The names depend on the configuration and on the task, not on what happened. A number that is
    not finite is reported as NaN and counted in `debug/nonfinite_metrics`.
    """
    rollout = update.rollout
    values: Values = {
        **learning.losses(ppo, update),
        **learning.ratios(update),
        **learning.divergence(ppo, update),
        **learning.steps(ppo, update),
        **learning.gradients(ppo, update),
        **played.episodes(rollout),
        **played.rewards(ppo, rollout),
        **played.advantages(ppo, update),
        **played.explained(update),
        **played.values(ppo, update),
        **played.memory(ppo, rollout),
        **played.observations(ppo, update),
        **settings.schedules(ppo, update),
        **settings.entropy(ppo, update),
        **settings.value_clip(ppo, update),
        **settings.settings(ppo),
        **tails.risk(ppo, update),
    }
    if ppo.pipeline.scaler is not None:
        values |= ppo.pipeline.scaler.metrics()
    found = _read(values)
    found |= win_rate_bounds(int(found["rollout/wins"]), int(found["rollout/episodes"]))
    found["train/clip_dominant"] = dominant_clip(found)
    return finite(found)


def win_rate_bounds(wins: int, count: int) -> dict[str, float]:
    """Return 95 % intervals of the chance to win: Wilson's, and that of Clopper and Pearson.

    The first has about the stated coverage, the second at least that; `scipy.stats.binomtest`.
    """
    bounds: dict[str, float] = {}
    for short, method in (("wilson", "wilson"), ("cp", "exact")):
        low, high = math.nan, math.nan
        if count > 0:
            interval = binomtest(wins, count).proportion_ci(CONFIDENCE, method=method)
            low, high = float(interval.low), float(interval.high)
        bounds |= {f"rollout/win_rate_{short}_low": low, f"rollout/win_rate_{short}_high": high}
    return bounds


def dominant_clip(found: dict[str, float]) -> float:
    """Return which bound is reached most often: 1 + its place in `CLIPS`, or 0 if none ever is."""
    fractions = [found[f"train/clip_active_frac/{name}"] for name in CLIPS]
    fractions = [0.0 if math.isnan(part) else part for part in fractions]
    top = max(fractions)
    return 0.0 if top == 0.0 else 1.0 + fractions.index(top)


def finite(found: dict[str, float]) -> dict[str, float]:
    """Return the metrics sorted by name, NaN for what is not finite, with the count of those."""
    bad = 0
    clean = {}
    for name, value in sorted(found.items()):
        known = math.isfinite(value)
        bad += not known and not (math.isnan(value) and name in MAY_BE_UNKNOWN)
        clean[name] = value if known else math.nan
    clean[NOT_FINITE] = float(bad)
    return dict(sorted(clean.items()))


def _read(values: Values) -> dict[str, float]:
    """Read all tensors at once."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    device = next(iter(tensors.values())).device
    row = torch.stack([value.detach().to(device, torch.float64) for value in tensors.values()])
    read = dict(zip(tensors, row.tolist(), strict=True))
    return {name: read[name] if name in read else float(value) for name, value in values.items()}
