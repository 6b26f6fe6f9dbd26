"""The bugs of what critics learn: targets, losses, clipping, twins, risk."""

from mutants.harness import Mutant
from mutants.nodes import law, unit

RETURNS = "functional/returns.py"
QUANTILE = "functional/quantile.py"
KERNEL = "functional/kernels/losses/quantile_huber.py"
CATEGORICAL = "functional/categorical.py"
CLIP = "functional/value_clip.py"
TWIN = "functional/twin.py"
TAIL = "functional/risk/tail.py"
RISK = "functional/risk/advantage.py"
CHECKS = "functional/_checks.py"
HEADS = "algorithms/update/head_steps.py"
CHECKPOINT = "algorithms/run/checkpoint.py"

# compiled it is the plain formula, on a CPU the kernel
HUBER = "quantile.huber_loss[kappa=0.3]"

CRITICS = (
    # --- advantages and targets
    Mutant(
        "gae-one-mask",
        "X1 S1-P2",
        RETURNS,
        "    done = terminated | truncated\n    rows, following",
        "    done = terminated\n    rows, following",
        unit("returns", "test_gae_of_two_episodes_split_by_a_truncation_is_the_golden_row"),
    ),
    Mutant(
        "gae-truncation-is-worth-nothing",
        "M18 S1-P2",
        RETURNS,
        "next_value = torch.where(terminated, 0.0, bootstrap.double())",
        "next_value = torch.where(terminated | truncated, 0.0, bootstrap.double())",
        unit("returns", "test_a_truncation_bootstraps_and_a_termination_does_not"),
    ),
    Mutant(
        "gae-last-row-without-bootstrap",
        "S1-P2",
        RETURNS,
        "delta = reward.double() + gamma * next_value - value.double()",
        "next_value[-1] = 0.0\n    delta = reward.double() + gamma * next_value - value.double()",
        law("returns", "test_gae_equals_the_brute_force_sum_inside_each_episode"),
    ),
    Mutant(
        "mixture-of-values-not-of-distributions",
        "X5",
        RETURNS,
        "mix.quantiles(boot[t], atoms))",
        "(1.0 - lam) * boot[t] + lam * atoms)",
        law("returns", "test_quantile_lambda_targets_equal_the_distribution_in_rational_numbers"),
    ),
    Mutant(
        "mixture-weights-swapped",
        "X5",
        RETURNS,
        "mix.quantiles(boot[t], atoms))",
        "mix.quantiles(atoms, boot[t]))",
        law("returns", "test_quantile_lambda_targets_equal_the_distribution_in_rational_numbers"),
    ),
    Mutant(
        "mixture-masses-in-float32",
        "X5",
        RETURNS,
        "up_to = torch.addcmul(self.alone, below, self.other_mass)",
        "up_to = self.alone + (below.float() * self.other_mass).long()",
        unit("returns", "test_level_ties_of_many_atoms_read_the_lower_atom"),
    ),
    Mutant(
        "window-one-step-too-long",
        "2.5",
        RETURNS,
        "time + (min(steps, reward.shape[0]) - 1))",
        "time + min(steps, reward.shape[0]))",
        law("returns", "test_quantile_nstep_targets_equal_their_definition"),
    ),
    Mutant(
        "terminal-state-is-worth-something",
        "2.5",
        RETURNS,
        "    final = terminated.gather(0, last).unsqueeze(-1)  # [T, B, 1]\n    tail",
        "    final = torch.zeros_like(terminated).unsqueeze(-1)\n    tail",
        law("returns", "test_quantile_nstep_targets_equal_their_definition"),
    ),
    Mutant(
        "window-runs-into-the-next-episode",
        "X1",
        RETURNS,
        "following = torch.where(head_open[:rows], tail[length:], 0.0)",
        "following = tail[length:].clone()",
        law("returns", "test_nothing_after_an_episode_end_changes_an_earlier_row"),
    ),
    Mutant(
        "terminal-distribution-keeps-its-bootstrap",
        "2.6",
        RETURNS,
        "return torch.where(final, project(total, atoms), probs).to(reward.dtype)",
        "return probs.to(reward.dtype)",
        law("returns", "test_categorical_nstep_targets_equal_their_definition"),
    ),
    # --- quantile critic
    Mutant(
        "quantile-loss-inverted",
        "M01 S1-D1 S3-M3",
        KERNEL,
        "levels = tau.to(dtype)",
        "levels = 1.0 - tau.to(dtype)",
        unit(
            "fits",
            "test_fitted_quantiles_of_an_exponential_distribution_are_its_quantiles_in_order",
        ),
    ),
    Mutant(
        "levels-at-left-edges",
        "S1-D2",
        QUANTILE,
        "((index + 0.5) / n)",
        "(index / n)",
        unit("quantile", "test_four_midpoints_are_the_golden_levels"),
    ),
    Mutant(
        "levels-at-right-edges",
        "S1-D2",
        QUANTILE,
        "((index + 0.5) / n)",
        "((index + 1.0) / n)",
        unit("quantile", "test_four_midpoints_are_the_golden_levels"),
    ),
    Mutant(
        "huber-not-divided-by-kappa",
        "S1-D3",
        KERNEL,
        "/ predicted.shape[-1] / (1.0 if pinball else kappa)",
        "/ predicted.shape[-1]",
        unit("quantile", "test_the_loss_is_divided_by_the_threshold"),
    ),
    Mutant(
        "levels-pull-by-their-variance",
        "critics",
        QUANTILE,
        "(level * (1.0 - level)).rsqrt()",
        "(level * (1.0 - level)).reciprocal()",
        unit("quantile", "test_the_loss_with_gradients_alike_at_all_levels_by_hand"),
    ),
    Mutant(
        "levels-alike-turned-round",
        "critics",
        QUANTILE,
        "weight = torch.where(u < 0, 1.0 - level, level) * pull",
        "weight = torch.where(u < 0, level, 1.0 - level) * pull",
        law("quantile", "test_level_huber_loss_equals_its_definition"),
    ),
    Mutant(
        "remembered-returns-in-old-units",
        "critics",
        HEADS,
        "return self.agent.return_scale.decode(drawn)",
        "return drawn",
        unit(
            "update/head_steps",
            "test_kept_returns_are_reward_units_drawn_from_the_target",
            part="algorithms",
        ),
    ),
    Mutant(
        "atoms-drawn-without-their-mass",
        "critics",
        HEADS,
        "if mass is None:",
        "if mass is not None:",
        unit(
            "update/head_steps",
            "test_draws_of_a_target_have_the_mass_of_its_atoms",
            part="algorithms",
        ),
    ),
    Mutant(
        "heads-learn-from-rows-without-weight",
        "critics",
        HEADS,
        "kept = data.weight > 0.0",
        "kept = data.weight > -1.0",
        unit(
            "update/head_steps",
            "test_only_rows_with_weight_of_the_last_rollouts_are_kept",
            part="algorithms",
        ),
    ),
    Mutant(
        "epochs-train-heads-that-have-steps-of-their-own",
        "critics",
        "algorithms/update/optimizers.py",
        '{"params": heads, "lr": 0.0, RATE_FACTOR: 0.0}',
        '{"params": heads, "lr": rate, RATE_FACTOR: 1.0}',
        unit(
            "update/head_steps",
            "test_the_steps_move_the_heads_and_nothing_else",
            part="algorithms",
        ),
    ),
    Mutant(
        "memory-of-heads-lost-in-a-copy",
        "critics",
        CHECKPOINT,
        "        ppo.heads.load_memory(saved)",
        "        pass",
        unit(
            "update/head_steps",
            "test_a_restored_learner_goes_on_bit_for_bit",
            part="algorithms",
        ),
    ),
    Mutant(
        "optimizer-of-heads-fresh-after-a-resume",
        "critics",
        CHECKPOINT,
        '    with _refusing("heads"):\n'
        "        if ppo.heads is not None:\n"
        '            ppo.heads.load_optimizer(state["heads"])\n'
        '    with _refusing("counters"):\n'
        '        _restore_counters(ppo, state["counters"])\n',
        '    with _refusing("counters"):\n        _restore_counters(ppo, state["counters"])\n',
        unit(
            "update/head_steps",
            "test_a_restored_learner_goes_on_bit_for_bit",
            part="algorithms",
        ),
    ),
    Mutant(
        "huber-rounded-under-autocast",
        "critics",
        QUANTILE,
        'torch.autocast("cpu", enabled=False)',
        'torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu"))',
        unit("quantile", "test_under_autocast_the_loss_keeps_its_digits"),
    ),
    Mutant(
        "huber-kappa-ignored",
        "X4",
        KERNEL,
        "pinball = not isinstance(kappa, Tensor) and kappa == 0.0",
        "pinball = not isinstance(kappa, Tensor)",
        unit("fits", "test_the_tail_fitted_to_a_normal_distribution_falls_short_as_documented"),
    ),
    Mutant(
        "targets-broadcast-over-the-batch",
        "M02",
        QUANTILE,
        '    check.check_same_leading(kind="loss", predicted=predicted, target=target)\n'
        '    check.check_has_axis(axis="atoms", predicted=predicted, target=target)\n'
        "    check.check_floating(",
        "    check.check_floating(",
        unit("quantile", "test_the_loss_refuses_to_broadcast"),
    ),
    Mutant(
        "target-gets-a-gradient",
        "M01",
        QUANTILE,
        '    if predicted.device.type == "cpu":\n'
        '        with torch.autocast("cpu", enabled=False):  # it would round slopes to bfloat16\n'
        "            loss: Tensor = QuantileHuber.apply("
        "predicted, target.detach(), tau, kappa, mass)\n"
        "        return loss.to(predicted.dtype)\n"
        "    if may_launch(predicted, target):\n"
        "        on_device = quantile_pairs.huber_loss("
        "predicted, target.detach(), tau, kappa, mass)\n"
        "        return on_device.to(predicted.dtype)\n"
        "    return _pairwise_huber(predicted, target.detach(), tau, kappa, mass)",
        "    return _pairwise_huber(predicted, target, tau, kappa, mass)",
        law("quantile", "test_targets_get_no_gradient"),
    ),
    Mutant(
        "quantile-target-clipped",
        "S3-FP1",
        QUANTILE,
        "QuantileHuber.apply(predicted, target.detach(), tau, kappa, mass)",
        "QuantileHuber.apply(predicted, target.detach().clamp(-1.0, 1.0), tau, kappa, mass)",
        unit("value_clip", "test_a_quantile_target_far_from_the_old_value_is_never_clipped"),
    ),
    Mutant(
        "crossings-of-one-quantile",
        "S2-opt2",
        QUANTILE,
        "return crossed.sum(-1) / max(quantiles.shape[-1] - 1, 1)",
        "return crossed.mean(-1)",
        unit("quantile", "test_every_number_of_quantiles_works"),
    ),
    Mutant(
        "threshold-itself-counts-as-linear",
        "S4-V7",
        QUANTILE,
        "after = torch.searchsorted(y, theta + kappa, right=True)",
        "after = torch.searchsorted(y, theta + kappa)",
        unit("quantile", "test_huber_active_by_hand"),
    ),
    Mutant(
        "quantile-kernel-slope-of-a-used-buffer",
        "S1-D3",
        KERNEL,
        "            slope[i] = _expected(pull, mass)\n            pairs.addcmul_(pull, size)\n",
        "            pairs.add_(pull.mul_(size))\n            slope[i] = _expected(pull, mass)\n",
        unit("every_formula", f"test_its_gradient_is_the_derivative[{HUBER}]"),
    ),
    Mutant(
        "quantile-kernel-gradient-without-its-scale",
        "S1-D3",
        KERNEL,
        "-(grads[0] * ctx.scale).unsqueeze(-1)",
        "-grads[0].unsqueeze(-1)",
        unit("every_formula", f"test_its_gradient_is_the_derivative[{HUBER}]"),
    ),
    Mutant(
        "quantile-kernel-leaves-the-plain-formula",
        "S1-D1",
        QUANTILE,
        "torch.where(u < 0, 1.0 - level, level)  # [*batch, N, M]",
        "torch.where(u < 0, level, 1.0 - level)  # [*batch, N, M]",
        unit(
            "kernels/traced_huber",
            "test_what_is_recorded_of_the_loss_keeps_its_slope_and_goes_back_by_one_product",
        ),
    ),
    # --- categorical critic
    Mutant(
        "categorical-target-clipped",
        "S3-4",
        CATEGORICAL,
        "return _scatter(ones, value.unsqueeze(-1), atoms).to(value.dtype)",
        "return _scatter(ones, value.clamp(-0.5, 0.5).unsqueeze(-1), atoms).to(value.dtype)",
        unit("categorical", "test_a_target_far_from_the_old_value_enters_the_loss_unclipped"),
    ),
    Mutant(
        "normaliser-in-bits",
        "S4-V3",
        CATEGORICAL,
        "return math.log(count) if",
        "return math.log2(count) if",
        unit("categorical", "test_the_normalised_loss_of_a_uniform_prediction_is_one"),
    ),
    Mutant(
        "shifted-distribution-rebuilt-from-its-mean",
        "X11",
        CATEGORICAL,
        "return _scatter(probs, atoms + shift.unsqueeze(-1), atoms).to(probs.dtype)",
        "return project(distribution_mean(probs, atoms) + shift, atoms)",
        unit("categorical", "test_shifting_a_distribution_passes_a_gradient_to_every_logit"),
    ),
    Mutant(
        "atoms-moved-without-projection",
        "X11",
        CATEGORICAL,
        "return _scatter(probs, support, atoms).to(probs.dtype)",
        "return probs",
        unit(
            "categorical",
            "test_a_moved_support_keeps_mass_and_mean_and_is_not_merely_relabelled",
        ),
    ),
    Mutant(
        "mass-lost-on-an-atom",
        "2.6",
        CATEGORICAL,
        "projected[..., :-1].scatter_add_(-1, lower, probs - upper_mass)",
        "projected[..., :-1].scatter_add_(-1, lower, (probs - upper_mass) * (share > 0))",
        law("categorical", "test_projection_keeps_the_mass_and_inside_the_support_the_mean"),
    ),
    Mutant(
        "edge-of-the-support-counts-as-outside",
        "S4-V7",
        CATEGORICAL,
        "return value < atoms[0], value > atoms[-1]",
        "return value <= atoms[0], value >= atoms[-1]",
        unit("categorical", "test_outside_support_by_hand"),
    ),
    # --- value clipping
    Mutant(
        "spread-inflated-inside-the-band",
        "X12",
        CLIP,
        "torch.where(has_spread, ratio.clamp(max=1.0), 1.0)",
        "torch.where(has_spread, ratio, 1.0)",
        unit("value_clip", "test_mean_and_variance_only_ever_shrinks_the_spread"),
    ),
    Mutant(
        "mean-only-collapses-the-distribution",
        "S3-M1",
        CLIP,
        "return new + (target - mean)",
        "return target.expand_as(new)",
        unit("value_clip", "test_mean_only_moves_the_mean_and_keeps_every_distance"),
    ),
    Mutant(
        "quantiles-clipped-to-the-scalar-old-value",
        "S3-M1",
        CLIP,
        "return old + clamp(new - old, -epsilon, epsilon)",
        "middle = old.mean(-1, keepdim=True)\n"
        "        return middle + clamp(new - middle, -epsilon, epsilon)",
        unit("value_clip", "test_per_quantile_holds_each_quantile_near_its_own_old_one"),
    ),
    Mutant(
        "off-still-clips",
        "S3-M1",
        CLIP,
        '    if mode == "off":\n        return new\n',
        '    if mode == "off":\n        return old + clamp(new - old, -epsilon, epsilon)\n',
        unit("value_clip", "test_off_ignores_the_band"),
    ),
    Mutant(
        "value-limit-forgotten",
        "T-F7",
        CLIP,
        "return (clamp(std * prediction + mean, -limit, limit) - mean) / std",
        "return prediction",
        unit("value_clip", "test_a_value_limit_holds_predictions_and_leaves_targets"),
    ),
    Mutant(
        "own-old-values-shared-between-critics",
        "S1-T2",
        CLIP,
        "return old_mean + clamp(mean - old_mean, -epsilon, epsilon)",
        "old_mean = old_mean.amin().expand_as(old_mean)\n"
        "    return old_mean + clamp(mean - old_mean, -epsilon, epsilon)",
        unit("twin", "test_each_critic_is_clipped_against_its_own_old_values"),
    ),
    Mutant(
        "value-band-in-percent",
        "X18",
        CLIP,
        "return old_mean + clamp(mean - old_mean, -epsilon, epsilon)",
        "band = epsilon * old_mean.abs()\n"
        "    return old_mean + torch.maximum(torch.minimum(mean - old_mean, band), -band)",
        unit("value_clip", "test_mean_and_variance_by_hand"),
    ),
    # --- twin critics
    Mutant(
        "first-critic-only",
        "S1-T1",
        TWIN,
        'return values.amin(-1) if mode == "min" else values.mean(-1)',
        'return values[..., 0] if mode == "min" else values.mean(-1)',
        unit("twin", "test_the_smaller_of_two_biased_heads_is_the_unbiased_one"),
    ),
    Mutant(
        "optimistic-critic",
        "S1-T1",
        TWIN,
        'return values.amin(-1) if mode == "min" else values.mean(-1)',
        'return values.amax(-1) if mode == "min" else values.mean(-1)',
        unit("twin", "test_the_smaller_of_two_biased_heads_is_the_unbiased_one"),
    ),
    Mutant(
        "critics-averaged-before-the-maximum",
        "S3-1",
        TWIN,
        "return torch.maximum(loss, clipped_loss).mean(-1)",
        "return torch.maximum(loss.mean(-1), clipped_loss.mean(-1))",
        unit("twin", "test_the_joint_loss_takes_each_critics_worse_branch_and_then_the_mean"),
    ),
    Mutant(
        "only-the-first-critic-is-clipped",
        "S3-1",
        TWIN,
        "return torch.maximum(loss, clipped_loss).mean(-1)",
        "clipped_loss = torch.cat((clipped_loss[..., :1], loss[..., 1:]), -1)\n"
        "    return torch.maximum(loss, clipped_loss).mean(-1)",
        unit("twin", "test_twin_critics_vf_clipping"),
    ),
    Mutant(
        "maximum-of-the-means-over-samples",
        "S4-V6",
        TWIN,
        "return torch.maximum(loss, clipped_loss).mean(-1)",
        "worse = torch.maximum(loss.mean(0, keepdim=True), clipped_loss.mean(0, keepdim=True))\n"
        "    return worse.expand_as(loss).mean(-1)",
        unit("twin", "test_the_worse_branch_is_taken_for_each_sample"),
    ),
    # --- risk
    Mutant(
        "cvar-not-divided-by-alpha",
        "S0-6",
        TAIL,
        "((alpha * n - rank).clamp(0.0, 1.0) / (alpha * n))",
        "((alpha * n - rank).clamp(0.0, 1.0) / n)",
        unit("risk", "test_the_tail_of_a_uniform_distribution_is_half_its_level"),
    ),
    Mutant(
        "cvar-whole-atoms-only",
        "S2-6",
        TAIL,
        "((alpha * n - rank).clamp(0.0, 1.0) / (alpha * n))",
        "((int(alpha * n) - rank).clamp(0.0, 1.0) / max(int(alpha * n), 1))",
        unit("risk", "test_the_golden_table_of_the_normal_distribution_at_21_quantiles"),
    ),
    Mutant(
        "cvar-reads-the-upper-tail",
        "M01",
        TAIL,
        "ordered, order = quantiles.sort(-1)\n    if weight is None",
        "ordered, order = quantiles.sort(-1, descending=True)\n    if weight is None",
        unit("risk", "test_the_golden_table_of_the_normal_distribution_at_21_quantiles"),
    ),
    Mutant(
        "cvar-of-unsorted-quantiles",
        "2.5",
        TAIL,
        "ordered, order = quantiles.sort(-1)\n    if weight is None",
        "ordered = quantiles\n    if weight is None",
        law("risk", "test_cvar_equals_its_definition"),
    ),
    Mutant(
        "cvar-mixes-integration-rules",
        "M05",
        TAIL,
        "towards_right = ((start + stop) / 2 - level[:-1]) * n",
        "towards_right = (stop - level[:-1]) * n",
        law("risk", "test_linear_cvar_equals_the_exact_integral_of_the_curve"),
    ),
    Mutant(
        "cvar-tail-mass-floored",
        "S4-2",
        TAIL,
        "((alpha * n - rank).clamp(0.0, 1.0) / (alpha * n))",
        "((alpha * n - rank).clamp(0.0, 1.0) / max(alpha * n, 1.0))",
        law("risk", "test_the_gradient_of_cvar_is_the_share_of_each_atom_in_the_tail"),
    ),
    Mutant(
        "var-one-atom-too-high",
        "2.12",
        TAIL,
        ".ceil().long().clamp(1, n) - 1",
        ".ceil().long().clamp(0, n - 1)",
        law("risk", "test_value_at_risk_reads_the_lower_atom_on_every_exact_tie"),
    ),
    Mutant(
        "whole-atom-in-the-tail",
        "2.6",
        TAIL,
        "return torch.minimum((tail - before).clamp(min=0.0), mass)",
        "return torch.where(before < tail, mass, 0.0)",
        law("risk", "test_categorical_risk_equals_its_definition"),
    ),
    Mutant(
        "risk-term-trains-the-critic",
        "M06 X3 S3-3",
        RISK,
        "    sampled_return, quantiles = sampled_return.detach(), quantiles.detach()\n",
        "",
        unit("risk", "test_cvar_constraint_gradient_flow"),
    ),
    Mutant(
        "risk-advantage-sign",
        "X3",
        RISK,
        "return shortfall / alpha - (cvar(quantiles, alpha=alpha, weight=weight) - level)",
        "return (cvar(quantiles, alpha=alpha, weight=weight) - level) - shortfall / alpha",
        unit("risk", "test_cvar_constraint_gradient_flow"),
    ),
    Mutant(
        "budget-ignored",
        "X3",
        RISK,
        "level = budget.detach().unsqueeze(-1)",
        "level = torch.zeros_like(budget).unsqueeze(-1)",
        law("risk", "test_budget_advantage_equals_its_definition"),
    ),
    Mutant(
        "empirical-tail-winsorised",
        "X7",
        TAIL,
        "ordered, order = torch.where(used, sample, torch.inf).sort(-1)",
        "ordered, order = torch.where(used, sample, torch.inf).sort(-1)\n"
        "    ordered = ordered.clamp(min=ordered.quantile(0.1, dim=-1, keepdim=True))",
        law("risk", "test_empirical_cvar_equals_its_definition"),
    ),
    Mutant(
        "curve-not-extrapolated",
        "S3-10",
        TAIL,
        "towards_right = ((start + stop) / 2 - level[:-1]) * n",
        "towards_right = (((start + stop) / 2 - level[:-1]) * n).clamp(0.0, 1.0)",
        unit("risk", "test_a_level_below_the_first_quantile_is_defined"),
    ),
    Mutant(
        "negative-index-below-the-first-atom",
        "S3-10",
        TAIL,
        ".ceil().long().clamp(1, n) - 1",
        ".floor().long() - 1",
        unit("risk", "test_a_level_below_the_first_quantile_is_defined"),
    ),
    Mutant(
        "one-quantile-has-no-tail",
        "S2-opt2",
        TAIL,
        "    if n == 1:\n        return torch.ones(1, dtype=like.dtype, device=like.device)\n",
        "",
        unit("risk", "test_a_level_below_the_first_quantile_is_defined"),
    ),
    Mutant(
        "alpha-not-bounded-above",
        "M09",
        CHECKS,
        "and not 0.0 < alpha <= 1.0:",
        "and not 0.0 < alpha:",
        unit("risk", "test_a_level_outside_its_interval_is_refused"),
    ),
)
