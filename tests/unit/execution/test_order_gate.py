"""Limits before the exchange (R22): each at its bound, all of them under hostile orders."""

import ast
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stormsail
from gate_lab import (
    ACCOUNT,
    MARKET,
    OTHER,
    SYMBOL,
    VIEW,
    VIEWS,
    D,
    Nowhere,
    codes,
    held,
    open_gate,
    proposal,
    taken,
)
from stormsail.core.errors import InvariantError
from stormsail.execution.journal import Journal
from stormsail.execution.order_gate import (
    AccountView,
    Exposure,
    MarketView,
    Proposal,
)
from stormsail.execution.venue import Accepted, Order, OrderRequest, Refused, Unknown

PACKAGE = Path(stormsail.__file__).parent


@pytest.fixture
def gate(tmp_path):
    with open_gate(tmp_path) as made:
        yield made


def limit(gate, order, view=VIEW, account=ACCOUNT):
    refusal = gate.check(order, view, account)
    return None if refusal is None else refusal.limit


@pytest.mark.parametrize("quantity", ["NaN", "Infinity", "-Infinity", "0", "-1", "sNaN"])
def test_1_a_quantity_must_be_finite_and_positive(gate, quantity):
    assert limit(gate, proposal(quantity)) == "number"


def test_1_so_must_prices(gate):
    assert limit(gate, proposal(type="limit", price=D("NaN"))) == "number"
    assert limit(gate, proposal(type="limit", price=D(0))) == "number"
    assert limit(gate, proposal(quantity="1", leg="stop", type="stop", stop_price=D(-1))) == (
        "number"
    )


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("1.01", None),  # a whole lot more
        ("1.001", "filter"),  # a tenth of a lot more
        ("0.10", None),  # 10 of notional, the least
        ("0.09", "filter"),  # one lot less
        ("50", "order-notional"),  # the largest quantity passes the filter
        ("50.01", "filter"),
    ],
)
def test_2_the_filters_of_the_market_at_one_unit(gate, quantity, expected):
    assert limit(gate, proposal(quantity)) == expected


def test_2_the_least_quantity_and_the_tick(gate):
    dear = replace(VIEW, mid=D(1000))
    assert limit(gate, proposal("0.02"), dear) is None
    assert limit(gate, proposal("0.01"), dear) == "filter"
    assert limit(gate, proposal(type="limit", price=D("100.5"))) is None
    assert limit(gate, proposal(type="limit", price=D("100.4"))) == "filter"


def test_2_a_market_order_keeps_to_both_filters_of_quantities(gate):
    market = replace(MARKET, market_lot=D("0.1"), market_min=D("0.5"), market_max=D("0.8"))
    view = replace(VIEW, market=market)
    limited = {"type": "limit", "price": D(100)}
    cases = {"0.4": "filter", "0.5": None, "0.55": "filter", "0.8": None, "0.9": "filter"}
    assert {own: limit(gate, proposal(own), view) for own in cases} == cases
    assert [limit(gate, proposal(own, **limited), view) for own in cases] == [None] * 5
    loose = replace(MARKET, max_quantity=D("0.7"), market_max=D(0))
    view = replace(VIEW, market=loose)
    assert (limit(gate, proposal("0.7"), view), limit(gate, proposal("0.71"), view)) == (
        None, "filter"
    )  # fmt: skip


def test_3_the_price_collar_at_one_tick(gate):
    assert limit(gate, proposal(type="limit", price=D(102))) is None
    assert limit(gate, proposal(type="limit", price=D("102.5"))) == "collar"
    assert limit(gate, proposal(type="limit", price=D(98))) is None
    assert limit(gate, proposal(type="limit", price=D("97.5"))) == "collar"


def test_3_no_price_or_an_old_one_is_no_price(gate):
    assert limit(gate, proposal(), replace(VIEW, mid=None)) == "collar"
    assert limit(gate, proposal(), replace(VIEW, mid=D("NaN"))) == "collar"
    assert limit(gate, proposal(), replace(VIEW, mid_age_ms=5000.0)) is None
    assert limit(gate, proposal(), replace(VIEW, mid_age_ms=5001.0)) == "collar"
    assert limit(gate, proposal(), replace(VIEW, mid_age_ms=float("nan"))) == "collar"


def test_4_one_order_at_one_lot(gate):
    assert limit(gate, proposal("20")) is None
    assert limit(gate, proposal("20.01")) == "order-notional"


def test_5_the_position_at_one_lot(gate):
    assert limit(gate, proposal("10"), account=held(20)) is None
    assert limit(gate, proposal("10.01"), account=held(20)) == "position"
    assert limit(gate, proposal("10", "sell"), account=held(-20)) is None
    assert limit(gate, proposal("10.01", "sell"), account=held(-20)) == "position"


def test_5_an_order_without_an_answer_counts_as_filled(gate):
    assert limit(gate, proposal("10.01"), account=held(0, 20)) == "position"
    assert limit(gate, proposal("10"), account=held(0, 20)) is None


def test_6_gross_exposure_at_one_lot(gate):
    account = held(250, symbol=OTHER)  # 2,500 of another symbol
    assert limit(gate, proposal("15"), account=account) is None
    assert limit(gate, proposal("15.01"), account=account) == "gross"


def test_6_what_is_held_must_have_a_price(gate):
    account = replace(held(1, symbol=OTHER), prices={SYMBOL: D(100)})
    assert limit(gate, proposal(), account=account) == "gross"


def test_7_leverage_at_one_cent(gate):
    poor = {"peak": D(500), "day_start": D(500)}
    assert limit(gate, proposal("10"), account=replace(ACCOUNT, equity=D(500), **poor)) is None
    less = replace(ACCOUNT, equity=D("499.99"), **poor)
    assert limit(gate, proposal("10"), account=less) == "leverage"
    assert limit(gate, proposal("1"), account=replace(ACCOUNT, equity=D("NaN"))) == "leverage"


def test_8_orders_a_minute(gate):
    for number in range(5):
        assert limit(gate, proposal(side=("buy", "sell")[number % 2], number=number)) is None
        order = proposal(side=("buy", "sell")[number % 2], number=number)
        gate.send([order], {SYMBOL: VIEW}, ACCOUNT)
    assert limit(gate, proposal(number=9)) == "order-rate"
    gate._clock.advance(59.999)
    assert limit(gate, proposal(number=9)) == "order-rate"
    gate._clock.advance(0.001)
    assert limit(gate, proposal(number=9)) is None


def test_9_messages_a_minute(gate):
    for _ in range(8):
        assert limit(gate, proposal()) is None
        gate.cancel(SYMBOL, "x")
    assert limit(gate, proposal()) == "message-rate"
    gate._clock.advance(60.0)
    assert limit(gate, proposal()) is None


@pytest.mark.parametrize(
    ("equity", "expected"), [("9500.01", None), ("9500", "daily-loss"), ("NaN", "leverage")]
)
def test_10_daily_loss_at_one_cent(gate, equity, expected):
    assert limit(gate, proposal(), account=replace(ACCOUNT, equity=D(equity))) == expected


def test_11_drawdown_at_one_cent(gate):
    peak = replace(ACCOUNT, peak=D(12_500))
    assert limit(gate, proposal(), account=replace(peak, equity=D("10000.01"))) is None
    assert limit(gate, proposal(), account=peak) == "drawdown"
    assert limit(gate, proposal(), account=replace(ACCOUNT, peak=D("NaN"))) == "drawdown"


def test_12_the_age_of_the_newest_bar(gate):
    assert limit(gate, proposal(), replace(VIEW, data_age_bars=2.0)) is None
    assert limit(gate, proposal(), replace(VIEW, data_age_bars=2.0001)) == "stale-data"


def test_13_symbols_that_are_not_on_the_list_or_do_not_trade(gate):
    foreign = replace(MARKET, symbol="DOGE/USDT:USDT")
    assert limit(gate, proposal(symbol="DOGE/USDT:USDT"), replace(VIEW, market=foreign)) == "symbol"
    assert limit(gate, proposal(), replace(VIEW, market=foreign)) == "symbol"
    for status in ("halted", "delisted"):
        closed = replace(VIEW, market=replace(MARKET, status=status))
        assert limit(gate, proposal(), closed) == "symbol"


def test_14_the_same_order_again_and_again(gate):
    for number in range(3):
        gate.send([proposal(number=number)], {SYMBOL: VIEW}, ACCOUNT)
    assert limit(gate, proposal(number=9)) == "repeat"
    assert limit(gate, proposal(side="sell", number=9)) is None
    gate._clock.advance(30.0)
    assert limit(gate, proposal(number=9)) is None


def test_reducing_passes_the_limits_on_size_and_loss_but_never_turns(gate):
    poor = held(60, equity=D(100))  # a drawdown of 99 %, and a position twice too large
    assert limit(gate, proposal("1", "sell"), account=poor) is None
    assert limit(gate, proposal("50", "sell"), account=poor) is None
    assert limit(gate, proposal("1", "buy"), account=poor) in ("position", "leverage")
    assert limit(gate, proposal("10.01", "sell"), account=held(10, equity=D(100))) is not None
    assert limit(gate, proposal("10", "sell"), account=held(0, 10, equity=D(100))) is not None


def test_reducing_and_halted(gate):
    gate.reduce_only("tail", "too heavy")
    assert gate.state == "REDUCING"
    assert limit(gate, proposal()) == "state"
    assert limit(gate, proposal("5", "sell"), account=held(5)) is None
    gate.lift("tail")
    assert gate.state == "ACTIVE"
    gate._switch.trip(source="stop", words="x")
    assert gate.state == "HALTED"
    gate.lift("tail")
    assert limit(gate, proposal("5", "sell"), account=held(5)) == "state"
    assert limit(gate, proposal("5", "sell", "flatten"), account=held(5)) is None
    assert limit(gate, proposal("5", "buy", "flatten"), account=held(5)) == "state"


def test_a_stop_stands_on_the_losing_side(gate):
    stop = {"leg": "stop", "type": "stop", "reduce_only": True}
    assert limit(gate, proposal("5", "sell", stop_price=D(90), **stop), account=held(5)) is None
    assert limit(gate, proposal("5", "sell", stop_price=D(110), **stop), account=held(5)) == (
        "collar"
    )
    unbound = {**stop, "reduce_only": False}
    assert limit(gate, proposal("5", "sell", stop_price=D(90), **unbound)) == "state"


def test_nothing_is_sent_before_the_account_is_reconciled(gate):
    gate.ready = False
    with pytest.raises(InvariantError) as refused:
        gate.send([proposal()], {SYMBOL: VIEW}, ACCOUNT)
    assert refused.value.code == "not-reconciled"
    assert gate._venue.sent == []


def test_the_intent_is_on_disk_before_the_request(gate):
    """M46: a database written after the send knows nothing of an order that was accepted."""
    seen = []

    class Watching(Nowhere):
        def submit(self, request):
            reader = Journal.reading(gate._journal.path)
            seen.append([intent.client_id for intent in reader.unsettled()])
            reader.close()
            return super().submit(request)

    gate._venue = Watching()
    gate.send([proposal(number=0), proposal(number=1, symbol=OTHER)], VIEWS, ACCOUNT)
    assert seen == [["id-target-0", "id-target-1"]] * 2


def test_an_order_is_never_sent_again(gate):
    """M43: neither an unknown outcome nor a second call repeats a request."""
    for _ in range(3):
        outcomes = gate.send([proposal()], {SYMBOL: VIEW}, ACCOUNT)
    assert len(gate._venue.sent) == 1
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].code == "not-sent"


def test_no_answer_is_unknown_and_not_refused(gate):
    """M42: an order whose answer was lost may be there."""
    gate.send([proposal()], {SYMBOL: VIEW}, ACCOUNT)
    assert [intent.kind for intent in gate._journal.unsettled()] == ["unknown"]


def test_the_switch_is_looked_at_after_the_intent(gate):
    gate.send(
        [proposal()],
        {SYMBOL: VIEW},
        ACCOUNT,
        before=lambda refusals: gate._switch.trip(source="x", words=str(refusals)) and None,
    )
    assert gate._venue.sent == []
    assert [intent.kind for intent in gate._journal.intents()] == ["refused"]


def test_orders_of_one_call_see_each_other_as_filled(gate):
    # 16 at 100 and 50 at 10; with 16 more the position is 3,200 of 3,000
    orders = [
        proposal("16", number=0), proposal("50", number=1, symbol=OTHER), proposal("16", number=2),
    ]  # fmt: skip
    outcomes = gate.send(orders, VIEWS, ACCOUNT)
    assert [getattr(outcome, "code", "sent") for outcome in outcomes] == [
        "sent", "sent", "gate:position",
    ]  # fmt: skip


def parts(*quantities, first=0):
    """Return the parts of one order."""
    return [proposal(own, number=place) for place, own in enumerate(quantities, first)]


@pytest.mark.spec("D6")
def test_parts_of_an_order_pass_together_or_not_at_all(gate):
    gate._venue = Nowhere(taken())
    # each is worth 1,100, and 2,000 is the most of one order
    assert codes(gate.send(parts("11", "11"), VIEWS, ACCOUNT)) == ["gate:order-notional"] * 2
    # 10 of 15 may be sold to nothing, but the other 10 would turn the position after a loss
    lossy = held(15, equity=D(9_000))
    down = [proposal("10", "sell", number=number) for number in (0, 1)]
    assert codes(gate.send(down, VIEWS, lossy)) == ["gate:daily-loss"] * 2
    assert (gate._venue.sent, gate._journal.intents()) == ([], [])
    assert codes(gate.send(parts("10", "10"), VIEWS, ACCOUNT)) == ["sent"] * 2
    assert [intent.number for intent in gate._journal.intents()] == [0, 1]
    assert [request.quantity for request in gate._venue.sent] == [10, 10]


@pytest.mark.spec("D6")
def test_parts_are_one_order_to_the_throttle_and_many_to_the_rates(gate):
    gate._venue = Nowhere(taken())
    assert codes(gate.send(parts("1", "1", "1", "1"), VIEWS, ACCOUNT)) == ["sent"] * 4
    # 5 orders a minute: one is left, and an order of two parts is refused whole
    assert codes(gate.send(parts("1", "1", first=4), VIEWS, ACCOUNT)) == ["gate:order-rate"] * 2
    assert codes(gate.send(parts("1", first=6), VIEWS, ACCOUNT)) == ["sent"]
    gate._clock.advance(61.0)
    for number in range(10, 13):
        assert codes(gate.send(parts("1", first=number), VIEWS, ACCOUNT)) == ["sent"]
    assert codes(gate.send(parts("1", first=13), VIEWS, ACCOUNT)) == ["gate:repeat"]


@pytest.mark.spec("D2")
@pytest.mark.parametrize("answer", [Unknown("no answer"), Refused("-2010", "no money")])
def test_a_part_that_is_not_taken_stops_those_after_it(gate, answer):
    answers = [taken(), answer, taken()]
    gate._venue = Nowhere()
    gate._venue.submit = lambda request: (gate._venue.sent.append(request), answers.pop(0))[1]
    orders = [*parts("1", "1", "1", "1"), proposal(number=9, symbol=OTHER, quantity="10")]
    outcomes = gate.send(orders, VIEWS, ACCOUNT)
    assert outcomes[1] == answer
    assert [codes([own])[0] for own in outcomes[2:]] == ["not-sent", "not-sent", "sent"]
    assert [request.client_id[-1] for request in gate._venue.sent] == ["0", "1", "9"]
    kinds = [intent.kind for intent in gate._journal.intents()]
    assert kinds[0] == "accepted"
    assert kinds[2:] == ["refused", "refused", "accepted"]


@pytest.mark.spec("D7")
def test_no_part_follows_a_tripped_switch(gate):
    gate._venue = Nowhere()

    def submit(request):
        gate._venue.sent.append(request)
        gate._switch.trip(source="x", words="y")
        return taken()

    gate._venue.submit = submit
    assert codes(gate.send(parts("1", "1"), VIEWS, ACCOUNT)) == ["sent", "not-sent"]
    assert len(gate._venue.sent) == 1


def test_there_is_one_call_of_submit_and_one_of_create_order():
    calls = {"submit": [], "create_order": []}
    for path in sorted((PACKAGE / "execution").rglob("*.py")) + sorted(
        (PACKAGE / "cli").rglob("*.py")
    ):
        name = path.relative_to(PACKAGE).as_posix()
        if "loopback" in name:
            continue  # the exchange's own side
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for attribute, found in calls.items():
                    if node.func.attr == attribute:
                        found.append(name)
    assert calls["submit"] == ["execution/order_gate.py"]
    assert calls["create_order"] == ["execution/ccxt_venue.py"]


ODD = tuple(
    map(D, ("NaN", "Infinity", "-1", "0", "1e-12", "1e12", "0.01", "0.1", "20", "20.01", "30.01"))
)
HALTED_MARKET = replace(MARKET, status="halted")
AGES = (0.0, 4999.0, 5001.0, float("nan"))


def hostile(number, draw):
    """Return an order, a market and an account, each drawn to be at or beyond a limit."""
    quantity = ODD[draw[8] % len(ODD)] if draw[0] % 10 < 4 else D(draw[8] % 5000 + 1) / 100
    price = None if draw[1] % 10 < 7 else D(180 + draw[9] % 41) / 2
    request = OrderRequest(
        f"h{number}",
        SYMBOL if draw[2] % 10 else "DOGE/USDT:USDT",
        ("buy", "sell")[draw[3] % 2],
        "market" if price is None else "limit",
        quantity,
        price,
    )
    leg = ("target", "target", "target", "flatten")[draw[4] % 4]
    view = MarketView(
        MARKET if draw[5] % 10 else HALTED_MARKET,
        D(100) if draw[6] % 10 else None,
        AGES[draw[10] % 4] if draw[6] % 3 else 0.0,
        (0.1, 1.9, 2.1)[draw[11] % 3],
    )
    low = D(draw[12] % 80 - 40)
    exposures = {SYMBOL: Exposure(low, low + draw[13] % 20)}
    if draw[7] % 10 < 3:
        exposures[OTHER] = Exposure(D(0), D(draw[14] % 500))
    equity = D(draw[15] % 12_100 - 100)
    account = AccountView(equity, D(10_000), D(9_800), exposures, ACCOUNT.prices)
    return Proposal(request, 1, leg, 0, D(100)), view, account


def breaches(order, view, account):  # noqa: C901 - fourteen limits
    """Return the limits that an order breaks, written down again without the gate's code."""
    request = order.request
    quantity = float(request.quantity)
    price = 100.0 if request.price is None else float(request.price)
    if not (np.isfinite(quantity) and quantity > 0):
        return {"number"}
    found = set()
    if request.symbol != SYMBOL or view.market.status != "trading":
        found.add("symbol")
    if request.quantity * 100 % 1:
        found.add("filter")
    if not 0.02 <= quantity <= 50 or quantity * price < 10 - 1e-9:
        found.add("filter")
    if view.mid is None or not view.mid_age_ms <= 5000 or abs(price - 100) > 2:
        found.add("collar")
    sign = 1 if request.side == "buy" else -1
    low, high = (float(end) for end in account.exposures[SYMBOL])
    ends = [end + sign * quantity for end in (low, high)]
    reduces = (low > 0 and ends[0] >= 0) if sign < 0 else (high < 0 and ends[1] <= 0)
    if order.leg == "flatten":
        return found if reduces else found | {"state"}
    if view.data_age_bars > 2:
        found.add("stale-data")
    if reduces:
        return found
    if quantity * price > 2_000:
        found.add("order-notional")
    largest = max(map(abs, ends))
    if largest * price > 3_000:
        found.add("position")
    other = account.exposures.get(OTHER, Exposure(D(0), D(0)))
    gross = max(largest, abs(low), abs(high)) * price + 10 * max(map(abs, map(float, other)))
    equity = float(account.equity)
    if gross > 4_000:
        found.add("gross")
    if gross > 2 * equity:
        found.add("leverage")
    if 9_800 - equity >= 0.05 * 9_800:
        found.add("daily-loss")
    if 10_000 - equity >= 0.2 * 10_000:
        found.add("drawdown")
    return found


def attack(gate, count, seed):
    draws = np.random.default_rng(seed).integers(0, 1 << 30, (count, 16)).tolist()
    passed = 0
    for number, draw in enumerate(draws):
        order, view, account = hostile(number, draw)
        refusal = gate.check(order, view, account)
        broken = breaches(order, view, account)
        assert (refusal is None) == (not broken), (order, view, account, refusal, broken)
        assert refusal is None or refusal.limit in broken, (refusal, broken)
        passed += refusal is None
    return passed


@pytest.mark.spec("R22")
def test_no_hostile_order_breaks_a_limit(gate):
    passed = attack(gate, 200_000, seed=0)
    assert 0.005 < passed / 200_000 < 0.3  # some pass, or nothing was tested


@pytest.mark.campaign
@pytest.mark.spec("R22")
@pytest.mark.parametrize("seed", range(50))
def test_no_hostile_order_breaks_a_limit_in_ten_million(gate, seed):
    attack(gate, 200_000, seed=seed)


@pytest.mark.spec("R22")
def test_a_check_takes_less_than_a_tenth_of_a_millisecond(gate):
    order, account = proposal("5"), held(3)
    times = []
    for _ in range(5_000):
        start = time.thread_time_ns()
        gate.check(order, VIEW, account)
        times.append(time.thread_time_ns() - start)
    assert np.percentile(times, 99) <= 100_000


def test_an_accepted_order_is_recorded_as_such(gate):
    order = Order(
        "id-target-0", "7", SYMBOL, "buy", "market", "filled", D(1), D(1), D(100), None, None,
        False, 5,
    )  # fmt: skip
    gate._venue = Nowhere(Accepted(order))
    gate.send([proposal()], {SYMBOL: VIEW}, ACCOUNT)
    (own,) = gate._journal.intents()
    assert (own.kind, own.status, own.filled) == ("accepted", "filled", D(1))
