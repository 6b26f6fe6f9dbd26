"""What a run writes down beside its checkpoints: metrics, events, alarms, scores.

`metrics.parquet` and `events.jsonl` are functions of what was computed: a run that was killed and
went on has the same bytes as one that was not. What happened to the process, and when, stands in
`process.jsonl`, which is only ever added to.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormsail.algorithms.config import Whole
from stormsail.algorithms.run.evaluate import Judged
from stormsail.algorithms.run.folder import RunFolder
from stormsail.algorithms.update.saved_state import read_state
from stormsail.core.clock import Clock
from stormsail.core.config import Config
from stormsail.core.errors import ArtifactError
from stormsail.core.files.documents import JsonValue
from stormsail.monitors.alarms import Alarm, Alarms
from stormsail.monitors.sinks import EventFile, MetricsFile, TensorBoard

VALIDATION = (
    "validation/best_score",
    "validation/cvar",
    "validation/score",
    "validation/spread",
    "validation/trials",
)
"""Metrics of a look at the agent; NaN in updates without one."""


class RecordState(Config):
    """What resumed records need."""

    rows: Whole = 0
    """Updates in the file of metrics."""
    event_bytes: Whole = 0
    """Length of the file of events."""
    best_score: float | None = None
    """Of the best agent so far."""
    best_breach: float = 0.0
    """By how much that agent's estimated CVaR broke the limit on it; 0 where it kept it."""
    best_sharpe: float | None = None
    """Per bar, of the best agent's episodes; None where it has none."""
    best_bars: Whole = 0
    """Steps that it comes from."""
    trials: Whole = 0
    """Looks at the agent so far."""
    rollbacks: Whole = 0
    """Times that the run was sent back."""


class Records:
    """The files of one run, open for writing.

    Args:
        folder: of the run.
        state: from `state`, to go on from there; None starts new files.
        clock: for the times of events; None writes none.
        tensorboard: whether to write for TensorBoard.

    Raises:
        ArtifactError: if the state is not one of records.
        DataError: if a file is shorter than the state knew, or cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        state: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        tensorboard: bool = False,
    ) -> None:
        saved, self.alarms = RecordState(), Alarms()
        if state is not None:
            saved = read_records(state)
            self.alarms.load_state_dict(state["alarms"])
        self.best_score, self.best_breach = saved.best_score, saved.best_breach
        self.trials = saved.trials
        self.best_sharpe, self.best_bars = saved.best_sharpe, saved.best_bars
        self.rollbacks = saved.rollbacks
        self.metrics = MetricsFile(folder.metrics, rows=saved.rows)
        self.events = EventFile(folder.events, length=saved.event_bytes, clock=clock)
        self.tensorboard: TensorBoard | None = None
        if tensorboard:
            ppo = folder.config.ppo
            first = (saved.rows + 1) * ppo.n_steps * ppo.n_envs
            purge = first if saved.rows else None
            self.tensorboard = TensorBoard(folder.tensorboard, purge_step=purge)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, by part."""
        saved = RecordState(
            rows=len(self.metrics),
            event_bytes=self.events.length,
            best_score=self.best_score,
            best_breach=self.best_breach,
            best_sharpe=self.best_sharpe,
            best_bars=self.best_bars,
            trials=self.trials,
            rollbacks=self.rollbacks,
        )
        return {"records": saved.model_dump(mode="json"), "alarms": self.alarms.state_dict()}

    def measured(self, update: int, values: Mapping[str, float]) -> tuple[str, ...]:
        """Judge the metrics of an update; return the words of the alarms that begin with it."""
        begun: list[Alarm] = self.alarms.check(values)
        for alarm in begun:
            self.event("alarm", update, **alarm.record())
        return tuple(alarm.message for alarm in begun)

    def append(self, steps: int, values: Mapping[str, float]) -> None:
        """Add the row of an update; what was not looked at is NaN."""
        looked = {name: values.get(name, math.nan) for name in VALIDATION}
        row = dict(sorted({**values, **looked}.items()))
        self.metrics.append(row)
        if self.tensorboard is not None:
            self.tensorboard.write(row, step=steps)

    def tried(self, update: int, judged: Judged, *, limit: float | None = None) -> bool:
        """Log a look at the agent as a trial; return whether it is the best so far.

        Args:
            update: after which it was looked at.
            judged: what it earned.
            limit: on its tail. An agent whose estimated CVaR keeps it is better than any whose
                does not, of those that do not the one that is nearer; only then the score decides.
        """
        self.trials += 1
        known, breach = math.isfinite(judged.score), judged.breach(limit)
        better = known and (
            self.best_score is None
            or (-breach, judged.score) > (-self.best_breach, self.best_score)
        )
        if better:
            self.best_score, self.best_breach = judged.score, breach
            self.best_sharpe, self.best_bars = judged.sharpe_per_bar, judged.bars
        self.event(
            "trial",
            update,
            trial=self.trials,
            score=judged.score if known else None,
            spread=judged.spread if math.isfinite(judged.spread) else None,
            episodes=judged.episodes,
            unfinished=judged.unfinished,
            cvar=judged.cvar if math.isfinite(judged.cvar) else None,
            breach=breach if math.isfinite(breach) else None,
            best=better,
        )
        return better

    def event(self, kind: str, update: int, **told: JsonValue) -> None:
        """Write down what happened in the run."""
        self.events.append({"kind": kind, "update": update, **told})

    def flush(self) -> None:
        """Force the metrics to the disk, before a checkpoint counts on them."""
        self.metrics.flush()
        if self.tensorboard is not None:
            self.tensorboard.flush()

    def close(self) -> None:
        """End what TensorBoard still has to write."""
        if self.tensorboard is not None:
            self.tensorboard.close()


class ProcessLog:
    """What happened to the processes of a run: begun, resumed, interrupted, sent back, ended.

    Args:
        path: of the file; a line that a kill cut off is dropped.
        clock: for the times of events; None writes none.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        data = path.read_bytes() if path.is_file() else b""
        self._file = EventFile(path, length=data.rfind(b"\n") + 1, clock=clock)

    def write(self, kind: str, update: int, **told: JsonValue) -> None:
        """Add one line."""
        self._file.append({"kind": kind, "update": update, **told})


def read_records(state: Mapping[str, Any], *, rows: int | None = None) -> RecordState:
    """Return what a checkpoint says of the records, without touching their files.

    Args:
        state: parts of the checkpoint.
        rows: updates that it must have seen; None asks for none in particular.

    Raises:
        ArtifactError: if it says nothing that fits.
    """
    saved = read_state(RecordState, state.get("records"), part="records")
    Alarms().load_state_dict(state.get("alarms"))
    if rows is not None and saved.rows != rows:
        raise ArtifactError(
            "artifact-document",
            wrong=f"the records of a checkpoint must have a row for each of its {rows} updates",
            found=str(saved.rows),
            remedy="Go back to an older generation, or start a new run.",
        )
    return saved
