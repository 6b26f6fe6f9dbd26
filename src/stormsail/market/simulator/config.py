"""Configuration of a market: episodes, actions, costs, margin, order filters, risk limits, feed."""

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from stormsail.core.config import Config
from stormsail.core.errors import DataError
from stormsail.functional.risk_gate import Limits
from stormsail.market.features import FeatureSpec

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=-1.0, lt=1.0)]

_DAY_MINUTES = 24 * 60


def _multiplier_range(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not 0.0 <= low <= high:
        raise ValueError(f"must be two numbers 0 <= low <= high, not ({low}, {high})")
    return bounds


MultiplierRange = Annotated[tuple[float, float], AfterValidator(_multiplier_range)]


class Costs(Config):
    """What a fill costs. Fractions of the traded notional, not percent or basis points."""

    taker_fee: Share = 0.0005
    """Fee on the filled notional."""

    half_spread: Share = 0.0002
    """Distance of the best price from the open, as a share of it."""

    impact: Annotated[float, Field(ge=0.0)] = 0.01
    """Price impact of trading as much as one bar's mean notional; it grows with the square root."""

    impact_window: Annotated[int, Field(ge=1)] = 24
    """Closed bars over which that mean is taken."""


class Margin(Config):
    """When a leveraged position is taken away, and what that costs."""

    maintenance: Share = 0.005
    """Equity must stay above this share of the position's notional."""

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
    """Steps and minimum of an exchange's orders; 0 switches one off, as in training."""

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

    levels: Annotated[tuple[float, ...], AfterValidator(_levels)] = (-1.0, -0.5, 0.0, 0.5, 1.0)
    """Target weights on offer, as signed shares of equity."""

    weight_range: Annotated[tuple[float, float], AfterValidator(_weight_range)] = (-1.0, 1.0)
    """Lowest and highest weight of a continuous action."""

    min_rebalance: Annotated[float, Field(ge=0.0)] = 0.0
    """A smaller change of weight is not traded, unless it closes the position."""

    funding: bool = True
    """Whether perpetuals pay their funding rates."""

    funding_missing: Literal["refuse", "zero"] | Rate = "refuse"
    """What settlements without a known rate pay: a rate, or nothing. `refuse` demands that 99 % of
    them are known, and lets the rest pay nothing."""

    ruin_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """Taken from the reward of the step in which equity falls to the floor."""

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
    """Order steps of every symbol that has none of its own."""

    symbol_filters: dict[str, Filters] = Field(default_factory=dict)
    """Order steps by symbol."""

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
        offered = self.levels if self.action == "levels" else self.weight_range
        widest = max(abs(weight) for weight in offered)
        if widest > self.limits.max_leverage:
            raise ValueError(
                f"the weights on offer must stay within `limits.max_leverage` "
                f"{self.limits.max_leverage}, not reach {widest}"
            )
        for name in ("taker_fee", "half_spread"):
            dearest = getattr(self.costs, name) * getattr(self.randomise, name)[1]
            if dearest >= 1.0:
                raise ValueError(
                    f"`costs.{name}` times the largest `randomise.{name}` must stay below 1, not "
                    f"{dearest:g}: such a trade would cost all it is worth"
                )
        if self.limits.max_leverage * self.margin.maintenance >= 1.0:
            raise ValueError(
                f"`limits.max_leverage` times `margin.maintenance` must stay below 1, not "
                f"{self.limits.max_leverage * self.margin.maintenance:g}: such a position would "
                f"be liquidated as it opens"
            )
        return self

    @property
    def ruin_equity(self) -> float:
        """Equity at which an account counts as ruined, in quote currency."""
        return self.stops.equity_floor * self.initial_equity

    def filters_of(self, symbol: str) -> Filters:
        """Return the order steps of a symbol."""
        return self.symbol_filters.get(symbol, self.filters)

    def check_symbols(self, symbols: Sequence[str]) -> None:
        """Refuse order steps of a symbol that is not in the panel."""
        foreign = sorted(set(self.symbol_filters) - set(symbols))
        if foreign:
            raise DataError(
                "data-symbol",
                wrong="`symbol_filters` must name symbols of the panel",
                found=f"`{foreign[0]}` and a panel of {', '.join(symbols)}",
                remedy="Write the symbol as the panel does, or leave its filters out.",
            )
