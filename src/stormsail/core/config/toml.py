"""Writer of TOML, which `tomllib` lacks.

Only what a configuration holds is written: strings, booleans, whole numbers, finite floats, lists
and tables. Equal data give equal text, and `tomllib` reads back exactly what was written.
"""

import math
import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {
    "\b": r"\b",
    "\t": r"\t",
    "\n": r"\n",
    "\f": r"\f",
    "\r": r"\r",
    '"': r"\"",
    "\\": r"\\",
}


class TomlError(ValueError):
    """A value has no TOML form."""


def dumps(data: Mapping[str, object]) -> str:
    """Return `data` as a TOML document, in the order of the mapping.

    A key whose value is None is left out: TOML has no word for nothing.

    Raises:
        TomlError: if a value has no TOML form.
    """
    return "\n".join(_table(data, path=())).lstrip("\n") + "\n"


def inline(value: object) -> str:
    """Return one value as it stands on the right of an equals sign."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(_assignments(value)) + "}"
    raise TomlError(f"a value of the type {type(value).__name__} has no TOML form")


def _table(data: Mapping[str, object], *, path: tuple[str, ...]) -> list[str]:
    """Return the lines of one table: its own values first, because a header ends it."""
    tables = {key: value for key, value in data.items() if isinstance(value, Mapping)}
    own = {key: value for key, value in data.items() if key not in tables}
    lines = ["", f"[{'.'.join(_key(part) for part in path)}]"] if path else []
    lines += _assignments(own)
    for key, value in tables.items():
        lines += _table(value, path=(*path, key))
    return lines


def _assignments(data: Mapping[str, object]) -> list[str]:
    return [f"{_key(key)} = {inline(value)}" for key, value in data.items() if value is not None]


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TomlError(f"the key {key!r} is not a string")
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise TomlError(f"the number {value} is not finite")
    return repr(value)  # shortest text that reads back to the same bits; always has a point or `e`


def _string(text: str) -> str:
    return '"' + "".join(_character(character) for character in text) + '"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if "\ud800" <= character <= "\udfff":
        raise TomlError(f"the character {character!r} is half of a pair and has no UTF-8 form")
    if character < " " or character == "\x7f":
        return f"\\u{ord(character):04x}"
    return character


def shown(value: object, *, limit: int = 80) -> str:
    """Return a value for the words of an error: as TOML where it has such a form, and short."""
    try:
        text = "nothing" if value is None else inline(value)
    except TomlError:
        text = str(value)
    except RecursionError:
        return "a value nested too deeply to show"
    return text if len(text) <= limit else text[: limit - 3] + "..."
