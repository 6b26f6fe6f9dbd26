"""`stormsail report`: write one HTML page about backtests and validations."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[
        list[Path],
        typer.Argument(help="Folders of backtests or validations; several side by side."),
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write; replaced where it exists.")],
    run: Annotated[
        list[Path] | None, typer.Option(help="Folder of a training, for its curves and alarms.")
    ] = None,
) -> None:
    """Write one self-contained page: the verdict first, then metrics, charts and evidence."""
    from stormsail.evaluation.report.html import write_page
    from stormsail.evaluation.report.page import report_page
    from stormsail.evaluation.saved import names_of, read_results, read_run

    runs = run or []
    trained = [read_run(path, name=name) for path, name in zip(runs, names_of(runs), strict=True)]
    size = write_page(out, report_page(read_results(results), trained))
    typer.echo(f"wrote {out} ({size / 1e6:.1f} MB)")
