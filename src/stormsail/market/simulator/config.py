"""Configuration of a market: episodes, actions, costs, margin, order filters, risk limits, feed."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from stormsail.core.config import Config
from stormsail.core.errors import ConfigError, DataError
from stormsail.functional.risk_gate import Limits
from stormsail.market.features import FeatureSpec
from stormsail.market.instruments import Instrument, InstrumentTerms, Kind, Tier, kind_of
from stormsail.market.rewards import LOG_GROWTH

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=-1.0, lt=1.0)]

TAKER_FEE = 0.0005
"""Taker fee where neither the configuration nor the instrument terms state one."""

MAINTENANCE = 0.005
"""Maintenance margin where neither the configuration nor the instrument terms state one."""

LONG_SHORT = (-1.0, -0.5, 0.0, 0.5, 1.0)
LONG_ONLY = (0.0, 0.2, 0.6, 1.0)
"""Levels by default: of markets in which every symbol can be sold short, and of the others."""

_DAY_MINUTES = 24 * 60


def _multiplier_range(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not 0.0 <= low <= high:
        raise ValueError(f"must be two numbers 0 <= low <= high, not ({low}, {high})")
    return bounds


MultiplierRange = Annotated[tuple[float, float], AfterValidator(_multiplier_range)]


class Costs(Config):
    """What a fill costs. Fractions of the traded notional, not percent or basis points."""

    taker_fee: Share | None = None
    """Fee on the filled notional; None takes that of each symbol's instrument terms, and 0.0005
    where they state none."""

    half_spread: Share = 0.0002
    """Distance of the best price from the open, as a share of it."""

    impact: Annotated[float, Field(ge=0.0)] = 0.01
    """Price impact of trading as much as one bar's mean notional; it grows with the square root."""

    impact_window: Annotated[int, Field(ge=1)] = 24
    """Closed bars over which that mean is taken."""


class Margin(Config):
    """When a leveraged position is taken away, and what that costs."""

    maintenance: Share | None = None
    """Equity must stay above this share of the position's notional; None takes the tiers of each
    symbol's instrument terms, and 0.005 where they state none."""

    liquidation_fee: Share = 0.005
    """Paid on the liquidated notional, beside the taker fee."""


class Delisting(Config):
    """When a symbol counts as delisted, and what that costs an account that holds it."""

    silent_days: Annotated[float, Field(gt=0.0)] = 7.0
    """A symbol whose last traded bar lies this long or longer before the end of the data was
    delisted after it."""

    loss: Share = 0.05
    """Least share of the last traded price that a position loses as it is closed; half spread and
    impact of the last traded bars where they are more."""


class Filters(Config):
    """Steps and minimum of an exchange's orders; 0 switches one off."""

    lot: Annotated[float, Field(ge=0.0)] = 0.0
    """Order quantities are multiples of this, in base currency."""

    tick: Annotated[float, Field(ge=0.0)] = 0.0
    """Fill prices are multiples of this, in quote currency."""

    min_notional: Annotated[float, Field(ge=0.0)] = 0.0
    """An order worth less than this is not sent, in quote currency."""


class RiskLimits(Config):
    """Bounds of the risk gate; None switches one off."""

    max_position: Annotated[float, Field(gt=0.0)] | None = None
    """Largest notional, in quote currency."""

    max_leverage: Annotated[float, Field(gt=0.0)] = 1.0
    """Largest size of the weight."""

    max_turnover: Annotated[float, Field(gt=0.0)] | None = None
    """Sum of the weight changes allowed in a UTC day."""

    max_drawdown: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Fall from the episode's peak, as a share; once reached, positions can only be reduced."""

    max_daily_loss: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Fall since the UTC day began, as a share; once reached, positions can only be reduced."""

    min_equity: Annotated[float, Field(ge=0.0)] = 0.0
    """Below this equity, in quote currency, positions are closed."""

    def gate(self) -> Limits:
        """Return the limits as the gate takes them, with infinity for what is off."""

        def bound(value: float | None) -> float:
            return math.inf if value is None else value

        return Limits(
            max_position=bound(self.max_position),
            max_leverage=self.max_leverage,
            max_turnover=bound(self.max_turnover),
            max_drawdown=bound(self.max_drawdown),
            max_daily_loss=bound(self.max_daily_loss),
            min_equity=self.min_equity,
        )


class Stops(Config):
    """What ends an episode as terminated."""

    equity_floor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of the initial equity at which the account counts as ruined."""

    drawdown: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Fall from the episode's peak that ends it; None never does."""


def minutes_of_day(window: str) -> tuple[int, int]:
    """Return start and end of `HH:MM-HH:MM` in minutes after midnight.

    Raises:
        ValueError: if it is written otherwise, or start and end coincide.
    """
    matched = re.fullmatch(r"(\d\d):(\d\d)-(\d\d):(\d\d)", window)
    if matched is None:
        raise ValueError(f"must be written as HH:MM-HH:MM, not `{window}`")
    hour, minute, end_hour, end_minute = (int(part) for part in matched.groups())
    start, end = 60 * hour + minute, 60 * end_hour + end_minute
    if minute > 59 or end_minute > 59 or start >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise ValueError(f"must hold times of a day, not `{window}`")
    if start == end:
        raise ValueError(f"must start and end at different times, not `{window}`")
    return start, end


def _daily_windows(windows: tuple[str, ...]) -> tuple[str, ...]:
    for window in windows:
        minutes_of_day(window)
    return windows


def _ranges(
    ranges: tuple[tuple[datetime, datetime], ...],
) -> tuple[tuple[datetime, datetime], ...]:
    for start, end in ranges:
        if start.tzinfo is None or end.tzinfo is None:
            raise ValueError("must name a time zone, such as 2024-01-01T00:00:00Z")
        if start >= end:
            raise ValueError(f"must start before it ends, not {start} to {end}")
    return ranges


class NoTrade(Config):
    """When no order is sent: maintenance, known events, the minutes around funding."""

    daily: Annotated[tuple[str, ...], AfterValidator(_daily_windows)] = ()
    """Windows of every UTC day, `HH:MM-HH:MM`, start included and end not; may pass midnight."""

    ranges: Annotated[tuple[tuple[datetime, datetime], ...], AfterValidator(_ranges)] = ()
    """Single windows, start included and end not."""

    around_funding_minutes: Annotated[int, Field(ge=0, lt=240)] = 0
    """No order within this many minutes of 00:00, 08:00 and 16:00 UTC; 0 switches it off."""

    drop_samples: bool = False
    """Give a step whose order was blocked the sample weight 0, instead of learning from it."""


class Randomise(Config):
    """Ranges of multipliers on the costs, drawn once an episode; (1, 1) leaves a cost alone."""

    taker_fee: MultiplierRange = (1.0, 1.0)
    """On `costs.taker_fee`."""

    half_spread: MultiplierRange = (1.0, 1.0)
    """On `costs.half_spread`."""

    impact: MultiplierRange = (1.0, 1.0)
    """On `costs.impact`."""


class Degrade(Config):
    """Faults of the data feed. They change what the agent sees, never what its orders meet."""

    stale_prob: Probability = 0.0
    """Chance that the feed repeats the row it showed before."""

    drop_prob: Probability = 0.0
    """Chance that nothing arrives: all market columns are 0."""

    delay_prob: Probability = 0.0
    """Chance that the newest row shown is some bars old."""

    max_delay_bars: Annotated[int, Field(ge=1)] = 1
    """Largest such delay; each from 1 on is equally likely."""


def _levels(levels: tuple[float, ...]) -> tuple[float, ...]:
    if len(levels) < 2 or list(levels) != sorted(set(levels)):
        raise ValueError(f"must be at least two weights in rising order, not {levels}")
    return levels


def _weight_range(bounds: tuple[float, float]) -> tuple[float, float]:
    if not bounds[0] < bounds[1]:
        raise ValueError(f"must be two weights, the lower one first, not {bounds}")
    return bounds


class MarketConfig(Config):
    """The market that an agent trades in: one symbol at a time, one target weight a bar."""

    episode_bars: Annotated[int, Field(ge=1)] = 256
    """Steps until an episode is truncated."""

    initial_equity: Annotated[float, Field(gt=0.0)] = 10_000.0
    """Cash at an episode's start, in quote currency."""

    action: Literal["levels", "continuous"] = "levels"
    """Whether an action is the index of a level or the weight itself."""

    levels: Annotated[tuple[float, ...], AfterValidator(_levels)] | None = None
    """Target weights on offer, as signed shares of equity. None follows the kinds of the symbols:
    -1, -0.5, 0, 0.5, 1 where all can be sold short, and 0, 0.2, 0.6, 1 otherwise."""

    weight_range: Annotated[tuple[float, float], AfterValidator(_weight_range)] | None = None
    """Lowest and highest weight of a continuous action. None follows the kinds likewise: -1 to 1,
    or 0 to 1."""

    min_rebalance: Annotated[float, Field(ge=0.0)] = 0.0
    """A smaller change of weight is not traded, unless it closes the position."""

    funding: bool = True
    """Whether perpetuals pay their funding rates."""

    funding_missing: Literal["refuse", "zero"] | Rate = "refuse"
    """What settlements without a known rate pay: a rate, or nothing. `refuse` demands that 99 % of
    them are known, and lets the rest pay nothing."""

    ruin_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """Taken from the reward of the step in which equity falls to the floor."""

    reward: str = LOG_GROWTH
    """Reward of a step: `log_growth` of equity, `differential_sharpe`, `drawdown_growth`, or one of
    a plug-in. Evaluations, backtests and verdicts are in equity and log growth whatever it is."""

    reward_parameters: dict[str, float] = Field(default_factory=dict)
    """Parameters of that reward that differ from its defaults."""

    reward_clip: Annotated[float, Field(gt=0.0)] | None = None
    """Bound on the size of the reward; the unclipped one stays in the info."""

    costs: Costs = Costs()
    """Fee, spread, impact."""

    trade_without_volume: bool = False
    """Whether orders fill on bars without volume, for sources that have no volumes."""

    delisting: Delisting = Delisting()
    """End of a symbol before the end of the data."""

    margin: Margin = Margin()
    """Maintenance margin and liquidation."""

    filters: Filters = Filters()
    """Order steps of every symbol that has none of its own. Where all are 0, training uses none
    and backtests use those of the instrument terms."""

    symbol_filters: dict[str, Filters] = Field(default_factory=dict)
    """Order steps by symbol."""

    instruments: dict[str, InstrumentTerms] = Field(default_factory=dict)
    """Instrument terms by symbol; each stands before the one that the store has. Margin is chosen
    here: `kind = "margin"` and a `borrow_rate`."""

    limits: RiskLimits = RiskLimits()
    """Bounds of the risk gate."""

    stops: Stops = Stops()
    """What ends an episode as terminated."""

    no_trade: NoTrade = NoTrade()
    """When no order is sent."""

    randomise: Randomise = Randomise()
    """Costs drawn anew each episode."""

    degrade: Degrade = Degrade()
    """Faults of the data feed."""

    features: tuple[FeatureSpec, ...] | None = None
    """Columns of the observation; None takes the default set for the bars' interval."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        widest = max(abs(weight) for weight in self.offered)
        if widest > self.limits.max_leverage:
            raise ValueError(
                f"the weights on offer must stay within `limits.max_leverage` "
                f"{self.limits.max_leverage}, not reach {widest}"
            )
        fee = TAKER_FEE if self.costs.taker_fee is None else self.costs.taker_fee
        for name, cost in (("taker_fee", fee), ("half_spread", self.costs.half_spread)):
            dearest = cost * getattr(self.randomise, name)[1]
            if dearest >= 1.0:
                raise ValueError(
                    f"`costs.{name}` times the largest `randomise.{name}` must stay below 1, not "
                    f"{dearest:g}: such a trade would cost all it is worth"
                )
        for symbol, terms in self.instruments.items():
            if terms.kind is not None and (":" in symbol) != (terms.kind == "perpetual"):
                raise ValueError(f"`{symbol}` cannot be of the kind `{terms.kind}`")
        maintenance = MAINTENANCE if self.margin.maintenance is None else self.margin.maintenance
        if self.limits.max_leverage * maintenance >= 1.0:
            raise ValueError(
                f"`limits.max_leverage` times `margin.maintenance` must stay below 1, not "
                f"{self.limits.max_leverage * maintenance:g}: such a position would "
                f"be liquidated as it opens"
            )
        return self

    @property
    def ruin_equity(self) -> float:
        """Equity at which an account counts as ruined, in quote currency."""
        return self.stops.equity_floor * self.initial_equity

    @property
    def offered(self) -> tuple[float, ...]:
        """Weights on offer: the levels, or the ends of the range."""
        return self.offered_levels if self.action == "levels" else self.offered_range

    @property
    def offered_levels(self) -> tuple[float, ...]:
        """Levels; where they are left out, those that follow from the kinds in `instruments`."""
        if self.levels is not None:
            return self.levels
        return LONG_SHORT if self._all_short() else LONG_ONLY

    @property
    def offered_range(self) -> tuple[float, float]:
        """Weight range; where it is left out, the one that follows from the kinds."""
        if self.weight_range is not None:
            return self.weight_range
        return (-1.0, 1.0) if self._all_short() else (0.0, 1.0)

    def _all_short(self) -> bool:
        return all(self.weight_bounds(symbol)[0] < 0.0 for symbol in self.instruments)

    def terms_of(self, symbol: str) -> InstrumentTerms:
        """Return what is known about a symbol."""
        return self.instruments.get(symbol, InstrumentTerms())

    def kind_of(self, symbol: str) -> Kind:
        """Return the kind of a symbol: as it was stated, else as it is written."""
        return self.terms_of(symbol).kind or kind_of(symbol)

    def weight_bounds(self, symbol: str) -> tuple[float, float]:
        """Return the lowest and highest weight that a symbol's kind and terms allow.

        Spot is bought with what is there: 0 to 1. Margin may borrow what has a rate: base currency
        to go short, quote currency to go beyond 1.
        """
        terms, kind = self.terms_of(symbol), self.kind_of(symbol)
        most = math.inf if terms.max_leverage is None else terms.max_leverage
        if kind == "perpetual":
            return -most, most
        if kind == "spot":
            return 0.0, 1.0
        return (
            0.0 if terms.borrow_rate is None else -most,
            1.0 if terms.quote_borrow_rate is None else most,
        )

    def fee_of(self, symbol: str, costs: Costs | None = None) -> float:
        """Return the taker fee of a symbol, under other costs where they are given."""
        stated = (self.costs if costs is None else costs).taker_fee
        own = self.terms_of(symbol).taker_fee if stated is None else stated
        return TAKER_FEE if own is None else own

    def maintenance_of(self, symbol: str) -> tuple[Tier, ...]:
        """Return the maintenance margin of a symbol by notional, at least one tier."""
        if self.margin.maintenance is not None:
            return (Tier(notional=0.0, rate=self.margin.maintenance),)
        return self.terms_of(symbol).maintenance or (Tier(notional=0.0, rate=MAINTENANCE),)

    def borrow_of(self, symbol: str) -> tuple[float, float]:
        """Return the yearly interest on borrowed base and quote currency; 0 but for margin."""
        terms = self.terms_of(symbol)
        if self.kind_of(symbol) != "margin":
            return 0.0, 0.0
        return terms.borrow_rate or 0.0, terms.quote_borrow_rate or 0.0

    def filters_of(self, symbol: str) -> Filters:
        """Return the order steps of a symbol."""
        return self.symbol_filters.get(symbol, self.filters)

    def with_terms(self, symbols: Sequence[str], stored: Mapping[str, Instrument]) -> Self:
        """Return the rules for these symbols, with all that is known about each filled in.

        Entries of other symbols are left out. Doing it again changes nothing.
        """
        known = {}
        for symbol in symbols:
            own = self.terms_of(symbol)
            terms = own.over(stored[symbol].terms) if symbol in stored else own
            kind = terms.kind or kind_of(symbol)
            known[symbol] = {**terms.document(), "kind": kind}
        return self.replace(instruments=known)

    def with_exact_filters(self) -> Self:
        """Return the rules with the order steps of the instrument terms.

        A symbol with steps of its own keeps them, and so do all where `filters` states some.
        """
        if self.filters != Filters():
            return self
        exact = {
            symbol: {name: getattr(terms, name) or 0.0 for name in Filters.model_fields}
            for symbol, terms in self.instruments.items()
            if terms.lot or terms.tick or terms.min_notional
        }
        own = {symbol: steps.model_dump() for symbol, steps in self.symbol_filters.items()}
        return self.replace(symbol_filters={**exact, **own})

    def check_offered(self) -> None:
        """Refuse weights or leverage that the kind of a symbol in `instruments` does not allow.

        Raises:
            ConfigError: if there are; it names the symbol and why.
        """
        setting = "levels" if self.action == "levels" else "weight_range"
        lowest, highest = min(self.offered), max(self.offered)
        for symbol in self.instruments:
            low, high = self.weight_bounds(symbol)
            if lowest < low or highest > high:
                raise ConfigError(
                    "config-inconsistent",
                    wrong=f"the weights on offer must lie in {low:g} to {high:g} for {symbol}: "
                    + self.why_bounded(symbol),
                    found=f"`{setting}` from {lowest:g} to {highest:g}",
                    remedy=f"Leave `{setting}` out, which follows the kind, or {_cure(symbol)}.",
                )
            widest = max(-low, high, 1.0)
            if self.limits.max_leverage > widest:
                raise ConfigError(
                    "config-inconsistent",
                    wrong=f"`limits.max_leverage` must be at most {widest:g} for {symbol}: "
                    + self.why_bounded(symbol),
                    found=f"{self.limits.max_leverage:g}",
                    remedy=f"Lower it, or {_cure(symbol)}.",
                )
            least = self.maintenance_of(symbol)[0].rate
            if self.limits.max_leverage * least >= 1.0:
                raise ConfigError(
                    "config-inconsistent",
                    wrong=f"`limits.max_leverage` times the maintenance margin of {symbol}, "
                    f"{least:g}, must stay below 1: such a position would be liquidated as it "
                    "opens",
                    found=f"{self.limits.max_leverage:g}",
                    remedy="Lower it.",
                )

    def why_bounded(self, symbol: str) -> str:
        """Return in words why the weights of a symbol are bounded."""
        kind, terms = self.kind_of(symbol), self.terms_of(symbol)
        if kind == "spot":
            return "it is spot, which is neither sold short nor bought on credit"
        reasons = []
        if kind == "margin" and terms.borrow_rate is None:
            reasons.append("it has no `borrow_rate`, so that nothing can be sold short")
        if kind == "margin" and terms.quote_borrow_rate is None:
            reasons.append("it has no `quote_borrow_rate`, so that it is bought with own money")
        if terms.max_leverage is not None:
            reasons.append(f"the exchange allows a leverage of {terms.max_leverage:g}")
        return ", and ".join(reasons)

    def check_symbols(self, symbols: Sequence[str]) -> None:
        """Refuse order steps or terms of a symbol that is not in the panel."""
        tables = {
            "symbol_filters": set(self.symbol_filters),
            "instruments": set(self.instruments),
        }
        for name, named in tables.items():
            foreign = sorted(named - set(symbols))
            if foreign:
                raise DataError(
                    "data-symbol",
                    wrong=f"`{name}` must name symbols of the panel",
                    found=f"`{foreign[0]}` and a panel of {', '.join(symbols)}",
                    remedy="Write the symbol as the panel does, or leave its entry out.",
                )


def _cure(symbol: str) -> str:
    if ":" in symbol:
        return "take a smaller leverage"
    return (
        f'choose margin: `instruments."{symbol}"` with `kind = "margin"`, a `borrow_rate` to go '
        "short and a `quote_borrow_rate` to go beyond 1"
    )
