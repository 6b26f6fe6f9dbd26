"""A perpetual is turned by two orders: a stop that fires between them doubles nothing."""

from decimal import Decimal
from itertools import accumulate

import numpy as np
import pytest

from execution_lab import Killed
from live_lab import live_desk
from stormsail.core.errors import VenueError
from stormsail.execution.loopback.faults import ORDER_FAULTS, WORLD
from stormsail.execution.venue import Refused, Unknown

pytest.importorskip("ccxt")

D = Decimal
WEIGHT = 0.6
WIRE = {name: fault for name, fault in ORDER_FAULTS.items() if fault.kind not in WORLD}


class Moments:
    """Counts requests before they arrive and after they were answered, and acts at one of them."""

    def __init__(self, act, at=None):
        self.act, self.at, self.count = act, at, 0

    def __call__(self, *_request):
        self.count += 1
        if self.count == self.at:
            self.act()


def turned(desk, loop, sign, moments):
    """Hold a position, then decide the opposite while moments pass; return positions since then."""
    desk.bar(loop, sign * WEIGHT)
    held, since, plain = desk.held(), len(desk.book.fills), loop._decide

    def decide():
        desk.exchange.on_request = moments
        try:
            plain()
        finally:
            desk.exchange.on_request = lambda *_: None

    loop._decide = decide
    desk.bar(loop, -sign * WEIGHT)
    loop._decide = plain
    return positions_since(desk, held, since)


def positions_since(desk, held, since):
    """Return the position before some fill, and after it and each later one."""
    changes = [fill.sign * fill.quantity for fill in desk.book.fills[since:]]
    return list(accumulate(changes, initial=held))


def check(desk, loop):
    """Compare names, stops and money with the exchange's own ledger."""
    assert loop._journal.unsettled() == []
    names = [own.client_id for own in desk.book.orders]
    assert len(names) == len(set(names))
    covered = sum(own.quantity for own in desk.stops() if own.sign * desk.held() < 0)
    assert covered >= abs(desk.held())
    desk.exchange.audit()


def fired_at(sign, at, *, parts):
    """Turn a position while its stop fires at a moment; return the moments, and the positions."""
    with live_desk() as desk:
        listing = desk.book.listings["BTCUSDT"]
        if parts:
            listing.market_max = D(25)

        def fire():
            for stop in desk.stops():
                if stop.sign == -sign:
                    desk.book._trigger(listing, stop, desk.book.price("BTCUSDT"))

        with desk.trader() as loop:
            moments = Moments(fire, at)
            positions = turned(desk, loop, sign, moments)
            check(desk, loop)
        return moments.count, positions


@pytest.mark.spec("R24")
@pytest.mark.parametrize(("sign", "parts"), [(1, False), (-1, False), (1, True)])
def test_a_stop_that_fires_at_any_moment_of_a_turn_doubles_nothing(sign, parts):
    count, (held, *plain) = fired_at(sign, None, parts=parts)
    target = plain[-1]
    assert D(0) in plain  # first out, then in
    assert held * target < 0
    assert count > 20
    for at in range(1, count + 1, 2):  # before each request
        _, positions = fired_at(sign, at, parts=parts)
        # decided on a flat account the target is another, by what the stop has cost or brought
        assert float(positions[-1] / target) == pytest.approx(1.0, rel=0.005), at
        assert max(abs(own / target) for own in positions[1:] if own * target > 0) < 1.005, at
        assert all(abs(own) <= abs(held) for own in positions if own * held > 0), at


@pytest.mark.spec("R20")
@pytest.mark.parametrize("fault", ["lost", "silent"])
def test_the_other_side_waits_until_it_is_known_what_closed_the_first(fault):
    """Nobody knows whether the closing order was taken: the next bar decides from what is there."""
    with live_desk() as desk, desk.trader() as loop:
        plain, seen = desk.venue.submit, []

        def submit(request):
            seen.append(request)
            if request.reduce_only and request.type == "market":
                if fault == "silent":
                    plain(request)
                return Unknown("no answer")
            return plain(request)

        desk.venue.submit = submit
        positions = turned(desk, loop, 1, lambda *_: None)
        assert positions[-1] == (positions[0] if fault == "lost" else 0)
        assert [own.type for own in seen[-2:]] == ["stop", "market"]
        desk.venue.submit = plain
        desk.bar(loop, -WEIGHT, bars=2)
        assert desk.held() < 0
        check(desk, loop)


@pytest.mark.spec("R24")
def test_the_other_side_is_not_opened_while_something_of_the_first_is_left():
    with live_desk() as desk, desk.trader() as loop:
        part = Moments(lambda: setattr(desk.book, "partial", D("0.9")), 4)
        positions = turned(desk, loop, 1, part)
        assert 0 < positions[-1] < positions[0] / 5
        kinds = [own.kind for own in loop._journal.intents()[-3:]]
        assert kinds == ["canceled", "accepted", "refused"]  # the stop, what closes, what opens
        desk.bar(loop, -WEIGHT)
        assert desk.held() < 0
        check(desk, loop)


@pytest.mark.spec("R24")
def test_the_other_side_is_not_opened_where_the_position_cannot_be_looked_up():
    with live_desk() as desk, desk.trader() as loop:
        plain, ask = desk.venue.submit, desk.venue.positions

        def silent(symbols):
            raise VenueError("venue-unreachable", wrong="it must answer", found="-", remedy="Wait.")

        def submit(request):
            if not (request.reduce_only and request.type == "market"):
                return plain(request)
            desk.book.close_by_hand("BTCUSDT")  # somebody was quicker
            desk.venue.positions = silent
            answer = plain(request)
            assert (type(answer), answer.code) == (Refused, "-2022")
            return answer

        desk.venue.submit = submit
        positions = turned(desk, loop, 1, lambda *_: None)
        assert positions[-1] == 0
        desk.venue.submit, desk.venue.positions = plain, ask
        desk.bar(loop, -WEIGHT)
        assert desk.held() < 0
        check(desk, loop)


@pytest.mark.spec("R21")
def test_a_trader_that_dies_between_the_two_orders_sends_neither_again():
    def die():
        raise Killed

    with live_desk() as desk:
        with desk.trader() as loop:
            moments = Moments(lambda: None)
            turned(desk, loop, 1, moments)
        count = moments.count
    for at in range(1, count + 1):
        with live_desk() as desk:
            with pytest.raises(Killed), desk.trader() as loop:
                turned(desk, loop, 1, Moments(die, at))
            desk.exchange.on_request = lambda *_: None
            since, held = len(desk.book.fills), desk.held()
            covered = sum(own.quantity for own in desk.stops() if own.sign * held < 0)
            assert covered >= abs(held), at
            desk.clock.sleep(61.0)
            with desk.trader() as loop:
                desk.bar(loop, -WEIGHT, bars=2)
                check(desk, loop)
            positions = positions_since(desk, held, since)
            assert positions[-1] < 0, at
            assert min(positions) >= D("1.05") * positions[-1], at  # two targets, of two bars


def drawn_turn(seed):
    """Turn a position while requests go wrong and its stop fires; return what was struck."""
    draw = np.random.Generator(np.random.PCG64([24, seed]))
    sign = 1 if draw.random() < 0.5 else -1
    with live_desk() as desk:
        listing = desk.book.listings["BTCUSDT"]
        if draw.random() < 0.3:
            listing.market_max = D(25)

        def fire():
            for stop in desk.stops():
                if stop.sign == -sign:
                    desk.book._trigger(listing, stop, desk.book.price("BTCUSDT"))

        moments = Moments(fire, int(draw.integers(1, 40)))
        names = draw.choice(sorted(WIRE), size=2)
        with desk.trader() as loop:
            desk.bar(loop, sign * WEIGHT)
            first = len(desk.exchange.of_group("order"))
            for name in names:
                number = first + int(draw.integers(1, 5))
                desk.exchange.script["order", number] = WIRE[str(name)]
            held, since = desk.held(), len(desk.book.fills)
            turned(desk, loop, sign, moments)
            for _ in range(3):
                desk.clock.sleep(130.0)
                desk.bar(loop, -sign * WEIGHT)
            check(desk, loop)
        positions = positions_since(desk, held, since)
        largest = max(abs(own) for own in positions)
        assert largest <= D("1.1") * max(abs(held), abs(positions[-1])), names
        assert positions[-1] * sign < 0, names
        return len(desk.exchange.struck)


@pytest.mark.spec("R20 R24")
@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_a_thousand_turns_while_requests_go_wrong_double_nothing(first):
    struck = [drawn_turn(seed) for seed in range(first, first + 250)]
    assert sum(map(bool, struck)) > 150
