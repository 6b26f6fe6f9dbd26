"""The bugs of what a run reports, schedules and restores."""

from mutants.harness import Mutant
from mutants.nodes import unit

LEARNING = "algorithms/telemetry/learning.py"
PLAYED = "algorithms/telemetry/rollout.py"
TELEMETRY = "algorithms/telemetry/metrics.py"
ENTROPY = "algorithms/update/entropy_schedule.py"
STATISTICS = "algorithms/update/return_statistics.py"
CHECKPOINT = "algorithms/run/checkpoint.py"
ALARMS = "monitors/alarms.py"
EVALUATE = "algorithms/run/evaluate.py"
LOGGERS = "monitors/loggers.py"
RECORDS = "algorithms/run/records.py"
TRAINER = "algorithms/trainer.py"
ALARM_RULES = "monitors/alarm_rules.py"


def run(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of a run."""
    return unit(name, *tests, part="algorithms")


SHOWN = run("run/shown", "test_an_alarm_is_a_scalar_of_every_update_a_line_of_the_log_and_an_event")
RESTORED = run("run/checkpoint", "test_a_restored_learner_computes_what_the_first_one_did")

MONITORS = (
    # --- gradients
    Mutant(
        "slow-scale-warned-of-for-its-mean",
        "advantages",
        ALARM_RULES,
        "by_their_own = metrics.get(divisor) == metrics.get(own)",
        "by_their_own = True",
        unit("alarms", "test_slow_advantages_may_have_another_mean_than_zero", part="monitors"),
    ),
    Mutant(
        "gradient-norms-are-squares",
        "S0-7 S2-7",
        LEARNING,
        "own[:, _places(held, order)].square().sum(-1).sqrt()",
        "own[:, _places(held, order)].square().sum(-1)",
        run("telemetry/metrics", "test_twin_critics_gradient_norms_logged"),
    ),
    Mutant(
        "critic-heads-sought-by-name",
        "S0-7 X17",
        LEARNING,
        "return {id(tensor): place for place, tensor in enumerate(ppo.pipeline.tensors)}",
        "return {\n"
        '        id(tensor): place if "critic_head" in ppo.pipeline.names[place] else 0\n'
        "        for place, tensor in enumerate(ppo.pipeline.tensors)\n"
        "    }",
        run("telemetry/metrics", "test_twin_critics_gradient_norms_logged"),
    ),
    Mutant(
        "gradient-norms-added",
        "S3-7",
        LEARNING,
        "own[:, _places(held, order)].square().sum(-1).sqrt()",
        "own[:, _places(held, order)].sum(-1)",
        run("telemetry/metrics", "test_each_layer_of_a_memory_has_the_root_of_its_own_squares"),
    ),
    # --- memory, observations, costs, clips
    Mutant(
        "first-layer-read-for-all",
        "S0-9",
        PLAYED,
        "        hidden = parts[:, 0].double()\n",
        "        hidden = state[:, 0, 0].double()\n",
        run("telemetry/metrics", "test_each_layer_reports_its_own_hidden_state"),
    ),
    Mutant(
        "drift-of-columns-nobody-scales",
        "S2-1 S2-opt1",
        PLAYED,
        "places = [place for place, name in names if name not in spec.unscaled]",
        "places = [place for place, name in names]",
        run("telemetry/metrics", "test_drift_is_that_of_the_columns_which_are_scaled"),
    ),
    Mutant(
        "costs-that-are-not-finite-averaged",
        "S3-11",
        PLAYED,
        "known = used & fraction.isfinite()",
        "known = used",
        run("telemetry/metrics", "test_costs_that_are_not_finite_are_counted_and_left_out"),
    ),
    Mutant(
        "dominant-clip-is-the-rarest",
        "S4-V7",
        TELEMETRY,
        "top = max(relative)",
        "top = min(relative)",
        run("telemetry/metrics", "test_the_dominant_clip_is_named_by_its_place"),
    ),
    Mutant(
        "dominant-clip-by-shares-of-different-kinds",
        "S4-V7",
        TELEMETRY,
        "0.0 if math.isnan(use) else use / CLIPS[name]",
        "0.0 if math.isnan(use) else use",
        run("telemetry/metrics", "test_the_dominant_clip_is_named_by_its_place"),
    ),
    Mutant(
        "dominant-clip-is-always-the-quantile-loss",
        "S4-V7",
        TELEMETRY,
        'uses["quantile"] = 1.0 - uses["quantile"] if has_quantiles else 0.0',
        'uses["quantile"] = uses["quantile"] if has_quantiles else 0.0',
        run("telemetry/metrics", "test_the_dominant_clip_is_named_by_its_place"),
    ),
    Mutant(
        "correlation-of-rounding",
        "2.20",
        PLAYED,
        "spread = (variances[0] > least[0]) & (variances[1] > least[1])",
        "spread = variances[0] > least[0]",
        run("telemetry/metrics", "test_a_constant_prediction_correlates_with_nothing"),
    ),
    Mutant(
        "groups-with-a-threshold-in-reward-units",
        "2.20",
        PLAYED,
        "has_spread = wanted > statistics.least_variance(largest_of(sizes))",
        "has_spread = wanted > 1e-12",
        run("telemetry/metrics", "test_groups_and_correlation_are_the_same_in_any_unit"),
    ),
    Mutant(
        "ratios-squared-about-zero",
        "S4-V7",
        "algorithms/update/losses.py",
        "excess = bounded.expm1()",
        "excess = bounded.exp()",
        run("telemetry/clip_shares", "test_the_spread_of_ratios_does_not_cancel"),
    ),
    Mutant(
        "share-of-pairs-of-the-first-critic",
        "S4-V7",
        "algorithms/update/critic_targets.py",
        "predicted.flatten(-2),  #",
        "predicted[..., 0, :],  #",
        run("telemetry/clip_shares", "test_the_share_of_pairs_is_that_of_all_critics"),
    ),
    Mutant(
        "disabled-clip-clips",
        "I15",
        "algorithms/config/learning.py",
        'return self.clip_range_vf is not None and self.distributional_vf_clip_mode != "disable"',
        "return self.clip_range_vf is not None",
        run("telemetry/clip_shares", "test_a_disabled_clip_learns_what_no_clip_does"),
    ),
    # --- alarms
    Mutant(
        "alarm-at-every-update",
        "S4-R1",
        ALARMS,
        "if streak == rule.patience:",
        "if streak >= rule.patience:",
        unit(
            "alarms",
            "test_an_alarm_sounds_beyond_its_threshold_and_only_when_that_begins",
            part="monitors",
        ),
    ),
    Mutant(
        "alarm-scalar-only-where-it-begins",
        "S4-R1",
        ALARMS,
        "if self._streaks.get(rule.name, 0) >= rule.patience:\n                numbers",
        "if self._streaks.get(rule.name, 0) == rule.patience:\n                numbers",
        unit(
            "alarms",
            "test_an_alarm_is_a_scalar_of_every_update_while_it_lasts",
            part="monitors",
        ),
    ),
    Mutant(
        "alarms-are-no-scalars",
        "S4-R1",
        RECORDS,
        "row = dict(sorted({**values, **evaluated, **alarms}.items()))",
        "row = dict(sorted({**values, **evaluated}.items()))",
        SHOWN,
    ),
    Mutant(
        "alarms-are-not-logged",
        "S4-R1",
        RECORDS,
        '            warn(f"{self.name}, update {update}: {alarm.message} [{alarm.name}]")\n',
        "",
        SHOWN,
    ),
    Mutant(
        "first-layer-of-a-memory-alone-is-watched",
        "2.11",
        ALARMS,
        'if name.startswith(f"lstm/{start}_layer")]',
        'if name.startswith(f"lstm/{start}_layer0")]',
        unit("alarms", "test_the_worst_layer_of_a_memory_is_reported", part="monitors"),
    ),
    # --- loggers
    Mutant(
        "logger-failure-ends-the-training",
        "17.8",
        LOGGERS,
        "        except Exception as error:  # noqa: BLE001 - whatever a service raises\n",
        "        except ValueError as error:\n",
        unit("loggers", "test_a_failure_is_warned_of_once_and_made_up_for", part="monitors"),
    ),
    Mutant(
        "logger-begins-anew-after-a-resume",
        "17.8",
        LOGGERS,
        "logger.start(self._run, self._ids.get(name))",
        "logger.start(self._run, None)",
        unit(
            "loggers",
            "test_another_process_continues_the_same_run_where_it_was",
            part="monitors",
        ),
    ),
    Mutant(
        "logger-counts-rows-before-they-are-sent",
        "17.8",
        LOGGERS,
        "            logger.write([_known(metrics.row(place)) for place in range(first, last)])\n"
        "            self._rows[name] = last\n",
        "            self._rows[name] = last\n"
        "            logger.write([_known(metrics.row(place)) for place in range(first, last)])\n",
        unit("loggers", "test_a_failure_is_warned_of_once_and_made_up_for", part="monitors"),
    ),
    Mutant(
        "logger-keeps-rows-of-an-abandoned-branch",
        "17.8",
        LOGGERS,
        "min(known, rows) for name, known",
        "known for name, known",
        unit("loggers", "test_a_run_that_went_back_sends_what_it_does_again", part="monitors"),
    ),
    Mutant(
        "spread-alarm-with-fixed-bounds",
        "X20",
        ALARMS,
        "relative = spread / usual if usual > 0.0 else math.nan",
        "relative = spread",
        unit(
            "alarms",
            "test_the_spread_of_returns_is_judged_by_its_own_median_in_any_unit",
            part="monitors",
        ),
    ),
    Mutant(
        "floor-hides-the-gain",
        "S4-1",
        STATISTICS,
        "floor=torch.finfo(torch.float64).tiny,",
        "floor=self._floor(self._spreads),",
        run("update/return_statistics", "test_the_reported_gain_sees_no_floor_and_has_a_cap"),
    ),
    # --- entropy
    Mutant(
        "every-plateau-starts-the-decay",
        "S0-5 S2-5",
        ENTROPY,
        "if self.plateau and self.start is None and self._may_fall(update):",
        "if self.plateau and self._may_fall(update):",
        run("update/entropy_schedule", "test_a_second_plateau_does_not_start_it_again"),
    ),
    Mutant(
        "entropy-floor-dropped",
        "S0-5",
        ENTROPY,
        "floored = max(nominal, self.floor)",
        "floored = nominal",
        run("update/entropy_schedule", "test_the_floor_wins_over_the_end"),
    ),
    # --- what is checked after every update
    Mutant(
        "scaler-not-checked",
        "Speed",
        CHECKPOINT,
        "    parts += [] if scaler is None else scaler.floating_state()\n",
        "",
        run("run/checkpoint", "test_every_floating_tensor_of_a_checkpoint_is_looked_at"),
    ),
    Mutant(
        "environments-not-checked",
        "Speed",
        CHECKPOINT,
        "ppo.advantage_moments, ppo.env_state, *optimizer",
        "ppo.advantage_moments, *optimizer",
        run("run/checkpoint", "test_every_floating_tensor_of_a_checkpoint_is_looked_at"),
    ),
    Mutant(
        "flags-read-at-the-wrong-place",
        "Speed",
        TELEMETRY,
        "flag_rows = rows[len(parts) : len(parts) + len(flags)]",
        "flag_rows = rows[: len(flags)]",
        run("telemetry/metrics", "test_flags_are_read_with_the_metrics"),
    ),
    Mutant(
        "labels-of-groups-taken-for-places",
        "Speed",
        PLAYED,
        "labels, place = place.unique(return_inverse=True)",
        "labels, _ = place.unique(return_inverse=True)",
        run("telemetry/metrics", "test_symbols_that_a_task_does_not_count_are_found"),
    ),
    # --- a run that goes on
    Mutant(
        "return-statistics-not-restored",
        "M14",
        CHECKPOINT,
        '        "returns": ppo.returns.load_state_dict,\n',
        "",
        RESTORED,
    ),
    Mutant(
        "divergence-control-not-restored",
        "M15",
        CHECKPOINT,
        '        "kl": ppo.kl.load_state_dict,\n',
        "",
        RESTORED,
    ),
    Mutant(
        "observation-statistics-not-restored",
        "M47",
        CHECKPOINT,
        "        ppo.agent.load_state_dict(saved)\n",
        '        own = {k: v for k, v in saved.items() if not k.startswith("observation_scale")}\n'
        "        ppo.agent.load_state_dict(own, strict=False)\n",
        RESTORED,
    ),
    Mutant(
        "random-streams-not-restored",
        "M48",
        CHECKPOINT,
        '        ppo.generators.restore(state["generators"])\n',
        "        pass\n",
        RESTORED,
    ),
    # --- the policy that is judged
    Mutant(
        "evaluation-always-greedy",
        "policy",
        EVALUATE,
        "    if not judged.greedy_is_worse:\n",
        "    if True:\n",
        run(
            "run/policies",
            "test_an_agent_that_is_good_sampled_and_terrible_greedy_is_judged_sampled",
        ),
    ),
    Mutant(
        "evaluation-the-higher-score-is-judged",
        "policy",
        EVALUATE,
        "    if not judged.greedy_is_worse:\n",
        "    if judged.policy_gap <= 0.0:\n",
        run("run/policies", "test_greedy_that_is_slightly_and_not_significantly_worse_is_judged"),
    ),
    Mutant(
        "evaluation-other-starts-for-the-sampled-policy",
        "policy",
        EVALUATE,
        "same.set_state(generator.get_state())",
        "same.manual_seed(0)",
        run("run/policies", "test_both_policies_begin_at_the_same_starts"),
    ),
    Mutant(
        "evaluation-actions-drawn-from-the-starts",
        "policy",
        EVALUATE,
        'drawn = actions if kind == "sampled" else None',
        "drawn = starts",
        run("run/policies", "test_tasks_give_both_policies_the_same_starts_and_random_numbers"),
    ),
    Mutant(
        "evaluation-figures-of-the-greedy-policy",
        "policy",
        EVALUATE,
        "return second._replace(greedy_score=first.score, policy_p=p_value)",
        'return judged._replace(policy="sampled")',
        run(
            "run/policies",
            "test_an_agent_that_is_good_sampled_and_terrible_greedy_is_judged_sampled",
        ),
    ),
    Mutant(
        "best-agent-does-not-say-its-policy",
        "policy",
        TRAINER,
        "self.ppo.agent.judged_policy = evaluation.policy",
        "pass",
        run("run/policies", "test_a_run_judges_and_keeps_the_sampled_agent_and_raises_the_alarm"),
    ),
    Mutant(
        "judged-policy-not-restored",
        "policy",
        TRAINER,
        "        ppo.agent.judged_policy = self.records.policy or ppo.agent.judged_policy\n",
        "",
        run("run/policies", "test_a_resumed_run_knows_the_judged_policy_and_the_interval"),
    ),
    Mutant(
        "greedy-worse-never-reported",
        "policy",
        RECORDS,
        "float(evaluation.greedy_is_worse)",
        "0.0",
        run("run/policies", "test_a_run_judges_and_keeps_the_sampled_agent_and_raises_the_alarm"),
    ),
    Mutant(
        "policy-gap-reversed",
        "policy",
        EVALUATE,
        "return self.sampled_score - self.greedy_score",
        "return self.greedy_score - self.sampled_score",
        run("run/policies", "test_a_run_judges_and_keeps_the_sampled_agent_and_raises_the_alarm"),
    ),
    # --- alarms of the gradient scaler
    Mutant(
        "saturated-scaler-not-reported",
        "VGS alarms",
        ALARM_RULES,
        "share >= SATURATED and",
        "share > SATURATED and",
        unit("alarms", "test_a_patient_alarm_waits_for_its_streak", part="monitors"),
    ),
    Mutant(
        "idle-scaler-not-reported",
        "VGS alarms",
        ALARM_RULES,
        "math.nan) >= IDLE",
        "math.nan) > IDLE",
        unit("alarms", "test_a_patient_alarm_waits_for_its_streak", part="monitors"),
    ),
)
