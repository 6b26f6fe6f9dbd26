"""Arguments of Python calls: those of the wrong type are refused by name, before anything is done.

A type checker finds them as well, and most notebooks have none.
"""

from collections.abc import Iterable
from typing import Any

from stormsail.core.errors import ArgumentError


def wrong_type(value: object, *, name: str, must: str, remedy: str) -> ArgumentError:
    """Return the refusal of a value whose type is none that an argument takes.

    Args:
        value: what was passed.
        name: of the argument.
        must: what it must be, in words.
        remedy: what to write instead.
    """
    return ArgumentError(
        "argument-type",
        wrong=f"`{name}` must be {must}",
        found="None" if value is None else f"a value of the type {type(value).__name__}",
        remedy=remedy,
    )


def check_type(
    value: object, kinds: type[Any] | tuple[type[Any], ...], *, name: str, must: str, remedy: str
) -> None:
    """Refuse a value of another type.

    Raises:
        ArgumentError: if it has none of the types.
    """
    if not isinstance(value, kinds):
        raise wrong_type(value, name=name, must=must, remedy=remedy)


def check_flag(value: object, *, name: str) -> None:
    """Refuse what is neither True nor False: an array has no truth, and every word is true.

    Raises:
        ArgumentError: if it is neither.
    """
    kind = type(value)
    if kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return
    remedy = f"Write `{name}=True`, or leave it out."
    raise wrong_type(value, name=name, must="True or False", remedy=remedy)


def given_words(value: object, *, name: str, example: str) -> tuple[str, ...]:
    """Return a word, or several of them, as a tuple; None is none.

    Raises:
        ArgumentError: if it is something else.
    """
    words = (value,) if isinstance(value, str) else () if value is None else value
    must, remedy = "text, or a list of such", f"Write for example `{name}={example}`."
    if isinstance(words, bytes) or not isinstance(words, Iterable):
        raise wrong_type(value, name=name, must=must, remedy=remedy)
    listed = tuple(words)
    for word in listed:
        if not isinstance(word, str):
            raise wrong_type(word, name=name, must=must, remedy=remedy)
    return listed


def check_definition(value: object, *, name: str, kind: str) -> None:
    """Refuse what a decorator cannot register, since nobody can call it.

    Raises:
        ArgumentError: if it is neither a function nor a class.
    """
    if not callable(value):
        raise wrong_type(
            value,
            name=name,
            must=f"a function or a class where it is registered as a {kind}",
            remedy=f"Write `@{kind}(name=...)` above a definition.",
        )
