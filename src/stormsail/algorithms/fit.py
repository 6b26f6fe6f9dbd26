"""Training of the agents of a walk-forward validation: one run for each fold and seed.

A run of a fold is an ordinary run. It uses the bars of its span and no others, chooses its best
agent inside the span, can be interrupted and continued, and is written into the trial ledger of the
workspace. A repeated validation uses its finished runs again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from stormsail.algorithms.callbacks import Progress
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.plugins import bring
from stormsail.algorithms.run.tasks import MARKET, make_task, market_panel
from stormsail.algorithms.run.trials import LEDGER
from stormsail.algorithms.trainer import Run, train
from stormsail.core.clock import Clock
from stormsail.core.errors import ConfigError, StormsailError
from stormsail.core.task import close
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.market.splits import HoledSpan, Span
from stormsail.modules.agent import Agent

OnRun = Callable[[str, Progress], None]
"""Called after each update with the name of the run."""


class Interrupted(KeyboardInterrupt):
    """A training was interrupted and saved; the same call continues it.

    Not a `StormsailError`: a fold that was interrupted has not failed.

    Args:
        run: the interrupted one.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(f"{run.path}: {run.reason}")
        self.signal = run.signal or 0

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, int]]:
        """Pickle message and signal: a worker that was interrupted says so to its parent."""
        return interrupted, (str(self), self.signal)


def interrupted(message: str, number: int) -> Interrupted:
    """Return the exception of something that a signal ended, whose runs have checkpoints."""
    error = Interrupted.__new__(Interrupted, message)
    error.signal = number
    return error


class Fitter:
    """Trains on a span, with everything but span and seed as configured; made by `fitter`.

    Args:
        config: of each training, with its plug-ins.
        workspace: folder of the trial ledger.
        name: of the validation.
        on_progress: called after each update.
        clock: for the times of events; None writes none.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        workspace: Path,
        name: str,
        on_progress: OnRun | None,
        clock: Clock | None,
    ) -> None:
        self._config, self._root = config, workspace / name
        self._on_progress, self._clock = on_progress, clock
        self._numbers: dict[str, dict[Span, int]] = {"fold": {}, "split": {}}
        self.ledger = workspace / LEDGER
        """File of the trials."""
        self.data_hash = market_panel(config).digest()
        """Of the bars of the validation."""

    def __call__(self, _config: ValidationConfig, span: Span, seed: int) -> Agent:
        """Train in the folder of a span and a seed, or use the finished run there."""
        config, out = self.run_of(span, seed)
        return train_agent(
            config,
            out,
            ledger=self.ledger,
            data_hash=self.data_hash,
            on_progress=self._on_progress,
            clock=self._clock,
        )

    def check(self, span: Span) -> None:
        """Refuse a span on which nothing can be trained, without training.

        Raises:
            DataError: if it has too few bars; it names how many are needed.
        """
        close(make_task(during(self._config, span), batch=1, purpose="train"))

    def run_of(self, span: Span, seed: int) -> tuple[TrainConfig, Path]:
        """Return settings and folder of a training; the first call numbers its span."""
        kind = "split" if isinstance(span, HoledSpan) else "fold"
        number = self._numbers[kind].setdefault(span, len(self._numbers[kind]))
        config = during(self._config, span).replace(seed=seed)
        return config, self._root / f"{kind}-{number}-seed-{seed}"


def fitter(
    config: TrainConfig,
    *,
    workspace: Path | str,
    name: str,
    on_progress: OnRun | None = None,
    clock: Clock | None = None,
) -> Fitter:
    """Return what trains on a span, with everything but span and seed as configured.

    Runs lie in `<workspace>/<name>/fold-<k>-seed-<s>`, spans numbered in the order in which they
    are trained first, and in `split-<k>-seed-<s>` where a span has holes. The agent is the best of
    the run's evaluations; without them the last one.

    Args:
        config: of each training. Its bars, between `task.data.start` and `task.data.end`, are
            those of the validation.
        workspace: folder of the trial ledger.
        name: of the validation.
        on_progress: called after each update.
        clock: for the times of events; None writes none.

    Returns:
        A function that raises `StormsailError` where a training kept diverging, which a validation
        counts as failed; `Interrupted` where a signal came; and what `train` raises.

    Raises:
        ConfigError: if the task is not the market.
        DataError: if the bars are not there.
    """
    if config.task.name != MARKET:
        raise ConfigError(
            "config-value",
            wrong=f"`task.name` must be `{MARKET}`, which has bars to walk forward on",
            found=f"`{config.task.name}`",
            remedy="Validate a configuration of the market.",
        )
    return Fitter(
        bring(config), workspace=Path(workspace), name=name, on_progress=on_progress, clock=clock
    )


def train_agent(
    config: TrainConfig,
    out: Path,
    *,
    ledger: Path,
    data_hash: str | None = None,
    on_progress: OnRun | None = None,
    clock: Clock | None = None,
) -> Agent:
    """Train in a folder, or use the finished run there; return the best agent.

    Args:
        config: of the training.
        out: folder of the run.
        ledger: file of the trials.
        data_hash: of the bars of this trial; None takes those of the run.
        on_progress: called after each update with the name of the run.
        clock: for the times of events; None writes none.

    Raises:
        StormsailError: with the code `run-stopped`, if the run kept diverging.
        ConfigError: if the folder holds a run with other settings.
        Interrupted: if a signal came.
        ArtifactError: if the folder or the ledger cannot be used.
        DataError: if the bars do not suffice.
    """
    run = train(
        config,
        out=out,
        on_progress=None if on_progress is None else partial(on_progress, out.name),
        clock=clock,
        ledger=ledger,
        data_hash=data_hash,
    )
    if run.status == "interrupted":
        raise Interrupted(run)
    if run.status == "stopped":
        raise StormsailError(
            "run-stopped",
            wrong=f"the training in {run.path} must finish",
            found=run.reason,
            remedy="Lower `ppo.learning_rate`, and look at what lies in `refused` there.",
        )
    return run.agent.cpu() if run.best_score is None else Agent.load(run.best)


def during(config: TrainConfig, span: Span) -> TrainConfig:
    """Return the configuration of a run on the bars of a span."""
    edges = BacktestConfig().during(span)
    spans = span.without if isinstance(span, HoledSpan) else ()
    holes = [BacktestConfig().during(hole) for hole in spans]
    return config.replace(
        **{
            "task.data.start": edges.start,
            "task.data.end": edges.end,
            "task.data.without": tuple((hole.start, hole.end) for hole in holes),
        }
    )
