"""Merging of imported rows with the stored rows of the same symbol."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.market.bars import Bars, Funding, Mark
from stormsail.market.merge import Conflict, merge_rows

Data = Bars | Funding | Mark


def with_stored(new: Data, stored: Data) -> tuple[Data, list[str]]:
    """Return the rows of both, and lines for the user about what that changed.

    Where one of the two holds all of it already, its notes stay: importing the same files again
    gives the same bytes.

    Raises:
        DataError: if two rows of one time differ; it names the first such time.
        TypeError: if the two are of different kinds.
    """
    if isinstance(new, Bars) and isinstance(stored, Bars):
        return _bars(new, stored)
    if isinstance(new, Funding) and isinstance(stored, Funding):
        return _funding(new, stored)
    if isinstance(new, Mark) and isinstance(stored, Mark):
        return _marks(new, stored)
    raise TypeError("rows of different kinds cannot be joined")


def _bars(new: Bars, stored: Bars) -> tuple[Bars, list[str]]:
    what = f"{new.symbol} {new.interval}"
    columns = [name for name in new.columns if name in stored.columns]
    table = _merged(stored.table, new.table, columns, what)
    lines = _lines(len(stored), len(new), table.num_rows, "bars")
    for bars, place in ((stored, "stored bars"), (new, "new bars")):
        lost = [name for name in bars.columns if name not in columns]
        if lost:
            words = ", ".join(lost)
            lines.append(f"note: {what} is stored without {words}, which only the {place} have")
    both = Bars(new.symbol, new.interval, table, _notes(stored, new))
    same = next((bars for bars in (stored, new) if bars.digest() == both.digest()), None)
    return (both if same is None else replace(both, notes=same.notes)), lines


def _funding(new: Funding, stored: Funding) -> tuple[Funding, list[str]]:
    columns = ["ts", "funding_rate"]
    table = _merged(stored.table, new.table, columns, f"the funding of {new.symbol}")
    lines = _lines(len(stored), len(new), table.num_rows, "rates")
    return Funding(new.symbol, table), lines


def _marks(new: Mark, stored: Mark) -> tuple[Mark, list[str]]:
    what = f"the mark prices of {new.symbol} {new.interval}"
    table = _merged(stored.table, new.table, new.table.column_names, what)
    lines = _lines(len(stored), len(new), table.num_rows, "mark prices")
    return Mark(new.symbol, new.interval, table), lines


def _lines(stored: int, new: int, both: int, what: str) -> list[str]:
    if both in (stored, new):  # one holds every time of the other: nothing was put together
        return []
    shared = stored + new - both
    return [f"joined: {stored} stored and {new} new {what}, {shared} of them in both"]


def _notes(stored: Bars, new: Bars) -> dict[str, str]:
    notes = {**stored.notes, **new.notes}
    for key in stored.notes.keys() & new.notes.keys():
        parts = [*stored.notes[key].split("; "), *new.notes[key].split("; ")]
        notes[key] = "; ".join(dict.fromkeys(parts))
    return notes


def _merged(stored: pa.Table, new: pa.Table, columns: list[str], what: str) -> pa.Table:
    def refusal(conflict: Conflict) -> DataError:
        values = f"`{conflict.column}` {conflict.old} stored and {conflict.new} new"
        return DataError(
            "data-mismatch",
            wrong=f"new rows of {what} must equal the stored rows of the same times",
            found=f"{iso(conflict.ts)} with {values}",
            remedy="Import into another store, or pass `--replace`.",
        )

    return merge_rows([stored, new], columns, refusal=refusal)


def span(ts_ms: NDArray[np.int64]) -> str:
    """Return the first and last time as text."""
    return f"{iso(ts_ms[0])} to {iso(ts_ms[-1])}" if len(ts_ms) else "no row"
