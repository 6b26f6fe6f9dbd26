"""`stormsail bench continual`: which optimizers still learn after a long sequence of tasks."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stormsail.bench.optimizers.continual_problem import KINDS, Kind, Sizes
from stormsail.bench.optimizers.continual_run import (
    METHODS,
    Job,
    Method,
    Outcome,
    Setting,
    Variant,
    run,
)
from stormsail.bench.processes import one_thread_processes
from stormsail.bench.seeds import Seeds

LAST = 10
"""Tasks at the end that count as late."""

TUNING_SEED = 1000
"""First of the seeds on which settings are chosen; far from those that are reported, from 0 on."""

FULL = Sizes()

Runner = Callable[[Sequence[Job]], list[Outcome]]


@dataclass(frozen=True)
class Plan:
    """Size of the benchmark; the defaults are those of the full one."""

    sizes: Sizes = FULL
    seeds: int = 10
    tuning_tasks: int = 30
    tuning_seeds: int = 2
    methods: tuple[Method, ...] = METHODS
    around: tuple[float, ...] = (0.5, 0.7, 1.4, 2.0)
    """Factors of the chosen rate that are tried after the grid, whose steps are of about 3."""

    @classmethod
    def quick(cls) -> "Plan":
        """Return one that shows in seconds that everything runs, and nothing else."""
        methods = tuple(
            replace(method, rates=method.rates[1:3], knobs=method.knobs[:2]) for method in METHODS
        )
        sizes = Sizes(tasks=5, steps=20, probe=64)
        return cls(sizes, seeds=2, tuning_tasks=2, tuning_seeds=1, methods=methods, around=(1.5,))

    def variants(self) -> tuple[Variant, ...]:
        """Return every line of the table."""
        plain = [Variant(method) for method in self.methods]
        scaled = [Variant(method, scaled=True) for method in self.methods]
        fresh = [Variant(method, fresh=True) for method in self.methods if method.name == "Adam"]
        return (*plain, *scaled, *fresh)


@dataclass(frozen=True)
class Choice:
    """The setting that did best on the tuning seeds."""

    setting: Setting
    accuracy: float
    at_edge: bool
    """Whether the rate is the smallest or largest tried, so that a better one may lie outside."""


@dataclass(frozen=True)
class Row:
    """One variant on one problem."""

    kind: Kind
    variant: Variant
    choice: Choice
    accuracy: Seeds
    """Over all tasks."""
    first: Seeds
    """Over the first tasks, as many as count as late."""
    late: Seeds
    """Over the last ones."""
    dead: Seeds
    """Share of dead units at the ends of the late tasks."""
    curve: tuple[float, ...]
    """Accuracy in each task, mean over seeds."""


@dataclass(frozen=True)
class Difference:
    """One variant less another on the same seeds, which meet the same samples."""

    kind: Kind
    variant: str
    other: str
    accuracy: Seeds


@dataclass(frozen=True)
class Comparison:
    """All results."""

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]


@contextmanager
def runner(workers: int) -> Iterator[Runner]:
    """Give a way to run jobs: in this process, or in several that hold one thread each."""
    if workers == 1:
        yield lambda jobs: _in_order(jobs, map(run, _batches(jobs)))
        return
    with one_thread_processes(workers) as pool:
        yield lambda jobs: _in_order(jobs, pool.map(run, _batches(jobs)))


def _batches(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs in batches that can run side by side."""
    batches: dict[tuple[Kind, Variant, Sizes], list[Job]] = {}
    for job in jobs:
        batches.setdefault((job.kind, job.variant, job.sizes), []).append(job)
    return list(batches.values())


def _in_order(jobs: Sequence[Job], outcomes: Iterable[list[Outcome]]) -> list[Outcome]:
    """Return the outcomes of the batches in the order of the jobs."""
    by_job: dict[Job, Outcome] = {}
    for batch, results in zip(_batches(jobs), outcomes, strict=True):
        by_job.update(zip(batch, results, strict=True))
    return [by_job[job] for job in jobs]


Pair = tuple[Kind, Variant]


def compare(plan: Plan, runs: Runner, *, say: Callable[[str], None]) -> Comparison:
    """Choose settings on seeds of their own, then measure every variant on the others.

    The learning rate and, where a method has one, its own knob are chosen together, on the mean
    accuracy of shorter sequences. A variant with the scaler keeps the knob of the plain one and
    chooses its rate anew: the scaler shortens steps, and a rate that was right without it is not
    right with it. Then rates around the chosen one are tried: without that, a method whose rate is
    finely divided by something else seems better than one that has to take a rate of the grid.
    """
    say(f"choosing settings on {plan.tuning_seeds} seeds of {plan.tuning_tasks} tasks")
    chosen = refine(plan, _coarse(plan, runs), runs)
    say(f"measuring {len(chosen)} lines on {plan.seeds} seeds of {plan.sizes.tasks} tasks")
    rows = measure(plan, chosen, runs)
    return Comparison(tuple(rows), tuple(differences(rows)))


def _coarse(plan: Plan, runs: Runner) -> dict[Pair, Choice]:
    """Return the best of the grid for every line, in the order of the table."""
    pairs = [(kind, variant) for kind in KINDS for variant in plan.variants()]
    plain = {pair: _settings(pair[1].method) for pair in pairs if not pair[1].scaled}
    chosen = _choose(plan, plain, runs)
    scaled = {
        (kind, variant): [
            Setting(rate, chosen[kind, Variant(variant.method)].setting.knob)
            for rate in variant.method.rates
        ]
        for kind, variant in pairs
        if variant.scaled
    }
    chosen |= _choose(plan, scaled, runs)
    return {pair: chosen[pair] for pair in pairs}


def refine(plan: Plan, chosen: dict[Pair, Choice], runs: Runner) -> dict[Pair, Choice]:
    """Return the better of each choice and the best rate around it, the knob left alone."""
    around = {
        pair: [replace(choice.setting, rate=choice.setting.rate * f) for f in plan.around]
        for pair, choice in chosen.items()
    }
    if not plan.around:
        return chosen
    refined = _choose(plan, around, runs)
    better = {
        pair: max(choice, refined[pair], key=lambda either: either.accuracy)
        for pair, choice in chosen.items()
    }
    return {
        pair: replace(choice, at_edge=_is_edge(choice.setting, pair[1].method, around[pair]))
        for pair, choice in better.items()
    }


def _is_edge(setting: Setting, method: Method, around: Sequence[Setting]) -> bool:
    tried = [*method.rates, *(other.rate for other in around)]
    return setting.rate in (min(tried), max(tried))


def measure(plan: Plan, chosen: dict[Pair, Choice], runs: Runner) -> list[Row]:
    """Return the rows of the table with the settings that were chosen."""
    jobs = [
        Job(*pair, choice.setting, seed, plan.sizes)
        for pair, choice in chosen.items()
        for seed in range(plan.seeds)
    ]
    outcomes = runs(jobs)
    return [
        _row(*pair, choice, outcomes[place * plan.seeds : (place + 1) * plan.seeds])
        for place, (pair, choice) in enumerate(chosen.items())
    ]


def _settings(method: Method) -> list[Setting]:
    return [Setting(rate, knob) for rate in method.rates for knob in method.knobs]


def _choose(plan: Plan, settings: dict[Pair, list[Setting]], runs: Runner) -> dict[Pair, Choice]:
    """Return the best of its settings for each variant; of equals, the first."""
    sizes = replace(plan.sizes, tasks=plan.tuning_tasks)
    seeds = range(TUNING_SEED, TUNING_SEED + plan.tuning_seeds)
    jobs = [
        Job(*pair, setting, seed, sizes)
        for pair, candidates in settings.items()
        for setting in candidates
        for seed in seeds
    ]
    means = iter([statistics.fmean(outcome.accuracy) for outcome in runs(jobs)])
    chosen = {}
    for pair, candidates in settings.items():
        scores = [statistics.fmean([next(means) for _ in seeds]) for _ in candidates]
        best = max(range(len(candidates)), key=scores.__getitem__)
        at_edge = _is_edge(candidates[best], pair[1].method, [])
        chosen[pair] = Choice(candidates[best], scores[best], at_edge)
    return chosen


def _row(kind: Kind, variant: Variant, choice: Choice, outcomes: Sequence[Outcome]) -> Row:
    accuracy = [statistics.fmean(outcome.accuracy) for outcome in outcomes]
    first = [statistics.fmean(outcome.accuracy[:LAST]) for outcome in outcomes]
    late = [statistics.fmean(outcome.accuracy[-LAST:]) for outcome in outcomes]
    dead = [statistics.fmean(outcome.dead[-LAST:]) for outcome in outcomes]
    curves = zip(*(outcome.accuracy for outcome in outcomes), strict=True)
    return Row(
        kind,
        variant,
        choice,
        accuracy=_over_seeds(accuracy),
        first=_over_seeds(first),
        late=_over_seeds(late),
        dead=_over_seeds(dead),
        curve=tuple(statistics.fmean(values) for values in curves),
    )


def _over_seeds(values: Sequence[float]) -> Seeds:
    return Seeds(values, shown="standard_error", spec=".3f")


_AGAINST = {"UPGD": "SGD", "AdaptiveUPGD": "Adam"}
"""The optimizer that each of ours becomes when all utilities are equal and there is no noise."""


def differences(rows: Iterable[Row]) -> Iterator[Difference]:
    """Yield what the scaler adds to each method, and what the gate and the noise add."""
    by_name = {(row.kind, row.variant.name): row for row in rows}
    for (kind, name), row in by_name.items():
        method = row.variant.method.name
        other = method if row.variant.scaled else _AGAINST.get(name)
        if other is None:
            continue
        pairs = zip(row.accuracy.values, by_name[kind, other].accuracy.values, strict=True)
        yield Difference(kind, name, other, _over_seeds([own - plain for own, plain in pairs]))
