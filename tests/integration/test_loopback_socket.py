"""The loopback exchange over real sockets: what ccxt and ccxt.pro see is what scenarios assume."""

import threading
import time
from collections import Counter
from decimal import Decimal
from functools import partial

import pytest

from loopback_lab import M1, MINUTE, NAMES, credentials, exchange_at
from stormsail.core.errors import InvariantError, VenueError
from stormsail.execution.ccxt_venue import CcxtVenue
from stormsail.execution.connection.pro_streams import HELD_S
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.loopback import Exchange, Loopback, VirtualClock
from stormsail.execution.loopback.faults import ORDER_FAULTS, WORLD, Fault
from stormsail.execution.loopback.transport import in_process
from stormsail.execution.venue import (
    Accepted,
    BarClosed,
    OrderChanged,
    OrderRequest,
    Refused,
    StreamInterrupted,
    Unknown,
)

START_MS = 1_700_000_400_000
WIRE = {name: fault for name, fault in ORDER_FAULTS.items() if fault.kind not in WORLD}


@pytest.fixture
def exchange():
    return exchange_at(VirtualClock(START_MS * 1_000_000))


@pytest.fixture
def served(exchange):
    with Loopback(exchange) as there:
        yield there


def venue_at(exchange, folder, dialect="spot", *, adapter=None, timeout_s=0.3):
    folder.mkdir(exist_ok=True)
    return CcxtVenue(
        NAMES[dialect][0],
        credentials=credentials(),
        clock=exchange.clock,
        base_url=exchange.url or "http://127.0.0.1:1",
        budget=RateBudget(folder / "budget", limit=2400, clock=exchange.clock),
        timeout_s=timeout_s,
        adapter=adapter,
    )


def buy(name, symbol="BTC/USDT"):
    return OrderRequest(name, symbol, "buy", "market", Decimal("0.010"))


@pytest.mark.spec("R20")
def test_every_fault_looks_the_same_over_a_socket_and_inside_the_process(served, tmp_path):
    socket = venue_at(served, tmp_path / "a")
    inside = venue_at(served, tmp_path / "b", adapter=in_process(served))
    seen = {}
    for name, fault in WIRE.items():
        for place, venue in (("socket", socket), ("inside", inside)):
            venue.order("BTC/USDT", "x")  # the markets are loaded, the connection is open
            served.reset()
            served.script["order", 1] = fault
            client_id = f"{place}-{len(seen)}"
            before = len(served.ledgers["spot"].orders)
            outcome = venue.submit(buy(client_id))
            accepted = len(served.ledgers["spot"].orders) - before
            assert len(served.of_group("order")) == 1, "a request was repeated"
            seen[name, place] = (type(outcome), getattr(outcome, "code", ""), accepted)
            served.clock.advance(200.0)
    socket.close()
    inside.close()
    assert {name: seen[name, "socket"] for name in WIRE} == {
        name: seen[name, "inside"] for name in WIRE
    }
    refused = {name for name in WIRE if seen[name, "socket"][0] is Refused}
    assert refused == {"-1003", "-1015", "-1021", "-2010", "429"}
    assert {name for name in WIRE if seen[name, "socket"][0] is Accepted} == {"drip"}
    for name, (kind, _code, accepted) in seen.items():
        assert kind is not Refused or accepted == 0, name


@pytest.mark.spec("D11")
@pytest.mark.parametrize("dialect", ["spot", "perp"])
def test_bars_and_orders_arrive_through_ccxt_pro(served, tmp_path, dialect):
    venue, symbol = venue_at(served, tmp_path, dialect), NAMES[dialect][1]
    venue.watch([symbol], M1)
    wait_for(lambda: len(served.feed.subscribers) == 2 and subscribed(served))
    assert isinstance(venue.submit(buy("first", symbol)), Accepted)
    served.clock.advance(60.0)
    events = gather(venue, 2)
    [order] = [event for event in events if isinstance(event, OrderChanged)]
    [bar] = [event for event in events if isinstance(event, BarClosed)]
    assert order.order == venue.order(symbol, "first")
    assert order.trade == venue.trades(symbol, since_ms=START_MS - MINUTE)[0]
    asked = venue.bars(symbol, M1, since_ms=int(bar.bars.ts[0]), until_ms=START_MS + MINUTE)
    assert bar.bars.digest() == asked.digest()  # the stream and the archive agree to the bit
    assert venue.health().stream_age_ms == 0
    served.feed.strike("ws_disconnect", served.time_ms())
    assert any(isinstance(event, StreamInterrupted) for event in gather(venue, 1))
    wait_for(lambda: len(served.feed.subscribers) == 2 and subscribed(served))
    venue.close()
    venue.close()


def test_no_message_is_read_while_requests_leave_side_by_side(served, tmp_path):
    venue, symbol = venue_at(served, tmp_path, "perp"), NAMES["perp"][1]
    venue.watch([symbol], M1)
    wait_for(lambda: len(served.feed.subscribers) == 2 and subscribed(served))
    seen = []

    def sent(name):
        outcome = venue.submit(buy(name, symbol))
        time.sleep(HELD_S / 5)  # long enough for a message to arrive
        seen.append(len(venue._streams._taken()))
        return outcome

    outcomes = venue.at_once([partial(sent, "first"), partial(sent, "second")])
    assert [type(own) for own in outcomes] == [Accepted, Accepted]
    assert seen == [0, 0]
    assert {event.order.client_id for event in gather(venue, 2)} == {"first", "second"}

    def waited():
        venue.submit(buy("third", symbol))
        return gather(venue, 1)  # it is not held for ever

    [event], _ = venue.at_once([waited, venue.server_time_ms])
    assert event.order.client_id == "third"
    venue._streams.close()  # nothing is to be held any more
    assert venue.at_once([venue.name.upper, venue.name.lower]) == ["BINANCEUSDM", "binanceusdm"]
    venue.close()


def subscribed(exchange):
    return all(subscriber.channels for subscriber in list(exchange.feed.subscribers))


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def gather(venue, count):
    events = []
    for _ in range(200):
        events += venue._streams._taken()
        if len(events) >= count:
            return events
        time.sleep(0.02)
    raise AssertionError(events)


def test_a_route_that_is_not_known_fails_the_test(exchange):
    import requests

    with pytest.raises(InvariantError, match="GET /api/v3/depth"), Loopback(exchange) as there:
        assert requests.get(f"{there.url}/api/v3/depth", timeout=5.0).status_code == 404


def test_a_port_that_is_taken_is_refused_in_words(served):
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(VenueError, match="Choose another port"), Loopback(port=port):
        pass


def test_a_redirected_order_is_not_sent_again(served, tmp_path):
    venue = venue_at(served, tmp_path)
    venue.order("BTC/USDT", "x")
    served.reset()
    target = f"{served.url}/api/v3/order"
    served.always["order"] = Fault("status", status=307, headers={"Location": target})
    outcome = venue.submit(buy("moved"))
    venue.close()
    assert isinstance(outcome, Unknown)
    assert len(served.of_group("order")) == 1


def test_two_threads_are_served_at_once(served, tmp_path):
    venues = [venue_at(served, tmp_path / str(n), timeout_s=5.0) for n in range(2)]
    kinds = {}

    def trade(number):
        for step in range(10):
            kinds[number, step] = type(venues[number].submit(buy(f"t{number}-{step}")))

    threads = [threading.Thread(target=trade, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for venue in venues:
        venue.close()
    assert set(kinds.values()) == {Accepted}
    assert len(kinds) == len(served.ledgers["spot"].fills) == 20


def test_an_archive_has_no_clock_and_shows_every_candle():
    archive = Exchange()
    assert (archive.time_ms(), archive.clock) == (0, None)


@pytest.mark.spec("R20")
def test_orders_that_are_sent_side_by_side_are_sent_once_under_faults(exchange, tmp_path):
    """Eight connections over sockets; the ledger has one order for a name, or none."""
    exchange.deposit("spot", "USDT", "100000000")
    faults = ["reset before", "reset after", "torn", "502 before", "502 after", "-1007 after"]
    faults += ["-2010", "no JSON", "wrong client id echo", "drip"]
    counts = {Accepted: 0, Refused: 0, Unknown: 0}
    with Loopback(exchange) as served:
        venue = venue_at(served, tmp_path / "a", timeout_s=5.0)
        venue.order("BTC/USDT", "x")
        for batch in range(12):
            served.reset()
            for place, name in enumerate(faults[batch % 5 :: 5]):
                served.script["order", 2 + 5 * place] = ORDER_FAULTS[name]
            names = [f"o-{batch}-{number}" for number in range(12)]
            before = len(served.ledgers["spot"].orders)
            outcomes = venue.at_once([partial(venue.submit, buy(name)) for name in names])
            assert len(served.of_group("order")) == 12, "a request was repeated, or not sent"
            there = Counter(own.client_id for own in served.ledgers["spot"].orders[before:])
            assert set(there) <= set(names)
            for name, outcome in zip(names, outcomes, strict=True):
                counts[type(outcome)] += 1
                if isinstance(outcome, Accepted):
                    assert (outcome.order.client_id, there[name]) == (name, 1)
                elif isinstance(outcome, Refused):
                    assert there[name] == 0
                else:
                    assert there[name] <= 1
            served.clock.advance(120.0)
        venue.close()
    assert min(counts.values()) >= 2, counts
    assert counts[Accepted] > 100
