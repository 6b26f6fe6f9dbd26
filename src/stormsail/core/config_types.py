"""Which plain values may stand for which types of a setting."""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_JUDGED = frozenset({bool, int, float, type(None)})
_WORDS = {bool: "boolean", int: "whole number", float: "number"}


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


@dataclass(frozen=True)
class NoConversion:
    """Refuse text or a boolean for a number, and text or a number for a boolean.

    pydantic would read `"0.1"` and `true` as numbers. Its strict mode would not, but it also
    refuses a list for a tuple and text for a path, which TOML has no other way to write. A whole
    float such as `1e6` may stand for a whole number.
    """

    allowed: frozenset[type]

    @classmethod
    def for_annotation(cls, annotation: object) -> Self | None:
        """Return the rule for a setting, or None if it is not made of numbers and booleans only."""
        allowed = frozenset(leaves(annotation))
        return cls(allowed) if allowed and allowed <= _JUDGED else None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Look at the value before pydantic does."""
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def _checked(self, value: object) -> object:
        if all(self._fits(item) for item in _flat(value)):
            return value
        words = " or ".join(word for kind, word in _WORDS.items() if kind in self.allowed)
        raise PydanticCustomError("plain_type", "Input should be a {words}", {"words": words})

    def _fits(self, value: object) -> bool:
        if isinstance(value, bool):
            return bool in self.allowed
        if isinstance(value, int | float):
            return bool(self.allowed & {int, float})
        return not isinstance(value, str)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value
