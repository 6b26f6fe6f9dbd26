"""Trainings of a validation side by side, in processes, before it asks for them one by one.

A run is a function of its settings, bars and seed, and a finished one is used again. So the agents,
the verdict and every file but the order of lines in the trial ledger are those of a validation that
trains one after another.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stormsail.algorithms.callbacks import Progress
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.fit import Fitter, interrupted, train_agent
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.algorithms.population.jobs import Job, Outcome
from stormsail.core.clock import SystemClock
from stormsail.core.errors import InvariantError, RangeError
from stormsail.core.signals import handled_signals
from stormsail.market.splits import Span


class AheadProgress(NamedTuple):
    """How far trainings side by side have come, all of them together."""

    done: int
    """Trainings that have ended."""
    total: int
    """Trainings in all."""
    steps: int
    """Steps of all environments of all trainings so far."""
    total_steps: int
    """Steps in all."""


@dataclass(frozen=True, kw_only=True)
class Training(Job):
    """The training of one span with one seed; `member` is its number.

    Attributes:
        config: of the training.
        out: its folder.
        ledger: file of the trials.
        data_hash: of the bars of the validation.
    """

    config: TrainConfig
    out: Path
    ledger: Path
    data_hash: str

    @property
    def words(self) -> str:
        """What is done when the job is, for errors."""
        return f"{self.out.name} is trained"

    @property
    def progress(self) -> Path:
        """File with the steps so far."""
        return self.root / "logs" / f"{self.out.name}.steps"


def train_ahead(
    fit: Fitter,
    trainings: Sequence[tuple[Span, int]],
    *,
    jobs: int,
    on_progress: Callable[[AheadProgress], None] = lambda _: None,
) -> None:
    """Train for spans and seeds, so many at a time, each in a process with one thread.

    What a training raises is left to the validation, which asks for the same run again and then
    raises or counts it as it would without processes.

    Args:
        fit: of the validation.
        trainings: spans and seeds in the order in which the validation will ask for them.
        jobs: processes at a time.
        on_progress: called about once a second.

    Raises:
        RangeError: if `jobs` is below 1.
        Interrupted: if a signal came; the same call goes on from the runs' last checkpoints.
    """
    if jobs < 1:
        raise RangeError(
            wrong="`jobs` must be at least 1", found=str(jobs), remedy="Use 1 or more."
        )
    works = [_training(fit, number, *pair) for number, pair in enumerate(trainings)]
    ended: set[int] = set()
    seen = dict.fromkeys(range(len(works)), 0)

    def report() -> None:
        for work in works:
            with contextlib.suppress(OSError, ValueError):  # not begun, or being written
                seen[work.member] = int(work.progress.read_text())
        steps = sum(_total(w) if w.member in ended else seen[w.member] for w in works)
        on_progress(AheadProgress(len(ended), len(works), steps, sum(map(_total, works))))

    engine = Processes(workers=min(jobs, max(1, len(works))), on_wait=report)
    with contextlib.closing(engine), handled_signals(_leave):
        for job, _ in engine.run(carry_out, works):
            ended.add(job.member)
            report()


def carry_out(job: Job) -> Outcome:
    """Train in a worker, or see that it is done; the agent is read from its folder afterwards."""
    if not isinstance(job, Training):
        raise InvariantError(
            "value-not-applied",
            wrong="a worker must be told what to train",
            found=f"a {type(job).__name__}",
            remedy="Report this.",
        )

    def note(_run: str, progress: Progress) -> None:
        job.progress.write_text(str(progress.steps))

    train_agent(
        job.config,
        job.out,
        ledger=job.ledger,
        data_hash=job.data_hash,
        on_progress=note,
        clock=SystemClock(),
    )
    return Outcome(job.member, job.round, math.nan, 0, "", {})


def _training(fit: Fitter, number: int, span: Span, seed: int) -> Training:
    config, out = fit.run_of(span, seed)
    return Training(
        member=number,
        round=0,
        root=out.parent.absolute(),
        target=0,
        config=config,
        out=out.absolute(),
        ledger=fit.ledger.absolute(),
        data_hash=fit.data_hash,
    )


def _total(work: Training) -> int:
    return work.config.ppo.total_steps


def _leave(number: int) -> None:
    raise interrupted("a signal came while trainings went on side by side", number)
