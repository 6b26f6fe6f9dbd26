"""The bugs of the learner: rollout, estimates, targets, losses, epochs, units and their order."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

ROLLOUT = "algorithms/update/rollout.py"
ESTIMATES = "algorithms/update/estimates.py"
TARGETS = "algorithms/update/critic_targets.py"
LOSSES = "algorithms/update/losses.py"
DEVICE_EPOCHS = "algorithms/update/device_epochs.py"
STREAMS = "test_an_early_stop_ends_where_it_would_and_leaves_the_streams_there"
CHANGES = "test_a_number_that_changes_is_seen_by_the_same_function"
SHARES = "algorithms/update/shares.py"
TOGETHER = "test_two_processes_are_one_with_all_environments"
EPOCHS = "algorithms/update/epochs.py"
UNITS = "algorithms/update/popart.py"
ORDER = "algorithms/ppo.py"
CHECKPOINT = "algorithms/run/checkpoint.py"
LEARNING_SETTINGS = "algorithms/config/learning.py"
LEARNING_REPORT = "algorithms/telemetry/learning.py"


def learner(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the learner."""
    return unit(name, *tests, part="algorithms")


RATIO = integration(
    "learner_invariants",
    "test_before_the_first_step_every_ratio_is_one[lstm-quantile-sequences of 4-False-categorical]",
)

LEARNER = (
    # --- playing
    Mutant(
        "rollout-state-after-the-step",
        "X10",
        ROLLOUT,
        "        env_state, row, output = play(env_state)\n",
        "        env_state, row, output = play(env_state)\n        memory = env_state.memory\n",
        RATIO,
    ),
    Mutant(
        "rollout-writes-the-first-piece-of-a-column",
        "X10",
        ROLLOUT,
        "pieces += column.split(max(PIECE * len(column) // column.numel(), 1))",
        "pieces += column.split(max(PIECE * len(column) // column.numel(), 1))[:1]",
        learner(
            "update/rollout",
            "test_a_recorded_rollout_is_the_same_in_whatever_pieces_it_is_written",
        ),
    ),
    Mutant(
        "rollout-reset-on-the-ignored-row",
        "S3-8",
        ROLLOUT,
        "        reset=env_state.ignored,\n",
        "        reset=ends,\n",
        learner(
            "update/rollout",
            "test_a_time_out_reaches_the_value_of_its_last_observation_with_the_unbroken_memory",
        ),
    ),
    Mutant(
        "rollout-never-resets",
        "S1-L1 S3-FP3",
        ROLLOUT,
        "        reset=reset,\n    )\n    state, step",
        "    )\n    state, step",
        learner("update/rollout", "test_every_row_is_what_a_float64_walk_with_that_memory_says"),
    ),
    Mutant(
        "rollout-resets-everyone",
        "S1-L1 S3-FP3",
        ROLLOUT,
        "torch.where(where, initial, env_state.memory)",
        "torch.where(where.any(), initial, env_state.memory)",
        learner(
            "update/rollout",
            "test_a_learned_initial_state_is_put_only_where_an_episode_begins_and_not_shared",
        ),
    ),
    Mutant(
        "rollout-ignored-row-weighs",
        "M10 X9",
        ROLLOUT,
        '"weight": torch.where(env_state.ignored, 0.0, step.info.sample_weight),',
        '"weight": step.info.sample_weight,',
        learner(
            "update/rollout", "test_a_task_that_weighs_the_ignored_row_does_not_get_it_learned"
        ),
    ),
    Mutant(
        "rollout-last-state-with-a-broken-memory",
        "S3-8",
        ROLLOUT,
        "final = agent.draw(seen, last.memory, deterministic=True)",
        "final = agent.draw(seen, initial, deterministic=True)",
        learner("update/rollout", "test_the_look_at_the_last_state_leaves_no_trace"),
    ),
    Mutant(
        "rollout-next-state-is-this-state",
        "S3-8",
        ROLLOUT,
        "next_predicted=predicted[1:].clone(),",
        "next_predicted=predicted[:-1].clone(),",
        learner(
            "update/rollout",
            "test_a_time_out_reaches_the_value_of_its_last_observation_with_the_unbroken_memory",
        ),
    ),
    Mutant(
        "rollout-statistics-of-ignored-rows",
        "observations",
        ROLLOUT,
        'statistics.moments(named.flatten(0, 1), weight=columns["weight"].flatten()),',
        "statistics.moments(named.flatten(0, 1)),",
        learner(
            "update/rollout",
            "test_statistics_stand_still_during_a_rollout_and_gather_rows_with_weight",
        ),
    ),
    Mutant(
        "rollout-statistics-always-online",
        "S0-4",
        ROLLOUT,
        "        if online:\n",
        "        if True:\n",
        learner(
            "update/rollout",
            "test_statistics_stand_still_during_a_rollout_and_gather_rows_with_weight",
        ),
    ),
    Mutant(
        "rollout-raw-observations-kept",
        "S0-4",
        ROLLOUT,
        '        "observation": seen,\n',
        '        "observation": env_state.observation,\n',
        RATIO,
    ),
    Mutant(
        "rollout-episode-earns-on",
        "episodes",
        ROLLOUT,
        "return_so_far=torch.where(ends, 0.0, total),",
        "return_so_far=total,",
        learner(
            "update/rollout", "test_episodes_are_added_up_from_their_first_step_across_rollouts"
        ),
    ),
    Mutant(
        "rollout-ignored-step-counts",
        "episodes",
        ROLLOUT,
        "length = env_state.length + ~env_state.ignored",
        "length = env_state.length + 1",
        learner(
            "update/rollout", "test_episodes_are_added_up_from_their_first_step_across_rollouts"
        ),
    ),
    Mutant(
        "rollout-sequences-shuffled",
        "X10",
        ROLLOUT,
        "value = value.flatten(0, 1)",
        "value = value.transpose(0, 1).flatten(0, 1)",
        learner(
            "update/rollout",
            "test_a_rollout_is_cut_into_neighbouring_sequences_with_their_own_memory",
        ),
    ),
    # --- estimates
    Mutant(
        "estimates-first-critic-only",
        "S1-T1 S3-FP2",
        ESTIMATES,
        "bootstrap = decoded_value(agent, rollout.next_predicted, config)",
        "bootstrap = decoded_value(agent, rollout.next_predicted[:, :, :1], config)",
        learner(
            "update/estimates", "test_the_lower_critic_speaks_for_this_state_the_next_and_the_last"
        ),
    ),
    Mutant(
        "estimates-time-out-is-an-end",
        "M18 X1",
        ESTIMATES,
        "        rollout.terminated,\n",
        "        rollout.ended,\n",
        integration(
            "learner_invariants",
            "test_a_reward_of_one_for_ever_is_worth_one_over_one_minus_gamma[scalar]",
        ),
    ),
    Mutant(
        "estimates-limit-forgotten",
        "value limit",
        ESTIMATES,
        "return value if limit is None else value.clamp(-limit, limit)",
        "return value",
        learner("update/estimates", "test_the_limit_holds_values_and_bootstraps_and_never_targets"),
    ),
    Mutant(
        "estimates-variance-of-ignored-rows",
        "explained variance",
        ESTIMATES,
        "explained_variance(total, value, weight=rollout.weight)",
        "explained_variance(total, value)",
        learner("update/estimates", "test_explained_variance_is_that_of_the_rows_that_count"),
    ),
    Mutant(
        "advantage-of-ignored-rows",
        "S4-V1",
        ESTIMATES,
        "            weight=weight,\n",
        "            weight=None,\n",
        learner(
            "update/estimates",
            "test_advantages_are_normalised_over_rows_with_weight_by_their_weight",
        ),
    ),
    Mutant(
        "advantage-blunted-by-ignored-rows",
        "S3-2",
        ESTIMATES,
        "magnitude = torch.maximum(estimates.returns.abs(), estimates.value.abs())",
        "magnitude = estimates.returns.abs().max()",
        learner("update/estimates", "test_what_ignored_rows_return_does_not_blunt_the_others"),
    ),
    Mutant(
        "estimates-unchecked",
        "S4-O1",
        ESTIMATES,
        "if any(bad.values()):",
        "if False:",
        learner("update/estimates", "test_a_number_that_is_not_finite_is_named_with_its_place"),
    ),
    Mutant(
        "advantage-earlier-statistics-lost",
        "advantages",
        ORDER,
        "        self.advantage_moments = normal.after\n",
        "",
        learner("ppo", "test_earlier_advantages_stand_in_for_a_rollout_without_spread"),
    ),
    Mutant(
        "slow-scale-holds-the-rollout-itself",
        "advantages",
        ESTIMATES,
        "return earlier_moments(before, after, floor=config.ppo.adv_std_floor), after",
        "return after, after",
        learner("ppo", "test_a_slow_scale_is_that_of_the_rollouts_before"),
    ),
    Mutant(
        "slow-scale-not-followed",
        "advantages",
        ESTIMATES,
        "raw, previous, weight=weight, beta=ppo.advantage_scale_beta",
        "raw, None, weight=weight, beta=ppo.advantage_scale_beta",
        learner("ppo", "test_a_slow_scale_is_that_of_the_rollouts_before"),
    ),
    Mutant(
        "slow-scale-with-ignored-rows",
        "advantages",
        ESTIMATES,
        "raw, previous, weight=weight, beta=ppo.advantage_scale_beta",
        "raw, previous, beta=ppo.advantage_scale_beta",
        learner("ppo", "test_a_slow_scale_is_that_of_the_rollouts_before"),
    ),
    Mutant(
        "slow-scale-not-restored",
        "advantages",
        CHECKPOINT,
        "    ppo.advantage_moments = moments\n",
        "",
        learner("run/checkpoint", "test_moments_of_earlier_advantages_come_back"),
    ),
    Mutant(
        "slow-scale-of-the-risk-gradient-is-its-own",
        "advantages",
        ESTIMATES,
        "        return moments.variance.sqrt()\n",
        "        pass\n",
        learner(
            "risk/gradient",
            "test_the_reported_norm_is_that_of_its_share_under_the_slow_scale",
        ),
    ),
    # --- targets
    Mutant(
        "target-limited",
        "S3-4 S3-FP1",
        TARGETS,
        "    bootstrap = next_distribution(agent, rollout)\n    flags",
        "    bootstrap = next_distribution(agent, rollout).clamp(-1.0, 1.0)\n    flags",
        learner("update/estimates", "test_the_limit_holds_values_and_bootstraps_and_never_targets"),
    ),
    Mutant(
        "target-lambda-return-for-a-distribution",
        "X5",
        TARGETS,
        'if config.target.kind == "lambda_return":\n        if kind',
        'if config.target.kind in ("lambda_return", "nstep"):\n        if kind',
        learner("update/critic_targets", "test_targets_are_those_of_the_replay_in_reward_units"),
    ),
    Mutant(
        "target-distribution-cut-at-its-tail",
        "targets",
        TARGETS,
        'if config.target.kind == "lambda_return" and config.returns.normalize_returns != "off":',
        'if config.returns.normalize_returns != "off":',
        learner("update/critic_targets", "test_only_a_scalar_target_is_limited"),
    ),
    Mutant(
        "target-distribution-not-decoded",
        "S0-3",
        TARGETS,
        'joint if agent.spec.critic.kind == "categorical" else agent.return_scale.decode(joint)',
        "joint",
        learner(
            "update/critic_targets",
            "test_the_distribution_of_reached_states_is_decoded_with_the_statistics_of_the_heads",
        ),
    ),
    Mutant(
        "clip-in-raw-units",
        "X18",
        TARGETS,
        'if clip.vf_clip_units == "raw":',
        "if True:",
        learner("update/critic_targets", "test_held_predictions_cost_what_the_replay_says"),
    ),
    Mutant(
        "clip-limit-on-the-target",
        "S3-FP1",
        TARGETS,
        "    return losses(agent, held, target)\n",
        "    if clip.value_clip_limit is not None:\n"
        "        target = value_clip.limit_encoded(target, limit=clip.value_clip_limit, "
        "mean=agent.return_scale.mean, std=std)\n"
        "    return losses(agent, held, target)\n",
        learner(
            "update/critic_targets", "test_the_limit_holds_the_clipped_branch_and_the_target_stays"
        ),
    ),
    Mutant(
        "clip-pessimistic-old-value",
        "S1-T2",
        TARGETS,
        "    std = agent.return_scale.std\n    epsilon",
        "    std = agent.return_scale.std\n"
        "    old = old.amin(-2, keepdim=True).expand_as(old)\n"
        "    epsilon",
        learner("update/critic_targets", "test_held_predictions_cost_what_the_replay_says"),
    ),
    Mutant(
        "cross-entropy-without-its-unit",
        "S4-V3",
        TARGETS,
        "categorical.cross_entropy(predicted, wide) / normaliser",
        "categorical.cross_entropy(predicted, wide)",
        learner(
            "update/critic_targets",
            "test_a_uniform_prediction_costs_one_whatever_the_number_of_atoms",
        ),
    ),
    # --- losses
    Mutant(
        "loss-average-before-the-worse",
        "S3-1",
        LOSSES,
        "value = twin.twin_loss(by_critic, clipped_by_critic)",
        "value = torch.maximum(by_critic.mean(-1), clipped_by_critic.mean(-1))",
        learner(
            "update/losses",
            "test_twin_critics_vf_clipping",
            "test_the_loss_of_a_batch_is_that_of_the_replay",
        ),
    ),
    Mutant(
        "loss-ignored-rows",
        "M10 X9",
        LOSSES,
        "return torch.where(weight > 0.0, columns * weight, 0.0).sum((1, 2))",
        "return columns.sum((1, 2))",
        learner("update/losses", "test_rows_of_weight_0_change_neither_a_number_nor_a_gradient"),
    ),
    Mutant(
        "loss-entropy-is-a-cost",
        "S3-5",
        LOSSES,
        "+ now.ent_coef * policy.entropy_loss(entropy, log_prob)",
        "+ now.ent_coef * entropy",
        learner("update/losses", "test_the_bonus_is_the_entropy_of_the_whole_action"),
    ),
    Mutant(
        "loss-entropy-without-contract",
        "S3-5",
        LOSSES,
        "+ now.ent_coef * policy.entropy_loss(entropy, log_prob)",
        "- now.ent_coef * entropy.reshape(*log_prob.shape, -1).sum(-1)",
        learner("update/losses", "test_entropy_multidim_action"),
    ),
    Mutant(
        "loss-warm-up-trains-the-actor",
        "warm-up",
        LOSSES,
        "    if now.trains_policy:\n",
        "    if True:\n",
        learner("update/losses", "test_while_only_critics_learn_the_actor_gets_no_gradient"),
    ),
    Mutant(
        "loss-penalty-backwards",
        "X16",
        LOSSES,
        "network.head.kl(batch.parameters, parameters)",
        "network.head.kl(parameters, batch.parameters)",
        learner(
            "update/losses",
            "test_the_penalty_is_the_analytic_divergence_from_the_policy_that_played",
        ),
    ),
    Mutant(
        "loss-first-estimate",
        "X16 S3-12",
        LOSSES,
        'policy.kl_estimate(bounded, kind="k3")',
        'policy.kl_estimate(bounded, kind="k1")',
        learner("update/losses", "test_the_readings_are_weighted_sums_over_rows_that_count"),
    ),
    Mutant(
        "loss-estimate-without-bound",
        "S3-6",
        LOSSES,
        'policy.kl_estimate(bounded, kind="k3")',
        'policy.kl_estimate(log_ratio, kind="k3")',
        learner("update/losses", "test_an_extreme_ratio_stays_finite_in_every_term"),
    ),
    Mutant(
        "loss-nan-reaches-the-weights",
        "S3-6",
        LOSSES,
        "        return policy.drop_nonfinite(log_prob, batch.log_prob, batch.weight)\n",
        "        return log_prob, batch.log_prob, batch.weight\n",
        learner("update/losses", "test_policy_gradient_explosion_detection"),
    ),
    Mutant(
        "loss-zero-keeps-the-nan",
        "S3-6",
        LOSSES,
        "torch.where(finite, part, 0.0) for part in (log_prob, batch.log_prob)",
        "torch.where(finite, part, batch.log_prob) for part in (log_prob, batch.log_prob)",
        learner("update/losses", "test_a_bad_ratio_may_count_as_one"),
    ),
    Mutant(
        "loss-imitation-always",
        "S4-V2",
        LOSSES,
        "    if is_zero(now.bc_coef):\n",
        "    if False:\n",
        learner("update/losses", "test_imitation_without_weight_is_not_computed"),
    ),
    Mutant(
        "loss-imitation-mean-of-ignored-rows",
        "S4-V2",
        LOSSES,
        "statistics.weighted_mean(policy.awr_weight(batch.advantage, **options), batch.weight)",
        "policy.awr_weight(batch.advantage, **options).mean()",
        learner(
            "update/losses",
            "test_imitation_weights_may_be_divided_by_their_mean_over_rows_that_count",
        ),
    ),
    Mutant(
        "loss-values-held-always",
        "schedules",
        LOSSES,
        "    if not now.clips_values:\n",
        "    if config.value_clip.clip_range_vf is None:\n",
        learner("update/losses", "test_values_are_held_only_when_the_schedule_says_so"),
    ),
    # --- epochs
    Mutant(
        "epochs-mean-of-parts",
        "S0-2 S2-2",
        EPOCHS,
        "(sums.loss / planned.clamp(min=torch.finfo(planned.dtype).tiny)).backward()",
        "(sums.loss / sums.weight.clamp(min=1e-30) * size / batch.weight.shape[1]).backward()",
        learner("update/epochs", "test_micro_batches_add_up_to_the_gradient_of_their_minibatch"),
    ),
    Mutant(
        "epochs-stale-weight",
        "S2-2",
        EPOCHS,
        "reweigh(pipeline, planned / total.weight)",
        "reweigh(pipeline, planned / planned)",
        learner("update/epochs", "test_what_was_dropped_leaves_the_mean_of_the_rest"),
    ),
    Mutant(
        "device-epochs-learn-after-the-stop",
        "graphs",
        DEVICE_EPOCHS,
        "pipeline.step(veto=ended | skipped | failed)",
        "pipeline.step(veto=skipped | failed)",
        learner("update/device_epochs", f"{STREAMS}[adam-1e-12]"),
    ),
    Mutant(
        "device-epochs-leave-the-streams-behind-the-stop",
        "graphs",
        DEVICE_EPOCHS,
        "                _put_back((order, *(moving or ())), states)\n",
        "",
        learner("update/device_epochs", f"{STREAMS}[noise-1e-12]"),
    ),
    Mutant(
        "device-epochs-freeze-a-coefficient",
        "graphs",
        DEVICE_EPOCHS,
        "                place.fill_(value)\n",
        "                place.copy_(torch.where(place == 0.0, value, place))\n",
        learner("update/device_epochs", f"{CHANGES}[ent_coef]"),
    ),
    Mutant(
        "processes-learn-from-their-own-gradients",
        "processes",
        SHARES,
        "    group.add([gradient for gradient in given if gradient is not None])\n",
        "    given.clear()\n",
        learner("run/processes", f"{TOGETHER}[pendulum]"),
    ),
    Mutant(
        "processes-step-the-same-environments",
        "processes",
        "tasks/base.py",
        "whole = self.batch if self.columns is None else self.columns.whole",
        "whole = self.batch",
        learner(
            "run/processes",
            "test_parts_stepped_side_by_side_do_what_the_whole_task_does[cartpole]",
        ),
    ),
    Mutant(
        "processes-see-their-own-observations-alone",
        "processes",
        SHARES,
        "    return Rollout(**parts, seen=seen)\n",
        "    return Rollout(**parts, seen=rollout.seen)\n",
        learner("run/processes", f"{TOGETHER}[pendulum]"),
    ),
    Mutant(
        "processes-wait-for-one-that-was-refused",
        "processes",
        SHARES,
        "    if bool(failed.any()):\n",
        "    if False:\n",
        learner(
            "run/processes",
            "test_an_action_that_one_process_refuses_ends_the_rollout_of_all",
        ),
    ),
    Mutant(
        "device-stop-counts-all-as-beyond",
        "graphs",
        "algorithms/update/kl_control.py",
        "count, over = count + 1.0, over + beyond",
        "count, over = count + 1.0, over + 1.0",
        learner("update/device_epochs", "test_the_rules_of_the_stop_are_those_of_the_control"),
    ),
    Mutant(
        "epochs-imitation-of-each-part",
        "S4-V2",
        EPOCHS,
        "            imitation=imitation,\n",
        "",
        learner("update/epochs", "test_micro_batches_add_up_to_the_gradient_of_their_minibatch"),
    ),
    Mutant(
        "epochs-empty-minibatch-trained",
        "X9",
        EPOCHS,
        "    if void or not bool(total.weight > 0.0):\n",
        "    if void:\n",
        learner("update/epochs", "test_a_minibatch_in_which_nothing_counts_is_left_out"),
    ),
    Mutant(
        "epochs-void-part-only",
        "S3-6",
        EPOCHS,
        "    if void or not",
        "    if not",
        learner("update/epochs", "test_one_bad_ratio_voids_its_whole_minibatch_however_it_is_cut"),
    ),
    Mutant(
        "epochs-infinite-loss-steps",
        "refusals",
        EPOCHS,
        "    if not bool(total.loss.isfinite()):\n",
        "    if False:\n",
        learner(
            "update/epochs",
            "test_a_loss_that_is_not_finite_is_refused_though_its_gradient_is_bounded",
        ),
    ),
    Mutant(
        "epochs-refusal-on-another-device",
        "refusals",
        EPOCHS,
        "    norms = torch.zeros(len(pipeline.names), device=device)\n",
        "    norms = torch.zeros(len(pipeline.names))\n",
        learner("update/epochs", "test_the_report_of_a_refused_loss_lies_where_the_data_do"),
    ),
    Mutant(
        "epochs-gradients-pile-up",
        "S0-2",
        EPOCHS,
        "    pipeline.optimizer.zero_grad(set_to_none=True)\n",
        "",
        learner("update/epochs", "test_micro_batches_add_up_to_the_gradient_of_their_minibatch"),
    ),
    Mutant(
        "epochs-rest-is-lost",
        "epochs",
        EPOCHS,
        "yield from order.to(data.weight.device).split(size)",
        "yield from order.to(data.weight.device)[: count // size * size].split(size)",
        learner(
            "update/epochs", "test_every_sequence_is_seen_once_an_epoch_and_the_rest_is_not_lost"
        ),
    ),
    Mutant(
        "epochs-never-stop",
        "X16",
        EPOCHS,
        "if control.stops(divergences[-1]):",
        "if control.stops(divergences[-1]) and False:",
        learner("update/epochs", "test_epochs_end_when_the_policy_has_moved_enough"),
    ),
    Mutant(
        "epochs-memory-of-another-column",
        "X10",
        LOSSES,
        'axis = 0 if field.name == "memory" else 1\n'
        "        parts[field.name] = chosen_sequences(value, chosen, axis)",
        'axis = 0 if field.name == "memory" else 1\n'
        "        order = chosen if axis else chosen.sort().values\n"
        "        parts[field.name] = chosen_sequences(value, order, axis)",
        learner("update/epochs", "test_a_selection_keeps_each_sequence_whole"),
    ),
    # --- units
    Mutant(
        "scale-refresh-without-rescale",
        "S0-3 S2-3",
        UNITS,
        "    agent.network.critic.rescale(*moved, where=moves)\n",
        "",
        learner("update/popart", "test_return_snapshot_freshness"),
    ),
    Mutant(
        "scale-old-words-in-old-units",
        "S0-3 S1-T2",
        UNITS,
        "    return torch.where(moves, return_scale.re_express(predicted, *moved), predicted)\n",
        "    return predicted\n",
        learner("update/popart", "test_return_snapshot_freshness"),
    ),
    Mutant(
        "scale-support-without-projection",
        "X11",
        UNITS,
        "    return moved, probs.clamp(min=torch.finfo(probs.dtype).tiny).log()\n",
        "    return target, predicted\n",
        learner(
            "update/popart",
            "test_targets_and_old_distributions_are_projected_when_the_support_moves",
        ),
    ),
    Mutant(
        "scale-support-jumps",
        "support",
        UNITS,
        "_MAX_STEP = 0.5",
        "_MAX_STEP = 50.0",
        learner("update/popart", "test_a_bound_moves_by_at_most_half_a_span"),
    ),
    Mutant(
        "scale-moments-of-quantiles-rescaled",
        "moments",
        UNITS,
        'if kind == "scalar" and "exp_avg" in state:',
        'if "exp_avg" in state:',
        learner("update/popart", "test_moments_of_a_loss_without_units_stay"),
    ),
    Mutant(
        "scale-utility-of-a-squared-loss",
        "moments",
        UNITS,
        'power = 2 if kind == "scalar" else 1',
        "power = 1",
        learner("update/popart", "test_utilities_follow_weight_times_gradient"),
    ),
    Mutant(
        "scale-scale-centred",
        "units",
        UNITS,
        'Scale(0.0 if mode == "scale" else new.mean, new.std * unit)',
        "Scale(new.mean, new.std * unit)",
        learner(
            "update/popart",
            "test_scaled_returns_are_divided_by_the_bound_times_the_spread_and_not_centred",
        ),
    ),
    Mutant(
        "scale-support-of-the-first-rewards",
        "M13 support",
        ORDER,
        "predicted, warming=warming\n",
        "predicted, warming=False\n",
        learner("ppo", "test_the_support_of_a_categorical_critic_fits_rewards_of_any_size"),
    ),
    Mutant(
        "scale-warm-support-without-projection",
        "M13 support",
        UNITS,
        "low, high = (config.v_min, config.v_max) if warming else _bounds(kept, atoms, config)",
        "low, high = _bounds(kept, atoms, config)",
        learner(
            "update/popart", "test_while_statistics_warm_up_the_support_is_that_of_the_settings"
        ),
    ),
    # --- the order
    Mutant(
        "order-units-before-estimates",
        "S0-3 S2-3",
        ORDER,
        "        assessment = self._assess(rollout)\n",
        "        self._rescale(rollout, self._assess(rollout), warming=False)\n"
        "        assessment = self._assess(rollout)\n",
        learner("ppo", "test_an_update_goes_from_rollout_to_epochs_in_the_order_of_the_replay"),
    ),
    Mutant(
        "order-statistics-before-the-rollout-ends",
        "S0-4",
        ORDER,
        "        self.env_state, rollout = self._collect()\n",
        "        self.env_state, rollout = self._collect()\n"
        "        self._commit_observations(rollout, torch.tensor(True))\n",
        learner(
            "ppo", "test_observation_statistics_are_taken_in_after_the_rollout_and_before_the_next"
        ),
    ),
    Mutant(
        "order-raw-advantage",
        "S4-V1",
        ORDER,
        "data = self._batch(rollout, predicted, advantage, target, options)",
        "data = self._batch(\n"
        "            rollout, predicted, assessment.estimates.raw_advantage, target, options\n"
        "        )",
        learner("ppo", "test_advantages_are_normalised_once_a_rollout"),
    ),
    Mutant(
        "order-units-of-scalar-returns",
        "S4-Q1",
        "algorithms/update/assessment.py",
        "outcomes = estimates.outcomes.flatten(0, 1)",
        "outcomes = estimates.returns.flatten()[:, None]",
        learner("ppo", "test_units_are_those_of_what_the_critics_must_resolve"),
    ),
    Mutant(
        "first-units-of-one-reward",
        "units",
        ORDER,
        "            initial_scale(agent, rollout, config)\n",
        "            pass\n",
        learner("update/popart", "test_only_the_first_update_takes_its_units_from_rewards_alone"),
    ),
    Mutant(
        "first-units-carry-a-bootstrap",
        "units",
        "algorithms/update/popart.py",
        "    flags = (rollout.terminated, rollout.truncated)\n",
        "    flags = (rollout.terminated & False, rollout.truncated & False)\n",
        learner("update/popart", "test_the_first_units_are_those_of_the_first_rewards"),
    ),
    Mutant(
        "support-cuts-the-worst-outcome",
        "units",
        "algorithms/update/popart.py",
        "least = min(float(kept.min()), 2.0 * low_bulk - middle)",
        "least = 2.0 * low_bulk - middle",
        learner("update/popart", "test_the_support_reaches_the_worst_outcome"),
    ),
    Mutant(
        "order-refusals-forgotten",
        "refusals",
        ORDER,
        "        self.refusals += 1\n",
        "        self.refusals = 1\n",
        learner("ppo", "test_three_refusals_in_a_row_end_the_run"),
    ),
    Mutant(
        "order-rate-not-set",
        "schedules",
        ORDER,
        "        self._set_rate(now.learning_rate)\n",
        "",
        learner("ppo", "test_every_number_of_an_update_comes_from_its_schedule"),
    ),
    # --- settings, readings and what is left behind
    Mutant(
        "threshold-of-one-by-default",
        "X4",
        "modules/config.py",
        "huber_kappa: Annotated[float, Field(ge=0.0)] = 0.02",
        "huber_kappa: Annotated[float, Field(ge=0.0)] = 1.0",
        learner(
            "update/quantile_critic", "test_the_threshold_of_a_run_is_two_hundredths_of_a_deviation"
        ),
    ),
    Mutant(
        "threshold-lost-on-the-way-to-the-loss",
        "X4",
        TARGETS,
        "            kappa=critic.huber_kappa,\n            target_weight",
        "            kappa=1.0,\n            target_weight",
        learner("update/quantile_critic", "test_the_threshold_reaches_the_loss"),
    ),
    Mutant(
        "critic-levels-upside-down",
        "S2-opt2",
        TARGETS,
        "agent.network.critic.levels().to(predicted.dtype)",
        "1.0 - agent.network.critic.levels().to(predicted.dtype)",
        learner(
            "update/quantile_critic", "test_any_number_of_quantiles_costs_what_all_its_pairs_cost"
        ),
    ),
    Mutant(
        "forward-keeps-what-it-computed",
        "S3-arch",
        "modules/scale.py",
        "scaled = statistics.standardise(",
        "scaled = self.last_scaled = statistics.standardise(",
        learner("no_hidden_state", "test_no_forward_pass_leaves_anything_in_a_module"),
    ),
    Mutant(
        "share-of-held-predictions-counts-ties",
        "S4-V7",
        LOSSES,
        "(clipped_by_critic > by_critic)",
        "(clipped_by_critic >= by_critic)",
        learner("telemetry/clip_shares", "test_where_nothing_is_held_no_share_is"),
    ),
    Mutant(
        "share-of-pairs-by-another-threshold",
        "S4-V7",
        TARGETS,
        "        kappa=agent.spec.critic.huber_kappa,\n        target_weight=atom",
        "        kappa=1.0,\n        target_weight=atom",
        learner("telemetry/clip_shares", "test_the_share_of_pairs_follows_the_threshold"),
    ),
    Mutant(
        "share-of-predictions-is-that-of-pairs",
        "S4-V7",
        LEARNING_REPORT,
        '"train/clip_active_frac/vf": average.vf_clipped',
        '"train/clip_active_frac/vf": average.huber_linear',
        learner(
            "telemetry/clip_shares",
            "test_shares_of_pairs_and_of_held_predictions_are_those_of_the_batch",
        ),
    ),
    Mutant(
        "imitation-on-unless-told-otherwise",
        "X23",
        LEARNING_SETTINGS,
        "awr_coef: NonNegative = 0.0",
        "awr_coef: NonNegative = 1.0",
        learner("config/shipped_configs", "test_leaving_a_setting_out_switches_nothing_on"),
    ),
    Mutant(
        "setting-given-twice-is-taken-once",
        "settings",
        LEARNING_SETTINGS,
        "if former in renamed and name in renamed:",
        "if False:",
        learner("config/former_names", "test_a_setting_given_under_both_names_is_refused"),
    ),
    Mutant(
        "optimizer-alone-has-another-default",
        "X23",
        "optim/upgd/adaptive_upgd.py",
        "        lr_compensation: float = 2.0,\n",
        "        lr_compensation: float = 1.0,\n",
        learner(
            "config/shipped_configs",
            "test_an_optimizer_by_itself_has_the_defaults_of_a_run_but_for_these",
        ),
    ),
    # --- masks, several choices, warm-up
    Mutant(
        "mask-forgotten-at-train-time",
        "masks",
        LOSSES,
        "parameters = network.head.masked(actor, batch.mask)",
        "parameters = network.head.masked(actor, None)",
        learner("update/masks", "test_before_the_first_step_every_ratio_is_one_under_masks"),
    ),
    Mutant(
        "entropy-over-masked-actions",
        "masks",
        LOSSES,
        "entropy = _entropy(agent, parameters, config, generator)",
        "entropy = _entropy(agent, actor, config, generator)",
        learner(
            "update/masks",
            "test_entropy_divergence_and_imitation_are_over_allowed_actions_only",
        ),
    ),
    Mutant(
        "divergence-over-masked-actions",
        "masks",
        LOSSES,
        "analytic = network.head.kl(batch.parameters, parameters)",
        "analytic = network.head.kl(batch.parameters, actor)",
        learner(
            "update/masks",
            "test_entropy_divergence_and_imitation_are_over_allowed_actions_only",
        ),
    ),
    Mutant(
        "mask-forgotten-in-the-risk-gradient",
        "masks",
        "algorithms/risk/gradient.py",
        "parameters = network.head.masked(output.actor, batch.mask)",
        "parameters = output.actor",
        learner("update/masks", "test_the_gradient_of_the_risk_term_knows_the_mask"),
    ),
    Mutant(
        "mask-forgotten-in-the-rollout",
        "masks",
        ROLLOUT,
        "        mask=mask,\n        columns=columns_of(task),\n",
        "        mask=None,\n        columns=columns_of(task),\n",
        learner(
            "update/masks",
            "test_the_mask_of_every_row_is_that_of_the_state_that_was_acted_in",
        ),
    ),
    Mutant(
        "mask-of-the-next-row",
        "masks",
        ROLLOUT,
        '"mask": env_state.ignored.new_empty(task.batch, 0) if mask is None else mask,',
        '"mask": env_state.ignored.new_empty(task.batch, 0)\n'
        "        if mask is None\n"
        "        else task.action_mask(state),",
        learner(
            "update/masks",
            "test_the_mask_of_every_row_is_that_of_the_state_that_was_acted_in",
        ),
    ),
    Mutant(
        "mask-forgotten-in-evaluation",
        "masks",
        "algorithms/run/evaluate.py",
        "mask=action_mask(task, state),",
        "mask=None,",
        learner("update/masks", "test_evaluation_keeps_to_the_masks"),
    ),
    Mutant(
        "warm-up-leaves-the-environments-where-they-are",
        "warm-up",
        ORDER,
        "        scale.commit(rollout.seen)\n"
        '        self.env_state = begin(self.task, self.agent, self.generators.stream("task"))',
        "        scale.commit(rollout.seen)",
        learner(
            "update/warmup",
            "test_environments_that_keep_their_own_state_are_seen_as_they_are",
        ),
    ),
    Mutant(
        "warm-up-sets-no-statistics",
        "warm-up",
        ORDER,
        "        scale.commit(rollout.seen)\n        self.env_state",
        "        self.env_state",
        learner("update/warmup", "test_the_first_rollout_is_normalised"),
    ),
    Mutant(
        "warm-up-over-known-statistics",
        "warm-up",
        ORDER,
        "if not first or bool(scale.count > 0.0):",
        "if not first:",
        learner("update/warmup", "test_it_is_left_out_where_there_is_nothing_to_set"),
    ),
    Mutant(
        "info-means-count-the-ignored-row",
        "infos",
        "algorithms/telemetry/rollout.py",
        "weight = torch.where(column.isfinite(), rollout.weight, 0.0)",
        "weight = torch.where(column.isfinite(), 1.0, 0.0)",
        integration(
            "spaces",
            "test_a_run_reports_the_numbers_of_the_info_in_columns_of_their_own",
        ),
    ),
    Mutant(
        "workers-outlive-a-failed-run",
        "spaces",
        "algorithms/trainer.py",
        "        stack.callback(trainer.close)\n",
        "",
        integration("spaces", "test_processes_are_ended_when_an_environment_fails"),
    ),
    Mutant(
        "epochs-parts-of-a-skipped-minibatch-stay",
        "VGS micro-batches",
        EPOCHS,
        "    pipeline.abandon()\n",
        "",
        learner("update/epochs", "test_a_minibatch_without_a_step_leaves_nothing_to_the_next"),
    ),
    Mutant(
        "upgdw-trained-without-its-decay",
        "UPGDW decay",
        "algorithms/update/optimizers.py",
        '"UPGDW": 0.01',
        '"UPGDW": 0.0',
        learner(
            "update/optimizers",
            "test_in_the_trainer_upgdw_is_adaptive_upgd_and_its_decay",
        ),
    ),
)
