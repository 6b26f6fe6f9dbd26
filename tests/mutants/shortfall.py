"""The bugs of limits that the values of actions keep: targets, share, rule of reach, saving."""

from mutants.harness import Mutant
from mutants.nodes import unit

CRITIC = "algorithms/risk/action_critic.py"
LIMIT = "algorithms/risk/limit.py"
DRAWS = "algorithms/risk/draws.py"
CONTROL = "algorithms/risk/control.py"
MEASURED = "algorithms/risk/report.py"
BUILD = "algorithms/risk/build.py"
VALUES = "modules/action_values.py"
LOSSES = "algorithms/update/losses.py"
ROLLOUT = "algorithms/update/rollout.py"
ORDER = "algorithms/ppo.py"
REPORT = "algorithms/telemetry/risk.py"
RULES = "monitors/alarm_rules.py"


def _bug(name: str, file: str, old: str, new: str, module: str, *tests: str) -> Mutant:
    return Mutant(name, "shortfall", file, old, new, unit(module, *tests, part="algorithms"))


TARGETS = "test_targets_are_those_of_both_rewards_and_every_action"
FOLLOWING = "test_values_of_the_following_state_are_those_of_the_account_that_the_action_makes"
FOLLOWED = "test_a_followed_state_is_worth_what_the_episode_made_from_any_return_so_far"
LOSS = "test_the_loss_counts_values_and_what_actions_add_in_units_of_their_own"
VALUES_ADDED = "test_every_reward_has_a_value_and_every_action_adds_to_the_last"
MIXTURE = "test_the_report_is_the_mixture_of_both_scaled_advantages"
RESUMED = "test_a_restored_learner_computes_what_the_first_one_did"
TRUST = "test_differences_between_states_are_trusted_as_far_as_fresh_rollouts_bear_them_out"
VERIFY = "trust = self._verify(rollout, agent, frame)"
LEARN = """loss = self.critic.learn(
            agent,
            frame,
            self._stream("memory"),
            rollout=rollout,
            branches=self._branches(rollout, agent),
            rate=rate,
        )"""
BRANCHES = "algorithms/risk/branches.py"
DISCOUNT = "discount=torch.stack((self.gamma * goes_on, before_end.float()), -1)"

SHORTFALL = (
    # --- branches
    _bug(
        "branches-with-numbers-of-their-own",
        BRANCHES,
        "        generator.set_state(before)\n",
        "",
        "risk/branches",
        "test_branches_of_a_state_differ_by_their_first_action_alone",
    ),
    _bug(
        "branches-forget-what-was-earned",
        BRANCHES,
        "total = rollout.return_so_far.double().flatten()[places].repeat_interleave(actions)",
        "total = torch.zeros(count * actions, dtype=torch.float64)",
        "risk/branches",
        "test_a_branch_is_the_episode_played_on_after_an_action",
    ),
    _bug(
        "branches-end-one-step-early",
        BRANCHES,
        "for played in range(steps):",
        "for played in range(steps - 1):",
        "risk/branches",
        "test_a_branch_is_the_episode_played_on_after_an_action",
    ),
    _bug(
        "branches-count-the-next-episode",
        BRANCHES,
        "total += torch.where(running, step.reward.double(), 0.0)",
        "total += step.reward.double()",
        "risk/branches",
        "test_a_branch_is_the_episode_played_on_after_an_action",
    ),
    _bug(
        "branches-beside-one-step-targets",
        CRITIC,
        "        if branched is None:\n            errors = errors + ((added",
        "        if True:\n            errors = errors + ((added",
        "risk/branches",
        "test_with_branches_what_actions_add_is_learned_from_them_alone",
    ),
    _bug(
        "branches-in-every-task",
        LIMIT,
        "limited and measure_account_share(task, self.grid, steps=self.horizon) >= LEAST_SHARE",
        "limited",
        "risk/branches",
        "test_episodes_are_branched_where_rewards_depend_on_the_account",
    ),
    _bug(
        "account-share-counts-ended-episodes",
        "functional/risk/limit.py",
        "weight.detach().double().unsqueeze(-1)",
        "torch.ones_like(weight.detach().double().unsqueeze(-1))",
        "risk/branches",
        "test_the_account_share_is_that_of_rewards_step_by_step",
    ),
    _bug(
        "level-from-the-limit-where-skill-is-needed",
        "functional/risk/limit.py",
        "level = torch.where(needs_skill, top + gap, level)",
        "level = torch.where(needs_skill, least + gap, level)",
        "risk/branches",
        "test_the_level_is_raised_where_no_held_action_keeps_the_limit",
    ),
    _bug(
        "balance-where-skill-is-needed",
        "algorithms/risk/limit.py",
        "if gap > 0.0 and self._needs_skill(tail):",
        "if False:",
        "risk/limit_control",
        "test_all_of_the_share_is_risks_where_nothing_sure_keeps_the_limit",
    ),
    _bug(
        "skill-needed-where-a-held-action-is-more-cautious",
        "algorithms/risk/limit.py",
        "best < tail.empirical < limit",
        "tail.empirical < limit",
        "risk/limit_control",
        "test_all_of_the_share_is_risks_where_nothing_sure_keeps_the_limit",
    ),
    # --- targets
    _bug(
        "shortfall-discounted",
        CRITIC,
        DISCOUNT,
        "discount=torch.stack((self.gamma * goes_on, self.gamma * before_end), -1)",
        "risk/action_critic",
        TARGETS,
    ),
    _bug(
        "shortfall-goes-on-after-the-horizon",
        CRITIC,
        "before_end = goes_on & ~rows.last[:, None]",
        "before_end = goes_on",
        "risk/action_critic",
        TARGETS,
        "test_both_ends_stop_the_shortfall_and_only_a_termination_the_mean",
    ),
    _bug(
        "shortfall-mean-ends-at-a-time-out",
        CRITIC,
        DISCOUNT,
        "discount=torch.stack((self.gamma * before_end, before_end.float()), -1)",
        "risk/action_critic",
        TARGETS,
    ),
    _bug(
        "shortfall-without-a-ceiling",
        CRITIC,
        "return torch.minimum(wanted, targets.ceiling)",
        "return wanted",
        "risk/action_critic",
        TARGETS,
    ),
    _bug(
        "shortfall-policy-of-the-following-state",
        CRITIC,
        "probability=_probability(agent, features[0], seen[0], actions)",
        "probability=_probability(agent, features[1], seen[1], actions)",
        "risk/action_critic",
        "test_the_policy_of_now_weighs_the_actions_of_a_remembered_state",
    ),
    _bug(
        "shortfall-following-the-taken-account",
        CRITIC,
        "seen = _with_account(agent, options.seen[1:], account)",
        "seen = _with_account(agent, options.seen[1:], account[..., :0])",
        "risk/action_critic",
        FOLLOWING,
    ),
    _bug(
        "shortfall-ratio-without-a-bound",
        CRITIC,
        "(log_prob - rows.log_prob).exp().clamp(max=MOST_RATIO)",
        "(log_prob - rows.log_prob).exp()",
        "risk/action_critic",
        "test_a_step_of_an_earlier_policy_counts_by_a_bounded_ratio",
    ),
    _bug(
        "shortfall-of-the-next-episode",
        CONTROL,
        "torch.where(rollout.ended, 0.0, following) - value",
        "following - value",
        "risk/action_critic",
        "test_the_advantage_of_the_taken_action_is_what_the_step_added_to_the_expected_shortfall",
    ),
    _bug(
        "shortfall-of-an-action-that-was-not-taken",
        ROLLOUT,
        "valued = grid is not None and len(grid) > 0 and bool(account_names(task))",
        "if grid is not None and len(grid) == 0:\n"
        "        grid = torch.zeros(1, dtype=torch.int64)\n"
        '    valued = grid is not None and hasattr(task, "alternatives")',
        "risk/limit_control",
        "test_where_actions_cannot_be_listed_the_taken_one_is_recorded",
    ),
    # --- how the critic is fitted
    _bug(
        "critic-added-in-the-unit-of-the-value",
        CRITIC,
        "((added - lesson.added) / unit[-1]).square()",
        "((added - lesson.added) / unit[SHORTFALL]).square()",
        "risk/action_critic",
        LOSS,
    ),
    _bug(
        "critic-average-stands-still",
        CRITIC,
        "_follow(list(self.averaged.parameters()), list(self.values.parameters()), None)",
        "pass",
        "risk/action_critic",
        "test_values_are_asked_of_weights_that_follow_those_of_the_optimizer",
    ),
    _bug(
        "critic-targets-of-the-newest-weights",
        CRITIC,
        "targets.discount * self.averaged.values(targets.following)",
        "targets.discount * self.values.values(targets.following)",
        "risk/action_critic",
        "test_targets_and_predictions_are_those_of_the_averaged_weights",
    ),
    _bug(
        "critic-first-unit-keeps-the-first-weights",
        CRITIC,
        "if self.updates == 0:",
        "if self.updates < 0:",
        "risk/action_critic",
        "test_the_first_weights_are_in_the_unit_of_the_first_targets",
    ),
    _bug(
        "critic-without-decay",
        CRITIC,
        "DECAY = 0.3",
        "DECAY = 0.0",
        "risk/action_critic",
        "test_a_rare_event_is_not_laid_to_what_happened_to_be_seen_with_it",
    ),
    Mutant(
        "critic-added-without-its-mean",
        "shortfall",
        VALUES,
        "return about_mean(self.advantages(x)) * self.unit[-1]",
        "return self.advantages(x) * self.unit[-1]",
        unit("action_values", VALUES_ADDED, part="modules"),
    ),
    Mutant(
        "critic-shortfall-sees-the-account",
        "shortfall",
        VALUES,
        "        if self._hides[reward]:\n",
        "        if self._hides[0]:\n",
        unit(
            "action_values",
            "test_the_value_of_the_last_reward_does_not_see_hidden_columns",
            part="modules",
        ),
    ),
    _bug(
        "critic-account-hidden-nowhere",
        CRITIC,
        "hidden=self._account(agent) if actions > 1 else ()",
        "hidden=()",
        "risk/action_critic",
        "test_the_value_of_a_shortfall_does_not_see_the_account",
    ),
    _bug(
        "critic-followed-beyond-the-end",
        CRITIC,
        "bootstrap = torch.where(goes_on, self.averaged.value(last, SHORTFALL), 0.0)",
        "bootstrap = self.averaged.value(last, SHORTFALL)",
        "risk/action_critic",
        FOLLOWED,
    ),
    _bug(
        "critic-followed-from-the-real-return-alone",
        CRITIC,
        "bootstrap\n        wanted = torch.minimum",
        "bootstrap + before - rollout.return_so_far.to(rest)\n        wanted = torch.minimum",
        "risk/action_critic",
        FOLLOWED,
    ),
    _bug(
        "critic-followed-without-a-ceiling",
        CRITIC,
        "wanted = torch.minimum(wanted, -(before - frame.level).clamp(max=0.0))\n",
        "pass\n",
        "risk/action_critic",
        FOLLOWED,
    ),
    _bug(
        "critic-followed-by-the-next-episode",
        CRITIC,
        "ends = rollout.terminated | rollout.truncated | (rollout.length >= frame.horizon)",
        "ends = torch.zeros_like(rollout.ended)",
        "risk/action_critic",
        FOLLOWED,
    ),
    _bug(
        "critic-followed-mean-without-a-trace",
        CRITIC,
        "TRACE = 0.97",
        "TRACE = 0.0",
        "risk/action_critic",
        "test_what_a_followed_state_earns_is_its_lambda_return",
    ),
    _bug(
        "critic-followed-states-not-learned",
        CRITIC,
        "loss = loss + (followed.weight * error.square().sum(-1)).mean()",
        "loss = loss + 0.0 * (followed.weight * error.square().sum(-1)).mean()",
        "risk/action_critic",
        LOSS,
    ),
    _bug(
        "limit-settings-of-no-multiplier-taken",
        BUILD,
        "    if whole and learns:\n        _check_unused(config)\n",
        "",
        "risk/limit_control",
        "test_settings_of_a_multiplier_are_refused_where_there_is_none",
    ),
    _bug(
        "limit-values-of-forbidden-actions",
        BUILD,
        " and not is_masked",
        "",
        "risk/limit_control",
        "test_where_not_every_action_is_allowed_the_taken_one_is_recorded",
    ),
    _bug(
        "limit-multiplier-without-a-margin",
        CONTROL,
        "self.dual.step((gap + aim - (config.cvar_limit or 0.0)) / unit)",
        "self.dual.step(gap / unit)",
        "risk/limit_control",
        "test_a_multiplier_beside_a_critic_follows_the_distance_to_the_aim",
    ),
    # --- the control
    _bug(
        "limit-share-moves-while-only-critics-learn",
        LIMIT,
        "if moves and tail.is_ready:",
        "if tail.is_ready:",
        "risk/limit_control",
        "test_share_and_integral_stand_while_the_policy_is_not_trained",
    ),
    _bug(
        "limit-share-of-a-handful-of-episodes",
        LIMIT,
        "if moves and tail.is_ready:",
        "if moves:",
        "risk/limit_control",
        "test_before_there_are_enough_outcomes_the_share_stands_and_the_critic_learns",
    ),
    _bug(
        "limit-aim-outside",
        MEASURED,
        "return limit + margin * min(",
        "return limit - margin * min(",
        "risk/limit_control",
        "test_the_aim_lies_inside_the_limit_by_what_the_estimate_may_be_off",
    ),
    _bug(
        "limit-only-watched-yet-acting",
        LIMIT,
        "if self.config.risk.episode_limit is None or",
        "if self.config.risk.cvar_limit is None or",
        "risk/limit_control",
        "test_a_limit_that_is_only_watched_moves_nothing",
    ),
    _bug(
        "margin-with-a-bound-of-its-own",
        MEASURED,
        "return limit + margin * min(tail.error, MOST_ERROR * unit)",
        "return limit + min(margin * tail.error, MOST_ERROR * unit)",
        "risk/limit_control",
        "test_the_margin_is_that_of_the_settings",
    ),
    _bug(
        "limit-out-of-reach-by-the-bound-alone",
        LIMIT,
        "return best is not None and best < config.cvar_limit",
        "return True",
        "risk/limit_control",
        "test_a_limit_that_a_constant_action_keeps_is_never_out_of_reach",
    ),
    _bug(
        "limit-out-of-reach-within-the-interval",
        LIMIT,
        "if tail.empirical + NORMAL_95 * tail.error >= config.cvar_limit:",
        "if tail.empirical >= config.cvar_limit:",
        "risk/limit_control",
        "test_a_limit_is_out_of_reach_if_the_most_cautious_policies_surely_break_it",
    ),
    _bug(
        "limit-level-jumps",
        LIMIT,
        "self.level += LEVEL_STEP * (goal - self.level)",
        "self.level = goal",
        "risk/limit_control",
        "test_the_level_starts_at_its_goal_and_follows_it_slowly",
    ),
    _bug(
        "limit-integral-winds-up",
        LIMIT,
        "if 0.0 < share < 1.0 or (share == 0.0) == (gap > 0.0):",
        "if share <= 1.0:",
        "risk/limit_control",
        "test_the_integral_is_bounded_and_does_not_grow_at_either_end",
    ),
    _bug(
        "limit-mean-kept-whole-beside-risk",
        LIMIT,
        "mixed = (1.0 - self.share) * scaled_mean + self.share * scaled_risk",
        "mixed = scaled_mean + self.share * scaled_risk",
        "risk/limit_control",
        MIXTURE,
    ),
    _bug(
        "limit-mean-earned-after-an-end",
        LIMIT,
        "torch.where(step.terminated, 0.0, following)",
        "following",
        "risk/limit_control",
        MIXTURE,
    ),
    # --- the policy's step
    _bug(
        "all-actions-and-the-drawn-one-too",
        LOSSES,
        "        batch.options,\n        clip=now.clip_range,\n    )\n",
        "        batch.options,\n        clip=now.clip_range,\n    ) + "
        "policy.clipped_surrogate(\n        log_prob, old_log_prob, batch.advantage, "
        "clip=now.clip_range\n    )\n",
        "update/all_actions",
        "test_the_surrogate_of_the_drawn_action_is_not_added",
    ),
    _bug(
        "all-actions-never-reach-the-batch",
        ORDER,
        "options = None if risk is None else risk.options\n",
        "options = None\n",
        "update/all_actions",
        "test_an_update_learns_from_the_mixture_that_the_control_made",
    ),
    # --- saving and reporting
    _bug(
        "limit-draws-not-saved",
        LIMIT,
        '"draws": self.draws.state_dict(),',
        '"draws": DrawMemory().state_dict(),',
        "risk/saved_limit",
        RESUMED,
    ),
    _bug(
        "limit-running-episodes-not-saved",
        DRAWS,
        'return {"kept": kept, "open": self._open}',
        'return {"kept": kept, "open": None}',
        "risk/saved_limit",
        "test_the_state_holds_both_memories_and_all_that_follows",
    ),
    _bug(
        "limit-foreign-steps-restored",
        CRITIC,
        'check_tensors(saved["table"], wanted, part="critic/memory")',
        "assert wanted",
        "risk/saved_limit",
        "test_a_damaged_state_is_refused",
    ),
    _bug(
        "limit-metrics-come-and-go",
        REPORT,
        "if ppo.risk is None or ppo.risk.critic is None:",
        "if ppo.risk is None or math.isnan(report.level):",
        "telemetry/metrics",
        "test_the_page_lists_what_is_reported_and_nothing_else",
    ),
    Mutant(
        "limit-alarm-of-the-other-form",
        "shortfall",
        RULES,
        'chosen = self.measured if "train/cvar_risk_share" in metrics else self.inferred',
        "chosen = self.inferred",
        unit("alarms", "test_a_limit_that_no_action_keeps_is_said_to_be_measured", part="monitors"),
    ),
    # --- trust in the critic
    _bug(
        "trust-after-learning",
        LIMIT,
        f"{VERIFY}\n        {LEARN}",
        f"{LEARN}\n        {VERIFY}",
        "risk/limit_control",
        TRUST,
    ),
    _bug(
        "trust-forgets-what-follows",
        CRITIC,
        "outcome = about_mean(outcome + torch.where(last, 0.0, following))",
        "outcome = about_mean(outcome)",
        "risk/limit_control",
        TRUST,
    ),
    _bug(
        "trust-goes-on-after-the-horizon",
        CRITIC,
        "last = step.terminated | (rollout.length >= frame.horizon)[..., None]",
        "last = step.terminated",
        "risk/limit_control",
        TRUST,
    ),
    _bug(
        "trust-not-used",
        LIMIT,
        "added = risk.shrink_to_mean(added, rollout.weight, share=trust)",
        "added = risk.shrink_to_mean(added, rollout.weight, share=1.0)",
        "risk/limit_control",
        MIXTURE,
    ),
    _bug(
        "trust-of-the-first-rollouts",
        LIMIT,
        "self.verified = torch.cat((earlier, new))[-VERIFIED:]",
        "self.verified = torch.cat((earlier, new))[:VERIFIED]",
        "risk/limit_control",
        "test_the_critic_is_verified_by_the_last_rollouts_alone",
    ),
    _bug(
        "trust-by-two-rollouts",
        LIMIT,
        "if self.verified is None or len(self.verified) < LEAST_VERIFIED:",
        "if self.verified is None:",
        "risk/limit_control",
        "test_ten_rollouts_verify_a_critic_and_fewer_do_not",
    ),
    _bug(
        "trust-not-saved",
        LIMIT,
        '*("scale", "mixed", "balance", "verified"),',
        '*("scale", "mixed", "balance"),',
        "risk/saved_limit",
        RESUMED,
        "test_the_state_holds_both_memories_and_all_that_follows",
    ),
    # --- floor
    _bug(
        "floor-that-breaks-the-limit",
        LIMIT,
        "best = torch.where(keeps, held.mean(0), -torch.inf).argmax()",
        "best = held.mean(0).argmax()",
        "risk/limit_control",
        "test_the_floor_is_the_best_held_action_that_keeps_the_limit",
    ),
    _bug(
        "floor-without-any-that-keeps-it",
        LIMIT,
        "torch.where(keeps.any(), share, 0.0)",
        "share",
        "risk/limit_control",
        "test_there_is_no_floor_where_no_held_action_keeps_the_limit_or_too_little_is_known",
    ),
    _bug(
        "floor-against-the-policy-of-long-ago",
        DRAWS,
        "        sample = self.sample(alpha, since=since)\n",
        "        since = 0\n        sample = self.sample(alpha, since=since)\n",
        "risk/limit_control",
        "test_the_floor_counts_the_results_of_the_present_policy_alone",
    ),
    _bug(
        "floor-not-used",
        LIMIT,
        "risk.pull_to_action(mixed / divisor, probability, best, share=floor)",
        "risk.pull_to_action(mixed / divisor, probability, best, share=0.0)",
        "risk/limit_control",
        MIXTURE,
    ),
    _bug(
        "floor-at-another-place-of-the-grid",
        LIMIT,
        "HELD, device=self.task.device).round().long()",
        "HELD, device=self.task.device).floor().long() // 2",
        "risk/limit_control",
        "test_a_held_action_of_a_grid_is_pulled_to_at_its_own_place",
    ),
)
