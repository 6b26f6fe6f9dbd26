"""Lists of numbers as command-line options give them, with commas between them."""

import math

from stormsail.core.errors import RangeError


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
