"""The journal of a trading account: one SQLite file that survives a kill at any instruction.

What is decided, intended, answered, filled and done by people stands in tables that only grow:
triggers refuse to change or delete a row. An intent is committed, with `synchronous=FULL`, before
its request leaves the machine, so that a restart knows every order that may exist. Numbers of money
are decimal text as the exchange wrote them, times are UTC milliseconds, and any SQLite tool reads
the file; `docs/execution.md` lists the tables.

One table is no record but a cache: `checkpoint` holds the agent's memory after the last decision,
which a replay computes anew, and is replaced.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from stormsail.core.clock import iso
from stormsail.core.errors import DataError
from stormsail.core.files.documents import JsonValue
from stormsail.execution.journal import schema
from stormsail.execution.journal.files import connect, readable, writable
from stormsail.execution.order_ids import Leg
from stormsail.execution.venue import (
    Accepted,
    FundingPayment,
    Order,
    OrderRequest,
    OrderType,
    Outcome,
    Refused,
    Side,
    Trade,
)

NAME = "journal.sqlite"
"""File in the folder of an account."""


_DAY_MS = 86_400_000

Severity = Literal["info", "warning", "alarm"]
Kind = Literal["accepted", "refused", "unknown", "absent", "settled", "canceled"]
"""What became known of an order: the answer of `submit`, or what was found by asking later.
`absent` says that the venue never had it."""

FINAL = ("refused", "absent")
"""Kinds after which an order has no effect whatever."""


@dataclass(frozen=True)
class Binding:
    """What a journal belongs to; another account, mode or bar length needs another journal."""

    account: str
    venue: str
    mode: str
    interval: str
    quote: str


@dataclass(frozen=True)
class Intent:
    """An order that was about to be sent, and what became known of it since.

    Attributes:
        reference: price at which it was sized.
        kind: None where nothing is known: the process ended between intent and answer.
        filled: quantity that is known to be filled.
    """

    client_id: str
    bar_ms: int
    symbol: str
    leg: Leg
    number: int
    side: Side
    type: OrderType
    quantity: Decimal
    stop_price: Decimal | None
    reference: Decimal
    created_ms: int
    kind: Kind | None
    status: str | None
    filled: Decimal

    @property
    def final(self) -> bool:
        """Whether it can no longer change anything."""
        if self.kind in FINAL:
            return True
        return self.kind not in (None, "unknown") and self.status != "open"

    @property
    def signed_rest(self) -> Decimal:
        """Quantity that may still fill, as a change of the position."""
        rest = self.quantity - self.filled
        return rest if self.side == "buy" else -rest


class Journal:
    """The journal of one account, open for writing by one process.

    Args:
        path: of the file; made if there is none.
        binding: whose journal it must be.
        epoch: of a journal that is made now, see `order_ids.epoch_of`.
        now_ms: time of its making.

    Raises:
        DataError: if the file is damaged, of another version or belongs to another account.
    """

    def __init__(self, path: Path, binding: Binding, *, epoch: str, now_ms: int) -> None:
        self.path = path
        self._database = connect(path, write=True)
        try:
            with readable(path):
                self._open(binding, epoch, now_ms)
        except BaseException:
            self._database.close()
            raise
        self.session = 0
        self._unfinished: set[str] | None = None
        self.fills_query_ms: dict[str, int] = {}
        """When the fills of a symbol were last asked for, by this process."""

    @classmethod
    def reading(cls, path: Path) -> Self:
        """Return a journal that is only read, beside the process that writes it.

        Raises:
            DataError: if there is none, or it is damaged or of another version.
        """
        if not path.is_file():
            raise DataError(
                "journal-missing",
                wrong=f"{path} must be the journal of an account",
                found="no such file",
                remedy="Name the folder or the journal that `paper` or `live` wrote.",
            )
        journal = cls.__new__(cls)
        journal.path, journal.session, journal._unfinished = path, 0, None
        journal._database = connect(path, write=False)
        try:
            with readable(path):
                schema.check_version(path, journal._database)
        except BaseException:
            journal._database.close()
            raise
        return journal

    def _open(self, binding: Binding, epoch: str, now_ms: int) -> None:
        database = self._database
        new = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if new:
            with self.transaction():
                entries = {**vars(binding), "epoch": epoch, "created_ms": str(now_ms)}
                schema.create(database, entries)
        schema.check_version(self.path, database)
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise schema.damaged(self.path, "pages that do not fit each other")
        for name, wanted in vars(binding).items():
            if self.meta(name) != wanted:
                raise DataError(
                    "journal-account",
                    wrong=f"the journal {self.path} must belong to this {name}: {wanted}",
                    found=self.meta(name) or "none",
                    remedy="Name another folder for this account, or trade the account of the "
                    "journal.",
                )
        with self.transaction():
            schema.index(database)

    @property
    def binding(self) -> Binding:
        """What the journal belongs to."""
        return Binding(**{name: self.meta(name) for name in Binding.__dataclass_fields__})

    @cached_property
    def epoch(self) -> str:
        """Mark of this journal in every client id; it never changes."""
        return self.meta("epoch")

    def meta(self, key: str) -> str:
        """Return an entry of the binding, empty where there is none."""
        row = self._database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return "" if row is None else str(row[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside as one: after it all of that is on disk, or none is.

        Raises:
            DataError: `data-write` if the disk does not take it, as one that is full.
        """
        if self._database.in_transaction:  # part of a larger one
            yield
            return
        with writable(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        """End a transaction without its rows; SQLite may have done so by itself."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def begin_session(
        self, *, mode: str, agent: str, settings: JsonValue, version: str, host: str, now_ms: int
    ) -> int:
        """Record that a process starts to trade; return its number."""
        row = (now_ms, os.getpid(), host, version, mode, agent, json.dumps(settings))
        with self.transaction():
            cursor = self._database.execute(
                "INSERT INTO sessions (started_ms, pid, host, version, mode, agent, settings) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        self.session = int(cursor.lastrowid or 0)
        return self.session

    def add_intent(
        self, request: OrderRequest, *, bar_ms: int, leg: Leg, number: int, reference: Decimal,
        now_ms: int,
    ) -> bool:  # fmt: skip
        """Put an order on disk before it is sent; return False if it is there already."""
        row = (
            request.client_id,
            self.session,
            bar_ms,
            request.symbol,
            leg,
            number,
            request.side,
            request.type,
            str(request.quantity),
            _text(request.price),
            _text(request.stop_price),
            int(request.reduce_only),
            str(reference),
            now_ms,
        )
        with self.transaction():
            added = self._insert("intents", row) == 1
        self._note_unfinished(request.client_id)
        return added

    def add_outcome(self, client_id: str, outcome: Outcome, *, now_ms: int) -> None:
        """Record the answer to a request."""
        if isinstance(outcome, Accepted):
            self.add_order(client_id, "accepted", outcome.order, now_ms=now_ms)
        elif isinstance(outcome, Refused):
            self._add_report(client_id, "refused", None, outcome.code, outcome.words, now_ms)
        else:
            self._add_report(client_id, "unknown", None, "", outcome.words, now_ms)

    def add_order(
        self, client_id: str, kind: Kind, order: Order | None, *, now_ms: int, words: str = ""
    ) -> None:
        """Record what the venue knows of an order; None is that it has no such order."""
        self._add_report(client_id, kind, order, "", words, now_ms)

    def _add_report(
        self, client_id: str, kind: Kind, order: Order | None, code: str, words: str, now_ms: int
    ) -> None:
        known: tuple[str | None, ...] = (None, None, None, None)
        if order is not None:
            known = (order.status, order.order_id, str(order.filled), str(order.cost))
        with self.transaction():
            self._insert("orders", (None, client_id, kind, *known, code, words, now_ms))
        self._note_unfinished(client_id)

    def add_fill(self, trade: Trade, client_id: str | None) -> bool:
        """Record a fill; return False where its number is known, so that it counts once."""
        row = (
            None,
            trade.symbol,
            trade.trade_id,
            trade.order_id,
            client_id,
            trade.side,
            str(trade.price),
            str(trade.quantity),
            str(trade.fee),
            trade.fee_asset,
            str(trade.realised),
            trade.ts_ms,
        )
        with self.transaction():
            return self._insert("fills", row) == 1

    def add_funding(self, payment: FundingPayment) -> bool:
        """Record a settlement; return False where its number is known."""
        row = (
            None,
            payment.symbol,
            payment.payment_id,
            str(payment.amount),
            payment.asset,
            payment.ts_ms,
        )
        with self.transaction():
            return self._insert("funding", row) == 1

    def add_bars(self, rows: Iterable[Sequence[object]]) -> None:
        """Record closed bars: symbol, open time, prices, volume, further columns, arrival."""
        with self.transaction():
            self._insert_all("bars", rows)

    def add_decisions(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Record the decisions of one bar, a row for each symbol; all name the same columns."""
        made = list(rows)
        if not made:
            return
        names = ", ".join(made[0])
        marks = ", ".join(f":{name}" for name in made[0])
        with self.transaction():
            self._database.executemany(
                f"INSERT INTO decisions ({names}) VALUES ({marks})",  # noqa: S608 - our own names
                made,
            )

    def add_equity(self, row: Sequence[object]) -> None:
        """Record equity at a close: time, total, peak, day start, gross, CVaR, state."""
        with self.transaction():
            self._insert("equity", row)

    def add_action(self, who: str, action: str, words: str, *, now_ms: int) -> None:
        """Record what a person did."""
        with self.transaction():
            self._insert("operator_actions", (None, now_ms, who, action, words))

    def add_event(
        self, name: str, words: str, *, severity: Severity, now_ms: int, symbol: str | None = None
    ) -> None:
        """Record what happened."""
        with self.transaction():
            self._insert("events", (None, now_ms, severity, name, words, symbol))

    def put_checkpoint(
        self, ts_ms: int, document: JsonValue, memory: bytes, generator: bytes
    ) -> None:
        """Replace the cache of what the agent remembers; the first of a UTC day is kept."""
        with self.transaction():
            self._database.execute(
                "INSERT INTO memories SELECT ?, ?, ?, ? "
                "WHERE NOT EXISTS (SELECT 1 FROM memories WHERE ts >= ?)",
                (ts_ms, json.dumps(document), memory, generator, ts_ms // _DAY_MS * _DAY_MS),
            )
            self._database.execute(
                "INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?, ?)",
                (ts_ms, json.dumps(document), memory, generator),
            )

    def checkpoint(self) -> tuple[int, dict[str, JsonValue], bytes, bytes] | None:
        """Return time, document, memory and generator of the last decision."""
        row = self._database.execute("SELECT * FROM checkpoint").fetchone()
        return None if row is None else (row[1], json.loads(row[2]), row[3], row[4])

    def memory(self, ts_ms: int) -> tuple[dict[str, JsonValue], bytes, bytes] | None:
        """Return document, memory and generator after a decision, where they were kept."""
        row = self._database.execute(
            "SELECT document, memory, generator FROM memories WHERE ts = ?", (ts_ms,)
        ).fetchone()
        return None if row is None else (json.loads(row[0]), row[1], row[2])

    def name_of(self, symbol: str, order_id: str) -> str | None:
        """Return the client id of an order by the venue's number, which is one of its symbol."""
        row = self._database.execute(
            "SELECT client_id FROM orders JOIN intents USING (client_id) "
            "WHERE order_id = ? AND symbol = ? LIMIT 1",
            (order_id, symbol),
        ).fetchone()
        return None if row is None else str(row[0])

    def intent(self, client_id: str) -> Intent | None:
        """Return one intent."""
        intents = self._intents("WHERE client_id = ?", client_id)
        return intents[0] if intents else None

    def pending(self) -> list[Intent]:
        """Return intents that may still change the account, oldest first."""
        return [intent for intent in self._some_unfinished() if not intent.final]

    def unsettled(self) -> list[Intent]:
        """Return intents of which nobody knows whether the venue has them, oldest first."""
        return [own for own in self._some_unfinished() if own.kind in (None, "unknown")]

    def _note_unfinished(self, client_id: str) -> None:
        if self._unfinished is not None:
            self._unfinished.add(client_id)

    def _some_unfinished(self) -> list[Intent]:
        """Return intents among which are all that are not final; orders of years are not read.

        Their names are known since the first call: this process alone writes. A reader beside it
        looks at all of them.
        """
        unsure = (
            "WHERE kind IS NULL OR (kind NOT IN ('refused', 'absent') AND "
            "(kind = 'unknown' OR status = 'open'))"
        )
        if not self.session:
            return self._intents(unsure)
        if self._unfinished is None:
            self._unfinished = {intent.client_id for intent in self._intents(unsure)}
        if not self._unfinished:
            return []
        marks = ", ".join("?" * len(self._unfinished))
        intents = self._intents(f"WHERE client_id IN ({marks})", *self._unfinished)
        if not self._database.in_transaction:  # what is rolled back was not final after all
            self._unfinished = {intent.client_id for intent in intents if not intent.final}
        return intents

    def intents(self, *, bar_ms: int | None = None) -> list[Intent]:
        """Return all intents, or those of one bar, oldest first."""
        if bar_ms is None:
            return self._intents("")
        return self._intents("WHERE bar_ms = ?", bar_ms)

    def _intents(self, where: str, *values: object) -> list[Intent]:
        rows = self._database.execute(
            "SELECT client_id, bar_ms, symbol, leg, number, side, type, quantity, stop_price, "  # noqa: S608 - our own words
            "reference, created_ms, kind, status, filled "
            f"FROM order_states {where} ORDER BY created_ms, rowid",
            values,
        )
        return [
            Intent(
                client_id=row[0],
                bar_ms=row[1],
                symbol=row[2],
                leg=row[3],
                number=row[4],
                side=row[5],
                type=row[6],
                quantity=Decimal(row[7]),
                stop_price=None if row[8] is None else Decimal(row[8]),
                reference=Decimal(row[9]),
                created_ms=row[10],
                kind=row[11],
                status=row[12],
                filled=Decimal(row[13] or 0),
            )
            for row in rows
        ]

    def booked(self) -> tuple[int, int]:
        """Return the numbers of the newest fill and of the newest funding payment; 0 for none."""
        fill, payment = self._database.execute(
            "SELECT (SELECT max(id) FROM fills), (SELECT max(id) FROM funding)"
        ).fetchone()
        return int(fill or 0), int(payment or 0)

    def fills_after(self, number: int) -> list[Trade]:
        """Return fills that were recorded after one, in the order of their times."""
        rows = self._database.execute(
            "SELECT trade_id, order_id, symbol, side, price, quantity, fee, fee_asset, ts, "
            "realised FROM fills WHERE id > ? ORDER BY ts, id",
            (number,),
        )
        return [
            Trade(
                trade_id=row[0],
                order_id=row[1],
                symbol=row[2],
                side=row[3],
                price=Decimal(row[4]),
                quantity=Decimal(row[5]),
                fee=Decimal(row[6]),
                fee_asset=row[7],
                ts_ms=row[8],
                realised=Decimal(row[9]),
            )
            for row in rows
        ]

    def funding_after(self, number: int) -> list[FundingPayment]:
        """Return funding payments that were recorded after one."""
        rows = self._database.execute(
            "SELECT payment_id, symbol, amount, asset, ts FROM funding WHERE id > ?", (number,)
        )
        return [FundingPayment(row[0], row[1], Decimal(row[2]), row[3], row[4]) for row in rows]

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Return the rows of a question in SQL, for readers of the record."""
        with readable(self.path):
            return list(self._database.execute(query, values))

    def first_kept(self, keep_days: int) -> int | None:
        """Return the bar from which a journal goes on that keeps so many days before its last one.

        It is a bar after which the agent's memory was kept, so that a replay can begin there. None
        where there is nothing before it.
        """
        row = self._database.execute(
            "SELECT max(ts) FROM memories WHERE ts <= (SELECT max(ts) FROM decisions) - ?",
            (keep_days * _DAY_MS,),
        ).fetchone()
        older = self._database.execute(
            "SELECT count(*) FROM decisions WHERE ts < ?", (row[0],)
        ).fetchone()[0]
        return int(row[0]) if older else None

    def trim(self, before_ms: int, *, who: str, now_ms: int, window_ms: int = 0) -> int:
        """Delete bars, decisions, equity, events and memories before a time; return how many rows.

        The only deletion there is: on a person's word, recorded as an action. Orders, fills and
        actions stay.

        Args:
            before_ms: of `first_kept`, or a replay has nothing to begin with.
            who: the person.
            now_ms: time of the deletion.
            window_ms: bars are kept for so much longer, since decisions are made on a window.
        """
        count = 0
        with self.transaction():
            for table in schema.TRIMMED:
                column = "at_ms" if table == "events" else "ts"
                before = before_ms - window_ms if table == "bars" else before_ms
                self._database.execute(f"DROP TRIGGER {table}_stay")
                cursor = self._database.execute(
                    f"DELETE FROM {table} WHERE {column} < ?",  # noqa: S608 - our own names
                    (before,),
                )
                count += cursor.rowcount
                self._database.execute(schema.trigger(table, "DELETE"))
            self.add_action(who, "trim", f"{count} rows before {iso(before_ms)}", now_ms=now_ms)
        return count

    def compact(self) -> None:
        """Give the room of deleted rows back to the disk; needs as much of it for a moment.

        Raises:
            DataError: if there is not so much.
        """
        try:
            self._database.execute("VACUUM")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            raise DataError(
                "data-write",
                wrong=f"there must be room for a second {self.path}, for a moment",
                found=str(error),
                remedy="The rows are deleted and the journal is whole; free some room and trim "
                "again to make the file shorter.",
            ) from error

    def _insert(self, table: str, row: Sequence[object]) -> int:
        """Insert a row unless its key is there; return how many were inserted."""
        return self._insert_all(table, [row])

    def _insert_all(self, table: str, rows: Iterable[Sequence[object]]) -> int:
        """Insert rows, but those whose keys are there; return how many were inserted."""
        made = [tuple(row) for row in rows]
        if not made:
            return 0
        marks = ", ".join("?" * len(made[0]))
        cursor = self._database.executemany(
            f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608
            made,
        )
        return cursor.rowcount

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._database.close()


def _text(number: Decimal | None) -> str | None:
    return None if number is None else str(number)
