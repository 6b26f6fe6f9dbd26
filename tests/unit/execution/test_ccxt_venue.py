"""`CcxtVenue` against the loopback exchange: what it believes, what it doubts, what it sends."""

from dataclasses import replace
from decimal import Decimal

import pytest

from loopback_lab import M1, MARKET_ID, MINUTE, NAMES, credentials, exchange_at
from stormsail.core.errors import ChoiceError, ConfigError, InvariantError, VenueError
from stormsail.execution.ccxt_venue import CcxtVenue, budget_path
from stormsail.execution.connection.ccxt_client import check_sends_once
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.loopback import VirtualClock
from stormsail.execution.loopback.clock import SkewedClock
from stormsail.execution.loopback.faults import Fault, code
from stormsail.execution.loopback.transport import LoopbackStreams, in_process
from stormsail.execution.venue import (
    Accepted,
    BarClosed,
    OrderChanged,
    OrderRequest,
    Refused,
    StreamInterrupted,
    Unknown,
)
from stormsail.market.fetch.client import one_line

T0 = 1_700_000_400_000


class Setting:
    """An exchange, a venue, and a symbol of one dialect."""

    def __init__(self, dialect, folder, *, skew_ms=0, keys=True):
        self.dialect, (name, self.symbol) = dialect, NAMES[dialect]
        self.exchange = exchange_at(VirtualClock(T0 * 1_000_000))
        self.clock = self.exchange.clock
        self.book = self.exchange.ledgers[dialect]
        self.venue = CcxtVenue(
            name,
            credentials=credentials() if keys else None,
            clock=SkewedClock(self.clock, skew_ms),
            base_url="http://127.0.0.1:1",
            budget=RateBudget(folder / "budget", limit=6000, clock=self.clock),
            streams=LoopbackStreams(self.exchange, dialect, self.clock),
            adapter=in_process(self.exchange),
            timeout_s=2.0,
        )

    def buy(self, name="a", quantity="0.010", **changes):
        request = OrderRequest(name, self.symbol, "buy", "market", Decimal(quantity))
        return self.venue.submit(replace(request, **changes))


@pytest.fixture(params=["spot", "perp"])
def there(request, tmp_path):
    made = Setting(request.param, tmp_path)
    yield made
    made.venue.close()
    made.exchange.audit()


@pytest.fixture
def spot(tmp_path):
    made = Setting("spot", tmp_path)
    yield made
    made.venue.close()


@pytest.fixture
def perp(tmp_path):
    made = Setting("perp", tmp_path)
    yield made
    made.venue.close()


def refused(call):
    with pytest.raises(VenueError) as caught:
        call()
    return caught.value


@pytest.mark.spec("D3")
@pytest.mark.parametrize(
    "wrong",
    [{"symbol": "XRPUSDT"}, {"symbol": None}, {"clientOrderId": "other"}, {"clientOrderId": None},
     {"side": "SELL"}, {"side": 3}, {"type": "LIMIT"}, {"origQty": "0.011"}, {"origQty": None},
     {"origQty": "NaN"}, {"origQty": "Infinity"}, {"origQty": [1]}, {"orderId": None},
     {"orderId": ""}, {"orderId": True}, {"status": "WHO"}, {"executedQty": "x"},
     {"executedQty": None}, {"stopPrice": "1.0"}, {"cummulativeQuoteQty": {}},
     {"transactTime": "soon", "updateTime": None, "time": None}],
)  # fmt: skip
def test_an_echo_that_does_not_fit_is_unknown_and_never_sent_again(spot, wrong):
    spot.venue.markets([spot.symbol])
    spot.exchange.always["order"] = Fault("rows", rows=lambda right: {**right, **wrong})
    outcome = spot.buy()
    assert isinstance(outcome, Unknown), outcome
    assert len(spot.exchange.of_group("order")) == 1
    spot.exchange.always = {}
    assert spot.venue.order(spot.symbol, "a").filled == Decimal("0.010")  # and it was accepted


def test_an_order_is_what_was_sent_and_what_the_exchange_made_of_it(there):
    outcome = there.buy()
    assert isinstance(outcome, Accepted)
    found = there.venue.order(there.symbol, "a")
    assert replace(outcome.order, updated_ms=0) == replace(found, updated_ms=0)
    assert (found.status, found.quantity, found.filled) == (
        "filled", Decimal("0.010"), Decimal("0.010")
    )  # fmt: skip
    [trade] = there.venue.trades(there.symbol, since_ms=T0)
    assert (trade.order_id, trade.quantity, trade.price) == (
        found.order_id, Decimal("0.010"), found.average_price
    )  # fmt: skip
    held = there.venue.positions([there.symbol])[there.symbol].quantity
    assert held == (Decimal("0.00999") if there.dialect == "spot" else Decimal("0.010"))
    assert there.venue.order(there.symbol, "never") is None


def test_prices_of_all_symbols_are_one_question_of_their_weight(there):
    other = there.symbol.replace("BTC", "ETH")
    tapes = there.exchange.ledgers[there.dialect].tapes
    tapes["ETHUSDT", "1m"] = [
        (row[0], *(Decimal(str(cell)) / 10 for cell in row[1:5]), *row[5:])
        for row in tapes["BTCUSDT", "1m"]
    ]
    there.venue.markets([other, there.symbol])
    budget = there.venue._budget
    before = len(there.exchange.of_group("other")), budget.used()
    quotes = there.venue.quotes([other, there.symbol])
    assert len(there.exchange.of_group("other")) == before[0] + 1
    weight = 4 if there.dialect == "spot" else 5
    assert (budget.used() - before[1]) * budget._allowed == pytest.approx(weight)
    assert list(quotes) == [other, there.symbol]
    for symbol in quotes:
        alone = there.venue.quote(symbol)
        assert (quotes[symbol].bid, quotes[symbol].ask) == (alone.bid, alone.ask)
    assert quotes[there.symbol].bid > 5 * quotes[other].bid
    assert refused(lambda: there.venue.quotes([there.symbol, "DOGE/USDT"])).code in (
        "venue-symbol", "venue-response", "venue-refused",
    )  # fmt: skip


def test_stops_limits_and_cancellations(there):
    there.buy()
    quote = there.venue.quote(there.symbol)
    low = (quote.mid * Decimal("0.9")).quantize(Decimal("0.01"))
    stop = OrderRequest(
        "s", there.symbol, "sell", "stop", Decimal("0.009"), stop_price=low,
        reduce_only=there.dialect == "perp",
    )  # fmt: skip
    assert isinstance(there.venue.submit(stop), Accepted)
    limit = OrderRequest("l", there.symbol, "buy", "limit", Decimal("0.010"), price=low)
    assert isinstance(there.venue.submit(limit), Accepted)
    found = {order.client_id: order for order in there.venue.open_orders(there.symbol)}
    assert (found["s"].stop_price, found["l"].price, len(found)) == (low, low, 2)
    for name in ("s", "l"):
        outcome = there.venue.cancel(there.symbol, name)
        assert (outcome.order.client_id, outcome.order.status) == (name, "canceled")
        again = there.venue.cancel(there.symbol, name)
        assert isinstance(again, Refused)
        assert again.code == "-2011"
    assert there.venue.open_orders(there.symbol) == []
    there.venue.submit(replace(limit, client_id="m"))
    there.venue.cancel_all(there.symbol)
    there.venue.cancel_all(there.symbol)
    names = [order.client_id for order in there.venue.orders(there.symbol, since_ms=T0)]
    assert sorted(names) == ["a", "l", "m", "s"]


def test_a_stop_that_was_triggered_has_the_fills_of_the_order_it_became(perp):
    perp.buy(quantity="0.020")
    quote = perp.venue.quote(perp.symbol)
    stop = OrderRequest(
        "s", perp.symbol, "sell", "stop", Decimal("0.020"), stop_price=quote.bid, reduce_only=True
    )
    perp.venue.submit(replace(stop, stop_price=(quote.bid - 1).quantize(Decimal("0.01"))))
    for _ in range(100):
        perp.clock.advance(15.0)
        perp.exchange.advance()
        if not perp.book.position(MARKET_ID):
            break
    found = perp.venue.order(perp.symbol, "s")
    assert (found.status, found.filled, found.type) == ("filled", Decimal("0.020"), "stop")
    trade = perp.venue.trades(perp.symbol, since_ms=T0)[-1]
    assert trade.order_id == found.order_id
    listed = [o for o in perp.venue.orders(perp.symbol, since_ms=T0) if o.client_id == "s"]
    assert listed == [found]  # and the order that it became is not a second one
    assert len(perp.venue.orders(perp.symbol, since_ms=T0)) == 2


def test_leverage_margin_mode_funding_and_the_countdown(perp):
    perp.venue.set_leverage(perp.symbol, 7)
    perp.venue.set_margin_mode(perp.symbol, "isolated")
    perp.venue.set_margin_mode(perp.symbol, "isolated")
    assert perp.venue.positions([perp.symbol])[perp.symbol].quantity == 0
    terms = perp.venue.margin_terms([perp.symbol])[perp.symbol]
    assert (terms.leverage, terms.mode) == (7, "isolated")
    perp.buy()
    perp.venue.renew_dead_man(perp.symbol, 5000)
    assert perp.book.countdowns == {MARKET_ID: T0 + 5000}
    perp.venue.renew_dead_man(perp.symbol, 0)
    assert perp.book.countdowns == {}
    settlement = (T0 // 28_800_000 + 1) * 28_800_000
    perp.exchange.funding[MARKET_ID] = [(settlement + 2, "0.00020000")]
    perp.clock.advance((settlement - T0) / 1000.0 + 60.0)
    [payment] = perp.venue.funding_payments([perp.symbol], since_ms=T0)
    assert (payment.amount, payment.asset) == (perp.book.payments[0].amount, "USDT")
    assert payment.symbol == perp.symbol
    perp.exchange.reset()
    other = replace(perp.book.payments[0], market_id="ETHUSDT", payment_id=77)
    perp.book.payments.append(other)
    try:  # one question for all, and payments of symbols that nobody trades here are left out
        assert perp.venue.funding_payments([perp.symbol], since_ms=T0) == [payment]
        assert len(perp.exchange.of_group("list")) == 1
    finally:
        perp.book.payments.remove(other)
    assert perp.venue.funding_rates(perp.symbol, since_ms=T0) == [(settlement + 2, 0.0002)]
    perp.exchange.funding["XRPUSDT"] = [(settlement + 2, "0.5")]  # at the same moment, another's
    rates = perp.venue.settled_rates([perp.symbol], since_ms=T0)
    assert rates == {perp.symbol: [(settlement + 2, 0.0002)]}
    assert perp.venue.balances()["USDT"].total == perp.book.account.wallet


def test_the_filter_of_market_orders_is_read_and_enforced(there):
    there.book.listings[MARKET_ID].market_max = Decimal("0.020")
    market = there.venue.markets([there.symbol])[there.symbol]
    assert (market.max_quantity, market.market_max) == (9000, Decimal("0.020"))
    assert market.sizes("market") == (Decimal("0.001"), Decimal("0.001"), Decimal("0.020"))
    assert market.sizes("stop").most == 9000
    assert isinstance(there.buy("fits", "0.020"), Accepted)
    outcome = there.buy("large", "0.021")
    assert (outcome.code, "MARKET_LOT_SIZE" in outcome.words) == ("-1013", True)


def test_closed_bars_only_and_in_every_page(there):
    since = T0 - 400 * MINUTE
    bars = there.venue.bars(there.symbol, M1, since_ms=since, until_ms=T0 + 10 * MINUTE)
    assert (len(bars), int(bars.ts[0]), int(bars.ts[-1])) == (400, since, T0 - MINUTE)
    there.exchange.always["data"] = Fault("stale", seconds=600.0)
    late = there.venue.bars(there.symbol, M1, since_ms=since, until_ms=T0)
    assert int(late.ts[-1]) == T0 - 3 * MINUTE  # what is not published is not there
    there.exchange.always["data"] = Fault("rows", rows=lambda right: right[:100] + right[110:])
    there.exchange.stale_ms = 0
    holes = there.venue.bars(there.symbol, M1, since_ms=since, until_ms=T0)
    assert len(holes) == 390


@pytest.mark.parametrize(
    ("call", "group"),
    [("balances", "account"), ("positions", "account"), ("open_orders", "list"), ("order", "query"),
     ("trades", "list"), ("orders", "list"), ("quote", "other"), ("quotes", "other"),
     ("server_time_ms", "other")],
)  # fmt: skip
@pytest.mark.parametrize(
    "fault",
    [Fault("status", status=502, body="<html>"), Fault("text", body="{}"), Fault("text", body=""),
     Fault("reset"), code(-1001, "Internal error.", status=500), code(-1003, "No.", status=429),
     Fault("rows", rows=lambda _right: [{"symbol": "XRPUSDT"}]), Fault("rows", rows=lambda _r: 3)],
    ids=["502", "object", "empty", "reset", "-1001", "-1003", "foreign", "number"],
)  # fmt: skip
@pytest.mark.spec("M45 D4")
def test_a_question_that_fails_is_an_error_and_never_nothing(there, call, group, fault):
    there.buy()
    there.exchange.always[group] = fault
    arguments = {
        "balances": (), "server_time_ms": (), "positions": ([there.symbol],),
        "order": (there.symbol, "a"), "quote": (there.symbol,),
        "quotes": ([there.symbol],),
    }.get(call, (there.symbol,))  # fmt: skip
    keywords = {"since_ms": T0} if call in ("trades", "orders") else {}
    error = refused(lambda: getattr(there.venue, call)(*arguments, **keywords))
    assert error.code in (
        "venue-unreachable",
        "venue-response",
        "venue-rate-limit",
        "venue-refused",
    )


def test_questions_are_asked_again_where_that_may_help(there):
    there.buy()
    there.exchange.script["account", there.exchange._counts["account"] + 1] = Fault("reset")
    assert there.venue.balances()["USDT"].total > 0


@pytest.mark.spec("D10")
def test_nothing_is_sent_during_a_ban_and_an_order_says_so(there):
    there.venue.markets([there.symbol])
    there.exchange.script["account", there.exchange._counts["account"] + 1] = Fault(
        "ban", seconds=50.0
    )
    assert refused(there.venue.balances).code == "venue-ban"
    sent = len(there.exchange.requests)
    outcome = there.buy()
    assert isinstance(outcome, Refused)
    assert outcome.code == "not-sent"
    assert refused(lambda: there.venue.quote(there.symbol)).code == "venue-ban"
    assert there.venue.health().banned_until_ms == T0 + 50_000
    assert (len(there.exchange.requests), there.exchange.banned) == (sent, 0)
    there.clock.advance(50.0)
    assert isinstance(there.buy(), Accepted)


def test_a_ban_that_begins_while_a_request_waits_for_its_weight_stops_it(there, monkeypatch):
    """With several connections another one may be told of it in the meantime."""
    there.buy("a")
    arrived, plain = len(there.exchange.requests), RateBudget.acquire

    def acquire(budget, weight, **options):
        plain(budget, weight, **options)
        budget.ban(30.0)

    monkeypatch.setattr(RateBudget, "acquire", acquire)
    outcome = there.buy("b")
    assert isinstance(outcome, Refused)
    assert outcome.code == "not-sent"
    assert len(there.exchange.requests) == arrived


@pytest.mark.spec("D9")
@pytest.mark.parametrize("skew_ms", [-600_000, 600_000])
def test_a_clock_that_is_off_is_refused_by_the_exchange_and_measured(tmp_path, skew_ms):
    there = Setting("spot", tmp_path, skew_ms=skew_ms, keys=True)
    assert there.venue.server_time_ms() == T0
    there.venue._client.load_markets(False)
    outcome = there.buy()
    there.venue.close()
    assert isinstance(outcome, Refused)
    assert outcome.code == "-1021"
    assert there.book.orders == []


def test_rules_are_asked_for_anew_and_a_symbol_may_be_gone(there):
    market = there.venue.markets([there.symbol])[there.symbol]
    assert (market.tick, market.lot, market.status) == (
        Decimal("0.01"),
        Decimal("0.001"),
        "trading",
    )
    listing = there.book.listings[MARKET_ID]
    listing.tick, listing.status = Decimal("0.1"), "BREAK"
    market = there.venue.markets([there.symbol])[there.symbol]
    assert (market.tick, market.status) == (Decimal("0.1"), "halted")
    listing.status = "DELISTED"
    assert refused(lambda: there.venue.markets([there.symbol])).code in (
        "venue-symbol", "venue-response"
    )  # fmt: skip


def test_a_position_on_each_side_is_no_position(perp):
    perp.buy()
    perp.exchange.always["account"] = Fault(
        "rows",
        rows=lambda right: (
            [{**row, "positionSide": "LONG"} for row in right] if isinstance(right, list) else right
        ),
    )
    error = refused(lambda: perp.venue.positions([perp.symbol]))
    assert "hedge mode" in error.found


def test_the_account_has_a_name_that_is_no_secret(there):
    assert there.venue.account_id() == f"{there.venue.name}-354937868"
    there.venue._account_id = None
    there.exchange.always["account"] = code(-2015, "Invalid API-key.", status=401)
    name = there.venue.account_id()
    assert name.startswith(f"{there.venue.name}-")
    assert len(name.rpartition("-")[2]) == 16


def test_events_come_once_in_order_and_an_interruption_is_told(there):
    there.venue.watch([there.symbol], M1)
    there.buy()
    there.clock.advance(60.0)
    events = there.venue.events(0.0)
    assert [type(event) for event in events] == [OrderChanged, BarClosed]
    assert events[0].order == there.venue.order(there.symbol, "a")
    there.exchange.feed.strike("ws_disconnect", there.exchange.time_ms() + 5000)
    assert [type(event) for event in there.venue.events(0.0)] == [StreamInterrupted]
    there.buy("b")
    assert there.venue.events(1.0) == []  # missed: it must be asked for
    there.clock.advance(60.0)
    there.venue.events(0.0)
    there.clock.advance(60.0)
    assert [type(event) for event in there.venue.events(0.0)] == [BarClosed]


@pytest.mark.spec("D2 M43")
def test_a_client_that_would_repeat_a_request_is_refused(spot):
    client = spot.venue._client
    check_sends_once(client)
    for options in ({"maxRetriesOnFailure": 3}, {"order": {"maxRetriesOnFailure": 1}}):
        client.options |= options
        with pytest.raises(InvariantError, match="maxRetriesOnFailure"):
            check_sends_once(client)
        for name in options:
            del client.options[name]
    from requests.adapters import HTTPAdapter

    client.session.mount("https://", HTTPAdapter(max_retries=2))
    with pytest.raises(InvariantError, match="2 retries"):
        check_sends_once(client)


@pytest.mark.parametrize("name", ["httpsProxy", "http_proxy", "proxyUrl", "socksProxy", "proxies"])
def test_a_client_with_a_proxy_is_refused_at_start(tmp_path, monkeypatch, name):
    import ccxt

    monkeypatch.setattr(ccxt.Exchange, name, "http://proxy:8080")
    with pytest.raises(InvariantError, match=f"(?s){name}.*without a proxy"):
        Setting("spot", tmp_path)


def test_orders_that_ccxt_refuses_itself_were_never_sent(spot):
    spot.venue.markets([spot.symbol])
    before = len(spot.exchange.of_group("order"))
    outcome = spot.buy(quantity="0.0001")
    assert isinstance(outcome, Refused)
    assert (outcome.code, len(spot.exchange.of_group("order"))) == ("not-sent", before)


def test_market_data_need_no_key(tmp_path):
    there = Setting("spot", tmp_path, keys=False)
    assert there.venue.permissions() is None
    assert there.venue.markets([there.symbol])[there.symbol].taker_fee == Decimal("0.001")
    assert len(there.venue.bars(there.symbol, M1, since_ms=T0 - 5 * MINUTE, until_ms=T0)) == 5
    there.venue.close()


def test_other_exchanges_are_refused_and_the_budget_is_one_file_for_a_user(tmp_path, monkeypatch):
    with pytest.raises(ChoiceError, match="refusals are known"):
        CcxtVenue("kraken", credentials=None, clock=VirtualClock())
    with pytest.raises(ConfigError, match="base address"):
        CcxtVenue(
            "binance", credentials=None, clock=VirtualClock(), base_url="http://x/y",
            budget=RateBudget(tmp_path / "b", limit=1, clock=VirtualClock()),
        )  # fmt: skip
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert budget_path("binance", None) == budget_path("binance", None)
    assert budget_path("binance", None) != budget_path("binanceusdm", None)
    assert budget_path("binance", None).is_relative_to(tmp_path)


@pytest.mark.spec("E1")
def test_words_about_a_failure_hold_nothing_that_signs_a_request(there):
    """ccxt quotes the whole address, query and signature included, and words go to alerts."""
    there.venue.markets([there.symbol])
    there.buy()
    there.exchange.always = {name: Fault("reset") for name in ("account", "query", "cancel")}
    told = [
        str(refused(there.venue.permissions)),
        str(refused(lambda: there.venue.order(there.symbol, "a"))),
        there.venue.cancel(there.symbol, "a").words,
    ]
    for words in told:
        assert "signature" not in words, words
        assert "timestamp" not in words, words
    # what is needed to understand it is there: the route, and what to do
    assert "/account/apiRestrictions after 4 tries" in told[0]


@pytest.mark.spec("E1")
def test_the_key_to_a_stream_is_no_part_of_what_is_told():
    error = OSError("Connection to wss://fstream.binance.com/ws/listenKEY123 lost, code=1006")
    assert one_line(error) == "Connection to wss://fstream.binance.com lost, code=1006"
    again = ValueError("GET https://api.binance.com/api/v3/order?symbol=A&signature=b refused")
    assert one_line(again) == "GET https://api.binance.com/api/v3/order refused"
