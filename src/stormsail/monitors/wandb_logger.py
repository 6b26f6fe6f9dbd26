"""A run in W&B: configuration, metrics, alarms, status, and where its best agent lies."""

import os
from collections.abc import Sequence
from typing import Any

from stormsail.core.errors import ConfigError
from stormsail.monitors.loggers import Ending, LoggedRun, Row


class WandbLogger:
    """Logs to W&B, or with `WANDB_MODE=offline` to files that `wandb sync` sends later.

    A run that goes on continues the same W&B run. W&B keeps the first values of a step: what a
    rollback does again is dropped there.

    Args:
        project: of the run; None takes `WANDB_PROJECT`, or `stormsail`.

    Raises:
        ConfigError: if the package is missing.
    """

    name = "wandb"

    def __init__(self, *, project: str | None = None) -> None:
        try:
            import wandb  # noqa: F401 - here, because it takes seconds and few runs need it
        except ImportError as error:
            raise ConfigError(
                "missing-extra",
                wrong="the logger `wandb` needs the package wandb",
                found="no such package in this environment",
                remedy="Run `pip install 'stormsail[wandb]'`, or leave the logger out.",
            ) from error
        self._project = project or os.environ.get("WANDB_PROJECT", "stormsail")
        self._run: Any = None

    def start(self, run: LoggedRun, run_id: str | None) -> str:
        """Begin a run, or continue that with the id; return its id."""
        import wandb

        quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            id=run_id,
            resume=None if run_id is None else "allow",
            config=dict(run.parameters),
            dir=str(run.path),  # its files lie in `wandb` there, not where the command was given
            settings=quiet,
            reinit="create_new",
        )
        self._run.config.update(dict(run.tags), allow_val_change=True)
        return str(self._run.id)

    def write(self, rows: Sequence[Row]) -> None:
        """Add the metrics of some updates; W&B sends them by itself."""
        for step, row in rows:
            self._run.log(row, step=step)

    def finish(self, ending: Ending) -> None:
        """Set the final status; the summary says the alarms and where the best agent lies."""
        summary: dict[str, object] = {
            "status": ending.status,
            "reason": ending.reason,
            "alarms": list(ending.alarms),
        }
        if ending.best_agent is not None:
            summary["best_agent"] = str(ending.best_agent.resolve())
        if ending.best_score is not None:
            summary["best_score"] = ending.best_score
        self._run.summary.update(summary)
        self._run.finish(exit_code=0 if ending.status in {"finished", "interrupted"} else 1)
