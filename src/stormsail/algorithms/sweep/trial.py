"""A trial of a search: an ordinary run folder, and its way to the next rung as a function of files.

`advance` may be called again at any time, also after its process was killed: the run goes on from
its last checkpoint, with the same bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import in_parts
from stormsail.algorithms.fit import Interrupted
from stormsail.algorithms.population.config import RunFile, SweepConfig, with_values
from stormsail.algorithms.population.fitness import fitness
from stormsail.algorithms.population.jobs import Job, Outcome, Value
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.checkpoint import unpack
from stormsail.algorithms.run.folder import RunFolder, open_run, threads_of
from stormsail.algorithms.run.plugins import load_saved, require_plugins
from stormsail.algorithms.run.records import read_records
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.run.trials import LEDGER, TrialLines, trial_lines
from stormsail.algorithms.trainer import Run, Trainer
from stormsail.algorithms.update.schedules import total_updates
from stormsail.core.clock import SystemClock
from stormsail.core.errors import ArtifactError, InvariantError
from stormsail.core.files.documents import JsonValue
from stormsail.core.files.generations import Generations
from stormsail.core.threads import torch_threads
from stormsail.evaluation.stats.trials import TrialLedger

CONFIG = "config.toml"
"""Configuration of a search in its folder: what trials have in common, and the search."""

_TRIAL = "trial-"


@dataclass(frozen=True)
class Segment(Job):
    """The way of one trial to its next rung: `member` is the trial, `target` steps, not updates.

    Attributes:
        values: of the searched settings.
        was_seen: whether the trial had a score before.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    was_seen: bool = False

    @property
    def words(self) -> str:
        """What is done when the job is, for errors."""
        return f"trial {self.member} has done {self.target} steps"


def trial_folder(root: Path, number: int) -> Path:
    """Return the run folder of a trial."""
    return root / f"{_TRIAL}{number:04d}"


def trial_folders(root: Path) -> list[Path]:
    """Return the run folders that there are, by number."""
    return sorted(root.glob(f"{_TRIAL}*"))


def ledger_of(root: Path) -> TrialLedger:
    """Return the trial ledger of the workspace that holds a search."""
    return TrialLedger(root.resolve().parent / LEDGER, clock=SystemClock())


def saved_steps(root: Path, number: int) -> int | None:
    """Return the steps of a trial's newest checkpoint; None where it has none."""
    folder = trial_folder(root, number) / "checkpoints"
    if not folder.is_dir():
        return None
    steps = Generations(folder, kind=checkpoint.KIND).steps()
    return steps[-1] if steps else None


def rung_steps(plan: RunFile) -> tuple[int, ...]:
    """Return the steps after which a trial is scored: its rungs, and its end."""
    sweep, total = plan.search or SweepConfig(), plan.ppo.total_steps
    first = total // sweep.reduction_factor**sweep.rungs
    return (*(first * sweep.reduction_factor**rung for rung in range(sweep.rungs)), total)


def advance(job: Job) -> Outcome:
    """Train a trial to its next rung, or what is left of the way, and score it there.

    Raises:
        ConfigError: if the values do not fit each other or the other settings.
        Interrupted: if a signal came; the trial was saved.
        ArtifactError: if a folder is in use, damaged, or cannot be written.
        DataError: if bars are missing, or a task gives non-finite numbers.
    """
    if not isinstance(job, Segment):
        raise InvariantError(
            "value-not-applied",
            wrong="a trial must be given the values that it is to train with",
            found=f"a {type(job).__name__}",
            remedy="Report this.",
        )
    clock = SystemClock()
    begun = clock.monotonic_ns()
    plan = load_saved(RunFile, job.root / CONFIG)
    config = in_parts(with_values(plan.training(), job.values), rung_steps(plan)[0])
    place = trial_folder(job.root, job.member)
    require_plugins(place)
    bound = binding(config)
    ledger = ledger_of(job.root)
    with (
        torch_threads(threads_of(place, config)),
        open_run(place, config, bound) as folder,
        trial_lines(folder, ledger.path, clock=clock, name=_name(job.root, place)) as lines,
    ):
        outcome = _trained(job, folder, bound, plan.search or SweepConfig(), lines)
    return Outcome(**{**vars(outcome), "seconds": (clock.monotonic_ns() - begun) / 1e9})


def _trained(
    job: Segment,
    folder: RunFolder,
    bound: dict[str, JsonValue],
    sweep: SweepConfig,
    lines: TrialLines,
) -> Outcome:
    trainer = Trainer(folder, bound, clock=SystemClock())
    try:
        lines.known = lambda: (trainer.records.best_sharpe, trainer.records.best_bars)
        folder.mark_trials(lines.mark(lines.started(), folder.path))
        run, judged, metrics = _scored(job, trainer, sweep)
    except Exception as error:
        if job.was_seen:  # a score of it is known, so it was a trial whatever happens now
            lines.ended("stopped", str(error), *lines.known())
            lines.begun = False
        raise
    finally:
        trainer.close()
    if run.status in ("finished", "stopped"):
        lines.ended(run.status, run.reason, run.sharpe_per_bar, run.bars)
    return Outcome(
        member=job.member,
        round=job.round,
        fitness=judged,
        updates=run.updates,
        digest="",
        applied=dict(job.values),
        metrics=metrics,
        stopped=run.status == "stopped",
    )


def _scored(
    job: Segment, trainer: Trainer, sweep: SweepConfig
) -> tuple[Run, float, dict[str, float]]:
    """Train to the rung; return the run, its fitness there and the metrics behind it."""
    run = trainer.run(until=total_updates(trainer.config.ppo, job.target))
    if run.status == "interrupted":
        raise Interrupted(run)
    if run.status == "stopped":
        return run, math.nan, {}
    return run, *fitness(trainer.config, sweep, trainer.ppo.agent, round_=job.round)


def close_trial(
    root: Path, base: TrainConfig, number: int, values: Mapping[str, Value], reason: str
) -> None:
    """Write into the trial ledger that a trial was given up, with the result that it had.

    Raises:
        ArtifactError: if the trial's folder or the ledger cannot be used.
    """
    config, place = with_values(base, values), trial_folder(root, number)
    with open_run(place, config, binding(config)) as folder:
        newest = folder.generations.load_latest(allow_nonfinite=(checkpoint.METRICS,))
        saved = read_records(unpack(newest.artifact))
        lines = TrialLines(folder, ledger_of(root), name=_name(root, place))
        lines.ended("stopped", reason, saved.best_sharpe, saved.best_bars)


def trained_config(root: Path, number: int) -> TrainConfig:
    """Return the complete configuration of a trial, which trains to the same agent.

    Raises:
        ArtifactError: if the trial has no run folder.
        ConfigError: if its configuration cannot be read.
    """
    path = trial_folder(root, number) / CONFIG
    if not path.is_file():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must be there, the configuration of the best trial",
            found="no such file",
            remedy="Restore the folder of the search from a copy, or search in another folder.",
        )
    return load_saved(TrainConfig, path)


def _name(root: Path, place: Path) -> str:
    return f"{root.resolve().name}/{place.name}"
