"""The bugs of the journal: what is written, found and read again."""

from mutants.harness import Mutant
from mutants.nodes import gate, unit

JOURNAL = "execution/journal/__init__.py"
SCHEMA = "execution/journal/schema.py"

JOURNAL_BUGS = (
    Mutant(
        "a-journal-without-room-is-called-damaged",
        "D5",
        "execution/journal/files.py",
        "        if _named(error, _OPENING):\n",
        "        if _named(error, _OPENING[:0]):\n",
        ("tests/fault/test_full_disk.py::test_a_journal_on_a_full_disk_is_not_called_damaged",),
    ),
    Mutant(
        "a-commit-that-failed-stays-open",
        "D1",
        JOURNAL,
        "                self._roll_back()\n                raise\n",
        "                raise\n",
        unit("journal", "test_a_commit_that_fails_is_no_open_transaction", part="execution"),
    ),
    Mutant(
        "a-bar-reads-every-order-that-there-was",
        "R27",
        SCHEMA,
        '    "orders_by_number ON orders (order_id)",\n',
        "",
        unit(
            "journal",
            "test_a_question_of_every_bar_costs_as_much_after_many_orders[fills]",
            part="execution",
        ),
    ),
    Mutant(
        "an-order-of-one-symbol-is-that-of-another",
        "D4",
        JOURNAL,
        '"WHERE order_id = ? AND symbol = ? LIMIT 1",\n            (order_id, symbol),',
        '"WHERE order_id = ? LIMIT 1",\n            (order_id,),',
        unit("journal", "test_the_number_of_an_order_is_one_of_its_symbol", part="execution"),
    ),
    Mutant(
        "a-commit-is-not-forced-to-the-disk",
        "R2",
        JOURNAL,
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        (
            "tests/fault/test_journal_power_loss.py::"
            "test_a_power_loss_costs_no_commit_and_leaves_no_half",
        ),
    ),
    Mutant(
        "a-killed-transaction-stays-by-half",
        "R21",
        JOURNAL,
        "PRAGMA journal_mode = WAL",
        "PRAGMA journal_mode = OFF",
        (
            "tests/fault/test_journal_syscalls.py::"
            "test_the_kernel_kills_a_trader_at_some_calls_and_the_next_one_equals_the_venue",
        ),
    ),
    Mutant(
        "no-answer-is-a-refusal",
        "M42",
        JOURNAL,
        'self._add_report(client_id, "unknown", None, "", outcome.words, now_ms)',
        'self._add_report(client_id, "refused", None, "", outcome.words, now_ms)',
        gate("test_no_answer_is_unknown_and_not_refused"),
    ),
    Mutant(
        "fills-count-each-time-they-come",
        "M44",
        SCHEMA,
        "    fee TEXT NOT NULL, fee_asset TEXT NOT NULL, realised TEXT NOT NULL, "
        "ts INTEGER NOT NULL,\n    UNIQUE (symbol, trade_id)\n",
        "    fee TEXT NOT NULL, fee_asset TEXT NOT NULL, realised TEXT NOT NULL, "
        "ts INTEGER NOT NULL\n",
        unit("journal", "test_a_fill_counts_once", part="execution"),
    ),
    Mutant(
        "the-intent-is-written-after-the-send",
        "M46",
        JOURNAL,
        '                self._database.execute("COMMIT")\n',
        "",
        gate("test_the_intent_is_on_disk_before_the_request"),
    ),
)
