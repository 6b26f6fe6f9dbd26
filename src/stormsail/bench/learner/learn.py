"""`stormsail bench learn`: train on reference tasks whose good scores are known.

A job is one configuration and one seed. It trains as `stormsail train` does, and the last agent,
not the best one on the way, is evaluated by both of its policies: the greedy one is judged unless
it is significantly worse than the sampled one. Peers are judged by the greedy one, as their scores
are published. A configuration is a file, shipped or not, or a bare task: nothing but its name and a
number of steps, so every setting is a default.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.population.config import load_training
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.tasks import GYMNASIUM, make_task
from stormsail.algorithms.trainer import train
from stormsail.bench.learner import learn_peers
from stormsail.bench.learner.learn_rows import RowFile, run_key
from stormsail.bench.options import numbers
from stormsail.bench.processes import one_thread, one_thread_processes
from stormsail.bench.seeds import Seeds
from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ArgumentError, nearest
from stormsail.core.generators import Generators
from stormsail.core.shipped import located
from stormsail.modules.agent import JudgedPolicy

OURS = "stormsail"
"""What the table calls this package."""

CONFIGS = Path("configs")
"""Folder of the shipped files, under the current one."""

EPISODES = 128
"""Episodes that evaluate each policy of an agent."""

EVALUATION_SEED = 20_000
"""Of the starts of these episodes: the same ones for every agent, and none that training draws."""

OPTIMIZERS = ("AdamW", "AdaptiveUPGD")
RATES = (3e-4, 1e-3, 3e-3)
"""Learning rates of the ablation: no optimizer is compared at the rate of another."""

MARKET = "regime market"


@dataclass(frozen=True)
class Bar:
    """Threshold that the scores of several seeds must reach."""

    statistic: Literal["mean", "median", "min"]
    value: float
    at_least: bool = True
    """Otherwise the statistic must stay below the value."""

    def met(self, scores: Sequence[float]) -> bool:
        """Return whether they reach it; a run that failed counts as NaN, which reaches nothing."""
        score = _statistic(self.statistic, scores)
        return score >= self.value if self.at_least else score < self.value

    def __str__(self) -> str:
        return f"{self.statistic} {'≥' if self.at_least else '<'} {self.value:g}"


REFERENCES: dict[str, Bar | None] = {
    "cartpole": Bar("mean", 475.0),
    "cartpole-categorical": Bar("mean", 475.0),
    "cartpole-masked": Bar("median", 450.0),
    "cartpole-masked-no-memory": Bar("median", 100.0, at_least=False),
    "acrobot": Bar("mean", -90.0),
    "pendulum": Bar("mean", -220.0),
    "mountaincar-continuous": None,
}
"""Bars by the name of the file. 475 is where Gymnasium calls CartPole solved. Without a memory the
masked pole must stay unlearned, or the mask hides nothing. The reward of the car is found by
exploration alone: its score is printed and has no bar."""

FULL: dict[str, Bar] = {"full-cartpole": Bar("min", 475.0)}
"""Bars of shipped files with every part of the learner on: each seed must learn."""


BARE_BARS = {
    "CartPole-v1": Bar("mean", 475.0),
    "Acrobot-v1": Bar("mean", -85.0),
    "Pendulum-v1": Bar("mean", -200.0),
    "LunarLander-v3": Bar("mean", 200.0),
    "MountainCar-v0": Bar("mean", -120.0),
    "MountainCarContinuous-v0": Bar("mean", 88.0),
    "Recall-v0": Bar("mean", 0.95),
    "CartPoleNoVel-v1": Bar("median", 450.0),
    "PendulumNoVel-v1": Bar("mean", -260.0),
}
"""Bars of bare tasks: at or a little below what rl-baselines3-zoo publishes for PPO with settings
of its own for each task. Its car in the continuous valley explores with noise that depends on the
state and is kept for several steps, which we do not have."""


@dataclass(frozen=True)
class Line:
    """What one row of the table trains."""

    name: str
    config: TrainConfig
    bar: Bar | None = None
    peer: learn_peers.Peer | None = None
    """Learner of another library; it takes its steps from `config` and the rest from itself."""
    variant: str = ""
    """Of an ablation: what is compared."""

    @property
    def learner(self) -> str:
        """Who learns."""
        return OURS if self.peer is None else self.peer.name

    @property
    def steps(self) -> int:
        """Steps of all environments that it may take."""
        own = None if self.peer is None else self.peer.steps
        return self.config.ppo.total_steps if own is None else own


@dataclass(frozen=True)
class Job:
    """Everything that one run depends on."""

    line: Line
    seed: int
    episodes: int = EPISODES

    @property
    def config(self) -> TrainConfig:
        """Settings of the run.

        Nothing is evaluated and next to nothing is saved on the way: neither changes what is
        learned, and only learning is timed.
        """
        changes = {
            "seed": self.seed,
            "validation.every_updates": 0,
            "checkpoint.every_updates": 1_000_000,
        }
        return self.line.config.replace(**changes)

    @property
    def key(self) -> str:
        """Hash of all that: equal for equal runs."""
        peer = self.line.peer
        own = self.config.config_hash() if peer is None else asdict(peer)
        learner = {"learner": self.line.learner, "settings": own}
        sizes = {"steps": self.line.steps, "seed": self.seed, "episodes": self.episodes}
        return run_key({**learner, **sizes})


@dataclass(frozen=True)
class Outcome:
    """Result of one run."""

    score: float
    """Mean return of the judged policy; NaN if the run did not finish."""
    spread: float
    """Standard deviation over episodes."""
    steps: int
    seconds: float
    """Of training alone."""
    reason: str = ""
    """Why it did not finish."""
    policy: JudgedPolicy = "greedy"
    """Policy that was judged."""


@dataclass(frozen=True)
class Row:
    """A row of the table: the results of all seeds of a line."""

    name: str
    learner: str
    variant: str
    steps: int
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    spreads: tuple[float, ...]
    mean: float
    median: float
    least: float
    bar: str
    passed: bool | None
    """None where there is no bar."""
    steps_per_second: float
    """Of one process, the median over seeds."""
    reasons: tuple[str, ...]
    """Of the runs that did not finish."""
    policies: tuple[JudgedPolicy, ...] = ()
    """Policy that was judged, of each seed."""


@dataclass(frozen=True)
class Best:
    """A variant of an ablation at the learning rate with the best mean score."""

    name: str
    variant: str
    rate: float
    score: Seeds
    gain: Seeds
    """Difference from the first variant on the same seeds."""


def names(text: str | None) -> tuple[str, ...]:
    """Return the tasks that a text with commas names: shipped ones, or TOML files.

    None is all reference tasks.

    Raises:
        ArgumentError: for a name that is neither.
    """
    if text is None:
        return tuple(REFERENCES)
    chosen = tuple(part.strip() for part in text.split(","))
    for name in chosen:
        shipped = {**REFERENCES, **FULL}
        if name not in shipped and not (name.endswith(".toml") and Path(name).is_file()):
            near = nearest(name, shipped)
            raise ArgumentError(
                "missing-argument",
                wrong=f"`--tasks` must name {', '.join(shipped)}, or TOML files",
                found=f"`{name}`",
                remedy=f"Did you mean `{near}`?" if near else "Take one of these.",
            )
    return chosen


def rates(text: str | None) -> tuple[float, ...]:
    """Return the learning rates that a text with commas gives; None is `RATES`.

    Raises:
        RangeError: for anything else than positive numbers.
    """
    if text is None:
        return RATES
    return numbers(text, option="rates", example="3e-4,1e-3", positive=True)


def reference_lines(
    chosen: Sequence[str],
    *,
    configs: Path = CONFIGS,
    overrides: Sequence[str] = (),
    peers: bool = False,
) -> list[Line]:
    """Return a line for each task, followed by those of its peers.

    Raises:
        ConfigError: if a file is not there or holds what does not fit.
    """
    shipped = {name: located(configs / "reference" / f"{name}.toml") for name in REFERENCES}
    shipped |= {name: located(configs / f"{name}.toml") for name in FULL}
    names_of = {path.resolve(): name for name, path in shipped.items()}
    bars = {**REFERENCES, **FULL}
    lines = []
    for task in chosen:
        path = shipped.get(task, Path(task))
        # A shipped file is held to its bar, whether it is called by name or by path.
        name = names_of.get(path.resolve(), path.stem)
        bar = bars.get(name) if path.resolve() in names_of else None
        config = derive(load_training(path, overrides))
        lines.append(Line(name, config, bar))
        others = learn_peers.PEERS.get(task, ()) if peers else ()
        lines += [Line(name, config, bar, peer=peer) for peer in others]
    return lines


def bare_tasks(text: str) -> dict[str, int]:
    """Return the steps of each task that a text such as `gym:CartPole-v1=100000` names.

    Raises:
        ArgumentError: for a part without a name or a number of steps, or a task that comes twice.
    """
    chosen: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        digits = number.replace("_", "")
        if not name or not digits.isdecimal() or int(digits) < 1 or name in chosen:
            twice = ", a task that was named before" if name in chosen else ""
            raise ArgumentError(
                "missing-argument",
                wrong="`--bare` must be tasks with their steps, each once, and commas between them",
                found=f"`{part}`{twice}",
                remedy="Write it as gym:CartPole-v1=100000,gym:Acrobot-v1=500000.",
            )
        chosen[name] = int(digits)
    return chosen


def bare_lines(
    chosen: Mapping[str, int], *, overrides: Sequence[str] = (), peers: bool = False
) -> list[Line]:
    """Return a line for each bare task, all settings at their defaults, then those of its peers.

    Raises:
        ConfigError: for an override that is none.
    """
    lines = []
    for name, steps in chosen.items():
        given: dict[str, Any] = {"task": {"name": name}, "ppo": {"total_steps": steps}}
        config = derive(TrainConfig.from_mapping(apply_overrides(given, overrides)))
        plain = name.removeprefix(GYMNASIUM)
        lines.append(Line(name, config, BARE_BARS.get(plain)))
        others = learn_peers.BARE_PEERS.get(plain, ()) if peers else ()
        lines += [Line(name, config, peer=peer) for peer in others]
    return lines


def ablation_lines(
    chosen: Sequence[float], *, configs: Path = CONFIGS, overrides: Sequence[str] = ()
) -> list[Line]:
    """Return both optimizers, with and without VGS, at every rate, on CartPole and on a market.

    Raises:
        ConfigError: if a file is not there or holds what does not fit.
    """
    files = {"cartpole": "reference/cartpole.toml", MARKET: "quickstart.toml"}
    lines = []
    for name, file in files.items():
        base = derive(TrainConfig.load(located(configs / file), overrides))
        for optimizer in OPTIMIZERS:
            for scaled in (False, True):
                for rate in chosen:
                    changes = {
                        "optimizer.optimizer_class": optimizer,
                        "vgs.enabled": scaled,
                        "ppo.learning_rate": rate,
                    }
                    variant = f"{optimizer}{' + VGS' * scaled}"
                    lines.append(Line(name, base.replace(**changes), variant=variant))
    return lines


def run(job: Job) -> Outcome:
    """Train and evaluate one agent, in this process and on one thread."""
    with one_thread():
        if job.line.peer is not None:
            result = learn_peers.run(
                job.line.peer, steps=job.line.steps, seed=job.seed, episodes=job.episodes
            )
            return Outcome(*result)
        return _ours(job)


def _ours(job: Job) -> Outcome:
    config = job.config
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        done = train(config, out=Path(folder) / "run", tensorboard=False)
        seconds = time.perf_counter() - started
    if done.status != "finished":
        return Outcome(math.nan, math.nan, done.steps, seconds, done.reason)
    task = make_task(config, batch=job.episodes, purpose="evaluation")
    generators = Generators(EVALUATION_SEED, config.device)
    result = evaluate(
        task,
        done.agent,
        generators.stream("judge"),
        policy=config.validation.policy,
        actions=generators.stream("judge.actions"),
    )
    return Outcome(result.score, result.spread, done.steps, seconds, policy=result.policy)


def run_all(
    jobs: Sequence[Job],
    *,
    workers: int,
    kept: RowFile | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Return the outcome of each job, in the order of the jobs; each process takes one at a time.

    Args:
        jobs: to be done.
        workers: processes; one is this process itself.
        kept: rows of finished runs; those are not trained again, and each new one is added at once.
        say: called with a line whenever a job is done.
    """
    by_place = {} if kept is None else _kept_outcomes(jobs, kept)
    # The longest first, so that none of them starts when all others are done.
    left = [place for place in range(len(jobs)) if place not in by_place]
    left.sort(key=lambda place: -jobs[place].line.steps)
    for place, outcome in _finished([jobs[place] for place in left], left, workers=workers):
        by_place[place] = outcome
        if kept is not None:
            kept.add(_kept_row(jobs[place], outcome))
        say(_progress(jobs[place], outcome))
    return [by_place[place] for place in range(len(jobs))]


def _finished(
    jobs: Sequence[Job], places: Sequence[int], *, workers: int
) -> Iterator[tuple[int, Outcome]]:
    """Yield the place and outcome of each job when it is done."""
    if workers == 1 or len(jobs) < 2:
        yield from zip(places, map(run, jobs), strict=True)
        return
    with one_thread_processes(workers) as pool:
        futures = {pool.submit(run, job): place for job, place in zip(jobs, places, strict=True)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _kept_outcomes(jobs: Sequence[Job], kept: RowFile) -> dict[int, Outcome]:
    """Return the outcomes of finished runs, by the place of their job."""
    rows = ((place, kept.rows.get(job.key)) for place, job in enumerate(jobs))
    names = [field.name for field in fields(Outcome)]
    return {
        place: Outcome(**{name: row[name] for name in names if name in row})
        for place, row in rows
        if row is not None
    }


def _kept_row(job: Job, outcome: Outcome) -> dict[str, Any]:
    line = job.line
    run_of = {"name": line.name, "learner": line.learner, "variant": line.variant}
    return {
        **{"key": job.key, **run_of, "seed": job.seed, "episodes": job.episodes},
        **asdict(outcome),
    }


def measure(
    lines: Sequence[Line],
    seeds: Sequence[int],
    *,
    workers: int,
    episodes: int = EPISODES,
    kept: RowFile | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Run every line with every seed and return the rows of the table.

    Runs that `kept` holds are not trained again.
    """
    jobs = [Job(line, seed, episodes) for line in lines for seed in seeds]
    outcomes = iter(run_all(jobs, workers=workers, kept=kept, say=say))
    return [row(line, tuple(seeds), [next(outcomes) for _ in seeds]) for line in lines]


def row(line: Line, seeds: tuple[int, ...], outcomes: Sequence[Outcome]) -> Row:
    """Return a line with the outcomes of its seeds."""
    scores = tuple(outcome.score for outcome in outcomes)
    return Row(
        name=line.name,
        learner=line.learner,
        variant=line.variant and f"{line.variant}, rate {line.config.ppo.learning_rate:g}",
        steps=outcomes[0].steps,
        seeds=seeds,
        scores=scores,
        spreads=tuple(outcome.spread for outcome in outcomes),
        mean=_statistic("mean", scores),
        median=_statistic("median", scores),
        least=_statistic("min", scores),
        bar="" if line.bar is None else str(line.bar),
        passed=None if line.bar is None else line.bar.met(scores),
        steps_per_second=statistics.median(run.steps / run.seconds for run in outcomes),
        reasons=tuple(outcome.reason for outcome in outcomes if outcome.reason),
        policies=tuple(outcome.policy for outcome in outcomes),
    )


def best(lines: Sequence[Line], rows: Sequence[Row]) -> list[Best]:
    """Return the best rate of every variant of an ablation; of equal ones the first.

    A variant with a run that failed at every rate is left out.
    """
    groups: dict[tuple[str, str], list[tuple[Line, Row]]] = {}
    for line, measured in zip(lines, rows, strict=True):
        if not math.isnan(measured.mean):
            groups.setdefault((line.name, line.variant), []).append((line, measured))
    chosen = {key: max(group, key=lambda pair: pair[1].mean) for key, group in groups.items()}
    first: dict[str, Row] = {}
    rows_of_best = []
    for (name, variant), (line, measured) in chosen.items():
        against = first.setdefault(name, measured)
        pairs = zip(measured.scores, against.scores, strict=True)
        gains = [own - other for own, other in pairs]
        rate = line.config.ppo.learning_rate
        rows_of_best.append(Best(name, variant, rate, Seeds(measured.scores), Seeds(gains)))
    return rows_of_best


def _progress(job: Job, outcome: Outcome) -> str:
    words = " ".join(part for part in (job.line.name, job.line.learner, job.line.variant) if part)
    rate = f" {job.line.config.ppo.learning_rate:g}" if job.line.variant else ""
    score = f"{outcome.score:.4g} ({outcome.policy})"
    result = outcome.reason or score
    return f"{words}{rate}, seed {job.seed}: {result} after {outcome.seconds:.0f} s"


def _statistic(kind: Literal["mean", "median", "min"], scores: Sequence[float]) -> float:
    """Return it, or NaN where any score is: `min` and the median would pass over it."""
    if any(math.isnan(score) for score in scores):
        return math.nan
    how: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "min": min,
    }
    return float(how[kind](scores))
