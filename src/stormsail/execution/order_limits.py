"""`OrderLimits`: what an operator allows an order, and the same in numbers for a capital."""

from decimal import Decimal
from typing import Annotated, NamedTuple

from pydantic import Field

from stormsail.core.config import Config

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Amount = Annotated[float, Field(gt=0.0)]


class OrderLimits(Config):
    """Limits of the operator. Amounts are in quote currency; those left out follow the capital."""

    price_collar: Share = 0.02
    """Largest distance of an order's price from the mid, as a share of it."""

    max_quote_age_s: Amount = 5.0
    """Oldest mid that counts as fresh."""

    max_order_notional: Amount | None = None
    """Of one order; None is twice the largest position, so that a position can be turned."""

    max_position: Amount | None = None
    """Of one symbol, long or short; None is the capital times `max_leverage`."""

    max_gross_exposure: Amount | None = None
    """Of all symbols, long and short added; None is the capital times `max_leverage`."""

    max_leverage: Amount = 1.0
    """Gross exposure over equity."""

    leverage_slack: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.02
    """Share by which exposure may pass limits that follow the capital, and the leverage: a price
    moves between the decision and the fill."""

    max_orders_per_minute: Annotated[int, Field(ge=1)] = 60
    """Orders of the agent; protective and closing orders always pass."""

    max_messages_per_minute: Annotated[int, Field(ge=1)] = 300
    """Requests that change something: orders and cancels."""

    max_daily_loss: Share = 0.05
    """Since the UTC day began, of the equity then."""

    max_drawdown: Share = 0.20
    """Below the highest equity."""

    max_data_age_bars: Annotated[float, Field(gt=0.0, le=2.0)] = 2.0
    """Age of the newest closed bar, counted from its close, in bars."""

    max_repeats: Annotated[int, Field(ge=1)] = 4
    """Orders of one symbol and side within `repeat_window_s`."""

    repeat_window_s: Amount = 60.0
    """Seconds in which they are counted."""

    def resolved(self, capital: float) -> "Bounds":
        """Return the limits in numbers for a capital."""
        most = capital * self.max_leverage * (1.0 + self.leverage_slack)
        position = most if self.max_position is None else self.max_position
        return Bounds(
            collar=_decimal(self.price_collar),
            quote_age_ms=1000.0 * self.max_quote_age_s,
            order=_decimal(
                2.0 * position if self.max_order_notional is None else self.max_order_notional
            ),
            position=_decimal(position),
            gross=_decimal(most if self.max_gross_exposure is None else self.max_gross_exposure),
            leverage=_decimal(self.max_leverage) * (1 + _decimal(self.leverage_slack)),
            orders=self.max_orders_per_minute,
            messages=self.max_messages_per_minute,
            daily_loss=_decimal(self.max_daily_loss),
            drawdown=_decimal(self.max_drawdown),
            data_age_bars=self.max_data_age_bars,
            repeats=self.max_repeats,
            repeat_ms=1000.0 * self.repeat_window_s,
        )


class Bounds(NamedTuple):
    """`OrderLimits` in numbers."""

    collar: Decimal
    quote_age_ms: float
    order: Decimal
    position: Decimal
    gross: Decimal
    leverage: Decimal
    orders: int
    messages: int
    daily_loss: Decimal
    drawdown: Decimal
    data_age_bars: float
    repeats: int
    repeat_ms: float


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))
