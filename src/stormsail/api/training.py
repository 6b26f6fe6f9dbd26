"""`ss.train`: train by settings, file or configuration, and get the run with its best agent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormsail.algorithms import Callback, TrainConfig
from stormsail.algorithms.trainer import Run as BaseRun
from stormsail.algorithms.trainer import train as learn
from stormsail.api.agent import Agent
from stormsail.api.environments import Environment, task_name
from stormsail.api.settings import changed, check_clock, dotted, training_config
from stormsail.core.arguments import check_flag, wrong_type
from stormsail.core.clock import Clock, SystemClock
from stormsail.core.errors import ArgumentError
from stormsail.core.files.paths import given_path
from stormsail.core.notebook import html_table, short_repr
from stormsail.evaluation.saved import column, read_run
from stormsail.monitors import MetricsLogger


class Run(BaseRun):
    """A training run: its folder, how it ended, its metrics and its best agent."""

    @property
    def folder(self) -> Path:
        """Folder of the run, as `path`."""
        return self.path

    @property
    def best_agent(self) -> Agent:
        """The agent with the best evaluation so far, read from `best`.

        Raises:
            ArtifactError: if none was evaluated yet.
        """
        return Agent.load(self.path, device=self.config.device)

    @property
    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Metrics of every update by name, NaN where one was not measured (docs/metrics.md)."""
        table = read_run(self.path, name=self.path.name).metrics
        return {name: column(table, name) for name in table.column_names}

    def _shown(self) -> dict[str, object]:
        best = "none yet"
        if self.best_score is not None:
            interval = self.best_interval
            ends = "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}, "
            best = f"{self.best_score:.6g} ({ends}{self.best_episodes} episodes)"
        return {
            "folder": self.path,
            "task": self.config.task.name,
            "status": f"{self.status}{', ' * bool(self.reason)}{self.reason}",
            "updates": self.updates,
            "steps": f"{self.steps:,}",
            "best score": best,
        }

    def __repr__(self) -> str:
        return short_repr("Run", self._shown())

    def _repr_html_(self) -> str:
        return html_table("Run", self._shown())


def train(
    config: TrainConfig | Path | str | None = None,
    *,
    env: Environment | None = None,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[MetricsLogger] = (),
    extend_to: int | None = None,
    start_from: Path | str | None = None,
    keep_optimizer: bool = False,
    tensorboard: bool = True,
    clock: Clock | None = None,
    **settings: object,
) -> Run:
    """Train an agent, or continue a run that was interrupted or stopped: the same call does both.

    Args:
        config: a configuration, the path of a TOML file, or the folder of a run, which goes on;
            None takes the defaults, of which `env` or settings must change something.
        env: instead of `task.name`: id of an environment, an environment, of which copies are
            made, or a function that returns a new one.
        out: folder of the run; None takes that of the run that goes on, `runs/<name of the file>`,
            or a name made of task and settings, so that equal calls find their own run again.
        callbacks: told of updates, evaluations and checkpoints; they may stop the run.
        loggers: services that show the run, such as `stormsail.monitors.MlflowLogger()`.
        extend_to: new total of steps of the run in the folder, finished or not.
        start_from: agent or run whose weights and normalisers a new run begins with.
        keep_optimizer: begin with the optimizer of that run as well.
        tensorboard: whether to write for TensorBoard.
        clock: for the times of events; None takes the system's.
        **settings: changes of the configuration. A section is a dictionary of what changes in it,
            `ppo={"n_envs": 8}`; dotted names do, too, `**{"ppo.n_envs": 8}` (docs/config.md).

    Raises:
        ConfigError: if a setting is unknown or does not fit, or the folder holds a run with other
            settings.
        ArgumentError: if nothing says what to train, `env` is no environment or stands beside
            `task.name`, a callback is none, or an argument has another type.
        ArtifactError: if the folder is in use, foreign, damaged or cannot be written.
        DataError: if bars are missing, or the environment gives what is none of its spaces.
    """
    _check_subject(config, env, settings)
    _check_callbacks(callbacks)
    services = _listed_loggers(loggers)
    check_flag(keep_optimizer, name="keep_optimizer")
    check_flag(tensorboard, name="tensorboard")
    if clock is not None:
        check_clock(clock)
    chosen = training_config(config, settings)
    if env is not None:
        chosen = changed(chosen, {"task.name": task_name(env)})
    if out is not None:
        out = given_path(out, name="out")
    elif isinstance(config, str | Path):
        out = config if Path(config).is_dir() else Path("runs") / Path(config).stem
    done = learn(
        chosen,
        out=out,
        callbacks=callbacks,
        loggers=services,
        extend_to=extend_to,
        start_from=None if start_from is None else given_path(start_from, name="start_from"),
        keep_optimizer=keep_optimizer,
        tensorboard=tensorboard,
        clock=SystemClock() if clock is None else clock,
    )
    values = {field.name: getattr(done, field.name) for field in fields(done)}
    return Run(**values | {"agent": Agent.of(done.agent)})


def _check_subject(config: object, env: Environment | None, settings: Mapping[str, object]) -> None:
    """Refuse a call that names nothing to train, or two environments.

    Raises:
        ArgumentError: if it is one.
    """
    if config is None and env is None and not settings:
        raise ArgumentError(
            "missing-argument",
            wrong="`ss.train` must be told what to train",
            found="neither a configuration, nor an environment, nor a setting",
            remedy='Write for example `ss.train("my.toml")` or `ss.train(env="CartPole-v1")`.',
        )
    if env is not None and "task.name" in dotted(settings):
        raise ArgumentError(
            "config-inconsistent",
            wrong="the environment of a training must be named once",
            found="`env` beside `task.name`",
            remedy="Leave one of them out.",
        )


def _check_callbacks(callbacks: object) -> None:
    """Refuse callbacks that are no list.

    Raises:
        ArgumentError: if they are none.
    """
    if not isinstance(callbacks, Iterable):
        raise ArgumentError(
            "callback-form",
            wrong="`callbacks` must be a list of callbacks",
            found=f"a value of the type {type(callbacks).__name__}",
            remedy="Write `callbacks=[Mine()]`.",
        )


def _listed_loggers(loggers: object) -> list[MetricsLogger]:
    """Return the loggers of a call.

    Raises:
        ArgumentError: if they are no list of services.
    """
    must, remedy = "a list of loggers", "Write for example `loggers=[MlflowLogger()]`."
    if isinstance(loggers, str | bytes) or not isinstance(loggers, Iterable):
        raise wrong_type(loggers, name="loggers", must=must, remedy=remedy)
    listed = list(loggers)
    for logger in listed:
        if isinstance(logger, type) or not all(hasattr(logger, part) for part in _LOGGER):
            raise wrong_type(logger, name="loggers", must=must, remedy=remedy)
    return listed


_LOGGER = ("name", "start", "write", "finish")
"""What a `MetricsLogger` has."""
