"""All metrics of an update, by name. `docs/metrics.md` has one row for each.

Each metric is one number per update. Most are computed on the device and all of them are read at
once.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.telemetry import learning, risk, rollout
from stormsail.algorithms.telemetry.values import Values
from stormsail.algorithms.update.graphs import waiting_allowed
from stormsail.algorithms.update.return_statistics import std_at_cap
from stormsail.functional.statistics import Weights
from stormsail.optim.pipeline import GradientPipeline

CLIPS = {"norm": 0.01, "vf": 0.3, "limit": 0.01, "quantile": 0.5, "ratio": 0.3}
"""Bounds whose use is counted, with the largest use that is usual. `train/clip_dominant` is 1 plus
the place in this list."""

CLIP_MODES = ("disable", "mean_only", "mean_and_variance", "per_quantile", "value")
"""What value clipping holds; `config/vf_clip_mode` is the place in this list. `value` is that of
a scalar critic."""

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
        "rollout/info/{key}",
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
        "train/kl_target",
        "train/optimizer_lr_max",
        "train/vf_clip_effective",
        "train/critics_grad_ratio",
        "train/policy_bc_vs_ppo_ratio",
        "config/target_kl",
        # without an attack
        "sa_ppo/avg_perturbation_norm",
        "sa_ppo/policy_loss",
        "sa_ppo/value_loss",
        "sa_ppo/entropy",
    }
    | risk.UNKNOWN
)
"""Metrics that are NaN where there is nothing to measure; not counted as non-finite."""


class Packed(NamedTuple):
    """Metrics in one row, to be read at once."""

    names: tuple[str, ...]
    row: Tensor
    """float64."""


@torch.no_grad()
def measured(ppo: Ppo, seen: rollout.Seen) -> Packed:
    """Return all metrics that depend on nothing but tensors, without a host sync.

    Of the learner only settings are read, and tensors that stay in place.
    """
    weights = Weights.of(seen.rollout.weight)
    values: Values = {
        **rollout.episodes(seen.rollout),
        **rollout.rewards(ppo, seen.rollout, weights),
        **rollout.reported(seen.rollout),
        **rollout.advantages(ppo, seen),
        **rollout.explained(seen, weights),
        **rollout.values(ppo, seen, weights),
        **rollout.memory(seen.memory, seen.rollout),
        **rollout.observations(ppo, seen),
    }
    if rollout.is_counted(ppo, seen.rollout):
        values |= rollout.grouped(ppo, seen.rollout, seen.estimates)
    if seen.risk is not None:
        values |= risk.spread(seen.risk, seen.rollout.weight)
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if len(tensors) < len(values):  # a graph would repeat the first one for ever
        raise TypeError("a metric that is a number of the host does not belong here")
    return packed(tensors)


class Scaled(NamedTuple):
    """What the gradient scaler says of itself."""

    packed: Packed
    factors: Tensor
    """Of every tensor in the order of a report, float64 [P]."""


def scaler_metrics(pipeline: GradientPipeline, _: tuple[()]) -> Scaled:
    """Return the metrics of the gradient scaler, whose state stays in place."""
    if pipeline.scaler is None:
        raise LookupError("no scaler, so no metrics of it")
    own = pipeline.scaler.factors()
    factors = torch.stack([own[name] for name in pipeline.names]).double()
    return Scaled(packed(pipeline.scaler.metrics()), factors)


def packed(values: Mapping[str, Tensor]) -> Packed:
    """Return tensors without dimensions in one row, in few kernels: those of one type together."""
    kinds = dict.fromkeys(value.dtype for value in values.values())
    names = [name for kind in kinds for name, own in values.items() if own.dtype == kind]
    rows = [
        torch.stack([own for own in values.values() if own.dtype == kind]).double()
        for kind in kinds
    ]
    return Packed(tuple(names), torch.cat(rows))


class Launched(NamedTuple):
    """Metrics of an update that a device may still compute; nothing of them was read."""

    known: dict[str, float]
    """Those that the host knows."""
    parts: tuple[Packed, ...]
    factors: Tensor | None
    """As `Scaled.factors`; None without a scaler."""
    norms: Tensor
    """Of the last raw gradients, as `learning.last_norms`."""


def metrics(ppo: Ppo, update: Update) -> dict[str, float]:
    """Return every metric of the last update, sorted by name.

    The names depend on the configuration and on the task, not on what happened. A number that is
    not finite is reported as NaN and counted in `debug/nonfinite_metrics`.
    """
    return collect(ppo, launch(ppo, update))[0]


@torch.no_grad()
def launch(ppo: Ppo, update: Update) -> Launched:
    """Begin the metrics of the last update, whose tensors must stay as they are until `collect`."""
    seen = rollout.Seen(
        update.rollout,
        update.estimates,
        update.mixed,
        update.advantage,
        update.moments,
        update.target,
        update.predicted,
        update.scale,
        update.observation_before,
        ppo.env_state.memory,
        None if update.risk is None else update.risk.risk,
    )
    parts = [ppo.recorder("metrics", partial(measured, ppo), seen)]
    factors = None
    if ppo.pipeline.scaler is not None:
        function = partial(scaler_metrics, ppo.pipeline)
        scaler, factors = ppo.recorder("metrics of the scaler", function, ())
        parts.append(scaler)
    totals = learning.summed(update.learned.minibatches)
    values: Values = {
        **learning.losses(ppo, update, totals),
        **learning.ratios(totals),
        **learning.divergence(ppo, update, totals.mean),
        **learning.steps(ppo, update, totals.sums),
        **learning.gradients(ppo, update),
        **learning.adversary(ppo, update, totals.sums),
        **rollout.spreads(ppo),
        **schedules(ppo, update),
        **entropy(ppo, update),
        **value_clip(ppo, update),
        **settings(ppo),
        **risk.risk(ppo, update),
    }
    if not rollout.is_counted(ppo, update.rollout):  # the device has to be asked
        values |= rollout.grouped(ppo, update.rollout, update.estimates)
    known = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    parts += [
        packed({name: value for name, value in tensors.items() if value.device == device})
        for device in dict.fromkeys(value.device for value in tensors.values())
    ]
    norms = learning.last_norms(update.learned.minibatches)
    return Launched(known, tuple(parts), factors, norms)


@torch.no_grad()
def collect(
    ppo: Ppo, launched: Launched, flags: Sequence[Tensor] = ()
) -> tuple[dict[str, float], list[bool]]:
    """Wait for metrics, once; return them, and what flags of a device say that are read with them.

    Args:
        ppo: the learner.
        launched: its metrics.
        flags: tensors without dimensions.
    """
    known, parts, factors, norms = launched
    chosen = [flag.double().reshape(1) for flag in flags]
    scaler = [] if factors is None else [factors, norms]
    rows = _read([*(part.row for part in parts), *chosen, *scaler])
    read = dict(known)
    for part, row in zip(parts, rows, strict=False):
        read |= zip(part.names, row.tolist(), strict=True)
    if factors is not None:
        values = learning.scaled(ppo, norms=rows[-1], factors=rows[-2])
        read |= {name: float(value) for name, value in values.items()}
    read |= win_rate_bounds(int(read["rollout/wins"]), int(read["rollout/episodes"]))
    read["train/clip_dominant"] = dominant_clip(read)
    flag_rows = rows[len(parts) : len(parts) + len(flags)]
    return finite(read), [bool(row) for row in flag_rows]


def schedules(ppo: Ppo, update: Update) -> Values:
    """Return the scheduled values of this update."""
    config, now = ppo.config.ppo, update.now
    rate = ppo.optimizer.param_groups[0]["lr"]
    highest = math.nan if config.optimizer_lr_max is None else config.optimizer_lr_max
    return {
        "train/update": float(update.number),
        "train/env_steps": float(ppo.steps),
        "train/optimizer_lr": rate if isinstance(rate, Tensor) else float(rate),
        "train/optimizer_lr_min": config.optimizer_lr_min,
        "train/optimizer_lr_max": highest,
        "train/optimizer_lr_factor": ppo.rate_factor,
        "train/clip_range": now.clip_range,
        "train/vf_coef": now.vf_coef,
        "train/trains_policy": float(now.trains_policy),
    }


def entropy(ppo: Ppo, update: Update) -> Values:
    """Return the entropy coefficient and the state of its schedule."""
    config, schedule = ppo.config.entropy, ppo.entropy
    return {
        "train/ent_coef": update.now.ent_coef,
        "train/ent_coef_eff": update.now.ent_coef,
        "train/ent_coef_nominal": schedule.coefficient(update.number).nominal,
        "train/ent_coef_min": schedule.floor,
        "train/ent_coef_initial": config.ent_coef,
        "train/ent_coef_final": schedule.final,
        "train/policy_entropy_slope": schedule.slope,
        "train/entropy_plateau": float(schedule.plateau),
        "train/entropy_decay_start_update": float(-1 if schedule.start is None else schedule.start),
    }


def value_clip(ppo: Ppo, update: Update) -> Values:
    """Return whether value clipping was on, its bound, and why it was off."""
    config = ppo.config.value_clip
    wanted, on = config.clips, update.now.clips_values
    warming = wanted and update.number < config.vf_clip_warmup_updates
    bound: Tensor | float = math.nan
    if on and config.clip_range_vf is not None:
        raw = config.vf_clip_units == "raw"
        bound = config.clip_range_vf / (ppo.agent.return_scale.std if raw else 1.0)
    return {
        "train/vf_clip_active": float(on),
        "train/vf_clip_effective": bound,
        "train/vf_clip_warmup_active": float(warming),
        "train/vf_clip_ev_gate_active": float(wanted and not on and not warming),
    }


def settings(ppo: Ppo) -> Values:
    """Return the settings that are logged beside the metrics."""
    config = ppo.config
    target = config.kl.target_kl
    return {
        "config/seed": float(config.seed),
        "config/total_steps": float(config.ppo.total_steps),
        "config/n_steps": float(config.ppo.n_steps),
        "config/n_envs": float(config.ppo.n_envs),
        "config/n_epochs": float(config.ppo.n_epochs),
        "config/batch_size": float(config.ppo.batch_size),
        "config/learning_rate": config.ppo.learning_rate,
        "config/gamma": config.ppo.gamma,
        "config/gae_lambda": config.ppo.gae_lambda,
        "config/clip_range": config.ppo.clip_range,
        "config/vf_coef": config.ppo.vf_coef,
        "config/ent_coef": config.entropy.ent_coef,
        "config/max_grad_norm": config.ppo.max_grad_norm,
        "config/ret_std_at_cap": std_at_cap(config.returns),
        "config/target_kl": math.nan if target is None else target,
        "config/critics": float(config.critic.critics),
        "config/vf_clip_mode": float(CLIP_MODES.index(_clip_mode(config))),
        "config/vgs_enabled": float(config.vgs.enabled),
    }


def win_rate_bounds(wins: int, count: int) -> dict[str, float]:
    """Return 95 % intervals of the chance to win: Wilson's, and that of Clopper and Pearson.

    The first has about the stated coverage, the second at least that. Those of
    `scipy.stats.binomtest`, which also tests and searches, and so took a quarter of all metrics.
    """
    from scipy.special import betaincinv, ndtri  # takes long to import

    exact = wilson = (math.nan, math.nan)
    if count > 0:
        tail, losses = 0.5 * (1.0 - CONFIDENCE), count - wins
        exact = (
            float(betaincinv(wins, losses + 1, tail)) if wins else 0.0,
            float(betaincinv(wins + 1, losses, 1.0 - tail)) if losses else 1.0,
        )
        z = float(ndtri(1.0 - tail))
        centre, unit = wins + 0.5 * z * z, count + z * z
        half = z * math.sqrt(wins * losses / count + 0.25 * z * z)
        wilson = (
            (centre - half) / unit if wins else 0.0,
            (centre + half) / unit if losses else 1.0,
        )
    return {
        "rollout/win_rate_wilson_low": wilson[0],
        "rollout/win_rate_wilson_high": wilson[1],
        "rollout/win_rate_cp_low": exact[0],
        "rollout/win_rate_cp_high": exact[1],
    }


def _clip_mode(config: TrainConfig) -> str:
    """Return what value clipping holds; `disable` where it never acts."""
    if not config.value_clip.clips:
        return "disable"
    if config.critic.kind == "scalar":
        return "value"
    return config.value_clip.distributional_vf_clip_mode


def dominant_clip(values: dict[str, float]) -> float:
    """Return which bound acts most for its kind: 1 + its place in `CLIPS`, or 0 if none acts.

    The shares themselves cannot be compared: one target in a hundred at the end of its range is
    much, one ratio in a hundred outside its band is little, and with a small kappa nearly all pairs
    lie beyond it by design. So each is divided by the largest use that is usual. What the quantile
    loss does beyond kappa is wanted; its bound acts on the pairs *within* kappa, where the loss is
    quadratic and pulls quantiles towards the mean.
    """
    uses = {name: values[f"train/clip_active_frac/{name}"] for name in CLIPS}
    has_quantiles = "train/quantile_crossing_frac" in values
    uses["quantile"] = 1.0 - uses["quantile"] if has_quantiles else 0.0
    relative = [0.0 if math.isnan(use) else use / CLIPS[name] for name, use in uses.items()]
    top = max(relative)
    return 0.0 if top == 0.0 else 1.0 + relative.index(top)


def may_be_unknown(name: str) -> bool:
    """Return whether NaN under this name means that there was nothing to measure."""
    return name in MAY_BE_UNKNOWN or name.startswith("rollout/info/")  # names of the task's own


def finite(values: dict[str, float]) -> dict[str, float]:
    """Return the metrics sorted by name, NaN for what is not finite, with the count of those."""
    bad = 0
    clean = {}
    for name, value in sorted(values.items()):
        known = math.isfinite(value)
        bad += not known and not (math.isnan(value) and may_be_unknown(name))
        clean[name] = value if known else math.nan
    clean[NOT_FINITE] = float(bad)
    return dict(sorted(clean.items()))


def _read(rows: Sequence[Tensor]) -> list[Tensor]:
    """Return rows of float64 on the host: one wait for all of a device."""
    read: dict[int, Tensor] = {}
    for device in dict.fromkeys(row.device for row in rows):
        places = [place for place, row in enumerate(rows) if row.device == device]
        own = torch.cat([rows[place] for place in places])
        if device.type != "cpu":
            with waiting_allowed():
                own = own.cpu()
        read |= zip(places, own.split([len(rows[place]) for place in places]), strict=True)
    return [read[place] for place in range(len(rows))]
