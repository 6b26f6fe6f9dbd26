"""`PaperVenue`: the bars and prices of a real venue, and orders that fill in the simulator only.

Nothing is sent anywhere. An order fills whole and at once at the price that `functional.market`
gives it in training and in the backtest: the last quoted mid, half a spread, impact and fee. The
journal is its memory: orders and positions are rebuilt from it, so that a paper account survives a
kill as a real one does.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import takewhile
from typing import NamedTuple, TypeVar

from stormsail.core.clock import Clock
from stormsail.core.errors import VenueError
from stormsail.execution.journal import Journal
from stormsail.execution.venue import (
    ZERO,
    Accepted,
    Balance,
    BarClosed,
    Capabilities,
    Event,
    FundingPayment,
    KeyPermissions,
    MarginMode,
    MarginTerms,
    Market,
    Order,
    OrderRequest,
    Outcome,
    Position,
    Quote,
    Rates,
    Refused,
    Trade,
    Venue,
    VenueHealth,
)
from stormsail.market.bars import Bars
from stormsail.market.instruments import Kind
from stormsail.market.interval import Interval

T = TypeVar("T")

NO_SUCH_ORDER = "-2011"
_KEPT = 10_000
"""Orders and fills that are remembered."""


class PaperFill(NamedTuple):
    """Price of an order and the fee of it, in quote currency."""

    price: float
    fee: float


FillModel = Callable[[str, float, float], PaperFill]
"""Fill of an order, given its symbol, signed quantity and the mid before it."""


class PaperVenue:
    """An account on paper.

    Args:
        data: where bars, rules and prices come from.
        journal: of the account; what it holds of orders and fills is taken up.
        clock: stamps fills.
        quote: currency of the account.
        capital: of it at the very start.
    """

    def __init__(
        self, data: Venue, journal: Journal, clock: Clock, *, quote: str, capital: Decimal
    ) -> None:
        self._data, self._clock, self._quote_asset = data, clock, quote
        self._fill: FillModel | None = None
        self._mids: dict[str, Decimal] = {}
        self._orders: dict[str, Order] = {}
        self._trades: deque[Trade] = deque(maxlen=_KEPT)
        self._positions: dict[str, Decimal] = {}
        self._cash = capital
        self._take_up(journal)

    def _take_up(self, journal: Journal) -> None:
        """Read what the journal knows to be filled."""
        rows = journal.rows(
            "SELECT client_id, symbol, side, quantity, order_id, cost, at_ms FROM order_states "
            "WHERE status = 'filled'"
        )
        paid = journal.rows("SELECT order_id, fee FROM fills")
        fees = {str(order_id): str(fee) for order_id, fee in paid}
        for client_id, symbol, side, quantity, order_id, cost, at_ms in rows:
            size, worth = Decimal(str(quantity)), Decimal(str(cost))
            fee = Decimal(fees.get(str(order_id), "0"))
            request = OrderRequest(str(client_id), str(symbol), side, "market", size)  # type: ignore[arg-type]
            self._book(request, worth, fee, int(str(at_ms)))
        moved = "SELECT symbol, side, quantity FROM fills WHERE client_id IS NULL"
        for symbol, side, quantity in journal.rows(moved):
            size = Decimal(str(quantity))
            change = size if side == "buy" else -size
            self._positions[str(symbol)] = self._positions.get(str(symbol), ZERO) + change

    def fill_by(self, model: FillModel) -> None:
        """Fill orders from now on by this model."""
        self._fill = model

    def settle(self, cash: Decimal, positions: Mapping[str, Decimal]) -> None:
        """Take over what the ledger holds after a bar: funding and liquidations are in it."""
        self._cash, self._positions = cash, dict(positions)

    @property
    def name(self) -> str:
        """Name of the exchange whose prices are used."""
        return self._data.name

    @property
    def kind(self) -> Kind:
        """Kind of the markets that are traded here."""
        return self._data.kind

    @property
    def capabilities(self) -> Capabilities:
        """Nothing but orders: there is no venue that could protect a paper account."""
        real = self._data.capabilities
        return Capabilities(
            short=real.short, stops=False, dead_man=False, leverage=False, streams=real.streams
        )

    def account_id(self) -> str:
        """Return `paper:EXCHANGE`."""
        return f"paper:{self._data.name}"

    def permissions(self) -> KeyPermissions | None:
        """Return None: paper needs no key."""
        return None

    def server_time_ms(self) -> int:
        """Return the exchange's clock."""
        return self._data.server_time_ms()

    def markets(self, symbols: Sequence[str]) -> Mapping[str, Market]:
        """Return the exchange's rules."""
        return self._data.markets(symbols)

    def quote(self, symbol: str) -> Quote:
        """Return the exchange's best prices; orders fill around the last one that was asked for."""
        quote = self._data.quote(symbol)
        self._mids[symbol] = quote.mid
        return quote

    def quotes(self, symbols: Sequence[str]) -> Mapping[str, Quote]:
        """Return the exchange's best prices, around which orders fill."""
        quotes = self._data.quotes(symbols)
        self._mids |= {symbol: quote.mid for symbol, quote in quotes.items()}
        return quotes

    def bars(self, symbol: str, interval: Interval, *, since_ms: int, until_ms: int) -> Bars:
        """Return the exchange's closed bars."""
        return self._data.bars(symbol, interval, since_ms=since_ms, until_ms=until_ms)

    def funding_rates(self, symbol: str, *, since_ms: int) -> Rates:
        """Return the exchange's funding rates."""
        return self._data.funding_rates(symbol, since_ms=since_ms)

    def settled_rates(self, symbols: Sequence[str], *, since_ms: int) -> Mapping[str, Rates]:
        """Return the exchange's newest funding rates."""
        return self._data.settled_rates(symbols, since_ms=since_ms)

    def balances(self) -> Mapping[str, Balance]:
        """Return the cash on paper."""
        return {self._quote_asset: Balance(self._quote_asset, self._cash, ZERO)}

    def positions(self, symbols: Sequence[str]) -> Mapping[str, Position]:
        """Return the positions on paper."""
        return {symbol: Position(symbol, self._positions.get(symbol, ZERO)) for symbol in symbols}

    def open_orders(self, symbol: str) -> Sequence[Order]:  # noqa: ARG002 - see `Venue`
        """Return none: every order fills at once."""
        return ()

    def order(self, symbol: str, client_id: str) -> Order | None:
        """Return an order."""
        known = self._orders.get(client_id)
        return known if known is not None and known.symbol == symbol else None

    def orders(self, symbol: str, *, since_ms: int) -> Sequence[Order]:
        """Return the orders since then."""
        own = [order for order in self._orders.values() if order.symbol == symbol]
        return [order for order in own if order.updated_ms >= since_ms]

    def trades(self, symbol: str, *, since_ms: int) -> Sequence[Trade]:
        """Return the fills since then."""
        newest = takewhile(lambda trade: trade.ts_ms >= since_ms, reversed(self._trades))
        return [trade for trade in newest if trade.symbol == symbol][::-1]

    def funding_payments(
        self,
        symbols: Sequence[str],  # noqa: ARG002 - see `Venue`
        *,
        since_ms: int,  # noqa: ARG002 - see `Venue`
    ) -> Sequence[FundingPayment]:
        """Return none: the ledger computes them from the rates."""
        return ()

    def submit(self, request: OrderRequest) -> Outcome:
        """Fill an order at once, at the simulator's price."""
        mid = self._mids.get(request.symbol)
        if self._fill is None or mid is None or request.type != "market":
            return Refused("not-sent", "a paper order must be a market order after a quote")
        signed = request.quantity if request.side == "buy" else -request.quantity
        made = self._fill(request.symbol, float(signed), float(mid))
        price, fee = Decimal(repr(made.price)), Decimal(repr(made.fee))
        now = self._clock.now_ns() // 1_000_000
        return Accepted(self._book(request, price * request.quantity, fee, now))

    def _book(self, request: OrderRequest, cost: Decimal, fee: Decimal, now_ms: int) -> Order:
        signed = request.quantity if request.side == "buy" else -request.quantity
        self._positions[request.symbol] = self._positions.get(request.symbol, ZERO) + signed
        self._cash -= (cost if signed > 0 else -cost) + fee
        order = Order(
            client_id=request.client_id,
            order_id=f"paper-{request.client_id}",
            symbol=request.symbol,
            side=request.side,
            type=request.type,
            status="filled",
            quantity=request.quantity,
            filled=request.quantity,
            cost=cost,
            price=None,
            stop_price=None,
            reduce_only=request.reduce_only,
            updated_ms=now_ms,
        )
        self._orders[request.client_id] = order
        if len(self._orders) > _KEPT:  # the journal has them all; questions are about new ones
            del self._orders[next(iter(self._orders))]
        price = cost / request.quantity
        self._trades.append(
            Trade(
                trade_id=order.order_id,
                order_id=order.order_id,
                symbol=request.symbol,
                side=request.side,
                price=price,
                quantity=request.quantity,
                fee=fee,
                fee_asset=self._quote_asset,
                ts_ms=now_ms,
            )
        )
        return order

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of calls, one after the other: fills have one order."""
        return [call() for call in calls]

    def cancel(self, symbol: str, client_id: str) -> Outcome:  # noqa: ARG002 - see `Venue`
        """Refuse: no order rests."""
        return Refused(NO_SUCH_ORDER, "no such order is open")

    def cancel_all(self, symbol: str) -> None:
        """Do nothing: no order rests."""

    def one_way(self) -> bool:
        """Return true: a position on paper is one number."""
        return True

    def margin_terms(self, symbols: Sequence[str]) -> Mapping[str, MarginTerms]:  # noqa: ARG002 - see `Venue`
        """Return none: margin on paper is that of the simulator."""
        return {}

    def set_leverage(self, symbol: str, leverage: int) -> None:
        """Do nothing: margin on paper is that of the simulator."""

    def set_margin_mode(self, symbol: str, mode: MarginMode) -> None:
        """Do nothing."""

    def renew_dead_man(self, symbol: str, countdown_ms: int) -> None:  # noqa: ARG002 - see `Venue`
        """Refuse: there is no such switch on paper."""
        raise VenueError(
            "venue-refused",
            wrong="a dead man's switch must be one of a real venue",
            found="a paper account",
            remedy="Leave `protection.dead_man_s` out.",
        )

    def watch(self, symbols: Sequence[str], interval: Interval) -> None:
        """Start the exchange's streams of bars."""
        self._data.watch(symbols, interval)

    def events(self, timeout_s: float) -> Sequence[Event]:
        """Return the bars that the streams brought; orders of a real account are not ours."""
        return [event for event in self._data.events(timeout_s) if isinstance(event, BarClosed)]

    def health(self) -> VenueHealth:
        """Return how the connection is doing."""
        return self._data.health()

    def close(self) -> None:
        """End streams and connections."""
        self._data.close()
