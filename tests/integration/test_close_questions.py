"""Between a close and its orders only what no fill explains is asked for, and nothing is missed."""

from decimal import Decimal

import pytest

from execution_lab import HOUR, Desk, config, quick_folder
from stormsail.core.errors import VenueError
from stormsail.execution.decisions.feed import BarFeed
from stormsail.execution.venue import FundingPayment, OrderRequest
from stormsail.market.interval import Interval


@pytest.fixture
def folder():
    with quick_folder() as made:
        yield made


def counted(venue, name):
    """Count the calls of a method of a venue; return the list of their first arguments."""
    plain, seen = getattr(venue, name), []

    def call(*args, **kwargs):
        seen.append(args[0])
        return plain(*args, **kwargs)

    setattr(venue, name, call)
    return seen


def by_hand(venue, symbol, side, quantity):
    """Trade as a person does, beside the trader."""
    request = OrderRequest(f"web-{side}", symbol, side, "market", Decimal(quantity))
    venue._accept(request, half=False)


def decided(loop):
    """Wait for the next bar, and return the loop just before it decides."""
    ts = loop.window.newest + loop._interval.milliseconds
    rows = loop.feed.collect(ts, loop._idle)
    loop.window.append(rows, {})
    return loop


@pytest.mark.spec("D4")
def test_a_close_that_known_fills_explain_asks_for_positions_once_and_for_no_symbol(folder):
    desk = Desk(folder, symbols=3)
    with desk.trader("live") as loop:
        loop.run(bars=3)
        loop = decided(loop)
        positions, trades, orders = (
            counted(desk.venue, name) for name in ("positions", "trades", "order")
        )
        loop.placing.place = lambda *_: None  # what follows the decision is another matter
        loop._decide()
        assert (len(positions), trades, orders) == (1, [], [])
        assert set(loop.accounts.recent_positions(5.0)) == set(desk.symbols)
        desk.clock.advance(5.001)  # older than a price may be: the gate asks again
        assert loop.accounts.recent_positions(5.0) is None


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    ("late_s", "fails", "asked"), [(0.0, False, 1), (0.6, False, 2), (0.0, True, 2)]
)
def test_prices_are_asked_for_beside_positions_and_again_where_that_is_long_ago(
    folder, late_s, fails, asked
):
    desk = Desk(folder, symbols=2)
    with desk.trader("live", config(limits__max_quote_age_s=5.0)) as loop:
        loop.run(bars=3)
        loop = decided(loop)
        plain, batches, told = desk.venue.quotes, [], []

        def at_once(calls):
            batches.append(len(calls))
            ended = [call() for call in calls]
            desk.clock.advance(late_s)
            return ended

        def quotes(symbols):
            told.append(desk.clock.monotonic_ns())
            if fails and len(told) == 1:
                raise VenueError("venue-unreachable", wrong="it must answer", found="-", remedy=".")
            return plain(symbols)

        desk.venue.at_once, desk.venue.quotes = at_once, quotes
        loop.placing.place = lambda *_: None
        loop._decide()
        assert batches == [2]
        assert len(told) == asked
        assert {at for _mid, at in loop.placing._quotes.values()} == {told[-1]}
        assert loop.standing.opening.may_trade.all()


@pytest.mark.spec("D4")
def test_a_position_that_no_known_fill_explains_is_asked_for_and_only_that(folder):
    desk = Desk(folder, symbols=3, stops=False)
    with desk.trader("live") as loop:
        loop.run(bars=3)
        loop, venue, symbol = decided(loop), desk.venue, desk.symbols[1]
        by_hand(venue, symbol, "buy", 5)
        trades, before = counted(venue, "trades"), float(venue.held[symbol])
        loop.placing.place = lambda *_: None
        loop._decide()
        assert trades == [symbol]
        assert float(loop.standing.state.quantity[1]) == before
        booked = loop._journal.rows("SELECT quantity FROM fills WHERE client_id IS NULL")
        assert booked == [("5",)]


@pytest.mark.spec("D4")
def test_a_fill_that_is_shown_a_moment_after_its_position_is_booked_at_its_price(folder):
    """Adopted at the close and taken back at the next one it would cost the move of a bar."""
    desk = Desk(folder, symbols=1, stops=False)
    with desk.trader("live") as loop:
        loop.run(bars=3)
        loop, venue, symbol = decided(loop), desk.venue, desk.symbols[0]
        by_hand(venue, symbol, "buy", 5)
        venue.hidden["web-buy"] = venue.now_ms() + 400
        before = loop.standing
        loop.placing.place = lambda *_: None
        loop._decide()
        fills = loop._journal.fills_after(before.booked[0])
        assert venue.fills[-1] in fills
        signs = [1 if fill.side == "buy" else -1 for fill in fills]
        amounts = [fill.price * fill.quantity for fill in fills]
        paid = sum(sign * own for sign, own in zip(signs, amounts, strict=True))
        paid += sum(fill.fee for fill in fills)
        change = before.state.cash[0] - loop.standing.state.cash[0]
        assert float(change) == pytest.approx(float(paid))
        words = [own.words for own in desk.seen if getattr(own, "name", "") == "position-adopted"]
        assert len(words) == 1
        assert "was expected" not in words[0]  # it is told as what it is: somebody's fill


@pytest.mark.spec("D4")
def test_a_round_trip_that_leaves_no_trace_in_the_position_is_booked_before_the_next_bar(folder):
    desk = Desk(folder, symbols=2, stops=False)
    with desk.trader("live") as loop:
        loop.run(bars=2)
        venue, symbol = desk.venue, desk.symbols[0]
        by_hand(venue, symbol, "buy", 1)
        by_hand(venue, symbol, "sell", 1)
        loop.placing.place = lambda *_: None  # after orders fills are asked for in any case
        loop.run(bars=1)
        found = loop._journal.rows("SELECT side, quantity FROM fills WHERE client_id IS NULL")
    assert sorted(found) == [("buy", "1"), ("sell", "1")]


@pytest.mark.spec("D12")
def test_funding_is_asked_for_before_a_close_and_after_it_where_an_hour_has_begun(folder):
    desk = Desk(folder, symbols=2, stops=False, interval="15m", rows=200, first=140)
    asked, paid = [], set()

    def funding_payments(symbols, *, since_ms):
        now = desk.clock.now_ns() // 1_000_000
        asked.append(now % (15 * 60_000) // 1000)  # seconds since a bar closed
        hour = now // HOUR * HOUR
        assert now - since_ms >= 30 * 60_000  # the bar that closes, and the one before it
        paid.add(hour)
        return [FundingPayment(f"{hour}", symbols[0], Decimal("-0.5"), "USDT", hour)]

    desk.venue.funding_payments = funding_payments
    with desk.trader("live") as loop:
        loop.run(bars=2)
        asked.clear()
        booked = []
        for _ in range(8):
            ts = loop.window.newest + loop._interval.milliseconds
            count = len(asked)
            loop.run(bars=1)
            early = 15 * 60 - 5
            hour = (ts + loop._interval.milliseconds) % HOUR == 0
            assert asked[count] == early
            assert asked[count + 1 :] == ([0] if hour else [])
            booked.append(loop.standing.booked[1])
            newest = loop._journal.rows("SELECT max(ts) FROM funding")[0][0]
            assert newest == (ts + loop._interval.milliseconds) // HOUR * HOUR
    # what was paid at a close is in the account that is decided on
    assert booked[-1] == len(paid) == booked[0] + 2


@pytest.mark.spec("D12")
def test_what_was_paid_while_nothing_was_asked_is_asked_for_before_a_close(folder):
    desk = Desk(folder, symbols=1, stops=False, interval="15m", rows=200, first=140)
    asked = []

    def funding_payments(_symbols, *, since_ms):
        asked.append((desk.clock.now_ns() // 1_000_000, since_ms))
        return []

    desk.venue.funding_payments = funding_payments
    with desk.trader("live") as loop:
        loop.accounts._funding_ms = 0
        asked.clear()
        loop.accounts.ask_ahead()
        assert asked == []  # the close knows from when on
        loop.run(bars=2)
        last = asked[-1][0]
        desk.clock.sleep(3 * 3600.0)
        loop.accounts.ask_ahead()
        assert asked[-1][1] == last - HOUR


@pytest.mark.spec("D12")
def test_rates_are_asked_for_before_the_close_and_each_bar_has_its_own(folder):
    desk = Desk(folder, symbols=2, interval="1h")
    seen = []

    def funding_rates(symbol, *, since_ms):
        now = desk.clock.now_ns() // 1_000_000
        seen.append(now % HOUR // 1000)
        return [(now // HOUR * HOUR, float(now // HOUR % 100))]

    def idle(seconds):
        desk.clock.sleep(seconds)
        return True

    desk.venue.funding_rates = funding_rates
    feed = BarFeed(desk.venue, desk.symbols, Interval.parse("1h"), desk.clock, config().feed)
    first = desk.start_ms // HOUR * HOUR
    for ts in (first, first + HOUR):
        seen.clear()
        assert feed.collect(ts, idle, feed.ask_ahead) is not None
        rates = feed.due_rates(ts)
        assert seen == [HOUR // 1000 - 5] * 2  # five seconds before the close, and not again
        assert set(rates.values()) == {((ts, float(ts // HOUR % 100)),)}
    late = first + 2 * HOUR
    seen.clear()
    desk.clock.sleep((late + 1_000 - desk.clock.now_ns() // 1_000_000) / 1000.0)
    feed.ask_ahead(late)  # it opened a moment ago: its rate may not be shown yet
    assert seen == []


def test_a_position_larger_than_a_market_order_is_closed_in_parts(folder):
    desk = Desk(folder, symbols=1, stops=False)
    with desk.trader("live") as loop:
        loop.run(bars=2)
        held = desk.venue.held[desk.symbols[0]]
        assert held
        desk.venue.market_max = (abs(held) / 3).quantize(Decimal("0.001")) + Decimal("0.001")
        loop._refresh_markets()
        desk.switch.trip(source="test", words="x", way="flatten")
        sent = len(desk.venue.requests)
        assert loop.run() == "killed"
    sizes = [request.quantity for request in desk.venue.requests[sent:]]
    assert desk.venue.held[desk.symbols[0]] == 0
    assert (len(sizes), sum(sizes), max(sizes)) == (3, abs(held), desk.venue.market_max)


@pytest.mark.spec("R20")
def test_a_target_larger_than_a_market_order_is_worked_in_parts(folder):
    desk = Desk(folder, symbols=1)
    desk.venue.market_max = Decimal("15.5")
    with desk.trader("live") as loop:
        loop.run(bars=1)
        intents = [own for own in loop._journal.intents() if own.leg == "target"]
        stops = [own for own in desk.venue.book.values() if own.type == "stop"]
        expected = abs(float(loop.standing.ordered.order[0]))
        again = [own.request.client_id for own in loop.placing._proposals(loop.standing)]
    sizes = [own.quantity for own in intents]
    assert [own.client_id for own in intents] == again  # named alike, so never sent twice
    assert [own.number for own in intents] == list(range(len(sizes)))
    assert len(sizes) == -(-expected // 15.5) > 2
    assert float(sum(sizes)) == pytest.approx(expected, abs=1e-9)
    assert max(sizes) <= Decimal("15.5")
    assert max(sizes) - min(sizes) <= Decimal("0.001")
    assert abs(desk.venue.held[desk.symbols[0]]) == sum(sizes)
    assert [own.quantity for own in stops] == [sum(sizes)]
