"""The bugs of `stormsail bench limits`: unseen episodes, intervals, baselines, verdicts."""

from mutants.harness import Mutant
from mutants.nodes import unit

UNSEEN = "bench/risk/unseen.py"
BASELINES = "bench/risk/limits_baselines.py"
ORDER = "bench/risk/limits.py"
VERDICTS = "bench/risk/limits_verdicts.py"


def _unseen(name: str, old: str, new: str, test: str) -> Mutant:
    tests = unit("risk/unseen", test, part="bench")
    return Mutant(f"limits-{name}", "bench", UNSEEN, old, new, tests)


def _limits(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    tests = unit("risk/limits", test, part="bench")
    return Mutant(f"limits-{name}", "bench", file, old, new, tests)


LIMITS = (
    _unseen(
        "overlapping-weeks-are-independent",
        "BLOCK_EPISODES * bars if starts > 1 else bars)",
        "bars)",
        "test_overlapping_weeks_are_in_blocks_of_four_and_those_apart_in_blocks_of_one",
    ),
    _unseen(
        "normal-interval-of-a-dozen-blocks",
        "stdtrit(len(group.unique()) - 1, 0.975)",
        "stdtrit(len(sample) - 1, 0.975)",
        "test_the_interval_of_a_mean_is_the_one_of_clustered_means",
    ),
    _unseen(
        "interval-of-the-wrong-side",
        "Estimate(centre, centre - high * scale, centre - low * scale)",
        "Estimate(centre, centre + low * scale, centre + high * scale)",
        "test_the_interval_of_a_tail_is_that_of_resampled_groups_in_loops[40]",
    ),
    _unseen(
        "an-ended-episode-goes-on",
        "running &= ~(shown.terminated | shown.truncated)",
        "running &= ~shown.truncated",
        "test_an_episode_that_ends_early_is_over",
    ),
    _limits(
        "training-sees-a-judged-bar",
        ORDER,
        "return (len(ts) - cut - 0.5) / len(ts)",
        "return (len(ts) - cut - 1.5) / len(ts)",
        "test_bars_are_divided_in_the_row_that_the_day_says",
    ),
    _limits(
        "rows-of-other-bars",
        ORDER,
        '"bars": bars, ',
        "",
        "test_a_run_is_known_by_its_settings_and_bars_and_not_by_where_they_lie",
    ),
    _limits(
        "baselines-set-on-judged-bars",
        ORDER,
        "scale = at_cvar(seen, earlier, limit)",
        "scale = at_cvar(unseen, strategy, limit)",
        "test_agents_and_baselines_are_judged_by_the_same_episodes",
    ),
    _limits(
        "proven-by-the-estimate",
        ORDER,
        "return self.cvar_low >= limit",
        "return self.cvar >= limit",
        "test_a_limit_is_kept_proven_or_not_broken_by_estimate_lower_and_upper_end",
    ),
    _limits(
        "multiplier-beyond-the-crossing",
        BASELINES,
        "return Match(low, best,",
        "return Match(high, best,",
        "test_a_strategy_is_scaled_to_a_cvar_with_its_costs_from_the_side_of_the_smaller_tail",
    ),
    _limits(
        "who-holds-nothing-passes",
        VERDICTS,
        "good = sum(result.is_kept(limit) and result.trades for",
        "good = sum(result.is_kept(limit) for",
        "test_four_of_five_must_keep_the_limit_and_trade[1-1-False]",
    ),
)
