"""`stormsail train`: train in a run folder; the same command continues an interrupted run."""

import logging
import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stormsail.cli.completion import complete_config, complete_setting
from stormsail.cli.output import is_quiet, publish
from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.start.files import CONFIG_HELP, config_file

if TYPE_CHECKING:
    from stormsail.algorithms.callbacks import Progress
    from stormsail.algorithms.config import TrainConfig
    from stormsail.algorithms.trainer import OnProgress, Run
    from stormsail.core.clock import Clock
    from stormsail.core.group import Group

STOPPED = 1
"""Exit status of a run that kept diverging."""

BY_SIGNAL = 128
"""Added to the number of the signal that interrupted a run, as a shell reports it."""

TAIL, QUANTITY = "CVaR", "config/cvar_quantity"
"""Title of the metric that is shown with its quantity, and the metric that names the quantity."""

SHOWN = {
    "return": ("rollout/episode_return_mean", "{:.4g}"),
    "score": ("validation/best_score", "{:.4g}"),
    TAIL: ("train/cvar_empirical", "{:.4g}"),
    "KL": ("train/approx_kl", "{:.4f}"),
    "entropy": ("train/policy_entropy", "{:.3f}"),
    "EV": ("train/explained_variance", "{:.2f}"),
}
"""Metrics in the progress display: title, name, format."""

_LINE_SECONDS = 5.0
"""Time between two lines where there is no terminal to draw on."""


def train(
    config: Annotated[
        Path | None, typer.Argument(help=CONFIG_HELP, autocompletion=complete_config)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: under `runs`.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="path=value, such as ppo.n_envs=8.",
            autocompletion=complete_setting,
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="market, CartPole-v1, gym:<id>, ...; as task.name.")
    ] = None,
    extend_to: Annotated[
        int | None,
        typer.Option(min=1, help="New total of steps of the run in the folder, finished or not."),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", help="Agent or run whose weights and normalisers to begin with."),
    ] = None,
    keep_optimizer: Annotated[
        bool, typer.Option("--keep-optimizer", help="Begin with the optimizer of that run, too.")
    ] = False,
    loggers: Annotated[
        list[str] | None, typer.Option("--logger", help="mlflow or wandb; may be repeated.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Train an agent. Ctrl-C saves and ends; the same command continues from there."""
    from stormsail.algorithms.run.processes import follow
    from stormsail.core.group import join, leave

    load_plugins(plugin)
    group = join()
    if group.rank > 0:
        follow(group)
        leave(group)
        return
    config = None if config is None else config_file(config)
    overrides = [*(settings or []), *([f'task.name="{task}"'] if task else [])]
    chosen = _settings(config, overrides, folder=None if extend_to is None else out)
    if out is None and config is not None:
        out = Path("runs") / config.stem
    chosen = _brought(chosen, out)
    growth = Growth(extend_to, start_from, keep_optimizer)
    done = run(chosen, out, growth, loggers=loggers or [], group=group)
    leave(group)
    finish(done)


def _brought(config: "TrainConfig", out: Path | None) -> "TrainConfig":
    """Run the plug-ins of the settings; ask for those of the run in the folder before any work."""
    from stormsail.algorithms.run.plugins import bring, require_plugins

    config = bring(config)
    if out is not None:
        require_plugins(out)
    return config


class Growth(NamedTuple):
    """What a run grows from or to, as on the command line."""

    extend_to: int | None = None
    start_from: Path | None = None
    keep_optimizer: bool = False


def _settings(config: Path | None, overrides: list[str], *, folder: Path | None) -> "TrainConfig":
    """Return the settings of a file, of the run in a folder, or the defaults; with overrides."""
    from stormsail.algorithms.config import TrainConfig

    if config is not None:
        from stormsail.algorithms.population.config import load_training

        return load_training(config, overrides)
    if folder is not None:
        from stormsail.algorithms.run.folder import read_config

        return read_config(folder, overrides)
    if not overrides:
        raise _nothing_set()
    from stormsail.core.config.overrides import apply_overrides

    return TrainConfig.from_mapping(apply_overrides({}, overrides))


def _nothing_set() -> Exception:
    from stormsail.core.errors import ArgumentError

    return ArgumentError(
        "missing-argument",
        wrong="`stormsail train` must be told what to train",
        found="neither a configuration nor a setting",
        remedy="Write one with `stormsail init bars`, `env` or `demo`, or try "
        "`stormsail train quickstart`.",
    )


NO_GROWTH = Growth()


def run(
    config: "TrainConfig",
    out: Path | None,
    growth: Growth = NO_GROWTH,
    *,
    loggers: Sequence[str] = (),
    group: "Group | None" = None,
) -> "Run":
    """Train under a progress display, with loggers by name."""
    from stormsail.algorithms.trainer import train as learn
    from stormsail.core.clock import SystemClock
    from stormsail.monitors.logger_names import make_logger

    services = [make_logger(name) for name in dict.fromkeys(loggers)]
    clock = SystemClock()
    _show_terms(config)
    _show_compiling(config)
    with kept_words(), _alerts(), _display(clock) as on_progress:
        return learn(
            config,
            out=out,
            on_progress=on_progress,
            clock=clock,
            loggers=services,
            group=group,
            **growth._asdict(),
        )


@contextmanager
def kept_words(beside: str = "") -> Iterator[None]:
    """Say what is kept where Ctrl-C ends a command at once, and exit as a shell reports it.

    Args:
        beside: what is kept beside the training that was ended, if it was one.
    """
    from stormsail.algorithms.fit import Interrupted
    from stormsail.algorithms.trainer import CutShort

    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as ended:
        words = [ended.kept if isinstance(ended, CutShort) else "", beside]
        kept = "; ".join(part for part in words if part)
        typer.echo(f"stormsail: ended at once{': ' * bool(kept)}{kept}.", err=True)
        raise typer.Exit(BY_SIGNAL + signal.SIGINT) from None


def _show_terms(config: "TrainConfig") -> None:
    """Print by which instrument terms the symbols are traded, and which of them are defaults."""
    from stormsail.algorithms.run.tasks import MARKET, instrument_terms
    from stormsail.market.terms import term_lines

    if config.task.name == MARKET:
        for line in term_lines(instrument_terms(config)):
            typer.echo(line)


def _show_compiling(config: "TrainConfig") -> None:
    """Print why nothing happens at first, where nobody asked for it."""
    from stormsail.algorithms.config.derivable import is_open
    from stormsail.algorithms.config.derive import derive

    if is_open(config.compile_update) and derive(config).compile_update:
        typer.echo(
            f"{config.ppo.total_steps:,} steps: the update is compiled first, which takes about "
            "half a minute the first time, some seconds later (`compile_update`)"
        )


class _Echo(logging.Handler):
    """Prints the lines of the package's log, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(self.format(record), err=True)


@contextmanager
def _alerts() -> Iterator[None]:
    """Print warnings of the package, such as the `ALERT:` lines of alarms."""
    log, echo = logging.getLogger("stormsail"), _Echo(logging.WARNING)
    log.addHandler(echo)
    try:
        yield
    finally:
        log.removeHandler(echo)


def finish(done: "Run") -> None:
    """Print how a run ended, and exit with its status."""
    publish(
        run=done.path,
        status=done.status,
        reason=done.reason,
        steps=done.steps,
        updates=done.updates,
        best=None if done.best_score is None else done.best,
        best_score=done.best_score,
        best_interval=done.best_interval,
        best_episodes=done.best_episodes,
        best_policy=done.best_policy,
    )
    typer.echo(f"{done.path}: {done.status} after {done.steps} steps{_best(done)}")
    if done.best_score is not None:
        kept = done.best.is_dir()
        typer.echo(f"best agent: {done.best}" if kept else _lost(done))
    if done.status == "interrupted":
        typer.echo("stormsail: interrupted and saved; the same command goes on.", err=True)
        raise typer.Exit(BY_SIGNAL + (done.signal or 0))
    if done.status == "paused":
        typer.echo(f"stormsail: {done.reason}; the same command goes on.", err=True)
    if done.status == "stopped":
        typer.echo(f"stormsail: {done.reason}.", err=True)
        raise typer.Exit(STOPPED)


def _lost(done: "Run") -> str:
    """Return what is still there where the folder of the best agent was removed."""
    return (
        f"best agent: none in {done.best}, which was removed; a later evaluation writes it again "
        f"only where it scores better. The last state is in {done.path / 'checkpoints'}"
    )


def _best(done: "Run") -> str:
    """Return the best score with its interval, its episodes and the policy that was judged."""
    if done.best_score is None:
        return ""
    between = "{:.4g} to {:.4g}, ".format(*done.best_interval) if done.best_interval else ""
    episodes = f"{done.best_episodes} episode{'s' * (done.best_episodes != 1)}"
    return f", best score {done.best_score:.6g} ({between}{episodes}, {done.best_policy} policy)"


@contextmanager
def _display(clock: "Clock") -> "Iterator[OnProgress]":
    """Show a progress bar on a terminal, and lines elsewhere; nothing with `--quiet`."""
    if is_quiet():
        yield lambda progress: None  # noqa: ARG005 - the shape of a display
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(clock)
        return
    from stormsail.cli.progress import progress_bars

    rate = _Rate(clock)
    with progress_bars(console) as bar:
        shown = bar.add_task("starting", total=None)

        def on_progress(progress: "Progress") -> None:
            speed = rate.of(progress)
            pace = "" if speed is None else f"{speed:,.0f} steps/s  "
            bar.update(
                shown,
                description=f"{pace}{_words(progress)}",
                completed=progress.steps,
                total=progress.total_steps,
            )

        yield on_progress


def _lines(clock: "Clock") -> "OnProgress":
    rate = _Rate(clock)
    last = [clock.monotonic_ns()]

    def on_progress(progress: "Progress") -> None:
        speed, now = rate.of(progress), clock.monotonic_ns()
        ended = progress.steps >= progress.total_steps
        if ended or now - last[0] >= _LINE_SECONDS * 1e9:
            last[0] = now
            parts = [f"{progress.steps} of {progress.total_steps} steps"]
            if speed is not None:  # one update alone has no pace
                left = (progress.total_steps - progress.steps) / speed
                parts += [f"{speed:,.0f} steps/s", f"{left:.0f} s left"]
            parts += [words] if (words := _words(progress)) else []
            typer.echo(", ".join(parts), err=True)

    return on_progress


class _Rate:
    """Steps per second since this process began to train."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._first: tuple[int, int] | None = None

    def of(self, progress: "Progress") -> float | None:
        """Return the pace; None where it is not known yet."""
        now = self._clock.monotonic_ns()
        if self._first is None:
            self._first = (now, progress.steps)
        elapsed, taken = (now - self._first[0]) / 1e9, progress.steps - self._first[1]
        return taken / elapsed if elapsed > 0.0 and taken > 0 else None


def _words(progress: "Progress") -> str:
    """Return the metrics of an update as text, without those not known yet."""
    from stormsail.monitors.alarm_rules import outcomes

    values = dict(progress.metrics)
    if progress.best_score is not None:
        values["validation/best_score"] = progress.best_score
    words = []
    for title, (name, form) in SHOWN.items():
        value = values.get(name, math.nan)
        if not math.isnan(value):
            whose = f" of {outcomes(values)}" if title == TAIL and QUANTITY in values else ""
            words.append(f"{title}{whose} {form.format(value)}")
    return "  ".join(words)
