"""`Accounts`: brings the accounts from one close to the next, on paper or as the venue says."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stormsail.core.clock import NANOSECONDS, Clock
from stormsail.core.errors import VenueError
from stormsail.execution.config import Feed
from stormsail.execution.decisions.ledger import (
    Prices,
    VenueBar,
    live_close,
    simulated_close,
    unexplained,
)
from stormsail.execution.decisions.path import DecisionPath
from stormsail.execution.decisions.standing import Standing
from stormsail.execution.journal import Intent, Journal
from stormsail.execution.operator.status import Teller
from stormsail.execution.order_ids import Leg
from stormsail.execution.paper_venue import PaperFill, PaperVenue
from stormsail.execution.reconcile import update_fills, update_orders
from stormsail.execution.venue import Market, Position, Trade, Venue
from stormsail.functional.market import fills
from stormsail.market.panel import Panel
from stormsail.market.simulator.account import State, stop_hit

_FORCED = ("autoclose-", "adl_autoclose", "settlement_autoclose")
"""How the names of orders begin by which the exchange itself closes a position."""
_BEFORE_MS = 3_600_000
"""An order is looked for from this long before its fill on."""
_HOUR_MS = 3_600_000
_SHOWN_MS = 60_000
"""A payment may be shown so much later than its hour."""
_CLOCKS_MS = 1_000
"""More than this machine's clock may differ from the exchange's."""
_FILL_SHOWN_S = 0.5
"""Time after which fills of a position that none explains are asked for once more."""
_AHEAD_BARS = 3
"""Funding is asked for from so many bars ago: what was paid since the last close, and before it."""


class Accounts:
    """The accounts of S symbols at a venue.

    Args:
        venue: a `PaperVenue`, or a real one.
        journal: where fills are recorded.
        path: rules of the accounts.
        clock: stamps what is recorded.
        feed: patience with orders that do not show.
        teller: tells the operator of what nobody ordered.
    """

    def __init__(
        self,
        venue: Venue,
        journal: Journal,
        path: DecisionPath,
        clock: Clock,
        feed: Feed,
        teller: Teller,
    ) -> None:
        self._venue, self._journal, self._path = venue, journal, path
        self._clock, self._feed, self._teller = clock, feed, teller
        self.symbols: Sequence[str] = path.setup.symbols
        self._paper = venue if isinstance(venue, PaperVenue) else None
        self._reported: tuple[int, Mapping[str, Position]] | None = None
        self._funding_ms = 0
        self.beside: Sequence[Callable[[], object]] = ()
        """What else is asked for while positions are, by methods of the venue that `at_once` may
        call."""

    def opened(
        self, close: Tensor, positions: Mapping[str, Position], markets: Mapping[str, Market]
    ) -> State:
        """Return accounts with equal capital; what the venue holds already is part of them."""
        state = self._path.opened(close)
        quantity, cash, entry = (
            column.clone() for column in (state.quantity, state.cash, state.entry_price)
        )
        for column, symbol in enumerate(self.symbols):
            held = positions[symbol].quantity
            if held and abs(held) >= markets[symbol].market_lot:
                quantity[column] = float(held)
                cash[column] -= float(held) * float(close[column])
                entry[column] = close[column]
                self._teller.tell("position-adopted", f"{held} was held before", "warning", symbol)
        return state._replace(quantity=quantity, cash=cash, entry_price=entry)

    def closed(
        self, before: Standing, panel: Panel, markets: Mapping[str, Market], *, asks: bool = True
    ) -> tuple[State, Tensor]:
        """Return accounts at the close of the panel's newest bar, and which are stopped for good.

        Args:
            before: what was decided at the close before.
            panel: bars up to the newest.
            markets: their rules.
            asks: whether the venue is asked; otherwise nothing has happened since it was.

        Raises:
            VenueError: if the venue does not say what it holds: unknown is not flat.
        """
        prices = Prices(panel.high[-1], panel.low[-1], panel.close[-1])
        if self._paper is None:
            state = self._live(before, prices, markets, asks=asks)
        else:
            state = self._simulated(self._paper, before, prices, int(panel.ts[-1]))
        return state, before.stopped | stop_hit(state, self._path.stops)

    def _simulated(self, paper: PaperVenue, before: Standing, prices: Prices, ts: int) -> State:
        state, fill = simulated_close(
            self._path,
            before.state,
            before.requested,
            before.opening,
            self.executed(before),
            prices,
        )
        for column in fill.liquidated.nonzero().flatten().tolist():
            lost = float(before.state.quantity[column] + fill.order[column])
            self._liquidated(self.symbols[column], lost, float(prices.close[column]), ts)
        paper.settle(
            Decimal(repr(float(state.cash.sum()))),
            {
                symbol: Decimal(repr(quantity))
                for symbol, quantity in zip(self.symbols, state.quantity.tolist(), strict=True)
            },
        )
        return state

    def _liquidated(self, symbol: str, lost: float, price: float, ts: int) -> None:
        self._teller.tell("liquidated", f"{lost:g} on paper", "alarm", symbol)
        gone = Trade(
            trade_id=f"liquidation-{ts}",
            order_id="",
            symbol=symbol,
            side="sell" if lost > 0 else "buy",
            price=Decimal(repr(price)),
            quantity=Decimal(repr(abs(lost))),
            fee=Decimal(0),
            fee_asset="",
            ts_ms=self._now_ms(),
        )
        self._journal.add_fill(gone, None)

    def executed(self, standing: Standing) -> Tensor:
        """Return whose target order of a bar was filled, bool [S]."""
        done = {
            intent.symbol
            for intent in self._journal.intents(bar_ms=standing.ts)
            if intent.leg == "target" and intent.filled > 0
        }
        return torch.tensor([symbol in done for symbol in self.symbols])

    def _live(
        self, before: Standing, prices: Prices, markets: Mapping[str, Market], *, asks: bool
    ) -> State:
        """Return accounts as the venue says; only what no fill explains is asked for one by one.

        Between a close and its orders every question costs time: a position that is what the known
        fills make of it needs none, and the loop asks for everything once a bar.
        """
        if self._reported is not None and not asks:
            still = VenueBar((), (), self._reported[1], markets)
            return live_close(before.state, before.ordered, self.symbols, still, prices.close)[0]
        self._update_orders(_may_fill)
        if self._may_have_paid():
            self._book_funding(before.ts - self._bar_ms)
        request_ns = self._clock.monotonic_ns()
        questions: list[Callable[[], Any]] = [partial(self._venue.positions, self.symbols)]
        booked = self._booked(before, markets, self._venue.at_once([*questions, *self.beside])[0])
        for pause in (0.0, _FILL_SHOWN_S):
            moved = unexplained(before.state, self.symbols, booked)
            if not moved:
                break
            if pause:  # a fill may be shown a moment after the position that it made
                self._clock.sleep(pause)
            self.settle(moved)
            request_ns = self._clock.monotonic_ns()
            booked = self._booked(before, markets, self._venue.positions(self.symbols))
        self._reported = request_ns, booked.positions
        state, adoptions = live_close(
            before.state, before.ordered, self.symbols, booked, prices.close
        )
        for adoption in adoptions:
            words = f"{adoption.found} where {adoption.expected} was expected"
            self._teller.tell("position-adopted", words, "alarm", adoption.symbol)
        self._tell_fills(booked.trades)
        return state

    def _tell_fills(self, trades: Sequence[Trade]) -> None:
        """Tell of fills that no decision made: of stops, of the exchange, of other people."""
        made: dict[tuple[str, str], list[Trade]] = {}
        for trade in trades:
            made.setdefault((trade.symbol, trade.order_id), []).append(trade)
        unknown = {symbol for symbol, number in made if self._leg_of(symbol, number) is None}
        if unknown:  # a stop that was triggered became an order of another number
            self._update_orders(lambda intent: intent.symbol in unknown)
        for (symbol, number), own in made.items():
            leg, words = self._leg_of(symbol, number), _fill_words(own)
            if leg == "stop":
                self._teller.tell("stop-filled", f"{words} by its stop", "warning", symbol)
            elif leg is None:
                name = self._name_at_venue(symbol, number, own[0].ts_ms)
                forced = name.startswith(_FORCED)
                kind = "liquidated" if forced else "position-adopted"
                words += f" by the order {name or number}, which is not of this trader"
                self._teller.tell(kind, words, "alarm", symbol)

    def _leg_of(self, symbol: str, order_id: str) -> Leg | None:
        name = self._journal.name_of(symbol, order_id)
        intent = None if name is None else self._journal.intent(name)
        return None if intent is None else intent.leg

    def _name_at_venue(self, symbol: str, order_id: str, ts_ms: int) -> str:
        """Return the client id of somebody else's order; empty where the venue does not say."""
        try:
            orders = self._venue.orders(symbol, since_ms=ts_ms - _BEFORE_MS)
        except VenueError:
            return ""
        return next((own.client_id for own in orders if own.order_id == order_id), "")

    def recent_positions(self, within_s: float) -> Mapping[str, Position] | None:
        """Return positions as the venue told them at the last close; None where they are older."""
        if self._reported is None:
            return None
        request_ns, positions = self._reported
        young = self._clock.monotonic_ns() - request_ns <= within_s * NANOSECONDS
        return positions if young else None

    @property
    def _bar_ms(self) -> int:
        return self._path.setup.terms.features.interval.milliseconds

    def ask_ahead(self) -> None:
        """Ask for funding that was paid, shortly before a close; on paper nobody pays.

        From the hour before it was last asked for on: bars without an answer may lie in between.
        The first question is the close's, which knows when the account was last decided on.

        Raises:
            VenueError: if the venue does not answer.
        """
        if self._paper is None and self._funding_ms:
            since = self._now_ms() - _AHEAD_BARS * self._bar_ms
            self._book_funding(min(since, self._funding_ms - _HOUR_MS))

    def _may_have_paid(self) -> bool:
        """Return whether funding may have been paid that was not there when it was asked for.

        It is paid at whole hours, and shown a moment later.
        """
        newest = (self._now_ms() + _CLOCKS_MS) // _HOUR_MS * _HOUR_MS
        return self._funding_ms < newest + _SHOWN_MS

    def _book_funding(self, since_ms: int) -> None:
        request_ms = self._now_ms()
        payments = self._venue.funding_payments(self.symbols, since_ms=since_ms)
        with self._journal.transaction():
            for payment in payments:
                self._journal.add_funding(payment)
        self._funding_ms = request_ms

    def _booked(
        self,
        before: Standing,
        markets: Mapping[str, Market],
        positions: Mapping[str, Position],
    ) -> VenueBar:
        fill, payment = before.booked
        fills, funding = self._journal.fills_after(fill), self._journal.funding_after(payment)
        return VenueBar(fills, funding, positions, markets)

    def settle(self, symbols: Sequence[str] | None = None) -> None:
        """Ask for orders that may still change the account, and for fills; of all, or of some.

        Raises:
            VenueError: if the venue does not answer.
        """
        own = self.symbols if symbols is None else symbols
        self._update_orders(lambda intent: intent.symbol in own)
        update_fills(self._venue, self._journal, own, now_ms=self._now_ms())

    def settle_all(self) -> None:
        """Ask for every order and fill, once a bar, while there is time; on paper nothing waits.

        Raises:
            VenueError: if the venue does not answer.
        """
        if self._paper is None:
            self.settle()

    def _update_orders(self, wanted: Callable[[Intent], bool]) -> None:
        update_orders(
            self._venue,
            self._journal,
            now_ms=self._now_ms(),
            visible_after_s=self._feed.visible_after_s,
            wanted=wanted,
        )

    def fill_paper(self, standing: Callable[[], Standing | None]) -> None:
        """Let a paper venue fill orders by the costs of the simulator."""
        if self._paper is None:
            return
        costs = self._path.opened(torch.ones(len(self.symbols), dtype=torch.float64))

        def filled(symbol: str, quantity: float, mid: float) -> PaperFill:
            steps = self._path.steps
            here = slice(own := self.symbols.index(symbol), own + 1)
            price, order = (torch.tensor([x], dtype=torch.float64) for x in (mid, quantity))
            terms = fills.Terms(
                costs.fee[here],
                costs.half_spread[here],
                costs.impact[here],
                steps.lot[here],
                steps.tick[here],
            )
            now = standing()
            traded = torch.zeros_like(price) if now is None else now.opening.notional[here]
            paid = fills.fill_price(price, order, traded, terms)
            return PaperFill(float(paid), float(terms.fee * order.abs() * paid))

        self._paper.fill_by(filled)

    def _now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000


def _fill_words(trades: Sequence[Trade]) -> str:
    """Return what some fills of one order did, such as `sell 0.5 at 101.2`."""
    quantity = sum((trade.quantity for trade in trades), Decimal(0))
    worth = sum((trade.quantity * trade.price for trade in trades), Decimal(0))
    return f"{trades[0].side} {quantity} at {worth / quantity:.8g}"


def _may_fill(intent: Intent) -> bool:
    """Return whether an order may fill without moving a position that a stop guards.

    A stop that stands shows in the position once it is triggered.
    """
    return intent.leg != "stop" or intent.kind in (None, "unknown")
