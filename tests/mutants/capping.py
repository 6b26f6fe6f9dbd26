"""The bugs of `stormsail bench capping`: the betting game, its exact optima, capped returns."""

from mutants.harness import Mutant
from mutants.nodes import unit

GAME = "bench/bets/betting_game.py"
EXACT = "bench/bets/betting_exact.py"
METHOD = "bench/bets/return_capping.py"


def _planted(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    module = "bets/return_capping" if file == METHOD else "bets/betting_game"
    return Mutant(f"capping-{name}", "bench", file, old, new, unit(module, test, part="bench"))


CAPPING = (
    # --- the game
    _planted(
        "bets-beyond-the-end",
        GAME,
        "stake = torch.minimum(stake, self.rules.most - wealth)",
        "stake = torch.minimum(stake, wealth)",
        "test_a_bet_is_eighths_of_the_wealth_and_never_more_than_what_is_missing",
    ),
    _planted(
        "draw-of-the-next-bet",
        GAME,
        "place = state.done.clamp(",
        "place = (state.done + 1).clamp(",
        "test_each_bet_has_its_own_draw",
    ),
    _planted(
        "new-game-with-old-draws",
        GAME,
        "torch.where(over[:, None], fresh, state.uniform)",
        "state.uniform",
        "test_the_step_after_an_end_starts_a_new_game_with_new_draws",
    ),
    _planted(
        "alternatives-without-the-last-bet",
        GAME,
        "terminated=self._final(wealth) | (done == self.rules.bets),",
        "terminated=self._final(wealth),",
        "test_alternatives_are_what_each_action_makes_of_the_step",
    ),
    # --- exact optima
    _planted(
        "gains-above-the-level-count",
        EXACT,
        "shortfall = np.minimum(tree.final - levels[:, None], 0.0)",
        "shortfall = tree.final - levels[:, None]",
        "test_the_best_cvar_is_that_of_the_best_of_all_policies",
    ),
    _planted(
        "best-mean-without-mixtures",
        EXACT,
        "value = np.where(impossible, -np.inf, low_mean + multiplier * low_slack)",
        "value = np.where(impossible, -np.inf, np.where(free, low_mean, high_mean))",
        "test_the_best_mean_under_a_limit_is_that_of_the_best_mixture",
    ),
    _planted(
        "wins-as-likely-as-losses",
        EXACT,
        "parts = (self.rules.win * joint, (1.0 - self.rules.win) * joint)",
        "parts = (0.5 * joint, 0.5 * joint)",
        "test_the_tail_of_a_policy_is_that_of_every_game_played",
    ),
    # --- the method
    _planted(
        "rewards-from-the-whole-return",
        METHOD,
        "torch.minimum(total, cap) - torch.minimum(before, cap)",
        "torch.minimum(total, cap) - before",
        "test_rewards_add_up_to_the_cap_by_hand",
    ),
    _planted(
        "cap-moves-within-an-episode",
        METHOD,
        "cap = torch.where(fresh, self.cap, state.cap)",
        "cap = torch.full_like(state.cap, self.cap)",
        "test_an_episode_keeps_the_cap_that_it_began_with_and_the_next_has_the_new_one",
    ),
    _planted(
        "cap-follows-capped-returns",
        METHOD,
        "self._finished.append(total[",
        "self._finished.append(torch.minimum(total, cap)[",
        "test_an_episode_keeps_the_cap_that_it_began_with_and_the_next_has_the_new_one",
    ),
    _planted(
        "cap-without-a-floor",
        METHOD,
        "max(self.cap + self._rate * (level - self.cap), self._least)",
        "self.cap + self._rate * (level - self.cap)",
        "test_the_cap_follows_the_lower_quantile_and_never_falls_below_its_floor",
    ),
    # --- rows and claims
    _planted(
        "limit-of-another-cap",
        METHOD,
        "if kind != NEAR_BEST:",
        "if kind == CAPPING:",
        "test_a_key_changes_with_everything_that_its_agent_depends_on",
    ),
    _planted(
        "broken-limit-is-a-gain",
        METHOD,
        "mean.mean >= 0.0 and all(bool(row.kept) for row in by_kind[EQUAL].values()),",
        "mean.mean >= 0.0,",
        "test_claims_fail_where_the_method_is_better",
    ),
)
