"""Orders of one symbol, one after the other: the stop, what closes, what opens."""

from dataclasses import replace

import pytest

from gate_lab import (
    ACCOUNT,
    VIEWS,
    D,
    Nowhere,
    codes,
    held,
    open_gate,
    proposal,
    taken,
)
from stormsail.core.errors import VenueError
from stormsail.execution.venue import Accepted, Position, Refused, Unknown


@pytest.fixture
def gate(tmp_path):
    with open_gate(tmp_path) as made:
        yield made


def turn(closing="10", opening="10"):
    """Return the orders that turn a long position: the stop of the new one, out, in."""
    guard = proposal(
        opening, "buy", "stop", number=7, type="stop", stop_price=D(110), reduce_only=True
    )
    orders = [
        proposal(closing, "sell", number=0, reduce_only=True),
        proposal(opening, "sell", number=1),
    ]
    return [guard, *orders]


def answering(gate, *answers, left=None):
    """Let a venue answer one order after the other, and hold a position or not say."""
    venue, queue = Nowhere(), list(answers)
    venue.submit = lambda request: (venue.sent.append(request), queue.pop(0))[1]

    def positions(symbols):
        if left is None:
            raise VenueError("venue-unreachable", wrong="it must answer", found="-", remedy="Wait.")
        return {symbol: Position(symbol, D(left)) for symbol in symbols}

    venue.positions = positions
    gate._venue = venue
    return venue


def named(orders, mark):
    """Return orders of other names."""
    return [
        replace(own, request=replace(own.request, client_id=f"{own.request.client_id}-{mark}"))
        for own in orders
    ]


REJECTED = Refused("-2022", "ReduceOnly Order is rejected.")


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    ("answer", "left", "sent"),
    [
        (taken("10"), None, True),  # what was filled in full needs no question
        (REJECTED, "0", True),  # a stop was quicker
        (REJECTED, "0.009", True),  # less than a lot
        (REJECTED, "10", False),
        (REJECTED, "-10", False),  # somebody has turned it already
        (REJECTED, None, False),
        (Unknown("no answer"), "0", False),  # it may still be on its way
        (Accepted(replace(taken("9").order, status="expired")), "1", False),
        (Accepted(replace(taken("0").order, status="expired")), "0", True),
    ],
)
def test_what_opens_a_position_is_sent_from_flat_alone(gate, answer, left, sent):
    venue = answering(gate, taken(), answer, taken("10"), left=left)
    outcomes = gate.send(turn(), VIEWS, held(10))
    assert [request.client_id[-1] for request in venue.sent] == ["7", "0", *"1"[:sent]]
    assert codes(outcomes[2:]) == ["sent" if sent else "not-sent"]


@pytest.mark.spec("D4")
def test_parts_that_close_are_all_taken_or_the_venue_is_asked(gate):
    orders = [
        proposal("5", "sell", number=0, reduce_only=True),
        proposal("5", "sell", number=1, reduce_only=True),
        proposal("5", "sell", number=2),
        proposal("5", "sell", number=3),
    ]
    venue = answering(gate, taken("5"), REJECTED, taken("5"), taken("5"), left="0")
    assert codes(gate.send(orders, VIEWS, held(10))) == ["sent", "-2022", "sent", "sent"]
    venue = answering(gate, taken("5"), REJECTED, left="5")
    gate._clock.advance(61.0)
    assert codes(gate.send(named(orders, "b"), VIEWS, held(10)))[1:] == [
        "-2022", "not-sent", "not-sent",
    ]  # fmt: skip
    venue = answering(gate, Unknown("no answer"), left="0")
    gate._clock.advance(61.0)
    assert codes(gate.send(named(orders, "c"), VIEWS, held(10)))[1:] == ["not-sent"] * 3
    assert len(venue.sent) == 1


@pytest.mark.spec("D6")
def test_a_position_is_closed_although_the_other_side_is_refused(gate):
    """Money was lost today: what closes the position passes, what opens another does not."""
    venue = answering(gate, taken("10"))
    lossy = held(10, equity=D(9_000))
    outcomes = gate.send(turn(), VIEWS, lossy)
    assert codes(outcomes) == ["gate:daily-loss", "sent", "gate:daily-loss"]
    assert [request.client_id[-1] for request in venue.sent] == ["0"]
    assert [intent.leg for intent in gate._journal.intents()] == ["target"]


@pytest.mark.spec("D6")
def test_the_other_side_is_refused_with_what_closes_the_first(gate):
    venue = answering(gate)
    orders = turn(closing="9.999")  # no multiple of the lot
    assert codes(gate.send(orders, VIEWS, held(10))) == ["gate:filter"] * 3
    assert (venue.sent, gate._journal.intents()) == ([], [])


@pytest.mark.spec("D7")
def test_no_stop_is_sent_for_an_order_that_the_kill_switch_keeps_back(gate):
    def trip(_refusals):
        gate._switch.trip(source="x", words="y")

    venue = answering(gate, taken())
    assert codes(gate.send(turn(), VIEWS, held(10), before=trip)) == ["not-sent"] * 3
    assert venue.sent == []
    guard = turn()[0]  # that of a position which is there is sent all the same
    alone = replace(guard, request=replace(guard.request, client_id="alone"))
    assert codes(gate.send([alone], VIEWS, held(-10))) == ["sent"]


@pytest.mark.spec("D8")
@pytest.mark.parametrize("answer", [taken(), REJECTED, Unknown("no answer")])
def test_a_stop_is_sent_before_its_order_whatever_becomes_of_it(gate, answer):
    """What cannot stand before its position is placed after it."""
    venue = answering(gate, answer, taken("5"))
    guard = proposal("5", "sell", "stop", type="stop", stop_price=D(90), reduce_only=True)
    gate.send([guard, proposal("5")], VIEWS, ACCOUNT)
    assert [request.type for request in venue.sent] == ["stop", "market"]
