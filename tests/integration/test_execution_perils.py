"""What costs money at a real exchange: spot stops, other people, leftovers, lost markets."""

from dataclasses import replace
from decimal import Decimal

import pytest
import torch

from live_lab import live_desk, settings
from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.reconcile import update_fills

pytest.importorskip("ccxt")

D = Decimal
HOLD = float("nan")


def covered(desk, symbol=None) -> bool:
    """Return whether one stop closes all whole lots of a long position."""
    (stop,) = desk.stops(symbol)
    held = desk.held(symbol)
    return stop.side == "SELL" and held - D("0.001") < stop.quantity <= held


# Spot: coins that a stop keeps, fees in coins


def test_a_spot_position_keeps_its_stop_although_a_fee_left_no_whole_lot():
    with live_desk("spot") as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        assert desk.held() % D("0.001") != 0  # the fee was paid in coins
        assert covered(desk)
        made = len(desk.book.orders)
        desk.bar(loop, HOLD, bars=3)
        assert covered(desk)
        assert len(desk.book.orders) == made  # and it is not made anew at each bar


def test_spot_coins_that_a_stop_keeps_can_be_sold_by_a_decision():
    with live_desk("spot") as desk:
        with desk.trader() as loop:
            for weight in (0.6, 0.2, 1.0):
                desk.bar(loop, weight)
                assert covered(desk)
            desk.bar(loop, 0.0)
            assert desk.held() < D("0.001")
            assert desk.stops() == []
        assert desk.notices("order-refused", "unprotected", "position-adopted") == []
        desk.exchange.audit()


def test_a_spot_sale_that_is_refused_gives_the_stop_back():
    with live_desk("spot") as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        plain, refused = loop.gate._judged, []

        def judged(parts, *rest):
            if parts[0].leg != "target":
                return plain(parts, *rest)
            refused.append(parts)
            from stormsail.execution.order_gate import Refusal

            return Refusal("repeat", "as often as that")

        loop.gate._judged = judged
        desk.bar(loop, 0.2)
        assert len(refused) == 1
        assert covered(desk)


def test_spot_coins_worth_less_than_the_least_order_are_dust_and_no_alarm():
    with live_desk("spot") as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        desk.book.partial = D("0.9995")
        desk.bar(loop, 0.0)
        assert 0 < desk.held() * D(100) < 5
        asked = len(desk.book.orders)
        desk.bar(loop, HOLD, bars=2)
        assert len(desk.book.orders) == asked
        assert desk.notices("unprotected") == []


# What others do to the account


def test_a_liquidation_at_the_exchange_is_an_alarm():
    with live_desk() as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        desk.book.liquidate()
        desk.bar(loop, 0.0)
        (told,) = desk.notices("liquidated", "position-adopted")
        assert (told.name, told.severity) == ("liquidated", "alarm")
        assert told.words.startswith("sell 60.6")
        desk.bar(loop, 0.0)
        assert len(desk.notices("liquidated")) == 1  # told once


@pytest.mark.parametrize("dialect", ["spot", "perp"])
def test_trades_of_other_people_are_an_alarm_although_their_fills_explain_the_position(dialect):
    with live_desk(dialect) as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        desk.book.external_order("BTCUSDT", D("2.000"), "web")
        desk.bar(loop, HOLD)
        (told,) = desk.notices("position-adopted")
        assert told.severity == "alarm"
        assert told.words.startswith("buy 2.0")
        assert "web_" in told.words
        assert float(loop.standing.state.quantity[0]) == float(desk.held())


@pytest.mark.parametrize("early", [True, False])
def test_a_stop_that_was_triggered_is_told_and_is_nobody_elses(early):
    """It fills as an order of another number, which may be known before the stop's own state."""
    with live_desk() as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        (stop,) = desk.stops()
        plain = loop.feed.collect

        def collect(ts, idle, ahead):
            rows = plain(ts, idle, ahead)
            stop.stop_price = D(1000)
            desk.clock.advance(300.0)
            update_fills(desk.venue, loop._journal, desk.symbols)
            return rows

        if early:
            stop.stop_price = D(1000)
        else:
            loop.feed.collect = collect
        desk.bar(loop, 0.0)
        assert desk.held() == 0
        (told,) = desk.notices("stop-filled", "position-adopted", "liquidated")
        assert (told.name, told.severity) == ("stop-filled", "warning")


@pytest.mark.parametrize("dialect", ["spot", "perp"])
def test_a_stop_that_somebody_canceled_is_placed_again(dialect):
    with live_desk(dialect) as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        desk.book.cancel(desk.stops()[0])
        desk.bar(loop, HOLD)
        assert covered(desk)


@pytest.mark.spec("R24")
@pytest.mark.parametrize(("distance", "replaced"), [(0.1, False), (0.04, True)])
def test_a_position_that_grows_again_has_no_stop_of_a_price_long_gone(distance, replaced):
    """A stop that was placed for more than is held fits by its size, wherever the price is now."""
    with live_desk() as desk, desk.trader(settings(protection__stop_distance=distance)) as loop:
        desk.bar(loop, 0.6)
        (first,) = desk.stops()
        desk.bar(loop, 0.2)
        desk.bar(loop, HOLD)
        desk.bar(loop, 0.4)
        (stop,), price = desk.stops(), desk.book.price("BTCUSDT")
        assert desk.held() < first.quantity
        assert (stop is not first) == replaced
        farthest = price * (1 - D("1.25") * D(repr(distance)))
        assert (first.stop_price < farthest) == replaced
        assert stop.stop_price >= farthest
        assert desk.notices("unprotected") == []


def test_many_stops_that_are_canceled_leave_no_position_without_its_own_for_long():
    """One after the other they would take longer than a position may be without its stop."""
    with live_desk("spot", symbols=2) as desk, desk.trader() as loop:
        desk.bar(loop, 0.4, 0.4)
        cancel, together, answered = desk.venue.cancel, desk.venue.at_once, []

        def slow(symbol, client_id):
            if not answered:  # those beside it wait at the same time
                desk.clock.sleep(0.8)
            answered.append(client_id)
            outcome = cancel(symbol, client_id)
            if not side_by_side:
                answered.clear()
            return outcome

        def at_once(calls):
            side_by_side.append(len(calls))
            ended = together(calls)
            side_by_side.clear()
            answered.clear()
            return ended

        side_by_side: list[int] = []
        desk.venue.cancel, desk.venue.at_once = slow, at_once
        desk.bar(loop, 0.6, 0.6)
        assert all(covered(desk, symbol) for symbol in desk.symbols)
        assert all(desk.held(symbol) > D("0.1") for symbol in desk.symbols)
        assert desk.notices("unprotected", "stop-late") == []


@pytest.mark.spec("D8")
def test_a_position_whose_stop_stands_is_not_closed_because_it_came_late():
    """An exchange on the other side of the world takes a second for what is asked around a fill."""
    with live_desk("spot") as desk, desk.trader() as loop:
        plain = desk.venue.submit

        def submit(request):
            if request.type == "stop":
                desk.clock.sleep(1.3)
            return plain(request)

        desk.venue.submit = submit
        desk.bar(loop, 0.6)
        assert desk.held() > D(50)
        assert covered(desk)
        (told,) = desk.notices("stop-late", "unprotected")
        assert (told.name, told.severity) == ("stop-late", "alarm")
        assert told.words == "it stood 1.3 s after the fill was known"


@pytest.mark.spec("D8")
def test_a_countdown_that_could_not_be_renewed_is_tried_again_at_once():
    with live_desk() as desk, desk.trader(settings(protection__dead_man_s=120.0)) as loop:
        desk.clock.sleep(31.0)
        plain, protector = desk.venue.renew_dead_man, loop.placing.protector

        def silent(*_args):
            raise VenueError("venue-unreachable", wrong="it must answer", found="-", remedy="Wait.")

        desk.venue.renew_dead_man = silent
        with pytest.raises(VenueError):
            protector.renew(desk.symbols)
        desk.venue.renew_dead_man = plain
        assert protector.renew(desk.symbols)
        assert not protector.renew(desk.symbols)


# What is left over


def test_the_small_rest_of_a_position_is_protected_and_closed():
    with live_desk() as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        desk.book.partial = D("0.985")
        desk.bar(loop, 0.0)
        held = desk.held()
        desk.book.cancel(desk.stops()[0])
        desk.bar(loop, HOLD)
        assert 0 < held * D(100) < desk.book.listings["BTCUSDT"].min_notional
        assert covered(desk)
        desk.switch.trip(source="test", words="x", way="flatten")
        assert loop.run(bars=1) == "killed"
        assert desk.held() == 0
        assert desk.notices("unprotected", "not-flat") == []


def test_a_stop_that_is_quicker_than_the_way_out_leaves_no_alarm():
    with live_desk() as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        plain = desk.venue.submit

        def submit(request):
            if desk.held():
                desk.book.close_by_hand("BTCUSDT")
            return plain(request)

        desk.venue.submit = submit
        desk.switch.trip(source="test", words="x", way="flatten")
        assert loop.run(bars=1) == "killed"
        assert desk.notices("stopped")[-1].words == "flatten: confirmed"
        assert desk.notices("not-flat") == []


def test_a_market_order_that_a_crash_refuses_is_tried_again():
    with live_desk() as desk, desk.trader() as loop:
        desk.bar(loop, 0.6)
        from stormsail.execution.venue import Refused

        plain, codes = desk.venue.submit, ["-4131", "-2020"]

        def submit(request):
            return Refused(codes.pop(), "no price near the mark") if codes else plain(request)

        desk.venue.submit = submit
        desk.switch.trip(source="test", words="x", way="flatten")
        assert loop.run(bars=1) == "killed"
        assert desk.held() == 0
        assert desk.notices("not-flat") == []


# One symbol of two


def test_a_market_that_is_gone_does_not_keep_the_others_from_being_closed():
    with live_desk(symbols=2) as desk, desk.trader() as loop:
        desk.bar(loop, 0.6, 0.6)
        here, gone = desk.symbols
        desk.book.listings["ETHUSDT"].status = "DELISTED"
        desk.switch.trip(source="test", words="x", way="flatten")
        assert loop.run(bars=1) == "killed"
        assert desk.held(here) == 0
        assert desk.stops(here) == []
        (last,) = desk.notices("stopped")
        assert (last.severity, gone in last.words) == ("alarm", True)


def test_a_market_that_is_gone_does_not_keep_the_others_from_being_traded():
    with live_desk(symbols=2) as desk, desk.trader() as loop:
        desk.bar(loop, 0.6, 0.6)
        here, gone = desk.symbols
        desk.book.listings["ETHUSDT"].status = "DELISTED"
        before = desk.held(here), desk.held(gone)
        desk.bar(loop, 0.2, 0.2)
        desk.bar(loop, 0.3, 0.3)
        assert D(10) < desk.held(here) < before[0]
        assert desk.held(gone) == before[1]
        assert [own.symbol for own in desk.notices("market-changed")] == [gone]


def test_a_symbol_without_a_price_is_not_traded_and_the_others_are():
    with live_desk("spot", symbols=2) as desk, desk.trader() as loop:
        from stormsail.execution.loopback import Fault

        def rows(right):
            found = right if isinstance(right, list) else [right]
            own = [
                {**row, "bidPrice": "0.0"} if row["symbol"] == "ETHUSDT" else row for row in found
            ]
            return own if isinstance(right, list) else own[0]

        desk.exchange.always["other"] = Fault(
            "rows", rows=lambda r: rows(r) if "bid" in str(r) else r
        )
        desk.bar(loop, 0.6, 0.6)
        assert desk.held(desk.symbols[0]) > 0
        assert desk.held(desk.symbols[1]) == 0
        (told,) = desk.notices("no-price")
        assert (told.symbol, told.severity) == (desk.symbols[1], "alarm")


@pytest.mark.parametrize("dialect", ["spot", "perp"])
def test_a_restart_finds_its_stops_and_sends_nothing(dialect):
    with live_desk(dialect) as desk:
        with desk.trader() as loop:
            desk.bar(loop, 0.6)
        made = len(desk.book.orders)
        with desk.trader(settings()) as loop:
            assert covered(desk)
            desk.bar(loop, HOLD)
        assert len(desk.book.orders) == made
        assert desk.notices("position-adopted", "stop-filled") == []


# How far back an exchange tells


@pytest.mark.parametrize("days", [5, 20])
def test_fills_are_found_however_long_ago_the_last_one_was(days):
    """Futures tell a week from a given time on, and nothing that is older than 90 days."""
    with live_desk(bars=700 + 100 * days) as desk:
        with desk.trader() as loop:
            desk.bar(loop, 0.6)
        first = len(desk.book.fills)
        for _ in range(2):  # one in the middle of the absence, one at its end
            desk.clock.advance(43_200.0 * days)
            desk.exchange.advance()
            desk.book.external_order("BTCUSDT", D("2.000"), "web")
        with desk.trader() as loop:
            desk.bar(loop, HOLD)
            known = loop._journal.rows("SELECT trade_id FROM fills")
            assert len(known) == len(desk.book.fills) > first
            asked = len(desk.exchange.of_group("list"))
            desk.bar(loop, HOLD)
            assert len(desk.exchange.of_group("list")) - asked < 8
        assert float(loop.standing.state.quantity[0]) == float(desk.held())


def test_an_absence_beyond_what_the_exchange_tells_is_no_refusal():
    with live_desk(bars=700 + 100 * 100) as desk:
        with desk.trader() as loop:
            desk.bar(loop, 0.6)
        desk.clock.advance(86_400.0 * 100)
        desk.book.close_by_hand("BTCUSDT")
        with desk.trader() as loop:
            desk.bar(loop, HOLD)
        assert float(loop.standing.state.quantity[0]) == float(desk.held()) == 0.0


def test_an_absence_of_many_bars_asks_the_exchange_once_and_books_its_funding():
    with live_desk(bars=700 + 100 * 20) as desk:
        with desk.trader() as loop:
            desk.bar(loop, 0.6)
        desk.clock.advance(86_400.0 * 20)
        with desk.trader() as loop:
            desk.bar(loop, HOLD)
            (count,) = loop._journal.rows("SELECT count(*) FROM funding")[0]
        assert count == len(desk.book.payments) >= 60


# How an account is set


def test_hedge_mode_is_refused_before_the_first_order():
    with live_desk() as desk:
        desk.book.account.hedged = True
        with pytest.raises(ConfigError) as found, desk.trader():
            pass
        assert (found.value.code, found.value.found) == ("account-margin", "hedge mode")
        desk.book.account.hedged = False
        with desk.trader() as loop:
            desk.book.account.hedged = True  # changed behind the trader's back
            desk.bar(loop, 0.6)
            assert loop._journal.unsettled() == []
        assert desk.notices("order-refused")
        assert desk.book.orders == []


@pytest.mark.parametrize("weight", [0.6, -0.6])
def test_a_position_whose_own_account_is_used_up_is_closed(weight):
    """Other symbols' money keeps it open at the exchange, and nobody would decide on it again."""
    with (
        live_desk(symbols=2) as desk,
        desk.trader(settings(protection__stop_distance=None)) as loop,
    ):
        desk.bar(loop, weight, 0.6)
        standing = loop.standing
        state = standing.state._replace(cash=standing.state.cash - torch.tensor([6000.0, 0.0]))
        loop._standing = replace(standing, state=state)
        desk.bar(loop, weight, 0.6)
        assert float(loop.standing.state.equity[0]) < 0.0
        assert desk.held(desk.symbols[0]) == 0
        assert desk.held(desk.symbols[1]) > 0
        desk.bar(loop, weight, 0.6)
        assert desk.held(desk.symbols[0]) == 0
