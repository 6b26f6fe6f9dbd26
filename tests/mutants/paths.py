"""The bugs of paths through the same bars, and of the configurations that were tried."""

from mutants.harness import Mutant
from mutants.nodes import unit

PATHS = "evaluation/walk_forward/combinatorial.py"
TRIED = "evaluation/walk_forward/tried.py"
WALK = "evaluation/walk_forward/run.py"
TASKS = "algorithms/run/tasks.py"
EPISODES = "market/simulator/episodes.py"
EVIDENCE = "evaluation/walk_forward/evidence.py"

_HOLES = unit("fit", "test_bars_in_a_hole_change_nothing_that_is_learned", part="algorithms")
_STARTS = unit(
    "simulator/episodes", "test_no_episode_touches_a_hole_or_looks_back_on_one", part="market"
)


def _paths(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"paths-{name}", "validation", file, old, new, tests)


def _judged(name: str, *tests: str) -> tuple[str, ...]:
    return unit(f"walk_forward/{name}", *tests, part="evaluation")


PATH_BUGS = (
    _paths(
        "episodes-in-holes",
        TASKS,
        "            without=data.without,\n        )\n        if purpose",
        "        )\n        if purpose",
        _HOLES,
    ),
    _paths(
        "scaler-of-holes",
        TASKS,
        "        if without:\n            whole",
        "        if False:\n            whole",
        _HOLES,
    ),
    _paths(
        "impact-of-holes",
        EPISODES,
        "max(lookback - 1, config.costs.impact_window)",
        "lookback - 1",
        _STARTS,
    ),
    _paths("ends-in-holes", EPISODES, "before=reach, after=length)", "before=reach)", _STARTS),
    _paths(
        "without-embargo",
        PATHS,
        "min(stop + plan.embargo, last)",
        "stop",
        _judged(
            "combinatorial",
            "test_groups_cover_all_bars_once_and_no_bar_is_read_by_both_sides",
        ),
    ),
    _paths(
        "one-split-for-all",
        PATHS,
        "return tuple(zip(*testing, strict=True))",
        "return tuple((numbers[0],) * len(testing) for numbers in zip(*testing, strict=True))",
        _judged("combinatorial", "test_paths_are_those_of_the_book"),
    ),
    _paths(
        "agents-that-saw-it-all",
        WALK,
        "        if not any(\n            own.start_ms <= hole.start_ms",
        "        if terms.without and not any(\n            own.start_ms <= hole.start_ms",
        _judged("combinatorial", "test_an_agent_that_learned_from_a_hole_is_refused"),
    ),
    _paths(
        "flat-path-wins",
        PATHS,
        "losing=float(np.mean(~(ratios > 0.0)))",
        "losing=float(np.mean(ratios <= 0.0))",
        _judged("combinatorial", "test_the_distribution_by_hand"),
    ),
    _paths(
        "tried-shifted",
        TRIED,
        "            columns.append(values[place])\n            common &= shared",
        "            columns.append(values[: ts.size])",
        _judged("tried", "test_columns_are_the_bars_that_all_have_traded"),
    ),
    _paths(
        "tried-without-its-own",
        EVIDENCE,
        "overfitting_statement(tried)",
        "overfitting_statement(tried[:, :-1])",
        _judged("tried", "test_a_validation_is_set_beside_the_configurations_before_it"),
    ),
)
