"""The bugs of population-based training: rules, copies, learning rates, resumption."""

from mutants.harness import Mutant
from mutants.nodes import integration, law, unit

RULES = "functional/population.py"
DRIVER = "algorithms/population/population.py"
DECISIONS = "algorithms/population/decisions.py"
EXPLOIT = "algorithms/population/exploit.py"
LEDGER = "algorithms/population/ledger.py"
CHECKPOINT = "algorithms/run/checkpoint.py"
FOLDER = "algorithms/run/folder.py"
ORDER = "algorithms/ppo.py"
SAVED = "evaluation/populations.py"
DRAWN = "evaluation/report/population_section.py"
BENCH = "bench/learner/population.py"


def whole(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of whole populations."""
    return integration("population", *names)


def audit(*names: str) -> tuple[str, ...]:
    """Return node ids of tests that the audits named."""
    return integration("audit_fixes", *names)


def shown(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of what a report shows of populations."""
    return unit("report/population_section", *names, part="evaluation")


def compared(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the benchmark of populations."""
    return unit("learner/population", *names, part="bench")


POPULATION = (
    Mutant(
        "members-compile-anew-in-every-round",
        "Speed",
        DRIVER,
        "base = derive(in_parts(given.training(), round_steps))",
        "base = derive(given.training())",
        unit(
            "population/driver",
            "test_members_compile_where_a_round_is_long_enough_for_it",
            part="algorithms",
        ),
    ),
    # --- the rules
    Mutant(
        "pbt-count-rounded-to-zero",
        "X6",
        RULES,
        "return min(n // 2, max(1, math.floor(ratio * n)))",
        "return min(n // 2, math.floor(ratio * n))",
        unit("population", "test_two_and_three_members_still_exploit"),
    ),
    Mutant(
        "pbt-best-member-perturbed",
        "X6",
        DECISIONS,
        "if source == member or not math.isfinite(fitness[source]):",
        "if not math.isfinite(fitness[source]):",
        whole("test_every_round_the_worst_copies_the_best_and_nobody_else_changes"),
    ),
    Mutant(
        "pbt-rates-above-the-bound-are-cut-off",
        "X6",
        "algorithms/population/config.py",
        "if number < least or (most is not None and number > most):",
        "if number < least:",
        whole("test_rates_beyond_the_bounds_of_the_optimizer_are_refused"),
    ),
    Mutant(
        "pbt-fitness-on-the-bars-of-training",
        "X6",
        "algorithms/population/fitness.py",
        "return sharpe_during(market_data(config).validation, market_panel(config), agent)",
        "return sharpe_during(market_data(config).train, market_panel(config), agent)",
        unit(
            "population",
            "test_fitness_of_a_market_is_the_sharpe_ratio_on_the_evaluation_span",
            part="algorithms",
        ),
    ),
    Mutant(
        "pbt-fitness-behind-the-end-of-the-data",
        "X6",
        "algorithms/run/tasks.py",
        "last = after if data.end is None else _milliseconds(data.end)",
        "last = after",
        unit(
            "population",
            "test_fitness_sees_no_bar_behind_the_end_of_the_data",
            part="algorithms",
        ),
    ),
    Mutant(
        "pbt-neighbour-wraps-around",
        "X6",
        RULES,
        "moved = (index + torch.where(uniform[..., 2] < 0.5, 1, -1)).clamp(0, count - 1)",
        "moved = (index + torch.where(uniform[..., 2] < 0.5, 1, -1)) % count",
        unit("population", "test_a_choice_at_an_end_stays_there"),
    ),
    Mutant(
        "pbt-unknown-fitness-wins",
        "X6",
        RULES,
        'return torch.argsort(-fitness if mode == "max" else fitness, stable=True)',
        'return torch.argsort(fitness, descending=mode == "max", stable=True)',
        unit(
            "population",
            "test_an_unknown_fitness_is_the_worst_in_both_modes_and_ties_go_by_number",
        ),
    ),
    Mutant(
        "pbt-opponent-may-be-oneself",
        "X6",
        RULES,
        "opponent = (drawn + (drawn >= members)).clamp(max=size - 1)",
        "opponent = drawn.clamp(max=size - 1)",
        law("population", "test_a_tournament_copies_only_a_better_rival"),
    ),
    # --- what a copy takes over
    Mutant(
        "pbt-copy-keeps-its-own-fitness",
        "X6",
        DRIVER,
        "return [fitness[decision.source] for decision in before]",
        "return [fitness[decision.member] for decision in before]",
        unit(
            "driver",
            "test_a_copy_inherits_the_smoothed_fitness_of_its_source",
            part="algorithms/population",
        ),
    ),
    Mutant(
        "pbt-learner-built-from-old-values",
        "S2-4",
        EXPLOIT,
        "ppo = new_learner(with_values(config, exploit.values), task, bound)",
        "ppo = new_learner(config, task, bound)",
        audit("test_pbt_lr_applied_with_reset_strategy"),
    ),
    Mutant(
        "pbt-rate-in-the-first-group-only",
        "S2-4",
        ORDER,
        "for place, group in enumerate(self.optimizer.param_groups):",
        "for place, group in enumerate(self.optimizer.param_groups[:1]):",
        audit("test_pbt_lr_applied_with_reset_strategy"),
    ),
    Mutant(
        "pbt-copied-optimizer-keeps-its-settings",
        "S2-4",
        CHECKPOINT,
        'ppo.optimizer.load_state_dict({**ppo.optimizer.state_dict(), "state": entries})',
        'ppo.optimizer.load_state_dict(state["optimizer"])',
        whole("test_every_value_is_read_back_from_what_the_learner_uses"),
    ),
    Mutant(
        "pbt-rate-left-to-the-next-update",
        "S2-4",
        CHECKPOINT,
        "    ppo.apply_rate()\n",
        "",
        audit("test_pbt_lr_applied_with_copy_strategy"),
    ),
    Mutant(
        "pbt-halving-is-inherited",
        "X6",
        CHECKPOINT,
        '_restore_counters(ppo, {**state["counters"], "rate_factor": 1.0, "refusals": 0})',
        '_restore_counters(ppo, state["counters"])',
        whole("test_streams_stay_the_members_own_and_memory_begins_anew"),
    ),
    Mutant(
        "pbt-streams-are-copied",
        "X6",
        CHECKPOINT,
        'ppo.generators.restore(own["generators"])',
        'ppo.generators.restore(state["generators"])',
        whole("test_streams_stay_the_members_own_and_memory_begins_anew"),
    ),
    Mutant(
        "pbt-kill-leaves-half-a-copy",
        "X6",
        FOLDER,
        "                _finish_copy(folder, run.lineage)\n",
        "",
        whole(
            "test_a_member_killed_in_its_copy_or_judgement_goes_on_with_the_same_bits",
        ),
    ),
    # --- what is logged
    Mutant(
        "pbt-log-names-the-wished-rate",
        "S2-log",
        LEDGER,
        "rate = round_.outcomes[decision.member].applied.get(LEARNING_RATE)",
        "rate = decision.values.get(LEARNING_RATE)",
        whole("test_the_log_names_the_rate_that_the_learner_used"),
    ),
    # --- what a report shows
    Mutant(
        "population-line-ignores-copies",
        "report",
        SAVED,
        "line.append(round_.sources[line[-1]])",
        "line.append(line[-1])",
        shown("test_the_line_of_the_best_goes_through_everybody_who_trained_its_weights"),
    ),
    Mutant(
        "population-first-values-after-copies",
        "report",
        SAVED,
        "        if copies:\n",
        "        if not copies and copies:\n",
        shown("test_rounds_values_and_copies_are_those_of_the_ledger"),
    ),
    Mutant(
        "population-arrow-from-the-copy",
        "report",
        DRAWN,
        "rows[copy.source])",
        "rows[copy.member])",
        shown("test_a_picture_has_a_line_a_member_and_an_arrow_a_copy"),
    ),
    # --- the benchmark
    Mutant(
        "pbt-bench-fixed-draws-copy",
        "population",
        BENCH,
        "planned.append(Job(FIXED, seed, _without_copies(plan), place, workers))",
        "planned.append(Job(FIXED, seed, plan, place, workers))",
        compared("test_the_arms_of_a_repeat_differ_in_their_rounds_alone"),
    ),
    Mutant(
        "pbt-bench-repeats-share-seeds",
        "population",
        BENCH,
        '"seed": seed * searched.population_size',
        '"seed": seed',
        compared("test_repeats_share_neither_world_nor_seeds_nor_first_values"),
    ),
    Mutant(
        "pbt-bench-judged-on-the-fitness-bars",
        "population",
        BENCH,
        "return Span(int(seen.ts[-1]) + length, int(whole.ts[-1]) + length)",
        "return Span(int(seen.ts[0]) + length, int(seen.ts[-1]) + length)",
        compared("test_unseen_bars_are_the_last_quarter_and_behind_those_of_the_fitness"),
    ),
    Mutant(
        "pbt-bench-chosen-by-the-unseen-bars",
        "population",
        BENCH,
        "return self.unseen[self.chosen]",
        "return max(self.unseen)",
        compared("test_differences_are_those_of_pairs"),
    ),
    Mutant(
        "pbt-bench-gain-without-its-interval",
        "population",
        BENCH,
        "line.gain.mean - line.gain.half > 0.0",
        "line.gain.mean > 0.0",
        compared("test_a_gain_whose_interval_reaches_0_is_not_proven"),
    ),
    Mutant(
        "pbt-bench-judges-another-policy",
        "population",
        BENCH,
        "agent.judged_policy = evaluated",
        'agent.judged_policy = "greedy"',
        compared("test_the_policy_that_is_judged_is_the_one_of_the_evaluations"),
    ),
    Mutant(
        "members-that-begin-late-miss-a-signal",
        "population",
        "algorithms/population/engines/in_process.py",
        "                    relay.repeat()\n",
        "",
        unit(
            "population/engines/in_process",
            "test_a_signal_ends_every_member_also_one_that_begins_after_it",
            part="algorithms",
        ),
    ),
)
