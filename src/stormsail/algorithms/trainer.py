"""The run around the learner: update, measure, judge, save, and go on after whatever happens."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.evaluate import Judged, judge
from stormsail.algorithms.run.folder import Rollback, RunFolder, open_run
from stormsail.algorithms.run.records import ProcessLog, Records, read_records
from stormsail.algorithms.run.tasks import MARKET, agent_spec, binding, make_task
from stormsail.algorithms.run.trials import trial_lines
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import nonfinite
from stormsail.algorithms.update.epochs import MinibatchReport
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.core.clock import Clock
from stormsail.core.errors import ArtifactError, RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.core.files.generations import Generation
from stormsail.core.generators import Generators
from stormsail.core.task import Task
from stormsail.modules.agent import Agent

MAX_ROLLBACKS = 3
"""At this many the run stops: going back has not helped."""

Status = Literal["finished", "interrupted", "stopped"]


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an update, for whoever watches."""

    update: int
    steps: int
    total_steps: int
    metrics: dict[str, float]
    alarms: tuple[str, ...]
    best_score: float | None


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Run:
    """What became of a run.

    Attributes:
        path: its folder.
        config: its settings.
        status: `finished`; `interrupted`, and the same command goes on; or `stopped` because it
            kept diverging.
        reason: why it did not finish.
        signal: number of the signal that interrupted it.
        updates: done so far.
        steps: of all environments so far.
        best_score: of the best agent in validation; None before the first look.
        agent: as it is now.
        sharpe_per_bar: of the best agent's validation episodes; None where there is none.
        bars: steps that it comes from.
    """

    path: Path
    config: TrainConfig
    status: Status
    reason: str
    signal: int | None
    updates: int
    steps: int
    best_score: float | None
    agent: Agent
    sharpe_per_bar: float | None = None
    bars: int = 0

    @property
    def best(self) -> Path:
        """Folder of the best agent."""
        return self.path / "best"


def train(
    config: TrainConfig,
    *,
    out: Path | str | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
    tensorboard: bool = True,
    ledger: Path | str | None = None,
    data_hash: str | None = None,
) -> Run:
    """Train, or go on with a run that was interrupted: the same call does both.

    Every training is written into the trial ledger of its workspace, once when it begins and once
    when it ends; one that goes on is the same trial (`trial_lines`).

    Args:
        config: all settings.
        out: folder of the run; None takes one under `runs` with the task's name and a hash of the
            settings, so that equal settings find their own run again.
        on_progress: called after each update.
        clock: for the times of events; None writes none.
        tensorboard: whether to write for TensorBoard.
        ledger: file of the trials; None takes `trials.jsonl` in the folder that holds the run's.
        data_hash: in the ledger, of the bars that this is a try on; None takes those of the run. A
            fold of a validation is a try on all of its bars.

    Raises:
        ConfigError: if the folder holds a run with other settings; it names them.
        ArtifactError: if the folder is in use, foreign, damaged beyond its last generation, or
            cannot be written; or if the ledger is damaged.
        DataError: if bars are missing, or a task gives what is not finite.
    """
    name = config.task.name.replace("/", "-").replace(":", "-").lower()
    default = Path("runs") / f"{name}-{checkpoint.computed_config(config).config_hash()[:8]}"
    bound = binding(config)
    with (
        open_run(default if out is None else out, config, bound) as folder,
        trial_lines(folder, ledger, data_hash=data_hash, clock=clock) as lines,
    ):
        trainer = Trainer(
            folder, bound, on_progress=on_progress, clock=clock, tensorboard=tensorboard
        )
        done = trainer.run()
        if done.status != "interrupted":
            lines.ended(done.status, done.reason, done.sharpe_per_bar, done.bars)
        return done


class Trainer:
    """One run in its folder.

    Args:
        folder: of the run, held by this process.
        bound: what the agent is bound to, as `task_factory.binding` says.
        on_progress: called after each update.
        clock: for the times of events; None writes none.
        tensorboard: whether to write for TensorBoard.
    """

    ppo: Ppo
    records: Records

    def __init__(
        self,
        folder: RunFolder,
        bound: dict[str, JsonValue],
        *,
        on_progress: OnProgress | None = None,
        clock: Clock | None = None,
        tensorboard: bool = False,
    ) -> None:
        self.folder, self.config = folder, folder.config
        self._bound, self._on_progress = bound, on_progress
        self._clock, self._tensorboard = clock, tensorboard
        self._log = ProcessLog(folder.process, clock=clock)
        self._tried: int | None = None
        self._task = make_task(self.config, batch=self.config.ppo.n_envs)
        self._judges: Task[Any] | None = None
        self._signal: int | None = None
        self._begin()

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.ppo.steps >= self.config.ppo.total_steps

    def stop(self, number: int) -> None:
        """Finish the update, save, and end as after that signal."""
        self._signal = number

    def run(self) -> Run:
        """Train until all steps are taken, a signal comes, or going back no longer helps."""
        with self._listening():
            while not self.done and self._signal is None:
                try:
                    self.advance()
                except Diverged as error:
                    if self.records.rollbacks + 1 >= MAX_ROLLBACKS:
                        return self._stopped(str(error))
                    self._roll_back(str(error))
            return self._ended()

    def advance(self) -> None:
        """Do one update and everything that follows from it.

        Raises:
            Diverged: if the learner's state is no longer sound; it must not be saved.
        """
        update = self._update()
        self._check_state(update)
        values = metrics(self.ppo, update)
        alarms = self.records.measured(self.ppo.update_count, values)
        period = self.config.validation.every_updates
        if period and (self.ppo.update_count % period == 0 or self.done):
            values |= self._look()
        self.records.append(self.ppo.steps, values)
        if self.ppo.update_count % self.config.checkpoint.every_updates == 0 and not self.done:
            self.save()
        if self._on_progress is not None:
            self._on_progress(self._progress(values, alarms))

    def save(self) -> None:
        """Write everything down, so that a kill from here on costs nothing before it.

        Raises:
            ArtifactError: if the disk refuses; what was saved before is untouched.
        """
        self.records.flush()
        state = {**checkpoint.learner_state(self.ppo), **self.records.state()}
        contents = checkpoint.pack(state, self.config, self.folder.identity)
        self.folder.save(self.ppo.steps, contents)
        self._tried = None

    def _begin(self) -> None:
        """Take up the newest sound generation, or start and save the first."""
        if self.folder.has_generations():
            self._load()
            self._log.write("resumed", self.ppo.update_count)
        else:
            self.ppo, self.records = self._fresh(), self._opened(None)
            self._log.write("started", 0)
            self.save()

    def _opened(self, state: checkpoint.State | None) -> Records:
        return Records(self.folder, state, clock=self._clock, tensorboard=self._tensorboard)

    def _fresh(self) -> Ppo:
        generators = Generators(self.config.seed, self.config.device)
        spec = agent_spec(self.config, self._task)
        # Weights are drawn on the CPU, so that every device begins with the same ones.
        first = Generators(self.config.seed).stream("weights")
        agent = Agent(spec, first, binding=self._bound)
        ppo = Ppo(self._task, agent.to(self.config.device), self.config, generators)
        ppo.on_refusal = self._refused
        return ppo

    def _load(self) -> None:
        """Restore the newest generation that is sound and that the run was not sent back from."""
        target = self.folder.rollback()
        skipped: list[str] = []
        while True:
            generation = self.folder.generations.load_latest(allow_nonfinite=(checkpoint.METRICS,))
            skipped += [f"{one.name}: {one.reason}" for one in generation.skipped]
            generation.artifact.require(**self.folder.identity)
            reason = self._restored(generation, target)
            if not reason:
                break
            self.folder.generations.quarantine(generation.step, reason=reason)
            skipped.append(f"{generation.step:012d}: {reason}")
        for words in skipped:
            self._log.write("skipped", self.ppo.update_count, reason=words)

    def _restored(self, generation: Generation, target: Rollback | None) -> str:
        """Take up a generation; return why it cannot be, or nothing."""
        ppo = self._fresh()
        try:
            state = checkpoint.unpack(generation.artifact)
            checkpoint.restore_learner(ppo, state)
            saved = read_records(state, rows=ppo.update_count)
        except ArtifactError as error:  # whole, but not what a run writes
            return str(error)
        if target is not None and saved.rollbacks >= target.times:
            target = None  # saved after the run was sent back, so it knows of it
        if target is not None and generation.step > target.step:
            return f"the run was sent back to step {target.step}"
        self.ppo, self.records = ppo, self._opened(state)
        if target is not None:
            self._sent_back(target, saved.rollbacks)
        return ""

    def _sent_back(self, target: Rollback, before: int) -> None:
        """Go on from an older generation more carefully than it did itself."""
        self.ppo.rate_factor *= 0.5 ** (target.times - before)
        self.ppo.refusals, self.records.rollbacks = 0, target.times
        self._tried = target.step
        self.records.event("rolled-back", self.ppo.update_count, **target._asdict())

    def _update(self) -> Update:
        try:
            return self.ppo.update()
        except RangeError as error:  # a task refuses actions that are not finite
            raise Diverged(f"the task refused an action, {error.found}") from error

    def _check_state(self, update: Update) -> None:
        """Look at everything that the next update and a checkpoint would take over.

        Raises:
            Diverged: if a number of it is not finite.
        """
        state = checkpoint.learner_state(self.ppo)
        tensors: list[tuple[str, Tensor]] = list(nonfinite.tensors_of(state, "state"))
        tensors += [("entropy", one.sums.entropy) for one in update.learned.minibatches]
        found = nonfinite.first_nonfinite(tensors)
        if found is not None:
            raise Diverged(f"{found} after the update are not finite")

    def _refused(self, batch: Batch, report: MinibatchReport) -> None:
        """Keep the evidence of a refused step, and say so."""
        update, number = self.ppo.update_count, self.ppo.refusals + 1
        told: dict[str, JsonValue] = {
            "in_a_row": number,
            "tensors": int(report.gradient.nonfinite),
            "rate_factor": self.ppo.rate_factor * 0.5,
        }
        name = f"{update:08d}-{self.records.rollbacks}-{number}"
        self.folder.save_refused(name, nonfinite.refused_batch(batch, {"update": update, **told}))
        self.records.event("refused", update, **told)
        self._log.write("refused", update, **told)

    def _roll_back(self, reason: str) -> None:
        """Go back to the newest generation, or to the one before if that was tried already."""
        steps = self.folder.generations.steps()
        tried = self._tried == steps[-1]
        step = steps[-2] if tried and len(steps) > 1 else steps[-1]
        target = Rollback(step, self.records.rollbacks + 1, reason)
        self.folder.send_back(target)
        self._log.write("rolled-back", self.ppo.update_count, **target._asdict())
        self.records.close()
        self._load()

    def _look(self) -> dict[str, float]:
        """Judge the agent, keep it if it is the best so far, and log the look as a trial."""
        if self._judges is None:
            episodes = self.config.validation.episodes
            self._judges = make_task(self.config, batch=episodes, purpose="validation")
        generators = Generators(self.config.seed, self.config.device)
        judged = judge(
            self._judges,
            self.ppo.agent,
            generators.stream("validation"),
            log_returns=self.config.task.name == MARKET,
            alpha=self.config.risk.cvar_alpha,
        )
        limit = self.config.risk.episode_limit
        if self.records.tried(self.ppo.update_count, judged, limit=limit):
            self.folder.save_best(self.ppo.agent)
        return _told(judged, self.records)

    def _progress(self, values: dict[str, float], alarms: tuple[str, ...]) -> Progress:
        return Progress(
            update=self.ppo.update_count,
            steps=self.ppo.steps,
            total_steps=self.config.ppo.total_steps,
            metrics=values,
            alarms=alarms,
            best_score=self.records.best_score,
        )

    def _stopped(self, reason: str) -> Run:
        """End without saving: the last sound state is on the disk."""
        words = f"{reason}; the run was sent back {self.records.rollbacks} times before"
        self._log.write("stopped", self.ppo.update_count, reason=words)
        self.records.close()
        return self._run("stopped", words)

    def _ended(self) -> Run:
        status: Status = "finished" if self.done else "interrupted"
        if self.ppo.steps > self.folder.generations.steps()[-1]:
            self.save()
        self._log.write(status, self.ppo.update_count)
        self.records.close()
        return self._run(status, "" if self.done else f"signal {self._signal}")

    def _run(self, status: Status, reason: str) -> Run:
        return Run(
            path=self.folder.path,
            config=self.config,
            status=status,
            reason=reason,
            signal=None if status == "finished" else self._signal,
            updates=self.ppo.update_count,
            steps=self.ppo.steps,
            best_score=self.records.best_score,
            agent=self.ppo.agent,
            sharpe_per_bar=self.records.best_sharpe,
            bars=self.records.best_bars,
        )

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM finish the update first; a second Ctrl-C does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def heard(number: int, _frame: FrameType | None) -> None:
            if self._signal == number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop(number)

        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(kind, heard) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)


def _told(judged: Judged, records: Records) -> dict[str, float]:
    best = records.best_score
    return {
        "validation/score": judged.score,
        "validation/spread": judged.spread,
        "validation/cvar": judged.cvar,
        "validation/best_score": judged.score if best is None else best,
        "validation/trials": float(records.trials),
    }
