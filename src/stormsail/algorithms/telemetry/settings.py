"""Numbers of an update that were planned or set: schedules, controllers, configuration."""

import math

from torch import Tensor

from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.update.readings import Values


def schedules(ppo: Ppo, update: Update) -> Values:
    """Return the numbers that held during this update."""
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
    """Return the entropy coefficient and how its schedule stands."""
    config, schedule = ppo.config.entropy, ppo.entropy
    return {
        "train/ent_coef": update.now.ent_coef,
        "train/ent_coef_eff": update.now.ent_coef,
        "train/ent_coef_nominal": schedule.coefficient(update.number).nominal,
        "train/ent_coef_min": config.ent_coef_min,
        "train/ent_coef_initial": config.ent_coef,
        "train/ent_coef_final": config.ent_coef_final,
        "train/policy_entropy_slope": schedule.slope,
        "train/entropy_plateau": float(schedule.plateau),
        "train/entropy_decay_start_update": float(-1 if schedule.start is None else schedule.start),
    }


def value_clip(ppo: Ppo, update: Update) -> Values:
    """Return whether predictions were held near the old ones, how near, and if not why."""
    config = ppo.config.value_clip
    wanted, on = config.clip_range_vf is not None, update.now.clips_values
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
    """Return the settings that a reader of the metrics needs beside them."""
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
        "config/target_kl": math.nan if target is None else target,
        "config/critics": float(config.critic.critics),
        "config/vgs_enabled": float(config.vgs.enabled),
    }
