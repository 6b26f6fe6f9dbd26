"""What can go wrong between a trader and an exchange, as values: named, seeded, repeatable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Group = Literal["data", "info", "order", "cancel", "query", "list", "account", "other"]
"""Kinds of requests that are counted separately: a fault strikes the n-th of one group."""

Json = object
Rows = Callable[[Json], Json]

LOST_BEFORE = ("refuse", "reset", "hang", "status")
"""The request has no effect."""
LOST_AFTER = ("reset_after", "hang_after", "torn", "cut", "text", "status_after", "late", "hidden")
"""The request has its effect, and the answer does not say so."""
ODD = ("drip", "rows")
"""The request has its effect; the answer is slow, or not quite what it should be."""
WORLD = (
    "partial", "overfill", "fill_first", "third_fee", "manual_close", "external", "liquidate",
    "filters", "delist", "halt", "maintenance", "ban", "skew", "stale",
)  # fmt: skip
"""Something happens at the exchange just before the request is handled."""
STREAM = ("ws_duplicate", "ws_reorder", "ws_stall", "ws_disconnect")
"""Something happens to the messages of the streams from then on, for `seconds`."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer, or in the world when a request arrives.

    Attributes:
        kind: one of `LOST_BEFORE`, `LOST_AFTER`, `ODD`, `WORLD` and `STREAM`.
        status: HTTP status of `status` and `status_after`.
        body: text of `status`, `status_after`, `text` and `cut`.
        headers: extra headers.
        seconds: how long it lasts; `hang` is silent for so long on a real connection.
        rows: what `rows` makes of the right answer.
    """

    kind: str
    status: int = 200
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    rows: Rows = lambda right: right


def code(number: int, words: str, *, status: int = 400, after: bool = False) -> Fault:
    """Return a fault that answers one of Binance's codes, with or without the effect."""
    kind = "status_after" if after else "status"
    return Fault(kind, status=status, body=f'{{"code":{number},"msg":"{words}"}}')


def _changed(name: str, value: str) -> Rows:
    return lambda right: {**right, name: value} if isinstance(right, dict) else right


_HTML = "<html><body>Bad gateway</body></html>"
_TIMEOUT = "Timeout waiting for response from backend server. Send status unknown."
_UNKNOWN = "An unexpected response was received from the message bus. Execution status unknown."

ORDER_FAULTS: dict[str, Fault] = {
    "refuse": Fault("refuse"),
    "reset before": Fault("reset"),
    "reset after": Fault("reset_after"),
    "hang then accept": Fault("hang_after", seconds=60.0),
    "hang then reject": Fault("hang", seconds=60.0),
    "drip": Fault("drip", seconds=1.0),
    "torn": Fault("torn"),
    "cut": Fault("cut"),
    "no JSON": Fault("text", body="OK"),
    "empty": Fault("text", body=""),
    "empty object": Fault("text", body="{}"),
    "502 before": Fault("status", status=502, body=_HTML),
    "502 after": Fault("status_after", status=502, body=_HTML),
    "503 before": Fault("status", status=503, body=_HTML),
    "503 after": Fault("status_after", status=503, body=_HTML),
    "429 with Retry-After": Fault("status", status=429, headers={"Retry-After": "7"}),
    "429": Fault("status", status=429, body='{"code":-1003,"msg":"Too many requests."}'),
    "418": Fault("ban", seconds=30.0),
    "-1003": code(-1003, "Too much request weight used.", status=429),
    "-1006 before": code(-1006, _UNKNOWN),
    "-1006 after": code(-1006, _UNKNOWN, after=True),
    "-1007 before": code(-1007, _TIMEOUT, status=408),
    "-1007 after": code(-1007, _TIMEOUT, status=408, after=True),
    "-1008": code(-1008, "Server is currently overloaded.", status=503),
    "-1015": code(-1015, "Too many new orders.", status=429),
    "-1021": code(-1021, "Timestamp for this request is outside of the recvWindow."),
    "-2010": code(-2010, "Account has insufficient balance for requested action."),
    "accepted, not visible": Fault("late", seconds=8.0),
    "visible, query denies": Fault("hidden", seconds=8.0),
    "partial": Fault("partial"),
    "overfill": Fault("overfill"),
    "fee in a third currency": Fault("third_fee"),
    "wrong symbol echo": Fault("rows", rows=_changed("symbol", "XRPUSDT")),
    "wrong client id echo": Fault("rows", rows=_changed("clientOrderId", "somebody-else")),
    "wrong quantity echo": Fault("rows", rows=_changed("origQty", "77.00000000")),
    "wrong side echo": Fault("rows", rows=_changed("side", "NEITHER")),
    "null id echo": Fault("rows", rows=_changed("orderId", "")),
    "maintenance": Fault("maintenance", seconds=20.0),
    "manual close": Fault("manual_close"),
    "external order": Fault("external"),
    "liquidation": Fault("liquidate"),
    "filters change": Fault("filters"),
    "halt": Fault("halt", seconds=20.0),
    "clock skew": Fault("skew", seconds=20.0),
}
"""Faults of the request that sends an order, by the name that a failing scenario is told with."""

QUERY_FAULTS: dict[str, Fault] = {
    name: ORDER_FAULTS[name]
    for name in (
        "refuse", "reset before", "hang then reject", "torn", "no JSON", "empty", "empty object",
        "502 before", "503 before", "429 with Retry-After", "429", "418", "-1003", "-1021",
        "maintenance", "manual close", "external order",
    )
} | {
    "-2013": code(-2013, "Order does not exist."),
    "-1001": code(-1001, "Internal error.", status=500),
    "wrong symbol row": Fault("rows", rows=_changed("symbol", "XRPUSDT")),
}  # fmt: skip
"""Faults of the requests by which an order is found again."""

CANCEL_FAULTS: dict[str, Fault] = {
    name: ORDER_FAULTS[name]
    for name in (
        "refuse", "reset before", "reset after", "hang then accept", "torn", "no JSON",
        "502 before", "502 after", "429 with Retry-After", "-1006 after", "-1007 before",
    )
} | {
    "-2011": code(-2011, "Unknown order sent."),
    "fill during cancel": Fault("fill_first"),
}  # fmt: skip
"""Faults of a cancellation."""

STREAM_FAULTS: dict[str, Fault] = {
    "duplicate event": Fault("ws_duplicate", seconds=30.0),
    "reordered events": Fault("ws_reorder", seconds=30.0),
    "silent stall": Fault("ws_stall", seconds=30.0),
    "disconnect": Fault("ws_disconnect", seconds=10.0),
}
"""Faults of the streams; they begin with the request that they are drawn for."""

_GROUPS: Sequence[tuple[Group, dict[str, Fault]]] = (
    ("order", ORDER_FAULTS),
    ("order", STREAM_FAULTS),
    ("query", QUERY_FAULTS),
    ("list", QUERY_FAULTS),
    ("account", QUERY_FAULTS),
    ("cancel", CANCEL_FAULTS),
)


def draw_faults(
    generator: np.random.Generator, count: int, *, latest: int = 3
) -> dict[tuple[Group, int], tuple[str, Fault]]:
    """Draw faults: which request of which group each strikes, and by which name.

    Half of them strike the sending of orders, where a mistake costs money.

    Args:
        generator: draws.
        count: how many.
        latest: number of the last request of a group that is struck.
    """
    plan: dict[tuple[Group, int], tuple[str, Fault]] = {}
    while len(plan) < count:
        drawn = 0 if generator.random() < 0.5 else int(generator.integers(1, len(_GROUPS)))
        group, faults = _GROUPS[drawn]
        name = sorted(faults)[int(generator.integers(len(faults)))]
        plan[group, int(generator.integers(1, latest + 1))] = name, faults[name]
    return plan
