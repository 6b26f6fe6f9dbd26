"""`stormsail bench population`: a population beside fixed draws of the same search and budget.

A repeat draws a world, first values and seeds. Its population trains in rounds and copies; its
fixed draws are the same members, with the same first values and seeds, in a single round, so that
nobody ever copies. Both train for the same number of steps each, on the same bars, and have their
fitness on the same later ones. They are judged by the Sharpe ratio on the bars behind those, which
neither training nor fitness saw.

Of a population the member counts that it returns, the one with the best fitness. It stands against
the median of the fixed draws: what somebody may expect who draws settings once and trains. Beside
it stands the draw with the best fitness, which is chosen with all of the budget, too; its fitness
is that of its last round, since there are no earlier ones to smooth it with. A member that kept
diverging is judged by its last checkpoint.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.population.config import RunFile, value_of
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.algorithms.population.fitness import sharpe_during
from stormsail.algorithms.population.jobs import Value
from stormsail.algorithms.population.member import member_folder
from stormsail.algorithms.population.population import PopulationRun, train_population
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.folder import read_config, read_lineage
from stormsail.algorithms.run.records import read_records
from stormsail.algorithms.run.start_from import load_start
from stormsail.algorithms.run.tasks import MARKET, binding, market_panel
from stormsail.algorithms.update.schedules import total_updates
from stormsail.bench.learner.learn_rows import run_key
from stormsail.bench.seeds import Seeds
from stormsail.bench.verdicts import Verdict
from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ConfigError
from stormsail.core.files.generations import Generations
from stormsail.functional import population as rules
from stormsail.market.splits import Span
from stormsail.modules.agent import Agent, Binding

POPULATION, FIXED = "population", "fixed"
"""The two arms of a repeat."""

UNSEEN_SHARE = 0.25
"""Of the bars of a world, the last ones: those that are judged by."""

SETTINGS: dict[str, Any] = {
    "task": {"name": MARKET, "data": {"world": "regime"}},
    "ppo": {"total_steps": 200_000},
    "population": {
        "population_size": 8,
        "perturbation_interval": 5,
        "search": {
            "ppo.learning_rate": {"min": 1e-5, "max": 1e-2, "is_log_scale": True},
            "ppo.clip_range": {"min": 0.05, "max": 0.4},
            "entropy.ent_coef": {"min": 1e-4, "max": 0.1, "is_log_scale": True},
        },
    },
}
"""Of every member; everything else is a default. Rates reach from far too small to far too large:
a search over settings that are all good has nothing to find."""


@dataclass(frozen=True)
class Job:
    """One arm of a repeat."""

    arm: str
    seed: int
    """Of the repeat: of its world, and of the first values."""
    plan: RunFile
    folder: str | None = None
    """Where its members lie, below their key; None puts them into a temporary folder."""
    workers: int = 1
    """Processes that its members train in, one member at a time each; no row depends on it."""

    @property
    def key(self) -> str:
        """Hash of all that the row depends on; the bars are drawn from settings."""
        return run_key({"arm": self.arm, "seed": self.seed, "plan": self.plan.config_hash()})


class PopulationRow(NamedTuple):
    """What one arm of a repeat came to; lists are by member."""

    arm: str
    seed: int
    chosen: int
    """Member with the best fitness."""
    fitness: tuple[float | None, ...]
    """By which it was chosen; None where it is not known."""
    unseen: tuple[float, ...]
    """Annualised Sharpe ratio on the unseen bars."""
    copies: int
    """Of all rounds."""
    values: dict[str, Value]
    """Searched settings of the chosen member at the end."""

    @property
    def best(self) -> float:
        """Unseen Sharpe ratio of the chosen member."""
        return self.unseen[self.chosen]

    @property
    def median(self) -> float:
        """Median of the unseen Sharpe ratios."""
        return statistics.median(self.unseen)


def jobs(
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    common: Sequence[str] = (),
    folder: Path | None = None,
    workers: int = 1,
) -> list[Job]:
    """Return two jobs for each seed: the population, and its fixed draws.

    Args:
        seeds: of the repeats.
        steps: of each member; None takes those of `SETTINGS`.
        common: `path=value` of both arms.
        folder: of the members; None takes temporary ones.
        workers: processes of each arm; 1 trains its members one after the other in its own.

    Raises:
        ConfigError: if a setting is refused, or the bars are not those of a world that the
            benchmark divides itself.
    """
    text = [] if steps is None else [f"ppo.total_steps={steps}"]
    given = RunFile.from_mapping(apply_overrides(SETTINGS, [*text, *common]))
    _check_world(given)
    place = None if folder is None else str(folder)
    planned = []
    for seed in seeds:
        plan = _of_repeat(given, seed)
        planned.append(Job(POPULATION, seed, plan, place, workers))
        planned.append(Job(FIXED, seed, _without_copies(plan), place, workers))
    return planned


def _check_world(given: RunFile) -> None:
    data = given.task.data
    if given.task.name != MARKET or (data.store, data.start, data.end) != (None, None, None):
        raise ConfigError(
            "config-inconsistent",
            wrong="every repeat must draw a world of its own and keep its last bars unseen",
            found=f"`task.name` {given.task.name}, `task.data.store` {data.store}, "
            f"`task.data.start` {data.start} and `task.data.end` {data.end}",
            remedy="Leave these settings out; choose a world by `task.data.world`.",
        )


def _of_repeat(given: RunFile, seed: int) -> RunFile:
    """Return the plan of a repeat: its world, its seeds, and where the unseen bars begin.

    Members train with the seed plus their number, so repeats lie as far apart as there are members.
    """
    searched = given.searched()
    drawn = given.training().replace(
        **{"seed": seed * searched.population_size, "task.data.world_seed": seed}
    )
    ts = market_panel(drawn).ts
    first = int(ts[len(ts) - int(UNSEEN_SHARE * len(ts))])
    base = derive(drawn.replace(**{"task.data.end": datetime.fromtimestamp(first / 1000, UTC)}))
    population = searched.replace(seed=seed)
    return RunFile.from_mapping({**base.model_dump(), "population": population.model_dump()})


def _without_copies(plan: RunFile) -> RunFile:
    """Return the plan with one round as long as the training, behind which nobody copies."""
    updates = total_updates(plan.ppo, plan.ppo.total_steps)
    return plan.replace(**{"population.perturbation_interval": updates})


def run(job: Job) -> list[PopulationRow]:
    """Train one arm and judge all of its members on the unseen bars.

    Raises:
        Interrupted: if a signal came; with a folder the same job goes on.
    """
    engine = Processes(workers=job.workers) if job.workers > 1 else None
    with _place(job) as place:
        done = train_population(job.plan, out=Path(place) / job.key, engine=engine)
        return [judged(job, done)]


def _place(job: Job) -> AbstractContextManager[str]:
    return TemporaryDirectory() if job.folder is None else nullcontext(job.folder)


def judged(job: Job, done: PopulationRun) -> PopulationRow:
    """Return the row of an arm that has been trained."""
    config = job.plan.training()
    panel, span = market_panel(config.replace(**{"task.data.end": None})), unseen_span(config)
    last, bound = done.rounds[-1], binding(config)
    fitness = torch.tensor(last.fitness, dtype=torch.float64)
    chosen = int(rules.ranking(fitness, mode=job.plan.searched().metric_mode)[0])
    members = [member_folder(done.path, number) for number in range(len(last.fitness))]
    own = _config_of(members[chosen])
    return PopulationRow(
        arm=job.arm,
        seed=job.seed,
        chosen=chosen,
        fitness=tuple(value if math.isfinite(value) else None for value in last.fitness),
        unseen=tuple(sharpe_during(span, panel, last_agent(member, bound)) for member in members),
        copies=sum(each.copies for round_ in done.rounds for each in round_.decisions),
        values={path: value_of(own, path) for path in job.plan.searched().search},
    )


def unseen_span(config: TrainConfig) -> Span:
    """Return the bars from the end of a run to the end of its world."""
    whole = market_panel(config.replace(**{"task.data.end": None}))
    seen = market_panel(config)
    length = whole.interval.milliseconds
    return Span(int(seen.ts[-1]) + length, int(whole.ts[-1]) + length)


def last_agent(member: Path, bound: Mapping[str, Any]) -> Agent:
    """Return the agent of the newest checkpoint of a member, which its fitness is that of.

    Args:
        member: its folder.
        bound: what it was trained for.
    """
    agent = load_start(member, keep_optimizer=False).agent
    agent.binding = Binding(dict(bound))
    saved = Generations(member / "checkpoints", kind=checkpoint.KIND)
    newest = saved.load(saved.steps()[-1], allow_nonfinite=(checkpoint.METRICS,))
    evaluated = read_records(checkpoint.unpack(newest)).policy
    if evaluated is not None:
        agent.judged_policy = evaluated
    elif _config_of(member).validation.policy == "sampled":
        agent.judged_policy = "sampled"
    return agent


def _config_of(member: Path) -> TrainConfig:
    return read_lineage(member).current(read_config(member))


class Summary(NamedTuple):
    """Unseen Sharpe ratios over repeats; differences are those of the two arms of a repeat."""

    best: Seeds
    """Of the member that a population returns."""
    members: Seeds
    """Median of the members of a population."""
    fixed_median: Seeds
    fixed_best: Seeds
    """Of the fixed draw with the best fitness."""
    gain: Seeds
    """Returned member less the median of the fixed draws."""
    gain_on_best: Seeds
    """Returned member less the fixed draw with the best fitness."""


def summary(rows: Sequence[PopulationRow]) -> Summary:
    """Return means and paired differences over the repeats of which both arms are there."""
    by_arm = {arm: {row.seed: row for row in rows if row.arm == arm} for arm in (POPULATION, FIXED)}
    pairs = [
        (row, by_arm[FIXED][seed])
        for seed, row in by_arm[POPULATION].items()
        if seed in by_arm[FIXED]
    ]

    def over_repeats(values: list[float]) -> Seeds:
        return Seeds(values, shown="half", spec=".3f")

    return Summary(
        best=over_repeats([own.best for own, _ in pairs]),
        members=over_repeats([own.median for own, _ in pairs]),
        fixed_median=over_repeats([fixed.median for _, fixed in pairs]),
        fixed_best=over_repeats([fixed.best for _, fixed in pairs]),
        gain=over_repeats([own.best - fixed.median for own, fixed in pairs]),
        gain_on_best=over_repeats([own.best - fixed.best for own, fixed in pairs]),
    )


def verdicts(line: Summary) -> list[Verdict]:
    """Return whether the gain on the median is proven at 95 %; that on the best is only shown."""
    repeats = len(line.gain.values)
    return [
        Verdict(
            "the population beats the median of fixed draws: interval above 0",
            f"gain {line.gain} in Sharpe ratio a year, {repeats} repeats",
            line.gain.mean - line.gain.half > 0.0,
        ),
        Verdict(
            "beside the fixed draw with the best fitness",
            f"gain {line.gain_on_best}",
            None,
        ),
    ]
