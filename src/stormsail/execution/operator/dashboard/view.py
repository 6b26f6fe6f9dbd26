"""What the dashboard shows: plain values, made by whoever runs the agent; never a secret."""

import dataclasses
import json
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PositionRow:
    """One symbol: what is held beside what the agent wants to hold."""

    symbol: str
    weight: float
    """Of equity, signed."""
    target: float | None
    """Last allowed weight; None before the first decision."""
    quantity: str
    price: str
    """Last close."""
    value: float
    """In the account's currency."""


@dataclass(frozen=True)
class OrderRow:
    """One order that may still be filled, or whose outcome is unknown."""

    client_id: str
    symbol: str
    side: str
    quantity: str
    filled: str
    kind: str
    status: str
    since_ms: int


@dataclass(frozen=True)
class DecisionRow:
    """One decision: proposed weight, what the gates allowed, and why."""

    at_ms: int
    symbol: str
    proposed: float
    allowed: float
    reason: str
    """Of the risk gate and the order gate, in words; empty where nothing was changed."""


@dataclass(frozen=True)
class Tail:
    """The predicted tail beside the realised one, over the agent's risk horizon."""

    horizon: str
    alpha: float
    predicted: float | None
    """CVaR that the critics predict now, in log growth."""
    realised: float | None
    """CVaR of the finished windows; None while there are too few."""
    windows: int
    limit: float | None
    """The operator's; below it the agent may only reduce."""


@dataclass(frozen=True)
class Health:
    """Whether the machinery around the agent works; None where nothing was measured yet."""

    data_age_s: float | None
    """Since the close of the newest bar."""
    clock_offset_ms: float | None
    """Venue less this machine."""
    rate_used: float | None
    """Share of the venue's request budget that is used."""
    journal_lag_ms: float | None
    """Duration of the last durable write."""
    heartbeat_age_s: float
    """Since the loop last turned; a loop that hangs is found by it."""
    uptime_s: float


@dataclass(frozen=True)
class EventRow:
    """One line of the journal for people."""

    at_ms: int
    level: str
    """`info`, `warning` or `alert`."""
    text: str


@dataclass(frozen=True)
class View:
    """Everything that the page shows at one moment."""

    name: str
    mode: str
    """`paper` or `live`."""
    venue: str
    account: str
    """As people call it; never a key."""
    currency: str
    at_ms: int
    """On the clock of the run, which is a virtual one in a demonstration."""
    state: str
    """`STARTING`, `ACTIVE`, `REDUCING`, `HALTED` or `STOPPED`."""
    state_reason: str
    killed: str | None
    """Why the kill switch is latched; None where it is not."""
    equity: float | None
    equity_start: float | None
    drawdown: float | None
    """From the highest equity, a share of at most 0."""
    day_return: float | None
    curve_ms: tuple[int, ...]
    curve_equity: tuple[float, ...]
    positions: tuple[PositionRow, ...]
    orders: tuple[OrderRow, ...]
    decisions: tuple[DecisionRow, ...]
    """Newest first."""
    tail: Tail | None
    health: Health
    events: tuple[EventRow, ...]
    """Newest first."""

    def as_json(self) -> str:
        """Return the view as JSON; numbers that are not finite become null."""
        return json.dumps(_finite(dataclasses.asdict(self)), separators=(",", ":"), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
