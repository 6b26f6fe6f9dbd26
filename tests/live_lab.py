"""A live account at the loopback exchange, through the real ccxt client, with chosen weights."""

from collections.abc import Sequence
from contextlib import contextmanager
from decimal import Decimal

import torch

from execution_lab import quick_folder
from stormsail.cli.trading import demo
from stormsail.core.clock import Clock
from stormsail.core.config import Config
from stormsail.execution.ccxt_venue import CcxtVenue
from stormsail.execution.config import TradingConfig
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.loop import TradingLoop
from stormsail.execution.loopback import Exchange, VirtualClock, candles_of
from stormsail.execution.loopback.exchange import API_KEY, API_SECRET
from stormsail.execution.loopback.transport import LoopbackStreams, in_process
from stormsail.execution.operator.status import Notice
from stormsail.execution.order_ids import epoch_of
from stormsail.execution.secrets import Credentials, Secret
from stormsail.market.bars import from_columns
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.synthetic import generate

CAPITAL = 10_000.0


def settings(**changes: object) -> TradingConfig:
    """Return the operator's settings, with loose limits and a short burn-in."""
    made: Config = TradingConfig.from_mapping(
        {
            "feed": {"burn_in": 8, "poll_s": 30.0},
            "limits": {"leverage_slack": 0.2, "max_drawdown": 1.0, "max_daily_loss": 1.0},
        }
    )
    return made.replace(**{name.replace("__", "."): value for name, value in changes.items()})


def drawn(dialect: str, bars: int) -> Panel:
    """Return a drawn market of two symbols in a dialect."""
    names = list(demo.SYMBOLS) if dialect == "perp" else ["BTC/USDT", "ETH/USDT"]
    world = generate(
        "garch_jump",
        symbols=names,
        bars=bars,
        interval=Interval.parse(demo.INTERVAL),
        seed=0,
        start_ms=demo.START_MS,
    )
    return Panel.from_bars(world.bars, world.funding if dialect == "perp" else {})


def market_id(symbol: str) -> str:
    return symbol.partition(":")[0].replace("/", "")


class PatientClock(VirtualClock):
    """A clock on which nobody waits for ever: a trader that would ends its test in words."""

    waits = 0

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < 5_000, "the trader waits for ever"
        super().sleep(seconds)


class LiveDesk:
    """A drawn market at the exchange, money, and an account; `trader` starts a process of it."""

    def __init__(self, folder, dialect: str = "perp", symbols: int = 1, bars: int = 800) -> None:
        self.folder, self.dialect = folder, dialect
        self.panel = drawn(dialect, bars)
        self.symbols: Sequence[str] = self.panel.symbols[:symbols]
        self.clock = PatientClock((int(self.panel.ts[demo.HISTORY]) + 1000) * 1_000_000)
        self.exchange = Exchange(clock=self.clock)
        self.book = self.exchange.ledgers[dialect]
        for column, symbol in enumerate(self.panel.symbols):
            names = ("open", "high", "low", "close", "volume")
            table = {name: getattr(self.panel, name)[:, column].tolist() for name in names}
            bars = from_columns(
                symbol, self.panel.interval, {"ts": self.panel.ts.tolist(), **table}
            )
            self.book.tapes[market_id(symbol), str(self.panel.interval)] = candles_of(bars)
        self.exchange.deposit(dialect, "USDT", "100000")
        self.venue = self.open_venue()
        self.agent = demo.untrained_agent(self.panel, 0)
        self.switch = KillSwitch(folder, self.clock)
        self.seen: list[object] = []
        self.weights: Sequence[float] = [0.0] * symbols

    def open_venue(self, clock: Clock | None = None) -> CcxtVenue:
        """Return the account through a client of its own, of a machine with another clock."""
        perp = self.dialect == "perp"
        return CcxtVenue(
            "binanceusdm" if perp else "binance",
            credentials=Credentials(Secret(API_KEY), Secret(API_SECRET), "test"),
            clock=clock or self.clock,
            base_url="http://127.0.0.1:1",
            budget=RateBudget(
                self.folder / "budget", limit=2400 if perp else 6000, clock=self.clock
            ),
            streams=LoopbackStreams(self.exchange, self.dialect, self.clock),
            adapter=in_process(self.exchange),
        )

    def journal(self) -> Journal:
        now = self.clock.now_ns()
        return Journal(
            self.folder / NAME,
            Binding(self.venue.account_id(), "loopback", "live", demo.INTERVAL, "USDT"),
            epoch=epoch_of(created_ns=now, host="here", pid=1),
            now_ms=now // 1_000_000,
        )

    @contextmanager
    def trader(self, config: TradingConfig | None = None):
        """Yield a started loop that decides the weights of this desk."""
        journal = self.journal()
        loop = TradingLoop(
            self.agent,
            self.venue,
            journal,
            self.switch,
            config or settings(),
            symbols=self.symbols,
            capital=CAPITAL,
            clock=self.clock,
            observers=(self.seen.append,),
        )
        try:
            loop.start()
            plain = loop.path.decide

            def decide(step, observation):
                wanted = torch.tensor(list(self.weights), dtype=torch.float64)
                return plain(step, observation)._replace(weight=wanted)

            loop.path.decide = decide
            yield loop
        finally:
            journal.close()

    def bar(self, loop: TradingLoop, *weights: float, bars: int = 1) -> str:
        """Decide some weights on the next bars."""
        self.weights = weights
        return loop.run(bars=bars)

    def held(self, symbol: str | None = None) -> Decimal:
        return self.book.position(market_id(symbol or self.symbols[0]))

    def stops(self, symbol: str | None = None):
        name = market_id(symbol or self.symbols[0])
        return [own for own in self.book.orders if own.market_id == name and own.waits]

    def notices(self, *names: str) -> list[Notice]:
        every = [own for own in self.seen if isinstance(own, Notice)]
        return [own for own in every if not names or own.name in names]


@contextmanager
def live_desk(dialect: str = "perp", symbols: int = 1, bars: int = 800):
    """Yield a desk in a folder in memory."""
    with quick_folder() as folder:
        desk = LiveDesk(folder, dialect, symbols, bars)
        try:
            yield desk
        finally:
            desk.venue.close()
