"""The view of an account's folder says what the journal says."""

from pathlib import Path

import pytest

from execution_lab import CAPITAL, Desk
from stormsail.execution.journal import NAME, Journal
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.operator.dashboard.folder import POINTS, FolderView
from stormsail.execution.operator.dashboard.view import Tail
from stormsail.execution.operator.status import Snapshot

BARS = 24


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


def test_a_long_history_is_thinned_and_keeps_both_ends(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    journal = desk.journal()
    for hour in range(2 * POINTS):
        journal.add_equity((hour, 100.0 + hour, 100.0 + hour, 100.0, 0.0, None, "ACTIVE"))
    journal.close()
    view = FolderView(tmp_path, "", desk.clock)()
    assert len(view.curve_ms) == POINTS
    assert (view.curve_ms[0], view.curve_ms[-1]) == (0, 2 * POINTS - 1)
    assert (view.state, view.equity) == ("STOPPED", 100.0 + 2 * POINTS - 1)
