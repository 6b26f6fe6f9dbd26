"""A member of a population: an ordinary run folder, and one round of it as a function of files.

`advance` may be called again at any time, also after its process was killed: it finds out from the
files what is done already and does the rest, with the same bits.
"""

import math
from pathlib import Path

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.fit import Interrupted
from stormsail.algorithms.population.config import PopulationConfig, RunFile, value_of, with_values
from stormsail.algorithms.population.exploit import copy_over
from stormsail.algorithms.population.fitness import fitness
from stormsail.algorithms.population.jobs import Exploit, Job, Outcome, Value
from stormsail.algorithms.population.readback import read_back
from stormsail.algorithms.population.values import first_values
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.checkpoint import unpack
from stormsail.algorithms.run.folder import (
    MANIFEST,
    RunFolder,
    open_run,
    read_config,
    read_lineage,
)
from stormsail.algorithms.run.plugins import load_saved, require_plugins
from stormsail.algorithms.run.records import read_records
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.run.trials import LEDGER, TrialLines, trial_lines
from stormsail.algorithms.trainer import Trainer
from stormsail.core.clock import SystemClock
from stormsail.core.files.artifact import read_artifact, verify_artifact
from stormsail.core.files.documents import JsonValue
from stormsail.core.threads import torch_threads
from stormsail.evaluation.stats.trials import TrialLedger

CONFIG = "config.toml"
"""Configuration of a population in its folder: what members have in common, and the search."""

MEMBERS = "members"
PARENTS = "parents"


def member_folder(root: Path, member: int) -> Path:
    """Return the run folder of a member."""
    return root / MEMBERS / f"{member:02d}"


def parent_folder(root: Path, round_: int, member: int) -> Path:
    """Return where the checkpoint of a member lies while others copy it before a round."""
    return root / PARENTS / f"{round_:06d}-{member:02d}"


def first_config(base: TrainConfig, population: PopulationConfig, member: int) -> TrainConfig:
    """Return the configuration that a member begins with: a seed and values of its own.

    Raises:
        ConfigError: if the values do not fit each other or the other settings.
    """
    own = base.replace(seed=base.seed + member)
    return with_values(own, first_values(population, member))


def advance(job: Job) -> Outcome:
    """Carry out one round of a member: copy, train, evaluate, save; or what is left of it.

    Raises:
        Interrupted: if a signal came; the member was saved.
        InvariantError: if a searched value did not reach the learner, or did not stay there.
        ArtifactError: if a folder is in use, damaged, or cannot be written.
        DataError: if bars are missing, or a task gives non-finite numbers.
    """
    clock = SystemClock()
    begun = clock.monotonic_ns()
    plan = load_saved(RunFile, job.root / CONFIG)
    population, place = plan.searched(), member_folder(job.root, job.member)
    config = _config(plan, job.member, place)
    require_plugins(place)
    ledger = TrialLedger(job.root.resolve().parent / LEDGER, clock=clock)
    name = f"{job.root.resolve().name}/{place.name}"
    bound = binding(config)
    with torch_threads(config.threads), open_run(place, config, bound) as folder:
        if job.exploit is not None and not _has_copied(folder, job.round):
            _close_trial(folder, ledger, name, job.exploit)
            parent = parent_folder(job.root, job.round, job.exploit.source)
            source = read_artifact(
                parent, kind=checkpoint.KIND, allow_nonfinite=(checkpoint.METRICS,)
            )
            copy_over(folder, bound, source, job.exploit, round_=job.round)
        with trial_lines(folder, ledger.path, clock=clock, name=name) as lines:
            outcome = _trained(job, folder, bound, population, lines)
    seconds = (clock.monotonic_ns() - begun) / 1e9
    return Outcome(**{**vars(outcome), "seconds": seconds})


def _config(plan: RunFile, member: int, place: Path) -> TrainConfig:
    """Return the configuration of a member, new or not."""
    if not (place / MANIFEST).is_file():
        return first_config(plan.training(), plan.searched(), member)
    return read_lineage(place).current(read_config(place))


def _has_copied(folder: RunFolder, round_: int) -> bool:
    return any(copy.round == round_ for copy in folder.lineage.copies)


def _trained(
    job: Job,
    folder: RunFolder,
    bound: dict[str, JsonValue],
    population: PopulationConfig,
    lines: TrialLines,
) -> Outcome:
    """Train to the end of the round, and evaluate there."""
    trainer = Trainer(folder, bound)
    try:
        lines.known = lambda: (trainer.records.best_sharpe, trainer.records.best_bars)
        folder.mark_trials(lines.mark(lines.started(), folder.path))
        run = trainer.run(until=job.target)
        if run.status == "interrupted":
            raise Interrupted(run)
        values = {path: value_of(folder.config, path) for path in population.search}
        trainer.ppo.apply_rate()  # that of the coming update, as after an exploit
        applied = read_back(trainer.ppo, values)
        judged, metrics = math.nan, dict[str, float]()
        if run.status != "stopped":
            judged, metrics = fitness(
                folder.config, population, trainer.ppo.agent, round_=job.round
            )
    finally:
        trainer.close()
    saved_steps = folder.generations.steps()[-1]  # what a diverged learner did beyond is lost
    if run.status in ("finished", "stopped"):
        lines.ended(run.status, run.reason, run.sharpe_per_bar, run.bars)
    return Outcome(
        member=job.member,
        round=job.round,
        fitness=judged if math.isfinite(judged) else math.nan,
        updates=saved_steps // (folder.config.ppo.n_steps * folder.config.ppo.n_envs),
        digest=verify_artifact(folder.generations.root / f"{saved_steps:012d}"),
        applied=_applied(folder, job, applied),
        metrics=metrics,
        stopped=run.status == "stopped",
    )


def _applied(folder: RunFolder, job: Job, now: dict[str, Value]) -> dict[str, Value]:
    """Return the values as they were read back after the copy of this round, or at its end."""
    copied = [copy.applied for copy in folder.lineage.copies if copy.round == job.round]
    return dict(copied[-1]) if copied else now


def _close_trial(folder: RunFolder, ledger: TrialLedger, name: str, exploit: Exploit) -> None:
    """Write the result that the member had before it copies another one."""
    newest = folder.generations.load_latest(allow_nonfinite=(checkpoint.METRICS,))
    saved = read_records(unpack(newest.artifact))
    reason = f"copies member {exploit.source}"
    lines = TrialLines(folder, ledger, name=name)
    lines.ended("stopped", reason, saved.best_sharpe, saved.best_bars)
