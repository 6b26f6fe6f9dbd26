"""`CcxtVenue`: Binance spot and USD-M perpetuals, through ccxt.

Questions may be repeated and are, within the request budget. An order is sent once; what became of
it is read from the answer itself, not from ccxt's error classes (see `outcomes`).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from stormsail.core.clock import Clock
from stormsail.core.errors import ChoiceError, StormsailError, VenueError
from stormsail.execution.connection import binance, outcomes
from stormsail.execution.connection.binance import PERPETUAL, SPOT, Dialect, Row
from stormsail.execution.connection.ccxt_client import TradingClient, open_client
from stormsail.execution.connection.history import rows_by_week, rows_since
from stormsail.execution.connection.pool import Connection, ConnectionPool
from stormsail.execution.connection.rate_budget import RateBudget, budget_path
from stormsail.execution.connection.streams import Streams
from stormsail.execution.secrets import Credentials
from stormsail.execution.venue import (
    ZERO,
    Accepted,
    Balance,
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
    Unknown,
    VenueHealth,
)
from stormsail.market.bars import Bars, canonical
from stormsail.market.fetch.client import Requester, RetryPolicy, load_ccxt, one_line
from stormsail.market.fetch.pages import Row as BarRow
from stormsail.market.fetch.pages import open_source
from stormsail.market.fetch.plan import Span, bar_at_or_after
from stormsail.market.instruments import Kind
from stormsail.market.interval import Interval

T = TypeVar("T")

DIALECTS: Mapping[str, Dialect] = {"binance": SPOT, "binanceusdm": PERPETUAL}
RETRY = RetryPolicy(tries=4, first_s=0.5, longest_s=8.0)
CONNECTIONS = 8
PATIENCE_S = 20.0
"""Longest wait of a question for the request budget; an order does not wait at all."""

_FUNDING: Mapping[str, object] = {"incomeType": "FUNDING_FEE"}
_MARGIN_MODE_IS_SET = -4046
_NO_SUCH_ORDER = -2013
_NOTHING_TO_CANCEL = -2011


class CcxtVenue:
    """An account at Binance. `Venue` says what the methods do.

    Args:
        exchange: `binance` for spot, `binanceusdm` for USD-M perpetuals.
        credentials: API key and secret; None for market data alone.
        clock: time and waiting.
        seed: of the jitter between retries.
        base_url: an address in place of the exchange's hosts: the loopback exchange.
        budget: of requests; None shares one file with every process of this user.
        streams: where events come from; None makes connections with ccxt.pro.
        timeout_s: how long one answer may take.
        adapter: stands in for the sockets of ccxt's HTTP session.
        connections: most that are open at the same time; None is eight, and one with an adapter.
    """

    def __init__(
        self,
        exchange: str,
        *,
        credentials: Credentials | None,
        clock: Clock,
        seed: int = 0,
        base_url: str | None = None,
        budget: RateBudget | None = None,
        streams: Streams | None = None,
        timeout_s: float = 10.0,
        adapter: object | None = None,
        connections: int | None = None,
    ) -> None:
        if exchange not in DIALECTS:
            raise ChoiceError(
                wrong="trading must be at an exchange whose refusals are known one by one",
                found=f"`{exchange}`",
                remedy=f"Choose from {', '.join(DIALECTS)}; `stormsail fetch` reads elsewhere.",
            )
        self._dialect = DIALECTS[exchange]
        self._clock = clock
        self._credentials = credentials
        self._budget = budget or RateBudget(
            budget_path(exchange, base_url), limit=self._dialect.limit, clock=clock
        )

        def opened(number: int) -> Connection:
            client = open_client(
                exchange,
                market_type=self._dialect.market_type,
                key=credentials.key if credentials else None,
                secret=credentials.secret if credentials else None,
                clock=clock,
                budget=self._budget,
                weight_of_cost=self._dialect.weight_of_cost,
                base_url=base_url,
                timeout_s=timeout_s,
            )
            if adapter is not None:
                cast("Any", client.session).mount("http://", adapter)
            generator = np.random.Generator(np.random.PCG64([seed, number] if number else seed))
            return Connection(client, Requester(client, clock, generator, RETRY))

        self._connections = ConnectionPool(opened, connections or (1 if adapter else CONNECTIONS))
        self._streams = streams
        self._base_url = base_url
        self._fees: dict[str, tuple[Decimal, Decimal]] = {}
        self._ids: dict[str, str] = {}
        self._account_id: str | None = None

    @property
    def _client(self) -> TradingClient:
        return self._connections.here.client

    @property
    def _requester(self) -> Requester:
        return self._connections.here.requester

    @property
    def name(self) -> str:
        """Name of the exchange."""
        return self._dialect.exchange

    @property
    def kind(self) -> Kind:
        """Kind of the markets that are traded here."""
        return self._dialect.kind

    @property
    def capabilities(self) -> Capabilities:
        """What this venue can do beside orders."""
        futures = self._is_futures
        return Capabilities(
            short=futures, stops=True, dead_man=futures, leverage=futures, streams=True
        )

    @property
    def _is_futures(self) -> bool:
        return self._dialect is PERPETUAL

    def account_id(self) -> str:
        """Return a name of the account that is no secret.

        It is the exchange's number of the account; where the key may not read that, a hash of it.
        """
        if self._account_id is None:
            self._account_id = f"{self.name}-{self._account_number()}"
        return self._account_id

    def _account_number(self) -> str:
        try:
            row = binance.row_of(self._ask("the account", "privateGetAccount"), "the account")
            return binance.text(row, "uid")
        except VenueError as error:
            if error.code not in ("venue-refused", "venue-response") or self._credentials is None:
                raise
            data = self._credentials.key.reveal().encode()
            return hashlib.sha256(b"stormsail account\n" + data).hexdigest()[:16]

    def permissions(self) -> KeyPermissions | None:
        """Return what the key may do; None where no key is used."""
        if self._credentials is None:
            return None
        answer = self._ask("the key's permissions", "sapiGetAccountApiRestrictions")
        return binance.permissions(binance.row_of(answer, "the key's permissions"))

    def server_time_ms(self) -> int:
        """Return the exchange's clock."""
        answer = self._ask("its clock", self._named("publicGetTime", "fapiPublicGetTime"))
        return binance.milliseconds(binance.row_of(answer, "its clock"), "serverTime")

    def markets(self, symbols: Sequence[str]) -> Mapping[str, Market]:
        """Return the present rules of each symbol, asked for anew."""
        self._requester.request("its markets", lambda: self._client.load_markets(True))  # noqa: FBT003
        loaded = self._client.markets or {}
        markets = {}
        for symbol in symbols:
            entry = loaded.get(symbol)
            if entry is None:
                raise self._missing(symbol)
            info = binance.row_of(entry.get("info"), symbol)
            settle = str(entry.get("settle") or entry.get("quote"))
            fees = self._fee(symbol)
            markets[symbol] = binance.market(info, symbol, self.kind, settle, fees)
        return markets

    def _fee(self, symbol: str) -> tuple[Decimal, Decimal]:
        """Return the account's fees; those of the list where there is no key."""
        if self._credentials is None:
            return self._dialect.default_fees
        if symbol not in self._fees:
            name = self._named("privateGetAccountCommission", "fapiPrivateGetCommissionRate")
            answer = self._ask(f"fees of {symbol}", name, {"symbol": self._id(symbol)})
            row = binance.row_of(answer, f"fees of {symbol}")
            names = ("makerCommissionRate", "takerCommissionRate")
            if not self._is_futures:
                row = binance.row_of(row.get("standardCommission"), "fees")
                names = ("maker", "taker")
            self._fees[symbol] = binance.decimal(row, names[0]), binance.decimal(row, names[1])
        return self._fees[symbol]

    def quote(self, symbol: str) -> Quote:
        """Return the best prices now."""
        what, market_id = f"prices of {symbol}", self._id(symbol)
        name = self._named("publicGetTickerBookTicker", "fapiPublicGetTickerBookTicker")
        row = binance.row_of(self._ask(what, name, {"symbol": market_id}), what)
        mark = None
        if self._is_futures:
            answer = self._ask(what, "fapiPublicGetPremiumIndex", {"symbol": market_id})
            mark = binance.decimal(binance.row_of(answer, what), "markPrice")
        return binance.quote(row, symbol, market_id, mark, self._requester.now_ms())

    def quotes(self, symbols: Sequence[str]) -> Mapping[str, Quote]:
        """Return the best prices of each symbol now, by one question; without mark prices."""
        ids = {symbol: self._id(symbol) for symbol in symbols}
        name = self._named("publicGetTickerBookTicker", "fapiPublicGetTickerBookTicker")
        params = {} if self._is_futures else binance.named_markets(ids.values())
        return binance.quotes(self._ask("prices", name, params), ids, self._requester.now_ms())

    def bars(self, symbol: str, interval: Interval, *, since_ms: int, until_ms: int) -> Bars:
        """Return the closed bars that open in [since, until), every page of them."""
        self._client.patience_s = PATIENCE_S
        source = self._connections.here.sources.get((symbol, interval))
        if source is None:
            source = open_source(self._requester, symbol, interval, None)
            self._connections.here.sources[symbol, interval] = source
        step = interval.milliseconds
        cursor, end = bar_at_or_after(since_ms, interval), bar_at_or_after(until_ms, interval)
        rows: list[BarRow] = []
        recent: dict[int, BarRow] = {}
        while cursor < end:
            page = source.page(Span(cursor, end), recent)
            if not page:
                break
            rows += page
            recent = {int(row[0]): row for row in page}
            cursor = int(page[-1][0]) + step
        columns = list(zip(*rows, strict=True)) or [()] * len(source.columns)
        table = pa.table(dict(zip(source.columns, columns, strict=True)))
        return Bars(symbol, interval, canonical(table, place=f"{symbol} {interval}"))

    def funding_rates(self, symbol: str, *, since_ms: int) -> Rates:
        """Return settlement times and funding rates since then; empty for spot."""
        if not self._is_futures:
            return ()
        rows = self._rates(f"funding rates of {symbol}", symbol, since_ms)
        return binance.rates(rows, {self._id(symbol): symbol})[symbol]

    def settled_rates(self, symbols: Sequence[str], *, since_ms: int) -> Mapping[str, Rates]:
        """Return the same of each symbol by one question, for a short time; empty for spot."""
        if not self._is_futures:
            return dict.fromkeys(symbols, ())
        named = {self._id(symbol): symbol for symbol in symbols}
        return binance.rates(self._rates("funding rates", None, since_ms), named)

    def _rates(self, what: str, symbol: str | None, since_ms: int) -> list[Row]:
        return self._pages(what, "fapiPublicGetFundingRate", symbol, since_ms, "fundingTime")

    def balances(self) -> Mapping[str, Balance]:
        """Return what the account holds, by currency."""
        if self._is_futures:
            return binance.futures_balances(self._ask("the account", "fapiPrivateV3GetAccount"))
        return binance.spot_balances(self._ask("the account", "privateGetAccount"))

    def positions(self, symbols: Sequence[str]) -> Mapping[str, Position]:
        """Return the position of each symbol; a flat one has quantity 0."""
        if not self._is_futures:
            held = {asset: balance.total for asset, balance in self.balances().items()}
            return {own: Position(own, held.get(own.partition("/")[0], ZERO)) for own in symbols}
        rows = binance.rows_of(self._ask("positions", "fapiPrivateV3GetPositionRisk"), "positions")
        return binance.positions(rows, {symbol: self._id(symbol) for symbol in symbols})

    def open_orders(self, symbol: str) -> Sequence[Order]:
        """Return the orders that can still fill, those of other programs included."""
        what, params = f"open orders of {symbol}", {"symbol": self._id(symbol)}
        name = self._named("privateGetOpenOrders", "fapiPrivateGetOpenOrders")
        orders = self._orders(binance.rows_of(self._ask(what, name, params), what), symbol)
        if self._is_futures:
            rows = binance.rows_of(self._ask(what, "fapiPrivateGetOpenAlgoOrders", params), what)
            orders += [self._conditional(row, symbol) for row in rows]
        return [order for order in orders if order.status == "open"]

    def order(self, symbol: str, client_id: str) -> Order | None:
        """Return the newest order of that name, or None if the venue says there is none."""
        params = {"symbol": self._id(symbol), "origClientOrderId": client_id}
        row = self._ask_for_order(self._named("privateGetOrder", "fapiPrivateGetOrder"), params)
        if row is not None:
            return self._named_so(binance.order(row, symbol, self._id(symbol)), client_id)
        if not self._is_futures:
            return None
        row = self._ask_for_order("fapiPrivateGetAlgoOrder", {"clientAlgoId": client_id})
        return None if row is None else self._named_so(self._conditional(row, symbol), client_id)

    def _named_so(self, order: Order, client_id: str) -> Order:
        if order.client_id != client_id:
            raise binance.nonsense(f"order {client_id}", f"order {order.client_id}")
        return order

    def _conditional(self, row: Row, symbol: str) -> Order:
        """Return a stop, with the fills of the order that it became."""
        number = binance.actual_order_id(row)
        sent = None
        if number is not None:
            params = {"symbol": self._id(symbol), "orderId": number}
            answer = self._ask_for_order("fapiPrivateGetOrder", params)
            sent = None if answer is None else binance.order(answer, symbol, self._id(symbol))
        return binance.conditional(row, symbol, self._id(symbol), sent)

    def _ask_for_order(self, name: str, params: Mapping[str, object]) -> Row | None:
        """Return an order's row; None where the exchange says that there is none of that name."""
        try:
            answer = self._ask("an order", name, params)
        except VenueError:
            if self._client.exchanged.code() == _NO_SUCH_ORDER:
                return None
            raise
        return binance.row_of(answer, "an order")

    def orders(self, symbol: str, *, since_ms: int) -> Sequence[Order]:
        """Return every order of the account since then, whoever sent it, oldest first."""
        what = f"orders of {symbol}"
        name = self._named("privateGetAllOrders", "fapiPrivateGetAllOrders")
        orders = self._orders(self._pages(what, name, symbol, since_ms, "orderId"), symbol)
        if self._is_futures:
            rows = self._pages(what, "fapiPrivateGetAllAlgoOrders", symbol, since_ms, "algoId")
            actual = {order.order_id: order for order in orders}
            stops = []
            for row in rows:
                number = binance.actual_order_id(row)
                sent = actual.pop(number, None) if number else None
                stops.append(binance.conditional(row, symbol, self._id(symbol), sent))
            orders = [*actual.values(), *stops]
        return sorted(orders, key=lambda order: order.updated_ms)

    def trades(self, symbol: str, *, since_ms: int) -> Sequence[Trade]:
        """Return every fill of the account since then, oldest first."""
        what, market_id = f"fills of {symbol}", self._id(symbol)
        name = self._named("privateGetMyTrades", "fapiPrivateGetUserTrades")
        rows = self._pages(what, name, symbol, since_ms, "id")
        trades = [binance.trade(row, symbol, market_id) for row in rows]
        return sorted(trades, key=lambda trade: (trade.ts_ms, int(trade.trade_id)))

    def funding_payments(
        self, symbols: Sequence[str], *, since_ms: int
    ) -> Sequence[FundingPayment]:
        """Return the funding of some symbols since then, by one question; empty for spot."""
        if not self._is_futures:
            return ()
        named = {self._id(symbol): symbol for symbol in symbols}
        rows = self._pages("funding", "fapiPrivateGetIncome", None, since_ms, "time", _FUNDING)
        return [
            binance.payment(row, own) for row in rows if (own := named.get(str(row.get("symbol"))))
        ]

    def submit(self, request: OrderRequest) -> Outcome:
        """Send an order once. The request is never repeated, whatever happens."""
        params = binance.order_params(request, self.kind)
        kind = "limit" if request.type == "limit" else "market"
        price = f"{request.price:f}" if request.price is not None else None

        def send() -> object:
            return self._client.create_order(
                request.symbol, kind, request.side, f"{request.quantity:f}", price, params
            )

        def read(answer: object) -> Order:
            row, market_id = binance.row_of(answer, "an order"), self._id(request.symbol)
            if self._is_futures and request.type == "stop":
                order = binance.conditional(row, request.symbol, market_id, None)
            else:
                order = binance.order(row, request.symbol, market_id)
            binance.check_echo(order, request)
            return order

        sells = not self._is_futures and request.side == "sell"
        urgent = request.type == "stop" or request.reduce_only or sells
        return self._once(send, read, outcomes.refused_or_unknown, urgent=urgent)

    def cancel(self, symbol: str, client_id: str) -> Outcome:
        """Cancel an order; see `Venue`."""
        market_id = self._id(symbol)
        named = {"symbol": market_id, "origClientOrderId": client_id}
        name = self._named("privateDeleteOrder", "fapiPrivateDeleteOrder")

        def read(answer: object) -> Order:
            order = binance.order(binance.row_of(answer, "an order"), symbol, market_id)
            if order.status == "open":
                raise binance.nonsense(f"order {client_id}", "still open after its cancellation")
            return self._named_so(order, client_id)

        outcome = self._once(self._call(name, named), read, outcomes.gone_or_unknown, urgent=True)
        gone = isinstance(outcome, Refused) and outcome.code == str(_NOTHING_TO_CANCEL)
        if not (gone and self._is_futures):
            return outcome
        call = self._call("fapiPrivateDeleteAlgoOrder", {"clientAlgoId": client_id})
        return self._once(
            call, lambda _: self._stop(symbol, client_id), outcomes.gone_or_unknown, urgent=True
        )

    def _stop(self, symbol: str, client_id: str) -> Order:
        """Return a stop that was just canceled: the answer to that does not show it."""
        order = self.order(symbol, client_id)
        if order is None or order.status == "open":
            raise binance.nonsense(f"stop {client_id}", "not canceled after its cancellation")
        return order

    def cancel_all(self, symbol: str) -> None:
        """Cancel all open orders of a symbol, those of other programs included."""
        params = {"symbol": self._id(symbol)}
        names = ["privateDeleteOpenOrders"]
        if self._is_futures:
            names = ["fapiPrivateDeleteAllOpenOrders", "fapiPrivateDeleteAlgoOpenOrders"]
        for name in names:
            try:
                self._ask(f"cancellation of {symbol}", name, params, urgent=True)
            except VenueError:
                if self._client.exchanged.code() != _NOTHING_TO_CANCEL:
                    raise

    def one_way(self) -> bool:
        """Return whether a symbol has one position; false in hedge mode, where it has two."""
        if not self._is_futures:
            return True
        answer = self._ask("the account's settings", "fapiPrivateGetAccountConfig")
        return binance.row_of(answer, "its settings").get("dualSidePosition") is False

    def margin_terms(self, symbols: Sequence[str]) -> Mapping[str, MarginTerms]:
        """Return leverage and margin mode of each symbol; empty for spot."""
        if not self._is_futures:
            return {}
        rows = binance.rows_of(self._ask("margin", "fapiPrivateGetSymbolConfig"), "margin")
        return binance.margin_terms(rows, {symbol: self._id(symbol) for symbol in symbols})

    def set_leverage(self, symbol: str, leverage: int) -> None:
        """Set the largest leverage of a perpetual."""
        params = {"symbol": self._id(symbol), "leverage": leverage}
        answer = self._ask(f"leverage of {symbol}", "fapiPrivatePostLeverage", params)
        row = binance.row_of(answer, f"leverage of {symbol}")
        if binance.decimal(row, "leverage") != leverage:
            raise binance.nonsense(f"leverage of {symbol}", f"{row.get('leverage')}")

    def set_margin_mode(self, symbol: str, mode: MarginMode) -> None:
        """Set how a perpetual's position is margined; setting what is set is no error."""
        words = {"isolated": "ISOLATED", "cross": "CROSSED"}[mode]
        params = {"symbol": self._id(symbol), "marginType": words}
        try:
            self._ask(f"margin mode of {symbol}", "fapiPrivatePostMarginType", params)
        except VenueError:
            if self._client.exchanged.code() != _MARGIN_MODE_IS_SET:
                raise

    def renew_dead_man(self, symbol: str, countdown_ms: int) -> None:
        """Let the venue cancel all orders of a symbol unless renewed in time."""
        params = {"symbol": self._id(symbol), "countdownTime": countdown_ms}
        name = "fapiPrivatePostCountdownCancelAll"
        self._ask(f"countdown of {symbol}", name, params, urgent=True)

    def watch(self, symbols: Sequence[str], interval: Interval) -> None:
        """Start the streams of closed bars and of this account's orders."""
        if self._streams is None:
            from stormsail.execution.connection.pro_streams import ProStreams

            self._streams = ProStreams(
                self._client, self._credentials, self._clock, self._budget, base_url=self._base_url
            )
        self._streams.start({self._id(symbol): symbol for symbol in symbols}, interval)

    def events(self, timeout_s: float) -> Sequence[Event]:
        """Return what the streams brought, waiting at most so long for the first event."""
        if self._streams is None:
            self._clock.sleep(timeout_s)
            return ()
        return self._streams.take(timeout_s)

    def health(self) -> VenueHealth:
        """Return how the connection is doing, without a request."""
        age = self._streams.age_ms() if self._streams is not None else None
        return VenueHealth(self._budget.used(), self._budget.banned_until_ms(), age)

    def close(self) -> None:
        """End streams and connections; a second call does nothing."""
        if self._streams is not None:
            self._streams.close()
        self._connections.close()
        self._budget.close()

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of calls of this venue that do not depend on each other."""
        with nullcontext() if self._streams is None else self._streams.held():
            return self._connections.at_once(calls)

    def _named(self, spot: str, futures: str) -> str:
        return futures if self._is_futures else spot

    def _id(self, symbol: str) -> str:
        if not self._client.markets:
            self._client.patience_s = PATIENCE_S
            self._requester.request("its markets", lambda: self._client.load_markets(False))  # noqa: FBT003
        entry = (self._client.markets or {}).get(symbol)
        if entry is not None:
            self._ids[symbol] = str(entry["id"])
        elif symbol not in self._ids:  # one that was listed can still be asked about
            raise self._missing(symbol)
        return self._ids[symbol]

    def _missing(self, symbol: str) -> VenueError:
        return VenueError(
            "venue-symbol",
            wrong=f"{symbol} must be a market of {self.name}",
            found=f"no such symbol among {len(self._client.markets or {})}",
            remedy="It may have been delisted. Leave it out.",
        )

    def _call(self, name: str, params: Mapping[str, object]) -> Callable[[], object]:
        method = getattr(self._client, name)
        return lambda: method(dict(params))

    def _ask(
        self,
        what: str,
        name: str,
        params: Mapping[str, object] | None = None,
        *,
        urgent: bool = False,
    ) -> object:
        """Return the answer to a question, asked again where asking again may help."""
        self._client.urgent, self._client.patience_s = urgent, PATIENCE_S
        return self._requester.request(what, self._call(name, params or {}))

    def _orders(self, rows: Sequence[Row], symbol: str) -> list[Order]:
        return [binance.order(row, symbol, self._id(symbol)) for row in rows]

    def _pages(
        self,
        what: str,
        name: str,
        symbol: str | None,
        since_ms: int,
        cursor: str,
        extra: Mapping[str, object] | None = None,
    ) -> list[Row]:
        """Return all rows since a time, by week where the account's past is told by week."""
        params = {**({} if symbol is None else {"symbol": self._id(symbol)}), **(extra or {})}
        ask = partial(self._ask, what, name)
        if not self._is_futures or cursor == "fundingTime":  # rates are not the account's
            return rows_since(ask, what, params, since_ms, cursor)
        return rows_by_week(ask, what, params, since_ms, cursor, clock=self._clock)

    def _once(
        self,
        send: Callable[[], object],
        read: Callable[[object], Order],
        judge: Callable[[outcomes.Exchanged, str], Refused | Unknown],
        *,
        urgent: bool,
    ) -> Outcome:
        """Send a request that changes something, exactly once, and judge what came back."""
        client = self._client
        client.urgent, client.patience_s = urgent, 0.0
        client.exchanged = outcomes.Exchanged()
        try:
            send()
        except load_ccxt().BaseError as error:
            return judge(client.exchanged, f"{type(error).__name__}: {one_line(error)}")
        except StormsailError as error:  # no budget: nothing was sent
            return judge(client.exchanged, error.found)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return judge(client.exchanged, f"{type(error).__name__} in ccxt")
        exchanged = client.exchanged
        try:
            return Accepted(read(exchanged.json()))
        except VenueError as error:
            return Unknown(f"{error.wrong}; found {error.found}")
