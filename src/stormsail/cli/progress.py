"""Progress bars that keep bar, share and time left on a narrow terminal; the words give way."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

BAR = 16
"""Columns of a bar."""


def progress_bars(console: "Console", *, timing: "ProgressColumn | None" = None) -> "Progress":
    """Return progress bars: bar, share, time, and what is left of the line for words.

    Args:
        console: to draw on.
        timing: column of the time; None shows the time left.
    """
    from rich import table as rich_table
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    words = rich_table.Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        BarColumn(bar_width=BAR, table_column=rich_table.Column(min_width=BAR, no_wrap=True)),
        TaskProgressColumn(table_column=rich_table.Column(min_width=4, no_wrap=True)),
        timing or TimeRemainingColumn(table_column=rich_table.Column(min_width=7, no_wrap=True)),
        TextColumn("{task.description}", table_column=words),
        console=console,
        transient=True,
        expand=True,
    )
