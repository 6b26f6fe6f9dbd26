"""The bugs of `stormsail bench bets`: worlds, their best policies, exact tails, verdicts."""

from mutants.harness import Mutant
from mutants.nodes import unit

WORLDS = "bench/bets/bets_worlds.py"
EXACT = "bench/bets/bets_exact.py"
BENCH = "bench/bets/bets.py"


def _bets(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    module = file.removeprefix("bench/").removesuffix(".py")
    return Mutant(f"bets-{name}", "bench", file, old, new, unit(module, test, part="bench"))


BETS = (
    # --- worlds
    _bets(
        "payoff-of-the-next-regime",
        WORLDS,
        "self._payoffs[state.regime, place]",
        "self._payoffs[after, place]",
        "test_a_payoff_is_that_of_the_regime_before_the_bar",
    ),
    _bets(
        "alternatives-change-for-nothing",
        WORLDS,
        "self.world.reward(level, payoff[:, None], total, position)",
        "self.world.reward(level, payoff[:, None], total, level)",
        "test_other_actions_are_what_a_step_makes_of_them",
    ),
    _bets(
        "draws-made-on-the-way",
        WORLDS,
        "uniform=torch.where(over[:, None, None], fresh, state.uniform),",
        "uniform=fresh,",
        "test_a_state_at_the_start_fixes_all_draws_of_its_episode",
    ),
    _bets(
        "shares-of-the-first-wealth",
        WORLDS,
        "level * (self.wealth + total)",
        "level * self.wealth",
        "test_shares_of_the_wealth_compound_and_ruin_ends_the_episode",
    ),
    # --- best policies
    _bets(
        "tail-without-alpha",
        EXACT,
        "tail = self.nu + short / self._world.alpha",
        "tail = self.nu + short",
        "test_the_published_best_means_are_met",
    ),
    _bets(
        "floor-at-the-limit",
        EXACT,
        "floor = world.limit - world.bars * gain",
        "floor = world.limit",
        "test_totals_far_below_the_limit_are_kept_together_without_an_error",
    ),
    _bets(
        "losses-end-at-the-floor",
        EXACT,
        "layer.shift[regime] @ share",
        "0.0 * (layer.shift[regime] @ share)",
        "test_totals_far_below_the_limit_are_kept_together_without_an_error",
    ),
    _bets(
        "regimes-run-backwards",
        EXACT,
        "nodes.moves @ mean, nodes.moves @ short",
        "nodes.moves.T @ mean, nodes.moves.T @ short",
        "test_the_best_mean_is_that_of_the_best_mixture_of_all_policies",
    ),
    _bets(
        "best-policy-is-not-mixed",
        EXACT,
        "return mixed, slope",
        "return careful.mean, slope",
        "test_one_bet_by_hand",
    ),
    _bets(
        "bound-of-one-threshold-for-all",
        EXACT,
        "value + multiplier * distance for",
        "value for",
        "test_the_published_best_means_are_met",
    ),
    # --- trained policies
    _bets(
        "tail-of-whole-atoms",
        EXACT,
        "np.minimum(share.cumsum(), alpha)",
        "np.where(share.cumsum() - share < alpha, share.cumsum(), alpha)",
        "test_a_mixed_bet_by_hand",
    ),
    _bets(
        "a-greedier-policy-evaluated",
        EXACT,
        "drawn.parameters.double().softmax(-1)",
        "(9.0 * drawn.parameters.double()).softmax(-1)",
        "test_an_agent_is_evaluated_by_its_probabilities_in_every_state",
    ),
    # --- runs and verdicts
    _bets(
        "key-by-the-name-of-the-world",
        BENCH,
        '"world": repr(self.world)',
        '"world": self.world.name',
        "test_the_key_holds_the_world_the_settings_and_the_seed",
    ),
    _bets(
        "tolerance-on-the-wrong-side",
        BENCH,
        "self.limit - TOLERANCE * abs(self.limit)",
        "self.limit + TOLERANCE * abs(self.limit)",
        "test_a_limit_is_kept_within_five_percent_of_its_size",
    ),
    _bets(
        "broken-limits-pay",
        BENCH,
        "Seeds([row.share for row in keeping]).mean if keeping",
        "Seeds([row.share for row in limited]).mean if keeping",
        "test_only_runs_that_keep_their_limit_count_for_the_mean",
    ),
)
