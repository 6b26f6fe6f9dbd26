"""Merging of tables that overlap in time: sorted, each time once, contradictions refused."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Conflict(NamedTuple):
    """Two rows of one time with different values in a column."""

    ts: int
    column: str
    old: float
    new: float


def merge_rows(
    tables: Sequence[pa.Table],
    columns: Sequence[str],
    *,
    refusal: Callable[[Conflict], Exception],
) -> pa.Table:
    """Return the rows of all tables sorted by `ts`; of rows with the same time the first.

    NaN equals NaN: it stands where a source has no value.

    Args:
        tables: each with at least these columns, older ones first.
        columns: to keep, `ts` among them.
        refusal: makes the error for the earliest contradiction.
    """
    table = pa.concat_tables([part.select(list(columns)) for part in tables]).combine_chunks()
    times = np.asarray(table["ts"].to_numpy(), dtype=np.int64)
    order = np.argsort(times, kind="stable")
    times, table = times[order], table.take(pa.array(order))
    again = np.flatnonzero(np.diff(times) == 0) + 1
    conflicts = []
    for name in columns:
        values = np.asarray(table[name].to_numpy())
        rows = again[_differ(values[again - 1], values[again])]
        if len(rows):
            row = int(rows[0])
            old, new = values[row - 1].item(), values[row].item()
            conflicts.append(Conflict(int(times[row]), name, old, new))
    if conflicts:
        raise refusal(min(conflicts, key=lambda conflict: conflict.ts))
    keep = np.ones(len(times), dtype=bool)
    keep[again] = False
    return table.filter(pa.array(keep))


def _differ(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.bool_]:
    absent = np.isnan(old) & np.isnan(new)
    return np.asarray((old != new) & ~absent, dtype=np.bool_)
