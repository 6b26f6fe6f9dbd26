"""The bugs of attacks on a trained agent: of what its robustness is said to be."""

from mutants.harness import Mutant
from mutants.nodes import unit

ATTACKERS = "evaluation/attack/attackers.py"
COLUMNS = "evaluation/attack/columns.py"
EPISODES = "evaluation/attack/episodes.py"
ADVERSARY = "evaluation/attack/adversary.py"
INTERVALS = "evaluation/stats/tail_intervals.py"


def forged(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of attacks."""
    return unit(f"attack/{name}", *tests, part="evaluation")


PAIRED = forged("curve", "test_points_have_paired_intervals")
MEMORY = forged("curve", "test_the_agent_remembers_what_it_was_shown_and_the_task_does_not_see_it")
TASK = forged("curve", "test_the_adversarys_task_pays_minus_the_agents_reward_and_keeps_its_memory")

ATTACK = (
    Mutant(
        "attack-last-iterate-kept",
        "attack",
        ATTACKERS,
        "better = height.detach() > value",
        "better = height.detach() == height.detach()",
        forged("attackers", "test_the_best_iterate_of_all_starts_is_kept_row_by_row"),
    ),
    Mutant(
        "attack-raises-the-value",
        "attack",
        ATTACKERS,
        "return -agent.network.critic.value(predicted)",
        "return agent.network.critic.value(predicted)",
        forged(
            "attackers",
            "test_the_critics_attack_lowers_the_value_that_the_critics_give_with_this_memory",
        ),
    ),
    Mutant(
        "attack-with-an-empty-memory",
        "attack",
        ATTACKERS,
        "features, _ = network.features(shown, situation.memory, _no_reset(shown))",
        "features, _ = network.features(shown, situation.memory, ~_no_reset(shown))",
        forged("attackers", "test_the_objective_reads_the_memory_that_the_agent_has"),
    ),
    Mutant(
        "attack-steps-too-short-to-cross",
        "attack",
        ATTACKERS,
        "STEP_SHARE = 2.5",
        "STEP_SHARE = 0.25",
        forged("attackers", "test_the_worst_forgery_of_a_linear_loss_is_reached"),
    ),
    Mutant(
        "attack-forges-what-is-known",
        "attack",
        COLUMNS,
        "outside = tasks.forgeable_names(task)",
        "outside = task.observation_names",
        forged("attackers", "test_only_features_of_the_market_are_forged"),
    ),
    Mutant(
        "attack-beyond-the-clip",
        "attack",
        COLUMNS,
        "low=-CLIP, high=CLIP",
        "low=None, high=None",
        forged(
            "attackers",
            "test_a_forgery_stops_at_the_clip_of_the_normaliser_only_where_there_is_one",
        ),
    ),
    Mutant(
        "attack-memory-of-the-clean-decision",
        "attack",
        EPISODES,
        "observation, memory = step.observation, decision.memory",
        "observation, memory = step.observation, clean.memory",
        MEMORY,
    ),
    Mutant(
        "attack-takes-the-agents-draws",
        "attack",
        EPISODES,
        "        generator.set_state(before)",
        "        generator.get_state()",
        forged("curve", "test_radius_zero_is_the_clean_evaluation_bit_for_bit"),
    ),
    Mutant(
        "attack-change-without-the-range",
        "attack",
        EPISODES,
        "((first - second).abs() / (high - low).double()).mean(-1)",
        "(first - second).abs().mean(-1)",
        forged("curve", "test_how_much_a_decision_changed"),
    ),
    Mutant(
        "adversary-helps-the-agent",
        "attack",
        ADVERSARY,
        "step._replace(reward=-step.reward)",
        "step._replace(reward=step.reward)",
        TASK,
    ),
    Mutant(
        "adversary-memory-goes-on-in-the-next-episode",
        "attack",
        ADVERSARY,
        "fresh=state.ignored,",
        "fresh=state.fresh,",
        TASK,
    ),
    Mutant(
        "adversary-leaves-the-l2-ball",
        "attack",
        COLUMNS,
        'if self.norm == "linf":\n            return delta',
        "if self.norm:\n            return delta",
        TASK,
    ),
    Mutant(
        "attack-cvar-unpaired",
        "attack",
        INTERVALS,
        "difference = _influence(after, alpha) - _influence(before, alpha)",
        "difference = _influence(after, alpha) + _influence(before, alpha)",
        PAIRED,
    ),
    Mutant(
        "attack-interval-of-one-episode",
        "attack",
        INTERVALS,
        "FEWEST_IN_TAIL = 2",
        "FEWEST_IN_TAIL = 1",
        forged("curve", "test_a_tail_of_one_episode_has_no_interval"),
    ),
    Mutant(
        "attack-as-large-as-the-agents-own-spread",
        "attack",
        COLUMNS,
        "            whole = whole * self.unit\n",
        "            whole = whole * 1.0\n",
        forged("attackers", "test_agents_with_other_normalisers_are_moved_alike_in_shared_units"),
    ),
    Mutant(
        "robust-pairs-attacked-in-their-own-units",
        "attack",
        "bench/robust/robust.py",
        "attacked = replace(plan, units=tuple(units.items()))",
        "attacked = plan",
        unit(
            "robust/robust",
            "test_both_agents_of_a_pair_are_attacked_in_units_of_the_task",
            part="bench",
        ),
    ),
)
