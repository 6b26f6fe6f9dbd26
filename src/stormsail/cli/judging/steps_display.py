"""Steps of a backtest or of a judgement on the terminal: a bar there, lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from stormsail.cli.output import is_quiet

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from stormsail.core.clock import Clock

LINE_SECONDS = 5.0
"""Time between two lines about one step."""


class StepLines:
    """A line where a step begins, and one now and then while it goes on."""

    def __init__(self, clock: "Clock") -> None:
        self._clock, self._what = clock, ""
        self._last = clock.monotonic_ns()

    def began(self, what: str) -> None:
        """Print the step."""
        self._what = what
        self._print(what)

    def advanced(self, done: int, total: int, unit: str) -> None:
        """Print how far it is, at most every five seconds."""
        if self._clock.monotonic_ns() - self._last >= LINE_SECONDS * 1e9:
            self._print(f"{self._what}: {done:,} of {total:,} {unit}")

    def _print(self, line: str) -> None:
        self._last = self._clock.monotonic_ns()
        typer.echo(line, err=True)


class StepBar:
    """One bar for the step that goes on."""

    def __init__(self, bars: "Progress", task: "TaskID") -> None:
        self._bars, self._task = bars, task

    def began(self, what: str) -> None:
        """Show the step, without a length."""
        self._bars.update(self._task, description=what, completed=0, total=None, visible=True)

    def advanced(self, done: int, total: int, unit: str) -> None:  # noqa: ARG002 - a bar has no unit
        """Fill the bar."""
        self._bars.update(self._task, completed=done, total=total)


@contextmanager
def shown_steps(clock: "Clock") -> Iterator[None]:
    """Show the steps of what is computed inside, on stderr; nothing with `--quiet`."""
    if is_quiet():
        yield
        return
    from rich.console import Console

    from stormsail.core.steps import watched

    console = Console(stderr=True)
    if not console.is_terminal:
        with watched(StepLines(clock)):
            yield
        return
    from rich.progress import TimeElapsedColumn

    from stormsail.cli.progress import progress_bars

    with (
        progress_bars(console, timing=TimeElapsedColumn()) as bars,
        watched(StepBar(bars, bars.add_task("", total=None))),
    ):
        yield
