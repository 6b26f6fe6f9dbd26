"""`stormsail bench vgs`: the variance gradient scaler against the learning rate that it amounts to.

A scaler shortens steps, and so does a lower learning rate. So each task and seed is learned

- without a scaler (`off`);
- with it: compared with the slow median of each tensor's own noise, by three statistics, and
  compared with the signal, as the class has it by default (`absolute`);
- without it, at the learning rate times the mean factor that the scaler had on the same task and
  seed (`rate of ...`). What a scaler gains over this one, no constant could have given.

The mean factor is over all weights and all updates, the warm-up included. The last agent is
evaluated without exploration, on the same episodes for all. Two tasks had been used for the scaler
before, two had not: Pendulum and the market `ar1`. Every seed of the market has bars of its own.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.tasks import make_task
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.bench.learner.learn import CONFIGS, EPISODES, EVALUATION_SEED
from stormsail.bench.processes import one_thread, one_thread_processes
from stormsail.bench.seeds import Seeds
from stormsail.bench.training import train_agent
from stormsail.bench.verdicts import Verdict
from stormsail.core.errors import ArtifactError
from stormsail.core.generators import Generators
from stormsail.core.shipped import located
from stormsail.functional._checks import check_choice

OFF = "off"


@dataclass(frozen=True)
class TaskPlan:
    """One task: a shipped file and the steps that it may take."""

    file: str
    steps: int
    own_world: bool = False
    """Whether every seed draws its own market."""


TASKS = {
    "cartpole": TaskPlan("reference/cartpole.toml", 100_000),
    "acrobot": TaskPlan("reference/acrobot.toml", 100_000),
    "pendulum": TaskPlan("reference/pendulum.toml", 150_000),
    "ar1 market": TaskPlan("markets/ar1.toml", 200_000, own_world=True),
}
"""About half a minute each on one core; some of the files allow more steps."""


def _scaler(statistic: str, reference: str) -> dict[str, Any]:
    return {"vgs.enabled": True, "vgs.statistic": statistic, "vgs.reference": reference}


VARIANTS: dict[str, dict[str, Any]] = {
    OFF: {"vgs.enabled": False},
    "elementwise": _scaler("elementwise", "median"),
    "mean": _scaler("mean", "median"),
    "total": _scaler("total", "median"),
    "elementwise absolute": _scaler("elementwise", "absolute"),
}
"""Settings of each; without the word, noise is compared with its median."""

MATCHED = {
    "elementwise": "rate of elementwise",
    "elementwise absolute": "rate of elementwise absolute",
}
"""Scalers, and the variants without one whose learning rate is multiplied by their factor."""


@dataclass(frozen=True)
class Job:
    """Everything that one run depends on."""

    task: str
    variant: str
    seed: int
    steps: int
    episodes: int = EPISODES
    factor: float = 1.0
    """On the learning rate."""
    configs: Path = CONFIGS


@dataclass(frozen=True)
class Row:
    """Result of one run."""

    task: str
    variant: str
    seed: int
    steps: int
    settings: str
    """Digest of the settings that all variants share."""
    rate: float
    """Learning rate at the start."""
    factor: float
    """Mean factor of the scaler over weights and updates; 1 without one."""
    at_floor: float
    """Share of tensors at the smallest factor, mean over updates after the warm-up."""
    score: float | None
    """Mean return of the greedy episodes; None if the run did not finish."""
    seconds: float
    reason: str = ""
    """Why it did not finish."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is the result of."""
        return self.task, self.variant, self.seed


def base(job: Job) -> TrainConfig:
    """Return the settings that all variants of a task and seed share.

    Raises:
        ConfigError: if the file is not there or holds what does not fit.
    """
    plan = TASKS[job.task]
    changes: dict[str, Any] = {"seed": job.seed, "ppo.total_steps": job.steps}
    if plan.own_world:
        changes["task.data.world_seed"] = job.seed
    return derive(TrainConfig.load(located(job.configs / plan.file)).replace(**changes))


def settings(job: Job) -> TrainConfig:
    """Return the settings of a run: those of the task, and what the variant changes."""
    config = base(job)
    changes = VARIANTS.get(job.variant, VARIANTS[OFF])
    rates = {
        "ppo.learning_rate": config.ppo.learning_rate * job.factor,
        "ppo.learning_rate_final": config.ppo.learning_rate_final * job.factor,
    }
    return config.replace(**changes, **rates)


def digest(job: Job) -> str:
    """Return a short digest of the settings of a task, whatever variant and seed."""
    document = base(job).replace(**VARIANTS[OFF]).model_dump(mode="json")
    document["seed"] = 0
    if TASKS[job.task].own_world:
        document["task"]["data"]["world_seed"] = 0
    text = json.dumps([document, job.episodes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def jobs(
    tasks: Sequence[str],
    seeds: Iterable[int],
    *,
    steps: int | None = None,
    episodes: int = EPISODES,
    configs: Path = CONFIGS,
) -> list[Job]:
    """Return all runs of a campaign; `steps` bounds those of every task.

    Raises:
        ChoiceError: for a task that is not known.
    """
    for task in tasks:
        check_choice(task, tuple(TASKS), name="tasks")
    names = (*VARIANTS, *MATCHED.values())
    return [
        Job(task, variant, seed, min(steps or most, most), episodes, configs=configs)
        for seed in seeds
        for task, most in ((task, TASKS[task].steps) for task in tasks)
        for variant in names
    ]


def run(job: Job) -> Row:
    """Train and evaluate one agent, in this process and on one thread."""
    config = settings(job)
    factors, floors = [], []

    def watch(learner: Ppo, _update: Update) -> None:
        scaler = learner.pipeline.scaler
        if scaler is not None:
            metrics = {name: float(value) for name, value in scaler.metrics().items()}
            factors.append(metrics["vgs/factor_mean"])
            if not metrics["vgs/warmup_active"]:
                floors.append(metrics["vgs/floor_fraction"])

    score, reason, started = None, "", time.perf_counter()
    with one_thread():
        try:
            task = make_task(config, batch=config.ppo.n_envs)
            agent = train_agent(task, config, on_update=watch).agent
        except Diverged as error:
            reason = str(error)
        seconds = time.perf_counter() - started
        if not reason:
            task = make_task(config, batch=job.episodes, purpose="evaluation")
            generator = Generators(EVALUATION_SEED, config.device).stream("judge")
            score = evaluate(task, agent, generator).score
    return Row(
        task=job.task,
        variant=job.variant,
        seed=job.seed,
        steps=job.steps,
        settings=digest(job),
        rate=config.ppo.learning_rate,
        factor=statistics.fmean(factors) if factors else 1.0,
        at_floor=statistics.fmean(floors) if floors else 0.0,
        score=score,
        seconds=seconds,
        reason=reason,
    )


@dataclass
class Campaign:
    """Runs that are still to be done, in an order that knows who waits for whom."""

    planned: Sequence[Job]
    done: dict[tuple[str, str, int], Row] = field(default_factory=dict)

    def ready(self) -> list[Job]:
        """Return the missing runs that wait for none."""
        return [job for job in map(self._resolved, self._missing()) if job is not None]

    def add(self, row: Row) -> list[Job]:
        """Take in a row; return the runs that waited for it."""
        self.done[row.key] = row
        waiting = (row.task, MATCHED.get(row.variant, ""), row.seed)
        freed = [job for job in self._missing() if (job.task, job.variant, job.seed) == waiting]
        return [job for job in map(self._resolved, freed) if job is not None]

    def _missing(self) -> Iterator[Job]:
        return (job for job in self.planned if (job.task, job.variant, job.seed) not in self.done)

    def _resolved(self, job: Job) -> Job | None:
        """Return a run with its factor, or None while that is not known."""
        scaled = {matched: variant for variant, matched in MATCHED.items()}.get(job.variant)
        if scaled is None:
            return job
        source = self.done.get((job.task, scaled, job.seed))
        if source is None:
            return None
        return Job(**{**asdict(job), "factor": source.factor})


def run_all(
    planned: Sequence[Job],
    rows: Iterable[Row],
    *,
    workers: int,
    keep: Callable[[Row], None],
) -> list[Row]:
    """Do all runs that have no row yet; `keep` gets each row as soon as it is there.

    Rows of other settings than those of the jobs do not count.
    """
    wanted = {(job.task, job.variant, job.seed): digest(job) for job in planned}
    campaign = Campaign(planned, {r.key: r for r in rows if wanted.get(r.key) == r.settings})
    todo = campaign.ready()
    if workers == 1:
        while todo:
            row = run(todo.pop(0))
            keep(row)
            todo += campaign.add(row)
    elif todo:
        with one_thread_processes(workers) as pool:
            running: set[Future[Row]] = {pool.submit(run, job) for job in todo}
            while running:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    keep(future.result())
                    running |= {pool.submit(run, job) for job in campaign.add(future.result())}
    return list(campaign.done.values())


def from_json(fields: Mapping[str, Any]) -> Row:
    """Return a row from a line of the file.

    Raises:
        ArtifactError: if it has other fields.
    """
    try:
        return Row(**fields)
    except TypeError as error:
        raise ArtifactError(
            "artifact-document",
            wrong="a row must be one that `stormsail bench vgs` wrote",
            found=str(error),
            remedy="Take another file for `--rows`.",
        ) from error


def check_alike(rows: Iterable[Row]) -> None:
    """Refuse rows of one task that were trained with different settings.

    Raises:
        ArtifactError: if a task has rows of two settings.
    """
    seen: dict[str, str] = {}
    for row in rows:
        if seen.setdefault(row.task, row.settings) != row.settings:
            raise ArtifactError(
                "artifact-document",
                wrong=f"all rows of the task `{row.task}` must be of the same settings",
                found=f"{seen[row.task]} and {row.settings}",
                remedy="Leave `--judge` out, which takes the rows of the present settings.",
            )


@dataclass(frozen=True)
class Line:
    """A variant on a task: its scores, and its differences on the same seeds."""

    task: str
    variant: str
    score: Seeds
    factor: float
    at_floor: float
    gain: Seeds | None
    """Over `off`; None for `off` itself."""
    over_rate: Seeds | None
    """Over the same mean factor as a learning rate; None where there is no such variant."""
    failed: int


def lines(rows: Sequence[Row]) -> list[Line]:
    """Return a line for each variant of each task, in the order of `VARIANTS`.

    Differences are over seeds on which both runs finished. A variant without any such score is
    left out.
    """
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.score is not None:
            scores.setdefault((row.task, row.variant), {})[row.seed] = row.score
    made = []
    for task in dict.fromkeys(row.task for row in rows):
        for variant in (*VARIANTS, *MATCHED.values()):
            own = [row for row in rows if (row.task, row.variant) == (task, variant)]
            own_scores = scores.get((task, variant), {})
            if not own_scores:
                continue
            off = scores.get((task, OFF), {}) if variant != OFF else {}
            rate = scores.get((task, MATCHED.get(variant, "")), {})
            made.append(
                Line(
                    task=task,
                    variant=variant,
                    score=Seeds(list(own_scores.values()), shown="standard_error", spec=".4g"),
                    factor=statistics.fmean(row.factor for row in own),
                    at_floor=statistics.fmean(row.at_floor for row in own),
                    gain=_difference(own_scores, off),
                    over_rate=_difference(own_scores, rate),
                    failed=sum(row.score is None for row in own),
                )
            )
    return made


def _difference(own_scores: Mapping[int, float], other_scores: Mapping[int, float]) -> Seeds | None:
    pairs = [own_scores[seed] - other_scores[seed] for seed in own_scores if seed in other_scores]
    return Seeds(pairs, shown="standard_error", spec="+.4g") if len(pairs) > 1 else None


def in_errors(difference: Seeds) -> float:
    """Return a mean difference in its standard errors; 0 where all differences are 0."""
    if not any(difference.values):
        return 0.0
    error = difference.standard_error
    return difference.mean / error if error > 0.0 else math.copysign(math.inf, difference.mean)


def pooled(differences: Sequence[Seeds]) -> float:
    """Return the differences of all tasks together in standard errors, sum of z over √tasks.

    Stouffer's method: standard normal if no task has a difference.
    """
    return sum(map(in_errors, differences)) / math.sqrt(len(differences))


def verdicts(measured: Sequence[Line]) -> list[Verdict]:
    """Return what each scaler gains over all tasks; nothing is claimed beforehand."""
    pooled_verdicts = []
    for variant in (*VARIANTS, *MATCHED.values()):
        own = [line for line in measured if line.variant == variant]
        for name, differences in (
            ("off", [line.gain for line in own if line.gain is not None]),
            ("its rate", [line.over_rate for line in own if line.over_rate is not None]),
        ):
            if differences:
                worse = sum(in_errors(difference) < 0.0 for difference in differences)
                text = (
                    f"{pooled(differences):+.2f} standard errors over {len(differences)} tasks "
                    f"together, below 0 on {worse}"
                )
                pooled_verdicts.append(Verdict(f"{variant} less {name}", text, None))
    return pooled_verdicts
