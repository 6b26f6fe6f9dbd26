"""The view of an account's folder: from its journal and pulse, never from the trader's memory.

So the page shows what is on disk, a dashboard in another process shows the same, and a trader that
hangs is seen to hang.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stormsail.core.clock import Clock, SystemClock
from stormsail.execution.journal import NAME, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.operator.dashboard.history import History, Seen
from stormsail.execution.operator.dashboard.view import (
    DecisionRow,
    EventRow,
    Health,
    OrderRow,
    PositionRow,
    Tail,
    View,
)
from stormsail.execution.operator.status import Status, read_status
from stormsail.functional.risk_gate import Reason
from stormsail.market.interval import Interval

POINTS = 600
"""Most points of the curve; a longer history is thinned evenly, its last bar always shown."""

ROWS = 20
"""Decisions and events shown."""

ENOUGH_WINDOWS = 20
"""Windows that share no bar from which a realised tail is shown: one in the worst 5 %."""

_DIGITS = 12
"""Of quantities and prices: more than a venue states, fewer than a float has."""

LEVELS = {"info": "info", "warning": "warning", "alarm": "alert"}


@dataclass(frozen=True)
class FolderView:
    """Makes views of one account's folder.

    Attributes:
        folder: of the account.
        name: what is traded, as the operator calls it.
        clock: of the run, which is a virtual one in a demonstration.
    """

    folder: Path
    name: str
    clock: Clock
    _history: History = field(default_factory=History)

    def __call__(self) -> View:
        """Return the account as it is on disk now."""
        status = read_status(self.folder, SystemClock(), rows=ROWS)
        journal = Journal.reading(self.folder / NAME)
        try:
            seen = self._history.look(journal, *_horizon(status))
            sessions = journal.rows("SELECT started_ms FROM sessions ORDER BY id DESC LIMIT 1")
        finally:
            journal.close()
        now = self.clock.now_ns() // 1_000_000
        uptime = max(0, now - int(str(sessions[0][0]))) / 1000.0 if sessions else 0.0
        return _view(self.name, now, status, seen, uptime)

    def kill(self, source: str) -> None:
        """Trip the kill switch of the folder."""
        KillSwitch(self.folder, SystemClock()).trip(source=source, words="the kill button")


def _view(name: str, now_ms: int, status: Status, seen: Seen, uptime_s: float) -> View:
    table = seen.equity
    shown = np.unique(np.linspace(0, max(len(table) - 1, 0), min(len(table), POINTS)).astype(int))
    curve = table[shown] if len(table) else table
    equity = float(table[-1, 1]) if len(table) else None
    snapshot = status.snapshot or {}
    return View(
        name=name,
        mode=status.meta["mode"],
        venue="a drawn market" if _is_demo(status) else status.meta["venue"],
        account=status.meta["account"],
        currency=status.meta["quote"],
        at_ms=now_ms,
        state=_state(status),
        state_reason=_reason(status),
        killed=status.kill_switch,
        equity=equity,
        equity_start=float(table[0, 1]) if len(table) else None,
        drawdown=float(table[-1, 1] / table[-1, 2] - 1.0) if len(table) else None,
        day_return=float(table[-1, 1] / table[-1, 3] - 1.0) if len(table) else None,
        curve_ms=tuple(int(ts) for ts in curve[:, 0]),
        curve_equity=tuple(float(total) for total in curve[:, 1]),
        positions=_positions(snapshot),
        orders=tuple(_order(row) for row in seen.orders),
        decisions=_decisions(status),
        tail=_tail(status, snapshot, seen),
        health=_health(status, snapshot, uptime_s),
        events=tuple(
            EventRow(notice.at_ms, LEVELS.get(notice.severity, "warning"), _sentence(notice))
            for notice in status.notices
        ),
    )


def _is_demo(status: Status) -> bool:
    settings = status.session.get("settings")
    return isinstance(settings, dict) and settings.get("demo") is True


def _state(status: Status) -> str:
    if status.life != "trading":
        return "HALTED" if status.life == "hung" else "STOPPED"
    return str(status.snapshot["state"]) if status.snapshot else "STARTING"


def _reason(status: Status) -> str:
    if status.life == "hung":
        return f"the trader has given no sign of life for {status.pulse_age_s or 0.0:.0f} s"
    reasons = (status.snapshot or {}).get("reasons")
    if not isinstance(reasons, dict):
        return ""
    return "; ".join(f"{name}: {words}" for name, words in reasons.items())


def _sentence(notice: object) -> str:
    place = f" {notice.symbol}" if getattr(notice, "symbol", None) else ""  # type: ignore[attr-defined]
    return f"{notice.name}{place}: {notice.words}"  # type: ignore[attr-defined]


def _positions(snapshot: Mapping[str, object]) -> tuple[PositionRow, ...]:
    sleeves = snapshot.get("sleeves")
    if not isinstance(sleeves, list | tuple):
        return ()
    return tuple(
        PositionRow(
            symbol=str(own["symbol"]),
            weight=float(own["weight"]),
            target=None if own["allowed"] is None else float(own["allowed"]),
            quantity=_plain(own["quantity"]),
            price=_plain(own["price"]),
            value=float(own["quantity"]) * float(own["price"]),
        )
        for own in sleeves
    )


def _plain(number: object) -> str:
    """Return a number without an exponent, and without the digits that sums of floats leave."""
    return np.format_float_positional(
        float(str(number)), precision=_DIGITS, fractional=False, trim="-"
    )


def _order(row: tuple[object, ...]) -> OrderRow:
    client_id, symbol, side, quantity, filled, kind, status, since = map(str, row)
    return OrderRow(client_id, symbol, side, quantity, filled, kind, status, int(since))


def _decisions(status: Status) -> tuple[DecisionRow, ...]:
    return tuple(
        DecisionRow(
            at_ms=int(str(row["ts"])),
            symbol=str(row["symbol"]),
            proposed=float(str(row["weight"])),
            allowed=float(str(row["allowed"])),
            reason=_gate_words(row),
        )
        for row in status.decisions
        if row["weight"] is not None and row["allowed"] is not None
    )


def _gate_words(row: Mapping[str, object]) -> str:
    """Return what the two gates said, empty where they changed nothing."""
    gate = Reason(int(str(row["reason"])))
    words = [] if gate == Reason.NONE else [gate.name.lower().replace("_", " ")]
    if gate == Reason.NONE and row["weight"] != row["allowed"] and not row["refusal"]:
        words = ["the change is smaller than the least rebalance: kept"]
    return "; ".join([*words, *([str(row["refusal"])] if row["refusal"] else [])])


def _limits_of_tail(status: Status) -> dict[str, object] | None:
    """Return the settings of the tail, with the bars of its horizon; None where there is none."""
    settings = status.session.get("settings")
    if not isinstance(settings, dict):
        return None
    bars, config = settings.get("risk_horizon"), settings.get("config")
    if not isinstance(bars, int) or not isinstance(config, dict):
        return None
    tail = config["tail"]
    assert isinstance(tail, dict)  # noqa: S101 - our own document
    return {**tail, "bars": bars}


def _horizon(status: Status) -> tuple[int | None, float]:
    """Return the bars and the share of the realised tail."""
    tail = _limits_of_tail(status)
    return (None, 1.0) if tail is None else (int(str(tail["bars"])), float(str(tail["alpha"])))


def _tail(status: Status, snapshot: Mapping[str, object], seen: Seen) -> Tail | None:
    tail = _limits_of_tail(status)
    if tail is None:
        return None
    bars = int(str(tail["bars"]))
    predicted, limit = snapshot.get("cvar"), tail["max_cvar"]
    windows = (len(seen.equity) - 1) // bars if len(seen.equity) else 0
    interval = Interval.parse(status.meta["interval"])
    return Tail(
        horizon=f"{bars * interval.milliseconds / 3_600_000:g} h",
        alpha=float(str(tail["alpha"])),
        predicted=None if predicted is None else -float(str(predicted)),
        realised=seen.realised if windows >= ENOUGH_WINDOWS else None,
        windows=windows,
        limit=None if limit is None else -float(str(limit)),
    )


def _health(status: Status, snapshot: Mapping[str, object], uptime_s: float) -> Health:
    measured = snapshot.get("health")
    own = measured if isinstance(measured, dict) else {}

    def number(name: str) -> float | None:
        value = own.get(name)
        return float(value) if isinstance(value, int | float) else None

    return Health(
        data_age_s=number("data_age_s"),
        clock_offset_ms=number("clock_offset_ms"),
        rate_used=number("rate_used"),
        journal_lag_ms=number("journal_ms"),
        heartbeat_age_s=uptime_s if status.pulse_age_s is None else status.pulse_age_s,
        uptime_s=uptime_s,
    )
