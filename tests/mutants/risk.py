"""The bugs of the CVaR control: outcomes, multiplier, gate, risk advantage, mixture, saving."""

from mutants.harness import Mutant
from mutants.nodes import integration, law, unit

TAIL = "functional/risk/tail.py"
FORMULA = "functional/risk/advantage.py"
SETTINGS = "algorithms/config/risk.py"
RUN_SETTINGS = "algorithms/config/__init__.py"
CONTROL = "algorithms/risk/control.py"
WINDOW = "algorithms/risk/window.py"
DUAL = "algorithms/risk/multiplier.py"
ADVANTAGE = "algorithms/risk/advantage.py"
GRADIENT = "algorithms/risk/gradient.py"
ORDER = "algorithms/ppo.py"
RULES = "monitors/alarm_rules.py"


def control(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the control."""
    return unit(name, *tests, part="algorithms")


REPLAY = control("risk/control", "test_updates_are_those_of_the_replay")
RESUMED = control(
    "risk/control", "test_a_resumed_control_goes_on_with_window_average_gate_and_multiplier"
)
ONLY_CRITICS = control(
    "risk/waiting", "test_neither_multiplier_nor_ramp_moves_while_only_critics_learn"
)
TOO_FEW = control("risk/waiting", "test_before_there_are_enough_episodes_only_the_window_moves")
MICRO = control(
    "risk/gradient",
    "test_micro_batches_give_the_norm_of_the_whole_and_hold_no_more_than_their_sequences",
)
LOOK = control(
    "run/evaluate",
    "test_the_kept_agent_is_the_best_of_those_that_keep_the_limit_of_the_settings",
)
REFUSED = control("ppo", "test_settings_that_cannot_be_together_are_refused_by_name")

RISK = (
    # --- outcomes
    Mutant(
        "risk-window-clipped",
        "M03 X7",
        WINDOW,
        "total[rollout.ended].tolist()",
        "total[rollout.ended].clamp(min=-1.0).tolist()",
        control("risk/window", "test_the_window_keeps_the_last_episodes_across_rollouts"),
    ),
    Mutant(
        "risk-time-outs-left-out",
        "risk",
        WINDOW,
        "total[rollout.ended].tolist()",
        "total[rollout.terminated].tolist()",
        control("risk/window", "test_a_time_out_ends_an_episode_like_a_termination"),
    ),
    Mutant(
        "risk-episodes-begin-with-the-rollout",
        "risk",
        WINDOW,
        "total = rollout.return_so_far.double() + rollout.reward.double()\n        self._kept",
        "total = (rollout.return_so_far - rollout.return_so_far[0]).double()\n"
        "        total = total + rollout.reward.double()\n"
        "        self._kept",
        control(
            "risk/window", "test_an_episode_that_began_in_an_earlier_rollout_counts_as_a_whole"
        ),
    ),
    Mutant(
        "risk-sums-run-into-the-next-episode",
        "risk",
        WINDOW,
        "going = going & ~ended[k : k + rows]",
        "pass",
        control("risk/window", "test_sums_of_rewards_are_those_of_the_loop"),
    ),
    Mutant(
        "risk-acts-on-a-handful",
        "risk",
        CONTROL,
        "is_ready=count >= config.least_samples,",
        "is_ready=True,",
        REPLAY,
    ),
    Mutant(
        "risk-episodes-for-every-quantity",
        "M08 X7",
        CONTROL,
        'if config.cvar_quantity == "episode_return":',
        "if True:",
        control("risk/control", "test_parts_of_episodes_are_taken_from_the_rollout_at_hand"),
    ),
    Mutant(
        "risk-tail-winsorised",
        "X7",
        SETTINGS,
        "if self.cvar_winsor_pct > most:",
        "if self.cvar_winsor_pct > 100.0:",
        REFUSED,
    ),
    Mutant(
        "cvar-error-not-divided-by-alpha",
        "risk",
        TAIL,
        "influence = level + (sample.double() - level).clamp(max=0.0) / alpha",
        "influence = level + (sample.double() - level).clamp(max=0.0)",
        law("risk", "test_the_error_of_the_empirical_cvar_equals_its_definition"),
    ),
    # --- the multiplier
    Mutant(
        "risk-gap-turned-round",
        "risk",
        CONTROL,
        "return self._limit - (math.nan if self.average is None else self.average), SOURCES[1]",
        "return (math.nan if self.average is None else self.average) - self._limit, SOURCES[1]",
        REPLAY,
    ),
    Mutant(
        "risk-prediction-followed",
        "X7",
        CONTROL,
        "if self.config.risk.cvar_use_predicted_for_dual:",
        "if True:",
        control("risk/control", "test_what_happened_is_followed_and_not_what_was_predicted"),
    ),
    Mutant(
        "risk-multiplier-stepped-twice",
        "M07 risk",
        CONTROL,
        "self.dual.step((gap + aim",
        "self.dual.step(gap / unit), self.dual.step((gap + aim",
        control("risk/control", "test_the_multiplier_moves_once_an_update"),
    ),
    Mutant(
        "risk-unit-of-another-quantity",
        "M08 X7",
        CONTROL,
        "unit = max(abs(config.cvar_limit or 0.0), tail.spread) or 1.0",
        "unit = float(agent.return_scale.std)",
        REPLAY,
    ),
    Mutant(
        "risk-integral-winds-up",
        "risk",
        DUAL,
        "if config.cvar_ki > 0.0 else math.inf",
        "if config.cvar_ki < 0.0 else math.inf",
        control("risk/multiplier", "test_a_long_calm_is_no_credit_and_a_long_break_no_debt"),
    ),
    Mutant(
        "risk-calm-is-credit",
        "risk",
        DUAL,
        "integral = _within(integral + gap, most)",
        "integral = min(integral + gap, most)",
        control("risk/multiplier", "test_a_long_calm_is_no_credit_and_a_long_break_no_debt"),
    ),
    Mutant(
        "risk-multiplier-unbounded",
        "risk",
        DUAL,
        "* growth\n    return _within(wanted, config.cvar_lambda_max), integral",
        "* growth\n    return _within(wanted, math.inf), integral",
        control("risk/multiplier", "test_the_pid_rule_by_hand"),
    ),
    Mutant(
        "risk-out-of-reach-unsaid",
        "risk",
        DUAL,
        "return (at_bound and self._stalls(1)) or self._stalls(_PATIENCE)",
        "return False",
        control(
            "risk/multiplier",
            "test_a_gap_that_stands_still_is_told_of_after_two_stretches_at_the_bound",
        ),
    ),
    Mutant(
        "risk-creeping-gap-is-closing",
        "risk",
        DUAL,
        "_CLOSING = 0.1",
        "_CLOSING = 0.0",
        control(
            "risk/multiplier",
            "test_a_gap_that_stands_still_is_told_of_after_two_stretches_at_the_bound",
        ),
    ),
    Mutant(
        "risk-out-of-reach-only-at-the-bound",
        "risk",
        DUAL,
        "return (at_bound and self._stalls(1)) or self._stalls(_PATIENCE)",
        "return at_bound and self._stalls(1)",
        control(
            "risk/multiplier",
            "test_with_more_pressure_to_come_a_gap_has_five_stretches_to_close_in",
        ),
    ),
    Mutant(
        "risk-out-of-reach-away-from-the-bound",
        "risk",
        DUAL,
        "self.bound_updates = self.bound_updates + 1 if at_bound else 0",
        "self.bound_updates += 1",
        control("risk/multiplier", "test_only_updates_at_the_bound_count_as_there"),
    ),
    Mutant(
        "risk-kept-limit-still-counts-as-broken",
        "risk",
        DUAL,
        "self.broken = [*self.broken, gap][-kept:] if gap > 0.0 else []",
        "self.broken = [*self.broken, gap][-kept:]",
        control(
            "risk/multiplier",
            "test_a_limit_that_was_kept_once_is_not_out_of_reach_for_six_stretches",
        ),
    ),
    # --- what waits
    Mutant(
        "risk-dual-moves-while-only-critics-learn",
        "risk",
        CONTROL,
        "if config.cvar_use_constraint and moves and math.isfinite(gap):",
        "if config.cvar_use_constraint and tail.is_ready and math.isfinite(gap):",
        ONLY_CRITICS,
    ),
    Mutant(
        "risk-dual-moves-without-episodes",
        "risk",
        CONTROL,
        "if config.cvar_use_constraint and moves and math.isfinite(gap):",
        "if config.cvar_use_constraint and trains_policy and math.isfinite(gap):",
        TOO_FEW,
    ),
    Mutant(
        "risk-ramp-runs-while-only-critics-learn",
        "risk",
        CONTROL,
        "share = self.gate.share(explained_variance) if moves else self.gate.standing",
        "share = self.gate.share(explained_variance) if tail.is_ready else self.gate.standing",
        ONLY_CRITICS,
    ),
    Mutant(
        "risk-ramp-runs-without-episodes",
        "risk",
        CONTROL,
        "share = self.gate.share(explained_variance) if moves else self.gate.standing",
        "share = self.gate.share(explained_variance) if trains_policy else self.gate.standing",
        TOO_FEW,
    ),
    Mutant(
        "risk-window-waits-for-the-policy",
        "risk",
        CONTROL,
        "        predicted = self._look(rollout, agent)\n",
        "        predicted = self._look(rollout, agent) if trains_policy else math.nan\n",
        ONLY_CRITICS,
    ),
    Mutant(
        "risk-ramp-forgotten-while-it-waits",
        "risk",
        CONTROL,
        "share = self.gate.share(explained_variance) if moves else self.gate.standing",
        "share = self.gate.share(explained_variance) if moves else 0.0",
        control(
            "risk/waiting",
            "test_a_multiplier_that_stands_acts_in_an_update_that_teaches_no_policy",
        ),
    ),
    Mutant(
        "risk-not-told-that-only-critics-learn",
        "risk",
        ORDER,
        "            trains_policy=now.trains_policy,\n            rate=",
        "            trains_policy=True,\n            rate=",
        ONLY_CRITICS,
    ),
    # --- the weight
    Mutant(
        "risk-gate-without-margin",
        "risk",
        CONTROL,
        "< config.cvar_activation_threshold - config.cvar_activation_hysteresis",
        "< config.cvar_activation_threshold",
        control("risk/activation", "test_it_opens_at_the_threshold_and_shuts_below_the_margin"),
    ),
    Mutant(
        "risk-ramp-does-not-begin-again",
        "risk",
        CONTROL,
        "self.updates = self.updates + 1 if self.is_open else 0",
        "self.updates += int(self.is_open)",
        control(
            "risk/activation",
            "test_the_ramp_counts_updates_since_it_opened_and_begins_again",
        ),
    ),
    Mutant(
        "risk-term-unbounded",
        "risk",
        CONTROL,
        "return bound / abs(term) if weight * abs(term) > bound else weight",
        "return weight",
        control("risk/control", "test_the_mean_term_is_bounded_once_for_the_whole_batch"),
    ),
    # --- the advantage
    Mutant(
        "risk-budget-forgets-the-return-so-far",
        "X3",
        ADVANTAGE,
        "budget = (level - rollout.return_so_far)",
        "budget = (level - 0.0 * rollout.return_so_far)",
        control("risk/advantage", "test_the_budget_form_is_that_of_the_loop"),
    ),
    Mutant(
        "risk-budget-adds-the-return-so-far",
        "X3",
        ADVANTAGE,
        "budget = (level - rollout.return_so_far)",
        "budget = (level + rollout.return_so_far)",
        integration(
            "exact_risk_problems",
            "test_the_budget_advantage_is_the_gradient_of_the_tail_of_whole_episodes",
        ),
    ),
    Mutant(
        "risk-trace-left-out",
        "risk",
        ADVANTAGE,
        "if trace is None:",
        "if True:",
        control("risk/advantage", "test_the_trace_form_is_that_of_the_loop"),
    ),
    Mutant(
        "risk-trace-of-another-decay",
        "risk",
        CONTROL,
        'trace = None if lam == "target" else Trace(self.config.ppo.gamma, lam)',
        'trace = None if lam == "target" else Trace(1.0, self.config.ppo.gae_lambda)',
        control("risk/control", "test_the_control_sums_changes_with_the_decay_that_is_set"),
    ),
    Mutant(
        "risk-trace-runs-into-the-next-episode",
        "X3",
        FORMULA,
        "return returns.gae(change, nothing, nothing, terminated, truncated, gamma=gamma, lam=lam)",
        "return returns.gae(change, nothing, nothing, terminated, terminated, "
        "gamma=gamma, lam=lam)",
        unit(
            "risk_trace", "test_a_time_out_stands_on_the_distribution_it_reached_and_cuts_the_trace"
        ),
    ),
    Mutant(
        "risk-trace-goes-on-after-the-end",
        "X3",
        FORMULA,
        "to_come = torch.where(terminated.unsqueeze(-1), 0.0, gamma * next_quantiles)",
        "to_come = gamma * next_quantiles",
        unit("risk_trace", "test_the_trace_by_hand"),
    ),
    Mutant(
        "risk-trace-of-atoms-goes-on-after-the-end",
        "X3",
        FORMULA,
        "after = torch.where(terminated, (reward - budget).clamp(max=0.0), continuing)",
        "after = continuing",
        integration(
            "exact_risk_problems",
            "test_every_trace_is_the_gradient_of_the_tail_of_whole_episodes",
        ),
    ),
    Mutant(
        "risk-trace-forgets-the-reward",
        "X3",
        FORMULA,
        "left = (budget - reward).unsqueeze(-1)",
        "left = budget.unsqueeze(-1)",
        integration(
            "exact_risk_problems",
            "test_every_trace_is_the_gradient_of_the_tail_of_whole_episodes",
        ),
    ),
    Mutant(
        "risk-trace-without-what-was-expected",
        "risk",
        FORMULA,
        "change = (after - expected) / alpha",
        "change = after / alpha",
        law("risk_trace", "test_the_trace_of_distributions_on_atoms_equals_its_definition"),
    ),
    Mutant(
        "risk-distribution-left-normalised",
        "X7",
        ADVANTAGE,
        'joint if agent.spec.critic.kind == "categorical" else agent.return_scale.decode(joint)',
        "joint",
        control("risk/advantage", "test_the_budget_form_is_that_of_the_loop"),
    ),
    Mutant(
        "risk-first-critic-read",
        "risk",
        ADVANTAGE,
        "joint = agent.network.critic.distribution(rollout.predicted)",
        "joint = agent.network.critic.distribution(rollout.predicted[..., :1, :])",
        control(
            "risk/advantage",
            "test_the_distribution_that_is_read_is_that_of_the_more_careful_critic_in_reward_units",
        ),
    ),
    Mutant(
        "risk-episode-not-divided-by-alpha",
        "risk",
        ADVANTAGE,
        "shortfall = (outcome - level).clamp(max=0.0) / alpha",
        "shortfall = (outcome - level).clamp(max=0.0)",
        control("risk/advantage", "test_the_episode_form_is_that_of_the_loop"),
    ),
    Mutant(
        "risk-mean-of-tails-predicted",
        "risk",
        ADVANTAGE,
        "return float(risk.cvar(first.flatten(), alpha=alpha, estimator=estimator, weight=weight))",
        "return float(risk.cvar(first, alpha=alpha, estimator=estimator).mean())",
        control("risk/advantage", "test_the_tail_that_is_predicted_is_that_of_all_starts_mixed"),
    ),
    # --- who feels it
    Mutant(
        "risk-old-term-always",
        "M07 S3-3 X3",
        CONTROL,
        'legacy = config.cvar_policy_mode == "critic_legacy"',
        "legacy = True",
        control("risk/gradient", "test_cvar_constraint_gradient_flow"),
    ),
    Mutant(
        "risk-mixed-after-normalisation",
        "risk",
        "algorithms/update/estimates.py",
        "    return Normalised(advantage, used, after)\n",
        "    return Normalised(advantage + (mixed - estimates.raw_advantage), used, after)\n",
        control("risk/control", "test_the_advantages_are_mixed_before_they_are_normalised"),
    ),
    Mutant(
        "risk-slack-limit-acts",
        "risk",
        CONTROL,
        "return weight, weight + self.dual.multiplier if tail.is_ready else 0.0",
        "return weight, weight + self.dual.multiplier + 0.01",
        control("risk/control", "test_what_does_not_act_changes_no_bit"),
    ),
    Mutant(
        "risk-gradient-of-everything",
        "S4-R2 X21",
        GRADIENT,
        "term = -(log_prob - batch.log_prob).exp() * part",
        "term = -(log_prob - batch.log_prob).exp() * batch.advantage",
        control("risk/gradient", "test_the_norm_is_that_of_the_risk_term_alone"),
    ),
    Mutant(
        "risk-gradient-of-the-last-micro-batch",
        "risk",
        GRADIENT,
        "total[place] = total[place] + grad if place in total else grad",
        "total[place] = grad",
        MICRO,
    ),
    Mutant(
        "risk-gradient-of-all-at-once",
        "risk",
        GRADIENT,
        "config.ppo.microbatch_size or count",
        "count",
        MICRO,
    ),
    Mutant(
        "risk-for-a-mean",
        "risk",
        RUN_SETTINGS,
        "if not risk.watches:",
        "if True:",
        REFUSED,
    ),
    Mutant(
        "risk-below-resolution-unsaid",
        "S3-10",
        RULES,
        'return alpha < metrics.get("config/cvar_resolution", math.nan)',
        "return alpha < 0.0",
        unit("alarms", "test_a_level_below_one_quantile_is_said_with_its_cure", part="monitors"),
    ),
    # --- going on
    Mutant(
        "risk-window-not-restored",
        "risk",
        CONTROL,
        "self.window.replace(saved.window)",
        "pass",
        RESUMED,
    ),
    Mutant(
        "risk-multiplier-not-restored",
        "risk",
        CONTROL,
        "self.dual.restore(saved.dual)",
        "pass",
        RESUMED,
    ),
    Mutant(
        "risk-average-not-restored",
        "risk",
        CONTROL,
        "self.average = saved.average",
        "pass",
        RESUMED,
    ),
    Mutant(
        "risk-gate-not-restored",
        "risk",
        CONTROL,
        "self.gate.restore(saved.gate)",
        "pass",
        RESUMED,
    ),
    # --- the agent that is kept
    Mutant(
        "risk-best-agent-ignores-the-limit",
        "risk",
        "algorithms/run/records.py",
        "or (-breach, evaluation.score) > (-self.best_breach, self.best_score)",
        "or evaluation.score > self.best_score",
        control(
            "run/best_agent", "test_an_agent_that_keeps_the_limit_is_better_than_any_that_does_not"
        ),
    ),
    Mutant(
        "risk-best-agent-by-the-end-of-an-interval",
        "risk",
        "algorithms/run/evaluate.py",
        "max(0.0, limit - self.cvar)",
        "max(0.0, limit - self.cvar - 1.96 * self.cvar_error)",
        control("run/best_agent", "test_a_limit_is_kept_by_the_estimate_and_not_by_its_interval"),
    ),
    Mutant(
        "risk-room-below-the-limit-is-merit",
        "risk",
        "algorithms/run/evaluate.py",
        "max(0.0, limit - self.cvar)",
        "limit - self.cvar",
        control(
            "run/best_agent", "test_an_agent_that_keeps_the_limit_is_better_than_any_that_does_not"
        ),
    ),
    Mutant(
        "risk-best-agent-of-a-handful-of-episodes",
        "risk",
        "algorithms/config/run.py",
        "if self.episodes < least:",
        "if False:",
        control(
            "run/best_agent",
            "test_an_evaluation_that_cannot_tell_whether_the_limit_is_kept_is_refused",
        ),
    ),
    Mutant(
        "risk-limit-does-not-reach-the-evaluation",
        "risk",
        "algorithms/trainer.py",
        "is_best = self.records.add_evaluation(self.ppo.update_count, evaluation, limit=limit)",
        "is_best = self.records.add_evaluation(self.ppo.update_count, evaluation)",
        LOOK,
    ),
    Mutant(
        "risk-alpha-does-not-reach-the-evaluation",
        "risk",
        "algorithms/trainer.py",
        "            alpha=self.config.risk.cvar_alpha,\n",
        "",
        LOOK,
    ),
    # --- further forms and bounds
    Mutant(
        "risk-level-of-the-first-window-for-ever",
        "X3",
        CONTROL,
        "torch.full((), tail.level,",
        'torch.full((), self.__dict__.setdefault("first_level", tail.level),',
        control(
            "risk/advantage",
            "test_the_risk_of_every_update_is_that_below_the_level_of_its_own_window",
        ),
    ),
    Mutant(
        "risk-state-form-below-the-level-of-episodes",
        "X3",
        ADVANTAGE,
        "budget = risk.value_at_risk(own, alpha=alpha, weight=weight)",
        "budget = torch.full_like(own[..., 0], level)",
        control("risk/advantage", "test_the_state_form_is_that_of_the_loop"),
    ),
    Mutant(
        "risk-state-form-of-atoms-below-another-share",
        "X3",
        ADVANTAGE,
        "budget = risk.categorical_value_at_risk(own, agent.atoms.to(own.dtype), alpha=alpha)",
        "budget = risk.categorical_value_at_risk(own, agent.atoms.to(own.dtype), alpha=1 - alpha)",
        control("risk/advantage", "test_the_state_form_is_that_of_the_loop"),
    ),
    Mutant(
        "risk-budget-of-atoms-turned-round",
        "X3",
        FORMULA,
        "return ((target_probs.detach() - probs.detach()) * shortfall).sum(-1) / alpha",
        "return ((probs.detach() - target_probs.detach()) * shortfall).sum(-1) / alpha",
        integration(
            "exact_risk_problems",
            "test_the_budget_advantage_is_the_gradient_of_the_tail_of_whole_episodes",
        ),
    ),
    Mutant(
        "risk-budget-of-atoms-counts-gains",
        "X3",
        FORMULA,
        "shortfall = (atoms.detach() - budget.detach().unsqueeze(-1)).clamp(max=0.0)",
        "shortfall = atoms.detach() - budget.detach().unsqueeze(-1)",
        integration(
            "exact_risk_problems",
            "test_the_budget_advantage_is_the_gradient_of_the_tail_of_whole_episodes",
        ),
    ),
    Mutant(
        "risk-trace-of-quantiles-turned-round",
        "X3",
        FORMULA,
        "change = budget_advantage(\n        atoms, quantiles",
        "change = -budget_advantage(\n        atoms, quantiles",
        integration(
            "exact_risk_problems",
            "test_quantiles_of_equally_likely_outcomes_give_that_gradient_for_every_trace",
        ),
    ),
    Mutant(
        "risk-weight-above-its-cap",
        "risk",
        CONTROL,
        "weight = min(wanted * share, config.cvar_penalty_cap)",
        "weight = wanted * share",
        control("risk/control", "test_the_weight_is_ramped_and_bounded"),
    ),
    Mutant(
        "risk-multiplier-never-comes-down",
        "risk",
        DUAL,
        "integral = _within(integral + gap, most)",
        "integral = _within(integral + max(gap, 0.0), most)",
        integration(
            "exact_risk_problems",
            "test_a_limit_that_is_broken_at_first_and_slack_in_the_end_leaves_no_multiplier",
        ),
    ),
    # --- whose tail, and how sure
    Mutant(
        "risk-tail-of-clipped-rewards",
        "M03 risk",
        RUN_SETTINGS,
        'if self.task.name == "market" and clip is not None:',
        "if False:",
        control("risk/control", "test_a_tail_of_clipped_rewards_is_refused"),
    ),
    Mutant(
        "risk-outcomes-chosen-by-how-they-ended",
        "risk",
        WINDOW,
        "    rows = max(len(reward) - steps + 1, 0)\n    begun = rollout.length[:rows] > 0\n",
        "    rows = len(reward)\n"
        "    ends = ended.flip(0).cumsum(0).flip(0) > 0\n"
        "    early = torch.arange(rows)[:, None] <= rows - steps\n"
        "    begun = (rollout.length > 0) & (ends | early)\n"
        "    reward = torch.cat((reward, torch.zeros_like(reward[: steps - 1])))\n"
        "    ended = torch.cat((ended, torch.zeros_like(ended[: steps - 1])))\n",
        control(
            "risk/window",
            "test_ruin_is_as_frequent_among_the_sums_as_it_is",
            "test_rows_with_too_few_rows_left_count_in_no_case",
        ),
    ),
    Mutant(
        "risk-overlapping-sums-are-independent",
        "risk",
        CONTROL,
        "risk.empirical_cvar_error(sample, alpha=alpha, group=group)",
        "risk.empirical_cvar_error(sample, alpha=alpha)",
        control("risk/control", "test_parts_of_episodes_are_taken_from_the_rollout_at_hand"),
    ),
    Mutant(
        "cvar-error-squares-before-it-sums",
        "risk",
        TAIL,
        "sums, groups = _group_sums(centred, group)",
        "sums, groups = centred, centred.new_tensor(float(count))",
        (
            *unit("risk", "test_the_error_of_grouped_outcomes_by_hand"),
            *control(
                "risk/window",
                "test_the_stated_coverage_of_a_band_around_the_tail_of_sums_that_overlap",
            ),
        ),
    ),
    Mutant(
        "risk-coarse-tail-unsaid",
        "M04 risk",
        RULES,
        "return share <= alpha < 2.0 * share",
        "return False",
        unit(
            "alarms",
            "test_a_tail_of_fewer_than_two_quantiles_is_said_with_its_cure",
            part="monitors",
        ),
    ),
    Mutant(
        "risk-prediction-beside-another-quantity",
        "risk",
        "evaluation/report/training_charts.py",
        "_EPISODE if words == OUTCOMES[-1] else _TAIL",
        "_EPISODE",
        unit(
            "report/training_charts",
            "test_another_quantity_is_named_and_not_drawn_beside_returns_of_episodes",
            part="evaluation",
        ),
    ),
)
