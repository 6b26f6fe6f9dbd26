"""Values of one quantity over seeds: mean, standard deviation, standard error, 95 % interval."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from scipy.special import stdtrit

NORMAL_95 = 1.959963984540054
"""Half width of a 95 % interval in standard errors, of a normal distribution."""


class Seeds:
    """One value for each seed; prints as the mean ± one of its errors.

    Args:
        values: at least one.
        shown: which error is printed and written.
        spec: format of the two printed numbers.
        alone: deviation of the value of a single seed, where it is known from elsewhere.
    """

    def __init__(
        self,
        values: Sequence[float],
        *,
        shown: Literal["deviation", "standard_error", "half"] = "deviation",
        spec: str = ".4f",
        alone: float = math.nan,
    ) -> None:
        self.values = tuple(values)
        self._shown, self._spec, self._alone = shown, spec, alone

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else self._alone

    @property
    def standard_error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(len(self.values))

    @property
    def half(self) -> float:
        """Half width of the 95 % interval of the mean, by Student's t."""
        count = len(self.values)
        quantile = float(stdtrit(count - 1, 0.975)) if count > 1 else NORMAL_95
        return quantile * self.deviation / math.sqrt(count)

    @property
    def error(self) -> float:
        """The error that is printed."""
        return float(getattr(self, self._shown))

    def __str__(self) -> str:
        return f"{self.mean:{self._spec}} ± {self.error:{self._spec}}"

    def as_dict(self) -> dict[str, object]:
        """Return mean, error and values, as a file holds them."""
        return {"mean": self.mean, "error": self.error, "values": self.values}
