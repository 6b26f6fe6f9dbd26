"""Matching of the loopback exchange: orders against the price of a tape, one customer."""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

from stormsail.execution.loopback.account import (
    Account,
    FuturesAccount,
    Payment,
    SpotAccount,
    whole_units,
)
from stormsail.execution.loopback.orders import (
    ZERO,
    Dialect,
    Fill,
    HeldOrder,
    Listing,
    Numbers,
    RefusalError,
    check_filters,
)
from stormsail.execution.loopback.tape import Candle, interval_ms, price_at, waypoints

FUNDING_MS = 8 * 3_600_000
_RATE = "0.00010000"
Emit = Callable[[HeldOrder, Fill | None], None]


@dataclass
class Ledger:
    """All orders of one customer in one dialect, and the account that they change.

    Attributes:
        tapes: candles by market and interval; the shortest interval makes the price.
        funding: rates of perpetuals by market.
        partial: share of the next order that fills; the rest rests or expires. None fills all.
        overfill: the next fill is one lot too large.
        emit: called with every change of an order.
        countdowns: when the dead man's switch of a market cancels its orders.
    """

    dialect: Dialect
    tapes: Mapping[tuple[str, str], list[Candle]]
    funding: Mapping[str, list[tuple[int, str]]]
    account: SpotAccount | FuturesAccount
    numbers: Numbers
    listings: dict[str, Listing] = field(default_factory=dict)
    orders: list[HeldOrder] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    payments: list[Payment] = field(default_factory=list)
    deposits: dict[str, Decimal] = field(default_factory=dict)
    countdowns: dict[str, int] = field(default_factory=dict)
    partial: Decimal | None = None
    overfill: bool = False
    emit: Emit = lambda _order, _fill: None
    now_ms: int = 0

    def deposit(self, asset: str, amount: Decimal) -> None:
        """Give money to the account."""
        self.deposits[asset] = self.deposits.get(asset, ZERO) + amount
        if isinstance(self.account, SpotAccount):
            self.account.balances[asset] = self.account.balances.get(asset, ZERO) + amount
        else:
            self.account.wallet += amount

    def listing(self, market_id: str) -> Listing:
        """Return the rules of a market.

        Raises:
            RefusalError: -1121 where there is none.
        """
        listing = self.listings.get(market_id)
        if listing is None or listing.status == "DELISTED":
            raise RefusalError(-1121, "Invalid symbol.")
        return listing

    def price(self, market_id: str) -> Decimal:
        """Return the last price of a market."""
        rows, length = self._tape(market_id)
        price = price_at(rows, length, self.now_ms)
        if price is None:
            raise RefusalError(-1121, "Invalid symbol.")
        return price

    def _tape(self, market_id: str) -> tuple[list[Candle], int]:
        lengths = {interval_ms(name): name for market, name in self.tapes if market == market_id}
        if not lengths:
            return [], 1
        shortest = min(lengths)
        return self.tapes[market_id, lengths[shortest]], shortest

    def place(self, order: HeldOrder) -> None:
        """Take an order: it fills, rests, waits for its stop, or is refused.

        Raises:
            RefusalError: if it is refused; then nothing has changed.
        """
        listing = self.listing(order.market_id)
        price = self.price(order.market_id)
        check_filters(listing, order, price)
        if any(o.is_open and o.client_id == order.client_id for o in self.orders):
            code = -2010 if self.dialect == "spot" else -4116
            raise RefusalError(code, "Duplicate order sent.")
        book: Account = self.account
        if not order.conditional:  # perpetuals check margin once a stop is triggered
            book.check(listing, order, order.price or order.stop_price or price)
        self.orders.append(order)
        if order.stop_price:
            book.reserve(listing, order)
            self.emit(order, None)
        elif order.type == "MARKET" or self._crosses(order, price):
            self._take(listing, order, price)
        else:
            book.reserve(listing, order)
            self.emit(order, None)

    def _crosses(self, order: HeldOrder, price: Decimal) -> bool:
        return (order.price - price) * order.sign >= 0

    def _take(self, listing: Listing, order: HeldOrder, price: Decimal) -> None:
        """Fill an order that meets the market; what liquidity lacks rests or expires."""
        paid = price + listing.tick if order.sign > 0 else price
        quantity = order.quantity
        if order.reduce_only and isinstance(self.account, FuturesAccount):
            quantity = min(quantity, abs(self.account.holding(order.market_id).quantity))
        if self.partial is not None:
            steps = (quantity * self.partial) // listing.lot
            quantity, self.partial = steps * listing.lot, None
        if self.overfill:
            quantity, self.overfill = quantity + listing.lot, False
        if quantity:
            self._fill(listing, order, paid, quantity, maker=False)
        if order.executed >= order.quantity:
            return
        if order.type == "LIMIT" and order.time_in_force == "GTC":
            self.account.reserve(listing, order)
            return
        order.status, order.updated_ms = "EXPIRED", self.now_ms
        self.emit(order, None)

    def _fill(
        self,
        listing: Listing,
        order: HeldOrder,
        price: Decimal,
        quantity: Decimal,
        *,
        maker: bool,
    ) -> None:
        fee, asset, realised = self.account.fill(listing, order, price, quantity, maker=maker)
        number = next(self.numbers.trades)
        fill = Fill(
            number, order.order_id, order.market_id, order.sign, price, quantity,
            fee, asset, realised, maker, self.now_ms,
        )  # fmt: skip
        self.fills.append(fill)
        order.executed += quantity
        order.cost += whole_units(quantity * price)
        order.status = "FILLED" if order.executed >= order.quantity else "PARTIALLY_FILLED"
        order.updated_ms = self.now_ms
        self.emit(order, fill)

    def find(
        self, market_id: str, *, client_id: str | None = None, order_id: int | None = None
    ) -> HeldOrder | None:
        """Return the newest order of that name that can be seen."""
        for order in reversed(self.orders):
            named = order.client_id == client_id or order.order_id == order_id
            hidden = max(order.visible_ms, order.query_ms) > self.now_ms
            if order.market_id == market_id and named and not hidden:
                return order
        return None

    def fill_open(self, market_id: str) -> None:
        """Fill the resting orders of a market, as if the price had come to them."""
        listing = self.listings[market_id]
        for order in self.open_orders(market_id, conditional=False):
            if order.type == "LIMIT":
                self.account.release(listing, order)
                self._fill(listing, order, order.price, order.quantity - order.executed, maker=True)

    def cancel(self, order: HeldOrder | None) -> HeldOrder:
        """Cancel an open order.

        Raises:
            RefusalError: -2011 if it is not open.
        """
        if order is None or not order.is_open:
            raise RefusalError(-2011, "Unknown order sent.")
        self.account.release(self.listings[order.market_id], order)
        order.status, order.updated_ms = "CANCELED", self.now_ms
        self.emit(order, None)
        return order

    def open_orders(self, market_id: str | None, *, conditional: bool) -> list[HeldOrder]:
        """Return the orders that can still fill."""
        return [
            order
            for order in self.orders
            if order.is_open
            and order.conditional == conditional
            and market_id in (None, order.market_id)
            and order.visible_ms <= self.now_ms
        ]

    def close_by_hand(self, market_id: str) -> None:
        """Close a position as its owner might in the exchange's own window."""
        held = self.position(market_id)
        listing = self.listings[market_id]
        quantity = abs(held) // listing.lot * listing.lot
        if quantity:
            self.external_order(market_id, -quantity if held > 0 else quantity, "web_close")

    def external_order(self, market_id: str, signed: Decimal, client_id: str) -> HeldOrder:
        """Fill a market order that none of our programs has sent."""
        order = HeldOrder(
            order_id=next(self.numbers.orders),
            client_id=f"{client_id}_{self.now_ms}",
            market_id=market_id,
            side="BUY" if signed > 0 else "SELL",
            type="MARKET",
            quantity=abs(signed),
            price=ZERO,
            stop_price=ZERO,
            time_in_force="GTC",
            reduce_only=False,
            created_ms=self.now_ms,
            updated_ms=self.now_ms,
            external=True,
        )
        self.orders.append(order)
        self._fill(
            self.listings[market_id], order, self.price(market_id), order.quantity, maker=False
        )
        return order

    def position(self, market_id: str) -> Decimal:
        """Return what is held of a market."""
        if isinstance(self.account, SpotAccount):
            return self.account.balances.get(self.listings[market_id].base, ZERO)
        return self.account.holding(market_id).quantity

    def audit(self) -> None:
        """Prove the account from its history; see the accounts."""
        if isinstance(self.account, FuturesAccount):
            self.account.audit(self.deposits, self.fills, self.payments)
        else:
            self.account.audit(self.deposits, self.fills, self.listings)

    def advance(self, now_ms: int) -> None:
        """Let time pass: prices move, orders fill, funding is paid, countdowns end."""
        if now_ms <= self.now_ms:
            return
        if self.now_ms and self._is_busy():
            for moment, act in sorted(self._agenda(now_ms), key=lambda entry: entry[0]):
                self.now_ms = moment
                act()
        self.now_ms = now_ms
        self._mark()

    def _is_busy(self) -> bool:
        held = isinstance(self.account, FuturesAccount) and any(
            holding.quantity for holding in self.account.holdings.values()
        )
        return held or any(order.is_open for order in self.orders)

    def _agenda(self, until: int) -> Iterator[tuple[int, Callable[[], None]]]:
        for market_id in self.listings:
            rows, length = self._tape(market_id)
            for moment in _moments(rows, length, self.now_ms, until):
                yield moment, partial(self._meet, market_id)
        for market_id, deadline in list(self.countdowns.items()):
            if self.now_ms < deadline <= until:
                yield deadline, partial(self._dead_man, market_id)
        if self.dialect == "perp":
            first = self.now_ms // FUNDING_MS + 1
            for number in range(first, until // FUNDING_MS + 1):
                yield number * FUNDING_MS, self._pay_funding

    def _meet(self, market_id: str) -> None:
        """Meet the new price of a market: stops, resting orders, liquidation."""
        price, listing = self.price(market_id), self.listings[market_id]
        for order in [o for o in self.orders if o.is_open and o.market_id == market_id]:
            if order.waits:
                if (price - order.stop_price) * order.sign >= 0:
                    self._trigger(listing, order, price)
            elif order.type == "LIMIT" and self._crosses(order, price):
                self.account.release(listing, order)
                self._fill(listing, order, order.price, order.quantity - order.executed, maker=True)
        self._mark()
        if isinstance(self.account, FuturesAccount) and self._margin_is_gone(self.account):
            self.liquidate()

    def _trigger(self, listing: Listing, order: HeldOrder, price: Decimal) -> None:
        self.account.release(listing, order)
        if not order.conditional:  # spot: the same order goes to the market
            order.triggered_as = order.order_id
            self._take(listing, order, price)
            return
        number = next(self.numbers.orders)
        sent = HeldOrder(
            order_id=number,
            client_id=f"algo_{number}",
            market_id=order.market_id,
            side=order.side,
            type="MARKET",
            quantity=order.quantity,
            price=ZERO,
            stop_price=ZERO,
            time_in_force=order.time_in_force,
            reduce_only=order.reduce_only,
            created_ms=self.now_ms,
            updated_ms=self.now_ms,
        )
        order.triggered_as, order.updated_ms = number, self.now_ms
        try:
            self.account.check(listing, sent, price)
        except RefusalError:
            order.status, order.triggered_as = "EXPIRED", None
            self.emit(order, None)
            return
        self.orders.append(sent)
        self._take(listing, sent, price)
        order.status, order.executed, order.cost = "FILLED", sent.executed, sent.cost
        self.emit(order, None)

    def _mark(self) -> None:
        if isinstance(self.account, FuturesAccount):
            for market_id, holding in self.account.holdings.items():
                if holding.quantity:
                    self.account.marks[market_id] = self.price(market_id)

    def _margin_is_gone(self, account: FuturesAccount) -> bool:
        needed = sum(
            (
                abs(h.quantity) * account.marks[m] * self.listings[m].maintenance
                for m, h in account.holdings.items()
                if h.quantity
            ),
            ZERO,
        )
        return needed > 0 and account.wallet + account.unrealised() <= needed

    def liquidate(self) -> None:
        """Close every position at the mark price; the insurance fund pays what is missing."""
        account = self.account
        if not isinstance(account, FuturesAccount):
            return
        for market_id, holding in account.holdings.items():
            if holding.quantity:
                self.external_order(market_id, -holding.quantity, "autoclose-")
        if account.wallet < 0:
            self._pay("INSURANCE_CLEAR", -account.wallet, "")

    def _pay_funding(self) -> None:
        if not isinstance(self.account, FuturesAccount):
            return
        for market_id, holding in self.account.holdings.items():
            if holding.quantity:
                rate = Decimal(self.rate(market_id, self.now_ms))
                worth = holding.quantity * self.price(market_id)
                self._pay("FUNDING_FEE", -whole_units(worth * rate), market_id)

    def rate(self, market_id: str, ts_ms: int) -> str:
        """Return the funding rate of a settlement: the tape's, or one basis point."""
        rows = self.funding.get(market_id, [])
        return next((rate for ts, rate in rows if 0 <= ts - ts_ms < 1000), _RATE)

    def _pay(self, kind: str, amount: Decimal, market_id: str) -> None:
        if isinstance(self.account, FuturesAccount):
            self.account.wallet += amount
            number = next(self.numbers.payments)
            paid = Payment(number, kind, self.account.asset, amount, market_id, self.now_ms)
            self.payments.append(paid)

    def _dead_man(self, market_id: str) -> None:
        if self.countdowns.pop(market_id, None) is not None:
            for conditional in (
                False,
                True,
            ):  # nothing says that stops are spared: assume the worst
                for order in self.open_orders(market_id, conditional=conditional):
                    self.cancel(order)


def _moments(rows: list[Candle], length: int, after: int, until: int) -> Iterator[int]:
    """Yield when the price changes in (after, until]."""
    first = max(0, bisect_right(rows, after, key=lambda row: int(row[0])) - 1)
    for candle in itertools.islice(rows, first, None):
        if int(candle[0]) > until:
            return
        for moment, _price in waypoints(candle, length):
            if after < moment <= until:
                yield moment
