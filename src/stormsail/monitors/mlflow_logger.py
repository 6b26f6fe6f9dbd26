"""A run in MLflow: parameters, metrics, alarms, status, and where its best agent lies."""

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from stormsail.core.clock import Clock, SystemClock
from stormsail.core.errors import ConfigError
from stormsail.monitors.loggers import Ending, LoggedRun, Row

STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "stopped": "FAILED", "failed": "FAILED"}
"""What MLflow calls the ways in which a run ends."""

_METRICS, _PARAMETERS = 1000, 100
"""Most of each in one call, by MLflow's own limit."""

_TEXT = 500
"""Characters of a parameter that are kept: every version of MLflow takes that many."""

Item = TypeVar("Item")


class MlflowLogger:
    """Logs to the tracking server or store that MLflow is set up for.

    A run that goes on continues the same MLflow run. Its parameters stay those of the start, which
    MLflow never changes.

    Args:
        tracking_uri: of the server or store; None takes MLflow's own (`MLFLOW_TRACKING_URI`).
        experiment: name of the experiment; None takes `MLFLOW_EXPERIMENT_NAME`, or `stormsail`.
        clock: for the times of metrics; None takes the machine's.

    Raises:
        ConfigError: if the package is missing.
    """

    name = "mlflow"

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            import mlflow  # noqa: F401 - here, because it takes seconds and few runs need it
        except ImportError as error:
            raise ConfigError(
                "missing-extra",
                wrong="the logger `mlflow` needs the package mlflow",
                found="no such package in this environment",
                remedy="Run `pip install 'stormsail[mlflow]'`, or leave the logger out.",
            ) from error
        self._uri = tracking_uri
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "stormsail")
        self._clock = clock or SystemClock()
        self._client: Any = None
        self._id = ""

    def start(self, run: LoggedRun, run_id: str | None) -> str:
        """Begin a run, or continue that with the id; return its id."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self._uri)
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self._id = run_id
            return run_id
        tags = {**run.tags, "run_folder": str(run.path.resolve())}
        created = self._client.create_run(self._experiment_id(), run_name=run.name, tags=tags)
        self._id = str(created.info.run_id)
        parameters = [Param(name, str(value)[:_TEXT]) for name, value in run.parameters.items()]
        for part in _parts(parameters, _PARAMETERS):
            self._client.log_batch(self._id, params=part)
        return self._id

    def write(self, rows: Sequence[Row]) -> None:
        """Add the metrics of some updates, many in one call."""
        from mlflow.entities import Metric

        now = self._clock.now_ns() // 1_000_000
        metrics = (
            Metric(name, value, now, step) for step, row in rows for name, value in row.items()
        )
        for part in _parts(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=part)

    def finish(self, ending: Ending) -> None:
        """Set the final status; tags say the reason, the alarms and where the best agent lies."""
        from mlflow.entities import RunTag

        tags = {"status": ending.status, "alarms": " ".join(ending.alarms)}
        if ending.reason:
            tags["reason"] = ending.reason
        if ending.best_agent is not None:
            tags["best_agent"] = str(ending.best_agent.resolve())
        if ending.best_score is not None:
            tags["best_score"] = repr(ending.best_score)
        entries = [RunTag(name, value) for name, value in tags.items()]
        self._client.log_batch(self._id, tags=entries)
        self._client.set_terminated(self._id, status=STATUS[ending.status])

    def _experiment_id(self) -> str:
        existing = self._client.get_experiment_by_name(self._experiment)
        if existing is None:
            return str(self._client.create_experiment(self._experiment))
        return str(existing.experiment_id)


def _parts(items: "Iterator[Item] | list[Item]", size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
