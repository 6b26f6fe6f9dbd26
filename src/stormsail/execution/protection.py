"""What protects a position when this process is gone: a stop at the venue, a dead man's switch.

Where stops may only reduce (perpetuals), the stop of the coming position stands before the order
that opens it, so that there is no moment without one. On spot a stop needs the coins that it sells:
it is placed right after the fill, and a position that gets none is closed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial
from typing import NamedTuple

from stormsail.core.clock import NANOSECONDS, Clock
from stormsail.core.errors import VenueError
from stormsail.execution.config import Protection
from stormsail.execution.journal import Intent, Journal
from stormsail.execution.order_gate import AccountView, MarketView, OrderGate, Proposal
from stormsail.execution.order_ids import Leg, OrderKey
from stormsail.execution.venue import (
    Accepted,
    Market,
    OrderRequest,
    Outcome,
    Refused,
    Side,
    Venue,
)

RENEWALS = 4
"""A countdown is renewed after this part of it."""
FARTHEST = Decimal("1.25")
"""A stop that stands is enough for a position that grows up to so many times its distance from the
price."""


@dataclass(frozen=True)
class OrderNames:
    """Client ids of one account and journal."""

    account: str
    strategy: str
    journal: Journal

    def proposal(
        self,
        bar_ms: int,
        leg: Leg,
        reference: Decimal,
        *,
        symbol: str,
        side: Side,
        quantity: Decimal,
        stop_price: Decimal | None = None,
        reduce_only: bool = False,
        part: int | None = None,
    ) -> Proposal:
        """Return an order of a leg.

        Its number is its part, or else that of the intents before it: what is decided twice on one
        bar has the same name, and what is tried again has another.
        """
        number = part
        if number is None:
            count = self.journal.rows(
                "SELECT count(*) FROM intents WHERE bar_ms = ? AND symbol = ? AND leg = ?",
                bar_ms,
                symbol,
                leg,
            )[0][0]
            number = int(str(count))
        epoch = self.journal.epoch
        key = OrderKey(self.account, self.strategy, epoch, bar_ms, symbol, leg, number)
        request = OrderRequest(
            key.client_id,
            symbol,
            side,
            "market" if stop_price is None else "stop",
            quantity,
            stop_price=stop_price,
            reduce_only=reduce_only,
        )
        return Proposal(request, bar_ms, leg, number, reference)


class Guarded(NamedTuple):
    """What became of positions that had no stop."""

    closed: Mapping[str, Outcome | None]
    """What had to be closed, with the answer to the order that closes it; None where less than one
    lot is held."""
    late_s: Mapping[str, float]
    """Seconds in which a stop came to stand, where that is more than the deadline."""


class Protector:
    """Stops and countdowns of one account.

    Args:
        venue: where they stand.
        gate: through which they are sent.
        journal: where they are recorded.
        names: of orders.
        config: distance and deadlines.
        clock: measures the deadline.
    """

    def __init__(
        self,
        venue: Venue,
        gate: OrderGate,
        journal: Journal,
        names: OrderNames,
        config: Protection,
        clock: Clock,
    ) -> None:
        self._venue, self._gate, self._journal = venue, gate, journal
        self._names, self._config, self._clock = names, config, clock
        self._renewed_ns: int | None = None

    @property
    def on(self) -> bool:
        """Whether positions are protected by stops."""
        return self._config.stop_distance is not None and self._venue.capabilities.stops

    @property
    def before_entry(self) -> bool:
        """Whether a stop can stand before its position."""
        return self.on and self._venue.kind == "perpetual"

    def stops(self) -> list[Intent]:
        """Return the stops that stand, or may stand, at the venue, oldest first."""
        return [intent for intent in self._journal.pending() if intent.leg == "stop"]

    def for_entries(
        self,
        wanted: Mapping[str, Decimal],
        prices: Mapping[str, Decimal],
        views: Mapping[str, MarketView],
        bar_ms: int,
    ) -> list[Proposal]:
        """Return one stop for each position that is to grow and has none of its size and side.

        One that stands since the price was elsewhere is none: what is bought now would lose more.

        Args:
            wanted: signed position after the order.
            prices: at which it grows.
            views: rules of the markets.
            bar_ms: bar of the orders.
        """
        stops = [own for own in self.stops() if not self._strays(own, prices.get(own.symbol))]
        return self._missing(stops, wanted, prices, views, bar_ms)

    def _strays(self, stop: Intent, price: Decimal | None) -> bool:
        """Return whether a stop is too far from a price to protect what is bought or sold there."""
        if price is None or stop.stop_price is None:
            return False
        away = price - stop.stop_price if stop.side == "sell" else stop.stop_price - price
        return away > FARTHEST * Decimal(repr(self._config.stop_distance)) * price

    def _missing(
        self,
        stops: Sequence[Intent],
        wanted: Mapping[str, Decimal],
        entries: Mapping[str, Decimal],
        views: Mapping[str, MarketView],
        bar_ms: int,
    ) -> list[Proposal]:
        proposals = []
        for symbol, quantity in wanted.items():
            market = views[symbol].market
            size = _stepped(abs(quantity), market.lot)
            if size and not _fitting(stops, symbol, quantity, market):
                price = self._stop_price(quantity > 0, entries[symbol], market)
                proposals.append(
                    self._names.proposal(
                        bar_ms,
                        "stop",
                        entries[symbol],
                        symbol=symbol,
                        side="sell" if quantity > 0 else "buy",
                        quantity=size,
                        stop_price=price,
                        reduce_only=self._venue.kind == "perpetual",
                    )
                )
        return proposals

    def _stop_price(self, long: bool, entry: Decimal, market: Market) -> Decimal:  # noqa: FBT001
        distance = Decimal(repr(self._config.stop_distance))
        price = entry * (1 - distance) if long else entry * (1 + distance)
        return _stepped(price, market.tick, up=long) if market.tick else price

    def protect(
        self,
        positions: Mapping[str, Decimal],
        entries: Mapping[str, Decimal],
        views: Mapping[str, MarketView],
        account: AccountView,
        bar_ms: int,
        *,
        since_ns: int,
    ) -> Guarded:
        """Give every position its stop, or close it, and cancel the others.

        One whose stop came late keeps both: to close it now would cost more, and protect nothing.

        Args:
            positions: as the venue holds them.
            entries: prices from which the distance is measured.
            views: for the gate.
            account: for the gate.
            bar_ms: bar of the orders.
            since_ns: when the fill was known, on the monotonic clock.
        """
        if not self.on:
            return Guarded({}, {})
        if self._holds_coins:  # they must be free before another stop takes them
            self._cancel_others(positions, views)
        stops = self._missing(self.stops(), positions, entries, views, bar_ms)
        outcomes = self._gate.send(stops, views, account) if stops else []
        passed_s = (self._clock.monotonic_ns() - since_ns) / NANOSECONDS
        closed: dict[str, Outcome | None] = {}
        late: dict[str, float] = {}
        for stop, outcome in zip(stops, outcomes, strict=True):
            symbol = stop.request.symbol
            if not isinstance(outcome, Accepted):
                self.release([symbol])
                made = self.flatten({symbol: positions[symbol]}, views, account, bar_ms)
                closed[symbol] = made[0] if made else None
            elif passed_s > self._config.deadline_s:
                late[symbol] = passed_s
        left = {symbol: held for symbol, held in positions.items() if symbol not in closed}
        self._cancel_others(left, views)
        return Guarded(closed, late)

    @property
    def _holds_coins(self) -> bool:
        """Whether a stop keeps the coins that it is to sell: nothing else can sell them then."""
        return self._venue.kind != "perpetual"

    def release(self, symbols: Sequence[str]) -> bool:
        """Free the coins that stops of some symbols keep; return whether there were any."""
        if not (self.on and self._holds_coins):
            return False
        kept = [stop for stop in self.stops() if stop.symbol in symbols]
        self.cancel(kept)
        return bool(kept)

    def _cancel_others(
        self, positions: Mapping[str, Decimal], views: Mapping[str, MarketView]
    ) -> None:
        """Cancel stops that fit no position, and all but the newest that fits."""
        stops, others = self.stops(), []
        for symbol, held in positions.items():
            fitting = _fitting(stops, symbol, held, views[symbol].market) if held else []
            kept = fitting[-1].client_id if fitting else ""
            others += [own for own in stops if own.symbol == symbol and own.client_id != kept]
        self.cancel(others)

    def cancel(self, intents: Sequence[Intent]) -> list[Intent]:
        """Cancel orders, side by side where the venue can; return those not known to be gone."""
        outcomes = self._venue.at_once(
            [partial(self._gate.cancel, own.symbol, own.client_id) for own in intents]
        )
        answers = zip(intents, outcomes, strict=True)
        return [own for own, outcome in answers if not self._is_gone(own, outcome)]

    def _is_gone(self, intent: Intent, outcome: Outcome) -> bool:
        """Record the answer to a cancellation; return whether the order is known to be gone."""
        now = self._clock.now_ns() // 1_000_000
        if isinstance(outcome, Accepted):
            order = outcome.order
            self._journal.add_order(intent.client_id, "canceled", order, now_ms=now)
            return order.status != "open"
        if isinstance(outcome, Refused):  # it is not open: ask what became of it
            try:
                known = self._venue.order(intent.symbol, intent.client_id)
            except VenueError as error:
                return error.code == "venue-symbol"  # with its market all its orders are gone
            if known is not None and known.status != "open":
                self._journal.add_order(intent.client_id, "settled", known, now_ms=now)
                return True
        return False

    def flatten(
        self,
        positions: Mapping[str, Decimal],
        views: Mapping[str, MarketView],
        account: AccountView,
        bar_ms: int,
    ) -> list[Outcome]:
        """Close positions with market orders, each of the largest size that the market takes."""
        proposals: Sequence[Proposal] = [
            self._names.proposal(
                bar_ms,
                "flatten",
                views[symbol].mid or Decimal(0),
                symbol=symbol,
                side="sell" if held > 0 else "buy",
                quantity=size,
                reduce_only=self._venue.kind == "perpetual",
            )
            for symbol, held in positions.items()
            if (size := _closing_size(held, views[symbol].market))
        ]
        return self._gate.send(proposals, views, account) if proposals else []

    def renew(self, symbols: Sequence[str]) -> bool:
        """Renew the countdown of every symbol if a quarter of it is over; return whether it was."""
        countdown = self._config.dead_man_s
        if countdown is None or not self._venue.capabilities.dead_man:
            return False
        now = self._clock.monotonic_ns()
        period = countdown * NANOSECONDS / RENEWALS
        if self._renewed_ns is not None and now - self._renewed_ns < period:
            return False
        for symbol in symbols:
            self._venue.renew_dead_man(symbol, round(1000 * countdown))
        self._renewed_ns = now  # of what failed another try is made at once
        return True


def _fitting(
    stops: Sequence[Intent], symbol: str, quantity: Decimal, market: Market
) -> list[Intent]:
    """Return the stops that stand and close a position, all of it but what is no whole lot."""
    side: Side = "sell" if quantity > 0 else "buy"
    size = _stepped(abs(quantity), market.lot)
    return [
        stop
        for stop in stops
        if stop.symbol == symbol
        and stop.side == side
        and stop.quantity >= size
        and stop.status == "open"
    ]


def _closing_size(held: Decimal, market: Market) -> Decimal:
    """Return how much of a position one market order closes, in whole lots."""
    lot, _, most = market.sizes("market")
    return _stepped(min(abs(held), most) if most else abs(held), lot)


def _stepped(number: Decimal, step: Decimal, *, up: bool = False) -> Decimal:
    """Return the multiple of a step at or next to a number; a step of 0 leaves it alone."""
    if not step:
        return number
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    return (number / step).to_integral_value(rounding) * step
