"""The option `--plugin`, the same for every command that needs it."""

from typing import Annotated

import typer

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py|MODULE",
        help="Your own features, rewards, tasks, ...: a file or module to run; may be repeated.",
    ),
]


def load_plugins(names: list[str] | None) -> None:
    """Run the plug-ins that the command line names.

    Raises:
        ConfigError: if one cannot be read or run, or registers nothing.
        ArgumentError: if a name that it registers is taken.
    """
    if names:
        from stormsail.core.plugins import load

        load(names)
