"""Types of settings that may be left open, and are then derived from task, budget and device.

An open setting is None at runtime until `derive` fills it in; everything that computes gets a
derived configuration (`derive.require_derived`). Its static type has no None, so that the
arithmetic of a derived configuration needs no check at every use: the annotation says `int` or
`float`, a wrap validator lets None through before the number's own rules, and the default is
`OPEN`, which a type checker takes for anything. TOML leaves None out, so an open setting stays open
through `to_toml`, `replace` and `config_hash`.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator


def _or_open(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    return None if value is None else handler(value)


def is_open(*values: object) -> bool:
    """Return whether any of these values is still to be derived."""
    return any(value is None for value in values)


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, in order; a rollout may have a billion sequences."""
    low = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    return sorted({*low, *(number // part for part in low)})


OPEN: Any = None
"""Default of a setting that is derived where it is not given."""

DERIVABLE = WrapValidator(_or_open)
"""Marks the settings that may be left open; outermost, so that None never meets the bounds."""

DerivedCount = Annotated[int, Field(ge=1), DERIVABLE]
DerivedWhole = Annotated[int, Field(ge=0), DERIVABLE]
DerivedPositive = Annotated[float, Field(gt=0.0), DERIVABLE]
DerivedScale = Annotated[Literal["rollout", "slow"], DERIVABLE]
DerivedForm = Annotated[Literal["critic", "budget"], DERIVABLE]
DerivedPrecision = Annotated[Literal["float32", "tf32", "bf16"], DERIVABLE]
DerivedFlag = Annotated[bool, DERIVABLE]
