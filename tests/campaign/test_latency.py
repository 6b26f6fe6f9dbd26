"""From the close of a bar to the last order sent, by the wall clock, for 20 symbols.

`pytest -s -m campaign tests/campaign/test_latency.py` prints the figures: in memory, and at the
loopback exchange over a real socket, through ccxt. A machine that others use makes them worse.
"""

import gc
import http.client
import sys
import time

import numpy as np
import pytest
import torch

from execution_lab import HOUR, Desk, config, quick_folder

SYMBOLS, BARS = 20, 200
TIMED, SPEED = 100, 400.0
"""Bars at an exchange in another process, and how much faster than time its clock runs."""
LOOSE = {"max_orders_per_minute": 10_000, "max_messages_per_minute": 100_000, "max_repeats": 1000}


def timed(loop, venue, bars):
    """Return milliseconds from a bar's arrival to the last request of an order, bar by bar."""
    length = loop._interval.milliseconds
    plain, spent, orders = venue.submit, [], 0
    sent = []

    def submit(request):
        sent.append(time.perf_counter_ns())
        return plain(request)

    venue.submit = submit
    gc.collect()
    gc.freeze()  # as the command does once it is ready
    try:
        for _ in range(bars):
            loop._refresh_markets()
            loop.accounts.settle_all()
            rows = loop.feed.collect(loop.window.newest + length, loop._idle, loop._ahead)
            sent.clear()
            start = time.perf_counter_ns()
            loop.window.append(rows, {})
            loop._decide()
            if sent:
                spent.append((sent[-1] - start) / 1e6)
                orders += len(sent)
    finally:
        venue.submit = plain
        gc.unfreeze()
    return np.array(spent), orders


def report(place, spent, orders):
    low, high = np.percentile(spent, [50, 99])
    words = f"\n{place}: {len(spent)} bars, {orders} orders, median {low:.1f} ms, p99 {high:.1f} ms"
    sys.stdout.write(words + "\n")


@pytest.fixture
def one_thread():
    """Compute with one thread, as the command does: others would wait for work by spinning."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.campaign
@pytest.mark.usefixtures("one_thread")
def test_a_venue_in_memory():
    with quick_folder() as folder:
        desk = Desk(folder, rows=BARS + 80, symbols=SYMBOLS, stops=False)
        limits = {f"limits__{name}": value for name, value in LOOSE.items()}
        with desk.trader("live", config(**limits)) as loop:
            loop.run(bars=3)
            spent, orders = timed(loop, desk.venue, BARS)
    report("in memory", spent, orders)
    assert len(spent) > BARS // 2
    assert desk.length == HOUR
    assert np.median(spent) <= 50.0


@pytest.mark.campaign
@pytest.mark.parametrize("stops", [False, True], ids=["orders", "stops-and-orders"])
@pytest.mark.usefixtures("one_thread")
def test_the_loopback_exchange_over_a_socket(stops):
    pytest.importorskip("ccxt")
    from stormsail.cli.trading import demo
    from stormsail.execution.ccxt_venue import CcxtVenue
    from stormsail.execution.config import TradingConfig
    from stormsail.execution.connection.rate_budget import RateBudget
    from stormsail.execution.journal import NAME, Binding, Journal
    from stormsail.execution.kill_switch import KillSwitch
    from stormsail.execution.loop import TradingLoop
    from stormsail.execution.loopback import Exchange, Loopback, VirtualClock, candles_of
    from stormsail.execution.loopback.exchange import API_KEY, API_SECRET
    from stormsail.execution.loopback.transport import LoopbackStreams
    from stormsail.execution.order_ids import epoch_of
    from stormsail.execution.secrets import Credentials, Secret
    from stormsail.market.bars import from_columns
    from stormsail.market.interval import Interval
    from stormsail.market.panel import Panel
    from stormsail.market.synthetic import generate

    names = tuple(f"C{number:02d}/USDT:USDT" for number in range(SYMBOLS))
    world = generate(
        "garch_jump", symbols=list(names), bars=demo.HISTORY + BARS + 50,
        interval=Interval.parse(demo.INTERVAL), seed=1, start_ms=demo.START_MS,
    )  # fmt: skip
    panel = Panel.from_bars(world.bars, world.funding)
    clock = VirtualClock((int(panel.ts[demo.HISTORY]) + 1000) * 1_000_000)
    exchange = Exchange(clock=clock, check_limits=False)
    for column, symbol in enumerate(names):
        cells = ("open", "high", "low", "close", "volume")
        table = {name: getattr(panel, name)[:, column].tolist() for name in cells}
        bars = from_columns(symbol, panel.interval, {"ts": panel.ts.tolist(), **table})
        exchange.perp[symbol.partition(":")[0].replace("/", ""), demo.INTERVAL] = candles_of(bars)
    exchange.deposit("perp", "USDT", "10000000")
    settings = TradingConfig.from_mapping(
        {
            "feed": {"burn_in": 8, "poll_s": 30.0},
            "protection": {} if stops else {"stop_distance": None},
            "limits": {
                **LOOSE, "leverage_slack": 0.2, "max_drawdown": 1.0, "max_daily_loss": 1.0,
            },
        }
    )  # fmt: skip
    with quick_folder() as folder, Loopback(exchange) as served:
        venue = CcxtVenue(
            "binanceusdm",
            credentials=Credentials(Secret(API_KEY), Secret(API_SECRET), "test"),
            clock=clock,
            base_url=served.url,
            budget=RateBudget(folder / "budget", limit=1_000_000_000, clock=clock),
            streams=LoopbackStreams(exchange, "perp", clock),
        )
        journal = Journal(
            folder / NAME,
            Binding(venue.account_id(), "loopback", "live", demo.INTERVAL, "USDT"),
            epoch=epoch_of(created_ns=clock.now_ns(), host="here", pid=1),
            now_ms=clock.now_ms(),
        )
        loop = TradingLoop(
            demo.untrained_agent(panel, 0), venue, journal, KillSwitch(folder, clock), settings,
            symbols=names, capital=1_000_000.0, clock=clock,
        )  # fmt: skip
        try:
            loop.start()
            loop.run(bars=3)
            spent, orders = timed(loop, venue, 60)
        finally:
            venue.close()
            journal.close()
    report(f"loopback over a socket, {'stops and orders' if stops else 'orders'}", spent, orders)
    assert len(spent) > 30


@pytest.fixture
def sent(monkeypatch):
    """Note when the last byte of each order of the agent has left: wall clock, processor time."""
    plain_put = http.client.HTTPConnection.putrequest
    plain_send, stamps = http.client.HTTPConnection.send, {}

    def putrequest(self, method, url, *args, **kwargs):
        self.is_order = method == "POST" and url.partition("?")[0].endswith("/order")
        self.number = time.perf_counter_ns(), id(self)
        return plain_put(self, method, url, *args, **kwargs)

    def send(self, data):
        plain_send(self, data)
        if getattr(self, "is_order", False):
            stamps[self.number] = time.perf_counter_ns(), time.process_time_ns()

    monkeypatch.setattr(http.client.HTTPConnection, "putrequest", putrequest)
    monkeypatch.setattr(http.client.HTTPConnection, "send", send)
    return stamps


@pytest.mark.campaign
@pytest.mark.parametrize("stops", [False, True], ids=["orders", "stops-and-orders"])
@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.usefixtures("one_thread")
def test_an_exchange_in_another_process(connections, stops, sent, monkeypatch):
    """Every question between the close and the last order counts: positions, funding, prices.

    With stops the order of a position that grows waits until its stop stands. What is asked is at
    most 50 ms at the 99th percentile; it is held by processor time over the connections that a
    trader opens by itself, without stops. The other figures are printed.
    """
    pytest.importorskip("ccxt")
    from latency_lab import NAMES, drawn_panel, exchange_elsewhere
    from stormsail.cli.trading import demo
    from stormsail.execution import ccxt_venue
    from stormsail.execution.config import TradingConfig
    from stormsail.execution.connection.rate_budget import RateBudget
    from stormsail.execution.journal import NAME, Binding, Journal
    from stormsail.execution.kill_switch import KillSwitch
    from stormsail.execution.loop import TradingLoop
    from stormsail.execution.loopback.exchange import API_KEY, API_SECRET
    from stormsail.execution.order_ids import epoch_of
    from stormsail.execution.secrets import Credentials, Secret

    plain_open = ccxt_venue.open_client

    def open_client(*args, **kwargs):
        client = plain_open(*args, **kwargs)
        client.options["recvWindow"] = 6_000_000  # a clock this fast passes minutes in a request
        return client

    monkeypatch.setattr(ccxt_venue, "open_client", open_client)
    loose = {"leverage_slack": 0.2, "max_drawdown": 1.0, "max_daily_loss": 1.0, "price_collar": 1.0}
    settings = TradingConfig.from_mapping(
        {
            "feed": {"burn_in": 8, "poll_s": 30.0, "max_clock_offset_ms": 1e9},
            "protection": {"deadline_s": 60.0} if stops else {"stop_distance": None},
            "limits": {**LOOSE, **loose, "max_quote_age_s": 3600.0},
        }
    )
    count = TIMED + 50
    panel, wall, own, orders = drawn_panel(count), [], [], 0
    with quick_folder() as folder, exchange_elsewhere(bars=count, speed=SPEED) as (url, clock):
        venue = ccxt_venue.CcxtVenue(
            "binanceusdm",
            credentials=Credentials(Secret(API_KEY), Secret(API_SECRET), "test"),
            clock=clock,
            base_url=url,
            budget=RateBudget(folder / "budget", limit=1_000_000_000, clock=clock),
            connections=connections,
        )
        journal = Journal(
            folder / NAME,
            Binding(venue.account_id(), "loopback", "live", demo.INTERVAL, "USDT"),
            epoch=epoch_of(created_ns=clock.now_ns(), host="here", pid=1),
            now_ms=clock.now_ms(),
        )
        loop = TradingLoop(
            demo.untrained_agent(panel, 0), venue, journal, KillSwitch(folder, clock), settings,
            symbols=NAMES, capital=1_000_000.0, clock=clock,
        )  # fmt: skip
        try:
            loop.start()
            loop.run(bars=3)
            gc.collect()
            gc.freeze()
            for _ in range(TIMED):
                ts = loop.window.newest + loop._interval.milliseconds
                loop._refresh_markets()
                loop.accounts.settle_all()
                rows = loop.feed.collect(ts, loop._idle, loop._ahead)
                sent.clear()
                start, spent = time.perf_counter_ns(), time.process_time_ns()
                loop.window.append(rows, loop.feed.due_rates(ts))
                loop._decide()
                orders += len(sent)
                if sent:
                    wall.append((max(at for at, _ in sent.values()) - start) / 1e6)
                    own.append((max(at for _, at in sent.values()) - spent) / 1e6)
        finally:
            gc.unfreeze()
            venue.close()
            journal.close()
    what = f"{connections} connections, {'stops and orders' if stops else 'orders'}"
    report(f"{what}, wall clock", np.array(wall), orders)
    report(f"{what}, own processor time", np.array(own), orders)
    assert len(wall) > TIMED // 3
    if connections == ccxt_venue.CONNECTIONS and not stops:
        assert np.percentile(own, 99) <= 50.0
