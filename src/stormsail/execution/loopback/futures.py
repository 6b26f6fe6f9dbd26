"""Binance's USD-M futures dialect: what each route of `/fapi` answers."""

from decimal import Decimal
from typing import cast

from stormsail.execution.loopback.account import FuturesAccount, Payment
from stormsail.execution.loopback.ledger import Ledger
from stormsail.execution.loopback.orders import ZERO, Fill, HeldOrder, Listing, RefusalError
from stormsail.execution.loopback.spot import (
    Json,
    Params,
    filters,
    information,
    order_body,
    taken,
    text,
    trade_body,
)

TYPES = ["LIMIT", "MARKET", "STOP", "STOP_MARKET", "TAKE_PROFIT", "TAKE_PROFIT_MARKET"]


def exchange_info(book: Ledger) -> Json:
    """GET exchangeInfo."""
    return information(book, _market)


def _market(listing: Listing) -> Json:
    notional: Json = {"filterType": "MIN_NOTIONAL", "notional": f"{listing.min_notional:f}"}
    return {
        "symbol": listing.market_id,
        "pair": listing.market_id,
        "contractType": "PERPETUAL",
        "deliveryDate": 4133404800000,
        "onboardDate": 1569398400000,
        "status": listing.status,
        "baseAsset": listing.base,
        "quoteAsset": listing.quote,
        "marginAsset": listing.quote,
        "baseAssetPrecision": 8,
        "quotePrecision": 8,
        "pricePrecision": 2,
        "quantityPrecision": 3,
        "orderTypes": TYPES,
        "filters": filters(listing, notional),
    }


def account(book: Ledger) -> Json:
    """GET /fapi/v3/account."""
    money = cast("FuturesAccount", book.account)
    margin, profit = money.initial_margin(), money.unrealised()
    asset = {
        "asset": money.asset,
        "walletBalance": text(money.wallet),
        "unrealizedProfit": text(profit),
        "marginBalance": text(money.wallet + profit),
        "initialMargin": text(margin),
        "availableBalance": text(max(ZERO, money.available())),
        "updateTime": book.now_ms,
    }
    return {
        "totalWalletBalance": text(money.wallet),
        "totalUnrealizedProfit": text(profit),
        "availableBalance": text(max(ZERO, money.available())),
        "assets": [asset],
        "positions": [],
    }


def position_risk(book: Ledger, params: Params) -> list[Json]:
    """GET /fapi/v3/positionRisk: symbols with a position or an order."""
    money = cast("FuturesAccount", book.account)
    wanted = params.get("symbol")
    rows: list[Json] = []
    for market_id, held in sorted(money.holdings.items()):
        if wanted in (None, market_id) and held.quantity:
            mark = money.marks.get(market_id, held.entry)
            rows.append(
                {
                    "symbol": market_id,
                    "positionSide": "BOTH",
                    "positionAmt": f"{held.quantity:f}",
                    "entryPrice": text(held.entry),
                    "breakEvenPrice": text(held.entry),
                    "markPrice": text(mark),
                    "unRealizedProfit": text(held.quantity * (mark - held.entry)),
                    "liquidationPrice": text(_liquidation(book, money, market_id)),
                    "notional": text(held.quantity * mark),
                    "marginAsset": money.asset,
                    "updateTime": book.now_ms,
                }
            )
    return rows


def _liquidation(book: Ledger, money: FuturesAccount, market_id: str) -> Decimal:
    """Return the price at which the margin is gone, for the only position."""
    held = money.holding(market_id)
    rate = book.listings[market_id].maintenance * (1 if held.quantity > 0 else -1)
    return max(
        ZERO, (held.quantity * held.entry - money.wallet) / (held.quantity * (1 - rate))
    )  # wallet + q (p - entry) = rate |q| p


def symbol_config(book: Ledger, params: Params) -> list[Json]:
    """GET symbolConfig: leverage and margin mode."""
    money = cast("FuturesAccount", book.account)
    return [
        {
            "symbol": market_id,
            "marginType": "ISOLATED" if money.holding(market_id).isolated else "CROSSED",
            "isAutoAddMargin": False,
            "leverage": money.holding(market_id).leverage,
            "maxNotionalValue": "1000000",
        }
        for market_id in sorted(book.listings)
        if params.get("symbol") in (None, market_id)
    ]


def account_config(book: Ledger) -> Json:
    """GET accountConfig: what holds for all symbols."""
    money = cast("FuturesAccount", book.account)
    return {
        "feeTier": 0,
        "canTrade": True,
        "dualSidePosition": money.hedged,
        "multiAssetsMargin": False,
        "updateTime": 0,
    }


def set_leverage(book: Ledger, params: Params) -> Json:
    """POST leverage."""
    listing = book.listing(params["symbol"])
    leverage = int(params["leverage"])
    if not 1 <= leverage <= 125:
        raise RefusalError(-4028, f"Leverage {leverage} is not valid")
    cast("FuturesAccount", book.account).holding(listing.market_id).leverage = leverage
    return {"symbol": listing.market_id, "leverage": leverage, "maxNotionalValue": "1000000"}


def set_margin_type(book: Ledger, params: Params) -> Json:
    """POST marginType."""
    held = cast("FuturesAccount", book.account).holding(book.listing(params["symbol"]).market_id)
    isolated = params["marginType"] == "ISOLATED"
    if held.isolated == isolated:
        raise RefusalError(-4046, "No need to change margin type.")
    if held.quantity:
        raise RefusalError(-4048, "Margin type cannot be changed if there exists position.")
    held.isolated = isolated
    return {"code": 200, "msg": "success"}


def commission(book: Ledger, params: Params) -> Json:
    """GET commissionRate."""
    listing = book.listing(params["symbol"])
    return {
        "symbol": listing.market_id,
        "makerCommissionRate": text(listing.maker_fee),
        "takerCommissionRate": text(listing.taker_fee),
    }


def countdown(book: Ledger, params: Params) -> Json:
    """POST countdownCancelAll."""
    market_id, wait = book.listing(params["symbol"]).market_id, int(params["countdownTime"])
    book.countdowns.pop(market_id, None)
    if wait:
        book.countdowns[market_id] = book.now_ms + wait
    return {"symbol": market_id, "countdownTime": str(wait)}


def new_order(book: Ledger, params: Params, *, conditional: bool) -> HeldOrder:
    """POST order or algoOrder: return the order that was taken."""
    if cast("FuturesAccount", book.account).hedged and "positionSide" not in params:
        raise RefusalError(-4061, "Order's position side does not match user's setting.")
    kind = params["type"]
    allowed = {"STOP_MARKET"} if conditional else {"MARKET", "LIMIT"}
    if kind not in allowed:
        raise RefusalError(-4120, "Order type not supported for this endpoint.")
    name = "clientAlgoId" if conditional else "newClientOrderId"
    reduce_only = params.get("reduceOnly") == "true"
    return taken(
        book,
        params,
        name=name,
        stop="triggerPrice",
        reduce_only=reduce_only,
        conditional=conditional,
    )


def order_json(order: HeldOrder) -> Json:
    """Return an order as `order` and `allOrders` show it."""
    return order_body(order) | {
        "avgPrice": text(order.mean),
        "cumQuote": text(order.cost),
        "origType": order.type,
        "positionSide": "BOTH",
        "reduceOnly": order.reduce_only,
        "closePosition": False,
        "time": order.created_ms,
        "updateTime": order.updated_ms,
    }


_ALGO = {"FILLED": "FINISHED", "PARTIALLY_FILLED": "TRIGGERED"}


def algo_json(order: HeldOrder) -> Json:
    """Return a conditional order as the algo service shows it."""
    return {
        "algoId": order.order_id,
        "clientAlgoId": order.client_id,
        "algoType": "CONDITIONAL",
        "orderType": order.type,
        "symbol": order.market_id,
        "side": order.side,
        "positionSide": "BOTH",
        "timeInForce": order.time_in_force,
        "quantity": text(order.quantity),
        "algoStatus": _ALGO.get(order.status, order.status),
        "actualOrderId": "" if order.triggered_as is None else str(order.triggered_as),
        "actualPrice": text(order.mean),
        "triggerPrice": text(order.stop_price),
        "price": text(order.price),
        "workingType": "CONTRACT_PRICE",
        "closePosition": False,
        "reduceOnly": order.reduce_only,
        "createTime": order.created_ms,
        "updateTime": order.updated_ms,
        "triggerTime": order.updated_ms if order.triggered_as is not None else 0,
    }


def trade_json(fill: Fill) -> Json:
    """Return a fill as GET userTrades shows it."""
    return trade_body(fill) | {
        "side": "BUY" if fill.sign > 0 else "SELL",
        "realizedPnl": text(fill.realised),
        "positionSide": "BOTH",
        "buyer": fill.sign > 0,
        "maker": fill.maker,
    }


def income_json(payment: Payment) -> Json:
    """Return a payment as GET income shows it."""
    return {
        "symbol": payment.market_id,
        "incomeType": payment.kind,
        "income": text(payment.amount),
        "asset": payment.asset,
        "info": payment.kind,
        "time": payment.ts_ms,
        "tranId": payment.payment_id,
        "tradeId": "",
    }


def report(order: HeldOrder, fill: Fill | None, now_ms: int) -> Json:
    """Return an event of the user data stream about an order."""
    if order.conditional:
        body: Json = {
            "caid": order.client_id,
            "aid": order.order_id,
            "at": "CONDITIONAL",
            "o": order.type,
            "s": order.market_id,
            "S": order.side,
            "ps": "BOTH",
            "f": order.time_in_force,
            "q": text(order.quantity),
            "X": _ALGO.get(order.status, order.status),
            "ai": "" if order.triggered_as is None else str(order.triggered_as),
            "ap": text(order.mean),
            "aq": text(order.executed),
            "tp": text(order.stop_price),
            "p": text(order.price),
            "R": order.reduce_only,
        }
        return {"e": "ALGO_UPDATE", "E": now_ms, "T": order.updated_ms, "o": body}
    ended = {"CANCELED": "CANCELED", "EXPIRED": "EXPIRED"}.get(order.status, "NEW")
    body = {
        "s": order.market_id,
        "c": order.client_id,
        "S": order.side,
        "o": order.type,
        "f": order.time_in_force,
        "q": text(order.quantity),
        "p": text(order.price),
        "ap": text(order.mean),
        "sp": text(order.stop_price),
        "x": "TRADE" if fill else ended,
        "X": order.status,
        "i": order.order_id,
        "l": text(fill.quantity if fill else ZERO),
        "z": text(order.executed),
        "L": text(fill.price if fill else ZERO),
        "T": order.updated_ms,
        "t": fill.trade_id if fill else 0,
        "m": bool(fill and fill.maker),
        "R": order.reduce_only,
        "ot": order.type,
        "ps": "BOTH",
        "cp": False,
        "rp": text(fill.realised if fill else ZERO),
    }
    if fill:
        body |= {"n": text(fill.fee), "N": fill.fee_asset}
    return {"e": "ORDER_TRADE_UPDATE", "E": now_ms, "T": order.updated_ms, "o": body}
