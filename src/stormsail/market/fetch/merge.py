"""Rows from several pages as one table: sorted, each time once, contradictions refused."""

import numpy as np
import pyarrow as pa

from stormsail.core.errors import DataError
from stormsail.market.checks import Finding, Report
from stormsail.market.fetch.pages import conflict


def merged(tables: list[pa.Table], columns: tuple[str, ...], what: str) -> pa.Table:
    """Return the rows of all tables, sorted by `ts`; of equal rows the first.

    Args:
        tables: each with at least these columns.
        columns: what to keep.
        what: words for the error.

    Raises:
        VenueError: if two rows of one time differ in any column; it names the time and both values.
    """
    table = pa.concat_tables([part.select(list(columns)) for part in tables]).combine_chunks()
    times = np.asarray(table["ts"].to_numpy(), dtype=np.int64)
    order = np.argsort(times, kind="stable")
    times, table = times[order], table.take(pa.array(order))
    again = np.flatnonzero(np.diff(times) == 0) + 1
    for name in columns:
        values = np.asarray(table[name].to_numpy())
        old, new = values[again - 1], values[again]
        differs = np.flatnonzero((old != new) & ~(_absent(old) & _absent(new)))
        if len(differs):
            row = int(differs[0])
            raise conflict(what, int(times[again[row]]), name, old[row].item(), new[row].item())
    keep = np.ones(len(times), dtype=bool)
    keep[again] = False
    return table.filter(pa.array(keep))


def _absent(values: np.ndarray) -> np.ndarray:
    """Return where there is no number; stored bars from elsewhere may have such places."""
    return np.isnan(values.astype(np.float64))


def accepted(report: Report, again: str) -> tuple[str, ...]:
    """Return the warnings of a report, a line each, without holes: those are counted anyway.

    Args:
        report: what the validator says of the rows that are about to be stored.
        again: how the exchange is asked for them once more.

    Raises:
        DataError: if the report has errors.
    """
    if not report.ok:
        raise DataError(
            "data-defects",
            wrong=f"{report.what} must be free of defects before it is stored",
            found="; ".join(map(_line, report.errors)),
            remedy=f"What was stored is untouched. If it is sound (`stormsail check`), {again}.",
        )
    return tuple(_line(found) for found in report.warnings if found.name != "gap")


def _line(found: Finding) -> str:
    detail = f" ({found.detail})" if found.detail else ""
    return f"{found.number} {found.name}, {found.count}x{detail}, first at {found.places[0]}"
