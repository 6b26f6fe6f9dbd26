"""`stormsail report`: one HTML page about results, to be read anywhere."""

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
    """Write one self-contained page: the verdict first, then what it rests on."""
    from stormsail.core.errors import DataError
    from stormsail.core.files.atomic import make_folders, open_folder, replace_file
    from stormsail.evaluation.report.page import report_page
    from stormsail.evaluation.report.results import names_of, read_results, read_run

    runs = run or []
    trained = [read_run(path, name=name) for path, name in zip(runs, names_of(runs), strict=True)]
    text = report_page(read_results(results), trained).encode("utf-8")
    try:
        make_folders(out.parent)
        with open_folder(out.parent, follow=True) as folder:
            replace_file(folder, out.name, text)
    except OSError as error:
        raise DataError(
            "data-write",
            wrong=f"{out} must be written",
            found=str(error.strerror or error),
            remedy="Pass a path in a folder that may be written to.",
        ) from error
    typer.echo(f"wrote {out} ({len(text) / 1e6:.1f} MB)")
