"""`stormsail resume`: continue a run from its folder alone."""

from pathlib import Path
from typing import Annotated

import typer

from stormsail.cli.completion import complete_setting
from stormsail.cli.plugins import Plugins, load_plugins


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="path=value; only what is kept on the disk may change.",
            autocompletion=complete_setting,
        ),
    ] = None,
    extend_to: Annotated[
        int | None,
        typer.Option(
            min=1, help="New total of steps; then --set may change the learning rate, too."
        ),
    ] = None,
    loggers: Annotated[
        list[str] | None,
        typer.Option("--logger", help="mlflow or wandb; continues its run, may be repeated."),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Continue a run from its last checkpoint.

    A run that was begun with plug-ins is given them again; they must be the same files.
    """
    load_plugins(plugin)
    from stormsail.algorithms.run.folder import read_config
    from stormsail.algorithms.run.plugins import bring, require_plugins
    from stormsail.cli.learning.train import Growth, finish, run

    chosen = bring(read_config(folder, settings or []))
    require_plugins(folder)
    finish(run(chosen, folder, Growth(extend_to), loggers=loggers or []))
