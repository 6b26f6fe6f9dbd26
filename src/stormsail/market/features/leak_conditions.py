"""What the rows that leak have in common: a time, a date, a price, a length of the history."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.core.clock import iso
from stormsail.market.features.tensors import FUNDING, BarTensors

EVERYWHERE = "in every row"

_MOST = 0.9
"""Share of rows from which on a condition is taken for the whole of it."""
_FEWEST = 0.5
"""Share of rows below which something is no condition."""

_MINUTE = 60_000
_DAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")


_Key = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class Rows(NamedTuple):
    """Rows that were tested, one entry for each row and symbol."""

    leaks: NDArray[np.bool_]
    ts: NDArray[np.int64]
    price: NDArray[np.float64]
    volume: NDArray[np.float64]
    move: NDArray[np.float64]
    """Size of the bar's log return."""
    funding: NDArray[np.float64]
    length: NDArray[np.int64]
    """Bars of the history."""

    def only(self, mask: NDArray[np.bool_]) -> "Rows":
        """Return some of them."""
        columns: tuple[Any, ...] = self
        return Rows(*(column[mask] for column in columns))


class Condition(NamedTuple):
    """A description, and the rows it is true of."""

    text: str
    holds: NDArray[np.bool_]


def rows_of(bars: BarTensors, tested: Tensor, leaks: Tensor, *, length: int) -> Rows:
    """Return the tested rows [T] of a history with what may be a condition of leaks [T, S]."""
    close, volume, funding = (_column(bars, name) for name in ("close", "volume", FUNDING))
    move = torch.zeros_like(close)
    move[1:] = (close[1:] / close[:-1]).log().abs()
    ts = bars.ts[:, None].expand(leaks.shape)
    parts = (leaks, ts, close, volume, move, funding, torch.full_like(ts, length))
    return Rows(*(part[tested].flatten().cpu().numpy() for part in parts))


def _column(bars: BarTensors, name: str) -> Tensor:
    shape = (len(bars), bars.symbols)
    column = bars.columns.get(name)
    return torch.full(shape, torch.nan, dtype=torch.float64) if column is None else column


def condition_of(parts: Sequence[Rows]) -> str:
    """Return in words which rows leak: at most two conditions, and how many rows they meet."""
    rows = Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    count = int(rows.leaks.sum())
    texts: list[str] = []
    if count >= _MOST * len(rows.leaks):
        return EVERYWHERE
    while len(texts) < 2 and count < _MOST * len(rows.leaks):
        best = _simplest(rows, list(_conditions(rows)))
        if best is None or best.holds.sum() > _MOST * len(rows.leaks):
            break
        texts.append(best.text)
        rows = rows.only(best.holds)
    if not texts or count < _FEWEST * len(rows.leaks):
        total = sum(len(part.leaks) for part in parts)
        return f"in {count} of {total} rows, without a condition that was found"
    return f"{' and '.join(texts)}: {count} of {len(rows.leaks)} such rows"


def _simplest(rows: Rows, conditions: list[Condition]) -> Condition | None:
    """Return the first condition that fits about as well as the best."""
    shares = [_share(rows, condition) for condition in conditions]
    least = _MOST * max(shares, default=0.0)
    return next((x for x, share in zip(conditions, shares, strict=True) if share >= least), None)


def _share(rows: Rows, condition: Condition) -> float:
    return float(rows.leaks.sum() / max(1, condition.holds.sum()))


def _conditions(rows: Rows) -> Iterator[Condition]:
    """Yield conditions that hold for all rows that leak, simple ones first."""
    if (rows.volume[rows.leaks] == 0.0).all():
        yield Condition("on bars without volume", rows.volume == 0.0)
    for part in _KEYS:
        yield from _at_times(rows, *part)
    edges = list(_edges(rows))
    for pair in edges:
        yield from pair
    yield from _at_times(rows, _date, lambda date: f"on {date // 100:02d}-{date % 100:02d}")
    for over, under in edges:
        yield Condition(f"{over.text} and {under.text}", over.holds & under.holds)


def _at_times(rows: Rows, key: _Key, words: Callable[[int], str]) -> Iterator[Condition]:
    """Yield that rows open at some of the values that a part of the time has, if not at most."""
    values = key(rows.ts)
    chosen = np.unique(values[rows.leaks])
    if len(chosen) <= 0.5 * len(np.unique(values)):
        shown = ", ".join(words(int(value)) for value in chosen[:4])
        more = f" and {len(chosen) - 4} more" if len(chosen) > 4 else ""
        yield Condition(shown + more, np.isin(values, chosen))


def _edges(rows: Rows) -> Iterator[tuple[Condition, Condition]]:
    """Yield the lowest and the highest value of a column among the rows that leak."""
    for name, number, above, below in _EDGES:
        values = getattr(rows, name)
        known = values[rows.leaks]
        if np.isfinite(known).all():
            low, high = known.min(), known.max()
            yield (
                Condition(above.format(number(low)), values >= low),
                Condition(below.format(number(high)), values <= high),
            )


def _month(ts: NDArray[np.int64]) -> NDArray[np.int64]:
    return ts.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64) % 12


def _day(ts: NDArray[np.int64]) -> NDArray[np.int64]:
    moments = ts.astype("datetime64[ms]")
    first = moments.astype("datetime64[M]").astype("datetime64[D]")
    days: NDArray[np.int64] = (moments.astype("datetime64[D]") - first).astype(np.int64)
    return days + 1


def _date(ts: NDArray[np.int64]) -> NDArray[np.int64]:
    return 100 * (_month(ts) + 1) + _day(ts)


def _day_from_end(ts: NDArray[np.int64]) -> NDArray[np.int64]:
    moments = ts.astype("datetime64[ms]")
    after = (moments.astype("datetime64[M]") + 1).astype("datetime64[D]")
    days: NDArray[np.int64] = (after - moments.astype("datetime64[D]")).astype(np.int64)
    return days


def _minute_of_week(ts: NDArray[np.int64]) -> NDArray[np.int64]:
    return (ts // _MINUTE + 3 * 1440) % (7 * 1440)  # 1970-01-01 was a Thursday


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d} UTC"


_KEYS: tuple[tuple[_Key, Callable[[int], str]], ...] = (
    (lambda ts: ts // _MINUTE % 1440, lambda m: f"at {_clock(m)}"),
    (lambda ts: _minute_of_week(ts) // 1440, lambda day: f"on {_DAYS[day]}"),
    (_minute_of_week, lambda m: f"on {_DAYS[m // 1440]} at {_clock(m % 1440)}"),
    (lambda ts: ts // _MINUTE % 60, lambda minute: f"in minute {minute} of the hour"),
    (_day, lambda day: f"on day {day} of the month"),
    (_day_from_end, lambda day: f"on day {day} of the month, counted from its end"),
    (_month, lambda month: f"in month {month + 1}"),
)
"""Parts of the time that a bar opens at, and what they are called."""

_EDGES: tuple[tuple[str, Callable[[Any], object], str, str], ...] = (
    ("ts", lambda ts: iso(int(ts)), "from {} on", "until {}"),
    ("length", int, "in histories of {} bars or more", "in histories of {} bars or fewer"),
    ("price", float, "at closes of {:.4g} or more", "at closes of {:.4g} or less"),
    ("volume", float, "at volumes of {:.4g} or more", "at volumes of {:.4g} or less"),
    ("move", float, "after log returns of {:.3g} or more", "after log returns of {:.3g} or less"),
    ("funding", float, "at funding rates of {:.3g} or more", "at funding rates of {:.3g} or less"),
)
"""Columns of `Rows` that may have to be large or small, and how that is called."""
