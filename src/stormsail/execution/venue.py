"""`Venue`: what trading needs of an exchange, and the typed values that pass between the two.

A venue holds the truth about orders, fills, balances and positions. Its methods either return that
truth or raise a `VenueError`: a question that failed is never answered with "nothing there".
Money, prices and quantities are `Decimal`, as the exchange wrote them; bars are float64, as they
are stored and as features read them. Times are UTC milliseconds of the exchange's clock.

`submit` and `cancel` do not raise: an order may have been accepted although its answer was lost, so
they return one of three outcomes, and `Unknown` must be settled by asking.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple, Protocol, TypeVar

from stormsail.market.bars import Bars
from stormsail.market.instruments import Kind
from stormsail.market.interval import Interval

T = TypeVar("T")

Side = Literal["buy", "sell"]
OrderType = Literal["market", "limit", "stop"]
"""`stop` waits at the venue and becomes a market order once the price reaches `stop_price`."""
TimeInForce = Literal["GTC", "IOC", "FOK"]
OrderStatus = Literal["open", "filled", "canceled", "expired", "rejected"]
"""Only `open` can still fill; an order that was filled in part and then canceled is `canceled`."""
MarketStatus = Literal["trading", "halted", "delisted"]
MarginMode = Literal["isolated", "cross"]
Rates = Sequence[tuple[int, float]]
"""Settlement times and funding rates."""
ZERO = Decimal(0)


@dataclass(frozen=True)
class Market:
    """The exchange's rules for one symbol, as it states them now; they change without notice.

    Attributes:
        tick: step of prices; 0 is none.
        lot: step of quantities of limit and stop orders; 0 is none.
        market_lot: step of quantities of market orders.
        min_quantity, max_quantity: bounds of an order in base currency; a maximum of 0 is none.
        market_min, market_max: further bounds of market orders; 0 is none.
        min_notional: smallest worth of an order in quote currency.
        maker_fee, taker_fee: shares of the filled notional; of this account where the venue says.
        base, quote, settle: currencies; `settle` is that of profits, fees and margin.
    """

    symbol: str
    kind: Kind
    status: MarketStatus
    base: str
    quote: str
    settle: str
    tick: Decimal
    lot: Decimal
    market_lot: Decimal
    min_quantity: Decimal
    max_quantity: Decimal
    min_notional: Decimal
    maker_fee: Decimal
    taker_fee: Decimal
    market_min: Decimal = ZERO
    market_max: Decimal = ZERO

    def sizes(self, kind: OrderType) -> "Sizes":
        """Return step and bounds of an order; a market order must keep to both filters."""
        if kind != "market":
            return Sizes(self.lot, self.min_quantity, self.max_quantity)
        most = [own for own in (self.max_quantity, self.market_max) if own]
        least = max(self.min_quantity, self.market_min)
        return Sizes(self.market_lot, least, min(most, default=ZERO))


class Sizes(NamedTuple):
    """Step, least and largest quantity of an order; 0 is none."""

    lot: Decimal
    least: Decimal
    most: Decimal


@dataclass(frozen=True)
class Quote:
    """Best prices of one symbol.

    Attributes:
        mark: price by which positions are liquidated; None for spot.
        ts_ms: when the exchange answered.
    """

    symbol: str
    bid: Decimal
    ask: Decimal
    mark: Decimal | None
    ts_ms: int

    @property
    def mid(self) -> Decimal:
        """Mean of the two prices."""
        return (self.bid + self.ask) / 2


@dataclass(frozen=True)
class Balance:
    """One currency of the account: what is free, and what orders or positions hold."""

    asset: str
    free: Decimal
    locked: Decimal

    @property
    def total(self) -> Decimal:
        """All of it. For perpetuals: the wallet, without the profit of open positions."""
        return self.free + self.locked


@dataclass(frozen=True)
class Position:
    """What is held of one symbol; for spot the balance of its base currency.

    Attributes:
        quantity: in base currency, negative when short; 0 is flat.
        entry_price, mark_price, liquidation_price: None where the venue states none.
        unrealised: profit at the mark price, in the settlement currency; 0 for spot.
    """

    symbol: str
    quantity: Decimal
    entry_price: Decimal | None = None
    mark_price: Decimal | None = None
    liquidation_price: Decimal | None = None
    unrealised: Decimal = ZERO


class MarginTerms(NamedTuple):
    """How the exchange margins a perpetual of this account.

    Attributes:
        leverage: largest size of the position over its margin.
        mode: whether the position has margin of its own, or shares the wallet.
    """

    leverage: Decimal
    mode: MarginMode


@dataclass(frozen=True)
class OrderRequest:
    """An order before it is sent.

    Attributes:
        client_id: our name of the order: 1 to 36 of `A-Z a-z 0-9 . : / _ -`.
        quantity: in base currency, a multiple of the lot, greater than 0.
        price: of a limit order; None otherwise.
        stop_price: of a stop; None otherwise.
        reduce_only: the venue must not let it open or increase a position (perpetuals).
    """

    client_id: str
    symbol: str
    side: Side
    type: OrderType
    quantity: Decimal
    price: Decimal | None = None
    stop_price: Decimal | None = None
    reduce_only: bool = False
    time_in_force: TimeInForce = "GTC"


@dataclass(frozen=True)
class Order:
    """An order as the venue knows it.

    Attributes:
        client_id: empty where the venue states none; orders of other people have their own.
        order_id: the venue's name of the order, unique within the symbol.
        filled: quantity filled so far.
        cost: filled quantity times price, in quote currency.
        updated_ms: time of its last change; the time of the answer where the venue states none.
    """

    client_id: str
    order_id: str
    symbol: str
    side: Side
    type: OrderType
    status: OrderStatus
    quantity: Decimal
    filled: Decimal
    cost: Decimal
    price: Decimal | None
    stop_price: Decimal | None
    reduce_only: bool
    updated_ms: int

    @property
    def remaining(self) -> Decimal:
        """Quantity that can still fill."""
        return self.quantity - self.filled if self.status == "open" else ZERO

    @property
    def average_price(self) -> Decimal | None:
        """Mean price of the fills; None before the first."""
        return self.cost / self.filled if self.filled else None


@dataclass(frozen=True)
class Trade:
    """One fill of an order of this account.

    Attributes:
        trade_id: the venue's number, unique within the symbol: what fills are deduplicated by.
        fee: positive is paid; in `fee_asset`, which may be neither base nor quote.
        realised: profit that the venue booked with it, in the settlement currency; 0 for spot.
    """

    trade_id: str
    order_id: str
    symbol: str
    side: Side
    price: Decimal
    quantity: Decimal
    fee: Decimal
    fee_asset: str
    ts_ms: int
    realised: Decimal = ZERO


@dataclass(frozen=True)
class FundingPayment:
    """One settlement of funding; a negative amount was paid by this account."""

    payment_id: str
    symbol: str
    amount: Decimal
    asset: str
    ts_ms: int


@dataclass(frozen=True)
class KeyPermissions:
    """What an API key may do, as the exchange states it; True where it does not say."""

    read: bool
    spot_trading: bool
    futures_trading: bool
    margin_trading: bool
    withdraw: bool
    internal_transfer: bool
    universal_transfer: bool
    ip_restricted: bool


@dataclass(frozen=True)
class Capabilities:
    """What this venue can do beside orders.

    Attributes:
        short: positions may be negative.
        stops: stop orders wait at the venue.
        dead_man: the venue cancels orders by itself unless a countdown is renewed.
        leverage: leverage and margin mode can be set.
        streams: `watch` and `events` deliver; without them everything is asked for.
    """

    short: bool
    stops: bool
    dead_man: bool
    leverage: bool
    streams: bool


@dataclass(frozen=True)
class VenueHealth:
    """How the connection is doing.

    Attributes:
        rate_used: share of the request budget of this address that is used up, 0 to 1.
        banned_until_ms: end of a ban of this address, None outside of one.
        stream_age_ms: time since the last message of the streams; None without streams.
    """

    rate_used: float
    banned_until_ms: int | None
    stream_age_ms: int | None


@dataclass(frozen=True)
class Accepted:
    """The venue has the order (or canceled it), and its answer fits the request in every field."""

    order: Order


@dataclass(frozen=True)
class Refused:
    """The request definitely had no effect: it was not sent, or the venue refused it in words.

    Attributes:
        code: the venue's code, such as `-2010`; `not-sent` where nothing left this machine.
        words: reason for the journal and the operator.
    """

    code: str
    words: str


@dataclass(frozen=True)
class Unknown:
    """Nobody can say from the answer whether it had an effect: ask, and never send it again."""

    words: str


Outcome = Accepted | Refused | Unknown


@dataclass(frozen=True)
class BarClosed:
    """A bar closed; `bars` holds this one row."""

    bars: Bars


@dataclass(frozen=True)
class OrderChanged:
    """The venue reports a change of an order; `trade` is the fill that caused it, if one did.

    Reports may repeat, arrive out of order, or be missing: a fill counts once by its `trade_id`,
    and an order never returns from a final status.
    """

    order: Order
    trade: Trade | None


@dataclass(frozen=True)
class StreamInterrupted:
    """Messages may have been lost: what they would have said must be asked for."""

    words: str


Event = BarClosed | OrderChanged | StreamInterrupted


class Venue(Protocol):
    """An exchange account. Every method blocks until it knows.

    All are called from one thread, but for those that `at_once` is given.

    Methods that ask raise `VenueError` when the answer is not known (`venue-unreachable`,
    `venue-response`, `venue-rate-limit`, `venue-ban`, `venue-refused`, `venue-symbol`).
    """

    @property
    def name(self) -> str:
        """Name of the exchange, such as `binance`."""

    @property
    def kind(self) -> Kind:
        """Kind of the markets that are traded here."""

    @property
    def capabilities(self) -> Capabilities:
        """What this venue can do beside orders."""

    def account_id(self) -> str:
        """Return a stable name of the account that is no secret; the journal is bound to it."""

    def permissions(self) -> KeyPermissions | None:
        """Return what the key may do; None where no key is used."""

    def server_time_ms(self) -> int:
        """Return the exchange's clock."""

    def markets(self, symbols: Sequence[str]) -> Mapping[str, Market]:
        """Return the present rules of each symbol, asked for anew.

        Raises:
            VenueError: `venue-symbol` if there is none of that name.
        """

    def quote(self, symbol: str) -> Quote:
        """Return the best prices now."""

    def quotes(self, symbols: Sequence[str]) -> Mapping[str, Quote]:
        """Return the best prices of each symbol now, by one question.

        Raises:
            VenueError: if one is not told.
        """

    def bars(self, symbol: str, interval: Interval, *, since_ms: int, until_ms: int) -> Bars:
        """Return the closed bars that open in [since, until), every page of them.

        The bar that is forming is never among them; missing bars have no row.
        """

    def funding_rates(self, symbol: str, *, since_ms: int) -> Rates:
        """Return settlement times and funding rates since then; empty for spot."""

    def settled_rates(self, symbols: Sequence[str], *, since_ms: int) -> Mapping[str, Rates]:
        """Return the same of each symbol by one question, for a short time; empty for spot."""

    def balances(self) -> Mapping[str, Balance]:
        """Return what the account holds, by currency; a currency that is absent is 0."""

    def positions(self, symbols: Sequence[str]) -> Mapping[str, Position]:
        """Return the position of each symbol; a flat one has quantity 0."""

    def open_orders(self, symbol: str) -> Sequence[Order]:
        """Return the orders that can still fill, those of other programs included."""

    def order(self, symbol: str, client_id: str) -> Order | None:
        """Return the newest order of that name, or None if the venue says there is none.

        None shortly after a lost request is no proof: some venues show orders late.
        """

    def orders(self, symbol: str, *, since_ms: int) -> Sequence[Order]:
        """Return every order of the account since then, whoever sent it, oldest first."""

    def trades(self, symbol: str, *, since_ms: int) -> Sequence[Trade]:
        """Return every fill of the account since then, oldest first."""

    def funding_payments(
        self, symbols: Sequence[str], *, since_ms: int
    ) -> Sequence[FundingPayment]:
        """Return the funding of some symbols since then, by one question; empty for spot."""

    def submit(self, request: OrderRequest) -> Outcome:
        """Send an order once. The request is never repeated, whatever happens."""

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of calls of this venue that do not depend on each other, in order.

        A venue with several connections makes them side by side. All have ended when this returns.
        """

    def cancel(self, symbol: str, client_id: str) -> Outcome:
        """Cancel an order.

        `Accepted` holds its final state. `Refused` with code `-2011` says that no such order is
        open: it was filled, canceled or never there, and `order` tells which.
        """

    def cancel_all(self, symbol: str) -> None:
        """Cancel all open orders of a symbol, those of other programs included.

        A cancellation may be repeated safely. Returns once it was accepted; `open_orders` then
        tells whether one was quicker and filled.
        """

    def one_way(self) -> bool:
        """Return whether a symbol has one position; false in hedge mode, where it has two."""

    def margin_terms(self, symbols: Sequence[str]) -> Mapping[str, MarginTerms]:
        """Return leverage and margin mode of each symbol; empty for spot."""

    def set_leverage(self, symbol: str, leverage: int) -> None:
        """Set the largest leverage of a perpetual."""

    def set_margin_mode(self, symbol: str, mode: MarginMode) -> None:
        """Set how a perpetual's position is margined; setting what is set is no error."""

    def renew_dead_man(self, symbol: str, countdown_ms: int) -> None:
        """Let the venue cancel all orders of a symbol unless renewed in time; 0 switches it off."""

    def watch(self, symbols: Sequence[str], interval: Interval) -> None:
        """Start the streams of closed bars and of this account's orders."""

    def events(self, timeout_s: float) -> Sequence[Event]:
        """Return what the streams brought, waiting at most so long for the first event."""

    def health(self) -> VenueHealth:
        """Return how the connection is doing, without a request."""

    def close(self) -> None:
        """End streams and connections; a second call does nothing."""
