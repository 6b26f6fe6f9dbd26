"""Files of a run beside its checkpoints: metrics, events, alarms, evaluation scores.

`metrics.parquet` and `events.jsonl` are functions of the computation: a run that was killed and
resumed has the same bytes as one that was not. What happened to the process, and when, stands in
`process.jsonl`, which only grows.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormsail import __version__
from stormsail.algorithms.config import Whole
from stormsail.algorithms.run.evaluate import Evaluation
from stormsail.algorithms.run.folder import RunFolder
from stormsail.core.clock import Clock
from stormsail.core.config import Config
from stormsail.core.errors import ArtifactError
from stormsail.core.files.documents import JsonValue
from stormsail.modules.agent import JudgedPolicy
from stormsail.monitors.alarms import Alarm, Alarms, warn
from stormsail.monitors.loggers import LoggedRun, flattened
from stormsail.monitors.sinks import EventFile, MetricsFile, TensorBoard

EVALUATION = (
    "validation/best_score",
    "validation/cvar",
    "validation/greedy_worse",
    "validation/policy_gap",
    "validation/policy_p",
    "validation/score",
    "validation/score_greedy",
    "validation/score_high",
    "validation/score_low",
    "validation/score_sampled",
    "validation/spread",
    "validation/trials",
)
"""Metrics of an evaluation; NaN in updates without one."""


class RecordState(Config):
    """Saved state of the records."""

    rows: Whole = 0
    """Rows of the metrics file."""
    skipped: Whole = 0
    """Updates without a row: they are those of another run whose state was taken over."""
    event_bytes: Whole = 0
    """Length of the events file."""
    best_score: float | None = None
    """Score of the best agent so far."""
    best_low: float | None = None
    """Lower end of the 95 % interval of that score; None where it has none."""
    best_high: float | None = None
    """Upper end."""
    best_episodes: Whole = 0
    """Episodes of that agent's evaluation."""
    best_policy: JudgedPolicy = "greedy"
    """Policy by which that agent was judged."""
    policy: JudgedPolicy | None = None
    """Policy that was judged in the last evaluation; None before the first."""
    best_breach: float = 0.0
    """By how much that agent's estimated CVaR broke the limit; 0 where it kept it."""
    best_sharpe: float | None = None
    """Sharpe ratio per bar of that agent's evaluation; None where it has none."""
    best_bars: Whole = 0
    """Steps in that ratio."""
    trials: Whole = 0
    """Evaluations so far."""
    rollbacks: Whole = 0
    """Rollbacks of the run."""


class Records:
    """The files of one run, open for writing.

    Args:
        folder: of the run.
        state: from `state`, to continue from there; None starts new files.
        clock: for the times of events; None writes none.
        tensorboard: whether to write for TensorBoard.

    Raises:
        ArtifactError: if the state is not one of records.
        DataError: if a file is shorter than the state says, or cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        state: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        tensorboard: bool = False,
    ) -> None:
        self.name = folder.path.name
        saved, self.alarms = RecordState(), Alarms()
        if state is not None:
            saved = read_records(state)
            self.alarms.load_state_dict(state["alarms"])
        self.best_score, self.best_breach = saved.best_score, saved.best_breach
        self.best_low, self.best_high = saved.best_low, saved.best_high
        self.best_episodes, self.best_policy = saved.best_episodes, saved.best_policy
        self.trials, self.policy = saved.trials, saved.policy
        self.best_sharpe, self.best_bars = saved.best_sharpe, saved.best_bars
        self.rollbacks, self.skipped = saved.rollbacks, saved.skipped
        self.metrics = MetricsFile(folder.metrics, rows=saved.rows)
        self.events = EventFile(folder.events, length=saved.event_bytes, clock=clock)
        self.tensorboard: TensorBoard | None = None
        if tensorboard:
            ppo = folder.config.ppo
            first = (saved.rows + saved.skipped + 1) * ppo.n_steps * ppo.n_envs
            purge = first if saved.rows else None
            self.tensorboard = TensorBoard(folder.tensorboard, purge_step=purge)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, by part."""
        saved = RecordState(
            rows=len(self.metrics),
            event_bytes=self.events.length,
            best_score=self.best_score,
            best_low=self.best_low,
            best_high=self.best_high,
            best_episodes=self.best_episodes,
            best_policy=self.best_policy,
            policy=self.policy,
            best_breach=self.best_breach,
            best_sharpe=self.best_sharpe,
            best_bars=self.best_bars,
            trials=self.trials,
            rollbacks=self.rollbacks,
            skipped=self.skipped,
        )
        return {"records": saved.model_dump(mode="json"), "alarms": self.alarms.state_dict()}

    def measured(self, update: int, values: Mapping[str, float]) -> tuple[str, ...]:
        """Check the metrics of an update; return the messages of the alarms that begin with it.

        Each becomes an event and a warning in the log of the package.
        """
        begun: list[Alarm] = self.alarms.check(values)
        for alarm in begun:
            self.event("alarm", update, **alarm.record())
            warn(f"{self.name}, update {update}: {alarm.message} [{alarm.name}]")
        return tuple(alarm.message for alarm in begun)

    def append(self, steps: int, values: Mapping[str, float]) -> None:
        """Add the row of an update that was checked, with a number for each alarm.

        Metrics of an evaluation are NaN without one.
        """
        evaluated = {name: values.get(name, math.nan) for name in EVALUATION}
        alarms = self.alarms.scalars(values)
        row = dict(sorted({**values, **evaluated, **alarms}.items()))
        self.metrics.append(row)
        if self.tensorboard is not None:
            self.tensorboard.write(row, step=steps)

    def add_evaluation(
        self, update: int, evaluation: Evaluation, *, limit: float | None = None
    ) -> bool:
        """Log an evaluation as a trial; return whether the agent is the best so far.

        Args:
            update: number of the update.
            evaluation: its result.
            limit: on CVaR. An agent whose estimated CVaR keeps it is better than any whose does
                not, of those that do not the one that is nearer; only then the score decides.
        """
        self.trials += 1
        self.policy = evaluation.policy
        known, breach = math.isfinite(evaluation.score), evaluation.breach(limit)
        better = known and (
            self.best_score is None
            or (-breach, evaluation.score) > (-self.best_breach, self.best_score)
        )
        if better:
            self.best_score, self.best_breach = evaluation.score, breach
            self.best_low, self.best_high = _finite(evaluation.low), _finite(evaluation.high)
            self.best_episodes, self.best_policy = evaluation.episodes, evaluation.policy
            self.best_sharpe, self.best_bars = evaluation.sharpe_per_bar, evaluation.bars
        self.event(
            "trial",
            update,
            trial=self.trials,
            score=_finite(evaluation.score),
            score_low=_finite(evaluation.low),
            score_high=_finite(evaluation.high),
            spread=_finite(evaluation.spread),
            episodes=evaluation.episodes,
            unfinished=evaluation.unfinished,
            policy=evaluation.policy,
            score_greedy=_finite(evaluation.greedy_score),
            score_sampled=_finite(evaluation.sampled_score),
            policy_p=_finite(evaluation.policy_p),
            cvar=_finite(evaluation.cvar),
            breach=_finite(breach),
            best=better,
        )
        return better

    def evaluation_metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the metrics of an evaluation that was added."""
        best, both = self.best_score, not math.isnan(evaluation.policy_p)
        return {
            "validation/score": evaluation.score,
            "validation/score_low": evaluation.low,
            "validation/score_high": evaluation.high,
            "validation/score_greedy": evaluation.greedy_score,
            "validation/score_sampled": evaluation.sampled_score,
            "validation/policy_gap": evaluation.policy_gap,
            "validation/policy_p": evaluation.policy_p,
            "validation/greedy_worse": float(evaluation.greedy_is_worse) if both else math.nan,
            "validation/spread": evaluation.spread,
            "validation/cvar": evaluation.cvar,
            "validation/best_score": evaluation.score if best is None else best,
            "validation/trials": float(self.trials),
        }

    def event(self, kind: str, update: int, **fields: JsonValue) -> None:
        """Append an event of the run."""
        self.events.append({"kind": kind, "update": update, **fields})

    def flush(self) -> None:
        """Write the metrics to the disk, before a checkpoint relies on them."""
        self.metrics.flush()
        if self.tensorboard is not None:
            self.tensorboard.flush()

    def close(self) -> None:
        """Close the TensorBoard writer."""
        if self.tensorboard is not None:
            self.tensorboard.close()


def _finite(value: float) -> float | None:
    """Return a number as JSON holds it, None where it is not finite."""
    return value if math.isfinite(value) else None


class ProcessLog:
    """Log of the processes of a run: started, resumed, interrupted, rolled back, ended.

    Args:
        path: of the file; a line that a kill cut off is dropped.
        clock: for the times of events; None writes none.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        data = path.read_bytes() if path.is_file() else b""
        self._file = EventFile(path, length=data.rfind(b"\n") + 1, clock=clock)

    def write(self, kind: str, update: int, **fields: JsonValue) -> None:
        """Add one line."""
        self._file.append({"kind": kind, "update": update, **fields})


def read_records(state: Mapping[str, Any], *, rows: int | None = None) -> RecordState:
    """Return the saved state of the records in a checkpoint, without touching their files.

    Args:
        state: parts of the checkpoint.
        rows: number of updates that it must hold; None checks no number.

    Raises:
        ArtifactError: if the state is missing or does not fit.
    """
    saved = RecordState.from_state(state.get("records"), part="records")
    Alarms().load_state_dict(state.get("alarms"))
    if rows is not None and saved.rows + saved.skipped != rows:
        raise ArtifactError(
            "artifact-document",
            wrong=f"the records of a checkpoint must have a row for each of its {rows} updates",
            found=str(saved.rows),
            remedy="Go back to an older generation, or start a new run.",
        )
    return saved


def introduced(folder: RunFolder) -> LoggedRun:
    """Return a run as its loggers show it."""
    config = folder.config
    tags = {"stormsail": __version__, "task": config.task.name, "seed": str(config.seed)}
    return LoggedRun(
        name=folder.path.name,
        path=folder.path,
        parameters=flattened(config.model_dump(mode="json")),
        tags={**tags, "config_hash": config.config_hash()},
    )
