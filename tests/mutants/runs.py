"""The bugs of runs: what is derived, how they begin, grow and count."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

DERIVE = "algorithms/config/derive.py"
FOLDER = "algorithms/run/folder.py"
START = "algorithms/run/start_from.py"
TRAINER = "algorithms/trainer.py"
SCHEDULES = "algorithms/update/schedules.py"
ORDER = "algorithms/ppo.py"
LEDGER = "evaluation/stats/trials.py"


def _own(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"run-{name}", "runs", file, old, new, tests)


def run(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the run around the learner."""
    return unit(f"run/{name}", *tests, part="algorithms")


RUNS = (
    # --- derived settings and threads
    _own(
        "threads-of-the-machine",
        DERIVE,
        '        "threads": _THREADS,\n',
        '        "threads": __import__("os").cpu_count(),\n',
        unit("config/derive", "test_the_machine_has_no_say", part="algorithms"),
    ),
    _own(
        "minibatch-leaves-a-rest",
        DERIVE,
        "for size in divisors(sequences) if size >= least)",
        "for size in range(1, sequences + 1) if size >= least)",
        unit(
            "config/derive",
            "test_a_minibatch_is_an_equal_part_of_all_sequences",
            part="algorithms",
        ),
    ),
    _own(
        "threads-of-the-environment",
        TRAINER,
        "        stack.enter_context(torch_threads(threads_of(place, config)))\n",
        "",
        integration("environment", "test_a_training_has_its_threads_while_it_runs"),
    ),
    _own(
        "derived-again-on-resume",
        FOLDER,
        "    current = before.replace(checkpoint=config.checkpoint)\n",
        "    current = derive(before.replace(**dict.fromkeys(lineage.derived)))\n",
        run("start_and_resume", "test_what_a_later_version_derives_changes_no_run_that_has_begun"),
    ),
    # --- a refused start
    _own(
        "trial-before-the-refusal",
        TRAINER,
        "        trainer = Trainer(\n            folder,\n"
        "            bound,\n            start=start,\n",
        "        lines.started()\n        trainer = Trainer(\n            folder,\n"
        "            bound,\n            start=start,\n",
        run("refused_start", "test_what_cannot_be_made_leaves_nothing[an unknown task]"),
    ),
    _own(
        "refused-folder-stays",
        FOLDER,
        "                run.discard()\n",
        "",
        run(
            "refused_start",
            "test_a_refusal_anywhere_before_the_first_update_leaves_nothing[Trainer-save]",
        ),
    ),
    # --- extensions
    _own(
        "extension-derives-anew",
        FOLDER,
        "        current = lineage.current(current)\n",
        "        current = derive(\n"
        "            lineage.current(current).replace(**dict.fromkeys(lineage.derived))\n"
        "        )\n",
        run("extend", "test_derived_values_stay_what_they_were"),
    ),
    _own(
        "extension-jumps-back",
        SCHEDULES,
        "        begin, end = extension.steps, extension.new_total\n    return",
        "        begin, end = 0, extension.new_total\n    return",
        unit(
            "update/schedules",
            "test_an_extended_rate_goes_on_from_where_it_stood",
            part="algorithms",
        ),
    ),
    _own(
        "given-decay-stretches",
        SCHEDULES,
        "if not self.extensions or not self.derived.issuperset(shares):",
        "if not self.extensions:",
        unit(
            "update/schedules",
            "test_only_shares_of_the_budget_stretch_with_it",
            part="algorithms",
        ),
    ),
    _own(
        "extension-of-a-known-result-is-free",
        LEDGER,
        "        place = (trial.kind, key, looks) if",
        "        place = (trial.kind, key) if",
        unit(
            "stats/trials",
            "test_an_extension_after_the_result_was_known_counts_once_more",
            part="evaluation",
        ),
    ),
    # --- from another agent
    _own(
        "optimizer-kept-where-fresh-is-meant",
        START,
        "source, state if keep_optimizer else None)",
        "source, state)",
        run("start_from", "test_a_kept_optimizer_goes_on_and_a_fresh_one_does_not"),
    ),
    _own(
        "scale-of-trained-critics-set-anew",
        ORDER,
        "if self.update_count == 0 and not self.history.pretrained:",
        "if self.update_count == 0:",
        run("start_from", "test_the_scale_of_returns_is_not_set_anew"),
    ),
)
