"""The bugs of the front door: agents in Python, searches, endings of commands, output files."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

AGENT = "api/agent.py"
TRAINING = "api/training.py"
DRIVER = "algorithms/sweep/search.py"
STUDY = "algorithms/sweep/study.py"
TRIAL = "algorithms/sweep/trial.py"
ENDINGS = "cli/endings.py"
REPORT = "cli/failure_report.py"
OUTPUTS = "core/files/outputs.py"
OUTPUT = "cli/output_files.py"
COMPLETION = "cli/completion.py"
SHOW = "cli/start/show.py"


def _own(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"front-{name}", "front door", file, old, new, tests)


def api(module: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of tests of the Python interface."""
    return unit(module, *tests, part="api")


def search(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of searches that train nobody."""
    return unit("sweep/search", *tests, part="algorithms")


def endings(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of how commands end."""
    return integration("endings", *tests)


def cli(module: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of the command line."""
    return unit(module, *tests, part="cli")


FRONT_DOOR = (
    _own(
        "memory-forgotten",
        AGENT,
        "        given = given[None] if single else given\n        if given.shape",
        "        given = initial\n        if given.shape",
        api("agent", "test_memory_goes_from_step_to_step"),
    ),
    _own(
        "memory-that-is-not-finite-decides",
        AGENT,
        "        if not given.isfinite().all():",
        "        if False:",
        api("wrong_types", "test_memory_that_is_not_finite_decides_nothing"),
    ),
    _own(
        "symbols-ignored-beside-loaded-bars",
        "api/data.py",
        "    if symbols and set(symbols) != set(panel.symbols):",
        "    if False:",
        api("wrong_types", "test_bars_that_are_loaded_are_not_silently_others"),
    ),
    _own(
        "mask-that-forbids-everything",
        AGENT,
        "            if not choice.any(-1).all():",
        "            if False:",
        api("wrong_types", "test_the_refusal_says_what_was_wrong"),
    ),
    _own(
        "plan-of-what-cannot-be-trained",
        "evaluation/walk_forward/run.py",
        "    if check is not None:\n        check(spans.folds[0].train)\n",
        "",
        api("judging", "test_folds_too_short_to_train_on_are_refused_with_the_number_of_bars"),
    ),
    _own(
        "folds-too-short-trade-in-cash",
        "evaluation/walk_forward/run.py",
        "        check(plan.folds[0].train)\n",
        "        pass\n",
        api("judging", "test_folds_too_short_to_train_on_are_refused_with_the_number_of_bars"),
    ),
    _own(
        "one-decision-of-a-batch-of-one",
        AGENT,
        "parts = decision if not single else Decision(*(part[0] for part in decision))",
        "parts = decision",
        api(
            "agent",
            "test_arrays_and_tensors_one_and_many_give_the_decisions_of_the_base_class",
        ),
    ),
    _own(
        "always-greedy",
        AGENT,
        'greedy = self.judged_policy == "greedy" if deterministic is None else deterministic',
        "greedy = True if deterministic is None else deterministic",
        api("agent", "test_a_sampled_agent_draws_from_the_generator_that_it_is_given"),
    ),
    _own(
        "evaluation-of-another-stream",
        AGENT,
        'generators.stream("validation"),',
        'generators.stream("validation.actions"),',
        api("agent", "test_an_evaluation_repeats_that_of_the_training"),
    ),
    _own(
        "run-folder-begins-anew",
        TRAINING,
        'out = config if Path(config).is_dir() else Path("runs") / Path(config).stem',
        'out = Path("runs") / Path(config).stem',
        api("training", "test_a_stopped_run_goes_on_by_its_folder_to_the_same_bytes"),
    ),
    _own(
        "last-agent-is-the-best",
        TRAINING,
        "return Agent.load(self.path, device=self.config.device)",
        "return Agent.of(self.agent)",
        api("training", "test_a_run_holds_its_metrics_its_best_agent_and_its_last"),
    ),
    _own(
        "largest-is-always-best",
        STUDY,
        '(lambda x: -x) if mode == "max" else (lambda x: x)',
        "lambda x: -x",
        search("test_the_smallest_fitness_wins_where_it_is_to_be_small"),
    ),
    _own(
        "same-draw-for-every-trial",
        STUDY,
        'numpy(f"trial.{number}")',
        'numpy("trial")',
        search("test_trials_that_are_drawn_at_random_differ"),
    ),
    _own(
        "nobody-is-pruned",
        STUDY,
        "return self._live[number].should_prune()",
        "return False",
        search("test_pruning_is_asynchronous_successive_halving"),
    ),
    _own(
        "refused-trials-use-the-budget",
        DRIVER,
        "counted = sum(trial.state in COUNTED for trial in self.study.trials())",
        "counted = len(self.study.trials())",
        search("test_refused_and_failed_trials_are_none_and_diverged_ones_are"),
    ),
    _own(
        "other-settings-go-on",
        DRIVER,
        "    if changed:\n        raise ConfigError(",
        "    if False:\n        raise ConfigError(",
        search("test_a_folder_of_another_search_version_or_thing_is_refused"),
    ),
    _own(
        "search-without-its-plug-ins",
        DRIVER,
        "            require_plugins(trial)\n",
        "            pass\n",
        integration(
            "plugin_commands", "test_a_search_trains_with_plug_ins_and_asks_for_them_again"
        ),
    ),
    _own(
        "search-sees-sealed-bars",
        "algorithms/sweep/checks.py",
        "    if spans:\n        first",
        "    if False:\n        first",
        integration("search", "test_bars_that_a_validation_has_sealed_are_refused"),
    ),
    _own(
        "pruned-trial-never-counted",
        TRIAL,
        '        lines.ended("stopped", reason, saved.best_sharpe, saved.best_bars)\n',
        "        del saved, lines\n",
        integration(
            "search", "test_every_trial_counts_in_the_ledger_and_the_best_one_trains_as_it_is"
        ),
    ),
    _own(
        "bug-ends-as-a-refusal",
        ENDINGS,
        "UNEXPECTED = 70",
        "UNEXPECTED = 2",
        endings("test_whatever_stops_a_command_is_said_in_one_line"),
    ),
    _own(
        "option-as-a-value",
        "cli/output.py",
        '            if isinstance(value, str | Path) and str(value).startswith("--"):\n',
        "            if False:\n",
        ("tests/abuse/test_words.py::test_words_that_are_no_command_line_are_refused",),
    ),
    _own(
        "memory-is-a-bug",
        ENDINGS,
        "    if isinstance(error, MemoryError):\n        return True\n",
        "    if isinstance(error, MemoryError):\n        return False\n",
        endings("test_whatever_stops_a_command_is_said_in_one_line"),
    ),
    _own(
        "interrupt-is-an-error",
        ENDINGS,
        'return _complained(f"stormsail: `{verb}` was interrupted.", BY_SIGNAL + signal.SIGINT)',
        'return _complained(f"stormsail: `{verb}` was interrupted.", 1)',
        endings("test_an_interrupt_is_130_and_an_exit_its_own_status"),
    ),
    _own(
        "report-with-the-environment",
        REPORT,
        'text = text.replace(value, f"<${name}>")',
        "pass",
        endings("test_a_report_names_versions_verb_and_step_and_no_secret"),
    ),
    _own(
        "report-with-lines-of-the-user",
        REPORT,
        "    return path.name, False\n",
        "    return path.name, True\n",
        endings("test_a_report_names_versions_verb_and_step_and_no_secret"),
    ),
    _own(
        "output-replaced-unasked",
        OUTPUTS,
        "    if exists and not replace:\n",
        "    if exists and replace is None:\n",
        endings("test_an_output_is_a_regular_file_and_replaced_only_when_told"),
    ),
    _own(
        "device-replaced",
        OUTPUTS,
        "    if kind is not None:\n        raise ArtifactError(",
        '    if kind == "a folder":\n        raise ArtifactError(',
        endings("test_an_output_is_a_regular_file_and_replaced_only_when_told"),
    ),
    _own(
        "force-is-remembered",
        OUTPUT,
        "    _FORCE.set(value)\n",
        "    _FORCE.set(value or _FORCE.get())\n",
        cli("output", "test_json_out_replaces_a_file_only_with_force"),
    ),
    _own(
        "gap-behind-a-setting",
        COMPLETION,
        "    if len(settings) == 1:\n",
        "    if len(settings) == 0:\n",
        cli("completion", "test_settings_come_with_what_they_do"),
    ),
    _own(
        "show-forgets-plug-ins",
        SHOW,
        '    brought = [word for file in plugins for word in ("--plugin", file)]\n',
        "    brought: list[str] = []\n    del plugins\n",
        integration("plugin_commands", "test_show_says_which_plug_ins_to_bring"),
    ),
)
