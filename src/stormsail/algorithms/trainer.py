"""A training run: start or resume, update, evaluate, save; roll back after a divergence."""

import contextlib
import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from stormsail.algorithms.callbacks import Callback, Callbacks, Checkpoint, Evaluated, Progress
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.ppo import Ppo, Update
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.folder import Rollback, RunFolder, open_run, threads_of
from stormsail.algorithms.run.learners import new_learner
from stormsail.algorithms.run.plugins import bring, require_plugins
from stormsail.algorithms.run.processes import check_group, end, hand_out, update_together
from stormsail.algorithms.run.records import ProcessLog, Records, introduced, read_records
from stormsail.algorithms.run.start_checks import check_start
from stormsail.algorithms.run.start_from import Start, load_start
from stormsail.algorithms.run.tasks import MARKET, binding, make_task
from stormsail.algorithms.run.trials import trial_lines
from stormsail.algorithms.telemetry.metrics import collect, launch
from stormsail.algorithms.update import nonfinite
from stormsail.algorithms.update.epochs import MinibatchReport
from stormsail.algorithms.update.losses import Batch
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.core import turns
from stormsail.core.clock import Clock
from stormsail.core.errors import ArtifactError, ConfigError, RangeError
from stormsail.core.files.documents import JsonValue
from stormsail.core.files.generations import Generation
from stormsail.core.generators import Generators
from stormsail.core.group import ALONE, Group
from stormsail.core.signals import handled_signals
from stormsail.core.task import Task, close
from stormsail.core.threads import torch_threads
from stormsail.modules.agent import Agent, JudgedPolicy
from stormsail.monitors.loggers import Ending, Loggers, MetricsLogger, raised_alarms

MAX_ROLLBACKS = 3
"""The run stops instead of rolling back this many times."""

Status = Literal["finished", "interrupted", "paused", "stopped"]


OnProgress = Callable[[Progress], None]


class CutShort(KeyboardInterrupt):
    """A second Ctrl-C ended a training at once.

    Args:
        kept: what is saved of it, in words.
    """

    def __init__(self, kept: str) -> None:
        super().__init__(kept)
        self.kept = kept


@dataclass(frozen=True, eq=False)
class Run:
    """Result of a training run.

    Attributes:
        path: its folder.
        config: its settings.
        status: `finished`; `interrupted`, and the same command continues it; `paused` after as many
            updates as `Trainer.run` was asked for, or because a callback asked for it, and the same
            call continues it; or `stopped` because it kept diverging.
        reason: why it did not finish.
        signal: number of the signal that interrupted it.
        updates: done so far.
        steps: of all environments so far.
        best_score: evaluation score of the best agent; None before the first evaluation.
        best_interval: 95 % interval of that score; None where it has none.
        best_episodes: episodes of that evaluation.
        best_policy: policy by which that agent was judged, as its file says.
        agent: the current one.
        sharpe_per_bar: of the best agent's evaluation episodes; None where there is none.
        bars: steps in that ratio.
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
    best_interval: tuple[float, float] | None = None
    best_episodes: int = 0
    best_policy: JudgedPolicy = "greedy"

    @property
    def best(self) -> Path:
        """Folder of the best agent."""
        return self.path / "best"


def train(
    config: TrainConfig,
    *,
    out: Path | str | None = None,
    on_progress: OnProgress | None = None,
    callbacks: Sequence[Callback] = (),
    clock: Clock | None = None,
    tensorboard: bool = True,
    loggers: Sequence[MetricsLogger] = (),
    ledger: Path | str | None = None,
    data_hash: str | None = None,
    extend_to: int | None = None,
    start_from: Path | str | None = None,
    keep_optimizer: bool = False,
    group: Group | None = None,
) -> Run:
    """Train, or continue a run that was interrupted: the same call does both.

    Every training is written into the trial ledger of its workspace, once when it begins and once
    when it ends; a continued one is the same trial (`run.trials`). One that is refused before its
    first update leaves neither a folder nor a line.

    Args:
        config: all settings. Its `plugins` are run. Open settings are derived (`config.derive`),
            or taken from the run that goes on.
        out: folder of the run; None takes one under `runs` with the task's name and a hash of the
            settings, so that equal settings find their own run again.
        on_progress: called after each update.
        callbacks: told of updates, evaluations and checkpoints; they may stop the run
            (`callbacks.Callback`).
        clock: for the times of events; None writes none.
        tensorboard: whether to write for TensorBoard.
        loggers: services that show the run, such as `stormsail.monitors.MlflowLogger()`. They
            change nothing that is computed, and a continued run continues theirs.
        ledger: file of the trials; None takes `trials.jsonl` in the folder that holds the run's.
        data_hash: in the ledger, of the bars of this trial; None takes those of the run. A fold of
            a validation is a trial on all of its bars.
        extend_to: new total of steps of the run in the folder, finished or not. Its schedules go
            on from where they stood (`update.schedules`); other `ppo.learning_rate` and
            `ppo.learning_rate_final` than the run's begin a line of their own.
        start_from: agent, or folder of a run, whose weights and normalisers a new run begins with.
        keep_optimizer: begin with the optimizer of that run as well.
        group: processes that train together, of which this is the first, while the others follow
            it (`run.processes`); None trains alone.

    Raises:
        ConfigError: if the folder holds a run with other settings; it names them. Before there is
            a folder: if the device, or the distribution of the policy, does not fit, or torch
            cannot have the threads.
        ArtifactError: if the folder is in use, foreign, damaged beyond its last generation, or
            cannot be written; or if the ledger is damaged.
        DataError: if bars are missing, or a task gives non-finite numbers.
        ArtifactError: with the code `plugin-missing` or `plugin-mismatch`, if the run in the folder
            was begun with a plug-in that is not loaded, or is another.
    """
    if keep_optimizer and start_from is None:
        raise ConfigError(
            "config-inconsistent",
            wrong="an optimizer can only be kept from the run that `start_from` names",
            found="`keep_optimizer` without `start_from`",
            remedy="Name the folder of that run, or leave `keep_optimizer` out.",
        )
    group = group or ALONE
    with contextlib.ExitStack() as stack:
        stack.callback(end, group)
        config = bring(config)
        name = config.task.name.replace("/", "-").replace(":", "-").lower()
        default = Path("runs") / f"{name}-{checkpoint.computed_config(config).config_hash()[:8]}"
        place = default if out is None else Path(out)
        require_plugins(place)
        check_start(config)
        check_group(config, group)
        stack.enter_context(torch_threads(threads_of(place, config)))
        start = None
        if start_from is not None:
            start = load_start(start_from, keep_optimizer=keep_optimizer)
        bound = binding(config)
        folder = stack.enter_context(
            open_run(
                place,
                config,
                bound,
                source=None if start is None else start.source,
                ancestors=() if start is None else start.agent.lineage,
                extend_to=extend_to,
            )
        )
        lines = stack.enter_context(trial_lines(folder, ledger, data_hash=data_hash, clock=clock))
        trainer = Trainer(
            folder,
            bound,
            start=start,
            on_progress=on_progress,
            callbacks=callbacks,
            clock=clock,
            tensorboard=tensorboard,
            loggers=loggers,
            group=group,
        )
        stack.callback(trainer.close)
        lines.known = lambda: (trainer.records.best_sharpe, trainer.records.best_bars)
        folder.mark_trials(lines.mark(lines.started(), folder.path))
        run = trainer.run()
        if run.status != "interrupted":  # what a callback stopped may be used as it is
            ending = "stopped" if run.status == "paused" else run.status
            lines.ended(ending, run.reason, run.sharpe_per_bar, run.bars)
        return run


class Trainer:
    """One run in its folder, in the order of its methods: start or resume, `run`, end.

    Args:
        folder: of the run, locked by this process.
        bound: what the agent is bound to, from `run.tasks.binding`.
        start: what a new run begins from; None draws random weights.
        on_progress: called after each update.
        callbacks: told of updates, evaluations and checkpoints; they may stop the run.
        clock: for the times of events; None writes none.
        tensorboard: whether to write for TensorBoard.
        loggers: services that show the run.
        group: processes that train together, of which this is the first.
    """

    ppo: Ppo
    records: Records
    _log: ProcessLog

    def __init__(
        self,
        folder: RunFolder,
        bound: dict[str, JsonValue],
        *,
        start: Start | None = None,
        on_progress: OnProgress | None = None,
        callbacks: Sequence[Callback] = (),
        clock: Clock | None = None,
        tensorboard: bool = False,
        loggers: Sequence[MetricsLogger] = (),
        group: Group = ALONE,
    ) -> None:
        self.folder, self.config, self._group = folder, folder.config, group
        self._bound, self._start, self._on_progress = bound, start, on_progress
        self._clock, self._tensorboard = clock, tensorboard
        self._callbacks = Callbacks(callbacks, self.config.callbacks)
        self._loggers = Loggers(loggers, introduced(folder), on_failure=self._logger_failed)
        self._rolled_back_to: int | None = None
        """Generation that the run was rolled back to and has not been saved since."""
        self._signal: int | None = None
        self._task = make_task(self.config, batch=self.config.ppo.n_envs)
        self._evaluation_task: Task[Any] | None = None
        try:
            self._open(folder)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: RunFolder) -> None:
        """Continue the run of the folder, or begin it."""
        if self.config.validation.every_updates:
            episodes = self.config.validation.episodes
            self._evaluation_task = make_task(self.config, batch=episodes, purpose="evaluation")
        if folder.has_generations():
            self._resume()
        else:
            self._begin()

    def _begin(self) -> None:
        """Write the first files once everything that may be refused has been made."""
        if self.folder.lineage.source is not None and self._start is None:
            raise ArtifactError(
                "artifact-missing",
                wrong=f"the run in {self.folder.path} must be given the agent that it begins from",
                found="none, and no checkpoint yet",
                remedy="Repeat the command with `--from` that began it.",
            )
        self.ppo = self._new_learner()
        self.folder.begin()
        self._log = ProcessLog(self.folder.process, clock=self._clock)
        self.records = self._open_records(None)
        self._log.write("started", 0)
        self.save()

    def _resume(self) -> None:
        self._log = ProcessLog(self.folder.process, clock=self._clock)
        self._load()
        self.folder.begin()
        extension = self.folder.extension
        if extension is not None:
            self._log.write("extended", self.ppo.update_count, **extension.model_dump(mode="json"))
        self._log.write("resumed", self.ppo.update_count)
        self._loggers.send(self.records.metrics)

    def _new_learner(self) -> Ppo:
        history = self.folder.lineage.history()
        ppo = new_learner(self.config, self._task, self._bound, history, self._start, self._group)
        ppo.on_refusal = self._refused
        return ppo

    def _open_records(self, state: checkpoint.State | None) -> Records:
        return Records(self.folder, state, clock=self._clock, tensorboard=self._tensorboard)

    def _load(self) -> None:
        """Restore the newest sound generation that the run was not rolled back from."""
        target = self.folder.last_rollback()
        skipped: list[str] = []
        while True:
            generation = self.folder.generations.load_latest(allow_nonfinite=(checkpoint.METRICS,))
            skipped += [f"{other.name}: {other.reason}" for other in generation.skipped]
            generation.artifact.require(**self.folder.identity)
            problem = self._restore(generation, target)
            if not problem:
                break
            self.folder.generations.set_aside(generation.step, reason=problem)
            skipped.append(f"{generation.step:012d}: {problem}")
        self._loggers.rewind(len(self.records.metrics))
        for reason in skipped:
            self._log.write("skipped", self.ppo.update_count, reason=reason)

    def _restore(self, generation: Generation, target: Rollback | None) -> str:
        """Restore a generation; return why that is impossible, or nothing."""
        ppo = self._new_learner()
        try:
            state = checkpoint.unpack(generation.artifact)
            checkpoint.restore_learner(ppo, state)
            saved = read_records(state, rows=ppo.update_count)
        except ArtifactError as error:  # whole, but not what a run writes
            return str(error)
        if target is not None and saved.rollbacks >= target.times:
            target = None  # saved after the rollback, so its effects are in the state
        if target is not None and generation.step > target.step:
            return f"the run was rolled back to step {target.step}"
        self.ppo, self.records = ppo, self._open_records(state)
        ppo.agent.judged_policy = self.records.policy or ppo.agent.judged_policy
        if target is not None:  # continue with a smaller learning rate than the first time
            ppo.rate_factor *= 0.5 ** (target.times - saved.rollbacks)
            ppo.refusals, self.records.rollbacks = 0, target.times
            self._rolled_back_to = target.step
            self.records.event("rolled-back", ppo.update_count, **target._asdict())
        return ""

    def close(self) -> None:
        """Let go what the tasks hold, such as worker processes."""
        close(self._task)
        close(self._evaluation_task)

    @property
    def whole_steps(self) -> int:
        """Steps at which the run ends: that of its last whole update, at or behind the budget."""
        ppo = self.config.ppo
        each = ppo.n_envs * ppo.n_steps
        return math.ceil(ppo.total_steps / each) * each

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.ppo.steps >= self.config.ppo.total_steps

    @property
    def _must_stop(self) -> bool:
        """Whether a signal came or a callback asked to stop."""
        return self._signal is not None or self._callbacks.stop is not None

    def stop(self, number: int) -> None:
        """Finish the update, save, and end as after that signal."""
        self._signal = number

    def run(self, *, until: int | None = None) -> Run:
        """Train until all steps are taken, a signal or a callback stops it, or it keeps diverging.

        Args:
            until: number of updates of the run after which it pauses; None goes to its end.
        """
        last = math.inf if until is None else until
        self.folder.keep()
        hand_out(self.ppo, self._bound)
        with handled_signals(self._on_signal), self._loggers.closing():
            while not self.done and not self._must_stop and self.ppo.update_count < last:
                try:
                    self.advance()
                except Diverged as error:
                    if self.records.rollbacks + 1 >= MAX_ROLLBACKS:
                        return self._give_up(str(error))
                    self._roll_back(str(error))
            return self._finish()

    def _on_signal(self, number: int) -> None:
        """End after the update; a second Ctrl-C ends at once."""
        if self._signal == number == signal.SIGINT:
            raise CutShort(self._kept())
        self.stop(number)

    def _kept(self) -> str:
        """Return what is saved of the run, in words."""
        best = " and its best agent so far" if self.folder.best.is_dir() else ""
        return (
            f"{self.folder.path} keeps its checkpoint of {self.folder.generations.steps()[-1]} "
            f"steps{best}, and the same command goes on from there"
        )

    def advance(self) -> None:
        """Do one update, then its metrics, evaluation, checkpoint and progress report.

        Raises:
            Diverged: if the learner's state is not finite; it must not be saved.
        """
        with turns.taken(self._task.device):
            self._advance()

    def _advance(self) -> None:
        update = self._update()
        values = self._measured(update)
        period, task = self.config.validation.every_updates, self._evaluation_task
        if task is not None and (self.ppo.update_count % period == 0 or self.done):
            values |= self._evaluate(task)
        alarms = self.records.measured(self.ppo.update_count, values)
        self.records.append(self.ppo.steps, values)
        if self.ppo.update_count % self.config.checkpoint.every_updates == 0 and not self.done:
            self.save()
        progress = Progress(
            update=self.ppo.update_count,
            steps=self.ppo.steps,
            total_steps=self.whole_steps,
            metrics=MappingProxyType(values),
            alarms=alarms,
            best_score=self.records.best_score,
        )
        if self._on_progress is not None:
            self._on_progress(progress)
        self._callbacks.on_update(progress)

    def _update(self) -> Update:
        try:
            return update_together(self.ppo)
        except RangeError as error:  # a task refuses non-finite actions
            raise Diverged(f"the task refused an action, {error.found}") from error

    def _refused(self, batch: Batch, report: MinibatchReport) -> None:
        """Save the batch of a refused optimizer step, and log it."""
        update, number = self.ppo.update_count, self.ppo.refusals + 1
        fields: dict[str, JsonValue] = {
            "in_a_row": number,
            "tensors": int(report.gradient.nonfinite),
            "rate_factor": self.ppo.rate_factor * 0.5,
        }
        name = f"{update:08d}-{self.records.rollbacks}-{number}"
        self.folder.save_refused(name, nonfinite.refused_batch(batch, {"update": update, **fields}))
        self.records.event("refused", update, **fields)
        self._log.write("refused", update, **fields)

    def _measured(self, update: Update) -> dict[str, float]:
        """Return the metrics of an update whose state was checked; a device is waited for once.

        Raises:
            Diverged: if a number of the state is not finite.
        """
        flags = checkpoint.state_flags(self.ppo, update.learned.minibatches.sums.entropy)
        launched = launch(self.ppo, update)
        values, finite = collect(self.ppo, launched, flags)
        if not all(finite):
            self._check_state(update)
        return values

    def _check_state(self, update: Update) -> None:
        """Check everything that the next update and a checkpoint would take over.

        Raises:
            Diverged: if a number of it is not finite.
        """
        state = checkpoint.learner_state(self.ppo)
        tensors: list[tuple[str, Tensor]] = list(nonfinite.tensors_of(state, "state"))
        tensors.append(("entropy", update.learned.minibatches.sums.entropy))
        problem = nonfinite.first_nonfinite(tensors)
        if problem is not None:
            raise Diverged(f"{problem} after the update are not finite")

    @turns.given_up()
    def _evaluate(self, task: Task[Any]) -> dict[str, float]:
        """Evaluate the agent, save it if it is the best so far, and log the trial."""
        generators = Generators(self.config.seed, self.config.device)
        evaluation = evaluate(
            task,
            self.ppo.agent,
            generators.stream("validation"),
            policy=self.config.validation.policy,
            actions=generators.stream("validation.actions"),
            log_returns=self.config.task.name == MARKET,
            alpha=self.config.risk.cvar_alpha,
        )
        self.ppo.agent.judged_policy = evaluation.policy
        limit = self.config.evaluated_limit
        is_best = self.records.add_evaluation(self.ppo.update_count, evaluation, limit=limit)
        if is_best:
            self._tell_lineage()
            self.folder.save_best(self.ppo.agent)
        self._callbacks.on_evaluation(
            Evaluated(self.ppo.update_count, self.ppo.steps, evaluation, is_best, self.folder.best)
        )
        return self.records.evaluation_metrics(evaluation)

    def _tell_lineage(self) -> None:
        stages = self.folder.lineage.stages(self.ppo.steps, self.folder.identity["config_hash"])
        self.ppo.agent.lineage = stages

    @turns.given_up()
    def save(self) -> None:
        """Write a checkpoint; a kill from here on loses nothing before it.

        Raises:
            ArtifactError: if the disk refuses; what was saved before is untouched.
        """
        self.records.flush()
        state = {**checkpoint.learner_state(self.ppo), **self.records.state()}
        spec = self.ppo.agent.spec.model_dump(mode="json")
        contents = checkpoint.pack(state, self.config, self.folder.identity, spec)
        path = self.folder.save(self.ppo.steps, contents)
        self._rolled_back_to = None
        self._loggers.send(self.records.metrics)
        self._callbacks.on_checkpoint(Checkpoint(self.ppo.update_count, self.ppo.steps, path))

    def _logger_failed(self, name: str, problem: str) -> None:
        # Not an event of the run: that would be a difference between two equal runs.
        self._log.write("logger-failed", self.ppo.update_count, logger=name, reason=problem)

    def _roll_back(self, reason: str) -> None:
        """Return to the newest generation, or to the one before if that was tried already."""
        steps = self.folder.generations.steps()
        tried = self._rolled_back_to == steps[-1]
        step = steps[-2] if tried and len(steps) > 1 else steps[-1]
        target = Rollback(step, self.records.rollbacks + 1, reason)
        self.folder.save_rollback(target)
        self._log.write("rolled-back", self.ppo.update_count, **target._asdict())
        self.records.close()
        self._load()
        hand_out(self.ppo, self._bound)

    def _give_up(self, problem: str) -> Run:
        """End without saving: the last sound state is on the disk."""
        reason = f"{problem}; the run was rolled back {self.records.rollbacks} times before"
        self._log.write("stopped", self.ppo.update_count, reason=reason)
        return self._ended("stopped", reason)

    def _finish(self) -> Run:
        """Save, and end as finished, interrupted or paused."""
        if self.ppo.steps > self.folder.generations.steps()[-1]:
            self.save()
        status: Status = "finished" if self.done else "interrupted"
        if not self.done and self._signal is None:
            status = "paused"
        if status == "paused" and self._callbacks.stop is not None:
            self._log.write(status, self.ppo.update_count, reason=self._callbacks.stop)
            return self._ended(status, self._callbacks.stop)
        self._log.write(status, self.ppo.update_count)
        return self._ended(status, f"signal {self._signal}" if status == "interrupted" else "")

    def _ended(self, status: Status, reason: str) -> Run:
        best = None if self.records.best_score is None else self.folder.best
        alarms = raised_alarms(self.records.metrics)
        shown = "interrupted" if status == "paused" else status
        ending = Ending(shown, reason, best, self.records.best_score, alarms)
        self._loggers.finish(self.records.metrics, ending)
        self.records.close()
        self._tell_lineage()
        low, high = self.records.best_low, self.records.best_high
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
            best_interval=None if low is None or high is None else (low, high),
            best_episodes=self.records.best_episodes,
            best_policy=self.records.best_policy,
        )
