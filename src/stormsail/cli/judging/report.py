"""`stormsail report`: write one HTML page about backtests, validations and populations."""

from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output, with_force


@with_force
def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of backtests or validations, several side by side; of populations; "
            "beside any of these, of attacks."
        ),
    ],
    out: Annotated[Path, typer.Option(callback=checked_output, help="HTML file to write.")],
    run: Annotated[
        list[Path] | None, typer.Option(help="Folder of a training, for its curves and alarms.")
    ] = None,
) -> None:
    """Write one self-contained page: the verdict first, then metrics, charts and evidence."""
    from stormsail.evaluation.attack.files import KIND
    from stormsail.evaluation.populations import is_population, read_population
    from stormsail.evaluation.report.html import write_page
    from stormsail.evaluation.report.page import report_page
    from stormsail.evaluation.saved import kind_of, names_of, read_attack, read_results, read_run

    runs = run or []
    trained = [read_run(path, name=name) for path, name in zip(runs, names_of(runs), strict=True)]
    forged = [path for path in results if kind_of(path) == KIND]
    attacks = [read_attack(*pair) for pair in zip(forged, names_of(forged), strict=True)]
    bred = [path for path in results if is_population(path)]
    populations = [read_population(*pair) for pair in zip(bred, names_of(bred), strict=True)]
    judged = read_results([path for path in results if path not in (*forged, *bred)])
    size = write_page(out, report_page(judged, trained, attacks, populations))
    publish(out=out, bytes=size)
    typer.echo(f"wrote {out} ({size / 1e6:.1f} MB)")
