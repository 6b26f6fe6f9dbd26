"""`stormsail bench continual`: who still learns after many tasks, and who keeps what is of use."""

import math
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

LAST = 10
"""Tasks at the end that count as late."""

TUNING_SEED = 1000
"""First of the seeds on which settings are chosen; far from those that are reported, from 0 on."""

FULL = Sizes()

Runner = Callable[[Sequence[Job]], list[Outcome]]


@dataclass(frozen=True)
class Plan:
    """What is run; the defaults are those of the full benchmark."""

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
class Estimate:
    """A mean over seeds and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Return it for one value of each seed; the error of a single value is NaN."""
        if len(values) < 2:
            return cls(values[0], math.nan)
        return cls(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


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
    accuracy: Estimate
    """Over all tasks."""
    first: Estimate
    """Over the first tasks, as many as count as late."""
    late: Estimate
    """Over the last ones."""
    dead: Estimate
    """Share of dead units at the ends of the late tasks."""
    curve: tuple[float, ...]
    """Accuracy in each task, mean over seeds."""
    by_seed: tuple[float, ...]
    """Accuracy over all tasks of each seed."""


@dataclass(frozen=True)
class Difference:
    """One variant less another on the same seeds, which meet the same samples."""

    kind: Kind
    variant: str
    other: str
    accuracy: Estimate


@dataclass(frozen=True)
class Comparison:
    """Everything that came out."""

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
    found: dict[tuple[Kind, Variant, Sizes], list[Job]] = {}
    for job in jobs:
        found.setdefault((job.kind, job.variant, job.sizes), []).append(job)
    return list(found.values())


def _in_order(jobs: Sequence[Job], outcomes: Iterable[list[Outcome]]) -> list[Outcome]:
    """Return the outcomes of the batches in the order of the jobs."""
    pairs = zip(_batches(jobs), outcomes, strict=True)
    found = {job: one for batch, ones in pairs for job, one in zip(batch, ones, strict=True)}
    return [found[job] for job in jobs]


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
        pair: [replace(one.setting, rate=one.setting.rate * factor) for factor in plan.around]
        for pair, one in chosen.items()
    }
    if not plan.around:
        return chosen
    found = _choose(plan, around, runs)
    better = {
        pair: max(one, found[pair], key=lambda choice: choice.accuracy)
        for pair, one in chosen.items()
    }
    return {
        pair: replace(one, at_edge=_is_edge(one.setting, pair[1].method, around[pair]))
        for pair, one in better.items()
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
    by_seed = [statistics.fmean(outcome.accuracy) for outcome in outcomes]
    first = [statistics.fmean(outcome.accuracy[:LAST]) for outcome in outcomes]
    late = [statistics.fmean(outcome.accuracy[-LAST:]) for outcome in outcomes]
    dead = [statistics.fmean(outcome.dead[-LAST:]) for outcome in outcomes]
    curves = zip(*(outcome.accuracy for outcome in outcomes), strict=True)
    return Row(
        kind,
        variant,
        choice,
        accuracy=Estimate.of(by_seed),
        first=Estimate.of(first),
        late=Estimate.of(late),
        dead=Estimate.of(dead),
        curve=tuple(statistics.fmean(values) for values in curves),
        by_seed=tuple(by_seed),
    )


_AGAINST = {"UPGD": "SGD", "AdaptiveUPGD": "Adam"}
"""The optimizer that each of ours becomes when all utilities are equal and there is no noise."""


def differences(rows: Iterable[Row]) -> Iterator[Difference]:
    """Yield what the scaler adds to each method, and what the gate and the noise add."""
    found = {(row.kind, row.variant.name): row for row in rows}
    for (kind, name), row in found.items():
        method = row.variant.method.name
        other = method if row.variant.scaled else _AGAINST.get(name)
        if other is None:
            continue
        pairs = zip(row.by_seed, found[kind, other].by_seed, strict=True)
        yield Difference(kind, name, other, Estimate.of([ours - theirs for ours, theirs in pairs]))
