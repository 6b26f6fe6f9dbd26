"""`Interval`: the length of a bar, such as `1h`."""

import re
from dataclasses import dataclass

from stormsail.core.errors import DataError

_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
# 1970-01-05: weekly bars open on Mondays, as exchanges label them.
_EPOCH_MONDAY_MS = 4 * 86_400_000


@dataclass(frozen=True, order=True)
class Interval:
    """A bar length that tiles the UTC clock: `1m`, `15m`, `1h`, `4h`, `1d`, `1w`."""

    milliseconds: int

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
            DataError: if it is no whole number of minutes, hours, days or weeks.
        """
        match = re.fullmatch(r"([1-9][0-9]{0,3})([mhdw])", text.strip())
        if match is None:
            raise DataError(
                "data-interval",
                wrong="an interval must be a number followed by `m`, `h`, `d` or `w`",
                found=f"`{text}`",
                remedy="Write it as `1m`, `4h` or `1d`.",
            )
        return cls(int(match[1]) * _UNIT_MS[match[2]])

    def __str__(self) -> str:
        for unit in ("w", "d", "h", "m"):
            count, rest = divmod(self.milliseconds, _UNIT_MS[unit])
            if not rest:
                return f"{count}{unit}"
        return f"{self.milliseconds}ms"

    @property
    def origin_ms(self) -> int:
        """An instant at which a bar of this length opens."""
        return _EPOCH_MONDAY_MS if self.milliseconds % _UNIT_MS["w"] == 0 else 0

    def divides(self, longer: "Interval") -> bool:
        """Return whether bars of this length tile the longer ones."""
        whole = longer.milliseconds % self.milliseconds == 0
        return whole and (longer.origin_ms - self.origin_ms) % self.milliseconds == 0
