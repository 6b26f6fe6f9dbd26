"""The agent's own forecast as a limit: predicted CVaR, and realised returns below their band.

The critic predicts the distribution of discounted log growth over the risk horizon H. Its CVaR,
weighted by equity, bounds that of the account: CVaR is subadditive, so accounts that fall together
are the worst case. Once H bars have passed, what was earned is compared with the predicted quantile
at the tail share, after the conformal correction of `evaluation.calibration.conformal` where one
was fitted. A day on which more than half of the windows that end on it lie below is outside of the
band. Ours: windows overlap, so that one crash makes several days; `outside_days` says how many are
too many.
"""

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stormsail.core.errors import ConfigError
from stormsail.core.files.documents import JsonValue
from stormsail.execution.journal import Journal

Array = NDArray[np.float64]
_DAY_MS = 86_400_000
_UNKNOWN_DAYS = 1 << 40
"""A count of days whose beginning has not been read."""

LEAST_EQUITY = 1e-9
"""At which log growth is cut off."""


def account_cvar(cvar: Array, equity: Array) -> float:
    r"""Return the predicted loss in the tail of all accounts together, as a share of equity.

    .. math:: \sum_s w_s (1 - e^{c_s}), \qquad w_s = E_s / \sum E

    with each account's CVaR c of log growth. 0 where a gain is predicted even there; NaN counts as
    a loss of everything.
    """
    share = np.maximum(equity, 0.0) / max(float(np.maximum(equity, 0.0).sum()), 1e-300)
    loss = np.where(np.isfinite(cvar), -np.expm1(np.minimum(cvar, 0.0)), 1.0)
    return float((share * loss).sum())


@dataclass
class _Window:
    """A prediction on its way: the bound of each account, and what it has returned since."""

    bound: Array
    total: Array
    weight: float = 1.0
    bars: int = 0


@dataclass
class TailWatch:
    """Counts days in a row on which realised returns lie below their band.

    Attributes:
        horizon: H, bars of a window.
        gamma: discount of a bar.
        level: index of the quantile that is the lower bound.
        shift: conformal correction of that quantile; 0 where none was fitted.
    """

    horizon: int
    gamma: float
    level: int
    shift: float = 0.0
    days: int = 0
    _windows: deque[_Window] = field(default_factory=deque)
    _today: list[bool] = field(default_factory=list)
    _day: int | None = None

    def predicted(self, quantiles: Array) -> None:
        """Take the predicted quantiles of a decision, [S, N]."""
        bound = np.sort(quantiles, axis=-1)[:, self.level] + self.shift
        self._windows.append(_Window(bound, np.zeros(len(bound))))

    @property
    def day(self) -> int | None:
        """The day that is not over yet, counted from 1970."""
        return self._day

    def realised(self, growth: Array, close_ms: int) -> int:
        """Take the log growth of a bar, [S]; return the days outside of the band in a row."""
        day = (close_ms - 1) // _DAY_MS
        if self._day is not None and day != self._day and self._today:
            outside = sum(self._today) > len(self._today) / 2
            self.days = self.days + 1 if outside else 0
            self._today = []
        self._day = day
        for window in self._windows:
            window.total = window.total + window.weight * growth
            window.weight *= self.gamma
            window.bars += 1
        while self._windows and self._windows[0].bars >= self.horizon:
            done = self._windows.popleft()
            self._today += (done.total < done.bound).tolist()
        return self.days


def log_growth(equity: Array, before: Array) -> Array:
    """Return the log growth of each account over a bar, [S]."""
    growth: Array = np.log(np.maximum(equity, LEAST_EQUITY) / np.maximum(before, LEAST_EQUITY))
    return growth


def restored_watch(
    watch: TailWatch, journal: Journal, symbols: Sequence[str], until_ms: int, bar_ms: int
) -> TailWatch:
    """Return a watch that has seen what the journal holds, up to a decision.

    It is, to the bit, that of a trader who was never restarted: growth is that of the recorded
    accounts, predictions are the recorded distributions. Only the end of the journal is read: back
    to a day that is known whole and lay inside of the band, before which nothing counts. Where a
    journal was trimmed, days in a row are counted from its first one.

    Args:
        watch: that has seen nothing.
        journal: of the account.
        symbols: in the order of the accounts.
        until_ms: open time of the last bar that it shall have seen.
        bar_ms: length of a bar.
    """
    span = watch.horizon * bar_ms + 3 * _DAY_MS
    (first,) = journal.rows("SELECT min(ts) FROM decisions")[0]
    while first is not None:
        since = until_ms - span
        whole = since <= int(str(first))
        made = TailWatch(watch.horizon, watch.gamma, watch.level, watch.shift)
        _follow(made, journal, symbols, (since, until_ms), bar_ms, whole=whole)
        if whole or made.days < _UNKNOWN_DAYS:
            return made
        span *= 2
    return watch


def _follow(
    watch: TailWatch,
    journal: Journal,
    symbols: Sequence[str],
    span: tuple[int, int],
    bar_ms: int,
    *,
    whole: bool,
) -> None:
    """Let a watch see the recorded bars of a span; days that it cannot know whole count as many."""
    rows = journal.rows(
        "SELECT ts, symbol, account, distribution FROM decisions WHERE ts BETWEEN ? AND ? "
        "ORDER BY ts",
        *span,
    )
    bars: dict[int, dict[str, tuple[object, ...]]] = {}
    for ts, symbol, *cells in rows:
        bars.setdefault(int(str(ts)), {})[str(symbol)] = tuple(cells)
    before: Array | None = None
    days = 0
    for place, (ts, own) in enumerate(bars.items()):
        accounts = [json.loads(str(own[symbol][0])) for symbol in symbols]
        equity = np.array([account["equity"] for account in accounts], dtype=np.float64)
        if before is not None:
            day = watch.day
            watch.realised(log_growth(equity, before), ts + bar_ms)
            # windows of earlier predictions are missing until H bars have passed
            if day != watch.day and place > watch.horizon:
                days += 1
            if not whole and days <= 1:
                watch.days = _UNKNOWN_DAYS
        before = equity
        cells = [own[symbol][1] for symbol in symbols]
        quantiles = [np.frombuffer(cell) for cell in cells if isinstance(cell, bytes)]
        if len(quantiles) == len(symbols):
            watch.predicted(np.stack(quantiles))


def level_index(levels: Array, alpha: float) -> int:
    """Return the index of the quantile at a tail share: the largest level at or below it."""
    below = np.flatnonzero(levels <= alpha)
    return int(below[-1]) if below.size else 0


def conformal_shift_of(
    calibration: Mapping[str, JsonValue], levels: Sequence[float]
) -> list[float]:
    """Return the correction of each level from a saved calibration; 0 where it has none.

    Raises:
        ConfigError: if it was not fitted, or for other levels.
    """
    conformal = calibration.get("conformal")
    if not isinstance(conformal, dict):
        raise _unfit("none")
    fitted, shifts = conformal.get("levels"), conformal.get("shifts")
    if not isinstance(fitted, list) or not isinstance(shifts, list):
        raise _unfit("a document without levels and shifts")
    same = len(fitted) == len(levels) and all(
        isinstance(own, float) and math.isclose(own, level)
        for own, level in zip(fitted, levels, strict=True)
    )
    if not same:
        raise _unfit(f"other levels, {len(fitted)} of them, for a critic of {len(levels)}")
    values = [shift.get("value") if isinstance(shift, dict) else None for shift in shifts]
    return [float(value) if isinstance(value, int | float) else 0.0 for value in values]


def _unfit(found: str) -> ConfigError:
    return ConfigError(
        "config-inconsistent",
        wrong="the calibration must hold a conformal correction of this agent's critic",
        found=found,
        remedy="Write it with `stormsail backtest ... --conformal`, of the same agent.",
    )
