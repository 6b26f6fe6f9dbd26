"""The loopback exchange's own ledgers, by hand: what it says is the oracle of everything else."""

from decimal import Decimal

import pytest

from stormsail.core.errors import InvariantError, RangeError
from stormsail.execution.loopback import Exchange, VirtualClock, candles, candles_of
from stormsail.execution.loopback.clock import SkewedClock
from stormsail.execution.loopback.orders import HeldOrder, RefusalError
from stormsail.execution.loopback.tape import forming, price_at, waypoints
from stormsail.market.bars import from_columns
from stormsail.market.interval import Interval

MINUTE = 60_000
T0 = 1_700_000_400_000


def row(number, opens, high, low, close):
    ts = T0 + number * MINUTE
    prices = [f"{price:.2f}" for price in (opens, high, low, close)]
    return [ts, *prices, "1", ts + MINUTE - 1, "100", 1, "1", "1", "0"]


@pytest.fixture
def exchange():
    made = Exchange(clock=VirtualClock(T0 * 1_000_000))
    tape = [row(0, 100, 100, 100, 100), row(1, 100, 130, 70, 120), row(2, 120, 120, 60, 60)]
    for dialect in ("spot", "perp"):
        made.ledgers[dialect].tapes["BTCUSDT", "1m"] = tape
        made.deposit(dialect, "USDT", "1000")
    made.ledgers["perp"].listings["BTCUSDT"].min_notional = Decimal(5)
    made.advance()
    return made


def order(book, side, quantity, **changes):
    number = next(book.numbers.orders)
    made = HeldOrder(
        order_id=number,
        client_id=changes.pop("client_id", f"o{number}"),
        market_id="BTCUSDT",
        side=side,
        type=changes.pop("type", "MARKET"),
        quantity=Decimal(quantity),
        price=Decimal(changes.pop("price", "0")),
        stop_price=Decimal(changes.pop("stop", "0")),
        time_in_force=changes.pop("tif", "GTC"),
        reduce_only=changes.pop("reduce", False),
        created_ms=book.now_ms,
        updated_ms=book.now_ms,
        **changes,
    )
    book.place(made)
    return made


def refusal(call):
    with pytest.raises(RefusalError) as caught:
        call()
    return caught.value.code


def at(exchange, seconds):
    exchange.clock.advance(seconds)
    exchange.advance()


def test_a_purchase_pays_its_fee_in_what_it_buys_and_a_sale_in_quote(exchange):
    book = exchange.ledgers["spot"]
    order(book, "BUY", "2")
    assert book.account.balances == {"USDT": Decimal("799.98"), "BTC": Decimal("1.998")}
    order(book, "SELL", "1")
    assert book.account.balances == {"USDT": Decimal("899.88"), "BTC": Decimal("0.998")}
    assert [(fill.fee, fill.fee_asset) for fill in book.fills] == [
        (Decimal("0.002"), "BTC"),
        (Decimal("0.1"), "USDT"),
    ]
    book.audit()


def test_filters_and_balances_refuse_with_binances_codes(exchange):
    book = exchange.ledgers["spot"]
    assert refusal(lambda: order(book, "BUY", "0.0015")) == -1013
    assert refusal(lambda: order(book, "BUY", "0.01")) == -1013  # one USDT
    assert refusal(lambda: order(book, "BUY", "1", type="LIMIT", price="100.001")) == -1013
    assert refusal(lambda: order(book, "BUY", "11")) == -2010
    assert refusal(lambda: order(book, "SELL", "1")) == -2010
    assert refusal(lambda: book.listing("NONE")) == -1121
    assert (book.orders, book.account.balances) == ([], {"USDT": Decimal(1000)})


def test_a_client_id_is_unique_among_open_orders_and_free_after_a_fill(exchange):
    book = exchange.ledgers["spot"]
    order(book, "BUY", "1", type="LIMIT", price="90", client_id="a")
    assert (
        refusal(lambda: order(book, "BUY", "1", type="LIMIT", price="90", client_id="a")) == -2010
    )
    book.fill_open("BTCUSDT")
    order(book, "BUY", "1", client_id="a")
    assert [o.client_id for o in book.orders] == ["a", "a"]
    assert book.find("BTCUSDT", client_id="a") is book.orders[1]


def test_a_resting_order_locks_money_fills_at_its_price_and_unlocks_when_canceled(exchange):
    book = exchange.ledgers["spot"]
    low = order(book, "BUY", "1", type="LIMIT", price="80")
    lower = order(book, "BUY", "1", type="LIMIT", price="50")
    assert book.account.free("USDT") == 870
    at(exchange, 75.0)  # the price has fallen to 70
    assert (low.status, lower.status) == ("FILLED", "NEW")
    assert (book.fills[0].price, book.fills[0].maker) == (80, True)
    book.cancel(lower)
    assert book.account.free("USDT") == book.account.balances["USDT"] == 920
    assert refusal(lambda: book.cancel(lower)) == -2011
    book.audit()


def test_a_stop_sells_at_the_price_that_it_meets(exchange):
    spot, perp = exchange.ledgers["spot"], exchange.ledgers["perp"]
    order(spot, "BUY", "2")
    order(perp, "BUY", "2")
    waits = order(spot, "SELL", "1", type="STOP_LOSS", stop="90")
    other = order(perp, "SELL", "2", type="STOP_MARKET", stop="90", reduce=True, conditional=True)
    at(exchange, 60.0)
    assert (waits.status, other.status) == ("NEW", "NEW")
    at(exchange, 15.0)
    assert (waits.status, other.status) == ("FILLED", "FILLED")
    assert [fill.price for fill in spot.fills] == [Decimal("100.01"), Decimal("70.00")]
    assert perp.position("BTCUSDT") == 0
    sent = perp.orders[-1]
    assert (other.triggered_as, sent.executed) == (sent.order_id, 2)
    assert sent.client_id != other.client_id
    exchange.audit()


def test_a_stop_that_may_only_reduce_and_finds_nothing_expires(exchange):
    book = exchange.ledgers["perp"]
    waits = order(book, "SELL", "2", type="STOP_MARKET", stop="90", reduce=True, conditional=True)
    at(exchange, 75.0)
    assert (waits.status, waits.triggered_as, book.fills) == ("EXPIRED", None, [])


def test_a_position_averages_realises_and_turns(exchange):
    book = exchange.ledgers["perp"]
    held = book.account.holding("BTCUSDT")
    order(book, "BUY", "1")
    at(exchange, 60.0)
    order(book, "BUY", "1")
    assert (held.quantity, held.entry) == (2, Decimal("100.01"))
    at(exchange, 30.0)  # 130
    order(book, "SELL", "3")
    assert (held.quantity, held.entry) == (-1, Decimal("130.00"))
    assert book.fills[-1].realised == Decimal("59.98")
    fees = sum(fill.fee for fill in book.fills)
    assert book.account.wallet == 1000 + Decimal("59.98") - fees
    assert fees == Decimal("0.050005") * 2 + Decimal("0.195")
    book.audit()


def test_reduce_only_never_opens_and_never_turns(exchange):
    book = exchange.ledgers["perp"]
    assert refusal(lambda: order(book, "SELL", "1", reduce=True)) == -2022
    order(book, "BUY", "1")
    assert refusal(lambda: order(book, "BUY", "1", reduce=True)) == -2022
    closing = order(book, "SELL", "3", reduce=True)
    assert (closing.status, closing.executed, book.position("BTCUSDT")) == ("EXPIRED", 1, 0)


def test_margin_limits_a_position_and_its_loss_liquidates_it(exchange):
    book = exchange.ledgers["perp"]
    book.account.holding("BTCUSDT").leverage = 5
    assert refusal(lambda: order(book, "BUY", "51")) == -2019
    order(book, "BUY", "30")
    at(exchange, 75.0)  # 70: 900 are lost, 100 are left, 0.4 % of 2,100 is needed
    assert book.position("BTCUSDT") == 30
    at(exchange, 75.0)  # 60
    assert book.position("BTCUSDT") == 0
    assert book.orders[-1].client_id.startswith("autoclose-")
    assert book.account.wallet == 0
    assert [payment.kind for payment in book.payments] == ["INSURANCE_CLEAR"]
    book.audit()


def test_funding_is_paid_by_longs_on_what_is_held(exchange):
    book = exchange.ledgers["perp"]
    settlement = (T0 // 28_800_000 + 1) * 28_800_000
    exchange.funding["BTCUSDT"] = [(settlement + 4, "0.001")]
    order(book, "SELL", "1")
    at(exchange, (settlement - T0) / 1000.0)
    [payment] = book.payments
    assert (payment.amount, payment.ts_ms) == (Decimal("0.06"), settlement)  # at 60
    book.audit()


def test_a_countdown_cancels_everything_unless_it_is_renewed(exchange):
    book = exchange.ledgers["perp"]
    waits = order(book, "SELL", "1", type="STOP_MARKET", stop="10", conditional=True)
    rests = order(book, "BUY", "1", type="LIMIT", price="20")
    book.countdowns["BTCUSDT"] = T0 + 10_000
    at(exchange, 9.0)
    assert (waits.status, rests.status) == ("NEW", "NEW")
    at(exchange, 1.0)
    assert (waits.status, rests.status) == ("CANCELED", "CANCELED")
    assert rests.updated_ms == T0 + 10_000


def test_liquidity_may_end_in_the_middle_of_an_order(exchange):
    book = exchange.ledgers["spot"]
    book.partial = Decimal("0.5")
    assert (order(book, "BUY", "1").executed, book.orders[-1].status) == (Decimal("0.5"), "EXPIRED")
    book.partial = Decimal("0.5")
    rest = order(book, "BUY", "1", type="LIMIT", price="110")
    assert (rest.status, rest.executed) == ("PARTIALLY_FILLED", Decimal("0.5"))
    assert book.account.locked["USDT"] == 55
    book.overfill = True
    assert order(book, "BUY", "1").executed == Decimal("1.001")
    book.audit()


@pytest.mark.parametrize("dialect", ["spot", "perp"])
def test_the_audit_notices_one_unit(exchange, dialect):
    book = exchange.ledgers[dialect]
    order(book, "BUY", "1")
    exchange.audit()
    if dialect == "spot":
        book.account.balances["BTC"] += Decimal("0.00000001")
    else:
        book.account.wallet -= Decimal("0.00000001")
    with pytest.raises(InvariantError, match="add up to"):
        exchange.audit()


def test_a_price_goes_to_the_far_extreme_first():
    up, down = row(0, 100, 130, 70, 120), row(0, 120, 125, 60, 70)
    assert [int(price) for _ts, price in waypoints(up, MINUTE)] == [100, 70, 130, 120]
    assert [int(price) for _ts, price in waypoints(down, MINUTE)] == [120, 125, 60, 70]
    assert [ts - T0 for ts, _price in waypoints(up, MINUTE)] == [0, 15_000, 30_000, 45_000]
    assert price_at([up], MINUTE, T0 - 1) is None
    assert price_at([up], MINUTE, T0 + 29_999) == 70
    assert forming(up, MINUTE, T0 + 20_000)[1:5] == ["100.00", "100.00", "70.00", "70.00"]
    assert forming(up, MINUTE, T0 + MINUTE) is up


def test_candles_are_drawn_by_their_seed_and_made_of_bars():
    assert candles(1, 3, start=0) == candles(1, 3, start=0)
    assert candles(1, 3, start=0) != candles(2, 3, start=0)
    bars = from_columns(
        "BTC/USDT", Interval.parse("1m"),
        {"ts": [T0], "open": [1.0], "high": [2.0], "low": [0.5], "close": [1.5], "volume": [4.0]},
    )  # fmt: skip
    assert candles_of(bars) == [
        [T0, "1.00", "2.00", "0.50", "1.50", "4.00000000", T0 + MINUTE - 1, "6.00000000", 1,
         "2.00000000", "3.00000000", "0"]
    ]  # fmt: skip


def test_a_virtual_clock_stands_still_or_runs_fast():
    still = VirtualClock(5)
    still.sleep(1.5)
    assert (still.now_ns(), still.monotonic_ns()) == (1_500_000_005, 1_500_000_000)
    moved = []
    still.on_advance(lambda: moved.append(still.now_ns()))
    still.advance(1.0)
    assert moved == [2_500_000_005]
    with pytest.raises(RangeError):
        still.advance(-1.0)
    with pytest.raises(RangeError):
        VirtualClock(speed=0.0)

    class Machine:
        now = 0

        def monotonic_ns(self):
            return self.now

        def sleep(self, seconds):
            self.now += round(seconds * 1e9)

    fast = VirtualClock(speed=1000.0, machine=Machine())
    fast.sleep(60.0)
    assert (fast.now_ns(), fast.real_seconds(60.0)) == (60_000_000_000, 0.06)
    wrong = SkewedClock(fast, -600_000)
    wrong.sleep(1.0)
    assert wrong.now_ns() == fast.now_ns() - 600_000_000_000
    assert wrong.monotonic_ns() == fast.monotonic_ns()
