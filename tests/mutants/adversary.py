"""The bugs of adversarial training."""

from mutants.harness import Mutant
from mutants.nodes import unit

ATTACK = "algorithms/update/adversary.py"
LOSSES = "algorithms/update/losses.py"
TASK = "core/task.py"
SCHEDULES = "algorithms/update/schedules.py"
ROLLOUT = "algorithms/update/rollout.py"
PPO = "algorithms/ppo.py"


def attack(*names: str) -> tuple[str, ...]:
    return unit("update/adversary", *names, part="algorithms")


def attacked(*names: str) -> tuple[str, ...]:
    return unit("update/attacked_losses", *names, part="algorithms")


def misled(*names: str) -> tuple[str, ...]:
    return unit("update/forged_rollouts", *names, part="algorithms")


ADVERSARY = (
    Mutant(
        "attack-lowers-the-loss",
        "S1-S1",
        ATTACK,
        "torch.where(weight > 0.0, rows * weight, 0.0).sum()",
        "-torch.where(weight > 0.0, rows * weight, 0.0).sum()",
        attack("test_an_attack_on_a_quadratic_reaches_the_corner_of_the_box"),
    ),
    Mutant(
        "attack-forges-every-column",
        "S1-S1",
        ATTACK,
        "mask = mask.index_fill(0, adversary.columns, 1.0) > 0.0",
        "mask = mask.index_fill(0, adversary.columns, 1.0) >= 0.0",
        attack("test_only_forged_columns_and_rows_that_count_are_touched"),
    ),
    Mutant(
        "attack-forges-rows-that-do-not-count",
        "S1-S1",
        ATTACK,
        "allowed = mask & (weight > 0.0)[..., None]",
        "allowed = mask & (weight >= 0.0)[..., None]",
        attack("test_only_forged_columns_and_rows_that_count_are_touched"),
    ),
    Mutant(
        "attack-starts-at-the-observation",
        "S1-S1",
        ATTACK,
        "    if not config.random_init:\n",
        "    if True:\n",
        attack("test_a_random_start_is_uniform_in_the_ball_of_the_forged_columns"),
    ),
    Mutant(
        "attack-passes-the-clip-of-the-normaliser",
        "S1-S1",
        ATTACK,
        "    if normalised is not None:\n",
        "    if False:\n",
        attack("test_no_forgery_passes_the_clip_of_the_normaliser"),
    ),
    Mutant(
        "attack-bounded-by-the-last-pattern",
        "S1-S1",
        ATTACK,
        "low[places[pattern]] = low[places[pattern]].clamp(min=least)",
        "low[places[pattern]] = least",
        attack("test_a_column_may_have_bounds_of_its_own_and_the_narrowest_count"),
    ),
    Mutant(
        "attack-told-of-no-normaliser",
        "S1-S1",
        PPO,
        "normalised = ~agent.observation_scale.frozen if config.observation.normalise else None",
        "normalised = None",
        attack("test_a_learner_tells_its_adversary_what_it_normalises"),
    ),
    Mutant(
        "attack-forgets-the-memory",
        "X8",
        ATTACK,
        "features, _ = network.features(observation, memory, reset)",
        "features, _ = network.features(observation, memory, torch.ones_like(reset))",
        attack("test_an_attack_goes_through_the_memory"),
    ),
    Mutant(
        "adversary-forges-the-clock",
        "X8",
        "market/simulator/simulator.py",
        "for bound in self.features.bound if bound.feature.forgeable)",
        "for bound in self.features.bound)",
        attack("test_a_market_lets_bars_be_forged_and_neither_account_nor_clock"),
    ),
    Mutant(
        "adversary-forges-flags",
        "X8",
        TASK,
        "known = {*account_names(task), *layout.unscaled}",
        "known = {*account_names(task)}",
        attack("test_flags_are_not_forged_and_images_are_by_their_name"),
    ),
    Mutant(
        "attacked-share-rounded-in-each-part",
        "S1-S2",
        ATTACK,
        "return math.floor(share * end + 0.5) - math.floor(share * begin + 0.5)",
        "return math.floor(share * (end - begin) + 0.5)",
        attack("test_counts_add_up_to_the_share_however_an_epoch_is_cut"),
    ),
    Mutant(
        "attacked-rows-of-other-targets",
        "S1-S2",
        LOSSES,
        "mixed = parameters.index_copy(1, attacked.chosen, attacked.parameters)",
        "mixed = parameters.index_copy(1, attacked.chosen.flip(0), attacked.parameters)",
        attacked("test_the_mixed_loss_is_that_of_the_replay"),
    ),
    Mutant(
        "attacked-last-sequences",
        "S1-S2 X8",
        LOSSES,
        "order = torch.randperm(total, generator=source, device=source.device)",
        "order = torch.arange(total, device=source.device).flip(0)",
        attacked("test_the_attacked_sequences_are_a_random_subset"),
    ),
    Mutant(
        "attack-without-radius",
        "S1-S2",
        LOSSES,
        "if adversary is None or count == 0 or now.epsilon == 0.0:",
        "if adversary is None or count == 0:",
        attacked("test_without_radius_or_share_the_loss_is_the_clean_one_bit_for_bit"),
    ),
    Mutant(
        "attack-without-radius-is-not-compiled",
        "S1-S2",
        "algorithms/update/graphs.py",
        "    if config.adversary.attacks_minibatches and config.adversary.forges:\n",
        "    if config.adversary.attacks_minibatches:\n",
        unit(
            "update/compiled",
            "test_an_adversary_that_forges_nothing_leaves_everything_compiled",
            part="algorithms",
        ),
    ),
    Mutant(
        "robust-kl-trains-the-clean-side",
        "S1-S3",
        LOSSES,
        "fixed = clean.detach().index_select(1, chosen)",
        "fixed = clean.index_select(1, chosen)",
        attacked("test_the_divergence_carries_gradient_on_its_attacked_side_alone"),
    ),
    Mutant(
        "robust-kl-as-a-number",
        "S1-S3",
        LOSSES,
        "robust = torch.zeros_like(loss).index_copy(1, attacked.chosen, attacked.divergence)",
        "robust = torch.zeros_like(loss).index_copy(\n"
        "                1, attacked.chosen, attacked.divergence.detach()\n            )",
        attacked("test_the_divergence_carries_gradient_on_its_attacked_side_alone"),
    ),
    Mutant(
        "entropy-of-attacked-rows",
        "S1-S4",
        LOSSES,
        "entropy = _entropy(agent, parameters, config, generator)",
        "entropy = _entropy(agent, mixed, config, generator)",
        attacked("test_the_entropy_bonus_is_that_of_all_clean_rows"),
    ),
    Mutant(
        "stop-hears-attacked-rows",
        "X8",
        LOSSES,
        "    log_ratio = log_prob - old_log_prob\n    if mixed is parameters:",
        "    log_ratio = mixed_log_prob - old_log_prob\n    if mixed is parameters:",
        attacked("test_early_stop_and_the_readings_of_ratios_see_clean_rows"),
    ),
    Mutant(
        "attack-on-the-critics-left-out",
        "X8",
        LOSSES,
        "        rows = rows + now.vf_coef * losses\n",
        "",
        attacked("test_an_attack_raises_the_loss_it_is_set_on"),
    ),
    Mutant(
        "radius-without-its-warm-up",
        "X8",
        SCHEDULES,
        "return float(planned) * perturbation.ramp(update=update, updates=config.warmup_updates)",
        "return float(planned)",
        attack("test_the_radius_is_a_function_of_the_update_and_nothing_else"),
    ),
    Mutant(
        "rollout-misleads-every-environment",
        "rollout",
        ATTACK,
        "network, clean = agent.network, len(seen) - self.attacked",
        "network, clean = agent.network, 0",
        misled("test_the_last_environments_are_misled_and_the_first_see_the_truth"),
    ),
    Mutant(
        "rollout-attacked-from-an-empty-memory",
        "rollout",
        ATTACK,
        "true, before = seen[None, clean:], memory[clean:]",
        "true, before = seen[None, clean:], 0.0 * memory[clean:]",
        misled("test_a_decision_is_attacked_from_the_memory_that_the_agent_has"),
    ),
    Mutant(
        "rollout-forgery-in-the-statistics",
        "rollout",
        ROLLOUT,
        '"raw": env_state.observation,',
        '"raw": seen,',
        misled("test_the_world_and_its_statistics_are_the_real_ones"),
    ),
    Mutant(
        "rollout-learned-on-the-truth",
        "rollout",
        ROLLOUT,
        '"observation": seen,',
        '"observation": true,',
        misled("test_experience_is_that_of_the_policy_on_what_it_was_shown"),
    ),
    Mutant(
        "rollout-bootstraps-from-the-truth",
        "rollout",
        ROLLOUT,
        "seen = _shown(agent, true, last.memory, action_mask(task, last.state), forger)",
        "seen = true",
        misled("test_what_follows_the_last_step_is_shown_forged_too"),
    ),
    Mutant(
        "rollout-attacked-again-in-the-epochs",
        "rollout",
        PPO,
        "adversary=self.adversary if attacked else None,",
        "adversary=self.adversary,",
        misled("test_the_epochs_see_the_rows_of_the_rollout_and_no_further_attack"),
    ),
    Mutant(
        "rollout-forged-without-radius",
        "rollout",
        ATTACK,
        "if adversary is None or not config.attacks_rollouts or epsilon == 0.0 or count == 0:",
        "if adversary is None or not config.attacks_rollouts or count == 0:",
        misled("test_while_the_radius_is_0_or_no_environment_is_attacked_nobody_forges"),
    ),
)
