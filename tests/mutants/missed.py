"""Bugs of findings whose tests let them pass once: of nine rows, with who notices them now."""

from mutants.harness import Mutant
from mutants.nodes import unit

MISSED = (
    # --- S0-3: decode with what was encoded
    Mutant(
        "scale-moves-with-the-mean-alone",
        "S0-3",
        "algorithms/update/popart.py",
        "moves = (old_mean != new.mean) | (old_std != new.std)",
        "moves = old_mean != new.mean",
        unit(
            "update/popart", "test_a_change_of_the_spread_alone_moves_the_heads", part="algorithms"
        ),
    ),
    Mutant(
        "scale-moments-of-a-squared-loss-stay",
        "S0-3",
        "algorithms/update/popart.py",
        "    _rescale_moments(agent, optimizer, old_std, scale.std)\n",
        "",
        unit("update/popart", "test_moments_of_a_squared_loss_follow_the_units", part="algorithms"),
    ),
    Mutant(
        "order-targets-on-the-old-atoms",
        "S0-3",
        "algorithms/ppo.py",
        "return encoded(agent, target, config), predicted",
        "return encoded(agent, estimates.target, config), predicted",
        unit("ppo", "test_targets_of_a_categorical_critic_follow_its_atoms", part="algorithms"),
    ),
    Mutant(
        "order-first-units-after-the-estimates",
        "S0-3",
        "algorithms/ppo.py",
        "            initial_scale(agent, rollout, config)\n"
        "        assessment = self._assess(rollout)\n",
        "            pass\n"
        "        assessment = self._assess(rollout)\n"
        "        if self.update_count == 0:\n"
        "            initial_scale(agent, rollout, config)\n",
        unit(
            "update/popart",
            "test_only_the_first_update_takes_its_units_from_rewards_alone",
            part="algorithms",
        ),
    ),
    Mutant(
        "mismatch-compared-with-itself",
        "S0-3",
        "algorithms/telemetry/rollout.py",
        "(now - then).abs() for now, then in",
        "(then - then).abs() for now, then in",
        unit(
            "telemetry/metrics",
            "test_values_are_decoded_with_what_targets_were_encoded_with",
            part="algorithms",
        ),
    ),
    # --- S0-7: gradients of both critics
    Mutant(
        "gradient-norms-of-refused-steps",
        "S0-7",
        "algorithms/telemetry/learning.py",
        "averages = share(torch.where(stepped, norms, 0.0).sum(1), stepped.sum())",
        "averages = norms.mean(1)",
        unit(
            "telemetry/metrics",
            "test_a_refused_step_is_counted_and_leaves_the_norms_alone",
            part="algorithms",
        ),
    ),
    Mutant(
        "gradient-ratio-of-a-critic-without-gradient",
        "S0-7",
        "algorithms/telemetry/learning.py",
        "share(first, second)\n    return values\n",
        "first / (second + 1e-8)\n    return values\n",
        unit(
            "telemetry/metrics", "test_twin_critics_vanishing_gradients_warning", part="algorithms"
        ),
    ),
    Mutant(
        "vanishing-alarm-reads-the-first-critic",
        "S0-7",
        "monitors/alarm_rules.py",
        'f"train/critic{number}_grad_norm", math.nan) < VANISHING',
        'f"train/critic1_grad_norm", math.nan) < VANISHING',
        unit(
            "telemetry/metrics", "test_twin_critics_vanishing_gradients_warning", part="algorithms"
        ),
    ),
    # --- S3-2: advantages without spread
    Mutant(
        "advantage-resolution-not-passed-on",
        "S3-2",
        "algorithms/update/estimates.py",
        "            magnitude=magnitude,\n",
        "",
        unit(
            "update/estimates",
            "test_the_floor_knows_the_resolution_of_the_values",
            part="algorithms",
        ),
    ),
    Mutant(
        "advantage-mode-not-passed-on",
        "S3-2",
        "algorithms/update/estimates.py",
        '            mode="floor" if no_earlier else ppo.advantage_mode,\n',
        "",
        unit(
            "update/estimates",
            "test_every_mode_does_what_it_says_where_there_is_no_spread",
            part="algorithms",
        ),
    ),
    Mutant(
        "reported-floor-of-ignored-rows",
        "S3-2",
        "algorithms/telemetry/rollout.py",
        "sizes = [largest(part.abs(), weight > 0.0) for part in both]",
        "sizes = [part.abs().max().double() for part in both]",
        unit(
            "telemetry/report_formulas",
            "test_the_reported_floor_is_the_resolution_of_what_counts",
            part="algorithms",
        ),
    ),
    Mutant(
        "reported-spread-without-its-floor",
        "S3-2",
        "algorithms/telemetry/rollout.py",
        "torch.maximum(own, floor)",
        "own",
        unit(
            "telemetry/metrics",
            "test_a_spread_of_advantages_below_the_floor_is_shown_and_warned_of",
            part="algorithms",
        ),
    ),
    # --- S3-6: log ratios that are not finite
    Mutant(
        "epochs-infinite-ratio-voids-nothing",
        "S3-6",
        "algorithms/update/epochs.py",
        "bool(total.nan + total.inf > 0)",
        "bool(total.nan > 0)",
        unit(
            "update/epochs", "test_an_infinite_ratio_voids_its_minibatch_as_well", part="algorithms"
        ),
    ),
    Mutant(
        "loss-stops-only-if-all-are-bad",
        "S3-6",
        "algorithms/update/losses.py",
        'if rule == "raise" and bool(bad.any()):',
        'if rule == "raise" and bool(bad.all()):',
        unit("update/losses", "test_a_bad_ratio_may_stop_everything", part="algorithms"),
    ),
    Mutant(
        "loss-largest-ratio-of-ignored-rows",
        "S3-6",
        "algorithms/update/losses.py",
        "log_ratio_max=torch.where(weight > 0.0, log_ratio.abs(), 0.0).max()",
        "log_ratio_max=log_ratio.abs().max()",
        unit(
            "update/losses",
            "test_rows_of_weight_0_change_neither_a_number_nor_a_gradient",
            part="algorithms",
        ),
    ),
    Mutant(
        "alarm-infinite-ratio-is-silent",
        "S3-6",
        "monitors/alarm_rules.py",
        'names = ("train/log_ratio_nan_count", "train/log_ratio_inf_count")',
        'names = ("train/log_ratio_nan_count",)',
        unit(
            "alarms",
            "test_an_alarm_sounds_beyond_its_threshold_and_only_when_that_begins",
            part="monitors",
        ),
    ),
    # --- S4-1: floors of the return scale
    Mutant(
        "adaptive-floor-is-the-median",
        "S4-1",
        "algorithms/update/return_statistics.py",
        "torch.maximum(floor, _ADAPTIVE_SHARE * median)",
        "torch.maximum(floor, median)",
        unit(
            "update/return_statistics",
            "test_the_adaptive_floor_is_a_tenth_of_the_median_spread",
            part="algorithms",
        ),
    ),
    Mutant(
        "first-units-below-the-floor",
        "S4-1",
        "algorithms/update/popart.py",
        "if not std > max(config.returns.std_floor, abs(float(seen.mean)) * _ROUNDING):",
        "if not std > 0.0:",
        unit("update/popart", "test_a_first_spread_below_the_floor_is_none", part="algorithms"),
    ),
    # --- S4-R1: levels of alarms
    Mutant(
        "alarm-level-of-advantages-one-higher",
        "S4-R1 S4-O2",
        "monitors/alarm_rules.py",
        '_above("train/advantages_norm_max_abs", 20.0)',
        '_above("train/advantages_norm_max_abs", 21.0)',
        unit(
            "alarm_levels",
            "test_a_level_is_exact_and_its_alarm_lasts_as_long_as_it_is_passed",
            part="monitors",
        ),
    ),
    Mutant(
        "alarm-lasts-one-update",
        "S4-R1",
        "monitors/alarms.py",
        "rule.name for rule in RULES if self._streaks.get(rule.name, 0) >= rule.patience",
        "rule.name for rule in RULES if self._streaks.get(rule.name, 0) == rule.patience",
        unit(
            "alarm_levels",
            "test_a_level_is_exact_and_its_alarm_lasts_as_long_as_it_is_passed",
            part="monitors",
        ),
    ),
    Mutant(
        "alarm-unknown-loss-is-silent",
        "S4-R1",
        "monitors/alarm_rules.py",
        "not abs(metrics[name]) <= 1000.0",
        "abs(metrics[name]) > 1000.0",
        unit(
            "alarms", "test_any_loss_that_is_unknown_or_large_in_size_is_an_alert", part="monitors"
        ),
    ),
    Mutant(
        "alarm-streaks-not-restored",
        "S4-R1",
        "monitors/alarms.py",
        "self._streaks = dict(saved.streaks)",
        "self._streaks = {}",
        unit("alarms", "test_resumed_alarms_sound_as_if_nothing_had_happened", part="monitors"),
    ),
    Mutant(
        "largest-norm-is-the-mean",
        "S4-R1",
        "algorithms/telemetry/learning.py",
        'values[f"{label}_max"] = largest(row, stepped)',
        'values[f"{label}_max"] = values[label]',
        unit(
            "telemetry/metrics",
            "test_the_largest_norm_of_an_update_is_found_among_its_steps",
            part="algorithms",
        ),
    ),
    # --- X7: one quantity, one estimate
    Mutant(
        "risk-raw-tail-followed",
        "X7",
        "algorithms/risk/control.py",
        "new = tail.empirical\n",
        "new = tail.raw\n",
        unit(
            "risk/control",
            "test_the_multiplier_follows_the_winsorised_estimate_and_both_are_reported",
            part="algorithms",
        ),
    ),
    Mutant(
        "risk-raw-tail-winsorised",
        "X7",
        "algorithms/risk/control.py",
        "raw, percent = _cvar(sample, alpha), config.cvar_winsor_pct",
        "percent = config.cvar_winsor_pct\n        raw = _cvar(winsorised(sample, percent), alpha)",
        unit(
            "risk/control",
            "test_the_multiplier_follows_the_winsorised_estimate_and_both_are_reported",
            part="algorithms",
        ),
    ),
    Mutant(
        "risk-violation-of-another-estimate",
        "X7",
        "algorithms/telemetry/risk.py",
        "_positive(floor - tail.empirical)",
        "_positive(floor - tail.raw)",
        unit(
            "telemetry/telemetry_risk",
            "test_the_violation_is_that_of_the_estimate_that_is_followed",
            part="algorithms",
        ),
    ),
    Mutant(
        "risk-agent-kept-by-the-limit-of-another-quantity",
        "X7",
        "algorithms/config/risk.py",
        'held = self.cvar_use_constraint and self.cvar_quantity == "episode_return"',
        "held = self.cvar_use_constraint",
        unit(
            "run/best_agent",
            "test_only_a_constraint_on_whole_episodes_is_a_limit_of_the_kept_agent",
            part="algorithms",
        ),
    ),
    # --- X16: k3, and who reads it
    Mutant(
        "reported-divergence-is-the-first-estimate",
        "X16",
        "algorithms/telemetry/learning.py",
        '"train/approx_kl": average.kl,',
        '"train/approx_kl": -average.log_ratio,',
        unit(
            "telemetry/report_formulas",
            "test_the_divergence_is_k3_and_the_raw_one_k1",
            part="algorithms",
        ),
    ),
    Mutant(
        "reported-penalty-of-the-first-estimate",
        "X16",
        "algorithms/telemetry/learning.py",
        "penalty = now.kl_beta * average.analytic_kl",
        "penalty = -now.kl_beta * average.log_ratio",
        unit(
            "telemetry/report_formulas",
            "test_the_reported_penalty_is_in_closed_form",
            part="algorithms",
        ),
    ),
    Mutant(
        "kl-average-ignored",
        "X16",
        "algorithms/update/kl_control.py",
        "measured = self.average if config.use_ema else divergence",
        "measured = divergence",
        unit(
            "update/kl_control",
            "test_without_the_average_every_minibatch_is_judged_by_itself",
            part="algorithms",
        ),
    ),
    Mutant(
        "epochs-all-have-the-first-target",
        "X16",
        "algorithms/update/epochs.py",
        "        control.begin_epoch(epoch)\n",
        "",
        unit("update/epochs", "test_each_epoch_has_the_target_of_its_number", part="algorithms"),
    ),
    Mutant(
        "kl-unknown-divergence-goes-on",
        "X16",
        "algorithms/update/kl_control.py",
        "if not divergence < config.kl_absolute_stop_factor * self.target:",
        "if divergence >= config.kl_absolute_stop_factor * self.target:",
        unit("update/kl_control", "test_an_unknown_divergence_stops", part="algorithms"),
    ),
    # --- X19: unknown stays unknown
    Mutant(
        "reported-explained-variance-falls-back",
        "X19",
        "algorithms/telemetry/rollout.py",
        "whole = seen.estimates.explained_variance\n",
        "whole = seen.estimates.explained_variance.nan_to_num()\n",
        unit(
            "telemetry/report_formulas",
            "test_an_unknown_explained_variance_is_unknown_everywhere",
            part="algorithms",
        ),
    ),
    Mutant(
        "kept-explained-variance-falls-back",
        "X19",
        "algorithms/ppo.py",
        "self.explained_variance = explained_variance",
        "self.explained_variance = float(done.estimates.explained_variance.nan_to_num())",
        unit(
            "telemetry/report_formulas",
            "test_an_unknown_explained_variance_is_unknown_everywhere",
            part="algorithms",
        ),
    ),
    Mutant(
        "grouped-explained-variance-falls-back",
        "X19",
        "algorithms/telemetry/rollout.py",
        "return torch.where(meaningful, 1.0 - missed / wanted, torch.nan)",
        "return torch.where(meaningful, 1.0 - missed / wanted, 0.0)",
        unit(
            "telemetry/metrics",
            "test_a_group_without_spread_or_samples_explains_nothing",
            part="algorithms",
        ),
    ),
    Mutant(
        "unknown-groups-averaged",
        "X19",
        "algorithms/telemetry/rollout.py",
        '"train/ev/mean_grouped": mean(torch.where(known, grouped, 0.0), known.double())',
        '"train/ev/mean_grouped": torch.where(known, grouped, 0.0).mean()',
        unit(
            "telemetry/report_formulas",
            "test_groups_without_spread_do_not_count_in_the_mean_of_the_groups",
            part="algorithms",
        ),
    ),
    Mutant(
        "value-clip-gate-open-on-unknown",
        "X19",
        "algorithms/update/schedules.py",
        "if explained_variance is None or not math.isfinite(explained_variance):\n"
        "        return False",
        "if explained_variance is None or not math.isfinite(explained_variance):\n"
        "        return True",
        unit(
            "update/schedules",
            "test_value_clipping_waits_for_critics_that_are_known_to_be_good",
            part="algorithms",
        ),
    ),
    Mutant(
        "alarm-on-unknown-explained-variance",
        "X19",
        "monitors/alarm_rules.py",
        'metrics.get("train/explained_variance", math.nan) <= 0.3',
        'not metrics.get("train/explained_variance", math.nan) > 0.3',
        unit(
            "alarms", "test_metrics_that_are_unknown_or_missing_meet_no_condition", part="monitors"
        ),
    ),
)
