"""The view of an account's folder says what the journal says."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from execution_lab import CAPITAL, Desk
from stormsail.execution.journal import NAME, Journal, Kind
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.operator import status
from stormsail.execution.operator.dashboard.folder import POINTS, FolderView
from stormsail.execution.operator.dashboard.view import Tail
from stormsail.execution.operator.status import PULSE, Snapshot
from stormsail.execution.venue import Order, OrderRequest

BARS = 24
SYMBOL = "BTC/USDT"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Return an account that has traded a day on paper and is still open."""
    desk = Desk(tmp_path_factory.mktemp("account"))
    with desk.trader() as loop:
        loop.run(bars=BARS)
    return desk


def test_the_figures_are_those_of_the_journal(desk: Desk) -> None:
    view = FolderView(desk.folder, "three symbols", desk.clock)()
    journal = Journal.reading(desk.folder / NAME)
    equity = journal.rows("SELECT ts, total, peak, day_start FROM equity ORDER BY ts")
    decided = journal.rows("SELECT ts, symbol FROM decisions ORDER BY ts DESC, symbol")
    journal.close()
    assert (view.mode, view.venue, view.account) == ("paper", "memory", "paper:memory")
    assert (view.currency, view.name) == ("USDT", "three symbols")
    assert len(equity) == BARS
    assert view.curve_ms == tuple(row[0] for row in equity)
    assert view.curve_equity == tuple(row[1] for row in equity)
    assert view.equity == equity[-1][1]
    assert view.equity_start == equity[0][1] == pytest.approx(CAPITAL, rel=0.05)
    assert view.drawdown == pytest.approx(equity[-1][1] / equity[-1][2] - 1.0, abs=1e-15)
    assert view.day_return == pytest.approx(equity[-1][1] / equity[-1][3] - 1.0, abs=1e-15)
    assert [(row.at_ms, row.symbol) for row in view.decisions] == decided[: len(view.decisions)]


def test_positions_stand_beside_the_weights_that_the_gate_allowed(desk: Desk) -> None:
    view = FolderView(desk.folder, "", desk.clock)()
    sleeves = [seen for seen in desk.seen if isinstance(seen, Snapshot)][-1].sleeves
    assert [row.symbol for row in view.positions] == [own.symbol for own in sleeves]
    assert [row.weight for row in view.positions] == [own.weight for own in sleeves]
    assert [row.target for row in view.positions] == [own.allowed for own in sleeves]
    assert [row.value for row in view.positions] == [own.quantity * own.price for own in sleeves]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (1234567.25, "1234567.25"),
        (104512.35, "104512.35"),
        (-1e-7, "-0.0000001"),
        (3.0, "3"),
        (-41.233000000000004, "-41.233"),
    ],
)
def test_numbers_have_all_their_digits_and_no_exponent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, number: float, shown: str
) -> None:
    pulse = json.loads((desk.folder / PULSE).read_text())
    pulse["snapshot"]["sleeves"][0] |= {"quantity": number, "price": number}
    monkeypatch.setattr(status, "_read_pulse", lambda _folder: pulse)
    row = FolderView(desk.folder, "", desk.clock)().positions[0]
    assert (row.quantity, row.price) == (shown, shown)


def begun(desk: Desk, now_ms: int) -> Journal:
    """Return the journal of a trader that has begun and done nothing else."""
    journal = desk.journal()
    journal.begin_session(
        mode="paper",
        agent="a",
        settings={"risk_horizon": 2, "config": {"tail": {"alpha": 0.5, "max_cvar": 0.08}}},
        version="0",
        host="here",
        now_ms=now_ms,
    )
    return journal


def test_without_a_sign_of_life_the_loop_is_as_old_as_its_start(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    begun(desk, desk.clock.now_ns() // 1_000_000 - 16_000).close()
    health = FolderView(tmp_path, "", desk.clock)().health
    assert (health.heartbeat_age_s, health.uptime_s) == (16.0, 16.0)


def tail_after(folder: Path, equity: list[float]) -> Tail:
    """Return the tail of an account with a risk horizon of two bars and a tail share of a half."""
    desk = Desk(folder)
    journal = begun(desk, 0)
    for hour, total in enumerate(equity):
        journal.add_equity((hour, total, total, total, 0.0, None, "ACTIVE"))
    journal.close()
    shown = FolderView(folder, "", desk.clock)().tail
    assert shown is not None
    return shown


def test_the_realised_tail_is_that_of_windows_of_the_horizon(tmp_path: Path) -> None:
    # two bars up by 21 %, two down to where it was, and so on: returns over two bars are
    # 1.21 - 1, 1.1 / 1.1 - 1, 1 / 1.21 - 1, 1.1 / 1.1 - 1; the worse half of each four has 0 and
    # 1 / 1.21 - 1, whose mean over ten rounds is theirs
    equity = [100.0, 110.0, 121.0, 110.0] * 10 + [100.0, 110.0]
    tail = tail_after(tmp_path, equity)
    assert (tail.windows, tail.horizon, tail.alpha, tail.limit) == (20, "2 h", 0.5, -0.08)
    assert tail.realised == pytest.approx((1.0 / 1.21 - 1.0) / 2.0, rel=1e-9)
    assert tail.predicted is None


def test_too_few_windows_say_nothing_of_a_tail(tmp_path: Path) -> None:
    tail = tail_after(tmp_path, [100.0, 90.0] * 20)
    assert (tail.windows, tail.realised) == (19, None)


def test_the_kill_button_latches_the_switch_of_the_folder(desk: Desk) -> None:
    shown = FolderView(desk.folder, "", desk.clock)
    assert shown().killed is None
    shown.kill("dashboard")
    try:
        assert KillSwitch(desk.folder, desk.clock).tripped()
        assert shown().killed == "dashboard: the kill button"
    finally:
        KillSwitch(desk.folder, desk.clock).rearm()


def put(journal: Journal, bar: int, kind: Kind | None) -> None:
    """Add a bar of equity, and an order that ends as is said; None leaves it without an answer."""
    total = 100.0 + bar % 7
    journal.add_equity((bar, total, 107.0, 100.0, 0.0, None, "ACTIVE"))
    request = OrderRequest(f"c{bar}", SYMBOL, "buy", "market", Decimal(1))
    journal.add_intent(
        request, bar_ms=bar, leg="target", number=0, reference=Decimal(100), now_ms=bar
    )
    if kind is not None:
        journal.add_order(request.client_id, kind, answered(bar, kind), now_ms=bar)


def answered(bar: int, kind: Kind) -> Order | None:
    """Return the order of a bar as the venue tells it."""
    if kind not in ("accepted", "settled"):
        return None
    return Order(
        f"c{bar}", f"o{bar}", SYMBOL, "buy", "market", "filled" if kind == "settled" else "open",
        Decimal(1), Decimal(kind == "settled"), Decimal(0), None, None, False, bar,
    )  # fmt: skip


class Counted:
    """Counts the steps of the database and the rows of every look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.rows = 0
        reading, rows = Journal.reading, Journal.rows

        def counted(path: Path) -> Journal:
            journal = reading(path)
            journal._database.set_progress_handler(self._step, 1)
            return journal

        def listed(journal: Journal, query: str, *values: object) -> list[tuple[object, ...]]:
            found = rows(journal, query, *values)
            self.rows += len(found)
            return found

        monkeypatch.setattr(Journal, "reading", counted)
        monkeypatch.setattr(Journal, "rows", listed)

    def _step(self) -> int:
        self.steps += 1
        return 0

    def of(self, look: Callable[[], object]) -> tuple[int, int]:
        before = self.steps, self.rows
        look()
        return self.steps - before[0], self.rows - before[1]


def test_a_look_reads_what_is_new_however_long_the_account_has_traded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []
    for bars in (40, 2_000):
        folder = tmp_path / str(bars)
        folder.mkdir()
        desk = Desk(folder)
        journal = begun(desk, 0)
        with journal.transaction():
            for bar in range(bars):
                put(journal, bar, "settled")
        view = FolderView(folder, "", desk.clock)
        view()
        with monkeypatch.context() as patched:
            counted = Counted(patched)
            same = counted.of(view)
            put(journal, bars, "accepted")
            more = counted.of(view)
        journal.close()
        costs.append((same, more))
    (few, few_more), (many, many_more) = costs
    assert many[1] == few[1], "rows of a look at nothing new"
    assert many_more[1] == few_more[1] == few[1] + 3, "a bar, an intent, an open order"
    # A tree of two thousand rows is deeper by a page or two, which takes no step.
    assert many[0] <= few[0] + 10
    assert many_more[0] <= few_more[0] + 10


def test_what_is_remembered_between_looks_is_what_a_first_look_sees(tmp_path: Path) -> None:
    desk, rng = Desk(tmp_path), np.random.default_rng(5)
    journal = begun(desk, 0)
    kept = FolderView(tmp_path, "", desk.clock)
    open_ones: list[int] = []
    for bar in range(120):
        kind = rng.choice(np.array(["settled", "accepted", "unknown", "refused", "none"]))
        put(journal, bar, None if kind == "none" else str(kind))  # type: ignore[arg-type]
        open_ones += [bar] if kind in ("accepted", "unknown", "none") else []
        if open_ones and rng.random() < 0.4:
            done = open_ones.pop(int(rng.integers(len(open_ones))))
            journal.add_order(f"c{done}", "settled", answered(done, "settled"), now_ms=bar)
        if rng.random() < 0.5:
            seen = kept()
            assert seen == FolderView(tmp_path, "", desk.clock)()
            assert [row.client_id for row in seen.orders] == [f"c{k}" for k in open_ones[::-1]]
    journal.close()


def test_a_journal_that_was_trimmed_or_replaced_is_read_anew(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    kept = FolderView(tmp_path, "", desk.clock)
    journal = begun(desk, 0)
    with journal.transaction():
        for bar in range(50):
            put(journal, bar, "accepted")
    assert (len(kept().curve_ms), len(kept().orders)) == (50, 50)
    journal.trim(30, who="a test", now_ms=60)
    journal.compact()
    assert (kept().curve_ms, len(kept().orders)) == (tuple(range(30, 50)), 50)
    journal.close()
    for path in tmp_path.glob(f"{NAME}*"):
        path.unlink()
    desk.clock.advance(5.0)
    journal = begun(desk, 0)
    with journal.transaction():
        for bar in range(30, 60):
            put(journal, bar, "settled")
    journal.close()
    assert (kept().curve_ms, kept().orders) == (tuple(range(30, 60)), ())


def test_pages_that_look_at_the_same_time_see_the_same(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal, view = begun(desk, 0), FolderView(tmp_path, "", desk.clock)
    with ThreadPoolExecutor(6) as pool:
        for bar in range(30):
            put(journal, bar, "accepted")
            seen = list(pool.map(lambda _: view(), range(6)))
            assert {len(own.curve_ms) for own in seen} == {bar + 1}
            assert {len(own.orders) for own in seen} == {bar + 1}
    journal.close()


def test_a_long_history_is_thinned_and_keeps_both_ends(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal = desk.journal()
    with journal.transaction():
        for hour in range(2 * POINTS):
            journal.add_equity((hour, 100.0 + hour, 100.0 + hour, 100.0, 0.0, None, "ACTIVE"))
    journal.close()
    view = FolderView(tmp_path, "", desk.clock)()
    assert len(view.curve_ms) == POINTS
    assert (view.curve_ms[0], view.curve_ms[-1]) == (0, 2 * POINTS - 1)
    assert (view.state, view.equity) == ("STOPPED", 100.0 + 2 * POINTS - 1)
