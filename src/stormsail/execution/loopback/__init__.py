"""An exchange on this machine: Binance's dialect, its own ledger, a clock and faults of ours."""

from stormsail.execution.loopback.clock import VirtualClock
from stormsail.execution.loopback.exchange import Exchange, Request
from stormsail.execution.loopback.faults import Fault, draw_faults
from stormsail.execution.loopback.server import Loopback
from stormsail.execution.loopback.tape import candles, candles_of, rates

__all__ = [
    "Exchange",
    "Fault",
    "Loopback",
    "Request",
    "VirtualClock",
    "candles",
    "candles_of",
    "draw_faults",
    "rates",
]
