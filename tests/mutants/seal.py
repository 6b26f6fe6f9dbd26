"""The bugs of sealed bars, of failures that are no trials, and of marks in manifests."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

SEAL = "evaluation/walk_forward/seal.py"
LEDGER = "evaluation/walk_forward/ledger.py"
VERDICT = "evaluation/walk_forward/verdict.py"
TRIALS = "evaluation/stats/trials.py"
MARKS = "evaluation/stats/trial_marks.py"
LINES = "algorithms/run/trials.py"
LOOKS = "api/looks.py"

_COMMAND = integration(
    "validate_command",
    "test_a_backtest_on_sealed_bars_warns_is_recorded_and_later_verdicts_say_so",
)
_RUN_TRIALS = "run/trials"


def _seal(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"seal-{name}", "validation", file, old, new, tests)


def _judged(name: str, *tests: str) -> tuple[str, ...]:
    return unit(name, *tests, part="evaluation")


def _trained(*tests: str) -> tuple[str, ...]:
    return unit(_RUN_TRIALS, *tests, part="algorithms")


SEAL_BUGS = (
    _seal(
        "opened-again-by-another-symbol",
        SEAL,
        "bool({*self.symbols} & {*other.symbols})",
        "self.symbols == other.symbols",
        _judged("walk_forward/seal", "test_bars_are_the_same_by_symbol_and_time"),
    ),
    _seal(
        "not-named-in-the-ledger",
        LEDGER,
        "STARTED, None, 0, **trial.sealed.document())",
        "STARTED, None, 0)",
        _judged("walk_forward/seal", "test_a_validation_seals_and_the_next_one_tells_of_the_look"),
    ),
    _seal(
        "look-after-the-result",
        SEAL,
        "    write(STARTED)\n    try:",
        "    try:",
        _judged(
            "walk_forward/seal",
            "test_one_that_failed_has_shown_nothing_and_one_that_was_killed_may_have",
        ),
    ),
    _seal(
        "looks-at-the-same-bars-count-once",
        SEAL,
        "identity = [name, config_hash, data_hash, len(records.trials)]",
        "identity = [name, config_hash, data_hash]",
        _judged(
            "walk_forward/seal",
            "test_a_backtest_on_sealed_bars_is_an_opening_and_a_trial_each_time",
        ),
    ),
    _seal(
        "looks-are-no-trials",
        TRIALS,
        'TRIED = ("training", VALIDATION, LOOK)',
        'TRIED = ("training", VALIDATION)',
        _judged("stats/trials", "test_a_backtest_on_sealed_bars_is_a_trial_and_an_opening"),
    ),
    _seal(
        "told-of-promotions-alone",
        VERDICT,
        "condition.name in (SEAL, LAX)]",
        "condition.name == LAX]",
        _judged("walk_forward/seal", "test_every_verdict_says_that_its_seal_was_broken"),
    ),
    _seal(
        "backtests-pass",
        LOOKS,
        "    if ledger is None:\n        sealed",
        "    if True:\n        sealed",
        _COMMAND,
    ),
    _seal(
        "failures-are-trials",
        TRIALS,
        "and (trial.status != FAILED or trial.sharpe_per_bar is not None)",
        "and trial.status",
        _judged("stats/trials", "test_what_failed_is_a_trial_only_if_it_left_a_result"),
    ),
    _seal(
        "failed-and-begun-again-is-none",
        TRIALS,
        "ended = self.status not in (STARTED, EXTENDED, FAILED)",
        "ended = self.status not in (STARTED, EXTENDED)",
        _judged("stats/trials", "test_what_failed_and_began_again_is_a_trial"),
    ),
    _seal(
        "fail-first-and-be-deflated-by-nothing",
        LEDGER,
        "numbers = [] if line.status == FAILED and not known else [*numbers, line.number]",
        "numbers = [*numbers, line.number]",
        _judged(
            "walk_forward/run", "test_what_was_tried_since_a_failure_deflates_what_begins_again"
        ),
    ),
    _seal(
        "failing-takes-a-result-back",
        TRIALS,
        "before is None or not before.tells_result or trial.tells_result",
        "before is None or not before.tells_result or trial.status not in (STARTED, EXTENDED)",
        _judged("stats/trials", "test_a_failure_after_a_result_takes_nothing_back"),
    ),
    _seal(
        "deflated-by-its-own-result-after-a-failure",
        LEDGER,
        "known = known or line.tells_result",
        "known = False",
        _judged("walk_forward/run", "test_a_result_is_not_taken_back_by_failing_later"),
    ),
    _seal(
        "a-short-look-that-failed-is-none",
        SEAL,
        "if not look.bars:",
        "if look.sharpe_per_bar is None:",
        _judged(
            "walk_forward/seal",
            "test_one_that_failed_after_it_was_seen_is_an_opening_even_without_a_sharpe_ratio",
        ),
    ),
    _seal(
        "members-without-a-mark",
        "algorithms/population/member.py",
        "folder.mark_trials(lines.mark(lines.started(), folder.path))",
        "lines.started()",
        integration("population", "test_the_manifest_of_each_member_names_its_line_of_the_ledger"),
    ),
    _seal(
        "members-not-looked-at",
        MARKS,
        '_DEPTHS = ("*", "*/*", "*/*/*")',
        '_DEPTHS = ("*", "*/*")',
        _judged("stats/trial_marks", "test_the_runs_of_every_verb_are_looked_at"),
    ),
    _seal(
        "fail-last-and-be-forgotten",
        LINES,
        "lines.ended(FAILED, str(error), *lines.known())",
        "lines.ended(FAILED, str(error), None, 0)",
        _trained("test_what_failed_after_an_evaluation_has_a_result_and_is_a_trial"),
    ),
    _seal(
        "a-bug-is-a-trial",
        LINES,
        "    except Exception as error:\n        if lines.begun:",
        "    except StormsailError as error:\n        if lines.begun:",
        _trained("test_a_training_that_failed_is_no_trial_and_may_finish_later"),
    ),
    _seal(
        "restored-ledger-by-its-length",
        MARKS,
        'if known.get(number if isinstance(number, int) else 0) != mark.get("hash"):',
        "if number not in known:",
        _judged(
            "stats/trial_marks",
            "test_a_restored_ledger_is_noticed_and_so_is_one_that_was_written_anew",
        ),
    ),
    _seal(
        "marks-of-other-ledgers",
        MARKS,
        "named = isinstance(place, str) and (manifest.parent / place).resolve() == own",
        "named = isinstance(place, str)",
        _judged(
            "stats/trial_marks",
            "test_runs_of_other_ledgers_and_damaged_manifests_are_passed_over",
        ),
    ),
    Mutant(
        "steps-every-bar-a-line",
        "validation",
        "cli/judging/steps_display.py",
        "        self._last = self._clock.monotonic_ns()\n        typer.echo(line, err=True)",
        "        typer.echo(line, err=True)",
        integration("step_lines", "test_a_step_has_a_line_and_then_one_every_five_seconds"),
    ),
    Mutant(
        "steps-seen-by-nobody-after-an-inner-watcher",
        "validation",
        "core/steps.py",
        "        _WATCHER.reset(token)",
        "        _WATCHER.set(None)",
        unit(
            "steps",
            "test_only_what_runs_inside_is_seen_and_the_innermost_watcher_sees_it",
            part="core",
        ),
    ),
    Mutant(
        "second-interrupt-without-a-word",
        "validation",
        "algorithms/trainer.py",
        "raise CutShort(self._kept())",
        "raise KeyboardInterrupt",
        integration("step_lines", "test_a_second_interrupt_says_what_was_kept"),
    ),
    _seal(
        "folds-of-others-read-it",
        LEDGER,
        "                open_seals(ledger, name, seen, key=key, by=KIND, **hashes)\n",
        "",
        _judged(
            "walk_forward/seal",
            "test_a_validation_that_reads_sealed_bars_in_its_folds_opens_them",
        ),
    ),
    _seal(
        "trainings-read-it",
        LINES,
        "self._write(STARTED, None, 0))\n            self._open_seals()\n",
        "self._write(STARTED, None, 0))\n",
        _trained("test_a_training_on_sealed_bars_opens_them_and_one_before_the_seal_does_not"),
    ),
    _seal(
        "attacks-read-it",
        "cli/judging/attack.py",
        '    open_by_verb(folder, settings, by="attack")\n',
        "",
        unit("judging", "test_an_attack_on_sealed_bars_opens_them_once", part="api"),
    ),
    _seal(
        "hidden-by-another-workspace",
        "api/looks.py",
        "[ledger] if own is None or own.resolve() == ledger.resolve() else [ledger, own]",
        "[ledger]",
        unit("judging", "test_another_workspace_hides_no_seal", part="api"),
    ),
    _seal(
        "each-training-opens-it-again",
        SEAL,
        "is not None and not openings_of(records, own)",
        "is not None",
        _judged("walk_forward/seal", "test_a_training_that_reads_sealed_bars_opens_them_once"),
    ),
    _seal(
        "no-capital-is-all-of-it",
        "cli/trading/live.py",
        'return decision, _share(verdict.get("capital_share"))',
        'return decision, verdict.get("capital_share") or 1.0',
        integration("trading_commands", "test_a_verdict_that_allows_no_share_allows_no_trading"),
    ),
    _seal(
        "marks-are-not-looked-at",
        LEDGER,
        "            check_marks(ledger, records)\n",
        "",
        integration("validate_command", "test_a_ledger_that_lost_its_lines_is_refused"),
    ),
)
