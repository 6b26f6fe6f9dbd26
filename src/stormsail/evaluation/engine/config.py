"""Configuration of a backtest: which bars, which rules, and how the agent decides."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from stormsail.core.config import Config
from stormsail.market.panel import Panel
from stormsail.market.simulator.config import Degrade, Filters, MarketConfig, Randomise
from stormsail.market.splits import Span
from stormsail.modules.agent import JudgedPolicy

BURN_IN = 64
"""Bars on which a memory is warmed up by default."""

Loosened = Literal["costs", "episode_bars"]
"""What may differ from the agent's training when it is named in `allow`."""


def _zoned(time: datetime | None) -> datetime | None:
    if time is not None and time.tzinfo is None:
        raise ValueError("must name a time zone, such as 2024-01-01T00:00:00Z")
    return time


Time = Annotated[datetime | None, AfterValidator(_zoned)]


class BacktestConfig(Config):
    """One unbroken pass over a span of bars, one account for each symbol."""

    market: MarketConfig | None = None
    """Rules of the market; None takes those that the agent was trained with, and without an agent
    the defaults. Costs drawn at random and feed faults of training are left out either way."""

    start: Time = None
    """Opening of the first bar; the first decision falls on its close. None takes the earliest bar
    that has enough of the past."""

    end: Time = None
    """Opening of the first bar that is no longer traded; None goes to the end of the data."""

    burn_in: Annotated[int, Field(ge=0)] = BURN_IN
    """Bars before the first decision on which the memory is warmed up, with a flat account."""

    capital: Annotated[float, Field(gt=0.0)] | None = None
    """Quote currency at the start, divided equally among the symbols; None gives each account the
    market's `initial_equity`, as in training."""

    filters: Filters | None = None
    """Order steps of every symbol without its own, 0 for none; None takes those of the market, and
    where it states none those of the instrument terms."""

    symbol_filters: dict[str, Filters] = Field(default_factory=dict)
    """Order steps by symbol, before those of the market; only symbols that are traded."""

    greedy: bool | None = None
    """Take the likeliest action; false draws it with `seed`. None does what the agent was judged
    by (`Agent.judged_policy`), and the result says which that was."""

    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Of drawn actions and of feed faults; nothing else is random."""

    delay_bars: Annotated[int, Field(ge=0)] = 0
    """Bars by which every decision reaches the market late."""

    degrade: Degrade = Degrade()
    """Faults of the feed that the agent sees; orders meet the true market."""

    pool_bars: Annotated[int, Field(ge=1)] | None = None
    """Move cash between the accounts every so many bars, so that all have the same equity; None
    never does."""

    allow: tuple[Loosened, ...] = ()
    """What may differ from the agent's training. Features, bars and actions never may."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"`start` must be before `end`, not {self.start} and {self.end}")
        return self

    def during(self, span: Span) -> Self:
        """Return the same backtest over another span."""
        return self.replace(start=_time(span.start_ms), end=_time(span.end_ms))

    def span(self, panel: Panel) -> Span | None:
        """Return the bars from which and up to which it trades; None where there are none."""
        last = int(panel.ts[-1]) + panel.interval.milliseconds
        start = int(panel.ts[0]) if self.start is None else round(1000 * self.start.timestamp())
        end = last if self.end is None else round(1000 * self.end.timestamp())
        return Span(start, end) if start < min(end, last) else None

    def for_policy(self, judged: JudgedPolicy) -> Self:
        """Return the same backtest with `greedy` filled in where it is left to the agent."""
        return self if self.greedy is not None else self.replace(greedy=judged == "greedy")

    @property
    def policy(self) -> JudgedPolicy | None:
        """How actions are decided; None where that is left to the agent, or there is none."""
        if self.greedy is None:
            return None
        return "greedy" if self.greedy else "sampled"

    def configured(self, symbols: Sequence[str]) -> MarketConfig:
        """Return the market as it is configured for some symbols, order steps included."""
        market = self.market or MarketConfig()
        own = {name: steps for name, steps in market.symbol_filters.items() if name in symbols}
        known = {name: terms for name, terms in market.instruments.items() if name in symbols}
        if self.filters == Filters():  # none at all was asked for, whatever the terms state
            own = {**dict.fromkeys(symbols, self.filters), **own}
        return market.replace(
            filters=market.filters if self.filters is None else self.filters,
            symbol_filters={**own, **self.symbol_filters},
            instruments=known,
        )

    def rules(self, panel: Panel) -> MarketConfig:
        """Return the market of these bars, with all that is known about its symbols."""
        return self.configured(panel.symbols).with_terms(panel.symbols, panel.instruments)

    def ledger(self, panel: Panel) -> MarketConfig:
        """Return the rules by which the accounts of these symbols are kept.

        Weights come as numbers, so the action is continuous and as wide as the leverage limit and
        the kinds of the symbols; the gate and the rest stay. Order steps are exact where the
        instrument terms state them. An "episode" of one bar only keeps a simulator from asking for
        bars that a backtest does not need: horizons are counted in `loop.py`.
        """
        market = self.rules(panel)
        widest = market.limits.max_leverage
        bounds = [market.weight_bounds(symbol) for symbol in panel.symbols]
        low = max(-widest, min(low for low, _ in bounds))
        high = min(widest, max(high for _, high in bounds))
        return market.with_exact_filters().replace(
            episode_bars=1,
            initial_equity=self.start_equity(len(panel.symbols)),
            action="continuous",
            weight_range=(low, high),
            levels=tuple(sorted({low, 0.0, high})),
            randomise=Randomise(),
            degrade=self.degrade,
            features=None,
        )

    def start_equity(self, accounts: int) -> float:
        """Return the quote currency with which each account starts."""
        if self.capital is not None:
            return self.capital / accounts
        return (self.market or MarketConfig()).initial_equity


def _time(ts_ms: int) -> datetime:
    return datetime.fromtimestamp(ts_ms / 1000, UTC)


def milliseconds(time: datetime) -> int:
    """Return a time as UTC milliseconds."""
    return round(1000 * time.timestamp())
