"""`BarFeed`: closed bars of all symbols, asked for or streamed, each at most once and in order."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stormsail.core.clock import Clock, iso
from stormsail.core.errors import DataError, VenueError
from stormsail.execution.config import Feed
from stormsail.execution.decisions.bar_window import BarWindow, Row, bar_rows
from stormsail.execution.reconcile import clock_offset_ms
from stormsail.execution.venue import BarClosed, Market, Rates, Venue
from stormsail.market.instruments import Instrument, InstrumentTerms
from stormsail.market.interval import Interval
from stormsail.market.settlements import SETTLEMENT_JITTER_MS

_HOUR_MS = 3_600_000

_AHEAD_MS = 5_000
"""Time before a close from which on what need not wait for it is done."""
_LATE_MS = 30_000
"""A rate may be shown so much later than it is stamped."""

Idle = Callable[[float], bool]
"""Let so many seconds pass; false ends the waiting."""


class BarFeed:
    """The bars of some symbols at a venue.

    Args:
        venue: where they are asked for.
        symbols: in the order of the accounts.
        interval: their length.
        clock: this machine's.
        config: patience.
    """

    def __init__(
        self, venue: Venue, symbols: Sequence[str], interval: Interval, clock: Clock, config: Feed
    ) -> None:
        self._venue, self._symbols, self._interval = venue, tuple(symbols), interval
        self._clock, self._config = clock, config
        self._streamed: dict[int, dict[str, Row]] = {}
        self._due: tuple[int, dict[str, Rates]] | None = None
        self.offset_ms = 0.0
        self._measured_ns: tuple[int, int] | None = None

    def now_ms(self) -> float:
        """Return the venue's time."""
        return self._clock.now_ns() / 1e6 - self.offset_ms

    def follow_clock(self) -> str | None:
        """Measure the venue's clock anew; return in words where this machine's is too far from it.

        Raises:
            VenueError: if the venue does not answer.
        """
        self.offset_ms = clock_offset_ms(self._venue, self._clock)
        self._measured_ns = self._clock.now_ns(), self._clock.monotonic_ns()
        if abs(self.offset_ms) <= self._config.max_clock_offset_ms:
            return None
        return f"the clock of this machine is {self.offset_ms:+.0f} ms from the exchange's"

    def clock_was_set(self) -> bool:
        """Return whether this machine's clock was set since the venue's was measured.

        By more than the allowed offset, in either direction, or while the machine slept: then
        nobody knows which bar is closed before the venue's clock was looked at again.
        """
        if self._measured_ns is None:
            return False
        wall, monotonic = self._measured_ns
        passed = self._clock.monotonic_ns() - monotonic
        moved = self._clock.now_ns() - wall - passed
        return abs(moved) > 1e6 * self._config.max_clock_offset_ms

    def closed_open_ms(self) -> int:
        """Return the open time of the newest bar that has closed by now."""
        length = self._interval.milliseconds
        origin = self._interval.origin_ms
        return int((self.now_ms() - origin) // length) * length + origin - length

    def window(self, markets: Mapping[str, Market], *, rows: int) -> BarWindow:
        """Return a window of history that ends with the newest closed bar.

        Raises:
            DataError: if there are too few bars, too many holes, or the newest is missing.
            VenueError: if a question was not answered.
        """
        newest = self.closed_open_ms()
        length = self._interval.milliseconds
        if self.now_ms() - newest - length < 1000.0 * self._config.bar_grace_s and not all(
            self._query(symbol, newest) for symbol in self._symbols
        ):
            newest -= length  # it has closed just now, and is not shown yet
        since = newest - (rows - 1) * length
        bars = [
            self._venue.bars(symbol, self._interval, since_ms=since, until_ms=newest + length)
            for symbol in self._symbols
        ]
        for own in bars:
            if not len(own) or int(own.ts[-1]) != newest:
                raise DataError(
                    "bars-stale",
                    wrong=f"the newest closed bar of {own.symbol} must be there, {iso(newest)}",
                    found=f"none after {iso(int(own.ts[-1]))}" if len(own) else "none at all",
                    remedy="Wait until the exchange shows it, or leave the symbol out.",
                )
        rates = {symbol: self.rates(symbol, since) for symbol in self._symbols}
        instruments = {symbol: instrument(market) for symbol, market in markets.items()}
        most = self._config.max_missing_share
        return BarWindow(bars, rates, instruments, rows=rows, max_missing_share=most)

    def rates(self, symbol: str, since_ms: int) -> Rates:
        """Return the funding rates since then; none for spot."""
        if ":" not in symbol:
            return ()
        return tuple(self._venue.funding_rates(symbol, since_ms=since_ms))

    def due_rates(self, ts: int) -> dict[str, Rates]:
        """Return the rates that may settle with the bar that opens at `ts`.

        Funding settles at whole hours: nothing is asked where none has passed since the bar before,
        and nothing where they were asked for before the bar closed.
        """
        if self._due is not None and self._due[0] == ts:
            return self._due[1]
        since = ts - self._interval.milliseconds
        if (ts + SETTLEMENT_JITTER_MS) // _HOUR_MS * _HOUR_MS <= since:
            return dict.fromkeys(self._symbols, ())
        if not any(":" in symbol for symbol in self._symbols):
            return dict.fromkeys(self._symbols, ())
        rates = self._venue.settled_rates(self._symbols, since_ms=since)
        return {symbol: tuple(rates[symbol]) for symbol in self._symbols}

    def ask_ahead(self, ts: int) -> None:
        """Ask for the rates of a bar that is about to close: they settled when it opened.

        Where it opened a moment ago they may not be shown yet, and are asked for after its close.

        Raises:
            VenueError: if the question was not answered.
        """
        if self.now_ms() - ts >= SETTLEMENT_JITTER_MS + _LATE_MS:
            self._due = ts, self.due_rates(ts)

    def take(self, event: BarClosed) -> None:
        """Keep a bar that was streamed until it is its turn."""
        for ts, row in bar_rows(event.bars):
            self._streamed.setdefault(ts, {})[event.bars.symbol] = row

    def collect(
        self, ts: int, idle: Idle, ahead: Callable[[int], None] = lambda _ts: None
    ) -> dict[str, Row] | None:
        """Return the bars that open at `ts`, by symbol, once they have closed.

        A symbol whose bar has not come when the patience is over is left out. None where `idle`
        ended the waiting.

        Args:
            ts: when the bars open.
            idle: lets time pass.
            ahead: called once with `ts` shortly before the close, if that is still to come: what it
                asks need not be asked between the close and the orders.

        Raises:
            VenueError: if questions were not answered for as long.
        """
        closes = ts + self._interval.milliseconds
        early = True
        while (wait := closes - self.now_ms()) > 0 or self.clock_was_set():
            if early and 0 < wait <= _AHEAD_MS:
                early = False
                ahead(ts)
                continue
            pause = wait - _AHEAD_MS if early else wait
            if not idle(pause / 1000.0 if wait > 0 else self._config.poll_s):
                return None
        rows: dict[str, Row] = {}
        deadline = self._clock.monotonic_ns() + self._config.bar_grace_s * 1e9
        while True:
            rows |= self._streamed.get(ts, {})
            missing = [symbol for symbol in self._symbols if symbol not in rows]
            for bar in self._venue.at_once([partial(self._query, own, ts) for own in missing]):
                rows |= bar
            if len(rows) == len(self._symbols) or self._clock.monotonic_ns() >= deadline:
                break
            if not idle(self._config.poll_s):
                return None
        for old in [known for known in self._streamed if known <= ts]:
            del self._streamed[old]
        return rows

    def _query(self, symbol: str, ts: int) -> dict[str, Row]:
        until = ts + self._interval.milliseconds
        try:
            bars = self._venue.bars(symbol, self._interval, since_ms=ts, until_ms=until)
        except VenueError as error:
            if error.code != "venue-symbol" or len(self._symbols) == 1:
                raise
            return {}  # its market is gone: it has no bar
        rows = dict(bar_rows(bars))
        return {symbol: rows[ts]} if ts in rows else {}


def instrument(market: Market) -> Instrument:
    """Return a market's rules as instrument terms."""
    terms = InstrumentTerms(
        kind=market.kind,
        lot=float(market.market_lot or market.lot),
        tick=float(market.tick),
        min_notional=float(market.min_notional),
        taker_fee=max(float(market.taker_fee), 0.0),
    )
    return Instrument(market.symbol, terms)
