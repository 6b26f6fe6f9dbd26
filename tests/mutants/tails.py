"""The bugs of `stormsail bench tails` and `frontier`: how tails are measured, and their bounds."""

from mutants.harness import Mutant
from mutants.nodes import unit

MEASURE = "bench/risk/tails.py"
CLAIMS = "bench/risk/tails_verdicts.py"
STATES = "bench/risk/tails_states.py"
TRUTH = "bench/risk/tails_truth.py"
FRONTIER = "bench/risk/frontier.py"
FRONTIER_CLAIMS = "bench/risk/frontier_verdicts.py"


def _bench(name: str, file: str, old: str, new: str, module: str, test: str) -> Mutant:
    return Mutant(f"tails-{name}", "bench", file, old, new, unit(module, test, part="bench"))


TAILS = (
    # --- drawn markets
    _bench(
        "one-market-for-all-seeds",
        MEASURE,
        '"task.data.world_seed": seed,',
        '"task.data.world_seed": 0,',
        "risk/tails",
        "test_each_seed_has_a_market_of_its_own",
    ),
    _bench(
        "judged-on-training-bars",
        MEASURE,
        'purpose="evaluation"',
        'purpose="train"',
        "risk/tails",
        "test_the_truth_is_drawn_from_bars_that_training_never_saw",
    ),
    _bench(
        "mean-of-spreads",
        MEASURE,
        "spread=_deviation(returns, weight) /",
        "spread=float(prediction.spread.mean()) /",
        "risk/tails",
        "test_the_spread_of_many_starts_is_that_of_their_mixture",
    ),
    _bench(
        "atoms-read-at-the-next-one",
        MEASURE,
        "(values[:, :-1] + values[:, 1:]) / 2.0, levels.mean(0)[:-1]",
        "values[:, 1:], levels.mean(0)[:-1]",
        "risk/tails",
        "test_drawn_returns_between_two_atoms_are_halved_between_them",
    ),
    _bench(
        "grid-of-both-twins",
        MEASURE,
        "grid=agent.network.critic.levels()",
        "grid=agent.levels",
        "risk/tails",
        "test_the_resolution_is_that_of_the_levels_that_each_critic_has",
    ),
    # --- claims
    _bench(
        "grid-on-the-wrong-side",
        CLAIMS,
        "tail.error - (tail.resolution if grid else 0.0)",
        "tail.error + (tail.resolution if grid else 0.0)",
        "risk/tails_verdicts",
        "test_the_default_cases_must_predict_the_tail_on_every_world",
    ),
    _bench(
        "signs-cancel",
        CLAIMS,
        "most = 5 * inside >= 4 * len(by_seed)",
        "most = inside >= 0",
        "risk/tails_verdicts",
        "test_errors_of_opposite_sign_do_not_make_a_critic_right",
    ),
    _bench(
        "mean-not-judged",
        CLAIMS,
        "holds = low <= values.mean <= high and most",
        "holds = most",
        "risk/tails_verdicts",
        "test_one_seed_of_five_may_be_off_but_not_so_far_that_the_mean_is",
    ),
    # --- states and their truth
    _bench(
        "ruin-that-goes-on",
        STATES,
        "turned * (1.0 if jump.ends else go_on[place])",
        "turned * go_on[place]",
        "risk/tails_states",
        "test_a_state_has_the_distribution_of_all_its_paths",
    ),
    _bench(
        "truth-not-discounted",
        STATES,
        "t = gamma**step * nodes",
        "t = nodes",
        "risk/tails_states",
        "test_a_state_has_the_distribution_of_all_its_paths",
    ),
    _bench(
        "gains-are-events",
        STATES,
        "sum(jump.chance for jump in self.jumps if jump.size < 0.0)",
        "sum(jump.chance for jump in self.jumps)",
        "risk/tails_states",
        "test_events_are_losses_by_jumps_before_the_end",
    ),
    _bench(
        "student-shortfall-turned",
        TRUTH,
        "(self._rate - sum(terms))",
        "(self._rate + sum(terms))",
        "risk/tails_truth",
        "test_what_falls_short_is_the_integral_of_the_distribution_function",
    ),
    _bench(
        "error-without-spread",
        MEASURE,
        "if true <= -spread else (true - predicted) / max(true, spread)",
        "if true else 0.0",
        "risk/tails_states",
        "test_an_error_is_relative_to_the_spread_where_cvar_is_near_nothing",
    ),
    _bench(
        "state-bound-turned",
        CLAIMS,
        "if event > LIKELY",
        "if event < LIKELY",
        "risk/tails_verdicts",
        "test_states_are_held_to_a_bound_by_how_likely_their_event_is",
    ),
    _bench(
        "one-state-is-enough",
        CLAIMS,
        "passed=holding == len(states)",
        "passed=holding > 0",
        "risk/tails_verdicts",
        "test_every_state_must_hold_and_the_worst_is_named",
    ),
    _bench(
        "worst-state-by-its-mean",
        CLAIMS,
        "statistics.fmean(abs(tail.error) for tail in self.tails)",
        "abs(statistics.fmean(tail.error for tail in self.tails))",
        "risk/tails_verdicts",
        "test_the_worst_state_is_not_one_whose_errors_cancel",
    ),
    # --- finished runs
    _bench(
        "finished-run-again",
        "bench/resumed.py",
        "if key not in done]",
        "if key]",
        "resumed",
        "test_jobs_that_the_file_holds_are_not_run_again",
    ),
    # --- the frontier
    _bench(
        "proven-by-the-upper-end",
        FRONTIER,
        "self.cvar - NORMAL_95 * self.cvar_error >= self.limit",
        "self.cvar + NORMAL_95 * self.cvar_error >= self.limit",
        "risk/frontier",
        "test_a_limit_is_held_kept_or_proven_by_its_interval",
    ),
    _bench(
        "held-is-kept",
        FRONTIER_CLAIMS,
        "passed=5 * kept >= 4 * len(rows)",
        "passed=5 * held >= 4 * len(rows)",
        "risk/frontier",
        "test_four_of_five_estimates_must_keep_a_limit",
    ),
    _bench(
        "slack-may-only-cost",
        FRONTIER_CLAIMS,
        "passed=abs(limited - base) <=",
        "passed=(base - limited) <=",
        "risk/frontier",
        "test_a_slack_limit_must_cost_no_more_than_two_percent_of_the_mean",
    ),
)
