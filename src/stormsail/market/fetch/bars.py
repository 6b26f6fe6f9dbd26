"""`fetch_bars`: download bars from an exchange into the store, resumable after a kill.

Stored bars are not requested again, except one at each seam: it must be the same, or the fetch
stops. What arrives is kept in a journal until it is complete, so that a kill costs a few pages. The
result does not depend on how often the fetch was interrupted.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from stormsail.core.clock import Clock
from stormsail.core.errors import ArgumentError, DataError
from stormsail.market.bars import Bars, canonical, check_symbol
from stormsail.market.checks import check_bars
from stormsail.market.fetch.client import Client, Requester, RetryPolicy
from stormsail.market.fetch.journal import (
    FETCH,
    Journal,
    Part,
    clear_lock,
    journal_path,
    open_journal,
    remove_journal,
)
from stormsail.market.fetch.merge import accepted, merged
from stormsail.market.fetch.pages import Row, Source, open_source
from stormsail.market.fetch.plan import (
    GAPS,
    REQUESTED,
    Gap,
    Span,
    bar_at_or_after,
    closed_end,
    gaps,
    gaps_note,
    missing,
    read_requested,
    requested_note,
    union,
)
from stormsail.market.interval import Interval
from stormsail.market.store import Store

EXCHANGE = "exchange"
"""Note of the stored bars: the ccxt id of the exchange they were fetched from."""

PAGES_PER_PART = 8
"""A kill loses at most this many pages."""

_NANOSECONDS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Progress:
    """Progress of a fetch: of `total` bar times that were missing, `done` are settled."""

    symbol: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class FetchResult:
    """Result of a fetch.

    Attributes:
        path: the file, or None if there is none because the exchange has nothing.
        added: rows that were not stored before.
        rows: rows that are stored now.
        gaps: between the first and the last of them.
        requests: sent to the exchange, retries included.
        retries: requests that were repeated after a failure.
        warnings: of the data checks about what was stored, a line each.
    """

    symbol: str
    path: Path | None
    added: int
    rows: int
    requests: int
    retries: int
    gaps: tuple[Gap, ...] = ()
    warnings: tuple[str, ...] = ()


def fetch_bars(
    client: Client,
    store: Store,
    symbol: str,
    interval: Interval,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    clock: Clock,
    generator: np.random.Generator,
    on_progress: OnProgress | None = None,
    retry: RetryPolicy | None = None,
    page: int | None = None,
) -> FetchResult:
    """Download the missing bars of a symbol into the store.

    The stored bars stay one stretch of time without a break made by fetching: a fetch begins where
    the stored bars end, even if `since_ms` is later, and fills up to their beginning if it is
    earlier. The bar that is still forming is never stored.

    Args:
        client: a ccxt exchange, see `connect`.
        store: where the bars go.
        symbol: as ccxt writes it.
        interval: length of a bar; the exchange must offer it.
        since_ms: earliest open time; None continues what is stored.
        until_ms: open times from here on are not fetched; None means up to the last closed bar.
        clock: decides which bars have closed, and waits between tries.
        generator: jitter of the waits.
        on_progress: called after every page.
        retry: how often and how long to try.
        page: rows per request; None takes what the exchange allows.

    Raises:
        VenueError: if the exchange does not answer, refuses, or answers nonsense.
        DataError: if the store cannot be read or written.
        ArgumentError: if nothing is stored and `since_ms` is missing.
    """
    check_symbol(symbol)
    interval.check_fixed("a fetch")
    requester = Requester(client, clock, generator, retry or RetryPolicy())
    stored = _stored(store, symbol, interval)
    wanted = _wanted(stored, symbol, interval, since_ms, until_ms, clock)
    path = store.path(symbol, interval)
    store.sweep(symbol)
    if not journal_path(path).exists() and not missing(wanted, _covered(stored)):
        clear_lock(path)
        return _nothing_to_do(stored, path, symbol)
    source = open_source(requester, symbol, interval, page)
    _check_columns(stored, source, path)
    with open_journal(path, f"{client.id} {symbol} {interval} {' '.join(source.columns)}") as kept:
        stored = _stored(store, symbol, interval)  # another fetch may have ended meanwhile
        running = _BarFetch(source, stored, kept, wanted)
        with running.stored_at_the_end(store) as outcome:
            running.run(on_progress)
    return replace(outcome.fetched, requests=requester.requests, retries=requester.retries)


@dataclass
class _Outcome:
    fetched: FetchResult


@dataclass
class _Pending:
    """Pages since the last part of the journal was written."""

    start: int
    end: int
    pages: int = 0
    rows: list[Row] = field(default_factory=list)


class _BarFetch:
    """A running fetch: the rows that were known before it, and those that arrived since."""

    def __init__(self, source: Source, stored: Bars | None, journal: Journal, wanted: Span) -> None:
        self._source = source
        self._stored = stored
        self._journal = journal
        parts = journal.parts()
        self._step = source.interval.milliseconds
        self._fetched = [part.table for part in parts]
        self._requested = [
            *read_requested(stored.notes if stored else {}),
            *(part.span for part in parts),
        ]
        self._before = self._merged(stored)
        self._newest = wanted.end
        self._spans = missing(wanted, [*_covered(stored), *self._requested])
        self._pending = _Pending(wanted.start, wanted.start)

    def run(self, on_progress: OnProgress | None) -> None:
        """Fetch span by span, page by page, forward in time."""
        total = sum(span.end - span.start for span in self._spans) // self._step
        before = 0
        for span in self._spans:
            self._pending = _Pending(span.start, span.start)
            for settled in self._pages(span):
                if on_progress is not None:
                    done = before + (settled - span.start) // self._step
                    on_progress(Progress(self._source.symbol, done, total))
            self._flush()
            before += (span.end - span.start) // self._step

    def _pages(self, span: Span) -> Iterator[int]:
        """Fetch one span; yield after each page the time up to which all bars are settled."""
        previous = span.start - self._step
        edges = {ts: row for ts in (previous, span.end) if (row := self._known(ts))}
        cursor = previous if previous in edges else span.start
        end = span.end + self._step if span.end in edges else span.end
        recent, new = edges, list[Row]()
        while cursor < end:
            rows, cursor = self._page(Span(cursor, end), recent)
            recent = edges | {int(row[0]): row for row in rows}
            settled = max(min(cursor, span.end), span.start)
            # Nothing at the newest edge may mean: not published yet. The next fetch requests it.
            open_end = not rows and span.end == self._newest
            new += [row for row in rows if span.start <= row[0] < span.end]
            if settled < span.end or cursor >= end:  # a span meets what follows only if both agree
                self._take(new, self._pending.end if open_end else settled)
                new = []
            yield settled

    def _page(self, span: Span, recent: dict[int, Row]) -> tuple[list[Row], int]:
        """Return the bars of one page, and the time up to which there are no others.

        A page with a gap, or without a bar, is requested a second time before it is accepted.
        """
        rows = self._source.page(span, recent)
        if not rows or self._has_gap(rows, span.start):
            again = self._source.page(span, recent | {int(row[0]): row for row in rows})
            rows = sorted({row[0]: row for row in (*rows, *again)}.values())
        if rows:
            return rows, int(rows[-1][0]) + self._step
        window = span.start + self._source.limit * self._step
        return [], span.end if self._source.knows_end else min(window, span.end)

    def _has_gap(self, rows: list[Row], start: int) -> bool:
        return int(rows[-1][0]) - start >= len(rows) * self._step

    def _merged(self, stored: Bars | None) -> pa.Table:
        """Return the stored bars and those that were fetched, with the columns of the store."""
        columns = stored.columns if stored is not None else self._source.columns
        tables = [] if stored is None else [stored.table]
        tables += [part.select(list(columns)) for part in self._fetched]
        return merged(tables or [_table((), columns)], columns, self._source.what)

    def _known(self, ts: int) -> Row | None:
        """Return the bar of that time if it was there before this fetch; NaN in absent columns."""
        times = np.asarray(self._before["ts"].to_numpy(), dtype=np.int64)
        place = int(np.searchsorted(times, ts))
        if place == len(times) or times[place] != ts:
            return None
        row = self._before.slice(place, 1).to_pylist()[0]
        return tuple(row.get(name, math.nan) for name in self._source.columns)

    def _take(self, rows: list[Row], settled: int) -> None:
        pending = self._pending
        pending.rows += rows
        pending.end = max(pending.end, settled)
        pending.pages += 1
        if pending.pages >= PAGES_PER_PART:
            self._flush()

    def _flush(self) -> None:
        """Put the pages since the last part into the journal."""
        pending = self._pending
        if pending.start < pending.end:
            table = _table(pending.rows, self._source.columns)
            part = Part(Span(pending.start, pending.end), table)
            self._journal.write(part)
            self._fetched.append(table)
            self._requested.append(part.span)
        self._pending = _Pending(pending.end, pending.end)

    @contextlib.contextmanager
    def stored_at_the_end(self, store: Store) -> Iterator[_Outcome]:
        """Store what was fetched, also after an error or an interrupt.

        If the stored bars and the new ones do not meet yet, the new ones stay in the journal:
        a break made by fetching would look like a gap of the exchange.
        """
        path = store.path(self._source.symbol, self._source.interval)
        outcome = _Outcome(_nothing_to_do(self._stored, path, self._source.symbol))
        try:
            yield outcome
        finally:
            self._flush()
            if len(union([*_covered(self._stored), *self._requested])) <= 1:
                outcome.fetched = self._settle(store)

    def _settle(self, store: Store) -> FetchResult:
        """Store what was fetched together with what is stored now, as one step."""
        symbol, interval = self._source.symbol, self._source.interval
        path = store.path(symbol, interval)
        found_gaps: list[Gap] = []
        warnings: tuple[str, ...] = ()
        with store.writing(FETCH):
            stored = _stored(store, symbol, interval)
            _check_columns(stored, self._source, path)  # an import may have replaced the bars
            table = self._merged(stored)
            if table.num_rows:
                old = dict(stored.notes) if stored is not None else {}
                bars = Bars(symbol, interval, table)
                found_gaps = gaps(bars.ts, interval, self._requested)
                notes = old | {
                    EXCHANGE: self._source.requester.client.id,
                    REQUESTED: requested_note(self._requested),
                    GAPS: gaps_note(found_gaps),
                }
                if stored is None or len(bars) > len(stored) or notes != old:
                    report = check_bars(bars, now_ms=self._source.requester.now_ms())
                    warnings = accepted(report, f"remove {journal_path(path)} and fetch again")
                    store.write(replace(bars, notes=dict(sorted(notes.items()))))
        remove_journal(path)
        before = 0 if stored is None else len(stored)
        there = path if table.num_rows else None
        added = table.num_rows - before
        return FetchResult(symbol, there, added, table.num_rows, 0, 0, tuple(found_gaps), warnings)


def _table(rows: Sequence[Row], names: tuple[str, ...]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return canonical(pa.table(dict(zip(names, columns, strict=True))), place="a page")


def _stored(store: Store, symbol: str, interval: Interval) -> Bars | None:
    return store.read(symbol, interval) if store.path(symbol, interval).exists() else None


def _covered(stored: Bars | None) -> list[Span]:
    """Return spans that need no request: the stored bars, and what was requested before."""
    if stored is None or not len(stored):
        return []
    whole = Span(int(stored.ts[0]), int(stored.ts[-1]) + stored.interval.milliseconds)
    return [whole, *read_requested(stored.notes)]


def _wanted(
    stored: Bars | None,
    symbol: str,
    interval: Interval,
    since_ms: int | None,
    until_ms: int | None,
    clock: Clock,
) -> Span:
    """Return the span of time that shall be stored in the end."""
    end = closed_end(clock.now_ns() // _NANOSECONDS_PER_MS, interval)
    if until_ms is not None:
        end = min(end, bar_at_or_after(until_ms, interval))
    covered = _covered(stored)
    if since_ms is None and not covered:
        raise ArgumentError(
            "missing-argument",
            wrong="a first fetch must know where to begin",
            found=f"no stored {symbol} {interval} and no `since`",
            remedy="Pass `--since 2020-01-01`, or the day from which you want the bars.",
        )
    starts = [span.start for span in covered]
    if since_ms is not None:
        starts.append(bar_at_or_after(since_ms, interval))
    return Span(min(starts), max([end, *(span.end for span in covered)]))


def _nothing_to_do(stored: Bars | None, path: Path, symbol: str) -> FetchResult:
    if stored is None:
        return FetchResult(symbol, None, 0, 0, 0, 0)
    known = gaps(stored.ts, stored.interval, read_requested(stored.notes))
    return FetchResult(symbol, path, 0, len(stored), 0, 0, tuple(known))


def _check_columns(stored: Bars | None, source: Source, path: Path) -> None:
    lost = [name for name in stored.columns if name not in source.columns] if stored else []
    if lost:
        raise DataError(
            "data-column",
            wrong=f"{source.requester.client.id} must give every column that {path} has",
            found=f"{', '.join(lost)} missing",
            remedy="Fetch from the exchange the file came from, or move the file away.",
        )
