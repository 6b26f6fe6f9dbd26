"""What `stormsail validate` shows: how far it is, and what came out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from stormsail.algorithms.trainer import Progress as Learned
    from stormsail.core.clock import Clock
    from stormsail.evaluation.stats.metrics import Metrics
    from stormsail.evaluation.stats.statement import Statement
    from stormsail.evaluation.walk_forward.run import Progress as Begun
    from stormsail.evaluation.walk_forward.run import Validation

SHOWN = {
    "total_return": ("return", "{:+.2%}"),
    "sharpe": ("Sharpe", "{:.2f}"),
    "drawdown": ("deepest fall", "{:.2%}"),
    "cvar": ("CVaR 5 % a bar", "{:.3%}"),
    "turnover": ("turnover a day", "{:.2f}"),
}
"""Figures of the table: metric, title, form."""

MARKS = {True: "yes", False: "NO", None: "unknown"}
"""How a rule that holds, does not hold or is not known is marked."""

_LINE_SECONDS = 5.0
"""Time between two lines where there is no terminal to draw on."""


class Display(Protocol):
    """Whoever shows how far a validation is."""

    def began(self, progress: "Begun") -> None:
        """Show what begins now."""

    def learned(self, run: str, progress: "Learned") -> None:
        """Show how far a training is."""


@contextmanager
def display(clock: "Clock") -> "Iterator[Display]":
    """Show bars on a terminal, and a line now and then elsewhere; all of it on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(clock)
        return
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),  # judging is one step and may take minutes: something must move
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Bars(bars)


class _Lines:
    """A line for each step, and now and then one for a training."""

    def __init__(self, clock: "Clock") -> None:
        self._clock, self._last = clock, clock.monotonic_ns()

    def began(self, progress: "Begun") -> None:
        typer.echo(f"{progress.done + 1} of {progress.total}: {progress.what}", err=True)
        self._last = self._clock.monotonic_ns()

    def learned(self, run: str, progress: "Learned") -> None:
        now = self._clock.monotonic_ns()
        if now - self._last >= _LINE_SECONDS * 1e9:
            self._last = now
            typer.echo(f"{run}: {progress.steps} of {progress.total_steps} steps", err=True)


class _Bars:
    """One bar for the whole, one for the training that goes on."""

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._whole = bars.add_task("starting", total=None)
        self._own = bars.add_task("", total=None, visible=False)

    def began(self, progress: "Begun") -> None:
        self._bars.update(
            self._whole,
            description=progress.what,
            completed=progress.done,
            total=progress.total,
        )
        self._bars.update(self._own, visible=False)

    def learned(self, run: str, progress: "Learned") -> None:
        self._bars.update(
            self._own,
            description=run,
            completed=progress.steps,
            total=progress.total_steps,
            visible=True,
        )


def tell(found: "Validation") -> None:
    """Print the verdict and every reason, then what the verdict is about."""
    verdict = found.verdict
    typer.echo(f"verdict: {verdict.decision}")
    typer.echo(verdict.words)
    _table(
        ("rule", "holds", "why"),
        [(one.name, MARKS[one.holds], one.words) for one in verdict.reasons],
    )
    tests = found.judged.self_tests
    _table(("self-test", "holds", ""), [(one.name, MARKS[one.holds], one.words) for one in tests])
    failed = [run for run in found.runs if run.backtest is None]
    for run in failed:
        typer.echo(f"fold {run.fold.number}, seed {run.seed} failed: {run.reason}")
    measured = found.judged.metrics
    figures = [
        f"{title} {_shown(_statement(measured, name), form)}"
        for name, (title, form) in SHOWN.items()
    ]
    typer.echo(f"{measured.bars:,} unseen bars: {', '.join(figures)}")
    typer.echo(_closed(found))


def _closed(found: "Validation") -> str:
    """Say what became of the final test span."""
    bars = f"final test span of {found.final_bars:,} bars"
    if found.final is not None:
        return f"{bars}: opened, {found.final.verdict.decision}"
    if found.openings:
        return f"{bars}: was opened before ({found.openings})"
    return f"{bars}: closed; --open-test judges it, once"


def _statement(measured: "Metrics", name: str) -> "Statement":
    found: Statement = measured.drawdown.depth if name == "drawdown" else getattr(measured, name)
    return found


def _shown(statement: "Statement", form: str) -> str:
    return "not enough data" if statement.value is None else form.format(statement.value)


def _table(titles: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
