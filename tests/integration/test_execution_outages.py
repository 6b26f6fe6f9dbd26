"""The loop while something fails for long: streams, markets, bars, clock, stops, the way out."""

from dataclasses import replace
from decimal import Decimal

import pytest

from execution_lab import HOUR, Desk, MemoryVenue, config, quick_folder
from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.decisions.feed import BarFeed
from stormsail.execution.operator.status import Notice
from stormsail.execution.protection import Protector
from stormsail.execution.reconcile import Reconciled, check_capital
from stormsail.execution.venue import (
    Balance,
    Capabilities,
    Order,
    Position,
    Refused,
    StreamInterrupted,
)
from stormsail.market.interval import Interval

D = Decimal


@pytest.fixture
def folder():
    with quick_folder() as path:
        yield path


def notices(desk, name):
    return [own for own in desk.seen if isinstance(own, Notice) and own.name == name]


class StreamingVenue(MemoryVenue):
    """A venue whose streams break while it is down, and say so at every try to connect."""

    looks = 0
    gone = range(3, 9)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, streams=True)

    def events(self, timeout_s):
        self._clock.sleep(timeout_s)
        self.looks += 1
        self.down = self.looks in self.gone
        return [StreamInterrupted("no connection")] if self.down else []


def test_streams_and_questions_that_fail_together_do_not_end_trading(folder):
    desk = Desk(folder, symbols=1)
    desk.venue.__class__ = StreamingVenue
    with desk.trader("live", config(feed__poll_s=60.0)) as loop:
        asked = []
        plain = desk.venue.trades

        def trades(symbol, *, since_ms):
            asked.append(desk.venue.looks)
            return plain(symbol, since_ms=since_ms)

        desk.venue.trades = trades
        assert loop.run(bars=2) == "finished"
        assert loop.gate.state == "ACTIVE"
    assert len(notices(desk, "stream-interrupted")) == 6
    assert 9 in asked  # what the streams did not tell is asked for once there is an answer


def test_a_market_that_is_gone_is_waited_for_however_long_it_takes(folder):
    desk = Desk(folder, symbols=1)
    with desk.trader("live", config(feed__poll_s=1.0)) as loop:
        loop.run(bars=1)
        plain, count = desk.venue.markets, iter(range(3000))

        def markets(symbols):
            if next(count) < 1500:
                words = {"wrong": "it must be a market", "found": "none", "remedy": "Leave it out."}
                raise VenueError("venue-symbol", **words)
            return plain(symbols)

        desk.venue.markets = markets
        assert loop.run(bars=1) == "finished"
    assert next(count) == 1501
    assert [own.severity for own in notices(desk, "venue-silent")] == ["alarm"]  # told once


def test_a_symbol_whose_bars_stop_is_not_traded_on_its_last_one(folder):
    desk = Desk(folder, symbols=2, stops=False)
    gone, here = desk.symbols
    with desk.trader("live") as loop:
        loop.run(bars=2)
        last = loop.window.newest
        desk.venue._bars[gone] = desk.venue._bars[gone].between(0, last + 1)
        desk.venue.requests.clear()
        for missing in (1, 2, 3):
            loop.run(bars=1)
            assert loop.window.newest == last + missing * HOUR
            views = loop.placing.views()
            assert missing <= views[gone].data_age_bars < missing + 0.5
            assert 0.0 <= views[here].data_age_bars < 0.5
            assert loop.data_age_bars() == views[gone].data_age_bars
        loop.gate._bounds = loop.gate._bounds._replace(data_age_bars=0.5)
        loop.run(bars=8)
        rows = loop._journal.rows(
            "SELECT symbol, refusal FROM decisions WHERE ts > ? AND refusal != ''", last + 3 * HOUR
        )
        sent = {request.symbol for request in desk.venue.requests if request.type == "market"}
    assert {str(symbol) for symbol, _ in rows} <= {gone}
    assert all(str(words).startswith("stale-data") for _, words in rows)
    assert here in sent


def test_no_bar_in_the_whole_window_is_as_old_as_the_window(folder):
    desk = Desk(folder, symbols=1)
    with desk.trader("live") as loop:
        panel = loop.window.panel
        loop.window.panel = replace(panel, tradable=panel.tradable & False)
        assert loop.data_age_bars() == pytest.approx(len(panel.ts), abs=0.1)


@pytest.mark.parametrize("skew", [-600_000, 600_000])
def test_a_clock_that_goes_off_while_trading_allows_reducing_only(folder, skew):
    desk = Desk(folder, symbols=1)
    with desk.trader("live", config(feed__poll_s=60.0)) as loop:
        loop.run(bars=2)
        desk.venue.skew_ms = skew
        newest = loop.window.newest
        assert loop.run(bars=1) == "finished"
        assert loop.gate.state == "REDUCING"
        assert loop.feed.offset_ms == -skew
        assert loop.window.newest == newest + HOUR
        assert desk.venue.now_ms() >= newest + 2 * HOUR  # it had closed by the exchange's clock
        desk.venue.skew_ms = 0
        loop.run(bars=1)
        assert loop.gate.state == "ACTIVE"
    told = notices(desk, "clock-offset")
    assert [(own.severity, own.words) for own in told] == [
        ("alarm", f"the clock of this machine is {-skew:+.0f} ms from the exchange's")
    ]


@pytest.mark.parametrize("step_s", [-3600, 3600, 5400])
@pytest.mark.parametrize("silent", [0, 4])
def test_a_clock_that_is_set_while_a_bar_is_waited_for_moves_no_bar(folder, step_s, silent):
    """Forwards: no bar is missing before it has closed. Backwards: none is waited for too long."""
    desk = Desk(folder, symbols=1)
    with desk.trader("live", config(feed__poll_s=30.0)) as loop:
        loop.run(bars=1)
        newest, plain, slept = loop.window.newest, desk.clock.sleep, []

        def sleep(seconds):
            slept.append(seconds)
            assert len(slept) < 1000, "the trader waits for ever"
            if len(slept) == 10:
                desk.clock.set_now(desk.clock.now_ns() + step_s * 10**9)
                desk.venue.skew_ms -= 1000 * step_s
            desk.venue.down = 10 <= len(slept) < 10 + silent  # nobody can be asked at first
            plain(seconds)

        desk.clock.sleep = sleep
        assert loop.run(bars=1) == "finished"
        assert loop.window.newest == newest + HOUR
        assert 0 <= desk.venue.now_ms() - (newest + 2 * HOUR) < 60_000
        assert notices(desk, "bar-missing") == []
        assert loop.gate.state == "REDUCING"  # until somebody sets it right
    assert [own.severity for own in notices(desk, "clock-offset")] == ["alarm"]


def after_the_fill(monkeypatch):
    """Let stops be placed after the fill, as on spot."""
    monkeypatch.setattr(Protector, "before_entry", property(lambda _self: False))


def stops_of(desk) -> list[Order]:
    return [own for own in desk.venue.book.values() if own.type == "stop" and own.status == "open"]


def covered(desk) -> bool:
    held = desk.venue.held[desk.symbols[0]]
    return bool(held) and [own.quantity for own in stops_of(desk)] == [abs(held)]


@pytest.mark.parametrize("fault", ["silent", "late"])
def test_an_order_that_was_filled_without_an_answer_gets_its_stop(folder, monkeypatch, fault):
    after_the_fill(monkeypatch)
    desk = Desk(folder, symbols=1)
    with desk.trader("live", config(feed__poll_s=30.0)) as loop:
        desk.venue.fault = lambda request: fault if request.type == "market" else None
        loop.run(bars=1)
        desk.venue.fault = lambda _request: None
        for _ in range(3):
            loop._idle(30.0)
        assert covered(desk)


def test_a_stop_that_could_not_be_placed_is_tried_again(folder, monkeypatch):
    after_the_fill(monkeypatch)
    desk = Desk(folder, symbols=1)
    plain = desk.venue.trades
    with desk.trader("live", config(feed__poll_s=30.0)) as loop:

        def silent(symbol, *, since_ms):
            raise VenueError("venue-unreachable", wrong="-", found="-", remedy="-")

        desk.venue.trades = silent
        loop.run(bars=1)
        assert desk.venue.held[desk.symbols[0]]
        assert stops_of(desk) == []
        assert len(notices(desk, "fills-unknown")) == 1
        desk.venue.trades = plain
        loop._idle(30.0)
        assert covered(desk)
        asked = len(desk.venue.requests)
        loop._idle(30.0)
        assert len(desk.venue.requests) == asked  # once each has its stop, that is all


def test_a_position_that_could_not_be_closed_is_told_and_tried_again(folder, monkeypatch):
    after_the_fill(monkeypatch)
    desk = Desk(folder, symbols=1)

    def fault(request):
        return "refuse" if desk.venue.held[request.symbol] else None

    desk.venue.fault = fault
    with desk.trader("live", config(feed__poll_s=30.0)) as loop:
        loop.run(bars=1)
        assert [own.words for own in notices(desk, "unprotected")] == [
            "no stop in time: the position was to be closed, and is not: insufficient balance"
        ]
        desk.venue.fault = lambda _request: None
        loop._idle(30.0)
        assert covered(desk)


@pytest.mark.parametrize("code", ["not-sent", "-1003", "-1021"])
def test_the_way_out_is_tried_again_while_time_may_help(folder, code):
    desk = Desk(folder, symbols=1)
    with desk.trader("live") as loop:
        loop.run(bars=3)
        assert desk.venue.held[desk.symbols[0]]
        desk.switch.trip(source="test", words="x", way="flatten")
        plain, refused = desk.venue.submit, []

        def submit(request):
            if len(refused) < 3:
                refused.append(request.client_id)
                return Refused(code, "not now")
            return plain(request)

        desk.venue.submit = submit
        assert loop.run(bars=1) == "killed"
    assert desk.venue.held[desk.symbols[0]] == 0
    assert len({*refused, desk.venue.requests[-1].client_id}) == 4  # each is another order
    assert notices(desk, "not-flat") == []
    assert notices(desk, "stopped")[-1].words == "flatten: confirmed"


def test_what_is_refused_for_good_is_not_called_closed(folder):
    desk = Desk(folder, symbols=1)
    with desk.trader("live") as loop:
        loop.run(bars=3)
        desk.switch.trip(source="test", words="x", way="flatten")
        desk.venue.fault = lambda _request: "refuse"
        assert loop.run(bars=1) == "killed"
    last = notices(desk, "stopped")[-1]
    assert last.words == "flatten: not all of it, insufficient balance"
    assert last.severity == "alarm"


def test_what_was_held_before_the_first_decision_is_closed_as_well(folder):
    desk = Desk(folder, symbols=1)
    desk.venue.held[desk.symbols[0]] = D("2.000")
    with desk.trader("live") as loop:
        desk.switch.trip(source="test", words="x", way="flatten")
        assert loop.run(bars=1) == "killed"
    sent = [(own.side, own.quantity, own.reduce_only) for own in desk.venue.requests]
    assert sent == [("sell", D("2.000"), True)]
    assert desk.venue.held[desk.symbols[0]] == 0


def test_rearming_does_not_stop_what_was_begun(folder):
    desk = Desk(folder, symbols=1)
    with desk.trader("live") as loop:
        loop.run(bars=3)
        desk.switch.trip(source="test", words="x", way="flatten")
        plain, waits = desk.clock.sleep, []

        def sleep(seconds):
            waits.append(seconds)
            desk.venue.down = len(waits) < 3
            desk.switch.rearm()
            plain(seconds)

        desk.clock.sleep, desk.venue.down = sleep, True
        assert loop.run(bars=1) == "killed"
    assert len(waits) >= 3
    assert desk.venue.held[desk.symbols[0]] == 0
    assert notices(desk, "stopped")[-1].words == "flatten: confirmed"


def test_a_switch_is_rearmed_once_the_words_are_on_disk(folder, monkeypatch):
    from stormsail.cli.trading.stop import rearm
    from stormsail.execution.journal import Journal

    desk = Desk(folder, symbols=1)
    desk.journal().close()
    desk.switch.trip(source="test", words="x")

    def full(*_args, **_kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(Journal, "add_action", full)
    with pytest.raises(OSError, match="no space left"):
        rearm(folder, words="looked at it")
    assert desk.switch.tripped()


def test_more_capital_than_the_account_holds_is_refused(folder):
    desk = Desk(folder, symbols=1)
    desk.venue.cash = D("29999.99")
    with pytest.raises(ConfigError) as found, desk.trader("live"):
        pass
    assert found.value.code == "config-value"
    assert found.value.found == "30,000.00 where 29,999.99 USDT is there"
    desk.venue.cash = D(30_000)
    with desk.trader("live") as loop:
        loop.run(bars=1)
    desk.venue.cash = D(20_000)  # lost while trading: that is for the limits
    with desk.trader("live"):
        pass


def test_coins_of_a_spot_account_and_open_profits_are_part_of_its_capital(folder):
    desk = Desk(folder, symbols=1)
    symbol = desk.symbols[0]
    cash = {"USDT": Balance("USDT", D(900), D(100))}

    def check(kind, position, capital):
        markets = {symbol: replace(desk.venue.market(symbol), kind=kind)}
        found = Reconciled(0.0, markets, {symbol: position}, cash, (), ())
        check_capital(found, {symbol: 20.0}, capital)

    for kind, position, worth in (
        ("spot", Position(symbol, D("2.5")), 1050.0),
        ("perpetual", Position(symbol, D("-2.5"), unrealised=D(-30)), 970.0),
    ):
        check(kind, position, worth)
        with pytest.raises(ConfigError, match="must not be more than the account holds"):
            check(kind, position, worth + 0.01)


@pytest.mark.parametrize(("interval", "asked"), [("15m", [0, 60]), ("1h", [0, 60]), ("2h", [0])])
def test_funding_rates_are_asked_for_when_one_may_have_settled(folder, interval, asked):
    desk = Desk(folder, symbols=2, interval=interval)
    questions = []

    def funding_rates(symbol, *, since_ms):
        assert since_ms % feed._interval.milliseconds == 0
        questions.append(symbol)
        return [(1, 0.1)]

    desk.venue.funding_rates = funding_rates
    feed = BarFeed(desk.venue, desk.symbols, Interval.parse(interval), desk.clock, config().feed)
    midnight = desk.start_ms // (24 * HOUR) * 24 * HOUR
    length = feed._interval.milliseconds
    found = []
    for ts in range(midnight, midnight + 2 * HOUR, length):
        questions.clear()
        rates = feed.due_rates(ts)
        assert list(rates) == list(desk.symbols)
        assert questions in ([], list(desk.symbols))
        assert all(own == (((1, 0.1),) if questions else ()) for own in rates.values())
        if questions:
            found.append((ts - midnight) // 60_000)
    assert found == asked
