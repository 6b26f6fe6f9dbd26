"""The demonstration: a drawn market at the loopback exchange, an agent that was never trained."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stormsail.core.clock import Clock
    from stormsail.execution.venue import Venue
    from stormsail.market.panel import Panel
    from stormsail.modules.agent import Agent

SYMBOLS = ("BTC/USDT:USDT", "ETH/USDT:USDT")
INTERVAL = "15m"
HISTORY, FUTURE = 600, 20_000
START_MS = 1_735_689_600_000  # 2025-01-01
BURN_IN = 16


def drawn_bars(seed: int) -> "Panel":
    """Return a drawn market: returns with clustering volatility and jumps."""
    from stormsail.market.interval import Interval
    from stormsail.market.panel import Panel
    from stormsail.market.synthetic import generate

    world = generate(
        "garch_jump",
        symbols=list(SYMBOLS),
        bars=HISTORY + FUTURE,
        interval=Interval.parse(INTERVAL),
        seed=seed,
        start_ms=START_MS,
    )
    return Panel.from_bars(world.bars, world.funding)


def untrained_agent(panel: "Panel", seed: int) -> "Agent":
    """Return an agent with drawn weights: it shows the machinery and has no skill."""
    import torch

    from stormsail.core.generators import Generators
    from stormsail.core.task import DiscreteActions
    from stormsail.functional import statistics
    from stormsail.market.features import ACCOUNT_FEATURES, FeatureSet, Scaler
    from stormsail.market.simulator.config import MarketConfig
    from stormsail.market.splits import Span
    from stormsail.market.terms import bound_terms
    from stormsail.modules import Agent, AgentSpec, NetworkConfig
    from stormsail.modules.agent import ActionSpec

    market = MarketConfig(funding_missing="zero").with_terms(panel.symbols, panel.instruments)
    features = FeatureSet(["log_return", "realised_volatility"], interval=panel.interval)
    past = panel.between(0, int(panel.ts[HISTORY]))
    computed = features.compute(past)
    scaler = Scaler.fit(computed, (0, HISTORY), schema=features.schema())
    names = (*features.names, *ACCOUNT_FEATURES)
    spec = AgentSpec(
        observation_names=names,
        unscaled=tuple(ACCOUNT_FEATURES),
        actions=ActionSpec.of(DiscreteActions(len(market.offered_levels))),
        network=NetworkConfig(encoder_sizes=(16,), lstm_hidden_size=16, head_sizes=(16,)),
    )
    generator = Generators(seed).stream("demo.agent")
    binding = bound_terms(
        market,
        features,
        scaler,
        symbols=panel.symbols,
        train_span=Span(int(panel.ts[0]), int(panel.ts[HISTORY])),
        gamma=0.97,
    )
    agent = Agent(spec, generator, binding=binding)
    sample = torch.randn(64, len(names), generator=generator)
    agent.observation_scale.commit(statistics.moments(sample))
    with torch.no_grad():
        agent.network.actor_last.weight.mul_(40.0)  # decisions that vary
    return agent


def start_ms(panel: "Panel", folder: Path) -> int:
    """Return when a demonstration goes on: after its last decision, or where the history ends."""
    from stormsail.execution.journal import NAME, Journal

    opened = int(panel.ts[HISTORY])
    if (folder / NAME).is_file():
        journal = Journal.reading(folder / NAME)
        saved = journal.checkpoint()
        journal.close()
        if saved is not None:
            opened = saved[0] + panel.interval.milliseconds
    return opened + 1000


@contextmanager
def drawn_exchange(
    panel: "Panel", *, speed: float | None, now_ms: int
) -> "Iterator[tuple[Venue, Clock]]":
    """Yield the loopback exchange with a drawn market, and its clock, which starts at a time.

    Raises:
        ConfigError: if ccxt is not installed.
    """
    from stormsail.execution.ccxt_venue import CcxtVenue
    from stormsail.execution.connection.rate_budget import RateBudget
    from stormsail.execution.loopback import Exchange, VirtualClock, candles_of
    from stormsail.execution.loopback.transport import LoopbackStreams, in_process
    from stormsail.market.bars import from_columns

    clock = VirtualClock(now_ms * 1_000_000, speed=speed)
    exchange = Exchange(clock=clock, check_limits=False)
    for column, symbol in enumerate(panel.symbols):
        names = ("open", "high", "low", "close", "volume")
        table = {name: getattr(panel, name)[:, column].tolist() for name in names}
        bars = from_columns(symbol, panel.interval, {"ts": panel.ts.tolist(), **table})
        market_id = symbol.partition(":")[0].replace("/", "")
        exchange.perp[market_id, str(panel.interval)] = candles_of(bars)
    with tempfile.TemporaryDirectory() as folder:
        venue = CcxtVenue(
            "binanceusdm",
            credentials=None,
            clock=clock,
            base_url="http://127.0.0.1:1",
            budget=RateBudget(Path(folder) / "budget", limit=1_000_000_000, clock=clock),
            streams=LoopbackStreams(exchange, "perp", clock),
            adapter=in_process(exchange),
        )
        yield venue, clock
