"""Tables of the journal, the triggers that let them only grow, and the version of both."""

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from stormsail.core.errors import DataError

SCHEMA_VERSION = 2
_APPLICATION = 0x73746D73  # "stms", in the header of the file: `file` and we tell it from others

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, started_ms INTEGER NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL,
    version TEXT NOT NULL, mode TEXT NOT NULL, agent TEXT NOT NULL, settings TEXT NOT NULL
) STRICT;
CREATE TABLE bars (
    symbol TEXT NOT NULL, ts INTEGER NOT NULL, open REAL NOT NULL, high REAL NOT NULL,
    low REAL NOT NULL, close REAL NOT NULL, volume REAL NOT NULL, extra TEXT NOT NULL,
    received_ms INTEGER NOT NULL, PRIMARY KEY (symbol, ts)
) STRICT, WITHOUT ROWID;
CREATE TABLE decisions (
    ts INTEGER NOT NULL, symbol TEXT NOT NULL, session INTEGER NOT NULL, step INTEGER NOT NULL,
    kind TEXT NOT NULL, weight REAL, requested REAL, allowed REAL, reason INTEGER NOT NULL,
    reference REAL NOT NULL, rate REAL NOT NULL, notional REAL NOT NULL,
    may_trade INTEGER NOT NULL, quantity REAL NOT NULL, expected_price REAL, expected_fee REAL,
    sent INTEGER NOT NULL, refusal TEXT NOT NULL, trading_state TEXT NOT NULL, value REAL,
    cvar REAL, account TEXT NOT NULL, observation BLOB NOT NULL, distribution BLOB,
    decided_ms INTEGER NOT NULL, PRIMARY KEY (ts, symbol)
) STRICT, WITHOUT ROWID;
CREATE TABLE intents (
    client_id TEXT PRIMARY KEY, session INTEGER NOT NULL, bar_ms INTEGER NOT NULL,
    symbol TEXT NOT NULL, leg TEXT NOT NULL, number INTEGER NOT NULL, side TEXT NOT NULL,
    type TEXT NOT NULL, quantity TEXT NOT NULL, price TEXT, stop_price TEXT,
    reduce_only INTEGER NOT NULL, reference TEXT NOT NULL, created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, client_id TEXT NOT NULL REFERENCES intents, kind TEXT NOT NULL,
    status TEXT, order_id TEXT, filled TEXT, cost TEXT, code TEXT NOT NULL, words TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX orders_by_client ON orders (client_id, id);
CREATE TABLE fills (
    id INTEGER PRIMARY KEY, symbol TEXT NOT NULL, trade_id TEXT NOT NULL, order_id TEXT NOT NULL,
    client_id TEXT, side TEXT NOT NULL, price TEXT NOT NULL, quantity TEXT NOT NULL,
    fee TEXT NOT NULL, fee_asset TEXT NOT NULL, realised TEXT NOT NULL, ts INTEGER NOT NULL,
    UNIQUE (symbol, trade_id)
) STRICT;
CREATE TABLE funding (
    id INTEGER PRIMARY KEY, symbol TEXT NOT NULL, payment_id TEXT NOT NULL, amount TEXT NOT NULL,
    asset TEXT NOT NULL, ts INTEGER NOT NULL, UNIQUE (symbol, payment_id)
) STRICT;
CREATE TABLE equity (
    ts INTEGER PRIMARY KEY, total REAL NOT NULL, peak REAL NOT NULL, day_start REAL NOT NULL,
    gross REAL NOT NULL, cvar REAL, trading_state TEXT NOT NULL
) STRICT;
CREATE TABLE operator_actions (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
    words TEXT NOT NULL
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, severity TEXT NOT NULL, name TEXT NOT NULL,
    words TEXT NOT NULL, symbol TEXT
) STRICT;
CREATE TABLE checkpoint (
    id INTEGER PRIMARY KEY CHECK (id = 1), ts INTEGER NOT NULL, document TEXT NOT NULL,
    memory BLOB NOT NULL, generator BLOB NOT NULL
) STRICT;
CREATE TABLE memories (
    ts INTEGER PRIMARY KEY, document TEXT NOT NULL, memory BLOB NOT NULL, generator BLOB NOT NULL
) STRICT;
CREATE VIEW order_states AS
    SELECT intents.*, last.kind, last.status, last.order_id, last.filled, last.cost, last.code,
           last.words, last.at_ms
    FROM intents LEFT JOIN orders AS last
    ON last.id = (SELECT max(id) FROM orders WHERE orders.client_id = intents.client_id);
"""

_INDEXES = (
    "intents_by_bar ON intents (bar_ms, symbol, leg)",
    "intents_by_time ON intents (created_ms)",
    "orders_by_number ON orders (order_id)",
    "fills_by_time ON fills (symbol, ts)",
)
"""What a bar asks for takes as long after years as on the first day. They are no records: a journal
that was written without them gets them when it is opened."""

RECORDS = (
    "meta",
    "sessions",
    "bars",
    "decisions",
    "intents",
    "orders",
    "fills",
    "funding",
    "equity",
    "operator_actions",
    "events",
    "memories",
)
"""Tables that only grow."""

_NAMES = frozenset(re.findall(r"CREATE (?:TABLE|VIEW) (\w+)", _TABLES))
"""Tables and views of a whole journal."""

TRIMMED = ("bars", "decisions", "equity", "events", "memories")
"""Records that `Journal.trim` may shorten; orders, fills and what people did stay for ever."""


def create(database: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    """Make the tables of a new journal."""
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            database.execute(statement)
    for table in RECORDS:
        for change in ("UPDATE", "DELETE"):
            database.execute(trigger(table, change))
    database.execute(f"PRAGMA application_id = {_APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())


def index(database: sqlite3.Connection) -> None:
    """Make the indexes that a journal lacks."""
    for words in _INDEXES:
        database.execute(f"CREATE INDEX IF NOT EXISTS {words}")


def trigger(table: str, change: str) -> str:
    """Return what keeps the rows of a table from a change, `UPDATE` or `DELETE`."""
    name = "stay" if change == "DELETE" else "keep"
    return (
        f"CREATE TRIGGER {table}_{name} BEFORE {change} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'the journal only grows'); END"
    )


def check_version(path: Path, database: sqlite3.Connection) -> None:
    """Refuse a database of another program or version, or one that lacks a table.

    Raises:
        DataError: if it is one.
    """
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application != _APPLICATION:
        raise damaged(path, "a database of another program, or none")
    if version != SCHEMA_VERSION:
        raise DataError(
            "journal-version",
            wrong=f"the journal {path} must be of version {SCHEMA_VERSION}",
            found=f"version {version}",
            remedy="Read it with the version of the package that wrote it, or start another.",
        )
    absent = _NAMES - {str(row[0]) for row in database.execute("SELECT name FROM sqlite_master")}
    if absent:
        raise damaged(path, f"no table `{min(absent)}`")


def damaged(path: Path, problem: str) -> DataError:
    """Return the refusal of a file that is no whole journal."""
    return DataError(
        "journal-damaged",
        wrong=f"{path} must be a whole journal of a trading account",
        found=problem,
        remedy="Restore it from a copy, or move it away and start another: the account is then "
        "read from the exchange.",
    )
