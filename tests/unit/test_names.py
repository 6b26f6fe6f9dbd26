"""`docs/names.md` lists every name of the specification, and every name of ours in it exists."""

import importlib
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from mutants.harness import functions
from stormsail.algorithms.config import TrainConfig
from stormsail.core.config import Config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "names.md"
HEADER = ["specification", "ours", "how", "why"]
HOWS = {"same", "renamed", "later", "absent"}

# The specification is not part of the repository: these are its names, section by section. A name
# of several words stands in a line of its own.
COMPONENTS = """
    I1 recurrent distributional PPO
    I2 clipped policy loss
    I3 log-ratio guard
    I4 approximate KL
    I5 entropy bonus
    I6 entropy coefficient schedule
    I7 GAE
    I8 TimeLimit bootstrap
    I9 advantage normalisation
    I10 return normalisation and value-target scale
    I11 observation normalisation
    I12 quantile critic
    I13 categorical critic
    I14 twin critics
    I15 VF clipping
    I16 clip mechanisms
    I17 CVaR estimation
    I18 CVaR learning
    I19 VGS
    I20 gradient clipping
    I21 gradient accumulation
    I22 UPGD optimizers
    I23 SA-PPO
    I24 PBT
    I25 AWR/BC auxiliary
    I26 LSTM state management
    I27 LSTM gradient norms
    I28 reward-cost telemetry
    I29 masks and valid indices
    I30 monitoring and alerts
    I31 test suite
    I32 documentation duties
    I33 TensorBoard logging
"""

SETTINGS = """
    learning_rate gamma gae_lambda clip_range clip_range_warmup clip_range_warmup_updates n_steps
    n_epochs batch_size microbatch_size gradient_accumulation_steps vf_coef max_grad_norm seed
    use_torch_compile normalize_advantage normalize_advantage_per_env optimizer_lr_min
    scheduler_min_lr optimizer_lr_max nonfinite_policy adv_std_floor adv_ddof adv_clip ent_coef
    ent_coef_final ent_coef_min ent_coef_decay_steps ent_coef_plateau_window
    ent_coef_plateau_tolerance ent_coef_plateau_min_updates entropy_boost_factor entropy_boost_cap
    bad_explained_patience entropy_mode target_kl kl_early_stop kl_exceed_stop_fraction use_ema
    kl_ema_updates kl_ema_alpha kl_consec_minibatches kl_absolute_stop_factor kl_epoch_decay
    beta_init kp ki kd beta_min beta_max critic.distributional critic.num_quantiles
    critic.huber_kappa use_twin_critics num_atoms v_min v_max v_range_ema_alpha hidden_dim
    lstm_hidden_size enable_critic_lstm critic_grad_warmup_updates vf_coef_warmup
    vf_coef_warmup_updates vf_bad_explained_scale vf_bad_explained_floor monotone_quantiles
    twin_value_mode twin_dist_mode num_layers learn_initial_state clip_range_vf
    vf_clip_warmup_updates vf_clip_threshold_ev distributional_vf_clip_mode
    distributional_vf_clip_variance_factor value_clip_limit vf_clip_units normalize_returns
    ret_clip value_target_scale value_target_scale_fixed value_scale.ema_beta
    value_scale.max_rel_step value_scale.std_floor value_scale.window_updates
    value_scale.warmup_updates value_scale.freeze_after value_scale.never_freeze
    value_scale.max_change_pct value_scale.target_scale_ema_beta value_scale.range_max_rel_step
    value_scale.stability.min_explained_variance value_scale.stability.max_abs_p95
    value_scale.stability.patience value_scale_controller value_target_scale_cap return_stat
    std_floor_mode cvar_alpha cvar_weight cvar_activation_threshold cvar_activation_hysteresis
    cvar_ramp_updates cvar_cap cvar_use_constraint cvar_limit limit_pct cvar_lambda_lr
    cvar_use_penalty cvar_penalty_cap cvar_winsor_pct cvar_ema_beta cvar_use_predicted_for_dual
    MIN_TAIL_SAMPLES cvar_estimator cvar_quantity cvar_policy_mode dual_controller cql_alpha
    cql_beta bc_warmup_steps bc_decay_steps bc_final_coef awr_normalize vgs.enabled vgs.beta
    vgs.alpha vgs.eps vgs.warmup_steps vgs.min_scaling_factor vgs.variance_cap
    vgs.accumulation_steps vgs.clip_threshold vgs.statistic vgs.scope vgs.apply_to optimizer.lr
    optimizer.weight_decay optimizer.beta_utility optimizer.sigma optimizer.beta1 optimizer.beta2
    optimizer.eps optimizer.adaptive_noise optimizer.noise_beta optimizer.min_noise_std
    optimizer.instant_noise_scale optimizer.amsgrad optimizer.optimizer_class
    optimizer.utility_norm optimizer.lr_compensation optimizer.noise_scale sa_ppo.epsilon
    sa_ppo.attack_steps sa_ppo.attack_lr sa_ppo.random_init sa_ppo.norm_type sa_ppo.clip_min
    sa_ppo.clip_max sa_ppo.attack_method sa_ppo.adversarial_ratio sa_ppo.robust_kl_coef
    sa_ppo.warmup_updates sa_ppo.attack_policy sa_ppo.attack_value sa_ppo.adaptive_epsilon
    sa_ppo.epsilon_schedule sa_ppo.epsilon_final sa_ppo.sappo_mode sa_ppo.attack_mask
    pbt.population_size pbt.perturbation_interval pbt.exploit_method pbt.explore_method
    pbt.truncation_ratio pbt.metric_name pbt.metric_mode pbt.ready_percentage
    pbt.optimizer_exploit_strategy pbt.hyperparam.min pbt.hyperparam.max pbt.hyperparam.values
    pbt.hyperparam.perturbation_factor pbt.hyperparam.resample_probability
    pbt.hyperparam.is_log_scale pbt.entropy_coef pbt.adversarial_epsilon obs_stats_update
"""

METRICS = """
    train/policy_loss train/value_loss train/entropy_loss train/value_target_scale train/ret_mean
    train/ret_std train/advantages_norm_max_abs train/advantages_norm_mean
    train/advantages_norm_std train/grad_norm_pre_clip train/grad_norm_post_clip
    train/lstm_grad_norm/* train/critic1_grad_norm train/critic2_grad_norm
    train/critics_grad_ratio lstm/h_mean_layer{l} lstm/h_std_layer{l} lstm/h_norm_layer{l}
    vgs/normalized_variance debug/vecnormalize_mean_drift debug/vecnormalize_std_drift
    debug/cvar_gradient_norm train/advantages_mean_raw train/advantages_std_raw
    train/advantages_std_clamped train/log_ratio_mean train/log_ratio_std train/log_ratio_max_abs
    train/log_ratio_extreme_fraction train/approx_kl train/approx_kl_raw train/approx_kl_median
    train/approx_kl_p90 train/approx_kl_max train/approx_kl_ema train/clip_fraction
    train/ratio_mean train/ratio_std train/explained_variance train/ev/global
    train/ev/mean_grouped train/ev/median_grouped train/ev/corr train/ev/bias train/ev/n_samples
    train/ent_coef train/ent_coef_nominal train/ent_coef_eff train/ent_coef_min
    train/ent_coef_initial train/ent_coef_final train/policy_entropy train/policy_entropy_raw
    train/policy_entropy_slope train/entropy_plateau train/entropy_decay_start_update
    train/cvar_empirical train/cvar_empirical_ema train/cvar_raw train/cvar_unit
    train/cvar_limit_unit train/cvar_gap train/cvar_gap_unit train/cvar_violation
    train/cvar_violation_ema train/cvar_lambda train/cvar_penalty_active
    train/cvar_weight_effective train/cvar_term train/cvar_loss train/cvar_constraint
    debug/cvar_dual_update_source train/vf_clip_active train/vf_clip_effective
    train/vf_clip_warmup_active train/vf_clip_ev_gate_active train/value_quantile_p50
    train/value_quantile_iqr train/value_quantile_iqr_norm train/v_min train/v_max
    train/value_target_below_frac train/value_target_above_frac train/twin_critics/critic_1_loss
    train/twin_critics/critic_2_loss train/twin_critics/loss_diff train/policy_loss_ppo
    train/policy_loss_bc train/policy_loss_bc_weighted train/policy_loss_kl_penalty
    train/policy_bc_coef train/policy_bc_vs_ppo_ratio train/kl_* train/optimizer_lr*
    train/expected_batch_size train/actual_batch_size train/microbatch_size train/grad_accum_steps
    vgs/stochastic_var_p10 vgs/stochastic_var_p50 vgs/stochastic_var_p90 vgs/stochastic_var_mean
    vgs/grad_norm_ema vgs/grad_max_ema vgs/scaling_factor vgs/step_count vgs/warmup_active
    sa_ppo/enabled sa_ppo/update_count sa_ppo/adversarial_samples sa_ppo/clean_samples
    sa_ppo/adversarial_ratio sa_ppo/robust_kl_penalty sa_ppo/current_epsilon sa_ppo/attack_count
    sa_ppo/avg_perturbation_norm sa_ppo/policy_loss sa_ppo/value_loss sa_ppo/entropy
    pbt/population_size pbt/ready_members pbt/mean_performance pbt/std_performance
    pbt/min_performance pbt/max_performance pbt/exploitation_count pbt/exploration_count
    rollout/win_rate rollout/win_rate_wilson_low rollout/win_rate_wilson_high
    rollout/win_rate_cp_low rollout/win_rate_cp_high rollout/steps_to_win_* rollout/policy_entropy
    rollout/raw_reward_mean_in_fraction config/* lstm/h_norm_pre_reset lstm/h_norm_post_reset
    train/clip_active_frac/norm train/clip_active_frac/vf train/clip_active_frac/limit
    train/clip_active_frac/quantile train/clip_active_frac/ratio
    rollout/reward_costs_fraction_mean rollout/reward_costs_fraction_p95
    rollout/reward_costs_fraction_max rollout/reward_costs_nonfinite_count train/clip_dominant
    train/twin_critics/value_gap train/return_stats/decode_encode_mismatch vgs/noise_fraction
    vgs/effect_on_update
"""

WARNINGS = """
    warn/excessive_return_scaling
    warn/ret_std_triggering_scaling
    ALERT gradient explosion
    ALERT advantage outliers
    ALERT loss
    post-clip invariant
    warn/twin_critics_gradient_imbalance
    warn/critic1_vanishing_gradients
    warn/critic2_vanishing_gradients
    persistent imbalance
    error/log_ratio_nonfinite
    error/log_ratio_nan_count
    error/log_ratio_inf_count
    warn/log_ratio_concerning
    warn/log_ratio_severe_instability
    CVaR alpha monitor
    cvar_use_constraint assertion
    PBT learning-rate log line
    VGS healthy band 0.1 to 1
    warn/explained_variance_low
    warn/ret_std_out_of_range
    warn/optimizer_lr_floor_hit
    warn/empty_rollout_buffer
    warn/empty_microbatch_group
    warn/microbatch_size_mismatch
    warn/advantages_std_below_floor
    warn/normalization_mean_nonzero
    value targets outside the support
    warn/missing_terminal_obs
"""

TESTS = """
    test_vgs_anticorrelated_gradients test_return_snapshot_freshness
    test_vgs_stochastic_variance_computation test_vgs_variance_temporal_not_spatial
    test_vgs_variance_parameter_size_invariant test_twin_critics_gradient_norms_logged
    test_twin_critics_gradient_imbalance_warning test_twin_critics_vanishing_gradients_warning
    test_fixes_integration test_advantage_normalization_zero_std
    test_cvar_constraint_gradient_flow test_entropy_multidim_action test_twin_critics_vf_clipping
    test_policy_gradient_explosion_detection test_pbt_lr_applied_with_reset_strategy
    test_pbt_lr_applied_with_copy_strategy test_pbt_lr_fallback_when_hyperparams_missing
"""

IDENTIFIERS = """
    _activate_return_scale_snapshot _ret_mean_snapshot _ret_std_snapshot _value_scale_std_floor
    _value_norm_clip_min/max _value_clip_limit_scaled _critic_ce_normalizer
    _reset_lstm_states_for_done_envs _clone_states_to_device recurrent_initial_state
    _last_lstm_states predict_values _twin_critics_loss _use_twin_critics _quantile_huber_loss
    _cvar_from_quantiles _to_raw_returns weighted_entropy last_value_quantiles valid_indices
    sample_weight bucket_target_weight _param_grad_mean_ema _param_grad_sq_ema
    _entropy_decay_start_update _last_entropy_slope entropy_plateau_tolerance
    log_ratio_extreme_count terminal_observation reward_costs_fraction member.hyperparams
    optimizer_strategy ReturnNormalizer.encode/decode VGS.update_statistics VGS.scale_gradients
    VGS.step VGS.get_normalized_variance VGS.get_scaling_factor VGS.state_dict VGS.relink
    step_scale schedules.begin
"""

DUTIES = """
    state which variance VGS measures
    history of the VGS versions
    compare before and after a VGS fix
    derivation and value test for statistical code
    profile observation drift and hidden state
    external alert for critics_grad_ratio
    grep recipe for PBT log lines
    watch the CVaR gradient below alpha 0.01
    return normalisation in one function, clipping documented
    split the monolith
    before calling something a bug
"""

EXPECTED = {
    "Components": COMPONENTS.strip().splitlines(),
    "Settings": SETTINGS.split(),
    "Metrics": METRICS.split(),
    "Warnings, errors and thresholds": WARNINGS.strip().splitlines(),
    "Tests": TESTS.split(),
    "Identifiers": IDENTIFIERS.split(),
    "Duties": DUTIES.strip().splitlines(),
}
EXPECTED = {section: [name.strip() for name in names] for section, names in EXPECTED.items()}


class Row(NamedTuple):
    name: str
    ours: list[str]
    how: str
    why: str


def rows_of(text):
    """Return the rows of every section, by its title."""
    sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: list(_rows(body)) for title, body in zip(sections[::2], sections[1::2], strict=True)
    }


def _rows(body):
    for block in re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE):
        lines = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            for line in block.splitlines()
        ]
        assert lines[0] == HEADER, f"a table with the columns {lines[0]}"
        for name, ours, how, why in lines[2:]:
            yield Row(name.strip("`"), re.findall(r"`([^`]+)`", ours), how, why)


def settings(model=TrainConfig, prefix=""):
    """Yield the path of every setting."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Config):
            yield from settings(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


@cache
def known_settings():
    return frozenset(settings())


@cache
def known_metrics():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^\| `([^`]+)`", page, re.MULTILINE))


@cache
def known_tests():
    paths = (ROOT / "tests").rglob("test_*.py")
    return frozenset().union(*(functions(str(path.relative_to(ROOT))) for path in paths))


def is_importable(name):
    """Return whether a dotted name leads to something: module, then attributes or fields."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part) and part not in getattr(value, "_fields", ()):
                return False
            value = getattr(value, part, None)
        return True
    return False


EXISTS = {
    "Components": lambda name: (ROOT / name).is_file(),
    "Settings": lambda name: name in known_settings() or is_importable(name),
    "Metrics": lambda name: name in known_metrics(),
    "Warnings, errors and thresholds": lambda name: name in known_metrics(),
    "Tests": lambda name: name in known_tests(),
    "Identifiers": is_importable,
    "Duties": lambda name: (ROOT / name).is_file(),
}
BY_NAME = {"Settings", "Metrics", "Tests", "Identifiers"}
"""Sections whose names are names of ours too, letter by letter, where a row says `same`."""


def name_problems(section, rows):
    count = Counter(row.name for row in rows)
    expected = EXPECTED[section]
    missing = [f"{name} is missing" for name in expected if not count[name]]
    unknown = [f"{name} is unknown" for name in count if name not in expected]
    return missing + unknown + [f"{name} stands {n} times" for name, n in count.items() if n > 1]


def row_problems(section, row):
    """Return what a row says that is not so, or does not say."""
    here = row.how in {"same", "renamed"}
    unexplained = row.how != "same" and len(row.why) <= 10
    faults = {
        f"{row.how!r} is none of {sorted(HOWS)}": row.how not in HOWS,
        "no name of ours": here and not row.ours,
        "a name of ours though it is to come": row.how == "later" and row.ours,
        "no reason": unexplained,
        "another name though it says `same`": _differs(section, row),
    }
    problems = [fault for fault, holds in faults.items() if holds]
    problems += [f"no {name}" for name in row.ours if not EXISTS[section](name)]
    return [f"{row.name}: {problem}" for problem in problems]


def _differs(section, row):
    if row.how != "same" or section not in BY_NAME:
        return False
    if "*" in row.name:
        stem = row.name.partition("*")[0]
        return not all(name.startswith(stem) for name in row.ours)
    last = re.split(r"[./]", row.name)[-1]
    return [re.split(r"[./]", name)[-1] for name in row.ours] != [last]


SECTIONS = rows_of(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_every_section():
    assert list(SECTIONS) == list(EXPECTED)
    assert {title: len(names) for title, names in EXPECTED.items()} == {
        "Components": 33,
        "Settings": 189,
        "Metrics": 152,
        "Warnings, errors and thresholds": 29,
        "Tests": 17,
        "Identifiers": 42,
        "Duties": 11,
    }


@pytest.mark.parametrize("section", EXPECTED)
def test_every_name_of_the_specification_has_exactly_one_row(section):
    problems = name_problems(section, SECTIONS[section])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("section", EXPECTED)
def test_every_name_of_ours_exists(section):
    problems = [problem for row in SECTIONS[section] for problem in row_problems(section, row)]
    assert not problems, "\n".join(problems)


def test_every_setting_that_has_another_name_says_which():
    """A reader who comes with a configuration of the earlier bot finds each of its names."""
    renamed = {row.name: row.ours for row in SECTIONS["Settings"] if row.how == "renamed"}
    assert renamed["cql_alpha"] == ["bc.awr_coef"]
    assert renamed["vgs.eps"] == ["vgs.eps_rel"]
    assert renamed["optimizer.lr"] == ["ppo.learning_rate"]


# ------------------------------------------------------------------ the checks see what is planted

GOOD = Row("clip_range", ["ppo.clip_range"], "same", "–")
PLANTED = {
    "no ppo.clip_rang": GOOD._replace(ours=["ppo.clip_rang"]),
    "no stormsail.optim.UPGDX": GOOD._replace(ours=["stormsail.optim.UPGDX"], how="renamed"),
    "'akin' is none of": GOOD._replace(how="akin"),
    "no name of ours": GOOD._replace(ours=[]),
    "a name of ours though it is to come": GOOD._replace(how="later", why="a part that is to come"),
    "no reason": GOOD._replace(how="absent"),
    "another name though it says `same`": GOOD._replace(ours=["ppo.gamma"]),
}


def test_a_wrong_row_is_noticed():
    assert row_problems("Settings", GOOD) == []
    for words, row in PLANTED.items():
        assert any(words in problem for problem in row_problems("Settings", row)), words


def test_a_missing_a_repeated_and_an_unknown_name_are_noticed():
    rows = SECTIONS["Tests"]
    name = rows[0].name
    assert name_problems("Tests", rows[1:]) == [f"{name} is missing"]
    assert name_problems("Tests", [*rows, rows[0]]) == [f"{name} stands 2 times"]
    stranger = rows[0]._replace(name="test_nothing")
    assert name_problems("Tests", [*rows, stranger]) == ["test_nothing is unknown"]
