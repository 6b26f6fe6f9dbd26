"""The loopback exchange in a process of its own: what it computes costs the trader nothing."""

import multiprocessing
import time
from contextlib import contextmanager

from stormsail.cli.trading import demo
from stormsail.execution.loopback import Exchange, Loopback, VirtualClock, candles_of
from stormsail.market.bars import from_columns
from stormsail.market.interval import Interval
from stormsail.market.panel import Panel
from stormsail.market.synthetic import generate

NAMES = tuple(f"C{number:02d}/USDT:USDT" for number in range(20))


def drawn_panel(bars: int) -> Panel:
    """Return the bars of twenty symbols, after the history of the demonstration."""
    world = generate(
        "garch_jump", symbols=list(NAMES), bars=demo.HISTORY + bars,
        interval=Interval.parse(demo.INTERVAL), seed=1, start_ms=demo.START_MS,
    )  # fmt: skip
    return Panel.from_bars(world.bars, world.funding)


def serve(pipe, bars, speed):
    """Serve until told otherwise; the first message is the address and the clock."""
    panel = drawn_panel(bars)
    start = (int(panel.ts[demo.HISTORY]) + 1000) * 1_000_000
    exchange = Exchange(clock=VirtualClock(start, speed=speed), check_limits=False)
    began = time.monotonic_ns()
    for column, symbol in enumerate(NAMES):
        cells = ("open", "high", "low", "close", "volume")
        table = {name: getattr(panel, name)[:, column].tolist() for name in cells}
        own = from_columns(symbol, panel.interval, {"ts": panel.ts.tolist(), **table})
        exchange.perp[symbol.partition(":")[0].replace("/", ""), demo.INTERVAL] = candles_of(own)
    exchange.deposit("perp", "USDT", "10000000")
    with Loopback(exchange, audit=False) as served:
        pipe.send((served.url, start, began))
        pipe.recv()


@contextmanager
def exchange_elsewhere(*, bars: int, speed: float):
    """Yield the address of an exchange in another process, and a clock that agrees with its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, bars, speed), daemon=True)
    process.start()
    url, start, began = here.recv()
    try:
        passed = int((time.monotonic_ns() - began) * speed)
        yield url, VirtualClock(start + passed, speed=speed)
    finally:
        here.send("enough")
        process.join(10.0)
