"""The bugs of plug-ins: what is run, what is compared, and rewards of the user's own."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

LOADER = "core/plugins.py"
FORMULA = "functional/market/rewards.py"
REGISTRY = "market/rewards/registry.py"
ACCOUNT = "market/simulator/account.py"
SIMULATOR = "market/simulator/simulator.py"
RUN = "algorithms/run/plugins.py"
REPORTS = "algorithms/population/engines/reports.py"


def _own(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"plugin-{name}", "plug-ins", file, old, new, tests)


def loader(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of the loader."""
    return unit("plugins", *tests, part="core")


def formula(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of the formulas."""
    return unit("rewards", *tests)


def simulated(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of rewards in the simulator."""
    return unit("rewards/simulated", *tests, part="market")


PLUGINS = (
    _own(
        "hash-not-compared",
        LOADER,
        "if use.sha256 and here != use.sha256:",
        "if not use.sha256 and here != use.sha256:",
        loader("test_a_plug_in_with_another_hash_is_refused_and_both_hashes_are_named"),
    ),
    _own(
        "hash-of-the-name",
        LOADER,
        "sha256 = hashlib.sha256(source).hexdigest()\n    for plugin",
        "sha256 = hashlib.sha256(name.encode()).hexdigest()\n    for plugin",
        loader("test_a_file_is_run_once_and_says_what_it_registers"),
    ),
    _own(
        "file-of-the-disk-runs",
        LOADER,
        "return self.source_to_code(self._source, shown(self._path))",
        "return self.source_to_code(Path(self._path).read_bytes(), shown(self._path))",
        loader("test_what_runs_is_what_was_hashed"),
    ),
    _own(
        "failed-file-leaves-its-names",
        LOADER,
        "            _registries[kind].forget(item)\n        if isinstance",
        "            pass\n        if isinstance",
        loader("test_a_name_that_is_taken_is_refused_and_leaves_nothing_behind"),
    ),
    _own(
        "saved-settings-run",
        RUN,
        "    if saved.plugins:\n        raise not_run(path, saved.plugins)\n",
        "",
        integration("plugin_commands", "test_a_plug_in_that_saved_settings_name_is_never_run"),
    ),
    _own(
        "workers-without-plug-ins",
        REPORTS,
        "plugins.restore(carried)",
        "del carried",
        unit(
            "population/engines/carried_plugins",
            "test_a_job_brings_the_plug_ins_of_its_driver",
            part="algorithms",
        ),
    ),
    _own(
        "sharpe-without-the-half",
        FORMULA,
        "square * first - 0.5 * average * second",
        "square * first - average * second",
        formula("test_the_differential_sharpe_ratio_by_hand"),
    ),
    _own(
        "sharpe-over-the-deviation",
        FORMULA,
        "/ (variance * variance.sqrt())",
        "/ variance.sqrt()",
        formula("test_the_differential_sharpe_ratio_by_hand"),
    ),
    _own(
        "sharpe-of-log-returns",
        FORMULA,
        "simple = growth.expm1()",
        "simple = growth",
        formula("test_the_differential_sharpe_ratio_by_hand"),
    ),
    _own(
        "sharpe-without-a-bound",
        FORMULA,
        "torch.maximum(square - average.square(), low)",
        "square - average.square() + 0.0 * low",
        formula("test_the_variance_below_the_line_is_at_least_the_bound"),
    ),
    _own(
        "drawdown-pays-back",
        FORMULA,
        "factor * deeper.clamp(min=0.0)",
        "factor * deeper",
        formula("test_the_drawdown_penalty_by_hand"),
    ),
    _own(
        "drawdown-rewarded",
        FORMULA,
        "- factor * deeper.clamp(min=0.0)",
        "+ factor * deeper.clamp(min=0.0)",
        formula("test_the_drawdown_penalty_by_hand"),
    ),
    _own(
        "memory-outlives-the-episode",
        ACCOUNT,
        "torch.where(over if one.ndim == 1 else wide, one, other)",
        "torch.where(over, one, other) if one.ndim == 1 else other",
        simulated("test_the_memory_begins_anew_with_each_episode"),
    ),
    _own(
        "reward-without-ruin",
        SIMULATOR,
        "reward = torch.where(ruined, reward - self.config.ruin_penalty, reward)",
        "reward = reward.clone()",
        simulated("test_the_penalty_of_ruin_is_taken_from_every_reward"),
    ),
    _own(
        "batch-seen-by-a-reward",
        REGISTRY,
        "if not torch.allclose(whole, alone, rtol=_CLOSE, atol=_CLOSE):",
        "if len(whole) != len(alone):",
        simulated("test_a_reward_that_no_simulator_could_use_is_refused"),
    ),
)
