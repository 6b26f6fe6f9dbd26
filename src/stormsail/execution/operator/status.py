"""What an operator sees: snapshots and notices that the loop publishes, and the status of a folder.

The loop hands both to observers (dashboard, alerts) as it goes. Another process reads the journal
and the file `pulse.json`, which says when the trader was last alive; it is written without a sync,
because a lost pulse costs nothing.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from stormsail.core.clock import Clock, SystemClock, iso
from stormsail.core.errors import StormsailError
from stormsail.core.files.documents import JsonValue, Record
from stormsail.execution.journal import NAME, Journal, Severity
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.order_gate import TradingState

PULSE = "pulse.json"
PULSE_S = 5.0
HUNG_S = 15.0
"""Silence after which a trader counts as hung."""

Life = Literal["trading", "hung", "stopped"]


@dataclass(frozen=True)
class Notice(Record):
    """One thing that happened, in one line."""

    at_ms: int
    severity: Severity
    name: str
    words: str
    symbol: str | None = None


@dataclass(frozen=True)
class Sleeve(Record):
    """One symbol: what is held, what the agent wanted, what the gates made of it."""

    symbol: str
    quantity: float
    price: float
    weight: float
    target: float | None
    """Weight that the agent decided; None where it decided none."""
    allowed: float | None
    reason: str
    """Of the risk gate, `NONE` where it changed nothing; or why the order gate refused."""
    equity: float
    unrealised: float


@dataclass(frozen=True)
class Health(Record):
    """How the machinery is doing."""

    data_age_s: float
    clock_offset_ms: float
    rate_used: float
    journal_ms: float
    """Time that the last commit took."""
    decision_ms: float
    """From the bar's arrival to the last order sent."""


@dataclass(frozen=True)
class Snapshot(Record):
    """An account after a decision."""

    at_ms: int
    bar_ms: int
    mode: str
    account: str
    venue: str
    interval: str
    state: TradingState
    reasons: Mapping[str, str]
    equity: float
    peak: float
    day_start: float
    gross: float
    cvar: float | None
    """Predicted loss in the tail over the risk horizon, as a share of equity."""
    sleeves: tuple[Sleeve, ...]
    open_orders: int
    unsettled: int
    bars: int
    health: Health

    @property
    def drawdown(self) -> float:
        """Below the peak, as a share of it."""
        return 1.0 - self.equity / self.peak if self.peak > 0.0 else 0.0

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        return {**super().document(), "reasons": dict(self.reasons), "drawdown": self.drawdown}


Observer = Callable[[Snapshot | Notice], None]


def write_pulse(folder: Path, document: Mapping[str, JsonValue]) -> None:
    """Replace the pulse; a disk that is full is not a reason to stop trading."""
    path = folder / f".{PULSE}.{os.getpid()}"
    try:
        path.write_text(json.dumps(document))
        path.replace(folder / PULSE)
    except OSError:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Status(Record):
    """The status of an account's folder."""

    folder: str
    life: Life
    pulse_age_s: float | None
    kill_switch: str | None
    """Why it is tripped; None where it is armed."""
    meta: Mapping[str, str]
    session: Mapping[str, JsonValue]
    snapshot: Mapping[str, JsonValue] | None
    orders: tuple[Mapping[str, JsonValue], ...]
    decisions: tuple[Mapping[str, JsonValue], ...]
    notices: tuple[Notice, ...]
    actions: tuple[Mapping[str, JsonValue], ...] = field(default=())

    def document(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        plain = asdict(self)
        return {name: plain[name] for name in plain}


def read_status(folder: Path, clock: Clock, *, rows: int = 10) -> Status:
    """Return the status of an account from its journal, whether or not its trader is alive.

    Raises:
        DataError: if there is no journal, or it cannot be read.
    """
    journal = Journal.reading(folder / NAME)
    try:
        return _status(folder, journal, clock, rows)
    finally:
        journal.close()


def _status(folder: Path, journal: Journal, clock: Clock, rows: int) -> Status:
    pulse = _read_pulse(folder)
    age = None
    if pulse is not None and isinstance(beaten := pulse.get("pulse_ns"), int):
        age = max(0.0, (clock.now_ns() - beaten) / 1e9)
    ended = pulse is None or bool(pulse.get("ended"))
    life: Life = "stopped" if ended or not _alive(pulse) else "trading"
    if life == "trading" and age is not None and age > HUNG_S:
        life = "hung"
    trip = KillSwitch(folder, clock).read()
    snapshot = None if pulse is None else pulse.get("snapshot")
    return Status(
        folder=str(folder),
        life=life,
        pulse_age_s=age,
        kill_switch=None if trip is None else f"{trip.source}: {trip.words}",
        meta={str(key): str(value) for key, value in journal.rows("SELECT * FROM meta")},
        session=_last_session(journal),
        snapshot=snapshot if isinstance(snapshot, dict) else None,
        orders=_table(
            journal,
            ("client_id", "symbol", "leg", "side", "quantity", "kind", "status", "filled", "words"),
            "order_states ORDER BY created_ms DESC",
            rows,
        ),
        decisions=_table(
            journal,
            ("ts", "symbol", "kind", "weight", "allowed", "reason", "quantity", "refusal"),
            "decisions ORDER BY ts DESC, symbol",
            rows,
        ),
        notices=tuple(
            Notice(*row)  # type: ignore[arg-type]
            for row in journal.rows(
                "SELECT at_ms, severity, name, words, symbol FROM events ORDER BY id DESC LIMIT ?",
                rows,
            )
        ),
        actions=_table(
            journal, ("at_ms", "who", "action", "words"), "operator_actions ORDER BY id DESC", rows
        ),
    )


def _table(
    journal: Journal, names: tuple[str, ...], source: str, rows: int
) -> tuple[dict[str, JsonValue], ...]:
    query = f"SELECT {', '.join(names)} FROM {source} LIMIT ?"  # noqa: S608 - our own names
    return tuple(
        dict(zip(names, row, strict=True))  # type: ignore[arg-type]
        for row in journal.rows(query, rows)
    )


def _last_session(journal: Journal) -> dict[str, JsonValue]:
    rows = journal.rows(
        "SELECT started_ms, pid, host, version, mode, agent, settings FROM sessions "
        "ORDER BY id DESC LIMIT 1"
    )
    if not rows:
        return {}
    started, pid, host, version, mode, agent, settings = rows[0]
    return {
        "started": iso(int(str(started))),
        "pid": int(str(pid)),
        "host": str(host),
        "version": str(version),
        "mode": str(mode),
        "agent": str(agent),
        "settings": json.loads(str(settings)),
    }


def _read_pulse(folder: Path) -> dict[str, JsonValue] | None:
    try:
        pulse = json.loads((folder / PULSE).read_text())
    except (OSError, ValueError):
        return None
    return pulse if isinstance(pulse, dict) else None


def _alive(pulse: Mapping[str, JsonValue] | None) -> bool:
    """Return whether the process that wrote the pulse is still there."""
    pid = None if pulse is None else pulse.get("pid")
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Teller:
    """Tells the operator: events go to the journal and to observers, the pulse to its file.

    Args:
        journal: of the account.
        clock: stamps events.
        observers: told of every snapshot and notice.
    """

    def __init__(self, journal: Journal, clock: Clock, observers: Sequence[Observer]) -> None:
        self._journal, self._clock, self._observers = journal, clock, tuple(observers)
        self._machine = SystemClock()
        self._beaten_ns = 0
        self._snapshot: Snapshot | None = None

    def tell(self, name: str, words: str, severity: Severity, symbol: str | None = None) -> None:
        """Record an event and show it."""
        now = self._clock.now_ns() // 1_000_000
        self._journal.add_event(name, words, severity=severity, now_ms=now, symbol=symbol)
        self._show(Notice(now, severity, name, words, symbol))

    def tell_end(self, error: Exception) -> None:
        """Tell that an error ends trading, also where the journal is what failed."""
        words = str(error) if isinstance(error, StormsailError) else type(error).__name__
        try:
            self.tell("ended", words, "alarm")
        except (sqlite3.Error, StormsailError):
            now = self._clock.now_ns() // 1_000_000
            with suppress(sqlite3.Error, StormsailError):
                self._show(Notice(now, "alarm", "ended", words))

    def publish(self, snapshot: Snapshot) -> None:
        """Show the account after a decision."""
        self._snapshot = snapshot
        self._show(snapshot)
        self.beat(force=True)

    def _show(self, message: Snapshot | Notice) -> None:
        failed = []
        for observer in self._observers:
            try:
                observer(message)
            except Exception as error:  # noqa: BLE001 - whoever watches must not stop trading
                failed.append(f"{type(error).__name__}: {error}")
        for words in failed:  # once everybody was told: the journal may be what fails
            now = self._clock.now_ns() // 1_000_000
            self._journal.add_event("observer-failed", words, severity="warning", now_ms=now)

    def beat(self, *, force: bool = False, ended: bool = False) -> None:
        """Write the pulse, every few seconds of the machine's own time."""
        now = self._machine.monotonic_ns()
        if not (force or ended) and now - self._beaten_ns < PULSE_S * 1e9:
            return
        self._beaten_ns = now
        document: dict[str, JsonValue] = {
            "pid": os.getpid(),
            "pulse_ns": self._machine.now_ns(),
            "ended": ended,
            "snapshot": None if self._snapshot is None else self._snapshot.document(),
        }
        write_pulse(self._journal.path.parent, document)
