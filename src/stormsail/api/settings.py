"""Settings as Python writes them: sections as dictionaries, or dotted names."""

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TypeVar

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import load_training
from stormsail.algorithms.run.folder import read_config
from stormsail.core.arguments import check_type
from stormsail.core.config import Config
from stormsail.core.errors import ArgumentError
from stormsail.core.files.paths import given_path

ConfigT = TypeVar("ConfigT", bound=Config)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, of Python or of NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_clock(clock: object) -> None:
    """Refuse what is no clock.

    Raises:
        ArgumentError: if it is none.
    """
    if not all(hasattr(clock, name) for name in ("now_ns", "monotonic_ns", "sleep")):
        check_type(
            clock,
            (),
            name="clock",
            must="a clock of `stormsail.core.clock`, or None for the system's",
            remedy="Leave it out, or write `clock=ManualClock()` in a test.",
        )


def dotted(settings: Mapping[str, object], above: str = "") -> dict[str, object]:
    """Return settings by their dotted names: `{"ppo": {"n_envs": 8}}` is `{"ppo.n_envs": 8}`."""
    flat: dict[str, object] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat


def changed(config: ConfigT, settings: Mapping[str, object]) -> ConfigT:
    """Return a configuration with some settings changed; a section keeps what is not named.

    Raises:
        ConfigError: if there is no such setting, or a value does not fit.
    """
    return config.replace(**dotted(settings)) if settings else config


def training_config(
    config: TrainConfig | Path | str | None, settings: Mapping[str, object]
) -> TrainConfig:
    """Return the configuration of a training: given, of a file or a run, or the defaults; changed.

    Raises:
        ConfigError: if the file cannot be read, or a setting does not fit.
        ArtifactError: if a folder holds no run.
        ArgumentError: if it is something else.
    """
    if config is None:
        return changed(TrainConfig(), settings)
    if isinstance(config, TrainConfig):
        return changed(config, settings)
    if isinstance(config, str | Path):
        path = given_path(config, name="config")
        read = read_config if path.is_dir() else load_training
        return changed(read(path), settings)
    raise ArgumentError(
        "config-value",
        wrong="`config` must be a `TrainConfig`, or the path of a TOML file or of a run",
        found=f"a value of the type {type(config).__name__}",
        remedy="Pass settings by name: `ss.train(ppo={'n_envs': 8})`.",
    )
