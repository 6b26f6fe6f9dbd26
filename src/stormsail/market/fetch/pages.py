"""Pages of candles from an exchange: requested, parsed, and refused where they contradict."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from stormsail.core.clock import iso
from stormsail.core.errors import ChoiceError, VenueError
from stormsail.market.bars import OPTIONAL, REQUIRED
from stormsail.market.fetch.client import Client, Requester, response_error, symbol_error
from stormsail.market.fetch.plan import Span
from stormsail.market.interval import Interval
from stormsail.market.merge import Conflict

Row = tuple[int | float, ...]
"""One bar: its open time, then the other columns in the order of `Source.columns`."""

# ccxt's own reading of a candle keeps six of the twelve columns; these endpoints give all of them.
_RAW_KLINES = {
    ("binance", "spot"): "publicGetKlines",
    ("binance", "linear"): "fapiPublicGetKlines",
    ("binanceus", "spot"): "publicGetKlines",
    ("binanceusdm", "linear"): "fapiPublicGetKlines",
}
_RAW_COLUMNS = (*REQUIRED, *OPTIONAL)
_RAW_PLACES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 10)
_RAW_LENGTH, _RAW_CLOSE_TIME, _RAW_LIMIT = 12, 6, 1000
_DEFAULT_LIMIT, _LARGEST_LIMIT = 500, 1000
_REGULAR = 8  # rows at one even distance that no thinly traded market would show by chance
_LARGEST_WHOLE = 2**53  # beyond it a time or a count is no accident of rounding but nonsense
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Source:
    """Where the bars of one symbol and interval come from.

    Attributes:
        requester: sends the requests.
        raw: name of ccxt's method for the exchange's own candles, or None for the unified one.
        market_id: the exchange's name of the symbol.
        limit: rows per request.
    """

    requester: Requester
    symbol: str
    interval: Interval
    raw: str | None
    market_id: str
    limit: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a row."""
        return _RAW_COLUMNS if self.raw else REQUIRED

    @property
    def knows_end(self) -> bool:
        """Whether an empty page means that nothing lies up to the requested end."""
        return self.raw is not None

    @property
    def what(self) -> str:
        """Name of the bars in error messages."""
        return f"{self.symbol} {self.interval}"

    def page(self, span: Span, recent: Mapping[int, Row]) -> list[Row]:
        """Return the closed bars of one answer, sorted, that open in `span` from its start on.

        Args:
            span: requested open times.
            recent: bars that are known already. An answer may repeat them, but not change them.

        Raises:
            VenueError: if the answer is nonsense, or contradicts itself or what is known.
        """
        client = self.requester.client
        if self.raw:
            method = getattr(client, self.raw)
            request = {
                "symbol": self.market_id,
                "interval": client.timeframes[str(self.interval)],
                "startTime": span.start,
                "endTime": span.end - 1,
                "limit": self.limit,
            }
            answer = self.requester.request(self.what, lambda: method(request))
        else:
            answer = self.requester.request(
                self.what,
                lambda: client.fetch_ohlcv(self.symbol, str(self.interval), span.start, self.limit),
            )
            if not answer and not _says_nothing(client.last_json_response):
                # ccxt drops rows before the start, and answers that it cannot read, without a word
                raise self._nonsense(f"no bar from {iso(span.start)} on, but something else")
        rows = self._read(answer)
        self._check_spacing(rows)
        return self._in_span(self._distinct(rows, recent), span, recent)

    def _read(self, answer: object) -> list[Row]:
        if not isinstance(answer, list):
            raise self._nonsense(f"a {type(answer).__name__} instead of a list of bars")
        return [self._row(entry, number) for number, entry in enumerate(answer)]

    def _row(self, entry: object, number: int) -> Row:
        length = _RAW_LENGTH if self.raw else len(REQUIRED)
        if not isinstance(entry, list) or len(entry) < length:
            raise self._nonsense(f"row {number} = {_shown(entry)}")
        ts = whole(entry[0])
        if ts is None:
            raise self._nonsense(f"row {number} with the time {_shown(entry[0])}")
        if (ts - self.interval.origin_ms) % self.interval.milliseconds:
            raise self._nonsense(f"row {number} at {iso(ts)}, where no {self.interval} bar opens")
        if self.raw and entry[_RAW_CLOSE_TIME] != ts + self.interval.milliseconds - 1:
            closes = _shown(entry[_RAW_CLOSE_TIME])
            raise self._nonsense(
                f"row {number} from {iso(ts)} to {closes}, which is no {self.interval} bar"
            )
        row: list[int | float] = [ts]
        places = _RAW_PLACES if self.raw else range(len(REQUIRED))
        for name, place in zip(self.columns[1:], list(places)[1:], strict=True):
            value = whole(entry[place]) if name == "trades" else number_of(entry[place])
            if value is None:
                raise self._nonsense(f"`{name}` = {_shown(entry[place])} at {iso(ts)}")
            row.append(value)
        return tuple(row)

    def _distinct(self, rows: list[Row], recent: Mapping[int, Row]) -> list[Row]:
        """Return the rows without repetitions; a repetition must be exact."""
        kept: list[Row] = []
        for row in rows:
            before = kept[-1] if kept else None
            if before is not None and row[0] < before[0]:
                raise self._nonsense(f"{iso(int(row[0]))} after {iso(int(before[0]))}")
            if before is not None and row[0] == before[0]:
                self._check_same(row, before)
                continue
            known = recent.get(int(row[0]))
            if known is not None:
                self._check_same(row, known)
            kept.append(row)
        return kept

    def _check_same(self, row: Row, known: Row) -> None:
        """Compare two answers about one bar; a stored one has NaN where it never had a column."""
        for name, new, old in zip(self.columns, row, known, strict=True):
            if new != old and not math.isnan(old):
                raise conflict_error(self.what, Conflict(int(row[0]), name, old, new))

    def _check_spacing(self, rows: list[Row]) -> None:
        """Refuse longer bars in place of the requested ones; they lie on the same grid."""
        steps = {b[0] - a[0] for a, b in pairwise(rows)}
        if len(rows) >= _REGULAR and len(steps) == 1 and min(steps) > self.interval.milliseconds:
            raise self._nonsense(f"bars {int(min(steps))} ms apart")

    def _in_span(self, rows: list[Row], span: Span, recent: Mapping[int, Row]) -> list[Row]:
        now, kept = self.requester.now_ms(), []
        for row in rows:
            ts = int(row[0])
            if ts > now or (ts < span.start and ts not in recent):
                raise self._nonsense(f"a bar of {iso(ts)}, outside of the requested span")
            closed = ts + self.interval.milliseconds <= now
            if ts >= span.end and closed and self.raw:  # the end was part of the request
                raise self._nonsense(f"a bar of {iso(ts)}, outside of the requested span")
            if span.start <= ts < span.end and closed:
                kept.append(row)
        return kept

    def _nonsense(self, found: str) -> VenueError:
        return response_error(self.requester.client, self.what, found)


def open_source(requester: Requester, symbol: str, interval: Interval, page: int | None) -> Source:
    """Return the source of the bars, after looking the market up.

    Raises:
        ChoiceError: if the exchange has no bars of this length.
        VenueError: if it has no such market, or does not answer.
    """
    client = requester.client
    timeframes = client.timeframes or {}
    if str(interval) not in timeframes:
        raise ChoiceError(
            wrong=f"the interval must be one that {client.id} offers",
            found=f"`{interval}`",
            remedy=f"Choose from {', '.join(timeframes)}.",
        )
    market = find_market(requester, symbol)
    kind = "spot" if market.get("spot") else str(market.get("subType"))
    raw = _RAW_KLINES.get((client.id, kind))
    if raw is not None and not hasattr(client, raw):
        raw = None
    limit = _RAW_LIMIT if raw else _unified_limit(client, symbol)
    return Source(requester, symbol, interval, raw, str(market["id"]), page or limit)


def find_market(requester: Requester, symbol: str) -> Mapping[str, object]:
    """Return the exchange's description of a symbol.

    Raises:
        VenueError: if there is none.
    """
    client = requester.client
    if not client.markets:
        requester.request("its list of markets", lambda: client.load_markets(True))  # noqa: FBT003
    if not client.markets:
        raise response_error(client, "its list of markets", "an empty list")
    market = client.markets.get(symbol)
    if market is None:
        problem = f"no such symbol among {len(client.markets)}"
        raise symbol_error(client.id, symbol, problem, sorted(client.markets))
    return market


def _unified_limit(client: Client, symbol: str) -> int:
    limit = client.feature_value(symbol, "fetchOHLCV", "limit")
    return min(limit, _LARGEST_LIMIT) if isinstance(limit, int) and limit > 0 else _DEFAULT_LIMIT


def _says_nothing(given: object) -> bool:
    """Return whether an answer may mean that there are no bars: it has an empty list somewhere."""
    if isinstance(given, dict):
        return any(_says_nothing(value) for value in given.values())
    return given is None or given == []


def conflict_error(what: str, conflict: Conflict) -> VenueError:
    """Return the error for two answers about one time that differ."""
    return VenueError(
        "venue-conflict",
        wrong=f"two reports of {what} at {iso(conflict.ts)} must agree",
        found=f"`{conflict.column}` = {conflict.old!r} and then {conflict.new!r}",
        remedy="Nothing was overwritten. If the stored data come from another exchange or were "
        "taken before the bar had closed, move that file away and fetch again.",
    )


def whole(value: object) -> int | None:
    """Return a whole number from 0 to 2**53, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST_WHOLE else None


def number_of(value: object) -> float | None:
    """Return a finite number, also one written as plain text, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    return repr(value)[:80]
