"""Terminal output of `stormsail validate`: progress, verdict and metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from stormsail.cli.judging.backtest import SHOWN
from stormsail.cli.judging.steps_display import LINE_SECONDS, StepBar, StepLines
from stormsail.cli.output import is_quiet

if TYPE_CHECKING:
    from rich import progress as rich_progress

    from stormsail.algorithms.callbacks import Progress as Learned
    from stormsail.algorithms.train_ahead import AheadProgress
    from stormsail.core.clock import Clock
    from stormsail.evaluation.stats.statement import Statement
    from stormsail.evaluation.walk_forward.run import Progress as Begun
    from stormsail.evaluation.walk_forward.run import Validation

MARKS = {True: "yes", False: "NO", None: "unknown"}
"""Mark of a rule that holds, does not hold or is not known."""


@contextmanager
def display(clock: "Clock") -> "Iterator[Display]":
    """Show bars on a terminal, a line now and then elsewhere, on stderr; none with `--quiet`."""
    if is_quiet():
        yield _Nothing()
        return
    from rich.console import Console

    from stormsail.core.steps import watched

    console = Console(stderr=True)
    if not console.is_terminal:
        with watched(StepLines(clock)):
            yield _Lines(clock)
        return
    from rich.progress import TimeElapsedColumn

    from stormsail.cli.progress import progress_bars

    with progress_bars(console, timing=TimeElapsedColumn()) as bars:
        whole = _Bars(bars)
        with watched(StepBar(bars, whole.own)):
            yield whole


class _Nothing:
    """A display that shows nothing."""

    def began(self, progress: "Begun") -> None:
        pass

    def learned(self, run: str, progress: "Learned") -> None:
        pass

    def ahead(self, progress: "AheadProgress") -> None:
        pass


class _Lines:
    """A line for each step, and now and then one for a training."""

    def __init__(self, clock: "Clock") -> None:
        self._clock, self._last = clock, clock.monotonic_ns()

    def began(self, progress: "Begun") -> None:
        typer.echo(f"{progress.done + 1} of {progress.total}: {progress.what}", err=True)
        self._last = self._clock.monotonic_ns()

    def learned(self, run: str, progress: "Learned") -> None:
        self._now_and_then(f"{run}: {progress.steps} of {progress.total_steps} steps")

    def ahead(self, progress: "AheadProgress") -> None:
        self._now_and_then(
            f"{_trained(progress)}: {progress.steps} of {progress.total_steps} steps"
        )

    def _now_and_then(self, line: str) -> None:
        now = self._clock.monotonic_ns()
        if now - self._last >= LINE_SECONDS * 1e9:
            self._last = now
            typer.echo(line, err=True)


class _Bars:
    """One bar for the whole, one for the training that goes on."""

    def __init__(self, bars: "rich_progress.Progress") -> None:
        self._bars = bars
        self._whole = bars.add_task("starting", total=None)
        self.own = bars.add_task("", total=None, visible=False)
        """The bar of what goes on now."""

    def began(self, progress: "Begun") -> None:
        self._bars.update(
            self._whole,
            description=progress.what,
            completed=progress.done,
            total=progress.total,
        )
        self._bars.update(self.own, visible=False)

    def learned(self, run: str, progress: "Learned") -> None:
        self._show(run, progress.steps, progress.total_steps)

    def ahead(self, progress: "AheadProgress") -> None:
        self._show(_trained(progress), progress.steps, progress.total_steps)

    def _show(self, what: str, steps: int, total: int) -> None:
        self._bars.update(self.own, description=what, completed=steps, total=total, visible=True)


Display = _Nothing | _Lines | _Bars
"""Shows what begins (`began`), how far a training is (`learned`), and all of them (`ahead`)."""


def _trained(progress: "AheadProgress") -> str:
    return f"{progress.done} of {progress.total} trainings done"


def print_validation(validation: "Validation") -> None:
    """Print the verdict and every reason, then the self-tests and the main metrics."""
    from stormsail.market.terms import term_lines

    verdict = validation.verdict
    typer.echo(f"verdict: {verdict.decision}")
    typer.echo(verdict.words)
    _table(
        ("rule", "holds", "why"),
        [(reason.name, MARKS[reason.holds], reason.words) for reason in verdict.reasons],
    )
    for condition in verdict.conditions:
        typer.echo(f"condition: {condition.words}")
    tests = validation.judgement.self_tests
    rows = [(test.name, MARKS[test.holds], test.words) for test in tests]
    _table(("self-test", "holds", ""), rows)
    for run in validation.runs:
        if run.backtest is None:
            typer.echo(f"fold {run.fold.number}, seed {run.seed} failed: {run.reason}")
    typer.echo(_policies(validation))
    traded = [run.backtest.notes for run in validation.runs if run.backtest is not None]
    terms = traded[0].get("instruments") if traded else None
    for line in term_lines(terms if isinstance(terms, dict) else {}):
        typer.echo(line)
    for line in validation.judgement.significance.overfitting_words:
        typer.echo(f"{line}; it has no vote")
    if validation.paths is not None:
        typer.echo(f"{validation.paths.words}; they have no vote")
    metrics = validation.judgement.metrics
    statements = metrics.statements()
    figures = [
        f"{title} {_shown(statements[name], form)}"
        for name, (title, form) in SHOWN.items()
        if name != "fees"
    ]
    typer.echo(f"{metrics.bars:,} unseen bars: {', '.join(figures)}")
    typer.echo(_final_span(validation))
    chosen = validation.for_trading
    if chosen is not None:
        typer.echo(
            f"for trading: seed {chosen.seed}, trained on {chosen.fold.train}, with "
            f"{verdict.capital_share:.0%} of the capital"
        )


def _policies(validation: "Validation") -> str:
    """Return by which policies the agents traded."""
    used = [run.backtest.config.policy for run in validation.runs if run.backtest is not None]
    counts = [f"{used.count(name)} {name}" for name in ("greedy", "sampled") if name in used]
    return f"policies of the agents: {', '.join(counts) or 'none'}"


def _final_span(validation: "Validation") -> str:
    """Return whether the final test span was opened, and its verdict."""
    bars = f"final test span of {validation.final_bars:,} bars"
    if validation.final is not None:
        return f"{bars}: opened, {validation.final.verdict.decision}"
    if validation.openings:
        return f"{bars}: was opened before ({validation.openings})"
    return f"{bars}: closed; --open-test judges it, once"


def _shown(statement: "Statement", form: str) -> str:
    return "not enough data" if statement.value is None else form.format(statement.value)


def _table(titles: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> None:
    from rich.console import Console

    from stormsail.cli.tables import Table

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
