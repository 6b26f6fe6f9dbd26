"""`Interval`: the length of a bar, such as `1h`."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormsail.core.errors import DataError

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MONTH_MS = 2_629_746_000  # the twelfth part of a mean Gregorian year of 365.2425 days
_MONTHS = ("mo", "M")
# 1970-01-05: weekly bars open on Mondays, as exchanges label them.
_EPOCH_MONDAY_MS = 4 * 86_400_000

_Times = NDArray[np.int64]


@dataclass(frozen=True, order=True)
class Interval:
    """A bar length that tiles the UTC clock: `1s`, `1m`, `15m`, `1h`, `4h`, `1d`, `1w`, `1mo`.

    Months are written `1mo` or `1M`, minutes `1m`. A bar of months opens on the first day of one,
    so its length varies; `milliseconds` is then the mean. Whatever needs a fixed length (fetching,
    panels, synthetic worlds) refuses months.
    """

    milliseconds: int
    months: int = 0

    def __post_init__(self) -> None:
        if self.milliseconds < 1:
            raise DataError(
                "data-interval",
                wrong="an interval must last at least a millisecond",
                found=f"{self.milliseconds} ms",
                remedy="Write it as `1m`, `4h` or `1d`.",
            )

    @classmethod
    def parse(cls, text: str) -> "Interval":
        """Return the interval a user wrote.

        Raises:
            DataError: if it is no whole number of seconds, minutes, hours, days, weeks or months.
        """
        match = re.fullmatch(r"([1-9][0-9]{0,3})(mo|[smhdwM])", text.strip())
        if match is None:
            raise DataError(
                "data-interval",
                wrong="an interval must be a number followed by `s`, `m`, `h`, `d`, `w` or `mo`",
                found=f"`{text}`",
                remedy="Write it as `1m`, `4h` or `1d`.",
            )
        count = int(match[1])
        if match[2] in _MONTHS:
            return cls(count * _MONTH_MS, count)
        return cls(count * _UNIT_MS[match[2]])

    def __str__(self) -> str:
        if self.months:
            return f"{self.months}mo"
        for unit in ("w", "d", "h", "m", "s"):
            count, rest = divmod(self.milliseconds, _UNIT_MS[unit])
            if not rest:
                return f"{count}{unit}"
        return f"{self.milliseconds}ms"

    @property
    def origin_ms(self) -> int:
        """An instant at which a bar of this length opens."""
        return _EPOCH_MONDAY_MS if self.milliseconds % _UNIT_MS["w"] == 0 else 0

    def number(self, ts: _Times) -> _Times:
        """Return the number of the bar in which each time lies, counted from the origin."""
        if self.months:
            return np.asarray(_month_of(ts) // self.months)
        return np.asarray((ts - self.origin_ms) // self.milliseconds)

    def opening(self, number: _Times) -> _Times:
        """Return the open time of each bar, by its number."""
        if self.months:
            first = (np.asarray(number) * self.months).astype("datetime64[M]")
            return np.asarray(first.astype("datetime64[ms]").astype(np.int64))
        return np.asarray(number * self.milliseconds + self.origin_ms)

    def offset(self, ts: _Times) -> _Times:
        """Return how many milliseconds after the opening of its bar each time lies."""
        if self.months:
            return np.asarray(ts - self.opening(self.number(ts)))
        return np.asarray((ts - self.origin_ms) % self.milliseconds)

    def after(self, ts: _Times) -> _Times:
        """Return when bars that open at these times close and the next ones open."""
        if self.months:
            return self.opening(self.number(ts) + 1)
        return np.asarray(ts + self.milliseconds)

    def steps(self, ts: _Times) -> _Times:
        """Return the times between neighbours, in milliseconds; every month counts as a mean one.

        Only what lies within one bar of months keeps its own distance.
        """
        step = np.diff(ts)
        if self.months:
            bars = np.diff(self.number(ts))
            step = np.where(bars == 0, step, bars * self.milliseconds)
        return np.asarray(step)

    def divides(self, longer: "Interval") -> bool:
        """Return whether bars of this length tile the longer ones."""
        if self.months:
            return longer.months % self.months == 0 and longer.months > 0
        if longer.months:
            return _UNIT_MS["d"] % self.milliseconds == 0
        whole = longer.milliseconds % self.milliseconds == 0
        return whole and (longer.origin_ms - self.origin_ms) % self.milliseconds == 0

    def check_fixed(self, what: str) -> None:
        """Refuse bars of months where a fixed length is needed.

        Raises:
            DataError: if the length varies.
        """
        if self.months:
            raise DataError(
                "data-interval",
                wrong=f"{what} must have bars of a fixed length",
                found=f"`{self}`",
                remedy="Take `1w` or `1d`; bars of months can be imported, checked and stored.",
            )


def _month_of(ts: _Times) -> _Times:
    """Return months since 1970-01."""
    return (
        np.asarray(ts, np.int64).astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)
    )
