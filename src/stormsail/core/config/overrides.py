"""Overrides from the command line, `ppo.clip_range=0.1`, applied to plain data."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence

from stormsail.core.config import toml
from stormsail.core.errors import ConfigError

_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def apply_overrides(data: Mapping[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """Return a copy of `data` in which each `path=value` is set, later ones last.

    The value is read as TOML: `0.1`, `true`, `[1, 2]`, `"text"`. What is not TOML is a plain
    string, so that `name=abc` needs no quotes. Missing tables on the way are created; whether the
    path names a setting is decided afterwards by the configuration itself, which knows the names.

    Raises:
        ConfigError: if an override has another form, or its path leads through a plain value.
    """
    result = _copied(data)
    for override in overrides:
        path, value = _parsed(override)
        set_path(result, path, value)
    return result


def _copied(data: Mapping[str, object]) -> dict[str, object]:
    """Copy the tables only: plain values are replaced, never changed in place."""
    return {
        key: _copied(value) if isinstance(value, Mapping) else value for key, value in data.items()
    }


def _parsed(override: str) -> tuple[list[str], object]:
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not _PATH.fullmatch(path):
        raise ConfigError(
            "config-override",
            wrong="an override must have the form `path=value`",
            found=f"`{override}`",
            remedy="Write for example `--set ppo.clip_range=0.1`.",
        )
    return path.split("."), _value(text.strip())


def _value(text: str) -> object:
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # A line break in the text could smuggle in a second assignment: then it is no single value.
    return document["value"] if set(document) == {"value"} else text


def set_path(data: dict[str, object], path: Sequence[str], value: object) -> None:
    """Set one value in nested tables, creating the missing ones.

    Raises:
        ConfigError: if a plain value stands where the path needs a table.
    """
    table = data
    for depth, key in enumerate(path[:-1], start=1):
        if table.get(key) is None:
            table[key] = {}
        child = table[key]
        if not isinstance(child, dict):
            above = ".".join(path[:depth])
            raise ConfigError(
                "config-override",
                wrong=f"`{above}` must be a table to hold `{path[depth]}`",
                found=toml.shown(child),
                remedy=f"Set `{above}` itself.",
            )
        table = child
    table[path[-1]] = value
