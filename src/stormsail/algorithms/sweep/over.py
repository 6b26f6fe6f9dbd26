"""Searched settings as text: `ppo.learning_rate=log:1e-5:1e-2`, `network.memory=lstm,gru`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from stormsail.algorithms.population.config import SearchedSetting, check_path, is_whole
from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ConfigError

LOG, WHOLE, ANY = "log", "int", "float"
_RANGE = re.compile(rf"({LOG}|{WHOLE}|{ANY}):([^:,]*):([^:,]*)")
_FORMS = (
    f"`path={LOG}:LOW:HIGH` (every factor equally likely), `path={ANY}:LOW:HIGH`, "
    f"`path={WHOLE}:LOW:HIGH` or `path=VALUE,VALUE,...`"
)


def with_over(table: Mapping[str, object], over: Iterable[str]) -> dict[str, object]:
    """Return a table of searched settings by path with those of some texts added or replaced.

    Raises:
        ConfigError: if a text has another form, or does not fit its setting.
    """
    return {**table, **dict(map(parse_over, over))}


def parse_over(text: str) -> tuple[str, dict[str, Any]]:
    """Return path and description (`SearchedSetting`) of one searched setting.

    Raises:
        ConfigError: if the text has another form; the setting is unknown, with the nearest one
            suggested; its kind of number is another one; or the range is empty.
    """
    path, equals, given = (part.strip() for part in text.partition("="))
    if not equals or not path or not given:
        raise _form(text)
    try:
        check_path(path)
    except ValueError as error:
        wrong, _, near = str(error).partition("; did you mean ")
        raise ConfigError(
            "config-unknown-key",
            wrong=f"`--over {text}` must name a setting of a training",
            found=wrong.rpartition(", not ")[2],
            remedy=f"Did you mean {near}" if near else "`docs/config.md` lists them all.",
        ) from None
    matched = _RANGE.fullmatch(given)
    table = _listed(text, given) if matched is None else _ranged(text, path, *matched.groups())
    try:
        SearchedSetting.from_mapping(table)
    except ConfigError as error:
        raise ConfigError(
            error.code,
            wrong=f"`--over {text}`: {error.wrong}",
            found=error.found,
            remedy="Give other bounds.",
        ) from None
    return path, table


def _ranged(text: str, path: str, kind: str, low: str, high: str) -> dict[str, Any]:
    try:
        ends = float(low), float(high)
    except ValueError:
        raise _form(text) from None
    whole = is_whole(path)
    if whole and not all(end.is_integer() for end in ends):
        raise _kind(text, f"`{path}` takes whole numbers", "Round the bounds.")
    if kind == WHOLE and not whole:
        raise _kind(text, f"`{path}` takes any number", f"Write `{ANY}` in place of `{WHOLE}`.")
    if kind == ANY and whole:
        raise _kind(text, f"`{path}` takes whole numbers", f"Write `{WHOLE}` in place of `{ANY}`.")
    table: dict[str, Any] = {"min": ends[0], "max": ends[1]}
    return {**table, "is_log_scale": True} if kind == LOG else table


def _listed(text: str, given: str) -> dict[str, Any]:
    values = [apply_overrides({}, [f"value={each}"])["value"] for each in given.split(",")]
    if len(values) < 2 or "" in values:
        raise _form(text)
    return {"values": values}


def _kind(text: str, wrong: str, remedy: str) -> ConfigError:
    return ConfigError(
        "config-override",
        wrong=f"the range of a searched setting must fit it: {wrong}",
        found=f"`--over {text}`",
        remedy=remedy,
    )


def _form(text: str) -> ConfigError:
    return ConfigError(
        "config-override",
        wrong=f"a searched setting must have the form {_FORMS}",
        found=f"`{text}`",
        remedy="Write for example `--over ppo.learning_rate=log:1e-5:1e-2`, or "
        "`--over network.memory=lstm,gru`; a single value is set with `--set`.",
    )
