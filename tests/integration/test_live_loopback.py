"""A live account through the real ccxt client: streams, stops, a restart, the way out."""

from decimal import Decimal

import pytest

from execution_lab import quick_folder
from stormsail.cli.trading import demo
from stormsail.execution.config import TradingConfig
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.loop import TradingLoop
from stormsail.execution.order_ids import epoch_of
from stormsail.execution.reconcile import filled_quantity
from stormsail.market.bars import from_columns

pytest.importorskip("ccxt")

SETTINGS = TradingConfig.from_mapping(
    {
        "feed": {"burn_in": 8, "poll_s": 30.0},
        "limits": {"leverage_slack": 0.2, "max_drawdown": 1.0, "max_daily_loss": 1.0},
    }
)


@pytest.fixture
def market():
    """A drawn market at the loopback exchange, with money, and an account at it."""
    from stormsail.execution.ccxt_venue import CcxtVenue
    from stormsail.execution.connection.rate_budget import RateBudget
    from stormsail.execution.loopback import Exchange, VirtualClock, candles_of
    from stormsail.execution.loopback.exchange import API_KEY, API_SECRET
    from stormsail.execution.loopback.transport import LoopbackStreams, in_process
    from stormsail.execution.secrets import Credentials, Secret

    panel = demo.drawn_bars(0)
    clock = VirtualClock((int(panel.ts[demo.HISTORY]) + 1000) * 1_000_000)
    exchange = Exchange(clock=clock)
    for column, symbol in enumerate(panel.symbols):
        names = ("open", "high", "low", "close", "volume")
        table = {name: getattr(panel, name)[:, column].tolist() for name in names}
        bars = from_columns(symbol, panel.interval, {"ts": panel.ts.tolist(), **table})
        market_id = symbol.partition(":")[0].replace("/", "")
        exchange.perp[market_id, str(panel.interval)] = candles_of(bars)
    exchange.deposit("perp", "USDT", "100000")
    with quick_folder() as folder:
        venue = CcxtVenue(
            "binanceusdm",
            credentials=Credentials(Secret(API_KEY), Secret(API_SECRET), "test"),
            clock=clock,
            base_url="http://127.0.0.1:1",
            budget=RateBudget(folder / "budget", limit=2400, clock=clock),
            streams=LoopbackStreams(exchange, "perp", clock),
            adapter=in_process(exchange),
        )
        yield folder, panel, clock, exchange, venue
        venue.close()


def test_a_live_account_trades_restarts_and_is_flat_at_the_end(market):
    folder, panel, clock, exchange, venue = market
    agent = demo.untrained_agent(panel, 0)
    switch = KillSwitch(folder, clock)
    for turn in range(2):
        journal = Journal(
            folder / NAME,
            Binding(venue.account_id(), "loopback", "live", "15m", "USDT"),
            epoch=epoch_of(created_ns=clock.now_ns(), host="here", pid=turn),
            now_ms=clock.now_ms(),
        )
        loop = TradingLoop(
            agent,
            venue,
            journal,
            switch,
            SETTINGS,
            symbols=panel.symbols,
            capital=10_000.0,
            clock=clock,
        )
        loop.start()
        assert loop.run(bars=6) == "finished"
        held = venue.positions(panel.symbols)
        for symbol in panel.symbols:
            quantity = held[symbol].quantity
            assert filled_quantity(journal, symbol) == quantity
            stops = [order for order in venue.open_orders(symbol) if order.type == "stop"]
            covered = sum((stop.quantity for stop in stops), Decimal(0))
            assert covered >= abs(quantity)
            assert all(stop.reduce_only for stop in stops)
        assert journal.unsettled() == []
        if turn:
            switch.trip(source="test", words="enough", way="flatten")
            assert loop.run(bars=1) == "killed"
        journal.close()
    assert {position.quantity for position in venue.positions(panel.symbols).values()} == {0}
    assert [order for symbol in panel.symbols for order in venue.open_orders(symbol)] == []
    exchange.audit()  # its own ledger adds up, and no route was unknown
