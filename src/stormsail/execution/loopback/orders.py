"""Listings, orders and fills of the loopback exchange, and the words of its refusals."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

ZERO = Decimal(0)
Dialect = Literal["spot", "perp"]
Status = Literal["NEW", "PARTIALLY_FILLED", "FILLED", "CANCELED", "EXPIRED"]
OPEN: tuple[Status, ...] = ("NEW", "PARTIALLY_FILLED")


class RefusalError(Exception):
    """The exchange refuses a request, in Binance's codes and words."""

    def __init__(self, code: int, words: str, status: int = 400) -> None:
        super().__init__(words)
        self.code, self.words, self.status = code, words, status


@dataclass
class Listing:
    """One market: what it trades, and the rules its orders must obey. Rules may change."""

    market_id: str
    base: str
    quote: str
    tick: Decimal = Decimal("0.01")
    lot: Decimal = Decimal("0.001")
    min_quantity: Decimal = Decimal("0.001")
    max_quantity: Decimal = Decimal(9000)
    market_max: Decimal = Decimal(9000)
    min_notional: Decimal = Decimal(5)
    maker_fee: Decimal = Decimal("0.001")
    taker_fee: Decimal = Decimal("0.001")
    maintenance: Decimal = Decimal("0.004")
    status: str = "TRADING"


@dataclass
class HeldOrder:
    """An order of the account, or of somebody else with the account's password.

    Attributes:
        visible_ms, query_ms: before these times it is in no list, and no query by name finds it.
        conditional: a stop of the algo service, which sends an order of its own.
        triggered_as: number of the order that a stop became.
        external: sent by none of our programs.
    """

    order_id: int
    client_id: str
    market_id: str
    side: Literal["BUY", "SELL"]
    type: str
    quantity: Decimal
    price: Decimal
    stop_price: Decimal
    time_in_force: str
    reduce_only: bool
    created_ms: int
    updated_ms: int
    status: Status = "NEW"
    executed: Decimal = ZERO
    cost: Decimal = ZERO
    visible_ms: int = 0
    query_ms: int = 0
    conditional: bool = False
    triggered_as: int | None = None
    external: bool = False

    @property
    def sign(self) -> int:
        """1 to buy, -1 to sell."""
        return 1 if self.side == "BUY" else -1

    @property
    def is_open(self) -> bool:
        """Whether it can still fill."""
        return self.status in OPEN

    @property
    def mean(self) -> Decimal:
        """Mean price of what is filled; 0 where nothing is."""
        return self.cost / self.executed if self.executed else ZERO

    @property
    def waits(self) -> bool:
        """Whether it is a stop that was not triggered."""
        return self.stop_price > 0 and self.triggered_as is None and self.is_open


@dataclass(frozen=True)
class Fill:
    """One trade of the account."""

    trade_id: int
    order_id: int
    market_id: str
    sign: int
    price: Decimal
    quantity: Decimal
    fee: Decimal
    fee_asset: str
    realised: Decimal
    maker: bool
    ts_ms: int


@dataclass
class Numbers:
    """Numbers that the exchange gives to orders, trades and transactions."""

    orders: Iterator[int] = field(default_factory=lambda: itertools.count(1001))
    trades: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    payments: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def check_filters(listing: Listing, order: HeldOrder, price: Decimal) -> None:
    """Refuse an order that breaks a filter of its market.

    Raises:
        RefusalError: naming the filter.
    """
    if listing.status != "TRADING":
        raise RefusalError(-1013, "Market is closed.")
    if not listing.min_quantity <= order.quantity <= listing.max_quantity:
        raise RefusalError(-1013, "Filter failure: LOT_SIZE")
    if order.type == "MARKET" and order.quantity > listing.market_max:
        raise RefusalError(-1013, "Filter failure: MARKET_LOT_SIZE")
    if order.quantity % listing.lot:
        raise RefusalError(-1013, "Filter failure: LOT_SIZE")
    for value in (order.price, order.stop_price):
        if value % listing.tick:
            raise RefusalError(-1013, "Filter failure: PRICE_FILTER")
    worth = order.quantity * (order.price or order.stop_price or price)
    if worth < listing.min_notional and not order.reduce_only:
        raise RefusalError(-1013, "Filter failure: NOTIONAL")
