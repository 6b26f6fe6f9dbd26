"""`resample`: aggregate bars to a longer interval."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, column_type
from stormsail.market.interval import Interval

_Values = NDArray[Any]


def resample(bars: Bars, interval: Interval, *, keep_partial: bool = False) -> Bars:
    """Return the bars of a longer interval, labelled by open time.

    A bar opens where `Interval.number` changes: first open, highest high, lowest
    low, last close, sums of volumes and trades. The input must hold closed bars only, so a whole
    group is closed, too: no bar after its end can change it.

    Args:
        bars: closed bars.
        interval: a multiple of the bars' own interval.
        keep_partial: also return groups in which a bar is missing, inside or at either end. The
            last of them may be a bar that has not closed yet.

    Raises:
        DataError: if the interval is no multiple, or a bar does not open on its own grid.
    """
    check_multiple(bars, interval)
    check_alignment(bars)
    if not len(bars):
        return Bars(bars.symbol, interval, bars.table, _note(bars, interval, 0, keep_partial))
    group = interval.number(bars.ts)
    first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    count = np.diff(first, append=len(group))
    opening = interval.opening(group[first])
    step = bars.interval
    parts = step.number(interval.after(opening)) - step.number(opening)
    whole = count == parts
    keep = np.ones_like(whole) if keep_partial else whole
    columns: dict[str, _Values] = {"ts": opening}
    for name in bars.columns[1:]:
        columns[name] = _joined(name, bars.table[name].to_numpy(), first)
    arrays = {name: _array(name, values[keep]) for name, values in columns.items()}
    notes = _note(bars, interval, int((~whole).sum()), keep_partial)
    return Bars(bars.symbol, interval, pa.table(arrays), notes)


def check_multiple(bars: Bars, interval: Interval) -> None:
    """Refuse an interval that is no multiple of the bars' own."""
    if not bars.interval.divides(interval):
        raise DataError(
            "data-interval",
            wrong="bars can be joined only to a multiple of their own interval",
            found=f"{bars.interval} bars of {bars.symbol} and `{interval}`",
            remedy="Choose a multiple, or import shorter bars.",
        )


def check_alignment(bars: Bars) -> None:
    """Refuse bars that do not open on the grid of their interval."""
    off = np.flatnonzero(bars.interval.offset(bars.ts))
    if len(off):
        raise DataError(
            "data-alignment",
            wrong=f"bars of {bars.interval} must open at multiples of {bars.interval} in UTC",
            found=f"{bars.symbol} row {off[0]} at {iso(bars.ts[off[0]])}, {len(off)} such rows",
            remedy="Run `stormsail check` on the source; it lists every such row.",
        )


def _joined(name: str, values: _Values, first: NDArray[np.intp]) -> _Values:
    """Return one value a group; a NaN in a group stays a NaN."""
    if name == "open":
        return np.asarray(values[first])
    if name == "close":
        return np.asarray(values[np.append(first[1:], len(values)) - 1])
    joins = {"high": np.maximum, "low": np.minimum}
    result: _Values = joins.get(name, np.add).reduceat(values, first)
    return result


def _array(name: str, values: _Values) -> pa.Array:
    # A count that some source left out arrives as a NaN and must leave as "not there".
    unknown = np.isnan(values) if name == "trades" else None
    return pa.array(values, mask=unknown).cast(column_type(name))


def _note(bars: Bars, interval: Interval, partial: int, keep_partial: bool) -> dict[str, str]:  # noqa: FBT001
    if bars.interval == interval:
        return dict(bars.notes)
    fate = "kept" if keep_partial else "left out"
    text = f"from {bars.interval} to {interval}; {partial} incomplete {fate}"
    return {**bars.notes, "resampled": text}
