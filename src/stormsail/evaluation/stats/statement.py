"""A number with its interval and the data behind it, or the reason why there is none.

A figure computed from too little data looks like any other figure. So everything the evaluation
states goes through `Statement`: it carries how much data it needs and how much there was, and with
too little it carries no value at all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from stormsail.core.errors import RangeError
from stormsail.core.files.documents import JsonValue, Record

MINIMUM_BARS = 30
"""Bars for a mean, a deviation or a shape: below it their own errors exceed what is measured."""

MINIMUM_DAYS = 30
"""Days for anything per year: a year read off less than a twelfth of it is an extrapolation."""

MINIMUM_TAIL = 10
"""Outcomes inside a tail for its quantile or mean: with fewer, single outcomes decide it."""


@dataclass(frozen=True)
class Statement(Record):
    """One figure of an evaluation.

    Attributes:
        value: the figure; None where there is not enough data or where it is not defined.
        low: lower end of its interval; None where none was computed.
        high: upper end of its interval.
        needed: how much data the figure needs.
        found: how much there was.
        unit: what was counted: `bars`, `trades`, `windows`, `trials`.
        why: why a figure is not defined although there is enough data.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    needed: int = 0
    found: int = 0
    unit: str = "bars"
    why: str = ""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if number is not None and math.isnan(number):
                raise RangeError(
                    wrong=f"`{name}` of a statement must be a number or None",
                    found="NaN",
                    remedy="State with `why` what makes the figure undefined.",
                )
        if self.found < self.needed and self.value is not None:
            raise RangeError(
                wrong=f"a statement must need at most the {self.found} {self.unit} it has",
                found=f"the value {self.value!r} although it needs {self.needed}",
                remedy="Leave the value out, or need less.",
            )

    @property
    def enough(self) -> bool:
        """Whether there was as much data as the figure needs."""
        return self.found >= self.needed

    @property
    def reason(self) -> str:
        """Why there is no value; empty where there is one."""
        if self.value is not None:
            return ""
        if not self.enough:
            return f"not enough data: needs {self.needed} {self.unit}, found {self.found}"
        return self.why or "not defined for this data"

    def __str__(self) -> str:
        if self.value is None:
            return self.reason
        if self.low is None or self.high is None:
            return f"{self.value:.6g}"
        return f"{self.value:.6g} [{self.low:.6g}, {self.high:.6g}]"

    def document(self) -> dict[str, JsonValue]:
        """Return the statement as JSON; an infinite end becomes None."""
        return {
            "value": _finite(self.value),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "needed": self.needed,
            "found": self.found,
            "unit": self.unit,
            "reason": self.reason,
        }


def state(
    figure: Callable[[], float], *, needed: int, found: int, unit: str = "bars", why: str = ""
) -> Statement:
    """Return a statement of `figure()`, which is not called where there is too little data.

    A figure that is NaN or infinite is not defined: `why` should say what that means.
    """
    if found < needed:
        return Statement(None, needed=needed, found=found, unit=unit)
    number = float(figure())
    value = number if math.isfinite(number) else None
    return Statement(value, needed=needed, found=found, unit=unit, why=why)


def needed_for_tail(alpha: float) -> int:
    """Return how many outcomes it takes to see `MINIMUM_TAIL` of them in a tail of share alpha."""
    # The tolerance: 10 / 0.05 must read as 200, whatever rounding makes of it.
    return max(MINIMUM_BARS, math.ceil(MINIMUM_TAIL / alpha * (1.0 - 1e-12)))


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
