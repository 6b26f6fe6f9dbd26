"""Rows of an account's past, page by page, and week by week where the exchange tells no more."""

from collections.abc import Callable, Mapping

from stormsail.core.clock import Clock
from stormsail.execution.connection import binance
from stormsail.execution.connection.binance import Row

PAGE = 1000
WEEK_MS = 7 * 86_400_000 - 3_600_000
"""Of the past that futures tell at once: seven days, less an hour in which clocks may differ."""
OLDEST_MS = 90 * 86_400_000 - 3_600_000
"""What futures still tell."""

Ask = Callable[[Mapping[str, object]], object]
"""Returns the answer to a question, given its parameters."""


def rows_since(
    ask: Ask, what: str, params: Mapping[str, object], since_ms: int, cursor: str
) -> list[Row]:
    """Return all rows since a time, page by page; rows that pages share come once.

    Args:
        ask: the question.
        what: it is about, in words.
        params: of the question, beside time and length of a page.
        since_ms: time of the first row.
        cursor: field that tells rows apart, see `binance.identity`.

    Raises:
        VenueError: if a page is not answered, or holds no rows.
    """
    start = max(1, since_ms)
    rows: dict[str, Row] = {}
    while True:
        page = binance.rows_of(ask({**params, "limit": PAGE, "startTime": start}), what)
        before = len(rows)
        rows |= {binance.identity(row, cursor): row for row in page}
        if len(page) < PAGE or len(rows) == before:
            return list(rows.values())
        start = binance.milliseconds(page[-1], "time", "fundingTime", "createTime")


def rows_by_week(
    ask: Ask, what: str, params: Mapping[str, object], since_ms: int, cursor: str, *, clock: Clock
) -> list[Row]:
    """Return the same from an exchange that tells a week at once, and no more than 90 days.

    The last week is asked for without an end: what is new to the exchange is never cut off.
    """
    now_ms = clock.now_ns() // 1_000_000
    start = max(since_ms, now_ms - OLDEST_MS)
    rows: dict[str, Row] = {}
    while now_ms - start > WEEK_MS:
        week = {**params, "endTime": start + WEEK_MS}
        page = rows_since(ask, what, week, start, cursor)
        rows |= {binance.identity(row, cursor): row for row in page}
        start += WEEK_MS
    page = rows_since(ask, what, params, start, cursor)
    return list((rows | {binance.identity(row, cursor): row for row in page}).values())
