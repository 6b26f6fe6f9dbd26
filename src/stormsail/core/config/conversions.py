"""Refusal of silent type conversions in configurations, and the one that is made: times to UTC.

`"0.1"` is no number, 1 no boolean.
"""

import typing
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from numbers import Number
from typing import Annotated, Any, cast

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

_WORDS = {"bool": "boolean", "int": "whole number", "float": "number"}
_TEXT = (str, bytes, bytearray)

# Parts of pydantic's schema that are values or serve writing. Keys of a table are text in TOML,
# whatever they stand for, so pydantic's own conversion applies to them.
_UNCHECKED_PARTS = frozenset(
    {
        "computed_fields",
        "config",
        "default",
        "expected",
        "keys_schema",
        "members",
        "metadata",
        "return_schema",
        "serialization",
    }
)


def leaves(annotation: object) -> Iterator[type]:
    """Yield the classes an annotation is made of: `tuple[int, ...] | None` gives int and None."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        yield from map(type, arguments)
    elif arguments:
        for argument in arguments:
            yield from leaves(argument)
    elif isinstance(annotation, type):
        yield annotation


def forbid_conversions(
    schema: CoreSchema, model: type[object], handler: GetCoreSchemaHandler
) -> None:
    """Refuse text or a boolean for a number, and text or a number for a boolean, at every depth.

    pydantic would read `"0.1"` and `true` as numbers. Its strict mode would not, but it also
    refuses a list for a tuple and text for a path, which TOML has no other way to write. So each
    number, boolean, literal and enumeration in the schema of `model` gets a check that runs before
    pydantic's own, wherever it stands: in a table, in a tuple, beside text. A whole float such as
    `1e6` may stand for a whole number. Other models inside keep to their own rules.
    """
    _add_checks(schema, model, handler, set())


def _add_checks(
    node: object, model: type[object], handler: GetCoreSchemaHandler, seen: set[int]
) -> None:
    if isinstance(node, list | tuple):
        for item in node:
            _add_checks(item, model, handler, seen)
    if not isinstance(node, dict) or id(node) in seen:
        return
    seen.add(id(node))
    kind = node.get("type")
    if not isinstance(kind, str):  # a table of schemas, whose keys are names of settings
        _add_checks(list(node.values()), model, handler, seen)
    elif kind == "definition-ref":
        try:
            target = handler.resolve_ref_schema(cast("CoreSchema", node))
        except LookupError:  # a model that is being made around this one, and checks itself
            return
        _add_checks(target, model, handler, seen)
    elif (check := _check(node)) is not None:
        _put_before(node, check)
    elif not _is_checked(node, model):
        parts = [part for key, part in node.items() if key not in _UNCHECKED_PARTS]
        _add_checks(parts, model, handler, seen)


def _is_checked(node: dict[str, Any], model: type[object]) -> bool:
    """Return whether a part has its check already, or belongs to another model."""
    if node["type"] == "function-before":
        return isinstance(getattr(node["function"]["function"], "__self__", None), _Check)
    return bool(node["type"] == "model" and node["cls"] is not model)


class _Check:
    """A check of a value that runs before pydantic's own."""

    def __init__(self, refused: Callable[[object], Exception | None]) -> None:
        self._refused = refused

    def passed(self, value: object) -> object:
        error = self._refused(value)
        if error is not None:
            raise error
        return value


def _check(node: dict[str, Any]) -> _Check | None:
    """Return the check that a schema needs, or None if pydantic takes nothing for what it is not.

    Choices need one if they hold 0 or 1, which equal booleans, or if pydantic converts text first.
    """
    kind = node["type"]
    if kind in _WORDS:
        return _Check(lambda value: _wrong_kind(value, kind))
    choices = node.get("expected", [member.value for member in node.get("members", ())])
    numeric = node.get("sub_type") in {"int", "float"}
    if kind in {"literal", "enum"} and (numeric or any(choice in (0, 1) for choice in choices)):
        return _Check(lambda value: _wrong_choice(value, choices, kind, numeric=numeric))
    return None


def _put_before(node: dict[str, Any], check: _Check) -> None:
    """Turn a schema into one that runs `check` first, in place: others refer to it by name."""
    inner = cast("CoreSchema", {key: part for key, part in node.items() if key != "ref"})
    outer = core_schema.no_info_before_validator_function(check.passed, inner, ref=node.get("ref"))
    node.clear()
    node.update(outer)


def _wrong_kind(value: object, kind: str) -> Exception | None:
    number = isinstance(value, Number) and not isinstance(value, bool)
    # Many things can be turned into a number, an array's `True` among them: none of them is one.
    if number if kind != "bool" else not number and not isinstance(value, _TEXT):
        return None
    words = {"words": _WORDS[kind]}
    return PydanticCustomError("plain_type", "Input should be a {words}", words)


def _wrong_choice(
    value: object, choices: Sequence[object], kind: str, *, numeric: bool
) -> Exception | None:
    if isinstance(value, Enum) or not isinstance(value, Number | str | bytes | bytearray):
        return None
    equal = [isinstance(choice, bool) for choice in choices if choice == value]
    mistaken = bool(equal) and isinstance(value, bool) not in equal
    if not mistaken and not (numeric and isinstance(value, _TEXT)):
        return None
    *most, last = [repr(choice) for choice in choices]
    words = {"expected": f"{', '.join(most)} or {last}" if most else last}
    return PydanticKnownError("enum" if kind == "enum" else "literal_error", words)


def _utc(time: datetime | None) -> datetime | None:
    """Bring a time to UTC, so that equal times have equal hashes."""
    if time is None:
        return None
    if time.tzinfo is None:
        raise ValueError("must name a time zone, such as 2024-01-01T00:00:00Z")
    return time.astimezone(UTC)


Time = Annotated[datetime | None, AfterValidator(_utc)]
"""Field of a time, which must name its zone; None where there is none."""
