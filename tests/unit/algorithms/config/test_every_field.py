"""Every setting of a training run reaches the computation: change one, and some number differs."""

import hashlib
import math
from functools import cache

import pytest
import torch

from bets_lab import bets_learner
from learner_lab import NUMBERS, SMALL, Scripted, aged, learner, script
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.core.config import Config

UPDATES = 3
BASE = {
    **SMALL,
    "optimizer.optimizer_class": "AdaptiveUPGD",
    "ppo.n_envs": 4, "ppo.n_steps": 4, "ppo.batch_size": 2, "ppo.n_epochs": 2,
    "kl.target_kl": None, "entropy.ent_coef_decay_steps": 400,
}  # fmt: skip
CATEGORICAL = {"critic.kind": "categorical"}
RETURN = {"target.kind": "lambda_return"}
HELD = {"value_clip.clip_range_vf": 1e-3}
WIDE = {**HELD, "value_clip.distributional_vf_clip_mode": "mean_and_variance"}
BLIND = {"entropy.bad_explained_patience": 0, "entropy.entropy_boost_factor": 100.0}
LEVEL = {
    "entropy.ent_coef_plateau_window": 2, "entropy.ent_coef_plateau_min_updates": 0,
    "entropy.ent_coef_plateau_tolerance": 1e3, "entropy.ent_coef_decay_steps": 2,
}  # fmt: skip
STOP = {
    "kl.target_kl": 1e-5, "kl.kl_absolute_stop_factor": 1e9, "kl.kl_exceed_stop_fraction": 1.0,
    "kl.kl_consec_minibatches": 2, "kl.use_ema": False, "ppo.n_epochs": 3,
}  # fmt: skip
SLOW = {**STOP, "kl.use_ema": True, "kl.kl_ema_alpha": 1.0}
FAR = {"kl.target_kl": 1e-5, "kl.kl_early_stop": False, "kl.penalty": True}
NEAR = {**FAR, "kl.target_kl": 10.0}
GENTLE = {
    **FAR,
    "kl.target_kl": 5e-3,
    "kl.beta_max": 1e6,
    "kl.beta_min": 1e-12,
    "kl.beta_init": 5.0,
}
FOLLOW = {"returns.warmup_updates": 0}
IMITATE = {"bc.awr_coef": 0.5}
FALL = {**IMITATE, "bc.bc_warmup_steps": 0, "bc.bc_decay_steps": 40}
NOISE = {"vgs.enabled": True, "vgs.warmup_steps": 0, "vgs.min_scaling_factor": 0.01,
         "vgs.alpha": 1.0, "vgs.reference": "absolute"}  # fmt: skip
BAD_CRITICS = {"ppo.vf_bad_explained_scale": 0.1}
GAUSSIAN = {"actions": NUMBERS}
POISON = {"poison": True}
FADING = {"fading": True, "returns.window_updates": 1, "ppo.gamma": 0.0}
OFTEN = {
    "often": True, "risk.cvar_alpha": 0.5, "risk.cvar_window": 20, "risk.cvar_min_samples": 2,
    "risk.cvar_min_tail_samples": 1,
}  # fmt: skip
WEIGHED = {
    **OFTEN, "risk.cvar_weight": 0.3, "risk.cvar_ramp_updates": 0, "risk.cvar_cap": 100.0,
    "risk.cvar_activation_threshold": -100.0,
}  # fmt: skip
LIMITED = {**OFTEN, "risk.cvar_use_constraint": True, "risk.cvar_limit": 0.3}
LONGER = {**LIMITED, "often": False, "risk.cvar_limit": 3.0}
PARTS = {**LIMITED, "risk.cvar_policy_mode": "state"}
PREDICTED = {**LIMITED, "risk.cvar_use_predicted_for_dual": True, "risk.cvar_limit": 3.0}
PLAIN_DUAL = {**LIMITED, "risk.dual_controller": "integral", "risk.cvar_lambda_lr": 0.1}
BETS = {"bets": True, "ppo.gamma": 1.0, "network.memory": "none", "target.kind": "mc"}
ROBUST = {"adversary.mode": "kl_reg", "adversary.warmup_updates": 0}
FORGED = {"adversary.mode": "mixed_batch", "adversary.warmup_updates": 0}
HEADS = {"critic.head_steps": 3, "critic.head_batch": 3}
CRASH = {"crash": True, "risk.cvar_alpha": 1.0, "risk.cvar_window": 30}

FIELDS = {
    "seed": (1, {}),
    "network.encoder_sizes": ((6,), {}),
    "network.activation": ("relu", {}),
    "network.memory": ("gru", {}),
    "network.lstm_hidden_size": (3, {}),
    "network.num_layers": (2, {}),
    "network.learn_initial_state": (True, {}),
    "network.enable_critic_lstm": (True, {}),
    "network.head_sizes": ((6,), {}),
    "network.first_layer": ("spread", {}),
    "policy.distribution": ("beta", GAUSSIAN),
    "policy.std_min": (0.7, GAUSSIAN),
    "policy.std_max": (0.9, GAUSSIAN),
    "critic.kind": ("categorical", {}),
    "critic.num_quantiles": (5, {}),
    "critic.huber_kappa": (1.0, {}),
    "critic.levels": ("tail", {}),
    "critic.monotone_quantiles": (True, {}),
    "critic.num_atoms": (9, CATEGORICAL),
    "critic.v_min": (-3.0, CATEGORICAL),
    "critic.v_max": (3.0, CATEGORICAL),
    "critic.v_range_ema_alpha": (0.5, {**CATEGORICAL, "returns.warmup_updates": 0}),
    "critic.use_twin_critics": (False, {}),
    "critic.twin_value_mode": ("mean", {}),
    "critic.twin_dist_mode": ("mixture", {}),
    "critic.learning_rate_factor": (5.0, {}),
    "critic.head_steps": (2, {}),
    "critic.head_batch": (5, HEADS),
    "critic.head_rollouts": (1, HEADS),
    "critic.head_rate": (0.5, HEADS),
    "target.kind": ("td", {}),
    "target.steps": (2, {}),
    "target.mixture_lambda": (0.2, {"target.kind": "lambda_mixture"}),
    "ppo.total_steps": (100, {"ppo.learning_rate_final": 0.0}),
    "ppo.n_steps": (8, {}),
    "ppo.n_envs": (6, {}),
    "ppo.n_epochs": (1, {}),
    "ppo.batch_size": (4, {}),
    "ppo.microbatch_size": (1, {}),
    "ppo.sequence_length": (2, {}),
    "ppo.learning_rate": (1e-3, {}),
    "ppo.learning_rate_final": (1e-3, {"ppo.total_steps": 100}),
    "ppo.optimizer_lr_min": (5e-3, {"ppo.learning_rate_final": 0.0, "ppo.total_steps": 40}),
    "ppo.optimizer_lr_max": (0.02, {"ppo.learning_rate_final": 0.1, "ppo.total_steps": 40}),
    "ppo.gamma": (0.5, {}),
    "ppo.gae_lambda": (0.5, {}),
    "ppo.clip_range": (1e-3, {}),
    "ppo.clip_range_warmup": (1e-3, {"ppo.clip_range_warmup_updates": 5}),
    "ppo.clip_range_warmup_updates": (
        2,
        {"ppo.clip_range_warmup": 1e-3, "ppo.clip_range_warmup_updates": 5},
    ),
    "ppo.vf_coef": (2.0, {}),
    "ppo.vf_coef_warmup": (2.0, {"ppo.vf_coef_warmup_updates": 5}),
    "ppo.vf_coef_warmup_updates": (2, {"ppo.vf_coef_warmup": 2.0, "ppo.vf_coef_warmup_updates": 5}),
    "ppo.vf_bad_explained_scale": (0.1, {}),
    "ppo.vf_bad_explained_floor": (0.4, BAD_CRITICS),
    "ppo.critic_grad_warmup_updates": (1, {}),
    "ppo.max_grad_norm": (0.01, {}),
    "ppo.normalize_advantage": (False, {}),
    "ppo.normalize_advantage_per_env": (True, {}),
    "ppo.advantage_scale": ("slow", {}),
    "ppo.advantage_scale_beta": (0.1, {"ppo.advantage_scale": "slow"}),
    "ppo.advantage_mode": ("skip", {"ppo.adv_std_floor": 100.0}),
    "ppo.adv_std_floor": (100.0, {}),
    "ppo.adv_clip": (0.1, {}),
    "ppo.nonfinite_policy": ("zero", POISON),
    "entropy.ent_coef": (0.5, {}),
    "entropy.ent_coef_final": (0.5, {"entropy.ent_coef_decay_steps": 2}),
    "entropy.ent_coef_min": (0.009, {"entropy.ent_coef_decay_steps": 2}),
    "entropy.ent_coef_decay_steps": (2, {}),
    "entropy.ent_coef_plateau_window": (2, {"entropy.ent_coef_decay_steps": 2}),
    "entropy.ent_coef_plateau_tolerance": (1e-12, LEVEL),
    "entropy.ent_coef_plateau_min_updates": (40, LEVEL),
    "entropy.entropy_boost_factor": (2.0, BLIND),
    "entropy.entropy_boost_cap": (50.0, BLIND),
    "entropy.bad_explained_patience": (2, BLIND),
    "entropy.entropy_mode": ("corrected_mc", GAUSSIAN),
    "kl.target_kl": (1e-9, {}),
    "kl.kl_early_stop": (False, STOP),
    "kl.kl_absolute_stop_factor": (1e-3, STOP),
    "kl.kl_consec_minibatches": (4, STOP),
    "kl.kl_exceed_stop_fraction": (0.1, {**STOP, "kl.kl_consec_minibatches": 4}),
    "kl.kl_epoch_decay": (1e-6, {**STOP, "kl.target_kl": 1.0}),
    "kl.use_ema": (True, {**STOP, "kl.kl_ema_alpha": 1e-9}),
    "kl.kl_ema_updates": (1e9, {**STOP, "kl.use_ema": True, "kl.kl_ema_updates": 1.0}),
    "kl.kl_ema_alpha": (1e-9, SLOW),
    "kl.penalty": (True, {"kl.target_kl": 1e-5, "kl.kl_early_stop": False}),
    "kl.beta_init": (1.0, FAR),
    "kl.beta_min": (5e-3, NEAR),
    "kl.beta_max": (0.5, FAR),
    "kl.kp": (2.0, GENTLE),
    "kl.ki": (1.0, GENTLE),
    "kl.kd": (3.0, GENTLE),
    "value_clip.clip_range_vf": (1e-3, {}),
    "value_clip.vf_clip_units": ("raw", {**HELD, "value_clip.clip_range_vf": 0.05}),
    "value_clip.distributional_vf_clip_mode": ("per_quantile", HELD),
    "value_clip.distributional_vf_clip_variance_factor": (0.1, WIDE),
    "value_clip.vf_clip_warmup_updates": (2, HELD),
    "value_clip.vf_clip_threshold_ev": (2.0, HELD),
    "value_clip.value_clip_limit": (0.05, {}),
    "returns.normalize_returns": ("off", {}),
    "returns.return_stat": ("mad", {}),
    "returns.ret_clip": (0.5, RETURN),
    "returns.std_floor": (100.0, {}),
    "returns.std_floor_mode": ("adaptive", FADING),
    "returns.ema_beta": (0.1, FOLLOW),
    "returns.window_updates": (1, {}),
    "returns.warmup_updates": (1, {}),
    "returns.freeze_after": (1, FOLLOW),
    "returns.max_rel_step": (0.01, FOLLOW),
    "returns.value_target_scale_cap": (0.1, {}),
    "observation.normalise": (False, {}),
    "observation.obs_stats_update": ("online", {}),
    "bc.awr_coef": (0.5, {}),
    "bc.awr_temperature": (0.5, IMITATE),
    "bc.max_weight": (0.5, IMITATE),
    "bc.awr_normalize": (True, IMITATE),
    "bc.bc_warmup_steps": (0, {**IMITATE, "bc.bc_decay_steps": 40}),
    "bc.bc_decay_steps": (400, FALL),
    "bc.bc_final_coef": (0.4, FALL),
    "optimizer.optimizer_class": ("UPGD", {}),
    "optimizer.weight_decay": (0.1, {}),
    "optimizer.beta1": (0.5, {}),
    "optimizer.beta2": (0.5, {}),
    "optimizer.eps": (1.0, {}),
    "optimizer.beta_utility": (0.5, {}),
    "optimizer.sigma": (0.1, {}),
    "optimizer.noise_scale": ("rms_update", {}),
    "optimizer.utility_norm": ("minmax", {}),
    "optimizer.lr_compensation": (1.0, {}),
    "vgs.enabled": (True, {"vgs.warmup_steps": 0}),
    "vgs.beta": (0.5, NOISE),
    "vgs.alpha": (5.0, NOISE),
    "vgs.eps_rel": (10.0, NOISE),
    "vgs.warmup_steps": (100, NOISE),
    "vgs.min_scaling_factor": (1.0, NOISE),
    "vgs.variance_cap": (0.1, NOISE),
    "vgs.statistic": ("total", NOISE),
    "vgs.reference": ("median", NOISE),
    "vgs.scope": ("global", NOISE),
    "ppo.policy_gradient": ("all_actions", BETS),
    "risk.form": ("budget", LIMITED),
    "risk.cvar_quantity": ("step", PARTS),
    "risk.cvar_alpha": (0.4, LIMITED),
    "risk.cvar_policy_mode": ("state", LIMITED),
    "risk.cvar_trace": (0.5, LONGER),
    "risk.cvar_weight": (0.3, {**WEIGHED, "risk.cvar_weight": 0.1}),
    "risk.cvar_use_penalty": (False, WEIGHED),
    "risk.cvar_activation_threshold": (100.0, WEIGHED),
    "risk.cvar_activation_hysteresis": (0.0, {**WEIGHED, "risk.cvar_activation_threshold": -0.03}),
    "risk.cvar_ramp_updates": (12, WEIGHED),
    "risk.cvar_penalty_cap": (0.1, WEIGHED),
    "risk.cvar_cap": (1e-4, WEIGHED),
    "risk.cvar_use_constraint": (True, {**OFTEN, "risk.cvar_limit": 0.3}),
    "risk.cvar_limit": (0.9, LIMITED),
    "risk.dual_controller": ("integral", LIMITED),
    "risk.cvar_margin": (0.0, LIMITED),
    "risk.cvar_kp": (1.5, LIMITED),
    "risk.cvar_ki": (0.7, LIMITED),
    "risk.cvar_kd": (9.0, {**LIMITED, "risk.cvar_ema_beta": 0.0, "risk.cvar_window": 4}),
    "risk.cvar_lambda_lr": (0.9, PLAIN_DUAL),
    "risk.cvar_lambda_max": (0.1, LIMITED),
    "risk.cvar_rescale": (False, {**LIMITED, "ppo.normalize_advantage": False}),
    "risk.cvar_ema_beta": (0.0, LIMITED),
    "risk.cvar_use_predicted_for_dual": (True, {**LIMITED, "risk.cvar_limit": 3.0}),
    "risk.cvar_window": (4, LIMITED),
    "risk.cvar_min_samples": (12, LIMITED),
    "risk.cvar_min_tail_samples": (8, LIMITED),
    "risk.cvar_winsor_pct": (5.0, {**LIMITED, **CRASH, "ppo.normalize_advantage": False}),
    "risk.cvar_estimator": ("linear", PREDICTED),
    "adversary.mode": ("kl_reg", {"adversary.warmup_updates": 0}),
    "adversary.epsilon": (0.2, ROBUST),
    "adversary.epsilon_schedule": ("linear", {**ROBUST, "ppo.total_steps": 100}),
    "adversary.epsilon_final": (
        0.2,
        {**ROBUST, "adversary.epsilon_schedule": "cosine", "ppo.total_steps": 100},
    ),
    "adversary.warmup_updates": (2, ROBUST),
    "adversary.norm_type": ("l2", ROBUST),
    "adversary.attack_method": ("sgld", ROBUST),
    "adversary.attack_steps": (1, ROBUST),
    "adversary.attack_lr": (0.001, ROBUST),
    "adversary.random_init": (False, FORGED),
    "adversary.clip_min": (0.0, ROBUST),
    "adversary.clip_max": (0.0, ROBUST),
    "adversary.bounds": ({"a": (-0.5, 0.5)}, ROBUST),
    "adversary.features": (("a",), ROBUST),
    "adversary.robust_kl_coef": (1.0, ROBUST),
    "adversary.adversarial_ratio": (1.0, FORGED),
    "adversary.attack_policy": (False, FORGED),
    "adversary.attack_value": (False, FORGED),
}
"""Path: another value, and the settings under which it matters."""

ELSEWHERE = {
    "risk.cvar_infeasible_updates": "a reading only, in the tests of the multiplier",
    "risk.cvar_trust": "from the eleventh rollout on, in the tests of the limit's control",
    "risk.cvar_floor": "once CVaR is known, in the tests of the limit's control",
    "risk.cvar_log_gradient": "a reading only, in the tests of the risk's gradient",
    "observation.warmup_steps": "before the first update, in the tests of the warm-up",
    "device": "the task factory and the trainer",
    "plugins": "the loader of plug-ins",
    "callbacks": "the trainer; they change no number",
    "network.encoder": "the tests of plug-ins",
    "network.encoder_parameters": "the tests of plug-ins",
    "risk.cvar_reward": "the refusals of rewards that are no money",
    "threads": "the trainer",
    "precision": "the tests of graphs and of precision",
    "cuda_graphs": "on a GPU, in the tests of graphs",
    "compile_update": "rounding alone, in the tests of compiled updates",
    "optimizer.compiled": "needs a compiler, in the tests of graphs and of the compiled step",
    "task.": "the task factory and the simulator",
    "checkpoint.": "the trainer",
    "validation.": "the trainer",
}
"""Settings that act outside of an update, and where."""


def leaves(config, prefix=""):
    """Yield the dotted path of every setting."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def poisoned(ppo):
    """Let one log probability of every rollout be NaN."""
    batch_of = ppo._batch

    def batch(*parts):
        data = batch_of(*parts)
        data.log_prob[0, 0] = math.nan
        return data

    ppo._batch = batch


def built(changes):
    """Return a learner; `actions`, `poison` and `fading` are no settings but circumstances."""
    changes = dict(changes)
    if changes.pop("bets", False):
        return bets_learner("stakes-8", **{**BASE, **changes})
    actions = changes.pop("actions", None)
    poison, fading = changes.pop("poison", False), changes.pop("fading", False)
    often, crash = changes.pop("often", False), changes.pop("crash", False)
    config = derive(TrainConfig().replace(**{**BASE, **changes}))
    ends = ("....................", "..T....U............", "...U................",
            "......T.............", "...................T", "U...................")  # fmt: skip
    if often:  # an episode ends in every other row, in half of the environments one row later
        ends = ("T.U." * 5, ".T.U" * 5) * 3
    told = script(ends[: config.ppo.n_envs])
    if crash:
        told.reward[2] -= 50.0
    if fading:
        told.reward[4:] = 0.0
        told.reward[:4] *= 1e3
    options = {} if actions is None else {"actions": actions}
    ppo = learner(config, told=told, seed=config.seed, **options)
    if poison:
        poisoned(ppo)
    return ppo


def fingerprint(changes):
    """Return a hash of everything that a few updates computed and left behind."""
    ppo = built(changes)
    if isinstance(ppo.task, Scripted):
        aged(ppo)
    digest = hashlib.sha256()
    for _ in range(UPDATES):
        update = ppo.update()
        learned = update.learned
        digest.update(repr((learned.epochs, learned.stopped, learned.divergence)).encode())
        digest.update(repr([m.micro_batches for m in learned.minibatches]).encode())
    states = ppo.agent.state_dict(), ppo.optimizer.state_dict()["state"], ppo.kl.state_dict()
    for parameter in ppo.agent.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    torch.set_printoptions(precision=8, threshold=10**6)
    try:
        digest.update(repr(states).encode())
    finally:
        torch.set_printoptions(profile="default")
    digest.update(repr(ppo.env_state.memory.shape).encode())
    return digest.hexdigest()


@cache
def plain(circumstances):
    return fingerprint(dict(circumstances))


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.spec("X22")
def test_a_change_of_any_setting_is_seen_in_what_is_learned(path):
    value, circumstances = FIELDS[path]
    assert fingerprint({**circumstances, path: value}) != plain(tuple(circumstances.items()))


def test_equal_settings_leave_equal_traces():
    """Otherwise the test above would pass for a setting that does nothing."""
    for circumstances in (
        {}, NOISE, POISON, FADING, GAUSSIAN, WEIGHED, LIMITED, BETS, ROBUST, FORGED,
    ):  # fmt: skip
        assert fingerprint(circumstances) == plain(tuple(circumstances.items()))


def test_no_setting_is_missing_from_the_table():
    known = {*FIELDS, *ELSEWHERE}
    sections = tuple(name for name in ELSEWHERE if name.endswith("."))
    missing = [
        path for path in leaves(TrainConfig())
        if path not in known and not path.startswith(sections)
    ]  # fmt: skip
    assert missing == []
    assert [path for path in FIELDS if path not in set(leaves(TrainConfig()))] == []


def test_every_value_in_the_table_differs_from_what_it_replaces():
    for path, (value, circumstances) in FIELDS.items():
        settings = {k: v for k, v in circumstances.items() if "." in k}
        config = derive(TrainConfig().replace(**{**BASE, **settings}))
        now = config
        for name in path.split("."):
            now = getattr(now, name)
        assert now != value, path
