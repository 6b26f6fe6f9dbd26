"""A view with every kind of row, and a dashboard over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from stormsail.core.clock import ManualClock
from stormsail.core.errors import StormsailError
from stormsail.execution.operator.dashboard.server import Dashboard
from stormsail.execution.operator.dashboard.view import (
    DecisionRow,
    EventRow,
    Health,
    OrderRow,
    PositionRow,
    Tail,
    View,
)

HOUR = 3_600_000
START = 1_700_000_000_000
TOKEN = "t" * 43
EQUITY = (100_000.0, 101_000.0, 99_990.0, 104_000.0, 98_800.0)

VIEW = View(
    name="quickstart on BTC",
    mode="paper",
    venue="loopback",
    account="demo",
    currency="USDT",
    at_ms=START + 4 * HOUR,
    state="ACTIVE",
    state_reason="",
    killed=None,
    equity=EQUITY[-1],
    equity_start=EQUITY[0],
    drawdown=-0.05,
    day_return=-0.012,
    curve_ms=tuple(START + i * HOUR for i in range(5)),
    curve_equity=EQUITY,
    positions=(PositionRow("BTC/USDT:USDT", 0.41, 0.6, "1.203", "34120.5", 41_046.2),),
    orders=(
        OrderRow("ss-1", "BTC/USDT:USDT", "sell", "1.203", "0", "stop", "open", START + 3 * HOUR),
    ),
    decisions=(DecisionRow(START + 4 * HOUR, "BTC/USDT:USDT", 0.6, 0.41, "max leverage"),),
    tail=Tail("24 h", 0.05, -0.092, float("nan"), 3, -0.1),
    health=Health(12.2, -31.0, 0.18, 1.3, 0.4, 90_061.0),
    events=(EventRow(START, "alert", "<b>READY</b>"),),
)


class Desk:
    """Holds the view that is shown, and the reasons for which it was killed."""

    def __init__(self) -> None:
        self.shown = VIEW
        self.problem: StormsailError | None = None
        self.killed: list[str] = []
        self.clock = ManualClock()

    def view(self) -> View:
        if self.problem is not None:
            raise self.problem
        return self.shown

    def kill(self, reason: str) -> None:
        self.killed.append(reason)
        self.shown = replace(self.shown, killed=reason, state="HALTED")


@contextmanager
def dashboard(desk: Desk) -> Iterator[Dashboard]:
    with Dashboard(desk.view, desk.kill, TOKEN, clock=desk.clock) as running:
        yield running
