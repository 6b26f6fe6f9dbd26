"""Configuration files that a command line names: by path, or by the name of a shipped one."""

from pathlib import Path

CONFIG_HELP = "TOML file with the settings, or the name of a shipped one."
"""Of the argument of every command that takes a configuration."""


def config_file(path: Path) -> Path:
    """Return the file that is meant.

    Raises:
        ConfigError: if there is no such file and no shipped configuration of that name.
    """
    from stormsail.core.errors import ConfigError, nearest
    from stormsail.core.shipped import located, shipped

    file = located(path)
    if file.exists() or path.suffix:  # what else is wrong with a file is said by its reader
        return file
    near = nearest(str(path), shipped())
    raise ConfigError(
        "config-unreadable",
        wrong=f"`{path}` must be a file or the name of a shipped configuration",
        found="neither",
        remedy=(f"Did you mean `{near}`? " if near else "")
        + "`stormsail configs` lists them, `stormsail init` writes one.",
    )
