"""`fetch_funding`: download funding rates of a perpetual from an exchange into the store."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stormsail.core.clock import Clock, iso
from stormsail.core.errors import ArgumentError
from stormsail.market.bars import Funding, check_symbol
from stormsail.market.checks import check_funding
from stormsail.market.fetch.bars import FetchResult, OnProgress, Progress
from stormsail.market.fetch.client import (
    Client,
    Requester,
    RetryPolicy,
    response_error,
    symbol_error,
)
from stormsail.market.fetch.journal import FETCH
from stormsail.market.fetch.merge import accepted, merged
from stormsail.market.fetch.pages import find_market, number_of, whole
from stormsail.market.fetch.plan import Span
from stormsail.market.store import Store

_COLUMNS = ("ts", "funding_rate")
_NANOSECONDS_PER_MS = 1_000_000
_MINUTE_MS, _LATE_MS = 60_000, 1_000
_DEFAULT_LIMIT, _LARGEST_LIMIT = 100, 1000
_LONGEST_MS = 8 * 3_600_000 + _LATE_MS
"""No exchange settles less often than every 8 hours."""

# Here the largest page is known, though not to ccxt, and a shorter one is the last.
_BINANCE = frozenset({"binance", "binancecoinm", "binanceusdm"})


def fetch_funding(
    client: Client,
    store: Store,
    symbol: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    clock: Clock,
    generator: np.random.Generator,
    on_progress: OnProgress | None = None,
    retry: RetryPolicy | None = None,
    page: int | None = None,
) -> FetchResult:
    """Download the missing funding rates of a perpetual into the store.

    Exchanges stamp a settlement some milliseconds late; a time within a second of a full minute is
    stored as that minute, so that rates from different sources are of the same settlement.
    The arguments are those of `fetch_bars`; `until_ms` is None for now.

    Raises:
        VenueError: if the symbol has no funding, or the exchange fails, refuses or contradicts.
        DataError: if the store cannot be read or written.
        ArgumentError: if nothing is stored and `since_ms` is missing.
    """
    check_symbol(symbol)
    requester = Requester(client, clock, generator, retry or RetryPolicy())
    store.sweep(symbol)
    stored = store.read_funding(symbol)
    now = clock.now_ns() // _NANOSECONDS_PER_MS
    end = now + 1 if until_ms is None else min(until_ms, now + 1)
    spans = _spans(stored, symbol, since_ms, end)
    market = find_market(requester, symbol)
    if not market.get("swap") or not client.has.get("fetchFundingRateHistory"):
        raise symbol_error(client.id, symbol, "a market without funding rates", None)
    limit = page or _limit(client, symbol)
    table = stored.table if stored is not None else _table([])
    before = table.num_rows
    for span, stepwise in spans:
        pages = [table]
        for part in _pages(requester, symbol, span, limit):
            pages.append(_table(part))
            if stepwise:  # a head that is not complete would leave a break that nobody sees
                pages = [_stored_together(store, symbol, pages)]
            if on_progress is not None and part:
                done = min(part[-1].ts, span.end) - span.start
                on_progress(Progress(symbol, done, span.end - span.start))
        table = _stored_together(store, symbol, pages)
    path = store.funding_path(symbol) if table.num_rows else None
    added = table.num_rows - before
    warnings = accepted(check_funding(Funding(symbol, table)), "fetch again") if added else ()
    counts = requester.requests, requester.retries
    return FetchResult(symbol, path, added, table.num_rows, *counts, warnings=warnings)


@dataclass(frozen=True)
class _Rate:
    ts: int
    rate: float


def _spans(
    stored: Funding | None, symbol: str, since_ms: int | None, end: int
) -> list[tuple[Span, bool]]:
    """Return the spans to request, and whether each may be stored page by page."""
    if stored is None or not len(stored.ts):
        if since_ms is None:
            raise ArgumentError(
                "missing-argument",
                wrong="a first fetch must know where to begin",
                found=f"no stored funding rates of {symbol} and no `since`",
                remedy="Pass `--since 2020-01-01`, or the day from which you want the rates.",
            )
        return [(Span(since_ms, end), True)] if since_ms < end else []
    first, last = int(stored.ts[0]), int(stored.ts[-1])
    begin = first if since_ms is None else since_ms
    head = [(Span(begin, first + _LATE_MS), False)] if begin < first else []
    # Each span repeats the stored rate at its seam, which must be the same.
    return [*head, *([(Span(last, end), True)] if last + 1 < end else [])]


def _pages(requester: Requester, symbol: str, span: Span, limit: int) -> Iterator[list[_Rate]]:
    """Yield the rates of a span page by page, forward in time."""
    cursor = span.start
    while cursor < span.end:
        rates = _page(requester, symbol, Span(cursor, span.end), limit)
        if requester.client.id not in _BINANCE:
            rates = [*_older(requester, symbol, cursor, rates, limit), *rates]
        yield rates
        short = len(rates) < limit and requester.client.id in _BINANCE
        if short or not rates:
            return
        cursor = rates[-1].ts + 1


def _older(
    requester: Requester, symbol: str, start: int, rates: list[_Rate], limit: int
) -> list[_Rate]:
    """Return the rates between a time and a page that begins later than a settlement lasts.

    Some exchanges answer with the newest rates of a span, so older ones need their own request.
    """
    older: list[_Rate] = []
    page = rates
    while page:
        first = min(rate.ts for rate in page)
        if first - start <= _LONGEST_MS:
            break
        page = _page(requester, symbol, Span(start, first), limit)
        older = [*page, *older]
    return older


def _page(requester: Requester, symbol: str, span: Span, limit: int) -> list[_Rate]:
    client, what = requester.client, f"{symbol} funding"
    answer = requester.request(
        what,
        lambda: client.fetch_funding_rate_history(
            symbol, span.start, limit, {"until": span.end - 1}
        ),
    )
    if not isinstance(answer, list):
        raise response_error(client, what, f"a {type(answer).__name__} instead of a list")
    given = client.last_json_response
    if isinstance(given, list) and len(given) > len(answer):  # ccxt drops them without a word
        lost = len(given) - len(answer)
        raise response_error(client, what, f"{lost} rates of other symbols or times")
    rates: list[_Rate] = []
    for number, entry in enumerate(answer):
        rate = _rate(entry, symbol)
        if rate is None:
            raise response_error(client, what, f"row {number} = {entry!r}"[:120])
        if not span.start <= rate.ts < span.end:
            if rate.ts > requester.now_ms() or rate.ts < span.start:
                problem = f"a rate of {iso(rate.ts)}, outside of the requested span"
                raise response_error(client, what, problem)
            continue  # an exchange that does not know an end answers beyond it
        rates.append(rate)
    return rates


def _rate(entry: object, symbol: str) -> _Rate | None:
    """Return a rate, or None for an entry that is not a rate of this symbol."""
    if not isinstance(entry, dict) or entry.get("symbol") != symbol:
        return None
    ts, rate = whole(entry.get("timestamp")), number_of(entry.get("fundingRate"))
    return None if ts is None or rate is None else _Rate(ts, rate)


def _settlement(ts: int) -> int:
    minute = (ts + _MINUTE_MS // 2) // _MINUTE_MS * _MINUTE_MS
    return minute if abs(ts - minute) < _LATE_MS else ts


def _limit(client: Client, symbol: str) -> int:
    if client.id in _BINANCE:
        return _LARGEST_LIMIT
    limit = client.feature_value(symbol, "fetchFundingRateHistory", "limit")
    return min(limit, _LARGEST_LIMIT) if isinstance(limit, int) and limit > 0 else _DEFAULT_LIMIT


def _table(rates: list[_Rate]) -> pa.Table:
    ts = pa.array([_settlement(rate.ts) for rate in rates], pa.int64())
    return pa.table(
        {"ts": ts, "funding_rate": pa.array([rate.rate for rate in rates], pa.float64())}
    )


def _stored_together(store: Store, symbol: str, tables: list[pa.Table]) -> pa.Table:
    """Return the rates of all tables, after storing them if there is something new.

    They are merged with what is stored at that moment: an import may have added rates meanwhile.
    """
    what = f"{symbol} funding"
    if not any(table.num_rows for table in tables[1:]):
        return merged(tables, _COLUMNS, what)
    with store.writing(FETCH):
        stored = store.read_funding(symbol)
        known = [] if stored is None else [stored.table]
        table = merged([*known, *tables], _COLUMNS, what)
        if stored is None or table.num_rows > len(stored):
            funding = Funding(symbol, table)
            accepted(check_funding(funding), "fetch again")
            store.write_funding(funding)
    return table
