"""Binance's answers as typed values: every field is checked, nothing is taken for granted."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TypeVar

from stormsail.core.errors import VenueError
from stormsail.execution.venue import (
    ZERO,
    Balance,
    FundingPayment,
    KeyPermissions,
    MarginMode,
    MarginTerms,
    Market,
    MarketStatus,
    Order,
    OrderRequest,
    OrderStatus,
    OrderType,
    Position,
    Quote,
    Side,
    Trade,
)
from stormsail.market.instruments import Kind

T = TypeVar("T")
Row = Mapping[str, object]

STATUSES: Mapping[str, OrderStatus] = {
    "NEW": "open",
    "PENDING_NEW": "open",
    "PARTIALLY_FILLED": "open",
    "PENDING_CANCEL": "open",
    "FILLED": "filled",
    "CANCELED": "canceled",
    "REJECTED": "rejected",
    "EXPIRED": "expired",
    "EXPIRED_IN_MATCH": "expired",
    # conditional orders
    "TRIGGERING": "open",
    "TRIGGERED": "open",
    "FINISHED": "filled",
}
TYPES: Mapping[str, OrderType] = {
    "MARKET": "market",
    "LIMIT": "limit",
    "LIMIT_MAKER": "limit",
    "STOP_LOSS": "stop",
    "STOP_MARKET": "stop",
    # orders of people and other programs: all of them wait for a price
    "STOP": "stop",
    "STOP_LOSS_LIMIT": "stop",
    "TAKE_PROFIT": "stop",
    "TAKE_PROFIT_LIMIT": "stop",
    "TAKE_PROFIT_MARKET": "stop",
    "TRAILING_STOP_MARKET": "stop",
    "LIQUIDATION": "market",
}
_SIDES: Mapping[str, Side] = {"BUY": "buy", "SELL": "sell"}
_MODES: Mapping[str, MarginMode] = {"ISOLATED": "isolated", "CROSSED": "cross"}


@dataclass(frozen=True)
class Dialect:
    """What differs between Binance's spot and USD-M markets.

    Attributes:
        exchange: id of ccxt's class.
        market_type: name of its market list in ccxt.
        limit: request weight of an address in a minute.
        weight_of_cost: the exchange's weight of ccxt's cost 1.
        default_fees: maker's and taker's, where the exchange does not tell the account's.
    """

    kind: Kind
    exchange: str
    market_type: str
    limit: int
    weight_of_cost: float
    default_fees: tuple[Decimal, Decimal]


SPOT = Dialect("spot", "binance", "spot", 6000, 5.0, (Decimal("0.001"), Decimal("0.001")))
PERPETUAL = Dialect(
    "perpetual", "binanceusdm", "linear", 2400, 1.0, (Decimal("0.0002"), Decimal("0.0005"))
)


def nonsense(what: str, found: str) -> VenueError:
    """Return the error for an answer that cannot be what was asked for."""
    return VenueError(
        "venue-response",
        wrong=f"the answer about {what} must be what was asked for",
        found=found,
        remedy="Nothing was concluded from it; the question is asked again.",
    )


def rows_of(answer: object, what: str) -> list[Row]:
    """Return an answer that is a list of objects.

    Raises:
        VenueError: if it is not.
    """
    if isinstance(answer, list) and all(isinstance(row, dict) for row in answer):
        return answer
    raise nonsense(what, f"{answer!r:.80}")


def row_of(answer: object, what: str) -> Row:
    """Return an answer that is one object.

    Raises:
        VenueError: if it is not.
    """
    if isinstance(answer, dict) and answer:
        return answer
    raise nonsense(what, f"{answer!r:.80}")


def decimal(row: Row, name: str) -> Decimal:
    """Return a finite number that is written as text.

    Raises:
        VenueError: if it is missing or no number.
    """
    value = row.get(name)
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            number = Decimal(value)
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite():
            return number
    raise nonsense(f"`{name}`", f"{value!r:.80}")


def text(row: Row, name: str) -> str:
    """Return a text or a number as text; never an empty one.

    Raises:
        VenueError: if it is missing.
    """
    value = row.get(name)
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise nonsense(f"`{name}`", f"{value!r:.80}")


def milliseconds(row: Row, *names: str) -> int:
    """Return the first of some times that is stated.

    Raises:
        VenueError: if none is.
    """
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53:
            return value
    raise nonsense(f"`{names[0]}`", f"{row.get(names[0])!r:.80}")


def order(row: Row, symbol: str, market_id: str) -> Order:
    """Return an order of `order`, `openOrders`, `allOrders` or of the answer to one.

    Raises:
        VenueError: if a field is missing, or it is of another market.
    """
    _check_market(row, market_id)
    name = text(row, "clientOrderId")
    if isinstance(row.get("origClientOrderId"), str) and row["origClientOrderId"]:
        name = text(row, "origClientOrderId")  # a cancellation has a name of its own
    price, stop = decimal(row, "price"), decimal(row, "stopPrice")
    cost = row.get("cummulativeQuoteQty", row.get("cumQuote"))
    return Order(
        client_id=name,
        order_id=text(row, "orderId"),
        symbol=symbol,
        side=_choice(_SIDES, row, "side"),
        type=_choice(TYPES, row, "type"),
        status=_choice(STATUSES, row, "status"),
        quantity=decimal(row, "origQty"),
        filled=decimal(row, "executedQty"),
        cost=decimal({"cost": cost}, "cost"),
        price=price or None,
        stop_price=stop or None,
        reduce_only=row.get("reduceOnly") is True,
        updated_ms=milliseconds(row, "updateTime", "transactTime", "time"),
    )


def conditional(row: Row, symbol: str, market_id: str, sent: Order | None) -> Order:
    """Return a stop of the algo service; `sent` is the order that it became, if it did.

    Raises:
        VenueError: if a field is missing, or it is of another market.
    """
    _check_market(row, market_id)
    return Order(
        client_id=text(row, "clientAlgoId"),
        order_id=sent.order_id if sent else f"algo-{text(row, 'algoId')}",
        symbol=symbol,
        side=_choice(_SIDES, row, "side"),
        type=_choice(TYPES, row, "orderType"),
        status=sent.status if sent else _choice(STATUSES, row, "algoStatus"),
        quantity=decimal(row, "quantity"),
        filled=sent.filled if sent else ZERO,
        cost=sent.cost if sent else ZERO,
        price=None,
        stop_price=decimal(row, "triggerPrice"),
        reduce_only=row.get("reduceOnly") is True,
        updated_ms=sent.updated_ms if sent else milliseconds(row, "updateTime", "createTime"),
    )


def actual_order_id(row: Row) -> str | None:
    """Return the number of the order that a stop became; None while it waits."""
    value = row.get("actualOrderId")
    return str(value) if isinstance(value, str | int) and str(value) not in ("", "0") else None


def check_echo(found: Order, request: OrderRequest) -> None:
    """Compare an accepted order with its request, field by field.

    Raises:
        VenueError: if they differ: then nobody knows what was accepted.
    """
    pairs = [
        ("client id", found.client_id, request.client_id),
        ("side", found.side, request.side),
        ("type", found.type, request.type),
        ("quantity", found.quantity, request.quantity),
        ("price", found.price, request.price if request.type == "limit" else found.price),
        ("stop price", found.stop_price, request.stop_price),
    ]
    for name, echo, sent in pairs:
        if echo != sent:
            raise nonsense(f"order {request.client_id}", f"{name} {echo} instead of {sent}")


def trade(row: Row, symbol: str, market_id: str) -> Trade:
    """Return a fill of `myTrades` or `userTrades`.

    Raises:
        VenueError: if a field is missing, or it is of another market.
    """
    _check_market(row, market_id)
    buyer = row.get("isBuyer", row.get("buyer"))
    if not isinstance(buyer, bool):
        raise nonsense("`isBuyer`", f"{buyer!r:.80}")
    return Trade(
        trade_id=text(row, "id"),
        order_id=text(row, "orderId"),
        symbol=symbol,
        side="buy" if buyer else "sell",
        price=decimal(row, "price"),
        quantity=decimal(row, "qty"),
        fee=decimal(row, "commission"),
        fee_asset=text(row, "commissionAsset"),
        ts_ms=milliseconds(row, "time"),
        realised=decimal(row, "realizedPnl") if "realizedPnl" in row else ZERO,
    )


def market(row: Row, symbol: str, kind: Kind, settle: str, fees: tuple[Decimal, Decimal]) -> Market:
    """Return the rules of a market from its entry in `exchangeInfo`.

    Raises:
        VenueError: if a filter is missing.
    """
    filters = {str(f.get("filterType")): f for f in rows_of(row.get("filters"), symbol)}
    price, lot = (row_of(filters.get(name), name) for name in ("PRICE_FILTER", "LOT_SIZE"))
    of_market = filters.get("MARKET_LOT_SIZE") or lot
    notional = filters.get("NOTIONAL") or filters.get("MIN_NOTIONAL") or {"notional": "0"}
    least = "minNotional" if "minNotional" in notional else "notional"
    status: MarketStatus = "trading" if row.get("status") == "TRADING" else "halted"
    step = decimal(lot, "stepSize")
    return Market(
        symbol=symbol,
        kind=kind,
        status=status,
        base=text(row, "baseAsset"),
        quote=text(row, "quoteAsset"),
        settle=settle,
        tick=decimal(price, "tickSize"),
        lot=step,
        market_lot=max(step, decimal(of_market, "stepSize")),
        min_quantity=decimal(lot, "minQty"),
        max_quantity=decimal(lot, "maxQty"),
        min_notional=decimal(notional, least),
        maker_fee=fees[0],
        taker_fee=fees[1],
        market_min=decimal(of_market, "minQty"),
        market_max=decimal(of_market, "maxQty"),
    )


def quote(row: Row, symbol: str, market_id: str, mark: Decimal | None, now_ms: int) -> Quote:
    """Return the best prices of `ticker/bookTicker`.

    Raises:
        VenueError: if they are missing or crossed.
    """
    _check_market(row, market_id)
    bid, ask = decimal(row, "bidPrice"), decimal(row, "askPrice")
    if not ZERO < bid <= ask:
        raise nonsense(f"prices of {symbol}", f"{bid} bid and {ask} asked")
    stated = row.get("time")
    return Quote(symbol, bid, ask, mark, stated if isinstance(stated, int) else now_ms)


def named_markets(ids: Iterable[str]) -> dict[str, object]:
    """Return the parameter by which spot markets are named; futures tell one, or all."""
    return {"symbols": json.dumps(list(ids), separators=(",", ":"))}


def quotes(answer: object, ids: Mapping[str, str], now_ms: int) -> dict[str, Quote]:
    """Return the best prices of some symbols from one answer, without mark prices.

    Raises:
        VenueError: if one is missing or crossed.
    """
    rows = by_market(rows_of(answer, "prices"))
    for symbol, market_id in ids.items():
        if market_id not in rows:
            raise nonsense(f"prices of {symbol}", f"{len(rows)} others")
    return {symbol: quote(rows[own], symbol, own, None, now_ms) for symbol, own in ids.items()}


def spot_balances(answer: object) -> dict[str, Balance]:
    """Return the balances of a spot account."""
    rows = rows_of(row_of(answer, "the account").get("balances"), "balances")
    return {
        text(row, "asset"): Balance(
            text(row, "asset"), decimal(row, "free"), decimal(row, "locked")
        )
        for row in rows
    }


def futures_balances(answer: object) -> dict[str, Balance]:
    """Return the wallets of a futures account; what positions hold counts as locked."""
    rows = rows_of(row_of(answer, "the account").get("assets"), "assets")
    balances = {}
    for row in rows:
        wallet = decimal(row, "walletBalance")
        free = min(wallet, max(ZERO, decimal(row, "availableBalance")))
        balances[text(row, "asset")] = Balance(text(row, "asset"), free, wallet - free)
    return balances


def position(row: Row, symbol: str, market_id: str) -> Position:
    """Return a position of `positionRisk`.

    Raises:
        VenueError: if it is one side of a hedge: then there is no single position.
    """
    _check_market(row, market_id)
    if row.get("positionSide", "BOTH") != "BOTH":
        raise nonsense(f"the position in {symbol}", "hedge mode, with a position on each side")
    return Position(
        symbol=symbol,
        quantity=decimal(row, "positionAmt"),
        entry_price=decimal(row, "entryPrice") or None,
        mark_price=decimal(row, "markPrice") or None,
        liquidation_price=decimal(row, "liquidationPrice") or None,
        unrealised=decimal(row, "unRealizedProfit"),
    )


def positions(rows: Sequence[Row], ids: Mapping[str, str]) -> dict[str, Position]:
    """Return the position of each symbol; one that `positionRisk` leaves out is flat.

    Args:
        rows: of `positionRisk`.
        ids: the exchange's name of each symbol's market.

    Raises:
        VenueError: if a row is no position, of whatever market: then nobody knows what is left out.
    """
    for row in rows:
        decimal(row, "positionAmt")
    held = by_market(rows)
    return {
        symbol: position(held[own], symbol, own) if own in held else Position(symbol, ZERO)
        for symbol, own in ids.items()
    }


def margin_terms(rows: Sequence[Row], ids: Mapping[str, str]) -> dict[str, MarginTerms]:
    """Return leverage and margin mode of each symbol from `symbolConfig`.

    Raises:
        VenueError: if one is missing.
    """
    known = by_market(rows)
    made = {}
    for symbol, market_id in ids.items():
        row = row_of(known.get(market_id), f"margin of {symbol}")
        made[symbol] = MarginTerms(decimal(row, "leverage"), _choice(_MODES, row, "marginType"))
    return made


def rates(rows: Sequence[Row], symbols: Mapping[str, str]) -> dict[str, list[tuple[int, float]]]:
    """Return settlement times and funding rates of some symbols, named by their markets."""
    made: dict[str, list[tuple[int, float]]] = {symbol: [] for symbol in symbols.values()}
    for row in rows:
        settled = milliseconds(row, "fundingTime"), float(decimal(row, "fundingRate"))
        market_id = text(row, "symbol")
        if market_id in symbols:
            made[symbols[market_id]].append(settled)
    return made


def identity(row: Row, cursor: str) -> str:
    """Return what tells a row of a page from the others of its kind."""
    own = row.get("tranId", row.get(cursor))
    return f"{row.get('symbol')}-{row.get('time')}-{own}"


def order_params(request: OrderRequest, kind: Kind) -> dict[str, object]:
    """Return what an order needs beside symbol, side, size and price, for ccxt's `create_order`."""
    params: dict[str, object] = {"newClientOrderId": request.client_id}
    if request.type == "limit":
        params["timeInForce"] = request.time_in_force
    elif request.type == "stop":
        params["stopLossPrice"] = f"{request.stop_price:f}"
    if kind == "perpetual" and request.reduce_only:
        params["reduceOnly"] = "true"
    return params


def payment(row: Row, symbol: str) -> FundingPayment:
    """Return a funding payment of `income`."""
    return FundingPayment(
        text(row, "tranId"), symbol, decimal(row, "income"), text(row, "asset"),
        milliseconds(row, "time"),
    )  # fmt: skip


def permissions(row: Row) -> KeyPermissions:
    """Return what `apiRestrictions` says; a right that is not mentioned counts as given."""

    def given(name: str) -> bool:
        return row.get(name) is not False

    return KeyPermissions(
        read=row.get("enableReading") is True,
        spot_trading=row.get("enableSpotAndMarginTrading") is True,
        futures_trading=row.get("enableFutures") is True,
        margin_trading=given("enableMargin"),
        withdraw=given("enableWithdrawals"),
        internal_transfer=given("enableInternalTransfer"),
        universal_transfer=given("permitsUniversalTransfer"),
        ip_restricted=row.get("ipRestrict") is True,
    )


def _check_market(row: Row, market_id: str) -> None:
    if row.get("symbol") != market_id:
        raise nonsense(market_id, f"something about {row.get('symbol')!r:.40}")


def _choice(names: Mapping[str, T], row: Row, field: str) -> T:
    value = row.get(field)
    if isinstance(value, str) and value in names:
        return names[value]
    raise nonsense(f"`{field}`", f"{value!r:.80}")


def by_market(rows: Sequence[Row]) -> dict[str, Row]:
    """Return rows by the market that they are about."""
    return {str(row.get("symbol")): row for row in rows}
