"""`stormsail report`: one HTML page about results, populations, searches and runs."""

from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of backtests or validations, several side by side; of populations, "
            "searches or runs; beside any of these, of attacks."
        ),
    ],
    out: Annotated[Path, typer.Option(callback=checked_output, help="HTML file to write.")],
    run: Annotated[
        list[Path] | None, typer.Option(help="Folder of a training, for its curves and alarms.")
    ] = None,
) -> None:
    """Write one self-contained page: the verdict first, then metrics, charts and evidence."""
    from stormsail.evaluation.report.folders import report_of
    from stormsail.evaluation.report.html import write_page

    size = write_page(out, report_of(results, run or []))
    publish(out=out, bytes=size)
    typer.echo(f"wrote {out} ({size / 1e6:.1f} MB)")
