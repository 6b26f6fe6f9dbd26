"""`stormsail compare`: print runs, backtests or validations side by side, with warnings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from stormsail.evaluation.compare.compare import Comparison
    from stormsail.evaluation.compare.rows import Row

_SAME = {True: "same", False: "≠", None: ""}

HASH_SHOWN = 12
"""Characters of a hash in the terminal."""


def compare(
    folders: Annotated[
        list[Path], typer.Argument(help="Runs, backtests or validations, at least two.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(callback=checked_output, help="Also write a page, such as page.html."),
    ] = None,
) -> None:
    """Compare runs, backtests or validations; what must not be compared comes first."""
    from rich.console import Console

    from stormsail.evaluation.compare.compare import compare_results
    from stormsail.evaluation.compare.page import comparison_page
    from stormsail.evaluation.report.html import write_page

    compared = compare_results(folders)
    publish(
        names=compared.names,
        comparable=compared.comparable,
        caveats=compared.caveats,
        verdicts={e.name: e.verdict.decision for e in compared.entries if e.verdict is not None},
        figures=compared.figures,
        findings=compared.findings,
        settings=compared.settings,
        hashes=compared.hashes,
        out=out,
    )
    console = Console(highlight=False)
    _warn(console, compared)
    _verdicts(console, compared)
    _figures(console, compared)
    for words in compared.findings:
        _say(console, words)
    _show(console, "settings that differ", compared, compared.settings)
    hashes = [
        (row.name, [cell and cell[:HASH_SHOWN] for cell in row.cells], _SAME[row.same])
        for row in compared.hashes
    ]
    _table(console, "hashes", ("", *compared.names, ""), [(name, *c, m) for name, c, m in hashes])
    if out is not None:
        write_page(out, comparison_page(compared))
        _say(console, f"wrote {out}")


def _warn(console: "Console", compared: "Comparison") -> None:
    """Print what differs that figures depend on, and the notes of each entry."""
    if compared.comparable:
        _say(console, "figures may be compared: same bars, same costs, same rules")
    else:
        _say(console, "figures marked ≠ must not be compared:")
    for caveat in compared.caveats:
        _say(console, f"! {caveat.words}")
    for entry in compared.entries:
        for words in entry.notes:
            _say(console, f"{entry.name}: {words}")


def _verdicts(console: "Console", compared: "Comparison") -> None:
    for entry in compared.entries:
        if entry.verdict is not None:
            _say(console, f"{entry.name}: {entry.verdict.decision}. {entry.verdict.words}")
    _show(console, "verdicts", compared, compared.reasons)


def _figures(console: "Console", compared: "Comparison") -> None:
    from stormsail.evaluation.compare.page import BETTER
    from stormsail.evaluation.compare.rows import FIGURES

    rows = [
        (
            f"{FIGURES[row.name].title} ≠" if row.spoiled else FIGURES[row.name].title,
            *(
                f"{cell} {BETTER}" if place == row.best else cell
                for place, cell in enumerate(row.cells)
            ),
        )
        for row in compared.figures
    ]
    _table(console, "figures", ("", *compared.names), rows, justify="right")


def _show(console: "Console", title: str, compared: "Comparison", rows: "Iterable[Row]") -> None:
    cells = [(row.name, *row.cells) for row in rows]
    if cells:
        _table(console, title, ("", *compared.names), cells)


def _table(
    console: "Console",
    title: str,
    titles: "Sequence[str]",
    rows: "Iterable[Sequence[str | None]]",
    *,
    justify: "Literal['left', 'right']" = "left",
) -> None:
    from rich.text import Text

    from stormsail.cli.tables import Table

    table = Table(title=title, title_justify="left")
    for place, name in enumerate(titles):
        table.add_column(Text(name), justify=justify if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else cell) for cell in row))
    console.print(table)


def _say(console: "Console", words: str) -> None:
    """Print one line as it is: square brackets in it mean nothing, and it is not broken."""
    console.print(words, markup=False, soft_wrap=True)
