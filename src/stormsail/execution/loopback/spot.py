"""Binance's spot dialect: what each route of `/api/v3` answers."""

from collections.abc import Callable
from decimal import Decimal
from typing import Literal, cast

from stormsail.execution.loopback.account import SpotAccount
from stormsail.execution.loopback.ledger import Ledger
from stormsail.execution.loopback.orders import ZERO, Fill, HeldOrder, Listing, RefusalError

Params = dict[str, str]
Json = dict[str, object]
TYPES = ["LIMIT", "LIMIT_MAKER", "MARKET", "STOP_LOSS", "STOP_LOSS_LIMIT"]


def text(value: Decimal) -> str:
    """Return a number as Binance writes it: eight decimals."""
    return f"{value:.8f}"


def exchange_info(book: Ledger) -> Json:
    """GET exchangeInfo."""
    return information(book, _market)


def information(book: Ledger, shown: Callable[[Listing], Json]) -> Json:
    """Return what `exchangeInfo` answers, given how a dialect shows a market."""
    listed = [own for _, own in sorted(book.listings.items()) if own.status != "DELISTED"]
    return {
        "timezone": "UTC",
        "serverTime": book.now_ms,
        "rateLimits": [],
        "symbols": [shown(listing) for listing in listed],
    }


def filters(listing: Listing, notional: Json) -> list[Json]:
    """Return the filters of a market; the one of the notional is each dialect's own."""
    lots = {"minQty": f"{listing.min_quantity:f}", "stepSize": f"{listing.lot:f}"}
    tick = f"{listing.tick:f}"
    return [
        {
            "filterType": "PRICE_FILTER",
            "minPrice": tick,
            "maxPrice": "1000000",
            "tickSize": tick,
        },
        {"filterType": "LOT_SIZE", "maxQty": f"{listing.max_quantity:f}", **lots},
        {"filterType": "MARKET_LOT_SIZE", "maxQty": f"{listing.market_max:f}", **lots},
        notional,
    ]


def _market(listing: Listing) -> Json:
    notional: Json = {
        "filterType": "NOTIONAL",
        "minNotional": f"{listing.min_notional:f}",
        "maxNotional": "9000000",
    }
    return {
        "symbol": listing.market_id,
        "status": listing.status,
        "baseAsset": listing.base,
        "quoteAsset": listing.quote,
        "baseAssetPrecision": 8,
        "quotePrecision": 8,
        "orderTypes": TYPES,
        "filters": filters(listing, notional),
        "isSpotTradingAllowed": True,
        "permissions": ["SPOT"],
    }


def account(book: Ledger) -> Json:
    """GET account."""
    money = cast("SpotAccount", book.account)
    names = sorted({*money.balances, *money.locked})
    return {
        "uid": 354937868,
        "canTrade": True,
        "updateTime": book.now_ms,
        "accountType": "SPOT",
        "balances": [
            {
                "asset": name,
                "free": text(money.free(name)),
                "locked": text(money.locked.get(name, ZERO)),
            }
            for name in names
        ],
    }


def commission(book: Ledger, params: Params) -> Json:
    """GET account/commission."""
    listing = book.listing(params["symbol"])
    standard = {"maker": text(listing.maker_fee), "taker": text(listing.taker_fee)}
    return {"symbol": listing.market_id, "standardCommission": standard}


def new_order(book: Ledger, params: Params) -> HeldOrder:
    """POST order: return the order that was taken."""
    kind = params["type"]
    if kind not in {"MARKET", "LIMIT", "STOP_LOSS"}:
        raise RefusalError(-1116, "Invalid orderType.")
    return taken(book, params, name="newClientOrderId", stop="stopPrice")


def taken(
    book: Ledger,
    params: Params,
    *,
    name: str,
    stop: str,
    reduce_only: bool = False,
    conditional: bool = False,
) -> HeldOrder:
    """Return the order that was taken; its name and its trigger have other words elsewhere."""
    number = next(book.numbers.orders)
    order = HeldOrder(
        order_id=number,
        client_id=params.get(name, f"own{number}"),
        market_id=params["symbol"],
        side=cast("Literal['BUY', 'SELL']", params["side"]),
        type=params["type"],
        quantity=Decimal(params["quantity"]),
        price=Decimal(params.get("price", "0")),
        stop_price=Decimal(params.get(stop, "0")),
        time_in_force=params.get("timeInForce", "GTC"),
        reduce_only=reduce_only,
        created_ms=book.now_ms,
        updated_ms=book.now_ms,
        conditional=conditional,
    )
    book.place(order)
    return order


def order_body(order: HeldOrder) -> Json:
    """Return what both dialects say of an order."""
    return {
        "symbol": order.market_id,
        "orderId": order.order_id,
        "clientOrderId": order.client_id,
        "price": text(order.price),
        "origQty": text(order.quantity),
        "executedQty": text(order.executed),
        "status": order.status,
        "timeInForce": order.time_in_force,
        "type": order.type,
        "side": order.side,
        "stopPrice": text(order.stop_price),
    }


def trade_body(fill: Fill) -> Json:
    """Return what both dialects say of a fill."""
    return {
        "symbol": fill.market_id,
        "id": fill.trade_id,
        "orderId": fill.order_id,
        "price": text(fill.price),
        "qty": text(fill.quantity),
        "quoteQty": text(fill.price * fill.quantity),
        "commission": text(fill.fee),
        "commissionAsset": fill.fee_asset,
        "time": fill.ts_ms,
    }


def order_json(order: HeldOrder, *, new: bool = False) -> Json:
    """Return an order as `GET order` shows it, or as `POST order` answers."""
    body = order_body(order) | {"orderListId": -1, "cummulativeQuoteQty": text(order.cost)}
    if new:
        return body | {"transactTime": order.updated_ms, "workingTime": order.updated_ms}
    times = {"time": order.created_ms, "updateTime": order.updated_ms}
    return body | times | {"isWorking": True, "origQuoteOrderQty": "0.00000000"}


def canceled_json(order: HeldOrder) -> Json:
    """Return the answer to DELETE order; the name of the request stands beside the order's."""
    body = order_json(order, new=True)
    return body | {"origClientOrderId": order.client_id, "clientOrderId": f"c{order.order_id}"}


def trade_json(fill: Fill) -> Json:
    """Return a fill as GET myTrades shows it."""
    makes: Json = {"isBuyer": fill.sign > 0, "isMaker": fill.maker, "isBestMatch": True}
    return trade_body(fill) | makes | {"orderListId": -1}


def report(order: HeldOrder, fill: Fill | None, now_ms: int) -> Json:
    """Return an `executionReport` of the user data stream."""
    final = "TRADE" if fill else {"CANCELED": "CANCELED", "EXPIRED": "EXPIRED"}.get(order.status)
    canceled = order.status == "CANCELED"
    return {
        "e": "executionReport",
        "E": now_ms,
        "s": order.market_id,
        "c": f"c{order.order_id}" if canceled else order.client_id,
        "C": order.client_id if canceled else "",
        "S": order.side,
        "o": order.type,
        "f": order.time_in_force,
        "q": text(order.quantity),
        "p": text(order.price),
        "P": text(order.stop_price),
        "x": final or "NEW",
        "X": order.status,
        "i": order.order_id,
        "l": text(fill.quantity if fill else ZERO),
        "z": text(order.executed),
        "L": text(fill.price if fill else ZERO),
        "n": text(fill.fee if fill else ZERO),
        "N": fill.fee_asset if fill else None,
        "T": order.updated_ms,
        "t": fill.trade_id if fill else -1,
        "m": bool(fill and fill.maker),
        "Z": text(order.cost),
        "O": order.created_ms,
    }
