"""A trader's order path against the loopback exchange: real ccxt, one seed, one ledger as oracle.

One ccxt client serves many scenarios, because making one costs more than a scenario. The clock only
runs forward, and each scenario gets a new exchange, a new journal and a new script of faults.
"""

import itertools
from decimal import Decimal
from pathlib import Path

import numpy as np

from stormsail.core.errors import StormsailError, VenueError
from stormsail.execution.ccxt_venue import CcxtVenue
from stormsail.execution.config import Feed
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.loopback import Exchange, VirtualClock, candles
from stormsail.execution.loopback.exchange import API_KEY, API_SECRET
from stormsail.execution.loopback.faults import draw_faults
from stormsail.execution.loopback.limits import BAN_MS
from stormsail.execution.loopback.transport import LoopbackStreams, in_process
from stormsail.execution.order_gate import AccountView, MarketView, OrderGate
from stormsail.execution.order_ids import epoch_of
from stormsail.execution.order_limits import OrderLimits
from stormsail.execution.protection import OrderNames
from stormsail.execution.reconcile import exposures, reconcile, update_fills, update_orders
from stormsail.execution.secrets import Credentials, Secret
from stormsail.execution.venue import Accepted, OrderChanged, OrderRequest
from stormsail.market.interval import Interval

START_MS = 1_699_999_200_000
MINUTE = 60_000
M1 = Interval.parse("1m")
TAPE = candles(11, 20_000, start=START_MS - 1000 * MINUTE, step=MINUTE)
NAMES = {"spot": ("binance", "BTC/USDT"), "perp": ("binanceusdm", "BTC/USDT:USDT")}
CAPITAL = 1000.0
MARKET_ID = "BTCUSDT"
BOUNDS = OrderLimits(max_repeats=50, max_drawdown=1.0, max_daily_loss=1.0).resolved(CAPITAL * 50)
FEED = Feed(visible_after_s=60.0)
PATIENCE_S = 240.0
"""Virtual seconds after the last order in which everything must be settled."""


def credentials():
    return Credentials(Secret(API_KEY), Secret(API_SECRET), "test")


def exchange_at(clock, market_ids=(MARKET_ID,), **deposits):
    """Return an exchange with one drawn market, or some alike, in both dialects, and money."""
    exchange = Exchange(clock=clock)
    for dialect in ("spot", "perp"):
        for market_id in market_ids:
            exchange.ledgers[dialect].tapes[market_id, "1m"] = TAPE
        exchange.deposit(dialect, "USDT", deposits.get(dialect, "100000"))
    return exchange


class _Changing:
    """An exchange that is another one in each scenario."""

    def __init__(self):
        self.current = None

    def __getattr__(self, name):
        return getattr(self.current, name)


class Lab:
    """A clock and a client for each dialect, for many scenarios.

    With more than one symbol their orders are sent together, over so many connections.
    """

    def __init__(self, folder: Path, *, coins=("BTC",), connections: int = 1):
        self.folder, self.coins, self.connections = folder, coins, connections
        self.clock = VirtualClock(START_MS * 1_000_000)
        self.numbers = itertools.count()
        self.current = _Changing()
        adapter = in_process(self.current)
        self.venues, self.streams = {}, {}
        for dialect, (name, _symbol) in NAMES.items():
            self.venues[dialect] = CcxtVenue(
                name,
                credentials=credentials(),
                clock=self.clock,
                base_url="http://127.0.0.1:1",
                budget=RateBudget(folder / f"budget-{dialect}", limit=2400, clock=self.clock),
                timeout_s=5.0,
                adapter=adapter,
                connections=connections,
            )

    def scenario(self, seed: int, *, faults: int) -> "Scenario":
        """Return a scenario at a time at which no ban or rate limit of the last one is left."""
        self.clock.advance(130.0)
        assert self.clock.now_ms() < int(TAPE[-1][0]), "the tape is over: make a new lab"
        market_ids = [f"{coin}USDT" for coin in self.coins]
        self.current.current = exchange_at(self.clock, market_ids)
        return (Scenario if len(self.coins) == 1 else WideScenario)(self, seed, faults)

    def close(self):
        for venue in self.venues.values():
            venue.close()


class Scenario:
    """Some orders of one trader while something goes wrong, and the comparison at the end."""

    def __init__(self, lab: Lab, seed: int, faults: int):
        self.lab, self.seed = lab, seed
        self.draw = np.random.Generator(np.random.PCG64([20, seed]))
        self.dialect = "spot" if self.draw.random() < 0.5 else "perp"
        self.exchange, self.clock = lab.current.current, lab.clock
        self.book = self.exchange.ledgers[self.dialect]
        self.symbol = NAMES[self.dialect][1]
        self.symbols = [self.symbol.replace("BTC", coin) for coin in lab.coins]
        self.venue = lab.venues[self.dialect]
        streams = LoopbackStreams(self.exchange, self.dialect, self.clock)
        self.venue._streams = streams
        self.venue.watch(self.symbols, M1)
        self.drawn = draw_faults(self.draw, faults)
        self.names = [name for name, _fault in self.drawn.values()]
        self.outcomes, self.events = [], []
        number = next(lab.numbers)
        folder = lab.folder / f"s{number}"
        folder.mkdir()
        now = self.clock.now_ns()
        self.journal = Journal(
            folder / NAME,
            Binding(self.venue.account_id(), "loopback", "live", "1m", "USDT"),
            epoch=epoch_of(created_ns=now, host="lab", pid=number),
            now_ms=now // 1_000_000,
        )
        switch = KillSwitch(folder, self.clock)
        self.gate = OrderGate(
            self.venue, self.journal, switch, BOUNDS, symbols=self.symbols, clock=self.clock
        )
        self.order_names = OrderNames(self.venue.account_id(), "agent", self.journal)

    def run(self) -> None:
        """Start, trade, let everything settle, and compare."""
        try:
            self._start()
            self.exchange.script = {at: fault for at, (_name, fault) in self.drawn.items()}
            for step in range(int(self.draw.integers(2, 5))):
                self._step(step)
                self.clock.advance(float(self.draw.uniform(0.0, 20.0)))
            self._settle()
            self._compare()
        except Exception as error:
            error.add_note(f"seed {self.seed}, {self.dialect}: {', '.join(self.names)}")
            raise
        finally:
            self.journal.close()

    def _start(self) -> None:
        """Get ready: by the whole recovery in every eighth scenario, which is mostly questions."""
        if self.seed % 8 == 0:
            now = reconcile(self.venue, self.journal, self.symbols, self.clock, FEED)
            self.markets = dict(now.markets)
        else:
            self.markets = dict(self.venue.markets(self.symbols))
        self.gate.ready = True

    def _step(self, step: int) -> None:
        """Send one order, cancel one, or only look."""
        kind = self.draw.random()
        try:
            quote = self.venue.quote(self.symbol)
            positions = self.venue.positions([self.symbol])
        except StormsailError:
            return  # no price, no position: no order
        lot = self.markets[self.symbol].lot
        quantity = lot * int(self.draw.integers(8, 40))
        side = "buy" if step == 0 or self.draw.random() < 0.5 else "sell"
        market = self.markets[self.symbol]
        view = {self.symbol: MarketView(market, quote.mid, 0.0, 0.5)}
        account = AccountView(
            Decimal(100_000), Decimal(100_000), Decimal(100_000),
            exposures(positions, self.markets, self.journal.pending()),
            {self.symbol: quote.mid},
        )  # fmt: skip
        leg, stop, reduce = "target", None, False
        if kind > 0.75 and positions[self.symbol].quantity >= 8 * lot:
            held = positions[self.symbol].quantity
            leg, side, quantity = "stop", "sell", held // lot * lot
            stop = (quote.mid * Decimal("0.9")).quantize(market.tick)
            reduce = self.dialect == "perp"
        proposal = self.order_names.proposal(
            START_MS + step * MINUTE, leg, quote.mid, symbol=self.symbol, side=side,
            quantity=quantity, stop_price=stop, reduce_only=reduce,
        )  # fmt: skip
        if kind < 0.2 and leg == "target":  # rests, so that it can be canceled
            away = Decimal("0.985") if side == "buy" else Decimal("1.015")
            price = (quote.mid * away).quantize(market.tick)
            request = OrderRequest(
                proposal.request.client_id, self.symbol, side, "limit", quantity, price=price
            )
            proposal = type(proposal)(request, proposal.bar_ms, leg, 0, quote.mid)
        [outcome] = self.gate.send([proposal], view, account)
        self.outcomes.append(outcome)
        rests = isinstance(outcome, Accepted) and outcome.order.status == "open"
        if rests and self.draw.random() < 0.7:
            self.outcomes.append(self.gate.cancel(self.symbol, proposal.request.client_id))

    def _settle(self) -> None:
        """Ask until nothing is unsettled; everything must be within the patience."""
        began = self.clock.monotonic_ns()
        while True:
            self.events += self.venue.events(0.0)
            try:
                now = self.clock.now_ms()
                left = update_orders(self.venue, self.journal, now_ms=now, visible_after_s=60.0)
                if not left:
                    break
            except VenueError:
                pass
            assert self._waited_s(began) < PATIENCE_S, "unknown for ever"
            self.clock.advance(7.0)
        while True:
            before = len(self.exchange.struck), self.clock.monotonic_ns()
            try:
                now = self.clock.now_ms()
                update_orders(self.venue, self.journal, now_ms=now, visible_after_s=60.0)
                update_fills(self.venue, self.journal, self.symbols)
                self.positions = self.venue.positions(self.symbols)
                self.balances = self.venue.balances()
                # Neither did anything happen nor did a price move between the questions.
                if before == (len(self.exchange.struck), self.clock.monotonic_ns()):
                    break
            except VenueError:
                pass
            assert self._waited_s(began) < PATIENCE_S, "unknown for ever"
            self.clock.advance(7.0)

    def _waited_s(self, began_ns: int) -> float:
        """Return the time since then, without that by which requests on the way prolonged a ban."""
        waited = (self.clock.monotonic_ns() - began_ns) / 1e9
        return waited - self.exchange.banned * BAN_MS / 1000

    def _compare(self) -> None:
        """Compare the journal with the exchange's own ledger, to the unit."""
        self.exchange.audit()
        # What other connections have on the way when a ban begins cannot be called back.
        bans = sum(fault.kind == "ban" or fault.status == 418 for *_, fault in self.exchange.struck)
        on_the_way = bans * (self.lab.connections - 1)
        assert self.exchange.banned <= on_the_way, "a request was sent during a ban"
        book = self.book
        intents = {
            str(row[0]): row
            for row in self.journal.rows(
                "SELECT client_id, kind, status, filled, quantity FROM order_states"
            )
        }
        own = [o for o in book.orders if not o.external and not o.client_id.startswith("algo_")]
        names = [order.client_id for order in own]
        assert len(names) == len(set(names)), "an order was sent twice"
        assert set(names) <= set(intents), "an order that no intent explains"
        by_name = {order.client_id: order for order in own}
        for name, kind, status, filled, _quantity in intents.values():
            order = by_name.get(str(name))
            if kind in ("refused", "absent"):
                assert order is None, f"lost: {kind}, but the exchange has it"
                continue
            assert order is not None, "an order that the exchange never had"
            assert kind is not None
            assert Decimal(str(filled)) == order.executed
            assert (status == "open") == order.is_open
        self._compare_money()

    def _compare_money(self) -> None:
        book, fills = self.book, {}
        for row in self.journal.rows("SELECT trade_id, quantity, price, fee, side FROM fills"):
            number, quantity, price, fee, side = (str(value) for value in row)
            sign = 1 if side == "buy" else -1
            fills[int(number)] = (sign * Decimal(quantity), Decimal(price), Decimal(fee))
        truth = {f.trade_id: (f.sign * f.quantity, f.price, f.fee) for f in book.fills}
        assert fills == truth
        for coin, symbol in zip(self.lab.coins, self.symbols, strict=True):
            assert self.positions[symbol].quantity == book.position(f"{coin}USDT")
        if self.dialect == "perp":
            assert self.balances["USDT"].total == book.account.wallet
        else:
            totals = {name: value.total for name, value in self.balances.items()}
            assert totals == book.account.balances
        streamed = {
            int(e.trade.trade_id) for e in self.events if isinstance(e, OrderChanged) and e.trade
        }
        assert streamed <= set(truth)


class WideScenario(Scenario):
    """Orders of many symbols that leave side by side, each over a connection of its own."""

    def _step(self, step: int) -> None:
        try:
            quotes = self.venue.quotes(self.symbols)
            positions = self.venue.positions(self.symbols)
        except StormsailError:
            return
        views = {
            own: MarketView(self.markets[own], quotes[own].mid, 0.0, 0.5) for own in self.symbols
        }
        account = AccountView(
            Decimal(100_000), Decimal(100_000), Decimal(100_000),
            exposures(positions, self.markets, self.journal.pending()),
            {own: quotes[own].mid for own in self.symbols},
        )  # fmt: skip
        proposals = [
            self.order_names.proposal(
                START_MS + step * MINUTE, "target", quotes[own].mid, symbol=own,
                side="buy" if step == 0 or self.draw.random() < 0.5 else "sell",
                quantity=self.markets[own].lot * int(self.draw.integers(8, 40)),
            )
            for own in self.symbols
        ]  # fmt: skip
        self.outcomes += self.gate.send(proposals, views, account)
