"""Plug-ins of a training: those that its settings name, those that it uses, those of its folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from stormsail.algorithms.config import TrainConfig
from stormsail.core import plugins
from stormsail.core.errors import ConfigError
from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.regular import open_regular
from stormsail.modules.agent import PLUGINS
from stormsail.modules.config import MLP

MANIFEST = "manifest.json"
_BOUND = f"bound_{PLUGINS}"
_MAX_BYTES = 1 << 24

Settings = TypeVar("Settings", bound=TrainConfig)


def bring(config: Settings, more: Iterable[str] = ()) -> Settings:
    """Run the plug-ins that settings of the user name, and more; return the settings without them.

    Raises:
        ConfigError: if one cannot be read or run.
        ArgumentError: if a name that it registers is taken.
    """
    plugins.load((*config.plugins, *more))
    return config.replace(plugins=()) if config.plugins else config


def load_saved(kind: type[Settings], path: Path | str, overrides: Iterable[str] = ()) -> Settings:
    """Return settings that were saved with a run or a population, with overrides of the user.

    Raises:
        ConfigError: if they cannot be read; or if the file itself names plug-ins, which none that
            this package saves does: a file that only saved settings name is never run.
    """
    saved = kind.load(path)
    if saved.plugins:
        raise not_run(path, saved.plugins)
    return kind.load(path, overrides) if overrides else saved


def not_run(path: Path | str, names: Iterable[str]) -> ConfigError:
    """Return the refusal of saved settings that name plug-ins."""
    files = " ".join(plugins.option(Path(name).name) for name in names)
    return ConfigError(
        "plugin-file",
        wrong=f"the saved settings in {path} must name no plug-in: a file that only they name is "
        "not run",
        found=", ".join(f"`{name}`" for name in names),
        remedy=f"Remove the line, and name the files yourself: `{files}`.",
    )


def require_plugins(folder: Path) -> None:
    """Refuse to go on with the run in a folder without the plug-ins that it was begun with.

    Raises:
        ArtifactError: if one is not loaded, or another.
    """
    plugins.require(_bound(folder), owner=f"the run in {folder}")


def bound_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the plug-ins that the run in a folder was begun with.

    Raises:
        ArtifactError: if its manifest has entries that name none.
    """
    return plugins.files_of(_bound(folder), owner=f"the run in {folder}")


def _bound(folder: Path) -> JsonValue:
    """Return the plug-ins in the manifest of a run; what is wrong with it is told elsewhere."""
    try:
        with open_regular(folder / MANIFEST) as file:
            saved = documents.decode(file.read(_MAX_BYTES))
    except (OSError, DocumentError):
        return None
    return saved.get(_BOUND) if isinstance(saved, dict) else None


def used_by(config: TrainConfig, features: Iterable[str] = ()) -> dict[str, JsonValue]:
    """Return the entry of a binding for what of plug-ins a training uses; empty for nothing.

    Args:
        config: of the training.
        features: names of all features that the agent sees.
    """
    task = config.task
    things: list[tuple[plugins.Kind, str]] = [("feature", name) for name in features]
    if task.name == "market":
        things.append(("reward", task.market.reward))
        if task.data.store is None:
            things.append(("world", task.data.world))
    else:
        things.append(("task", task.name))
    if config.network.encoder != MLP:
        things.append(("network", config.network.encoder))
    things += [("callback", name) for name in config.callbacks]
    used = plugins.used(things)
    return {PLUGINS: used} if used else {}
