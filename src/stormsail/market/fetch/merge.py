"""Merging of fetched rows, and their check before they are stored."""

import pyarrow as pa

from stormsail.core.errors import DataError
from stormsail.market.checks import Finding, Report
from stormsail.market.fetch.pages import conflict_error
from stormsail.market.merge import merge_rows


def merged(tables: list[pa.Table], columns: tuple[str, ...], what: str) -> pa.Table:
    """Return the rows of all tables, sorted by `ts`; of equal rows the first.

    Rows of one time that differ are a `VenueError` about `what`, with the time and both values.
    """
    return merge_rows(tables, columns, refusal=lambda conflict: conflict_error(what, conflict))


def accepted(report: Report, again: str) -> tuple[str, ...]:
    """Return the warnings of a report, a line each, without gaps: those are counted anyway.

    Args:
        report: of the check of the rows that are about to be stored.
        again: how to fetch them once more.

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
    return tuple(_line(finding) for finding in report.warnings if finding.name != "gap")


def _line(finding: Finding) -> str:
    detail = f" ({finding.detail})" if finding.detail else ""
    head = f"{finding.number} {finding.name}, {finding.count}x{detail}"
    return f"{head}, first at {finding.places[0]}"
