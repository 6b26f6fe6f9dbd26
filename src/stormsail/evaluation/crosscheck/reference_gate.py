"""The risk gate and the no-trade windows in plain Decimals, for the reference ledger.

Written from the rules, independently of the tensor code, so that the two can check each other.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from stormsail.evaluation.crosscheck.reference_account import EXACT, RATIO_DOWN, ZERO, written

if TYPE_CHECKING:
    from stormsail.market.simulator.config import NoTrade, RiskLimits

DAY_MS = 86_400_000
_MINUTE_MS = 60_000
_FUNDING_MS = 8 * 60 * _MINUTE_MS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reason(IntEnum):
    """Why the allowed weight differs from the proposed one; the gate's numbers."""

    NONE = 0
    LEVERAGE = 1
    POSITION = 2
    TURNOVER = 3
    DAILY_LOSS = 4
    DRAWDOWN = 5
    BANKRUPT = 6
    NONFINITE = 7


class ReferenceLimits(NamedTuple):
    """Bounds of the gate; None is off."""

    max_position: Decimal | None
    max_leverage: Decimal
    max_turnover: Decimal | None
    max_drawdown: Decimal | None
    max_daily_loss: Decimal | None
    min_equity: Decimal

    @classmethod
    def of(cls, limits: "RiskLimits") -> "ReferenceLimits":
        """Return the limits of a configuration as they are written there."""

        def bound(value: float | None) -> Decimal | None:
            return None if value is None else written(value)

        return cls(
            max_position=bound(limits.max_position),
            max_leverage=written(limits.max_leverage),
            max_turnover=bound(limits.max_turnover),
            max_drawdown=bound(limits.max_drawdown),
            max_daily_loss=bound(limits.max_daily_loss),
            min_equity=written(limits.min_equity),
        )


class GateInputs(NamedTuple):
    """Inputs of the gate: held weight, equity, its peak, and start and turnover of the day."""

    held: Decimal
    equity: Decimal
    peak: Decimal
    day_start: Decimal
    turnover: Decimal


def reference_gate(
    weight: Decimal | None, inputs: GateInputs, limits: ReferenceLimits
) -> tuple[Decimal, Reason]:
    """Return the allowed weight, and the most severe stage that changed the proposal.

    The stages of `functional.risk_gate`, each acting on what the one before left. None or a
    number that is not finite stands for the held weight. A result that equals `inputs.held`
    means that nothing is to be traded.
    """
    allowed, reason = inputs.held, Reason.NONFINITE
    if weight is not None and weight.is_finite():
        allowed, reason = weight, Reason.NONE
    with localcontext(EXACT):
        for stage, rule in _STAGES:
            cut = rule(allowed, inputs, limits)
            if cut != allowed:
                allowed, reason = cut, max(reason, stage)
    return allowed, reason


def _between(weight: Decimal, low: Decimal, high: Decimal) -> Decimal:
    return max(low, min(weight, high))


def _leverage(weight: Decimal, inputs: GateInputs, limits: ReferenceLimits) -> Decimal:
    del inputs
    return _between(weight, -limits.max_leverage, limits.max_leverage)


def _position(weight: Decimal, inputs: GateInputs, limits: ReferenceLimits) -> Decimal:
    limit = limits.max_position
    if limit is None or abs(weight) * inputs.equity <= limit:
        return weight
    cap = RATIO_DOWN.divide(limit, inputs.equity)
    return _between(weight, -cap, cap)


def _turnover(weight: Decimal, inputs: GateInputs, limits: ReferenceLimits) -> Decimal:
    if limits.max_turnover is None:
        return weight
    held, left = inputs.held, max(limits.max_turnover - inputs.turnover, ZERO)
    change = weight - held
    towards_zero = held * weight >= 0 and abs(weight) <= abs(held)
    if abs(change) <= left or towards_zero:
        return weight
    cut = held + left.copy_sign(change)
    # A proposal on the other side of zero gets at least to zero, whatever is left.
    return ZERO if held * weight < 0 and held * cut > 0 else cut


def _fell(equity: Decimal, reference: Decimal, limit: Decimal | None) -> bool:
    return limit is not None and reference - equity >= limit * reference


def _reduce_only(weight: Decimal, held: Decimal) -> Decimal:
    return _between(weight, min(held, ZERO), max(held, ZERO))


def _daily_loss(weight: Decimal, inputs: GateInputs, limits: ReferenceLimits) -> Decimal:
    tripped = _fell(inputs.equity, inputs.day_start, limits.max_daily_loss)
    return _reduce_only(weight, inputs.held) if tripped else weight


def _drawdown(weight: Decimal, inputs: GateInputs, limits: ReferenceLimits) -> Decimal:
    tripped = _fell(inputs.equity, inputs.peak, limits.max_drawdown)
    return _reduce_only(weight, inputs.held) if tripped else weight


def _bankrupt(weight: Decimal, inputs: GateInputs, limits: ReferenceLimits) -> Decimal:
    return ZERO if inputs.equity <= 0 or inputs.equity < limits.min_equity else weight


_STAGES: tuple[tuple[Reason, Callable[[Decimal, GateInputs, ReferenceLimits], Decimal]], ...] = (
    (Reason.LEVERAGE, _leverage),
    (Reason.POSITION, _position),
    (Reason.TURNOVER, _turnover),
    (Reason.DAILY_LOSS, _daily_loss),
    (Reason.DRAWDOWN, _drawdown),
    (Reason.BANKRUPT, _bankrupt),
)


def same_day(ts_ms: int, other_ms: int) -> bool:
    """Return whether two instants lie on one UTC day."""
    return ts_ms // DAY_MS == other_ms // DAY_MS


class NoTradeTimes:
    """The instants at which no order is sent; every window includes its start, not its end."""

    def __init__(self, no_trade: "NoTrade") -> None:
        self._daily = [_daily_window(window) for window in no_trade.daily]
        self._ranges = [
            (_microseconds(start), _microseconds(end)) for start, end in no_trade.ranges
        ]
        self._around_ms = no_trade.around_funding_minutes * _MINUTE_MS

    def __contains__(self, ts_ms: int) -> bool:
        since_midnight = ts_ms % DAY_MS
        for start, end in self._daily:
            if start < end and start <= since_midnight < end:
                return True
            if start > end and not end <= since_midnight < start:
                return True
        if any(start <= 1000 * ts_ms < end for start, end in self._ranges):
            return True
        since_funding = ts_ms % _FUNDING_MS
        nearest = min(since_funding, _FUNDING_MS - since_funding)
        return self._around_ms > 0 and nearest <= self._around_ms


def _daily_window(window: str) -> tuple[int, int]:
    start, end = window.split("-")
    return _clock_ms(start), _clock_ms(end)


def _clock_ms(clock: str) -> int:
    hours, minutes = clock.split(":")
    return (60 * int(hours) + int(minutes)) * _MINUTE_MS


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)
