"""The bugs of figures, significance, trials and calibration: of what an evaluation says."""

from mutants.harness import Mutant
from mutants.nodes import unit

FIGURES = "evaluation/stats/figures.py"
METRICS = "evaluation/stats/metrics.py"
STATEMENTS = "evaluation/stats/statement.py"
SHARPE = "evaluation/stats/sharpe.py"
DIFFERENCE = "evaluation/stats/sharpe_difference.py"
JUDGED_TAIL = "evaluation/calibration/judged_tail.py"
OVERFITTING = "evaluation/stats/overfitting.py"
RESAMPLING = "evaluation/stats/bootstrap.py"
TRIALS = "evaluation/stats/trials.py"
PAIRED = "evaluation/stats/paired.py"
LOOP = "evaluation/engine/loop.py"
RULES = "evaluation/engine/config.py"
WALK = "evaluation/walk_forward/run.py"
WINDOWS = "evaluation/calibration/windows.py"
CALIBRATION = "evaluation/calibration/checks.py"
CONFORMAL = "evaluation/calibration/conformal.py"


def judged(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the evaluation."""
    return unit(name, *tests, part="evaluation")


EVALUATION = (
    # --- figures
    Mutant(
        "figures-a-year-of-trading-days",
        "metrics",
        FIGURES,
        "YEAR_MS = 365 * DAY_MS",
        "YEAR_MS = 252 * DAY_MS",
        judged("stats/figures", "test_a_year_has_365_days_of_24_hours"),
    ),
    Mutant(
        "figures-deviation-with-n",
        "metrics",
        FIGURES,
        "returns.std(axis=0, ddof=1))",
        "returns.std(axis=0, ddof=0))",
        judged("stats/figures", "test_ratios_by_hand"),
    ),
    Mutant(
        "figures-sharpe-of-rounding",
        "metrics",
        FIGURES,
        "flat = np.ptp(returns, axis=0) == 0.0",
        "flat = returns.std(axis=0) == 0.0",
        judged("stats/figures", "test_returns_without_spread_have_no_ratio"),
    ),
    Mutant(
        "figures-sortino-over-losing-bars",
        "metrics",
        FIGURES,
        "float(np.mean(np.minimum(excess, 0.0) ** 2))",
        "float(np.mean(excess[excess < 0.0] ** 2)) if (excess < 0.0).any() else 0.0",
        judged("stats/figures", "test_ratios_by_hand"),
    ),
    Mutant(
        "figures-first-bar-falls-from-nowhere",
        "metrics",
        FIGURES,
        "return drawdown_of(np.concatenate(([1.0], growth))).depth",
        "return drawdown_of(growth).depth",
        judged("stats/figures", "test_a_loss_in_the_first_bar_is_a_drawdown"),
    ),
    Mutant(
        "figures-drawdown-from-the-first-peak",
        "metrics",
        FIGURES,
        "equity[: trough + 1] == top[trough])[-1])",
        "equity[: trough + 1] == top[trough])[0])",
        judged("stats/figures", "test_a_drawdown_has_its_places"),
    ),
    Mutant(
        "figures-returns-after-ruin",
        "metrics",
        FIGURES,
        "alive = before > 0.0",
        "alive = before != 0.0",
        judged("stats/figures", "test_returns_are_simple_and_nothing_after_ruin"),
    ),
    Mutant(
        "figures-zero-counts-as-a-loss",
        "metrics",
        FIGURES,
        "int(np.count_nonzero(outcomes))",
        "int(outcomes.size)",
        judged("stats/figures", "test_gains_over_losses_and_wins_without_the_zeros"),
    ),
    # --- metrics
    Mutant(
        "metrics-a-year-from-a-week",
        "metrics",
        METRICS,
        "month = max(MINIMUM_BARS, math.ceil(MINIMUM_DAYS * DAY_MS / bar_ms))",
        "month = MINIMUM_BARS",
        judged("stats/metrics", "test_figures_appear_with_the_data_they_need"),
    ),
    Mutant(
        "metrics-unrecorded-is-nothing",
        "metrics",
        METRICS,
        "**{name: None if each is None else float(each.sum()) for",
        "**{name: 0.0 if each is None else float(each.sum()) for",
        judged("stats/metrics", "test_what_was_not_recorded_is_not_zero"),
    ),
    Mutant(
        "metrics-turnover-per-bar",
        "metrics",
        METRICS,
        "days = bars * bar_ms / DAY_MS",
        "days = float(bars)",
        judged("stats/metrics", "test_flows_are_summed_averaged_and_counted_per_day"),
    ),
    # --- statements
    Mutant(
        "statement-with-one-bar-too-few",
        "metrics",
        STATEMENTS,
        "    if found < needed:\n"
        "        return Statement(None, needed=needed, found=found, unit=unit)\n"
        "    number",
        "    if found < needed - 1:\n"
        "        return Statement(None, needed=needed, found=found, unit=unit)\n"
        "    number",
        judged("stats/statement", "test_exactly_enough_data_is_enough"),
    ),
    # --- Sharpe ratio
    Mutant(
        "sharpe-excess-kurtosis",
        "significance",
        SHARPE,
        "+ (kurtosis - 1.0) / 4.0 * sharpe**2",
        "+ (kurtosis - 3.0) / 4.0 * sharpe**2",
        judged("stats/sharpe", "test_the_error_of_a_sharpe_ratio_by_hand"),
    ),
    Mutant(
        "sharpe-skew-helps",
        "significance",
        SHARPE,
        "variance = (1.0 - skew * sharpe",
        "variance = (1.0 + skew * sharpe",
        judged("stats/sharpe", "test_the_error_of_a_sharpe_ratio_by_hand"),
    ),
    Mutant(
        "sharpe-error-of-n-bars",
        "significance",
        SHARPE,
        "* sharpe**2) / (bars - 1)",
        "* sharpe**2) / bars",
        judged("stats/sharpe", "test_the_error_of_a_sharpe_ratio_by_hand"),
    ),
    Mutant(
        "sharpe-weights-of-the-maximum-swapped",
        "significance",
        SHARPE,
        "(1.0 - np.euler_gamma) * upper + np.euler_gamma * further",
        "np.euler_gamma * upper + (1.0 - np.euler_gamma) * further",
        judged("stats/sharpe", "test_the_expected_best_of_many_by_hand"),
    ),
    Mutant(
        "sharpe-failed-trials-forgotten",
        "significance",
        SHARPE,
        "count = sharpes.size if trials is None else trials",
        "count = np.count_nonzero(~np.isnan(sharpes)) if trials is None else trials",
        judged("stats/sharpe", "test_trials_that_failed_count_all_the_same"),
    ),
    Mutant(
        "sharpe-nothing-was-chosen",
        "significance",
        SHARPE,
        "benchmark = expected_maximum_sharpe(count, std=std)",
        "benchmark = 0.0 * expected_maximum_sharpe(count, std=std)",
        judged("stats/sharpe", "test_the_best_of_64_rules_looks_significant_and_is_not"),
    ),
    Mutant(
        "sharpe-spread-of-few-is-zero",
        "significance",
        SHARPE,
        "    elif count > 1 and known.size < 2:\n        return math.nan",
        "    elif count > 1 and known.size < 2:\n        return probabilistic_sharpe(returns)",
        judged("stats/sharpe", "test_without_a_spread_of_trials_the_paper_has_no_answer"),
    ),
    Mutant(
        "sharpe-agreeing-trials-make-noise-small",
        "significance",
        SHARPE,
        "value = np.maximum(std, floor) * _standard_maximum(sizes + unknown)",
        "value = std * _standard_maximum(sizes + unknown)\n    least = 0.0",
        judged("stats/sharpe", "test_the_worst_subset_by_hand"),
    ),
    Mutant(
        "sharpe-all-trials-are-the-worst-subset",
        "significance",
        SHARPE,
        "near = np.flatnonzero(value >= value.max() * (1.0 - 1e-9))",
        "near = np.array([len(value) - 1])",
        judged("stats/sharpe", "test_the_worst_subset_by_hand"),
    ),
    Mutant(
        "sharpe-correlated-trials-count-in-full",
        "significance",
        SHARPE,
        "best = float((lower @ drawn).max(axis=0).mean())",
        "best = float(drawn.max(axis=0).mean())",
        judged("stats/sharpe", "test_trials_that_resemble_each_other_count_as_few"),
    ),
    Mutant(
        "difference-of-independent-bars",
        "significance",
        DIFFERENCE,
        "    while lag < width:",
        "    while lag < 0:",
        judged("stats/sharpe_difference", "test_the_oracle_finds_the_same_difference_and_error"),
    ),
    Mutant(
        "difference-without-the-error-of-the-deviation",
        "significance",
        DIFFERENCE,
        "return np.asarray(first - 0.5 * mean / cube * (returns**2 - second))",
        "return np.asarray(first)",
        judged("stats/sharpe_difference", "test_the_influence_by_hand"),
    ),
    Mutant(
        "difference-of-the-resample-alone",
        "significance",
        DIFFERENCE,
        "gain = ratio[:, 0] - ratio[:, 1] - difference",
        "gain = ratio[:, 0] - ratio[:, 1]",
        judged("stats/sharpe_difference", "test_interval_and_probability_are_those_of_the_loops"),
    ),
    Mutant(
        "judged-tail-without-what-follows",
        "calibration",
        JUDGED_TAIL,
        "gamma**horizon * later",
        "0.0 * later",
        judged("calibration/document", "test_windows_are_those_of_the_loops"),
    ),
    Mutant(
        "sharpe-track-record-rounded-down",
        "significance",
        SHARPE,
        "return float(math.ceil(exact))",
        "return float(math.floor(exact))",
        judged("stats/sharpe", "test_the_track_record_is_as_long_as_the_oracle_finds"),
    ),
    # --- overfitting
    Mutant(
        "overfitting-median-counts-as-below",
        "significance",
        OVERFITTING,
        "blocks=blocks) < 0.0))",
        "blocks=blocks) <= 0.0))",
        judged("stats/overfitting", "test_the_median_itself_is_not_below_the_median"),
    ),
    Mutant(
        "overfitting-ranked-in-sample",
        "significance",
        OVERFITTING,
        "own = np.take_along_axis(outside, best[:, None], axis=1)\n"
        "    below = np.count_nonzero(outside < own",
        "own = np.take_along_axis(inside, best[:, None], axis=1)\n"
        "    below = np.count_nonzero(inside < own",
        judged("stats/overfitting", "test_by_hand_the_best_of_one_half_is_the_worst_of_the_other"),
    ),
    Mutant(
        "overfitting-by-mean-return",
        "significance",
        OVERFITTING,
        "return np.where(flat, 0.0, mean / std)",
        "return np.where(flat, 0.0, mean)",
        judged("stats/overfitting", "test_the_oracle_says_the_same"),
    ),
    Mutant(
        "overfitting-squares-around-zero",
        "significance",
        OVERFITTING,
        "((part - part.mean(axis=0)) ** 2).sum(0) for part in parts",
        "(part**2).sum(0) - len(part) * part.mean(axis=0) ** 2 for part in parts",
        judged("stats/overfitting", "test_a_common_large_return_swallows_no_spread"),
    ),
    Mutant(
        "overfitting-ties-by-absolute-difference",
        "significance",
        OVERFITTING,
        "return _TIE * np.maximum(1.0, np.abs(sharpe))",
        "return 0.0 * sharpe + 1e-12",
        judged(
            "stats/overfitting",
            "test_a_half_far_from_the_other_keeps_the_digits_of_its_spread",
        ),
    ),
    Mutant(
        "overfitting-spread-within-blocks-alone",
        "significance",
        OVERFITTING,
        "spread += (inside * length)[:, None] * (own - mean) ** 2",
        "spread += 0.0 * (inside * length)[:, None] * (own - mean) ** 2",
        judged("stats/overfitting", "test_the_oracle_says_the_same"),
    ),
    Mutant(
        "overfitting-sharpe-of-rounding",
        "significance",
        OVERFITTING,
        "flat = spread <= (_ROUNDING * self.largest) ** 2 * count",
        "flat = spread < 0.0",
        judged("stats/overfitting", "test_a_strategy_that_never_traded_scores_zero"),
    ),
    Mutant(
        "overfitting-ties-are-best",
        "significance",
        OVERFITTING,
        "rank: Array = below + (equal + 1) / 2",
        "rank: Array = below + equal",
        judged("stats/overfitting", "test_equal_strategies_share_their_rank"),
    ),
    # --- resampling
    Mutant(
        "bootstrap-bar-by-bar",
        "significance",
        RESAMPLING,
        "block = block_length(returns) if block is None else block",
        "block = 1",
        judged(
            "stats/bootstrap", "test_intervals_are_percentiles_of_resamples_that_the_oracle_draws"
        ),
    ),
    Mutant(
        "bootstrap-blind-to-storms",
        "significance",
        RESAMPLING,
        "columns = [returns] if np.ptp(size) == 0.0 else [returns, size]",
        "columns = [returns]",
        judged("stats/bootstrap", "test_blocks_follow_dependence_in_sign_and_in_size"),
    ),
    Mutant(
        "superiority-of-the-benchmark-itself",
        "significance",
        RESAMPLING,
        "if not gain.size or gain.mean(axis=0).max() <= 0.0:",
        "if False:",
        judged("stats/bootstrap", "test_the_benchmark_itself_does_not_beat_the_benchmark"),
    ),
    Mutant(
        "superiority-of-losers",
        "significance",
        RESAMPLING,
        "gain = tried - against[:, None]",
        "gain = against[:, None] - tried",
        judged("stats/bootstrap", "test_superiority_is_that_of_the_library"),
    ),
    # --- trials
    Mutant(
        "ledger-chain-not-checked",
        "trial-ledger",
        TRIALS,
        'if document["previous"] != previous or document["number"] != number:',
        'if document["number"] != number:',
        judged("stats/trials", "test_a_line_of_another_ledger_is_noticed"),
    ),
    Mutant(
        "ledger-hash-not-checked",
        "trial-ledger",
        TRIALS,
        "if own != _digest(document):",
        "if not own:",
        judged("stats/trials", "test_damage_is_named_with_its_line"),
    ),
    Mutant(
        "ledger-end-not-checked",
        "trial-ledger",
        TRIALS,
        "if known is not None and known not in {trial.hash for trial in trials}:",
        "if False:",
        judged("stats/trials", "test_damage_is_named_with_its_line"),
    ),
    Mutant(
        "ledger-unfinished-line-ignored",
        "trial-ledger",
        TRIALS,
        "+ (1 if records.torn else 0)",
        "+ 0",
        judged("stats/trials", "test_an_unfinished_line_is_reported_and_counts_as_a_trial"),
    ),
    Mutant(
        "ledger-repaired-in-silence",
        "trial-ledger",
        TRIALS,
        "            lines, last = self._line(_repair(self.path, records.torn), last)",
        "            pass",
        judged("stats/trials", "test_the_next_writer_closes_an_unfinished_line_and_says_so"),
    ),
    Mutant(
        "ledger-without-a-lock",
        "trial-ledger",
        TRIALS,
        "        fcntl.flock(descriptor, fcntl.LOCK_EX)\n",
        "",
        judged("stats/trials", "test_a_writer_waits_for_the_one_who_holds_the_ledger"),
    ),
    Mutant(
        "ledger-failed-trials-forgotten",
        "trial-ledger",
        TRIALS,
        "and (trial.status != FAILED or trial.sharpe_per_bar is not None)",
        "and trial.status != FAILED",
        judged("stats/trials", "test_what_failed_is_a_trial_only_if_it_left_a_result"),
    ),
    Mutant(
        "ledger-half-line-on-a-full-disk",
        "trial-ledger",
        TRIALS,
        "                os.ftruncate(descriptor, start)\n",
        "                pass\n",
        judged("stats/trials", "test_a_full_disk_leaves_no_half_line"),
    ),
    Mutant(
        "ledger-head-before-the-line",
        "trial-ledger",
        TRIALS,
        "            os.ftruncate(descriptor, at)\n        os.fsync(descriptor)",
        "            os.ftruncate(descriptor, at)",
        judged("stats/trials", "test_the_line_is_on_the_disk_before_the_head_names_it"),
    ),
    Mutant(
        "ledger-cut-before-it-is-repaired",
        "trial-ledger",
        TRIALS,
        "    at = start = size - over\n",
        "    at = start = size - over\n    os.ftruncate(descriptor, start)\n",
        judged("stats/trials", "test_a_repair_that_dies_forgets_no_trial"),
    ),
    Mutant(
        "ledger-rest-of-a-torn-line-left",
        "trial-ledger",
        TRIALS,
        "        if at < size:\n",
        "        if at > size:\n",
        judged("stats/trials", "test_an_unfinished_line_longer_than_what_covers_it_leaves_nothing"),
    ),
    # --- windows
    Mutant(
        "windows-that-overlap-by-a-bar",
        "calibration",
        WINDOWS,
        "free_from = start + self.horizon",
        "free_from = start + self.horizon - 1",
        judged("calibration/checks", "test_windows_that_share_bars_count_once"),
    ),
    # --- calibration
    Mutant(
        "coverage-of-every-window",
        "calibration",
        CALIBRATION,
        "    independent = predicted.independent\n    return tuple(",
        "    independent = predicted.count\n    return tuple(",
        judged("calibration/checks", "test_intervals_for_shared_bars_keep_their_coverage"),
    ),
    Mutant(
        "coverage-strictly-below",
        "calibration",
        CALIBRATION,
        "predicted.realised[:, None] <= predicted.quantiles, axis=0)",
        "predicted.realised[:, None] < predicted.quantiles, axis=0)",
        judged("calibration/checks", "test_coverage_by_hand"),
    ),
    Mutant(
        "coverage-upside-down",
        "calibration",
        CALIBRATION,
        "hits = np.count_nonzero(predicted.realised[:, None] <= predicted.quantiles, axis=0)",
        "hits = np.count_nonzero(predicted.realised[:, None] >= predicted.quantiles, axis=0)",
        judged("calibration/checks", "test_coverage_by_hand"),
    ),
    Mutant(
        "histogram-cells-of-equal-width",
        "calibration",
        CALIBRATION,
        "expected = np.diff(edges)",
        "expected = np.full(edges.size - 1, 1.0 / (edges.size - 1))",
        judged("calibration/checks", "test_the_histogram_by_hand"),
    ),
    Mutant(
        "histogram-of-every-window",
        "calibration",
        CALIBRATION,
        "statistic = independent * float",
        "statistic = predicted.count * float",
        judged("calibration/checks", "test_uniformity_counts_only_windows_that_share_no_bar"),
    ),
    Mutant(
        "tail-pooled-over-regimes",
        "calibration",
        CALIBRATION,
        "level = risk.value_at_risk(quantiles, alpha=alpha, weight=mass).numpy()",
        "level = np.full(predicted.count, figures.value_at_risk(predicted.realised, alpha=alpha))",
        judged("calibration/checks", "test_each_window_is_measured_against_its_own_distribution"),
    ),
    Mutant(
        "tail-not-divided-by-alpha",
        "calibration",
        CALIBRATION,
        "realised = level + np.minimum(predicted.realised - level, 0.0) / alpha",
        "realised = level + np.minimum(predicted.realised - level, 0.0)",
        judged("calibration/checks", "test_the_tail_by_hand"),
    ),
    Mutant(
        "tail-interval-of-every-window",
        "calibration",
        CALIBRATION,
        "float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)",
        "float(values.mean()), float(values.std(ddof=1)) / math.sqrt(predicted.count)",
        judged("calibration/checks", "test_fewer_independent_outcomes_widen_the_tail"),
    ),
    # --- conformal
    Mutant(
        "conformal-without-the-new-window",
        "calibration",
        CONFORMAL,
        "exact = (count + 1) * level",
        "exact = count * level",
        judged("calibration/conformal", "test_ranks_are_those_of_the_oracle"),
    ),
    Mutant(
        "conformal-rounded-to-the-unsafe-side",
        "calibration",
        CONFORMAL,
        "    if level < 0.5:\n",
        "    if level >= 0.5:\n",
        judged("calibration/conformal", "test_the_shift_by_hand"),
    ),
    Mutant(
        "conformal-on-shared-bars",
        "calibration",
        CONFORMAL,
        "fitted = predicted.select(predicted.disjoint())",
        "fitted = predicted",
        judged("calibration/conformal", "test_windows_that_share_bars_are_left_out"),
    ),
    # --- policies
    Mutant(
        "paired-difference-reversed",
        "policy",
        PAIRED,
        "gain = other_side - one_side",
        "gain = one_side - other_side",
        judged("stats/paired", "test_the_p_value_by_hand"),
    ),
    Mutant(
        "paired-two-sided",
        "policy",
        PAIRED,
        "return max(float(stdtr(n - 1, -mean * math.sqrt(n) / deviation)), least)",
        "return max(2.0 * float(stdtr(n - 1, -abs(mean) * math.sqrt(n) / deviation)), least)",
        judged("stats/paired", "test_the_p_value_by_hand"),
    ),
    Mutant(
        "paired-degrees-of-freedom-n",
        "policy",
        PAIRED,
        "return max(float(stdtr(n - 1, -mean",
        "return max(float(stdtr(n, -mean",
        judged("stats/paired", "test_the_p_value_by_hand"),
    ),
    Mutant(
        "paired-deviation-with-n",
        "policy",
        PAIRED,
        "else float(sample.std(ddof=1))",
        "else float(sample.std(ddof=0))",
        judged("stats/paired", "test_the_interval_by_hand"),
    ),
    Mutant(
        "paired-interval-of-the-normal",
        "policy",
        PAIRED,
        "half = float(stdtrit(n - 1, 0.5 * (1.0 + confidence)))",
        "half = float(stdtrit(1e9, 0.5 * (1.0 + confidence)))",
        judged("stats/paired", "test_the_interval_by_hand"),
    ),
    Mutant(
        "paired-interval-with-one-tail",
        "policy",
        PAIRED,
        "0.5 * (1.0 + confidence)",
        "confidence",
        judged("stats/paired", "test_the_interval_by_hand"),
    ),
    Mutant(
        "paired-without-the-sign-test",
        "policy",
        PAIRED,
        "    least = 0.5**n\n",
        "    least = 0.0\n",
        judged("stats/paired", "test_a_p_value_is_never_below_that_of_equal_signs"),
    ),
    Mutant(
        "backtest-always-greedy",
        "policy",
        RULES,
        'self.replace(greedy=judged == "greedy")',
        "self.replace(greedy=True)",
        judged(
            "engine/policy", "test_the_default_follows_the_agent_and_the_result_says_what_it_was"
        ),
    ),
    Mutant(
        "backtest-draws-shared-by-the-cost-settings",
        "policy",
        LOOP,
        """        self._generators = [
            Generators(config.seed).stream("backtest.actions") for _ in range(settings)
        ]
""",
        """        shared = Generators(config.seed).stream("backtest.actions")
        self._generators = [shared] * settings
""",
        judged("engine/policy", "test_other_cost_settings_beside_it_change_no_draw"),
    ),
    Mutant(
        "validation-seeds-sample-alike",
        "policy",
        WALK,
        "return Generators(self._rules.seed).spawn(name).seed",
        "return self._rules.seed",
        judged("walk_forward/run", "test_agents_that_sample_do_not_sample_alike_and_do_so_again"),
    ),
)
