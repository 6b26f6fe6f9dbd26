"""Routes of the loopback exchange: who may ask, what it weighs, and what the answer is."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stormsail.execution.loopback import futures, spot
from stormsail.execution.loopback.faults import Group
from stormsail.execution.loopback.ledger import FUNDING_MS, Ledger
from stormsail.execution.loopback.orders import Dialect, HeldOrder, RefusalError
from stormsail.execution.loopback.tape import Candle, between, forming, interval_ms

if TYPE_CHECKING:
    from stormsail.execution.loopback.exchange import Exchange

_WEEK_MS, _OLDEST_MS = 7 * 86_400_000, 90 * 86_400_000
SPOT, PERP, SAPI = "/api/v3", "/fapi/v1", "/sapi/v1"
LISTEN_KEY = "loopback-listen-key"


@dataclass
class Served:
    """A request that is being answered; `order` is the one that it placed."""

    exchange: "Exchange"
    params: dict[str, str]
    order: HeldOrder | None

    def book(self, dialect: Dialect) -> Ledger:
        """Return the book of a dialect."""
        return self.exchange.ledgers[dialect]


Answer = Callable[[Served], object]
Weight = Callable[[dict[str, str]], int]


@dataclass(frozen=True)
class Route:
    """One route: dialect, group, whether it must be signed, the right that it needs."""

    dialect: Dialect
    group: Group
    answer: Answer
    weight: Weight
    signed: bool = False
    right: str = "enableReading"


def find(method: str, path: str) -> Route | None:
    """Return a route, or None where there is none."""
    return _ROUTES.get((method, path))


def group_of(method: str, path: str) -> Group:
    """Return the group in which a request is counted."""
    route = find(method, path)
    return route.group if route else "other"


def _klines(served: Served, dialect: Dialect) -> list[Candle]:
    exchange, params = served.exchange, served.params
    tapes = exchange.ledgers[dialect].tapes
    rows = tapes.get((params["symbol"], params["interval"]))
    if rows is None:
        raise RefusalError(-1121, "Invalid symbol.")
    length = interval_ms(params["interval"])
    limit = int(params.get("limit", "500"))
    end = int(params.get("endTime", 1 << 60))
    now = exchange.clock.now_ms() if exchange.clock is not None else exchange.now_ms
    if now is not None:
        end = min(end, now - 3 * length if now < exchange.stale_ms else now)
    if "startTime" not in params:
        return _formed(between(rows, 0, end)[-limit:], length, served)
    start = int(params["startTime"])
    if exchange.windowed:
        end = min(end, start + limit * length - 1)
    return _formed(between(rows, start, end)[:limit], length, served)


def _formed(rows: Sequence[Candle], length: int, served: Served) -> list[Candle]:
    clock = served.exchange.clock
    if clock is None:
        return list(rows)
    now = clock.now_ms()
    return [forming(row, length, now) for row in rows]


def _funding_rates(served: Served) -> list[dict[str, object]]:
    """Return the rates of one market, or of all, in the order of their times."""
    params, exchange = served.params, served.exchange
    wanted = params.get("symbol")
    if wanted not in (None, *exchange.funding, *exchange.ledgers["perp"].listings):
        raise RefusalError(-1121, "Invalid symbol.")
    names = exchange.funding if wanted is None else [wanted]
    rows = sorted((*row, name) for name in names for row in exchange.funding.get(name, ()))
    start, end = int(params.get("startTime", "0")), int(params.get("endTime", 1 << 60))
    if exchange.clock is not None:
        end = min(end, exchange.clock.now_ms())
    page = [row for row in rows if start <= row[0] <= end][: int(params.get("limit", "100"))]
    return [
        {"symbol": name, "fundingTime": ts, "fundingRate": rate, "markPrice": "1.0"}
        for ts, rate, name in page
    ]


def _ticker(served: Served, dialect: Dialect) -> object:
    """Return the best prices of one market; of the named ones (spot), or of all, as a list."""
    params = served.params
    if "symbol" in params:
        return _best(served, dialect, params["symbol"])
    book = served.book(dialect)
    priced = {market_id for market_id, _ in book.tapes}
    names = [name for name, own in book.listings.items() if own.status != "DELISTED"]
    names = [name for name in names if name in priced]
    if "symbols" in params:
        if dialect != "spot":
            raise RefusalError(-1104, "Not all sent parameters were read.")
        names = json.loads(params["symbols"])
    return [_best(served, dialect, name) for name in names]


def _best(served: Served, dialect: Dialect, market_id: str) -> dict[str, object]:
    book = served.book(dialect)
    listing = book.listing(market_id)
    price = book.price(listing.market_id)
    return {
        "symbol": listing.market_id,
        "bidPrice": spot.text(price),
        "bidQty": "100.00000000",
        "askPrice": spot.text(price + listing.tick),
        "askQty": "100.00000000",
        "time": served.exchange.server_ms(),
    }


def _premium(served: Served) -> dict[str, object]:
    book = served.book("perp")
    listing = book.listing(served.params["symbol"])
    now = served.exchange.server_ms()
    return {
        "symbol": listing.market_id,
        "markPrice": spot.text(book.price(listing.market_id)),
        "lastFundingRate": book.rate(listing.market_id, now // FUNDING_MS * FUNDING_MS),
        "nextFundingTime": (now // FUNDING_MS + 1) * FUNDING_MS,
        "time": now,
    }


def _place(served: Served, dialect: Dialect, *, conditional: bool = False) -> object:
    book = served.book(dialect)
    if dialect == "spot":
        served.order = spot.new_order(book, served.params)
        body = spot.order_json(served.order, new=True)
        fills = [f for f in book.fills if f.order_id == served.order.order_id]
        return body | {"fills": [spot.trade_json(fill) for fill in fills]}
    served.order = futures.new_order(book, served.params, conditional=conditional)
    return futures.algo_json(served.order) if conditional else futures.order_json(served.order)


def _named_order(served: Served, dialect: Dialect, *, conditional: bool) -> HeldOrder | None:
    book, params = served.book(dialect), served.params
    names = ("clientAlgoId", "algoId") if conditional else ("origClientOrderId", "orderId")
    number = params.get(names[1])
    market_id = params.get("symbol")
    if market_id is None:  # the algo service asks for none
        ids = {order.market_id for order in book.orders}
    else:
        ids = {book.listing(market_id).market_id}
    for name in ids:
        order = book.find(
            name, client_id=params.get(names[0]), order_id=int(number) if number else None
        )
        if order is not None and order.conditional == conditional:
            return order
    return None


def _shown(order: HeldOrder, dialect: Dialect) -> object:
    if order.conditional:
        return futures.algo_json(order)
    return spot.order_json(order) if dialect == "spot" else futures.order_json(order)


def _query(served: Served, dialect: Dialect, *, conditional: bool = False) -> object:
    order = _named_order(served, dialect, conditional=conditional)
    if order is None:
        raise RefusalError(-2013, "Order does not exist.")
    return _shown(order, dialect)


def _cancel(served: Served, dialect: Dialect, *, conditional: bool = False) -> object:
    book = served.book(dialect)
    order = book.cancel(_named_order(served, dialect, conditional=conditional))
    if conditional:
        return {
            "algoId": order.order_id,
            "clientAlgoId": order.client_id,
            "code": "200",
            "msg": "success",
        }
    return spot.canceled_json(order) if dialect == "spot" else futures.order_json(order)


def _cancel_all(served: Served, dialect: Dialect, *, conditional: bool = False) -> object:
    book = served.book(dialect)
    market_id = book.listing(served.params["symbol"]).market_id
    orders = book.open_orders(market_id, conditional=conditional)
    if dialect == "spot" and not orders:
        raise RefusalError(-2011, "Unknown order sent.")
    canceled = [book.cancel(order) for order in orders]
    if dialect == "spot":
        return [spot.canceled_json(order) for order in canceled]
    return {"code": 200, "msg": "The operation of cancel all open order is done."}


def _open(served: Served, dialect: Dialect, *, conditional: bool = False) -> object:
    orders = served.book(dialect).open_orders(served.params.get("symbol"), conditional=conditional)
    return [_shown(order, dialect) for order in orders]


def _span(served: Served, dialect: Dialect) -> tuple[int, int]:
    """Return the times between which rows of the past are asked for.

    Futures answer for seven days from `startTime` on, and not for what is older than 90 days.
    """
    params, now = served.params, served.exchange.time_ms()
    start, end = int(params.get("startTime", "0")), int(params.get("endTime", 1 << 60))
    if dialect == "spot":
        return start, end
    if "startTime" not in params:
        start = now - _WEEK_MS
    elif start < now - _OLDEST_MS:
        raise RefusalError(-4166, "Search window is restricted to recent 90 days only.")
    if "endTime" in params and end - start > _WEEK_MS:
        raise RefusalError(-4165, "Maximum time interval is 7 days.")
    return start, min(end, start + _WEEK_MS)


def _all(served: Served, dialect: Dialect, *, conditional: bool = False) -> object:
    book, params = served.book(dialect), served.params
    first = int(params.get("orderId", "0"))
    start, end = _span(served, dialect)
    rows = [
        order
        for order in book.orders
        if order.market_id == params["symbol"]
        and order.conditional == conditional
        and order.visible_ms <= book.now_ms
        and (order.order_id >= first if first else start <= order.created_ms <= end)
    ]
    return [_shown(order, dialect) for order in rows[: int(params.get("limit", "500"))]]


def _trades(served: Served, dialect: Dialect) -> object:
    book, params = served.book(dialect), served.params
    first = int(params.get("fromId", "0"))
    start, end = _span(served, dialect)
    rows = [
        fill
        for fill in book.fills
        if fill.market_id == params["symbol"]
        and (fill.trade_id >= first if first else start <= fill.ts_ms <= end)
    ][: int(params.get("limit", "500"))]
    shown = spot.trade_json if dialect == "spot" else futures.trade_json
    return [shown(fill) for fill in rows]


def _income(served: Served) -> object:
    book, params = served.book("perp"), served.params
    start, end = _span(served, "perp")
    rows = [
        payment
        for payment in book.payments
        if start <= payment.ts_ms <= end
        and params.get("incomeType") in (None, payment.kind)
        and params.get("symbol") in (None, payment.market_id)
    ]
    return [futures.income_json(payment) for payment in rows[: int(params.get("limit", "100"))]]


def _rights(served: Served) -> object:
    return {**served.exchange.rights, "createTime": 1698645219000}


def _kline_weight(params: dict[str, str]) -> int:
    limit = int(params.get("limit", "500"))
    return 1 if limit < 100 else 2 if limit < 500 else 5 if limit <= 1000 else 10


def _fixed(weight: int, without_symbol: int | None = None) -> Weight:
    whole = weight if without_symbol is None else without_symbol
    return lambda params: weight if "symbol" in params else whole


def _clock(served: Served) -> object:
    return {"serverTime": served.exchange.server_ms()}


def _listen_key(_served: Served) -> object:
    return {"listenKey": LISTEN_KEY}


_TRADE: dict[Dialect, str] = {"spot": "enableSpotAndMarginTrading", "perp": "enableFutures"}


def _routes_of(
    dialect: Dialect, root: str, weights: dict[str, int]
) -> dict[tuple[str, str], Route]:
    """Return the routes that both dialects have, by their own weights."""
    right = _TRADE[dialect]
    own = spot if dialect == "spot" else futures

    def signed(group: Group, answer: Answer, weight: Weight, *, trades: bool = False) -> Route:
        needed = right if trades else "enableReading"
        return Route(dialect, group, answer, weight, signed=True, right=needed)

    w = weights
    every = "openOrders" if dialect == "spot" else "allOpenOrders"
    fills = "myTrades" if dialect == "spot" else "userTrades"
    candle: Weight = _fixed(2) if dialect == "spot" else _kline_weight
    return {
        ("GET", f"{root}/time"): Route(dialect, "other", _clock, _fixed(1)),
        ("GET", f"{root}/exchangeInfo"): Route(
            dialect, "info", lambda s: own.exchange_info(s.book(dialect)), _fixed(w["info"])
        ),
        ("GET", f"{root}/klines"): Route(dialect, "data", lambda s: _klines(s, dialect), candle),
        ("GET", f"{root}/ticker/bookTicker"): Route(
            dialect,
            "other",
            lambda s: _ticker(s, dialect),
            _fixed(2, 4 if dialect == "spot" else 5),
        ),
        ("POST", f"{root}/order"): signed(
            "order", lambda s: _place(s, dialect), _fixed(1), trades=True
        ),
        ("GET", f"{root}/order"): signed("query", lambda s: _query(s, dialect), _fixed(w["query"])),
        ("DELETE", f"{root}/order"): signed(
            "cancel", lambda s: _cancel(s, dialect), _fixed(1), trades=True
        ),
        ("DELETE", f"{root}/{every}"): signed(
            "cancel", lambda s: _cancel_all(s, dialect), _fixed(1), trades=True
        ),
        ("GET", f"{root}/openOrders"): signed(
            "list", lambda s: _open(s, dialect), _fixed(w["open"], w["open_all"])
        ),
        ("GET", f"{root}/allOrders"): signed("list", lambda s: _all(s, dialect), _fixed(w["all"])),
        ("GET", f"{root}/{fills}"): signed("list", lambda s: _trades(s, dialect), _fixed(w["all"])),
    }


def _spot_routes() -> dict[tuple[str, str], Route]:
    weights = {"info": 20, "query": 4, "open": 6, "open_all": 80, "all": 20}

    def read(answer: Answer, weight: int) -> Route:
        return Route("spot", "account", answer, _fixed(weight), signed=True)

    return _routes_of("spot", SPOT, weights) | {
        ("GET", f"{SPOT}/account"): read(lambda s: spot.account(s.book("spot")), 20),
        ("GET", f"{SPOT}/account/commission"): read(
            lambda s: spot.commission(s.book("spot"), s.params), 20
        ),
        ("GET", f"{SAPI}/account/apiRestrictions"): read(_rights, 1),
    }


def _perp_routes() -> dict[tuple[str, str], Route]:
    weights = {"info": 1, "query": 1, "open": 1, "open_all": 40, "all": 5}

    def route(
        group: Group, answer: Answer, weight: int, *, trades: bool = False, signed: bool = True
    ) -> Route:
        right = _TRADE["perp"] if trades else "enableReading"
        return Route("perp", group, answer, _fixed(weight), signed=signed, right=right)

    def book(served: Served) -> Ledger:
        return served.book("perp")

    algo = f"{PERP}/algoOrder"
    return _routes_of("perp", PERP, weights) | {
        ("GET", f"{PERP}/fundingRate"): route("data", _funding_rates, 1, signed=False),
        ("GET", f"{PERP}/premiumIndex"): route("other", _premium, 1, signed=False),
        ("GET", "/fapi/v3/account"): route("account", lambda s: futures.account(book(s)), 5),
        ("GET", "/fapi/v3/positionRisk"): route(
            "account", lambda s: futures.position_risk(book(s), s.params), 5
        ),
        ("GET", f"{PERP}/symbolConfig"): route(
            "account", lambda s: futures.symbol_config(book(s), s.params), 5
        ),
        ("GET", f"{PERP}/accountConfig"): route(
            "account", lambda s: futures.account_config(book(s)), 5
        ),
        ("GET", f"{PERP}/commissionRate"): route(
            "account", lambda s: futures.commission(book(s), s.params), 20
        ),
        ("GET", f"{PERP}/income"): route("list", _income, 30),
        ("POST", f"{PERP}/leverage"): route(
            "other", lambda s: futures.set_leverage(book(s), s.params), 1, trades=True
        ),
        ("POST", f"{PERP}/marginType"): route(
            "other", lambda s: futures.set_margin_type(book(s), s.params), 1, trades=True
        ),
        ("POST", f"{PERP}/countdownCancelAll"): route(
            "other", lambda s: futures.countdown(book(s), s.params), 10, trades=True
        ),
        ("POST", algo): route(
            "order", lambda s: _place(s, "perp", conditional=True), 1, trades=True
        ),
        ("GET", algo): route("query", lambda s: _query(s, "perp", conditional=True), 1),
        ("DELETE", algo): route(
            "cancel", lambda s: _cancel(s, "perp", conditional=True), 1, trades=True
        ),
        ("GET", f"{PERP}/openAlgoOrders"): route(
            "list", lambda s: _open(s, "perp", conditional=True), 1
        ),
        ("GET", f"{PERP}/allAlgoOrders"): route(
            "list", lambda s: _all(s, "perp", conditional=True), 5
        ),
        ("DELETE", f"{PERP}/algoOpenOrders"): route(
            "cancel", lambda s: _cancel_all(s, "perp", conditional=True), 1, trades=True
        ),
        ("POST", f"{PERP}/listenKey"): route("other", _listen_key, 1, signed=False),
        ("PUT", f"{PERP}/listenKey"): route("other", _listen_key, 1, signed=False),
        ("DELETE", f"{PERP}/listenKey"): route("other", lambda _s: {}, 1, signed=False),
    }


_ROUTES = _spot_routes() | _perp_routes()
