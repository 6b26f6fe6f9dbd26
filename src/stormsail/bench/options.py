"""Lists of numbers and settings as command-line options give them."""

import math
from collections.abc import Iterable, Mapping

from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import RangeError


def changes(overrides: Iterable[str]) -> dict[str, object]:
    """Return what `path=value` texts set, by path.

    Raises:
        ConfigError: for a text of another form.
    """
    return dict(_paths(apply_overrides({}, (text.strip() for text in overrides))))


def _paths(table: Mapping[str, object], above: str = "") -> list[tuple[str, object]]:
    paths: list[tuple[str, object]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            paths += _paths(value, f"{above}{key}.")
        else:
            paths.append((f"{above}{key}", value))
    return paths


def whole_numbers(text: str, *, option: str, example: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `1,64`, each at least 1.

    Raises:
        RangeError: if the text is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise RangeError(
            wrong=f"`--{option}` must be whole numbers of at least 1 with commas between them",
            found=repr(text),
            remedy=f"Write it as {example}.",
        )
    return tuple(int(part) for part in parts)


def numbers(text: str, *, option: str, example: str, positive: bool = False) -> tuple[float, ...]:
    """Return the finite numbers of a list such as `0.5,0.25`.

    Raises:
        RangeError: if the text is no such list.
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (math.nan,)
    if not all(math.isfinite(value) and (value > 0.0 or not positive) for value in values):
        raise RangeError(
            wrong=f"`--{option}` must be {'positive ' * positive}numbers with commas between them",
            found=repr(text),
            remedy=f"Write it as {example}.",
        )
    return values
