"""An order gate with limits of its own, before a venue that counts what it is sent."""

from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

from stormsail.core.clock import ManualClock
from stormsail.execution.journal import Binding, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.order_gate import (
    AccountView,
    Exposure,
    MarketView,
    OrderGate,
    Proposal,
)
from stormsail.execution.order_limits import OrderLimits
from stormsail.execution.venue import Accepted, Market, Order, OrderRequest, Refused, Unknown

SYMBOL, OTHER = "BTC/USDT:USDT", "ETH/USDT:USDT"
D = Decimal
MARKET = Market(
    SYMBOL, "perpetual", "trading", "BTC", "USDT", "USDT", D("0.5"), D("0.01"), D("0.01"),
    D("0.02"), D(50), D(10), D("0.0002"), D("0.0005"),
)  # fmt: skip
LIMITS = OrderLimits(
    price_collar=0.02,
    max_order_notional=2_000.0,
    max_position=3_000.0,
    max_gross_exposure=4_000.0,
    max_leverage=2.0,
    leverage_slack=0.0,
    max_orders_per_minute=5,
    max_messages_per_minute=8,
    max_daily_loss=0.05,
    max_drawdown=0.2,
    max_repeats=3,
    repeat_window_s=30.0,
)
VIEW = MarketView(MARKET, D(100), 0.0, 0.5)
VIEWS = {SYMBOL: VIEW, OTHER: MarketView(replace(MARKET, symbol=OTHER), D(10), 0.0, 0.5)}
ACCOUNT = AccountView(D(10_000), D(10_000), D(10_000), {}, {SYMBOL: D(100), OTHER: D(10)})


class Nowhere:
    """A venue that counts."""

    kind = "perpetual"

    def __init__(self, outcome=None):
        self.sent, self.outcome = [], outcome or Unknown("no answer")

    def submit(self, request):
        self.sent.append(request)
        return self.outcome

    def at_once(self, calls):
        return [call() for call in calls]

    def cancel(self, *_):
        return Refused("-2011", "none")


def proposal(quantity="1", side="buy", leg="target", number=0, symbol=SYMBOL, **changes):
    name = f"id-{leg}-{number}"
    request = OrderRequest(name, symbol, side, changes.pop("type", "market"), D(quantity))
    return Proposal(replace(request, **changes), 1, leg, number, D(100))


@contextmanager
def open_gate(folder):
    """Yield a gate that is ready, with a journal in a folder."""
    clock = ManualClock()
    journal = Journal(folder / "j", Binding("a", "b", "live", "1h", "USDT"), epoch="e", now_ms=0)
    made = OrderGate(
        Nowhere(),
        journal,
        KillSwitch(folder, clock),
        LIMITS.resolved(10_000.0),
        [SYMBOL, OTHER],
        clock,
    )
    made.ready = True
    try:
        yield made
    finally:
        journal.close()


def held(low, high=None, symbol=SYMBOL, **changes):
    exposure = Exposure(D(low), D(low if high is None else high))
    return replace(ACCOUNT, exposures={symbol: exposure}, **changes)


def codes(outcomes):
    return [getattr(outcome, "code", "sent") for outcome in outcomes]


def taken(quantity="1"):
    """Return the answer to an order that was taken and filled."""
    filled, nothing = D(quantity), D(0)
    return Accepted(
        Order(
            "id", "1", SYMBOL, "buy", "market", "filled", filled, filled, nothing, None, None,
            False, 0,
        )
    )  # fmt: skip
