"""Schema of the features that a model was trained on, as plain data with a hash."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import TypeAlias

from stormsail.core.errors import DataError
from stormsail.core.files import documents
from stormsail.core.files.documents import JsonValue

Schema = Mapping[str, JsonValue]

_SHOWN = 80  # characters of a value in a refusal


def schema_hash(schema: Schema) -> str:
    """Return the SHA-256 of the canonical JSON text."""
    return hashlib.sha256(documents.encode(dict(schema))).hexdigest()


def check_schema(expected: Schema, actual: Schema) -> None:
    """Refuse features other than the expected ones.

    Raises:
        DataError: if anything differs; names the first field that does, in reading order.
    """
    for path, want, have in _differences(
        documents.plain(dict(expected)), documents.plain(dict(actual)), ""
    ):
        raise DataError(
            "feature-schema",
            wrong=f"`{path}` of the features must be {want}",
            found=have,
            remedy="Feed the model with the features it was trained on, or train a new one.",
        )


class _Absent:
    """Stands for a field that is not there, which is not the same as null."""


_Field: TypeAlias = "JsonValue | _Absent"
_ABSENT = _Absent()


def _differences(want: _Field, have: _Field, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(want, dict) and isinstance(have, dict):
        for key in [*want, *(key for key in have if key not in want)]:
            yield from _differences(
                want.get(key, _ABSENT), have.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
    elif isinstance(want, list) and isinstance(have, list):
        pairs = zip_longest(want, have, fillvalue=_ABSENT)
        for index, (first, second) in enumerate(pairs):
            yield from _differences(first, second, f"{path}[{index}]")
    elif want != have or type(want) is not type(have):
        yield path, _shown(want), _shown(have)


def _shown(value: _Field) -> str:
    if isinstance(value, _Absent):
        return "nothing"
    text = documents.encode(value).decode("ascii")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
