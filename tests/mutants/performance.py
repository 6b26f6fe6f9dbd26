"""The bugs of performance: calendar, drawdowns, benchmark, costs by leg, regimes, capacity."""

from mutants.harness import Mutant
from mutants.nodes import unit

STATS = "evaluation/stats/performance.py"
FRAMES = "evaluation/stats/frames.py"
ATTRIBUTION = "evaluation/performance/attribution.py"
REGIMES = "evaluation/performance/regimes.py"
CAPACITY = "evaluation/performance/capacity.py"
POOLED = "evaluation/walk_forward/performance.py"
RESULT = "evaluation/engine/result.py"
FIRST = "evaluation/report/verdict_sections.py"
SECTIONS = "evaluation/report/sections.py"
WORDS = "evaluation/report/words.py"
CHARTS = "evaluation/report/charts.py"


def judged(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the evaluation."""
    return unit(name, *tests, part="evaluation")


PERFORMANCE = (
    Mutant(
        "performance-months-by-the-close",
        "metrics",
        STATS,
        "np.unique((ts - bar_ms) // DAY_MS, return_inverse=True)",
        "np.unique(ts // DAY_MS, return_inverse=True)",
        judged("stats/performance", "test_a_bar_that_closes_at_midnight_ends_the_old_month"),
    ),
    Mutant(
        "performance-months-added-up",
        "metrics",
        STATS,
        "float(np.prod(1.0 + returns[own]) - 1.0), int(",
        "float(np.sum(returns[own])), int(",
        judged("stats/performance", "test_months_are_those_of_a_loop_and_compound_to_the_whole"),
    ),
    Mutant(
        "performance-drawdown-from-below-the-peak",
        "metrics",
        STATS,
        "drawdowns.append(Drawdown(depth, first - 1, trough, recovery))",
        "drawdowns.append(Drawdown(depth, first, trough, recovery))",
        judged("stats/performance", "test_drawdowns_have_peak_trough_and_recovery"),
    ),
    Mutant(
        "performance-a-drawdown-that-lasts-recovers",
        "metrics",
        STATS,
        "recovery = last if last < equity.size else None",
        "recovery = last",
        judged("stats/performance", "test_drawdowns_have_peak_trough_and_recovery"),
    ),
    Mutant(
        "performance-alpha-with-the-market",
        "metrics",
        STATS,
        "alpha = float(own.mean() - beta * other.mean())",
        "alpha = float(own.mean() - other.mean())",
        judged("stats/performance", "test_a_regression_by_hand"),
    ),
    Mutant(
        "performance-errors-of-equal-variance",
        "metrics",
        STATS,
        "meat = (columns * (rest**2)[:, None]).T @ columns",
        "meat = (columns * np.mean(rest**2)).T @ columns",
        judged("stats/performance", "test_a_regression_by_hand"),
    ),
    Mutant(
        "performance-rolling-reads-ahead",
        "metrics",
        STATS,
        "        starts + window - 1, root * deviation",
        "        starts, root * deviation",
        judged("stats/performance", "test_rolling_reads_nothing_later_and_thins_evenly"),
    ),
    Mutant(
        "performance-quantstats-days-by-the-close",
        "metrics",
        FRAMES,
        "np.unique((self.ts[1:] - self.bar_ms) // DAY_MS, return_inverse=True)",
        "np.unique(self.ts[1:] // DAY_MS, return_inverse=True)",
        judged("stats/frames", "test_quantstats_reads_the_daily_returns"),
    ),
    Mutant(
        "performance-a-turn-costs-the-new-leg",
        "metrics",
        ATTRIBUTION,
        "return opened + self.held(amount * share)",
        "return _split(amount, self.order < 0.0)",
        judged("performance/attribution", "test_a_long_and_a_short_trade_by_hand"),
    ),
    Mutant(
        "performance-the-night-belongs-to-the-new-leg",
        "metrics",
        ATTRIBUTION,
        "legs.held(overnight) + legs.kept(gross - overnight)",
        "legs.kept(gross)",
        judged("performance/attribution", "test_a_long_and_a_short_trade_by_hand"),
    ),
    Mutant(
        "performance-cash-moved-is-a-gain",
        "metrics",
        ATTRIBUTION,
        'np.diff(result.sleeves, axis=0) - bars["transfer"] + paid',
        "np.diff(result.sleeves, axis=0) + paid",
        judged(
            "performance/attribution",
            "test_cash_that_moves_between_accounts_is_no_gain",
        ),
    ),
    Mutant(
        "performance-interest-counts-as-funding",
        "metrics",
        ATTRIBUTION,
        "    if not rules.interest:\n        return np.zeros_like(before)",
        "    if rules.interest is not None:\n        return np.zeros_like(before)",
        judged("performance/attribution", "test_interest_is_apart_from_funding"),
    ),
    Mutant(
        "performance-impact-of-the-spread",
        "metrics",
        ATTRIBUTION,
        "terms = fills.Terms(nothing, nothing, strength, nothing, nothing)",
        "terms = fills.Terms(nothing, nothing + result.market.costs.half_spread, strength, "
        "nothing, nothing)",
        judged("performance/attribution", "test_impact_and_ticks_by_hand"),
    ),
    Mutant(
        "performance-a-liquidation-is-a-fee",
        "metrics",
        RESULT,
        'np.where(flags["liquidated"], own, bars["fee_total"])',
        'bars["fee_total"]',
        judged("performance/attribution", "test_a_liquidation_is_a_loss_of_price_and_a_fee"),
    ),
    Mutant(
        "performance-trend-of-the-bar-itself",
        "metrics",
        REGIMES,
        ")[rows[enough] - REGIME_BARS]",
        ")[np.minimum(rows[enough] - REGIME_BARS + 1, len(mean) - 1)]",
        judged("performance/regimes", "test_nothing_later_is_read"),
    ),
    Mutant(
        "performance-capacity-delayed-twice",
        "metrics",
        CAPACITY,
        "prompt = result.config.during(result.span).replace(delay_bars=0)",
        "prompt = result.config.during(result.span)",
        judged("performance/capacity", "test_the_backtests_own_size_repeats_it_order_for_order"),
    ),
    Mutant(
        "performance-closing-of-folds-is-free",
        "metrics",
        POOLED,
        "        if closed:\n            amounts",
        "        if not closed:\n            amounts",
        judged(
            "walk_forward/performance",
            "test_gross_less_all_costs_is_the_change_of_the_pooled_account",
            "test_closing_between_folds_counts_on_the_last_bar_of_the_old_fold",
        ),
    ),
    # --- equal tails
    Mutant(
        "windows-of-simple-returns",
        "metrics",
        STATS,
        "growth = np.concatenate(([0.0], np.cumsum(np.log1p(own))))",
        "growth = np.concatenate(([0.0], np.cumsum(own)))",
        judged("stats/performance", "test_the_cvar_of_windows_is_that_of_sums_of_logarithms"),
    ),
    Mutant(
        "position-scaled-by-the-ratio-of-tails",
        "metrics",
        STATS,
        "    low, high = 0.0, 1.0\n",
        "    low = high = target / window_cvar(own, window=window, alpha=alpha)\n",
        judged("stats/performance", "test_a_part_of_a_position_has_the_cvar_that_was_wanted"),
    ),
    Mutant(
        "limit-beside-the-whole-position",
        "metrics",
        "evaluation/stats/equal_tail.py",
        "mean = mean_gain(other - multiple * own, bar_ms=bar_ms)",
        "mean = mean_gain(other - own, bar_ms=bar_ms)",
        judged(
            "compare/compare", "test_a_limit_is_compared_with_a_part_of_the_first_that_has_its_cvar"
        ),
    ),
    # --- the page
    Mutant(
        "page-baselines-at-their-own-volatility",
        "metrics",
        CHARTS,
        "scaled = at_volatility(returns_of(equity), results[0].returns)",
        "scaled = returns_of(equity)",
        judged("report/page", "test_baselines_are_drawn_at_the_volatility_of_the_agent"),
    ),
    Mutant(
        "page-the-worst-baseline-is-compared",
        "metrics",
        CHARTS,
        "best = max(moving, key",
        "best = min(moving, key",
        judged("report/page", "test_baselines_are_drawn_at_the_volatility_of_the_agent"),
    ),
    Mutant(
        "page-clairvoyant-among-the-baselines",
        "metrics",
        SECTIONS,
        'return name == "clairvoyant", -(',
        "return False, -(",
        judged(
            "report/page", "test_baselines_are_sorted_by_their_sharpe_ratio_and_the_bound_is_last"
        ),
    ),
    Mutant(
        "page-mean-return-of-a-bar-as-a-years",
        "metrics",
        FIRST,
        "return Statement(per_year * resampled.value, low, high)",
        "return Statement(resampled.value, low, high)",
        judged("report/words", "test_the_four_figures_carry_the_intervals_of_the_bootstrap"),
    ),
    Mutant(
        "page-rules-that-hold-come-first",
        "metrics",
        WORDS,
        "{False: 0, None: 1, True: 2}[reason.holds]",
        "{False: 2, None: 1, True: 0}[reason.holds]",
        judged(
            "report/words",
            "test_three_rules_stand_on_the_first_screen_and_all_of_them_in_the_table",
        ),
    ),
    Mutant(
        "page-open-conditions-are-left-out",
        "metrics",
        FIRST,
        "worst_first([*verdict.reasons, *verdict.conditions])",
        "worst_first(verdict.reasons)",
        judged(
            "report/words",
            "test_three_rules_stand_on_the_first_screen_and_all_of_them_in_the_table",
        ),
    ),
    Mutant(
        "page-calibration-drawn-without-windows",
        "metrics",
        WORDS,
        "if any(share.value is not None for share in known) or",
        "if known or",
        judged("report/words", "test_a_critic_can_be_judged_where_one_level_has_windows"),
    ),
)
