"""A venue in memory, with a ledger of its own and faults by order; accounts that trade there."""

# ruff: noqa: ARG002, ARG005, S108 - methods of a protocol; a folder in memory

import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal, localcontext
from functools import cache
from pathlib import Path

import torch

from backtest_lab import agent_for, panel, rules
from stormsail.core.clock import ManualClock
from stormsail.core.errors import VenueError
from stormsail.execution.config import TradingConfig
from stormsail.execution.decisions.bar_window import bar_rows
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.loop import TradingLoop
from stormsail.execution.order_ids import epoch_of
from stormsail.execution.paper_venue import PaperVenue
from stormsail.execution.venue import (
    Accepted,
    Balance,
    Capabilities,
    MarginTerms,
    Market,
    Order,
    OrderRequest,
    Outcome,
    Position,
    Quote,
    Refused,
    Trade,
    Unknown,
    VenueHealth,
)
from stormsail.market import Panel
from stormsail.market.bars import Bars, from_columns
from stormsail.market.interval import Interval
from stormsail.modules.agent import Binding as Binding_

HOUR = 3_600_000
CAPITAL = 30_000.0
LOT = Decimal("0.001")
TICK = Decimal("0.01")
FEE = Decimal("0.0005")
MARGIN = MarginTerms(Decimal(20), "cross")
EXACT = 60
"""Digits that sums of cash are made with: more than any needs, so that no order of fills rounds."""


class Killed(BaseException):
    """The process ends here: nothing after this line happens."""


def bars_of(panel: Panel) -> dict[str, Bars]:
    """Return the bars of a panel, one object for each symbol."""
    made = {}
    for column, symbol in enumerate(panel.symbols):
        here = panel.tradable[:, column]
        names = ("open", "high", "low", "close", "volume")
        columns = {name: getattr(panel, name)[here, column].tolist() for name in names}
        made[symbol] = from_columns(
            symbol, panel.interval, {"ts": panel.ts[here].tolist(), **columns}
        )
    return made


class MemoryVenue:
    """An exchange in memory: the only truth about orders, fills and positions.

    Attributes:
        fault: called with each request before it acts; returns None or the name of a fault:
            `lost` (nothing arrives), `silent` (it acts, the answer is lost), `late` (it acts, is
            not shown for a while, and the answer is lost), `refuse`, `half` (fills in part).
        kill: called with the name of each step of a request; raises `Killed` to end the process.
        down: every question fails while it is true.
    """

    def __init__(
        self,
        bars: dict[str, Bars],
        clock: ManualClock,
        *,
        stops: bool = True,
        late_s: float = 20.0,
        skew_ms: int = 0,
    ) -> None:
        self._bars = bars
        self._rows = {symbol: dict(bar_rows(own)) for symbol, own in bars.items()}
        self._clock, self._stops, self._late_s = clock, stops, late_s
        self.skew_ms = skew_ms
        self.cash = Decimal(10) ** 9
        self.held = dict.fromkeys(bars, Decimal(0))
        self.book: dict[str, Order] = {}
        self.fills: list[Trade] = []
        self.hidden: dict[str, int] = {}
        self.requests: list[OrderRequest] = []
        self.cancels: list[str] = []
        self.renewed: list[int] = []
        self.fault: Callable[[OrderRequest], str | None] = lambda request: None
        self.kill: Callable[[str], None] = lambda step: None
        self.down = False
        self.cancel_fails = 0
        self.status = dict.fromkeys(bars, "trading")
        self.lot = LOT
        self.market_max = Decimal(0)
        self.margin: dict[str, MarginTerms] = {}
        self._ids = itertools.count(1)
        self._triggered = {symbol: self.now_ms() for symbol in bars}

    name, kind = "memory", "perpetual"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            short=True, stops=self._stops, dead_man=True, leverage=True, streams=False
        )

    def now_ms(self) -> int:
        return self._clock.now_ns() // 1_000_000 + self.skew_ms

    def _ask(self) -> None:
        if self.down:
            raise VenueError("venue-unreachable", wrong="it must answer", found="-", remedy="Wait.")
        self.trigger()

    def account_id(self) -> str:
        return "memory:1"

    def permissions(self):
        return None

    def server_time_ms(self) -> int:
        self._ask()
        return self.now_ms()

    def markets(self, symbols: Sequence[str]) -> dict[str, Market]:
        self._ask()
        return {symbol: self.market(symbol) for symbol in symbols}

    def market(self, symbol: str) -> Market:
        base = symbol.partition("/")[0]
        zero = Decimal(0)
        return Market(
            symbol, self.kind, self.status[symbol], base, "USDT", "USDT", TICK, self.lot, self.lot,
            zero, zero, Decimal(5), FEE, FEE, zero, self.market_max,
        )  # fmt: skip

    def price(self, symbol: str) -> Decimal:
        """Return the open of the bar that is forming, or the last close."""
        interval = self._bars[symbol].interval.milliseconds
        ts = self.now_ms() // interval * interval
        rows = self._rows[symbol]
        if ts in rows:
            return Decimal(repr(rows[ts]["open"]))
        past = [known for known in rows if known < ts]
        return Decimal(repr(rows[max(past)]["close"]))

    def quote(self, symbol: str) -> Quote:
        self._ask()
        price = self.price(symbol)
        return Quote(symbol, price, price, price, self.now_ms())

    def quotes(self, symbols: Sequence[str]) -> dict[str, Quote]:
        return {symbol: self.quote(symbol) for symbol in symbols}

    def bars(self, symbol: str, interval: Interval, *, since_ms: int, until_ms: int) -> Bars:
        self._ask()
        closed = self.now_ms() - interval.milliseconds + 1
        return self._bars[symbol].between(since_ms, min(until_ms, closed))

    def funding_rates(self, symbol, *, since_ms):
        self._ask()
        return []

    def settled_rates(self, symbols, *, since_ms):
        return {symbol: self.funding_rates(symbol, since_ms=since_ms) for symbol in symbols}

    def balances(self):
        self._ask()
        return {"USDT": Balance("USDT", self.cash, Decimal(0))}

    def positions(self, symbols):
        self._ask()
        return {
            symbol: Position(symbol, self.held[symbol], entry_price=self.price(symbol))
            for symbol in symbols
        }

    def open_orders(self, symbol):
        self._ask()
        return [
            order for order in self._shown() if order.symbol == symbol and order.status == "open"
        ]

    def _shown(self) -> list[Order]:
        now = self.now_ms()
        return [o for name, o in self.book.items() if self.hidden.get(name, 0) <= now]

    def order(self, symbol, client_id):
        self._ask()
        found = [o for o in self._shown() if (o.symbol, o.client_id) == (symbol, client_id)]
        return found[-1] if found else None

    def orders(self, symbol, *, since_ms):
        self._ask()
        return [o for o in self._shown() if o.symbol == symbol and o.updated_ms >= since_ms]

    def trades(self, symbol, *, since_ms):
        self._ask()
        shown = {order.order_id for order in self._shown()}
        return [
            t for t in self.fills
            if t.symbol == symbol and t.ts_ms >= since_ms and t.order_id in shown
        ]  # fmt: skip

    def funding_payments(self, symbols, *, since_ms):
        self._ask()
        return []

    def submit(self, request: OrderRequest) -> Outcome:
        self.kill("send")
        self.requests.append(request)
        fault = self.fault(request)
        if fault == "lost" or self.down:
            return Unknown("no answer")
        if fault == "refuse":
            return Refused("-2010", "insufficient balance")
        assert request.client_id not in self.book, "an order was sent twice"
        order = self._accept(request, half=fault == "half")
        self.kill("acted")
        if fault == "late":
            self.hidden[request.client_id] = self.now_ms() + round(1000 * self._late_s)
        if fault in ("silent", "late"):
            return Unknown("the answer was lost")
        return Accepted(order)

    def at_once(self, calls):
        return [call() for call in calls]

    def _accept(self, request: OrderRequest, *, half: bool) -> Order:
        order = Order(
            request.client_id, str(next(self._ids)), request.symbol, request.side, request.type,
            "open", request.quantity, Decimal(0), Decimal(0), request.price, request.stop_price,
            request.reduce_only, self.now_ms(),
        )  # fmt: skip
        self.book[request.client_id] = order
        if request.type == "market":
            self._fill(order, request.quantity / 2 if half else request.quantity)
        return self.book[request.client_id]

    def _fill(self, order: Order, quantity: Decimal, price: Decimal | None = None) -> None:
        price = price or self.price(order.symbol)
        if order.reduce_only:
            held = self.held[order.symbol]
            against = held > 0 if order.side == "sell" else held < 0
            quantity = min(quantity, abs(held)) if against else Decimal(0)
        signed = quantity if order.side == "buy" else -quantity
        self.held[order.symbol] += signed
        fee = quantity * price * FEE
        with localcontext(prec=EXACT):
            self.cash -= signed * price + fee
        whole = quantity == order.quantity
        self.book[order.client_id] = replace(
            order,
            status="filled" if whole else "canceled",
            filled=quantity,
            cost=quantity * price,
            updated_ms=self.now_ms(),
        )
        if quantity:
            self.fills.append(
                Trade(
                    str(next(self._ids)), order.order_id, order.symbol, order.side, price, quantity,
                    fee, "USDT", self.now_ms(),
                )
            )  # fmt: skip

    def trigger(self) -> None:
        """Let stops act on the bars that have closed since the last look."""
        for symbol, rows in self._rows.items():
            since, now = self._triggered[symbol], self.now_ms()
            self._triggered[symbol] = now
            if now - since < 60_000:
                continue
            length = self._bars[symbol].interval.milliseconds
            first = since // length * length
            for ts in range(first, now - length + 1, length):
                if ts in rows and ts + length > since:
                    self._stop_out(symbol, rows[ts])

    def _stop_out(self, symbol: str, row) -> None:
        for order in [o for o in self.book.values() if o.symbol == symbol and o.type == "stop"]:
            if order.status != "open":
                continue
            stop = float(order.stop_price)
            if (order.side == "sell" and row["low"] <= stop) or (
                order.side == "buy" and row["high"] >= stop
            ):
                self._fill(order, order.quantity, order.stop_price)

    def cancel(self, symbol, client_id):
        self.kill("cancel")
        self.cancels.append(client_id)
        if self.cancel_fails:
            self.cancel_fails -= 1
            return Unknown("no answer")
        order = self.book.get(client_id)
        if order is None or order.status != "open":
            return Refused("-2011", "no such order is open")
        self.book[client_id] = replace(order, status="canceled")
        return Accepted(self.book[client_id])

    def cancel_all(self, symbol):
        """Do nothing: every cancel is one by name."""

    def one_way(self):
        return True

    def margin_terms(self, symbols):
        self._ask()
        return {symbol: self.margin.get(symbol, MARGIN) for symbol in symbols}

    def set_leverage(self, symbol, leverage):
        old = self.margin.get(symbol, MARGIN)
        self.margin[symbol] = old._replace(leverage=Decimal(leverage))

    def set_margin_mode(self, symbol, mode):
        if self.held[symbol]:
            raise VenueError("venue-refused", wrong="flat", found="-4048", remedy="Close it.")
        self.margin[symbol] = self.margin.get(symbol, MARGIN)._replace(mode=mode)

    def renew_dead_man(self, symbol, countdown_ms):
        self.renewed.append(self.now_ms())

    def watch(self, symbols, interval):
        pass

    def events(self, timeout_s):
        raise AssertionError

    def health(self):
        return VenueHealth(0.0, None, None)

    def close(self):
        pass


def config(**changes: object) -> TradingConfig:
    """Return the operator's settings, with loose limits and a short burn-in."""
    base = {
        "feed": {"burn_in": 5, "poll_s": 600.0},
        "limits": {"max_drawdown": 1.0, "max_daily_loss": 1.0, "leverage_slack": 0.3},
    }
    made = TradingConfig.from_mapping(base)
    return made.replace(**{name.replace("__", "."): value for name, value in changes.items()})


@cache
def _panel(rows, seed, symbols, calm, interval="1h"):
    made = panel(rows, seed=seed, symbols=symbols, calm=calm)
    length = Interval.parse(interval)
    first = int(made.ts[0])
    ts = first + (made.ts - first) // HOUR * length.milliseconds
    return replace(made, ts=ts, interval=length)


@cache
def _agent(rows, seed, symbols, calm, interval, market):
    agent = agent_for(_panel(rows, seed, symbols, calm, interval), rules(**dict(market)))
    agent.binding = Binding_(dict(agent.binding.values) | {"gamma": 0.9})
    return agent


@contextmanager
def quick_folder():
    """Yield a folder in memory where there is one: a sync there costs nothing."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


class Desk:
    """A market, an agent and a folder; `trader` starts a process of it, `venue` outlives them."""

    def __init__(
        self,
        folder: Path,
        *,
        rows=130,
        symbols=3,
        seed=3,
        stops=True,
        calm=True,
        first=60,
        interval="1h",
        **market,
    ):
        self.folder = folder
        self.panel = _panel(rows, seed, symbols, calm, interval)
        self.symbols = self.panel.symbols
        self.length = self.panel.interval.milliseconds
        self.start_ms = int(self.panel.ts[first])
        self.clock = ManualClock((self.start_ms + 1000) * 1_000_000)
        self.agent = _agent(rows, seed, symbols, calm, interval, tuple(market.items()))
        self.venue = MemoryVenue(bars_of(self.panel), self.clock, stops=stops)
        self.switch = KillSwitch(folder, self.clock)
        self.seen: list[object] = []

    def journal(self, mode="paper", account=None) -> Journal:
        name = account or ("paper:memory" if mode == "paper" else "memory:1")
        now = self.clock.now_ns()
        return Journal(
            self.folder / NAME,
            Binding(name, "memory", mode, str(self.panel.interval), "USDT"),
            epoch=epoch_of(created_ns=now, host="here", pid=1),
            now_ms=now // 1_000_000,
        )

    @contextmanager
    def trader(self, mode="paper", settings: TradingConfig | None = None, shifts=(), start=True):
        """Yield a started loop; its journal is closed at the end, as by a dying process."""
        journal = self.journal(mode)
        venue = self.venue
        if mode == "paper":
            capital = Decimal(repr(CAPITAL))
            venue = PaperVenue(venue, journal, self.clock, quote="USDT", capital=capital)
        loop = TradingLoop(
            self.agent,
            venue,
            journal,
            self.switch,
            settings or config(),
            symbols=self.symbols,
            capital=CAPITAL,
            clock=self.clock,
            observers=(self.seen.append,),
            shifts=shifts,
        )
        try:
            if start:
                loop.start()
            yield loop
        finally:
            journal.close()


def tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float64)
