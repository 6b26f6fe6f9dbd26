# ruff: noqa: S608 - tables of ours
import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal

import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import DataError
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.journal.schema import RECORDS, SCHEMA_VERSION
from stormsail.execution.operator.status import read_status
from stormsail.execution.protection import OrderNames
from stormsail.execution.reconcile import update_fills
from stormsail.execution.venue import Accepted, Order, OrderRequest, Refused, Trade, Unknown

BINDING = Binding("binance:1", "binance", "live", "1h", "USDT")
SYMBOL = "BTC/USDT"


def opened(folder, binding=BINDING):
    return Journal(folder / NAME, binding, epoch="abcdef", now_ms=1_000)


def request(name="a", side="buy", quantity="1.5"):
    return OrderRequest(name, SYMBOL, side, "market", Decimal(quantity))


def intend(journal, name="a", **changes):
    return journal.add_intent(
        request(name, **changes),
        bar_ms=5,
        leg="target",
        number=0,
        reference=Decimal(100),
        now_ms=2_000,
    )


def order(name="a", status="filled", filled="1.5"):
    size = Decimal(filled)
    return Order(
        name, "17", SYMBOL, "buy", "market", status, Decimal("1.5"), size, size * 100, None, None,
        False, 3_000,
    )  # fmt: skip


def trade(number="t1", quantity="1.5"):
    return Trade(
        number, "17", SYMBOL, "buy", Decimal("100.10"), Decimal(quantity), Decimal("0.15"), "USDT",
        3_000,
    )  # fmt: skip


@pytest.fixture
def journal(tmp_path):
    journal = opened(tmp_path)
    yield journal
    journal.close()


def test_a_new_journal_is_in_wal_mode_and_syncs_fully(journal):
    assert journal.rows("PRAGMA journal_mode") == [("wal",)]
    assert journal.rows("PRAGMA synchronous") == [(2,)]  # FULL
    assert journal.rows("PRAGMA user_version") == [(SCHEMA_VERSION,)]


def test_any_sqlite_tool_reads_it(journal, tmp_path):
    intend(journal)
    with sqlite3.connect(tmp_path / NAME) as other:
        found = other.execute("SELECT client_id, side, quantity FROM intents").fetchall()
    assert found == [("a", "buy", "1.5")]


@pytest.mark.parametrize("table", RECORDS)
@pytest.mark.parametrize("change", ["UPDATE {0} SET {1} = {1}", "DELETE FROM {0}"])
def test_records_cannot_be_changed_or_deleted(journal, tmp_path, table, change):
    intend(journal)
    journal.add_outcome("a", Refused("-2010", "no money"), now_ms=2_001)
    journal.add_fill(trade(), "a")
    journal.add_event("x", "y", severity="info", now_ms=1)
    journal.add_action("ana", "rearm", "looked", now_ms=1)
    journal.add_equity((1, 1.0, 1.0, 1.0, 0.0, None, "ACTIVE"))
    journal.add_bars([(SYMBOL, 1, 1.0, 1.0, 1.0, 1.0, 1.0, "{}", 2)])
    journal.begin_session(mode="live", agent="x", settings={}, version="1", host="h", now_ms=1)
    with sqlite3.connect(tmp_path / NAME) as other:
        rows = other.execute(f"SELECT * FROM {table}").fetchall()
        column = other.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()[0]
        if rows:  # decisions and funding have none here; their triggers are the same lines
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                other.execute(change.format(table, column))
        names = {row[0] for row in other.execute("SELECT name FROM sqlite_master")}
    assert {f"{table}_keep", f"{table}_stay"} <= names


def test_an_intent_is_written_once(journal):
    assert intend(journal)
    assert not intend(journal, quantity="2")
    assert [(i.client_id, i.quantity) for i in journal.intents()] == [("a", Decimal("1.5"))]


def test_an_intent_without_an_answer_is_unsettled(journal):
    intend(journal)
    (own,) = journal.unsettled()
    assert (own.kind, own.final, own.signed_rest) == (None, False, Decimal("1.5"))


@pytest.mark.parametrize(
    ("outcome", "unsettled", "pending"),
    [
        (Refused("-2010", "no money"), 0, 0),
        (Unknown("no answer"), 1, 1),
        (Accepted(order()), 0, 0),
        (Accepted(order(status="open", filled="0")), 0, 1),
        (Accepted(order(status="canceled", filled="0.5")), 0, 0),
    ],
)
def test_an_answer_settles_an_intent_or_does_not(journal, outcome, unsettled, pending):
    intend(journal)
    journal.add_outcome("a", outcome, now_ms=2_001)
    assert (len(journal.unsettled()), len(journal.pending())) == (unsettled, pending)


def test_the_last_report_of_an_order_counts(journal):
    intend(journal, side="sell")
    journal.add_outcome("a", Unknown("no answer"), now_ms=2_001)
    journal.add_order("a", "settled", order(status="open", filled="0.5"), now_ms=2_002)
    (own,) = journal.pending()
    assert (own.kind, own.filled, own.signed_rest) == ("settled", Decimal("0.5"), Decimal("-1.0"))
    journal.add_order("a", "absent", None, now_ms=2_003)
    assert journal.pending() == []


def test_a_fill_counts_once(journal):
    assert journal.add_fill(trade(), "a")
    assert not journal.add_fill(trade(), "a")
    assert not journal.add_fill(trade(quantity="9"), None)
    assert journal.add_fill(trade("t2"), "a")
    assert [fill.trade_id for fill in journal.fills_after(0)] == ["t1", "t2"]
    assert journal.booked() == (2, 0)
    assert journal.fills_after(1) == [trade("t2")]


def test_a_transaction_is_all_or_nothing(journal):
    def failing():
        with journal.transaction():
            intend(journal)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert journal.intents() == []


def test_a_missing_column_is_refused_and_not_ignored(journal):
    with pytest.raises(sqlite3.IntegrityError):
        journal.add_equity((1, None, 1.0, 1.0, 0.0, None, "ACTIVE"))


def test_it_opens_again_with_its_epoch(journal, tmp_path):
    journal.close()
    again = Journal(tmp_path / NAME, BINDING, epoch="zzzzzz", now_ms=9)
    assert (again.epoch, again.meta("created_ms")) == ("abcdef", "1000")
    again.close()


@pytest.mark.parametrize("name", ["account", "venue", "mode", "interval", "quote"])
def test_a_journal_of_another_account_is_refused(journal, tmp_path, name):
    journal.close()
    other = Binding(**{**vars(BINDING), name: "other"})
    with pytest.raises(DataError, match=f"this {name}: other") as refused:
        opened(tmp_path, other)
    assert refused.value.code == "journal-account"


def test_a_journal_of_another_version_is_refused(journal, tmp_path):
    journal.close()
    with sqlite3.connect(tmp_path / NAME) as other:
        other.execute("PRAGMA user_version = 1")
    with pytest.raises(DataError, match="version 1") as refused:
        opened(tmp_path)
    assert refused.value.code == "journal-version"


@pytest.mark.parametrize("data", [b"x" * 5000, b"SQLite format 3\0" + b"\0" * 4000])
def test_what_is_no_journal_is_refused_and_left_alone(tmp_path, data):
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(DataError) as refused:
        opened(tmp_path)
    assert refused.value.code == "journal-damaged"
    assert (tmp_path / NAME).read_bytes() == data


def test_a_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / NAME) as other:
        other.execute("CREATE TABLE mine (a)")
    with pytest.raises(DataError, match="another program"):
        opened(tmp_path)


def test_reading_what_is_not_there_makes_nothing(tmp_path):
    with pytest.raises(DataError) as refused:
        Journal.reading(tmp_path / NAME)
    assert refused.value.code == "journal-missing"
    assert list(tmp_path.iterdir()) == []


def test_retention_deletes_old_bars_and_events_but_no_order(journal):
    intend(journal)
    journal.add_fill(trade(), "a")
    for ts in (1, 2, 3):
        journal.add_bars([(SYMBOL, ts, 1.0, 1.0, 1.0, 1.0, 1.0, "{}", 2)])
        journal.add_event("x", "y", severity="info", now_ms=ts)
    assert journal.trim(3, who="ana", now_ms=9) == 4
    assert journal.rows("SELECT ts FROM bars") == [(3,)]
    assert len(journal.intents()) == len(journal.fills_after(0)) == 1
    assert journal.rows("SELECT who, action FROM operator_actions") == [("ana", "trim")]
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        journal._database.execute("DELETE FROM bars")


def test_the_checkpoint_is_replaced(journal):
    assert journal.checkpoint() is None
    journal.put_checkpoint(1, {"a": 1}, b"m", b"g")
    journal.put_checkpoint(2, {"a": 2}, b"n", b"h")
    assert journal.checkpoint() == (2, {"a": 2}, b"n", b"h")


def steps(journal, call):
    """Return how many steps the database takes for a call."""
    count = 0

    def step():
        nonlocal count
        count += 1

    journal._database.set_progress_handler(step, 1)
    try:
        call()
    finally:
        journal._database.set_progress_handler(None, 1)
    return count


def filled(folder, orders):
    """Return a journal of so many filled orders, one a bar."""
    folder.mkdir()
    made = opened(folder)
    with made.transaction():
        for number in range(orders):
            name = f"x{number}"
            made.add_intent(
                request(name),
                bar_ms=number,
                leg="target",
                number=0,
                reference=Decimal(100),
                now_ms=number,
            )
            known = replace(order(name), order_id=f"o{number}")
            made.add_order(name, "accepted", known, now_ms=number)
            made.add_fill(replace(trade(f"t{number}"), order_id=f"o{number}", ts_ms=number), name)
    return made


QUESTIONS = {
    "fills": lambda journal: update_fills(Answers(), journal, [SYMBOL]),
    "the number of an order": lambda journal: OrderNames("a", "b", journal).proposal(
        5, "stop", Decimal(1), symbol=SYMBOL, side="sell", quantity=Decimal(1)
    ),
    "orders of a bar": lambda journal: journal.intents(bar_ms=5),
    "the last orders": lambda journal: read_status(journal.path.parent, ManualClock(), rows=3),
    "the newest booking": lambda journal: journal.booked(),
}


class Answers:
    """A venue that tells of a fill of somebody else's order, before this journal was made."""

    def trades(self, symbol, *, since_ms):
        assert since_ms < 1_000
        return [replace(trade("t3"), symbol=symbol, order_id="theirs", ts_ms=3)]

    def at_once(self, calls):
        return [call() for call in calls]


@pytest.mark.spec("R27")
@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_question_of_every_bar_costs_as_much_after_many_orders(tmp_path, asked):
    counts = []
    for orders in (20, 1_000):
        made = filled(tmp_path / str(orders), orders)
        made.begin_session(mode="live", agent="", settings={}, version="", host="", now_ms=0)
        counts.append(steps(made, lambda: QUESTIONS[asked](made)))  # noqa: B023
        made.close()
    # A tree of a thousand rows is deeper by a page or two, which takes no step.
    assert counts[1] <= counts[0] + 10, counts


def test_the_number_of_an_order_is_one_of_its_symbol(journal):
    """Binance counts the orders of each symbol by themselves: two may have the number 17."""
    for name, symbol in (("a", SYMBOL), ("b", "ETH/USDT")):
        journal.add_intent(
            replace(request(name), symbol=symbol),
            bar_ms=5,
            leg="target",
            number=0,
            reference=Decimal(100),
            now_ms=2_000,
        )
        journal.add_order(name, "accepted", order(name), now_ms=2_001)
    assert [journal.name_of(own, "17") for own in (SYMBOL, "ETH/USDT")] == ["a", "b"]
    assert journal.name_of("XRP/USDT", "17") is None
    assert journal.name_of(SYMBOL, "18") is None


def test_a_journal_that_was_written_without_indexes_gets_them(tmp_path):
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / NAME)) as other:
        names = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        made = {str(row[0]) for row in other.execute(names)}
        for name in made - {"orders_by_client"}:
            other.execute(f"DROP INDEX {name}")
    again = opened(tmp_path)
    assert {str(row[0]) for row in again.rows(names)} == made
    assert len(made) == 5
    again.close()


def fill_disk(journal):
    """Let the file take no further page, as on a disk that is full."""
    pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
    journal._database.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_told_in_words_and_leaves_no_half(journal):
    fill_disk(journal)

    def write():
        with journal.transaction():
            intend(journal)
            for number in range(2000):
                journal.add_event("x", "y" * 1000, severity="info", now_ms=number)

    with pytest.raises(DataError) as found:
        write()
    assert found.value.code == "data-write"
    assert "full" in found.value.found
    assert not journal._database.in_transaction
    assert journal.intents() == []
    journal._database.execute("PRAGMA max_page_count = 1000000")
    assert intend(journal)  # room again: the same connection goes on
    assert len(journal.unsettled()) == 1


def test_a_commit_that_fails_is_no_open_transaction(journal):
    """What came after it would be inside of it, and look as if it were on disk."""

    class Refusing:
        def __init__(self, database):
            self._database = database

        def __getattr__(self, name):
            return getattr(self._database, name)

        def execute(self, words, *values):
            if words == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                raise error
            return self._database.execute(words, *values)

    plain = journal._database
    journal._database = Refusing(plain)
    with pytest.raises(DataError, match="disk I/O error"):
        intend(journal)
    journal._database = plain
    assert not plain.in_transaction
    assert journal.intents() == []
