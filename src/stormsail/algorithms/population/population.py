"""The driver of a population: rounds of jobs, comparisons, copies, and the files about them.

Population-based training after Jaderberg et al. 2017, arXiv:1711.09846, in rounds: all members
train for `perturbation_interval` updates, then they are compared. Deviation: the paper lets every
member decide by itself as soon as it is ready; with rounds the same seed gives the same lineage on
every engine, however fast its workers are.

`members/<number>` are the run folders. `config.toml` holds what members have in common and the
search, `population.jsonl` the rounds, `metrics.parquet` their metrics, `logs/pbt_training.log` the
learning rates of copies. `parents/` holds checkpoints while they are copied.
"""

import contextlib
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive, in_parts, open_settings
from stormsail.algorithms.population.checks import check_search
from stormsail.algorithms.population.config import PopulationConfig, RunFile, value_of
from stormsail.algorithms.population.decisions import (
    Decision,
    decide,
    smoothed_fitness,
)
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.algorithms.population.engines.transport import restore
from stormsail.algorithms.population.jobs import Engine, Exploit, Job, Outcome, Value
from stormsail.algorithms.population.ledger import (
    Ledger,
    Round,
    metrics_of,
    rate_lines,
    read_rounds,
)
from stormsail.algorithms.population.member import (
    CONFIG,
    PARENTS,
    advance,
    first_config,
    member_folder,
    parent_folder,
)
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.folder import differences
from stormsail.algorithms.run.plugins import bring, load_saved, require_plugins
from stormsail.algorithms.run.start_checks import check_start
from stormsail.algorithms.update.schedules import total_updates
from stormsail.core.config import toml
from stormsail.core.errors import ArtifactError, ConfigError, StormsailError, WorkerError
from stormsail.core.files import atomic
from stormsail.core.files.artifact import verify_artifact, write_error
from stormsail.core.files.generations import Generations
from stormsail.functional import population as rules
from stormsail.monitors.sinks import MetricsFile

LOG = logging.getLogger("stormsail.population")

TRAINING_LOG = Path("logs") / "pbt_training.log"
METRICS = "metrics.parquet"

ATTEMPTS = 3
"""A job that fails this many times in a row ends the population; the same command goes on."""


@dataclass(frozen=True)
class Standing:
    """A population after a round, for displays.

    Attributes:
        round: that is over.
        rounds: of the whole population.
        values: of the searched settings in this round, by member.
        seconds: of wall time of each job, by member.
    """

    round: Round
    rounds: int
    values: tuple[Mapping[str, Value], ...]
    seconds: tuple[float, ...]


OnRound = Callable[[Standing], None]


@dataclass(frozen=True)
class PopulationRun:
    """Result of a population.

    Attributes:
        path: its folder.
        rounds: all of them.
        best: number of the member with the best fitness; None where nobody has one.
    """

    path: Path
    rounds: tuple[Round, ...]
    best: int | None

    @property
    def best_folder(self) -> Path | None:
        """Run folder of the best member."""
        return None if self.best is None else member_folder(self.path, self.best)


def train_population(
    config: RunFile,
    *,
    out: Path | str,
    engine: Engine | None = None,
    on_round: OnRound | None = None,
) -> PopulationRun:
    """Train a population, or continue one that was interrupted: the same call does both.

    Args:
        config: what the members have in common, and the population.
        out: folder of the population.
        engine: carries out the jobs; None takes this process. It is closed at the end.
        on_round: called after each round.

    Raises:
        ConfigError: if a setting cannot be searched, or the folder holds a population with other
            settings.
        ArtifactError: if the folder is in use, foreign or damaged.
        StormsailError: with the code `member-failed`, if a job keeps failing.
        Interrupted: if a signal came; the same call goes on.
    """
    config = bring(config)
    carries = InProcess() if engine is None else engine
    require_plugins(member_folder(Path(out), 0))
    with contextlib.closing(carries), _alone(Path(out)) as root:
        plan = _begun(root, config)
        return _Driver(root, plan, carries, on_round).run()


def read_population(root: Path) -> PopulationRun:
    """Return the rounds of a population in its folder so far, and its best member after them.

    Raises:
        ConfigError: if its configuration cannot be read.
        ArtifactError: if its ledger is damaged.
    """
    return _result(root, load_saved(RunFile, root / CONFIG).searched(), read_rounds(root))


class _Driver:
    """A population in its folder, locked by this process."""

    def __init__(self, root: Path, plan: RunFile, engine: Engine, on_round: OnRound | None) -> None:
        self.root, self.engine, self.on_round = root, engine, on_round
        self.base, self.config = plan.training(), plan.searched()
        self.ledger = Ledger(root)
        updates = total_updates(self.base.ppo, self.base.ppo.total_steps)
        self.interval, self.updates = self.config.perturbation_interval, updates
        self.rounds = math.ceil(updates / self.interval)
        self.metrics = MetricsFile(root / METRICS)
        for number, done in enumerate(self.ledger.rounds):
            self.metrics.append(metrics_of(self.config, done))
            self._write_log(self._decisions(number), done, announce=False)
        self.metrics.flush()

    def run(self) -> PopulationRun:
        while len(self.ledger.rounds) < self.rounds:
            self._round(len(self.ledger.rounds))
        return _result(self.root, self.config, self.ledger.rounds)

    def _round(self, number: int) -> None:
        """Carry out one round, and write it into the ledger."""
        before = self._decisions(number)
        jobs = [self._job(number, decision) for decision in before]
        self._stage_parents(number, jobs)
        outcomes = self._carried_out(jobs)
        fitness = smoothed_fitness(self.config, outcomes, self._fitness_before(number, before))
        values = [decision.values for decision in before]
        decisions: Sequence[Decision] = ()
        if number + 1 < self.rounds:
            decisions = decide(
                self.config,
                self.base,
                round_=number,
                outcomes=outcomes,
                fitness=fitness,
                values=values,
            )
        done = Round(number, tuple(outcomes), tuple(fitness), tuple(decisions))
        self.ledger.append(done)
        self._remove_parents()
        self.metrics.append(metrics_of(self.config, done))
        self.metrics.flush()
        self._write_log(before, done, announce=True)
        if self.on_round is not None:
            seconds = tuple(outcome.seconds for outcome in outcomes)
            self.on_round(Standing(done, self.rounds, tuple(values), seconds))

    def _decisions(self, number: int) -> tuple[Decision, ...]:
        """Return the decisions from which a round begins."""
        if number:
            return self.ledger.rounds[number - 1].decisions
        members = range(self.config.population_size)
        configs = [first_config(self.base, self.config, member) for member in members]
        return tuple(
            Decision(
                member,
                member,
                {path: value_of(config, path) for path in self.config.search},
                "begins",
            )
            for member, config in zip(members, configs, strict=True)
        )

    def _fitness_before(self, number: int, before: Sequence[Decision]) -> list[float]:
        """Return the smoothed fitness of the round before, of the member that each one copied."""
        if not number:
            return [math.nan] * len(before)
        fitness = self.ledger.rounds[number - 1].fitness
        return [fitness[decision.source] for decision in before]

    def _job(self, number: int, decision: Decision) -> Job:
        target = min((number + 1) * self.interval, self.updates)
        exploit = None
        if decision.copies:
            source = self.ledger.rounds[number - 1].outcomes[decision.source]
            exploit = Exploit(
                source=decision.source,
                digest=source.digest,
                strategy=self.config.optimizer_exploit_strategy,
                values=dict(decision.values),
            )
        return Job(decision.member, number, self.root, target, exploit)

    def _stage_parents(self, number: int, jobs: Sequence[Job]) -> None:
        """Copy the checkpoints that members take over, before those they come from go on."""
        for job in jobs:
            if job.exploit is None:
                continue
            place = parent_folder(self.root, number, job.exploit.source)
            if place.is_dir():
                continue  # by a driver that was killed in this round
            _copy_checkpoint(member_folder(self.root, job.exploit.source), place)
            digest = verify_artifact(place)
            if digest != job.exploit.digest:
                raise ArtifactError(
                    "artifact-mismatch",
                    wrong=f"the last checkpoint of member {job.exploit.source} must be the one of "
                    f"the ledger, {job.exploit.digest[:8]}",
                    found=digest[:8],
                    remedy="Restore the population's folder from a copy, or start a new one.",
                )

    def _remove_parents(self) -> None:
        shutil.rmtree(self.root / PARENTS, ignore_errors=True)

    def _carried_out(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the outcomes of all jobs by member, handing failed ones in again."""
        outcomes: dict[int, Outcome] = {}
        open_jobs, failures = list(jobs), dict[int, Exception]()
        for _ in range(ATTEMPTS):
            for job, result in self.engine.run(advance, open_jobs):
                if isinstance(result, Outcome):
                    outcomes[job.member] = result
                else:
                    failures[job.member] = result
                    LOG.warning("Member %d: %s", job.member, result)
            open_jobs = [job for job in jobs if job.member not in outcomes]
            if not open_jobs:
                return [outcomes[job.member] for job in jobs]
            for job in open_jobs:
                lost = failures.get(job.member)
                if isinstance(lost, WorkerError):  # the engine has tried it again already
                    raise lost
        member = open_jobs[0].member
        raise StormsailError(
            "member-failed",
            wrong=f"member {member} of {self.root} must get through its round",
            found=f"{ATTEMPTS} failures, the last one {failures.get(member)}",
            remedy="Remove the cause and repeat the command: what is done is kept.",
        ) from failures.get(member)

    def _write_log(self, before: Sequence[Decision], done: Round, *, announce: bool) -> None:
        """Write the learning rates of a round's copies; the first round begins the file anew."""
        path = self.root / TRAINING_LOG
        path.parent.mkdir(exist_ok=True)
        lines = rate_lines(before, done)
        with path.open("w" if done.number == 0 else "a", encoding="utf-8") as file:
            file.writelines(f"round {done.number}: {line}\n" for line, _ in lines)
        for line, is_warning in lines if announce else ():
            LOG.log(logging.WARNING if is_warning else logging.INFO, line)


def _result(root: Path, config: PopulationConfig, rounds: Sequence[Round]) -> PopulationRun:
    if not rounds:
        return PopulationRun(root, (), None)
    fitness = rounds[-1].fitness
    order = rules.ranking(torch.tensor(fitness, dtype=torch.float64), mode=config.metric_mode)
    best = int(order[0])
    known = math.isfinite(fitness[best])
    return PopulationRun(root, tuple(rounds), best if known else None)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[Path]:
    """Hold the folder of a population; one that is refused before its start is removed again."""
    made = not root.is_dir()
    try:
        atomic.make_folders(root)
        with atomic.locked_folder(root):
            restore(root)
            yield root
    except atomic.FolderBusyError as error:
        raise ArtifactError(
            "run-busy",
            wrong=f"one process at a time must drive the population in {root}",
            found="another one that does so now",
            remedy="Wait for it or stop it, or give this population a folder of its own.",
        ) from error
    except OSError as error:
        raise write_error(root, error) from error
    finally:
        if made:
            with contextlib.suppress(OSError):  # not empty: it holds a population
                root.rmdir()


def _begun(root: Path, given: RunFile) -> RunFile:
    """Return the configuration of the population in a folder, after writing it into a new one."""
    if (root / CONFIG).is_file():
        return _continued(root, given)
    if any(root.iterdir()):
        raise ArtifactError(
            "artifact-exists",
            wrong=f"{root} must be a new folder, or that of a population",
            found=f"`{min(path.name for path in root.iterdir())}` and no `{CONFIG}` in it",
            remedy="Choose another folder; nothing is ever overwritten.",
        )
    population = given.searched()
    sizes = derive(given.training()).ppo
    round_steps = population.perturbation_interval * sizes.n_envs * sizes.n_steps
    base = derive(in_parts(given.training(), round_steps))
    _check_purpose(population)
    check_start(base)
    check_search(base, population)
    plan = _plan(base, population)
    with atomic.open_folder(root, follow=True) as folder:
        atomic.replace_file(folder, CONFIG, plan.to_toml().encode("utf-8"))
    return plan


def _continued(root: Path, given: RunFile) -> RunFile:
    saved = load_saved(RunFile, root / CONFIG)
    free = set(open_settings(given.training()))
    wanted = _plan(given.training(), given.searched())
    changed = [change for change in differences(saved, wanted) if change[0] not in free]
    if changed:
        names = ", ".join(f"`{name}`" for name, _, _ in changed)
        raise ConfigError(
            "config-inconsistent",
            wrong=f"{names} must stay what the population in {root} was begun with",
            found=", ".join(
                f"`{name}` {toml.shown(new)} instead of {toml.shown(old)}"
                for name, old, new in changed
            ),
            remedy="Repeat the command that began it, or give the new population another folder.",
        )
    return saved


def _plan(base: TrainConfig, population: PopulationConfig) -> RunFile:
    return RunFile.from_mapping({**base.model_dump(), "population": population.model_dump()})


def _check_purpose(population: PopulationConfig) -> None:
    if not population.search:
        raise ConfigError(
            "config-value",
            wrong="`population.search` must name one setting or more",
            found="none",
            remedy='Add for example `[population.search."ppo.learning_rate"]` with `min` and '
            "`max`.",
        )


def _copy_checkpoint(member: Path, place: Path) -> None:
    """Copy the newest checkpoint of a member, completely or not at all."""
    generations = Generations(member / "checkpoints", kind=checkpoint.KIND)
    newest = generations.root / f"{generations.steps()[-1]:012d}"
    files = {path.name: path.read_bytes() for path in newest.iterdir()}
    atomic.make_folders(place.parent)
    with atomic.open_folder(place.parent, follow=True) as folder:
        atomic.write_folder(folder, place.name, files)
