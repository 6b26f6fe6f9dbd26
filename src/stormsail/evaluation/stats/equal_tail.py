"""What a limit on the tail buys: an account under it beside a smaller position of another one.

A smaller position has a better tail, too, and takes no learning. So an account under a limit is
compared with that part of a free one which has the same CVaR.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stormsail.core.files.documents import JsonValue
from stormsail.core.generators import Generators
from stormsail.evaluation.stats.bootstrap import bootstrap_intervals
from stormsail.evaluation.stats.figures import Array, bars_per_year
from stormsail.evaluation.stats.performance import multiple_at_cvar, window_cvar
from stormsail.evaluation.stats.statement import Statement


class TailLimit(NamedTuple):
    """A limit on the CVaR of an episode's log growth, on a single symbol."""

    window: int
    """Bars of an episode."""
    alpha: float
    limit: float

    @classmethod
    def of(cls, training: Mapping[str, JsonValue]) -> "TailLimit | None":
        """Return the limit of a training, by paths of its settings; None without one."""
        window = training.get("task.market.episode_bars")
        limit, alpha = (training.get(f"risk.cvar_{name}") for name in ("limit", "alpha"))
        if isinstance(window, int) and isinstance(limit, float) and isinstance(alpha, float):
            return cls(window, alpha, limit)
        return None


class EqualTail(NamedTuple):
    """An account under a limit on its tail beside a part of another one with the same tail."""

    first: str
    second: str
    """The account whose tail is the better one of the two."""
    window: int
    """Bars of the windows whose log growth is meant: the episode of the limit."""
    alpha: float
    limit: float
    """Of the second, on an episode of a single symbol."""
    cvar: tuple[float, float]
    """Of windows of the whole account, of both."""
    multiple: float
    """Of the first, at which it has the CVaR of the second."""
    mean: Statement
    """Mean over the bars of the second's return less that part of the first's."""

    @property
    def words(self) -> str:
        """The finding in plain words."""
        tails = (
            f"CVaR of the worst {self.alpha:.0%} of windows of {self.window} bars: {self.first}"
            f" {self.cvar[0]:+.4f}, {self.second} {self.cvar[1]:+.4f} in log growth, limit"
            f" {self.limit:+.4f}"
        )
        part = f"{self.multiple:.0%} of {self.first} has the CVaR of {self.second}"
        mean = self.mean
        if mean.value is None or mean.low is None or mean.high is None:
            return f"{tails}. {part}; {mean.reason}"
        numbers = f"{mean.value:+.4%} a bar, 95 % interval {mean.low:+.4%} to {mean.high:+.4%}"
        if mean.low > 0.0:
            finding = "the limit buys more than a smaller position would"
        elif mean.high < 0.0:
            finding = "a smaller position would have earned more"
        else:
            finding = "not significant: a smaller position may do as well as the limit"
        return f"{tails}. {part}; against it {self.second} earns {numbers}: {finding}"


def equal_tail(
    first: str, own: Array, second: str, other: Array, limit: TailLimit, *, bar_ms: int
) -> EqualTail | None:
    """Return what the limit of the second account buys; None where its tail is not the better one.

    Args:
        first: name of the account of which a part is taken.
        own: its returns, bar by bar, [N].
        second: name of the account under the limit.
        other: its returns over the same bars, [N].
        limit: of the second.
        bar_ms: length of a bar.
    """
    window, alpha = limit.window, limit.alpha
    if own.size < window or min(own.min(), other.min()) <= -1.0:
        return None
    worse, better = (window_cvar(part, window=window, alpha=alpha) for part in (own, other))
    if not worse < better <= 0.0:
        return None
    multiple = multiple_at_cvar(own, better, window=window, alpha=alpha)
    mean = mean_gain(other - multiple * own, bar_ms=bar_ms)
    return EqualTail(first, second, window, alpha, limit.limit, (worse, better), multiple, mean)


def mean_gain(gain: Array, *, bar_ms: int) -> Statement:
    """Return the mean of differences bar by bar, with its interval."""
    if not np.any(gain):
        return Statement(None, why="both earned the same at every bar")
    generator = Generators(0).numpy("comparison.difference")
    drawn = bootstrap_intervals(gain, per_year=bars_per_year(bar_ms), generator=generator)
    return drawn.mean_return
