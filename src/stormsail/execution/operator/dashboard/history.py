"""What a page remembers of a journal between two looks: equity and open orders, as they grow.

A journal only grows, so that each look reads what is new. Trimming takes away its oldest bars, and
another file may take its place: both are noticed, and everything is read anew.
"""

import threading
from dataclasses import dataclass, field

import numpy as np

from stormsail.evaluation.stats.figures import cvar
from stormsail.execution.journal import Journal

Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]

_OPEN = "kind IS NULL OR kind = 'unknown' OR status = 'open'"
_SHOWN = (
    "SELECT client_id, symbol, side, quantity, coalesce(filled, '0'), type, "
    "coalesce(status, kind, 'no answer'), created_ms FROM order_states"
)


@dataclass(frozen=True)
class Seen:
    """What a journal held at a look.

    Attributes:
        equity: a row a bar: time, total, peak, total when the UTC day began.
        orders: that may still change something, the newest first.
        realised: tail of the returns over windows of bars; None where it was not asked for.
    """

    equity: Table
    orders: tuple[tuple[object, ...], ...]
    realised: float | None


@dataclass
class History:
    """Reads a journal again and again, what is new alone; from several threads."""

    _alone: threading.Lock = field(default_factory=threading.Lock)
    _origin: tuple[object, ...] = ()
    _equity: Table = field(default_factory=lambda: np.empty((0, 4)))
    _intent: int = 0
    _open: tuple[str, ...] = ()
    _realised: dict[tuple[int, float], float] = field(default_factory=dict)

    def look(self, journal: Journal, bars: int | None, alpha: float) -> Seen:
        """Return what a journal holds now.

        Args:
            journal: of the same folder at every look.
            bars: of the windows of the realised tail; None asks for none.
            alpha: its share.
        """
        with self._alone:
            self._follow(journal)
            orders = self._orders(journal)
            realised = None
            if bars is not None and len(self._equity) > bars:
                realised = self._tail(bars, alpha)
            return Seen(self._equity, orders, realised)

    def _follow(self, journal: Journal) -> None:
        first = journal.rows("SELECT min(ts) FROM equity")[0][0]
        origin = (journal.epoch, first)
        if origin != self._origin:
            self._origin, self._intent, self._open = origin, 0, ()
            self._equity = np.empty((0, 4))
            self._realised.clear()
        last = int(self._equity[-1, 0]) if len(self._equity) else -1
        new = journal.rows(
            "SELECT ts, total, peak, day_start FROM equity WHERE ts > ? ORDER BY ts", last
        )
        if new:
            self._equity = np.concatenate([self._equity, np.array(new, dtype=np.float64)])
            self._realised.clear()

    def _orders(self, journal: Journal) -> tuple[tuple[object, ...], ...]:
        """Return the orders that may still change something; a final one stays final."""
        new = journal.rows("SELECT rowid, client_id FROM intents WHERE rowid > ?", self._intent)
        names = (*self._open, *(str(row[1]) for row in new))
        shown: list[tuple[object, ...]] = []
        for start in range(0, len(names), _MOST):
            some = names[start : start + _MOST]
            marks = ", ".join("?" * len(some))
            shown += journal.rows(f"{_SHOWN} WHERE client_id IN ({marks}) AND ({_OPEN})", *some)
        self._open = tuple(str(row[0]) for row in shown)
        self._intent = max((int(str(row[0])) for row in new), default=self._intent)
        return tuple(sorted(shown, key=lambda row: -int(str(row[-1]))))

    def _tail(self, bars: int, alpha: float) -> float:
        if (bars, alpha) not in self._realised:
            returns = self._equity[bars:, 1] / self._equity[:-bars, 1] - 1.0
            self._realised[bars, alpha] = cvar(returns, alpha=alpha)
        return self._realised[bars, alpha]


_MOST = 500
"""Names in one question; SQLite takes no more than some ten thousand values."""
