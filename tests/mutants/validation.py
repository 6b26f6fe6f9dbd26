"""The bugs of a validation: folds, pooled account, self-tests, verdict, final test span."""

from mutants.harness import Mutant
from mutants.nodes import unit

FOLDS = "evaluation/walk_forward/folds.py"
POOL = "evaluation/walk_forward/pool.py"
WALK = "evaluation/walk_forward/run.py"
LEDGER = "evaluation/walk_forward/ledger.py"
SEAL = "evaluation/walk_forward/seal.py"
JUDGING = "evaluation/walk_forward/judge.py"
FILES = "evaluation/walk_forward/files.py"
SAVED = "evaluation/saved.py"
SELF_TESTS = "evaluation/robustness/self_tests.py"
VERDICT = "evaluation/walk_forward/verdict.py"
EVIDENCE = "evaluation/walk_forward/evidence.py"
POWER = "evaluation/walk_forward/power.py"
TRIALS = "evaluation/stats/trials.py"


def judged(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the evaluation."""
    return unit(name, *tests, part="evaluation")


_FLIPS = judged("walk_forward/verdict", "test_each_rule_flips_its_own_reason_alone")
_EDGE = judged("walk_forward/verdict", "test_everything_at_its_threshold_is_promoted")
_LOSS = judged("walk_forward/verdict", "test_a_proven_loss_breaks_both_rules_of_the_mean_return")


def _verdict(name: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"verdict-{name}", "validation", VERDICT, old, new, tests)


def _own(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"validation-{name}", "validation", file, old, new, tests)


VALIDATION = (
    # --- folds
    _own(
        "final-span-without-embargo",
        FOLDS,
        "closed = Span(int(ts[last + gap])",
        "closed = Span(int(ts[last])",
        judged("walk_forward/folds", "test_no_fold_shares_a_bar_with_its_training_and_embargo"),
    ),
    _own(
        "embargo-without-burn-in",
        FOLDS,
        "gap = embargo(lookback, burn_in, config.embargo_bars)",
        "gap = embargo(lookback, 0, config.embargo_bars)",
        judged("walk_forward/folds", "test_no_fold_shares_a_bar_with_its_training_and_embargo"),
    ),
    _own(
        "hole-between-folds",
        FOLDS,
        "yield int(ts[first]) + interval.milliseconds",
        "yield int(ts[first])",
        judged("walk_forward/folds", "test_each_pass_ends_at_the_close_where_the_next_begins"),
    ),
    _own(
        "given-training-grows",
        FOLDS,
        "begin = 0 if config.train_bars is None else last - train",
        "begin = 0",
        judged("walk_forward/folds", "test_an_anchored_training_grows_and_a_given_one_moves"),
    ),
    _own(
        "fewer-bars-than-needed",
        FOLDS,
        "count += 1",
        "count += 2",
        judged("walk_forward/folds", "test_too_few_bars_are_refused_with_the_number_needed"),
    ),
    # --- pooled account
    _own(
        "every-seed-has-all-the-capital",
        POOL,
        "total = share * np.sum(paths, axis=0)",
        "total = share * np.prod(paths, axis=0)",
        judged("walk_forward/pool", "test_capital_is_divided_anew_at_each_fold"),
    ),
    _own(
        "agents-change-for-free",
        POOL,
        "path[-1] -= (fee + spread) / backtest.equity[0]",
        "path[-1] -= 0.0 * (fee + spread)",
        judged("walk_forward/pool", "test_what_is_held_between_folds_is_closed_at_fee_and_spread"),
    ),
    _own(
        "closing-costs-not-told",
        POOL,
        'sums["fees"][-1] += scale * fee',
        'sums["fees"][-1] += 0.0 * fee',
        judged("walk_forward/pool", "test_what_is_held_between_folds_is_closed_at_fee_and_spread"),
    ),
    _own(
        "cost-charged-without-slippage",
        POOL,
        'bars["fee_total"].sum() + bars["slippage"].sum()',
        'bars["fee_total"].sum()',
        judged(
            "walk_forward/pool",
            "test_the_cost_charged_is_all_that_was_paid_over_all_that_was_traded",
        ),
    ),
    # --- walk
    _own(
        "test-span-is-read",
        WALK,
        "seen = panel.between(plan.development.start_ms, plan.development.end_ms)",
        "seen = panel",
        judged("walk_forward/run", "test_bars_of_the_closed_test_span_are_never_read"),
    ),
    _own(
        "next-fold-begins-with-the-first-capital",
        WALK,
        "capital *= float(np.mean(paths))",
        "capital *= float(np.mean(paths)) ** 0",
        judged("walk_forward/run", "test_each_fold_begins_with_what_the_one_before_has_left"),
    ),
    _own(
        "agent-may-see-later-bars",
        WALK,
        "span.start_ms < fold.train.start_ms or span.end_ms > fold.train.end_ms",
        "span.start_ms < fold.train.start_ms",
        judged("walk_forward/run", "test_an_agent_that_saw_bars_beyond_its_span_is_refused"),
    ),
    _own(
        "a-bug-is-a-failed-training",
        WALK,
        "except (*_REFUSED, *_BUGS):",
        "except _REFUSED:",
        judged("walk_forward/run", "test_a_refusal_or_a_bug_ends_the_validation_and_is_no_trial"),
    ),
    _own(
        "opened-after-the-result",
        WALK,
        """        trial.record_opening()
        return [self._backtest(run, panel, capital / len(trained)) for run in trained]
""",
        """        traded = [self._backtest(run, panel, capital / len(trained)) for run in trained]
        trial.record_opening()
        return traded
""",
        judged("walk_forward/run", "test_the_opening_is_written_before_the_result_is_known"),
    ),
    # --- ledger
    _own(
        "own-trainings-deflate",
        LEDGER,
        "if before is None or line.number < before)",
        "if line.number >= 0)",
        judged(
            "walk_forward/run", "test_what_was_tried_before_deflates_and_what_comes_after_does_not"
        ),
    ),
    _own(
        "opened-twice",
        SEAL,
        "return line.data_hash == data_hash if named is None else",
        "return False if named is None else",
        judged("walk_forward/run", "test_an_opening_that_names_no_span_is_one_of_the_same_bars"),
    ),
    _own(
        "opened-again-by-another-share",
        SEAL,
        "return shared and self.span.overlaps(other.span)",
        "return shared and self.span == other.span",
        judged("walk_forward/run", "test_a_test_span_that_overlaps_an_opened_one_is_refused"),
    ),
    _own(
        "opened-again-after-it-finished",
        LEDGER,
        "if opening.extra.get(RUN_KEY) == self.key and not finished:",
        "if opening.extra.get(RUN_KEY) == self.key:",
        judged("walk_forward/run", "test_the_test_span_is_opened_once"),
    ),
    _own(
        "died-after-the-opening-is-lost",
        LEDGER,
        "if opening.extra.get(RUN_KEY) == self.key and not finished:",
        "if finished:",
        judged("walk_forward/run", "test_a_validation_that_died_after_the_opening_can_be_finished"),
    ),
    # --- judging
    _own(
        "trials-of-the-workspace-forgotten",
        EVIDENCE,
        "trials=earlier.count + independent,",
        "trials=len(earlier.scores) + independent,",
        judged(
            "walk_forward/run", "test_what_was_tried_before_deflates_and_what_comes_after_does_not"
        ),
    ),
    _own(
        "stops-are-not-ruin",
        JUDGING,
        "stops=sum(len(backtest.stopped_symbols) for backtest in self.finished),",
        "stops=0,",
        judged("walk_forward/run", "test_an_account_that_was_stopped_rejects"),
    ),
    _own(
        "seeds-of-a-fold-hide-its-failure",
        JUDGING,
        "trained = {run.fold.number for run in self.runs if run.agent is not None}",
        "trained = {run.fold.number for run in self.runs}",
        judged("walk_forward/run", "test_a_fold_that_failed_in_every_seed_rejects"),
    ),
    _own(
        "verdict-before-the-search",
        EVIDENCE,
        "deflated=tested.significance.deflated,",
        "deflated=tested.significance.probabilistic,",
        judged("walk_forward/files", "test_the_verdict_rests_on_the_figures_that_are_written"),
    ),
    _own(
        "table-without-seed",
        POOL,
        '("seed", run.seed)',
        '("seed", run.fold.number)',
        judged("walk_forward/files", "test_every_trade_and_decision_names_its_fold_and_seed"),
    ),
    # --- the reader of saved results
    _own(
        "saved-version-ignored",
        SAVED,
        'document.get("format") != FORMAT',
        'document.get("format") is None',
        judged("saved", "test_the_same_damage_has_the_same_code_everywhere"),
    ),
    _own(
        "saved-column-missing",
        SAVED,
        "if absent and (table.num_rows or file == EQUITY):",
        "if absent and file == EQUITY:",
        judged("saved", "test_the_same_damage_has_the_same_code_everywhere"),
    ),
    # --- self-tests
    _own(
        "oracle-need-not-beat-the-agents",
        SELF_TESTS,
        '| {"agents": agents}',
        '| {"agents": -1.0}',
        judged("robustness/self_tests", "test_the_oracle_must_beat_baselines_and_agents"),
    ),
    _own(
        "noise-with-a-direction",
        SELF_TESTS,
        ".integers(0, 2, size.shape) - 1.0",
        ".integers(1, 2, size.shape) - 1.0",
        judged(
            "robustness/self_tests", "test_a_market_without_direction_keeps_sizes_and_draws_signs"
        ),
    ),
    _own(
        "noise-never-counted",
        SELF_TESTS,
        'return SelfTest("noise", holds=False, words=words)',
        'return SelfTest("noise", holds=True, words=words)',
        judged("robustness/self_tests", "test_a_ledger_that_gives_money_away_is_found"),
    ),
    _own(
        "noise-chance-called-skill",
        SELF_TESTS,
        "if passed <= most:",
        "if passed <= STRATEGIES:",
        judged(
            "robustness/self_tests",
            "test_a_statistic_that_calls_chance_skill_is_unknown_and_no_reason_to_reject",
        ),
    ),
    _own(
        "permutation-not-compared",
        SELF_TESTS,
        'return SelfTest("permuted decisions", not same, words)',
        'return SelfTest("permuted decisions", bool(words), words)',
        judged(
            "robustness/self_tests",
            "test_a_ledger_that_ignores_when_something_was_decided_is_found",
        ),
    ),
    _own(
        "fees-may-help-nobody",
        SELF_TESTS,
        "bool(less.equity[-1] < usual.equity[-1])",
        "bool(less.equity[-1] <= usual.equity[-1])",
        judged("robustness/self_tests", "test_a_ledger_that_ignores_fees_is_found"),
    ),
    _own(
        "look-ahead-changes-nothing-later",
        SELF_TESTS,
        "row = first + decisions - 1  # of",
        "row = first + len(result.weights) - 1  # of",
        judged("robustness/self_tests", "test_an_agent_that_looks_one_bar_ahead_is_found"),
    ),
    # --- verdict
    _verdict("zero-is-a-gain", "total.value > 0.0", "total.value >= 0.0", _FLIPS),
    _verdict("loss-not-proven", "mean.high >= 0.0", "mean.low >= mean.low", _LOSS),
    _verdict("mean-may-be-zero", "mean.low > 0.0", "mean.low >= 0.0", _FLIPS),
    _verdict("deflated-strict", "deflated.value >= least", "deflated.value > least", _EDGE),
    _verdict("p-value-turned", "Reason(name, p <= most,", "Reason(name, p >= most,", _FLIPS),
    _verdict(
        "one-baseline-suffices",
        "other, worst = max(baselines.items()",
        "other, worst = min(baselines.items()",
        _FLIPS,
    ),
    _verdict("half-is-most", "int(share * len(returns)) + 1", "int(share * len(returns))", _FLIPS),
    _verdict("costs-without-margin", "needed = margin * max(", "needed = max(", _FLIPS),
    _verdict("tail-by-its-low-end", '"tail", high >= 0.0', '"tail", gap.low <= 0.0', _FLIPS),
    _verdict("ruin-ignored", "ruined == 0", "ruined >= 0", _FLIPS),
    _verdict(
        "unknown-promotes",
        "elif all(reason.holds for reason in reasons)",
        "elif all(reason.holds is not False for reason in reasons)",
        _FLIPS,
    ),
    _verdict(
        "test-span-raises",
        "    decision = verdict.decision\n    if final",
        "    decision = max(verdict.decision, final.decision, key=ORDER.index)\n    if final",
        judged("walk_forward/verdict", "test_no_span_raises_a_verdict"),
    ),
    _verdict(
        "short-span-demotes",
        "elif broken:",
        'elif final.decision != "promote":',
        judged("walk_forward/verdict", "test_a_short_span_neither_confirms_nor_lowers"),
    ),
    _verdict(
        "span-against-itself",
        "math.hypot(high - other, mean - low)",
        "(high - other)",
        judged("walk_forward/verdict", "test_a_span_contradicts_by_the_interval_of_the_difference"),
    ),
    _verdict(
        "open-tail-vetoes",
        "    return reasons, [_tail_condition(evidence, reasons)]",
        "    return [*reasons, _tail_condition(evidence, reasons)], []",
        judged(
            "walk_forward/verdict", "test_a_tail_that_no_data_can_decide_is_a_condition_and_no_veto"
        ),
    ),
    _verdict(
        "condition-costs-nothing",
        "promoted = 1.0 if not conditions else conditional_capital",
        "promoted = 1.0",
        judged(
            "walk_forward/verdict", "test_a_tail_that_no_data_can_decide_is_a_condition_and_no_veto"
        ),
    ),
    _verdict(
        "laxer-rules-are-told-by-nobody",
        "if laxer := rules.laxer():",
        "if laxer := rules.laxer() and []:",
        judged("walk_forward/verdict", "test_laxer_rules_are_a_condition_that_every_verdict_tells"),
    ),
    _verdict(
        "free-trading-bears-all",
        "margin * max(charged, evidence.cost_floor_bp)",
        "margin * charged",
        judged("walk_forward/verdict", "test_costs_of_nothing_are_held_to_the_floor"),
    ),
    _verdict(
        "any-explanation-lifts-all",
        "if reason.holds or text is None:",
        "if reason.holds or not explanations:",
        judged("walk_forward/verdict", "test_only_writing_lifts_what_is_too_good_to_be_true"),
    ),
    _own(
        "dead-bars-of-the-decision",
        JUDGING,
        "rows = np.searchsorted(ts, backtest.ts[:-1])",
        "rows = np.searchsorted(ts, backtest.ts[:-1]) - 1",
        judged("walk_forward/run", "test_fills_in_dead_bars_are_counted"),
    ),
    _own(
        "trainings-spread-the-trials",
        TRIALS,
        "if trial.kind == VALIDATION and trial.sharpe_per_bar is not None",
        "if trial.sharpe_per_bar is not None",
        judged(
            "walk_forward/run", "test_what_was_tried_before_deflates_and_what_comes_after_does_not"
        ),
    ),
    _own(
        "plan-of-certain-baselines",
        POWER,
        "return own - math.sqrt(2.0) * wider",
        "return own - wider",
        judged("walk_forward/power", "test_a_plan_by_hand"),
    ),
    _own(
        "final-training-not-announced",
        WALK,
        "spans.append(self._plan.final.train)",
        "spans.append(self._plan.folds[-1].train)",
        judged("walk_forward/run", "test_the_test_span_is_opened_once"),
    ),
    _own(
        "seeds-announced-first",
        WALK,
        "for span in spans for seed in self._config.seeds]",
        "for seed in self._config.seeds for span in spans]",
        judged("walk_forward/run", "test_fit_gets_the_spans_of_the_plan_and_every_seed"),
    ),
)
