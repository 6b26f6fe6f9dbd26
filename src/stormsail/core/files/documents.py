"""Strict JSON: one text for one value, one value for one text.

The standard library's parser keeps the last of two equal keys, accepts `NaN`, and turns `1e999`
into infinity. Each of these lets two programs read different things from one file, so all three
are refused here, in both directions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

Document: TypeAlias = Mapping[str, JsonValue]
"""A JSON object."""

_MAX_DEPTH = 64


class DocumentError(ValueError):
    """A value or a text is not strict JSON; the caller names the file."""


class Record:
    """A dataclass that becomes a JSON object, one key for each of its fields."""

    def document(self) -> dict[str, JsonValue]:
        """Return the fields as JSON; a record among them by its own document."""
        return {name: _field(value) for name, value in vars(self).items()}


def _field(value: Any) -> JsonValue:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, Record):
        return value.document()
    if isinstance(value, list | tuple):
        return [_field(item) for item in value]
    result: JsonValue = value.tolist() if hasattr(value, "tolist") else value  # an array
    return result


def encode(value: object) -> bytes:
    """Return the one compact text of `value`: keys sorted, ASCII, shortest exact numbers.

    Tuples become lists. Equal values give equal bytes, so a hash of the result identifies them.

    Raises:
        DocumentError: if `value` holds anything that JSON cannot give back.
    """
    return _text(value, indent=None, separators=(",", ":"))


def encode_readable(value: object) -> bytes:
    """Return the same text as `encode`, indented and with a final newline, for people."""
    return _text(value, indent=2, separators=(",", ": ")) + b"\n"


def decode(data: bytes) -> JsonValue:
    """Return the value of a strict JSON text in UTF-8.

    Raises:
        DocumentError: if the text is not JSON, repeats a key, holds a number that is not finite,
            or is nested more than 64 levels deep.
    """
    try:
        value: JsonValue = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError(f"it is nested more than {_MAX_DEPTH} levels deep") from None
    except ValueError as error:  # not UTF-8, not JSON, or an integer of thousands of digits
        raise DocumentError(str(error)) from error
    plain(value)  # the depth that is written is the depth that is read
    return value


def plain(value: object, *, depth: int = 0) -> JsonValue:
    """Return a copy of `value` made of JSON's own types, or say why there is none."""
    if depth >= _MAX_DEPTH and isinstance(value, dict | list | tuple):
        raise DocumentError(f"it is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_key(key): plain(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth=depth + 1) for item in value]
    return _leaf(value)


def _text(value: object, *, indent: int | None, separators: tuple[str, str]) -> bytes:
    try:
        text = json.dumps(plain(value), sort_keys=True, indent=indent, separators=separators)
    except DocumentError:
        raise
    except ValueError as error:  # Python's own limit, which no reader would lift either
        raise DocumentError("it holds a whole number of thousands of digits") from error
    return text.encode("ascii")


def _leaf(value: object) -> JsonValue:
    if value is None or type(value) in (bool, int, str):
        return value  # type: ignore[return-value]  # the exact types above are JSON's own
    if type(value) is not float:
        raise DocumentError(f"it holds a value of the type {type(value).__name__}")
    if not math.isfinite(value):
        raise DocumentError(f"it holds the number {value}")
    return value


def _key(key: object) -> str:
    if type(key) is not str:
        raise DocumentError(f"it holds the key {key!r}, which is not a string")
    return key


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    result: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in result:
            raise DocumentError(f"it repeats the key {key!r}")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise DocumentError(f"it holds the number {name}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise DocumentError(f"it holds the number {text}, which is not finite")
    return number


def mapping(value: JsonValue) -> Document:
    """Return a table of plain data; an empty one where it is something else."""
    return value if isinstance(value, dict) else {}


def items(value: JsonValue) -> Sequence[JsonValue]:
    """Return a list of plain data; an empty one where it is something else."""
    return value if isinstance(value, list) else []


def number(value: JsonValue) -> float | None:
    """Return a number, or None where it is something else."""
    return float(value) if isinstance(value, int | float) and type(value) is not bool else None
