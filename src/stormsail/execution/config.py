"""Settings of trading: limits of orders and tails, protection, the feed; a TOML file holds them."""

from typing import Annotated

from pydantic import Field

from stormsail.core.config import Config
from stormsail.execution.order_limits import OrderLimits, Share
from stormsail.execution.venue import MarginMode


class TailLimits(Config):
    """Limits from the agent's own forecast of its tail."""

    alpha: Annotated[float, Field(ge=0.01, le=0.5)] = 0.05
    """Tail share of the CVaR."""

    max_cvar: Share | None = None
    """Largest predicted loss in the tail over the risk horizon, as a share of equity; above it only
    reducing is allowed. None switches it off."""

    outside_days: Annotated[int, Field(ge=1)] = 5
    """Days in a row on which realised returns fell below the band before trading halts."""

    halt: bool = True
    """Whether such days halt trading; false only warns."""


class Protection(Config):
    """What stays at the exchange when this process is gone."""

    stop_distance: Share | None = 0.1
    """Distance of the protective stop from the entry price, as a share of it. None places none, and
    a venue without stops has none."""

    deadline_s: Annotated[float, Field(gt=0.0, le=60.0)] = 1.0
    """Seconds after a fill in which the stop must stand; one that comes later is an alarm.

    A position that gets none is closed, however soon that is known."""

    dead_man_s: Annotated[float, Field(ge=5.0)] | None = None
    """Countdown after which the exchange cancels all orders of a symbol by itself, renewed after a
    quarter of it. It cancels protective stops as well, so it is off where stops are placed."""


class Margin(Config):
    """Leverage and margin mode of perpetuals at the exchange; spot has neither."""

    leverage: Annotated[int, Field(ge=1, le=125)] | None = None
    """Largest leverage that the exchange is to allow a symbol. None accepts what is set, as long as
    it is enough for `limits.max_leverage`."""

    mode: MarginMode | None = None
    """`isolated` or `cross`. None accepts what is set."""

    change: bool = False
    """Whether a start may set them at the exchange; false refuses an account in which they
    differ."""


class Feed(Config):
    """Bars and clock."""

    burn_in: Annotated[int, Field(ge=0)] = 64
    """Bars on which the agent's memory is warmed up before the first decision."""

    bar_grace_s: Annotated[float, Field(ge=0.0)] = 10.0
    """Seconds after a close in which a bar must arrive; a symbol without it has a missing bar."""

    poll_s: Annotated[float, Field(gt=0.0)] = 1.0
    """Seconds between questions while something is waited for."""

    max_clock_offset_ms: Annotated[float, Field(gt=0.0)] = 500.0
    """Largest difference between this machine's clock and the exchange's."""

    max_missing_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """Share of missing bars in the window of a symbol up to which its holes are carried."""

    visible_after_s: Annotated[float, Field(gt=0.0)] = 60.0
    """Age after which an order that the exchange does not know counts as never received."""


class TradingConfig(Config):
    """Everything an operator sets; what the agent was trained with is in its own file."""

    limits: OrderLimits = OrderLimits()
    """The order gate."""

    tail: TailLimits = TailLimits()
    """The agent's own forecast."""

    protection: Protection = Protection()
    """Stops and countdown at the exchange."""

    margin: Margin = Margin()
    """Leverage and margin mode at the exchange."""

    feed: Feed = Feed()
    """Bars and clock."""
