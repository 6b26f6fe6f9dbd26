"""`Placing`: turns what was decided into orders, sends them through the gate, and protects fills.

It also takes everything back when the kill switch says so: cancels until each cancel is confirmed,
closes until the venue is flat.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal

import numpy as np
import torch
from torch import Tensor

from stormsail.core.clock import NANOSECONDS, Clock
from stormsail.core.errors import VenueError
from stormsail.execution.decisions.path import DAY_MS
from stormsail.execution.decisions.standing import Standing
from stormsail.execution.journal import Journal, Severity
from stormsail.execution.kill_switch import Way
from stormsail.execution.operator.status import Teller
from stormsail.execution.order_gate import (
    NOT_SENT,
    AccountView,
    MarketView,
    OrderGate,
    Proposal,
    Refusal,
)
from stormsail.execution.protection import OrderNames, Protector
from stormsail.execution.reconcile import exposures, update_fills
from stormsail.execution.venue import (
    Accepted,
    Market,
    Outcome,
    Position,
    Quote,
    Refused,
    Unknown,
    Venue,
)

MOST_PARTS = 20
"""Of one order; one that needs more is proposed whole, and the gate refuses it."""

_NEAR = Decimal("1e-9")
_NONE = Decimal(0)
_AGAIN_S = 5.0
"""Pause before a position without a stop is looked at again."""
_AHEAD_SHARE = 0.1
"""Prices that were asked for beside something else are used up to this share of the oldest age."""
_FRESH_S = 1.0
"""Age from which prices are asked for anew before a stop is placed."""
_PASSING = frozenset({NOT_SENT, "gate:collar", "-1003", "-1015", "-1021", "-2020", "-4131"})
"""Refusals that time may cure: no request budget, no fresh price, limits of the exchange, clock,
and a book that is empty or far from the mark price, as in a crash."""
_SOME = frozenset({"venue-symbol", "venue-response", "venue-refused"})
"""Errors of a question about all symbols that one of them may have caused."""


@dataclass
class Placing:
    """Orders of one account.

    Attributes:
        venue, journal, gate, protector, names, teller, clock: what they pass through.
        symbols: that are traded.
        bar_ms: length of a bar.
        capital: in quote currency, with which the account began.
        markets: rules as the venue stated them last.
        data_age: tells how long ago the newest bar of a symbol closed, in bars.
        real: whether a venue fills the orders; a paper account is liquidated by its own rules.
        left_open: why positions are open although all of them were to be closed; empty otherwise.
    """

    venue: Venue
    journal: Journal
    gate: OrderGate
    protector: Protector
    names: OrderNames
    teller: Teller
    clock: Clock
    symbols: Sequence[str]
    bar_ms: int
    capital: float
    markets: Mapping[str, Market]
    data_age: Callable[[str], float]
    real: bool = True
    left_open: str = ""
    _quotes: dict[str, tuple[Decimal, int]] = field(default_factory=dict)
    _guarded: tuple[int, frozenset[str]] | None = None
    """Newest fill after which every position was seen to have its stop, and those stops."""
    _again_ns: int = 0
    _ahead: tuple[int, dict[str, Quote]] | None = None
    """When prices were asked for beside something else, and the answer."""

    def look(self) -> None:
        """Ask for prices while something else is asked for; what fails is asked for again."""
        now = self.clock.monotonic_ns()
        with suppress(VenueError):
            self._ahead = now, self._quoted()

    def prices(self) -> Tensor:
        """Return the mid of every symbol now, at which orders are sized, float64 [S].

        NaN where one has none, as a symbol that is suspended: it is no reason not to trade others.

        Raises:
            VenueError: if none is known.
        """
        ahead, self._ahead, now = self._ahead, None, self.clock.monotonic_ns()
        oldest = now - int(_AHEAD_SHARE * self.gate.quote_age_s * NANOSECONDS)
        if ahead is not None and ahead[0] >= oldest:
            now, quotes = ahead
        else:
            quotes = self._quoted()
        for symbol, quote in quotes.items():
            self._quotes[symbol] = (quote.mid, now)
        mids = [float(quotes[own].mid) if own in quotes else np.nan for own in self.symbols]
        return torch.tensor(mids, dtype=torch.float64)

    def tradable(self, held: Tensor) -> tuple[Tensor, Tensor]:
        """Return the price at which orders of each symbol are sized, and whether they can be sent.

        Args:
            held: prices in place of those that are not known, [S].

        Raises:
            VenueError: if none is known.
        """
        price = self.prices()
        trading = torch.tensor([self.markets[own].status == "trading" for own in self.symbols])
        known = price.isfinite()
        for symbol, missing in zip(self.symbols, (trading & ~known).tolist(), strict=True):
            if missing:
                self.teller.tell("no-price", "it is not traded until there is one", "alarm", symbol)
        return torch.where(known, price, held), trading & known

    def _quoted(self) -> dict[str, Quote]:
        """Return the best prices of each symbol that has some; one by one if need be."""
        try:
            return dict(self.venue.quotes(self.symbols))
        except VenueError as error:
            if error.code not in _SOME or len(self.symbols) == 1:
                raise
            failed = error
        quotes: dict[str, Quote] = {}
        for symbol in self.symbols:
            try:
                quotes |= self.venue.quotes([symbol])
            except VenueError as error:
                if error.code not in _SOME:
                    raise
        if not quotes:
            raise failed
        return quotes

    def views(self) -> dict[str, MarketView]:
        """Return what the gate knows of each symbol."""
        now = self.clock.monotonic_ns()
        views = {}
        for symbol in self.symbols:
            mid, at = self._quotes.get(symbol, (None, now))
            age = self.data_age(symbol)
            views[symbol] = MarketView(self.markets[symbol], mid, (now - at) / 1e6, age)
        return views

    def account(
        self, standing: Standing, positions: Mapping[str, Position] | None = None
    ) -> AccountView:
        """Return what the gate knows of the account; positions are the venue's, asked for now.

        Args:
            standing: what was decided.
            positions: as the venue told them a moment ago, in place of asking.

        Raises:
            VenueError: if the venue does not say.
        """
        peak, day_start = self.peaks(standing)
        prices = standing.state.price.tolist()
        if positions is None:
            positions = self.venue.positions(self.symbols)
        return AccountView(
            _decimal(standing.equity),
            _decimal(peak),
            _decimal(day_start),
            exposures(positions, self.markets, self.journal.pending()),
            {symbol: _decimal(own) for symbol, own in zip(self.symbols, prices, strict=True)},
        )

    def peaks(self, standing: Standing) -> tuple[float, float]:
        """Return the account's highest equity, and that with which the UTC day began."""
        equity = standing.equity
        rows = self.journal.rows(
            "SELECT ts, peak, day_start FROM equity WHERE ts < ? ORDER BY ts DESC LIMIT 1",
            standing.ts,
        )
        if not rows:
            return max(equity, self.capital), equity
        ts, peak, day_start = rows[0]
        days = [(opened + self.bar_ms) // DAY_MS for opened in (standing.ts, int(str(ts)))]
        start = float(str(day_start)) if days[0] == days[1] else equity
        return max(float(str(peak)), equity), start

    def place(
        self,
        standing: Standing,
        before: Callable[[list[Refusal | None]], None],
        positions: Mapping[str, Position] | None = None,
    ) -> list[Outcome]:
        """Send the orders of a decision.

        Args:
            standing: what was decided.
            before: called with the refusal of each symbol, inside the transaction of the intents.
            positions: as the venue told them for this decision; None asks.

        Raises:
            VenueError: if the venue does not say what it holds; nothing was sent.
        """
        views, account = self.views(), self.account(standing, positions)
        targets = self._proposals(standing)
        sold = [own.request.symbol for own in targets if own.request.side == "sell"]
        released = self.protector.release(sold)
        proposals = self._with_stops(targets, views, account, standing.ts)

        def record(refusals: Sequence[Refusal | None]) -> None:
            by_symbol = {
                proposal.request.symbol: refusal
                for proposal, refusal in zip(proposals, refusals, strict=True)
            }
            before([by_symbol.get(symbol) for symbol in self.symbols])

        outcomes = self.gate.send(proposals, views, account, before=record)
        known = set()
        for proposal, outcome in zip(proposals, outcomes, strict=True):
            symbol = proposal.request.symbol
            if proposal.leg == "stop":
                continue  # a position that has none is told of once it is there
            if symbol not in known and not isinstance(outcome, Accepted):
                self._tell_outcome(proposal, outcome)
                known.add(symbol)  # parts after it have the same fate
        if released or any(isinstance(outcome, Accepted | Unknown) for outcome in outcomes):
            self.after_fills(standing)
        return outcomes

    def _tell_outcome(self, proposal: Proposal, outcome: Refused | Unknown) -> None:
        request = proposal.request
        unknown = isinstance(outcome, Unknown)
        severity: Severity = "alarm" if unknown else "warning"
        name = "order-unknown" if unknown else "order-refused"
        why = "" if isinstance(outcome, Unknown) else f"{outcome.code.removeprefix('gate:')}: "
        words = f"{request.side} {request.quantity}: {why}{outcome.words}"
        self.teller.tell(name, words, severity, request.symbol)

    def _proposals(self, standing: Standing) -> list[Proposal]:
        """Return an order for each symbol whose position is to change, none while one is open.

        What is more than the market takes at once is cut into parts. A perpetual is turned by two
        orders, of which the first only reduces: a stop that fires before them has closed what they
        were to close, and one order for both would make the new position twice as large.
        """
        held_up = {intent.symbol for intent in self.journal.unsettled()}
        proposals = []
        for column, symbol in enumerate(self.symbols):
            wanted = float(standing.ordered.order[column])
            if self.real and bool(standing.ordered.liquidated[column]):
                # the exchange may hold on to what the account's rules have given up
                wanted = -float(standing.state.quantity[column])
            market = self.markets[symbol]
            if not order_size(wanted, market) or symbol in held_up or symbol not in self._quotes:
                continue
            mid = self._quotes[symbol][0]
            closing, opening = _NONE, order_size(wanted, market)
            if self.venue.kind == "perpetual":
                held = float(standing.state.quantity[column])
                closing, opening = legs_of(wanted, held, market, mid, turns=self.real)
            parts = [(own, True) for own in parts_of(closing, market)]
            parts += [(own, False) for own in parts_of(opening, market)]
            proposals += [
                self.names.proposal(
                    standing.ts,
                    "target",
                    mid,
                    symbol=symbol,
                    side="buy" if wanted > 0 else "sell",
                    quantity=quantity,
                    reduce_only=reduces,
                    part=part,
                )
                for part, (quantity, reduces) in enumerate(parts)
            ]
        return proposals

    def _with_stops(
        self,
        targets: Sequence[Proposal],
        views: Mapping[str, MarketView],
        account: AccountView,
        ts: int,
    ) -> list[Proposal]:
        """Return orders, each with the stop of the position to come before it.

        Where stops cannot stand before their positions, they are the orders alone.
        """
        if not self.protector.before_entry:
            return list(targets)
        changes: dict[str, Decimal] = {}
        entries = {}
        for proposal in targets:
            request = proposal.request
            signed = request.quantity if request.side == "buy" else -request.quantity
            changes[request.symbol] = changes.get(request.symbol, _NONE) + signed
            entries[request.symbol] = proposal.reference
        wanted = {}
        for symbol, change in changes.items():
            held = account.exposures[symbol]
            after = held.high + change if change > 0 else held.low + change
            if abs(after) > held.largest or after * held.high < 0:
                wanted[symbol] = after
        stops = {
            stop.request.symbol: stop
            for stop in self.protector.for_entries(wanted, entries, views, ts)
        }
        both: list[Proposal] = []
        for target in targets:
            stop = stops.pop(target.request.symbol, None)
            both += [target] if stop is None else [stop, target]
        return both

    def unguarded(self) -> bool:
        """Return whether positions may have no stop, and it is time to look.

        However a fill became known, and whatever failed after it: what is missing is tried again.
        A stop that somebody canceled, or that ended by itself, is missed as well.
        """
        if not self.protector.on or self.clock.monotonic_ns() < self._again_ns:
            return False
        return self._guarded != (self.journal.booked()[0], self._stops())

    def _stops(self) -> frozenset[str]:
        """Return the names of the stops that stand, or may stand."""
        return frozenset(
            intent.client_id for intent in self.journal.pending() if intent.leg == "stop"
        )

    def after_fills(self, standing: Standing) -> None:
        """Book fills, and give every position its stop; a venue that is silent is an alarm."""
        known = self.clock.monotonic_ns()
        self._guarded, self._again_ns = None, known + int(_AGAIN_S * NANOSECONDS)
        try:
            update_fills(self.venue, self.journal, self.symbols)
            newest = self.journal.booked()[0]
            if self.protector.on and self._protect(standing, known):
                self._guarded = newest, self._stops()
        except VenueError as error:
            self.teller.tell("fills-unknown", str(error), "alarm")

    def _protect(self, standing: Standing, since_ns: int) -> bool:
        """Give every position its stop, or close it; return whether each has been."""
        held = self.venue.positions(self.symbols)
        old = self.clock.monotonic_ns() - int(_FRESH_S * NANOSECONDS)
        if any(symbol not in self._quotes or self._quotes[symbol][1] < old for symbol in held):
            self.prices()  # the gate lets no order pass without a fresh one
        positions, entries, unpriced = {}, {}, False
        for symbol, position in held.items():
            own = position.quantity
            if symbol not in self._quotes:  # what stands there stays
                unpriced |= bool(own)
                continue
            mid = self._quotes[symbol][0]
            positions[symbol] = own if closable(own, self.markets[symbol], mid) else _NONE
            entries[symbol] = position.entry_price or mid
        guarded = self.protector.protect(
            positions,
            entries,
            self.views(),
            self.account(standing, held),
            standing.ts,
            since_ns=since_ns,
        )
        for symbol, seconds in guarded.late_s.items():
            words = f"it stood {seconds:.1f} s after the fill was known"
            self.teller.tell("stop-late", words, "alarm", symbol)
        for symbol, outcome in guarded.closed.items():
            words = "no stop in time: "
            if outcome is None or isinstance(outcome, Accepted):
                words += "the position was closed"
            else:
                words += f"the position was to be closed, and is not: {outcome.words}"
            self.teller.tell("unprotected", words, "alarm", symbol)
        if unpriced:
            return False
        return all(own is None or isinstance(own, Accepted) for own in guarded.closed.values())

    def taken_back(self, way: Way, standing: Standing | None) -> bool:
        """Cancel, and close where that is asked for; return whether all of it is confirmed."""
        try:
            pending = [
                intent
                for intent in self.journal.pending()
                if not (way == "stop" and intent.leg == "stop")
            ]
            if self.protector.cancel(pending):
                return False
            return way != "flatten" or self._flat(standing)
        except VenueError as error:
            self.teller.tell("venue-silent", str(error), "warning")
            return False

    def _flat(self, standing: Standing | None) -> bool:
        """Close what is held; return whether nothing is left that another try could close."""
        self.left_open = ""
        positions = {
            symbol: position.quantity
            for symbol, position in self.venue.positions(self.symbols).items()
            if order_size(float(position.quantity), self.markets[symbol])
        }
        if not positions:
            return True
        self.prices()
        account = self._way_out() if standing is None else self.account(standing)
        bar_ms = 0 if standing is None else standing.ts
        outcomes = self.protector.flatten(positions, self.views(), account, bar_ms)
        update_fills(self.venue, self.journal, self.symbols)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
        if len(refused) < len(outcomes) or any(own.code in _PASSING for own in refused):
            return False  # look again: another order, since what was refused had no effect
        now = self.venue.positions(self.symbols)
        if any(now[symbol].quantity != held for symbol, held in positions.items()):
            return False  # a stop was quicker than the order
        # what the venue or its filters refuse for good is for a person to close
        words = "; ".join(outcome.words for outcome in refused)
        self.left_open = words or "less than one lot is left"
        self.teller.tell("not-flat", self.left_open, "alarm")
        return True

    def _way_out(self) -> AccountView:
        """Return the account before its first decision: nothing passes but what lowers positions.

        Raises:
            VenueError: if the venue does not say.
        """
        positions = self.venue.positions(self.symbols)
        held = exposures(positions, self.markets, self.journal.pending())
        return AccountView(_NONE, _NONE, _NONE, held, {})


def order_size(quantity: float, market: Market) -> Decimal:
    """Return the size of an order in whole lots; what is less than one is 0.

    The simulator has cut the quantity down to lots in floating point: a quotient next to a whole
    number is that number.
    """
    if not np.isfinite(quantity):
        return _NONE
    size, lot = _decimal(abs(quantity)), market.market_lot or market.lot
    if not lot:
        return size
    steps = size / lot
    whole = steps.to_integral_value()
    near = abs(steps - whole) <= _NEAR * max(whole, Decimal(1))
    return (whole if near else steps.to_integral_value(ROUND_FLOOR)) * lot


def closable(held: Decimal, market: Market, price: Decimal) -> bool:
    """Return whether the market takes an order that closes a position; what is not, is dust."""
    size, least = order_size(float(abs(held)), market), market.sizes("market").least
    worth = market.kind == "perpetual" or size * price >= market.min_notional
    return bool(size) and size >= least and worth


def legs_of(
    wanted: float, held: float, market: Market, mid: Decimal, *, turns: bool
) -> tuple[Decimal, Decimal]:
    """Return how much of an order closes a position and only reduces, and how much opens another.

    What the market does not take as an opening order is left out, and what no order can close is
    turned with the rest.

    Args:
        wanted: change of the position.
        held: position before it.
        market: its rules.
        mid: its price.
        turns: whether a position is turned by two orders, or by one that opens.
    """
    size = order_size(wanted, market)
    if wanted * held >= 0.0:
        return _NONE, size
    if abs(wanted) <= abs(held):
        return size, _NONE
    if not turns or not closable(_decimal(held), market, mid):
        return _NONE, size
    closing = order_size(held, market)
    opening = size - closing
    opens = opening >= market.sizes("market").least and opening * mid >= market.min_notional
    return closing, opening if opens else _NONE


def parts_of(size: Decimal, market: Market) -> list[Decimal]:
    """Return a size in as few market orders as the market takes, alike but for one lot.

    Where that would be more than `MOST_PARTS`, or there is no lot, it is left whole; of nothing
    there are none.
    """
    if not size:
        return []
    most, lot = market.sizes("market").most, market.market_lot or market.lot
    if not (most and lot) or size <= most:
        return [size]
    most_lots, lots = int(most // lot), int(size // lot)
    count = -(-lots // most_lots) if most_lots else MOST_PARTS + 1
    if count > MOST_PARTS:
        return [size]
    each, more = divmod(lots, count)
    return [(each + (part < more)) * lot for part in range(count)]


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))
