"""The bugs of `stormsail bench tails`: how a critic's tail is measured, and its bounds."""

from mutants.harness import Mutant
from mutants.nodes import unit

MEASURE = "bench/risk/tails.py"
CLAIMS = "bench/risk/tails_verdicts.py"


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
)
