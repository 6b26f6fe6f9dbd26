"""One agent everywhere (R26): paper, its replay, the backtest and the trainer agree to the bit."""

# ruff: noqa: S608 - columns of ours
import json
import sqlite3

import numpy as np
import pytest
import torch

from backtest_lab import agent_for, rules
from command_lab import forked
from execution_lab import CAPITAL, Desk, quick_folder, tensor
from stormsail.core.clock import iso
from stormsail.core.files.lock import held
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.report.folders import report_of
from stormsail.execution.journal import NAME, Journal
from stormsail.execution.replay import Recording, parity, replay, write_parity
from stormsail.market import Simulator

BARS = 30


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A paper account that has traded 30 bars, with two restarts in between."""
    desk = Desk(tmp_path_factory.mktemp("paper"))
    for bars in (12, 10, BARS - 22):
        with desk.trader() as loop:
            loop.run(bars=bars)
    return desk


@pytest.fixture
def journal(recorded):
    journal = Journal.reading(recorded.folder / NAME)
    yield journal
    journal.close()


def rows(journal, column, dtype=float):
    times = [row[0] for row in journal.rows("SELECT DISTINCT ts FROM decisions ORDER BY ts")]
    symbols = Recording.of(journal).symbols
    table = {
        (ts, symbol): value
        for ts, symbol, value in journal.rows(f"SELECT ts, symbol, {column} FROM decisions")
    }
    return times, [[dtype(table[ts, symbol]) for symbol in symbols] for ts in times]


def test_a_replay_of_the_journal_decides_everything_alike(recorded, journal):
    found = replay(journal, recorded.agent)
    assert found.difference is None
    assert (found.decisions, found.bars) == (3 * BARS, BARS)


def test_a_replay_names_the_first_bit_that_differs(recorded, tmp_path):
    copy = tmp_path / NAME
    source = sqlite3.connect(recorded.folder / NAME)
    target = sqlite3.connect(copy)
    source.backup(target)
    target.execute("DROP TRIGGER decisions_keep")
    ts, symbol = target.execute(
        "SELECT ts, symbol FROM decisions ORDER BY ts, symbol LIMIT 1 OFFSET 31"
    ).fetchone()
    target.execute(
        "UPDATE decisions SET weight = weight + 1e-12 WHERE ts = ? AND symbol = ?", (ts, symbol)
    )
    target.commit()
    found = replay(Journal.reading(copy), recorded.agent).difference
    assert found is not None
    assert (found.symbol, found.what) == (symbol, "weight")


def test_another_agent_is_found_out_by_the_replay(recorded, journal):
    other = agent_for(recorded.panel, rules(), seed=1)
    found = replay(journal, other)
    assert found.difference is not None
    assert found.difference.what == "weight"


def test_the_backtest_engine_on_the_recorded_bars_is_the_paper_account(recorded, journal):
    found = parity(journal, recorded.agent)
    assert found.first is None
    assert (found.decisions, found.decision_differences) == (3 * (BARS - 1), 0)
    assert all(abs(gap.mean_bp) < 1e-9 and abs(gap.worst_bp) < 1e-9 for gap in found.fills)
    assert sum(gap.fills for gap in found.fills) > BARS


def test_a_plain_backtest_of_the_same_bars_gives_the_same_bits(recorded, journal):
    """Quotes of this venue are the opens of its bars, so nothing recorded is needed."""
    times, weights = rows(journal, "weight")
    _, reasons = rows(journal, "reason", int)
    start = np.datetime64(times[0], "ms").astype("datetime64[s]").item()
    config = BacktestConfig(
        capital=CAPITAL,
        burn_in=5,
        start=start.isoformat() + "Z",
        filters={"lot": 0.001, "tick": 0.01, "min_notional": 5.0},
    )
    panel = recorded.panel
    quiet = panel.__class__(
        **{
            **{name: getattr(panel, name) for name in panel.__dataclass_fields__},
            "funding": torch.zeros_like(panel.funding),
        }
    )
    result = backtest(recorded.agent, quiet, config)
    assert (result.bars["decided"][:BARS] == np.array(weights)).all()
    assert (result.reasons[:BARS] == np.array(reasons)).all()
    equity = [row[0] for row in journal.rows("SELECT total FROM equity ORDER BY ts")]
    assert (result.equity[:BARS] == np.array(equity)).all()


def test_the_trainer_shows_the_observations_that_paper_saw(recorded, journal):
    """The simulator of training, stepped with the recorded weights from the same place."""
    times, observations = rows(journal, "observation", tensor)
    recording = Recording.of(journal)
    setup = recording.setup(recorded.agent)
    market = setup.market.replace(
        episode_bars=setup.terms.market.episode_bars, funding_missing="zero"
    )
    simulator = Simulator(
        recording.panel,
        market,
        batch=3,
        dtype=torch.float64,
        features=setup.terms.features,
        scaler=setup.terms.scaler,
    )
    first = recording.panel.ts.tolist().index(times[0])
    length = setup.terms.market.episode_bars
    symbols = torch.arange(3)
    state, shown = simulator.place(symbols, torch.full((3,), first))
    generator = torch.Generator().manual_seed(0)
    _, requested = rows(journal, "requested")
    for step in range(length - 1):  # the first episode; later ones restart with the account
        assert torch.equal(shown, torch.stack(observations[step])), step
        state, after = simulator.step(
            state, torch.tensor(requested[step], dtype=torch.float64), generator
        )
        shown = after.observation


def test_decisions_use_one_batch_shape(recorded):
    """A symbol's decision may depend, in its last bit, on the batch: so it is always the same."""
    with Journal.reading(recorded.folder / NAME)._database as database:
        counts = database.execute(
            "SELECT DISTINCT n FROM (SELECT count(*) n FROM decisions GROUP BY ts)"
        ).fetchall()
    assert counts == [(3,)]


def test_the_folder_holds_nothing_but_what_the_page_lists(recorded):
    known = {NAME, f"{NAME}-wal", f"{NAME}-shm", "pulse.json"}
    assert {path.name for path in recorded.folder.iterdir()} <= known


def test_the_parity_report_is_a_section_of_the_report(recorded, journal, tmp_path):
    write_parity(tmp_path / "traded", parity(journal, recorded.agent))
    page = report_of([tmp_path / "traded"])
    assert '<section id="parity"' in page
    assert "paper, 30 bars: 0 of 87 decisions differ" in page
    for symbol in recorded.symbols:
        assert symbol in page


# Retention


@pytest.fixture
def week():
    """A paper account that has traded for a week, with one restart."""
    with quick_folder() as folder:
        desk = Desk(folder, rows=250, first=60)
        for bars in (100, 68):
            with desk.trader() as loop:
                loop.run(bars=bars)
        yield desk


def trimmed(desk, *words):
    return forked("trim", str(desk.folder), "--yes", *words, cwd=desk.folder)


def test_a_trimmed_journal_replays_what_is_left_and_the_trader_goes_on(week):
    before = Journal.reading(week.folder / NAME)
    times = [row[0] for row in before.rows("SELECT DISTINCT ts FROM decisions ORDER BY ts")]
    orders = before.rows("SELECT * FROM order_states ORDER BY client_id")
    fills = before.fills_after(0)
    saved, window = before.checkpoint(), before.rows("SELECT settings FROM sessions")[0][0]
    before.close()
    done = trimmed(week, "--keep-days", "2", "--json")
    assert done.returncode == 0, done.stderr
    day = 86_400_000
    first = max(
        ts for ts in times if ts <= times[-1] - 2 * day and (ts % day == 0 or ts == times[0])
    )
    left = [ts for ts in times if ts >= first]
    assert json.loads(done.stdout)["first"] == iso(first)
    assert json.loads(done.stdout)["deleted"] > 3 * (len(times) - len(left))
    journal = Journal.reading(week.folder / NAME)
    kept = [row[0] for row in journal.rows("SELECT DISTINCT ts FROM decisions ORDER BY ts")]
    assert kept == left
    assert 48 < len(left) <= 72
    assert journal.rows("SELECT * FROM order_states ORDER BY client_id") == orders
    assert journal.fills_after(0) == fills
    assert journal.checkpoint() == saved
    needed = json.loads(window)["window"] * week.length
    assert journal.rows("SELECT min(ts) FROM bars")[0][0] == max(first - needed, times[0] - needed)
    ((action, words),) = journal.rows("SELECT action, words FROM operator_actions")
    assert (action, words.endswith(f"rows before {iso(first)}")) == ("trim", True)
    found = replay(journal, week.agent)
    # the first bar is what the memory was kept after: all others are decided again
    assert (found.difference, found.decisions) == (None, 3 * (len(left) - 1))
    compared = parity(journal, week.agent)
    assert (compared.decisions, compared.words) == (
        0, "a trimmed journal is compared by its fills alone",
    )  # fmt: skip
    assert sum(gap.fills for gap in compared.fills) > 0
    journal.close()
    with week.trader() as loop:
        loop.run(bars=5)
        assert loop.standing.step == len(times) + 4
    journal = Journal.reading(week.folder / NAME)
    again = replay(journal, week.agent)
    journal.close()
    assert (again.difference, again.decisions) == (None, 3 * (len(left) - 1 + 5))


def test_a_trim_changes_nothing_that_an_untrimmed_trader_does(week):
    def on(desk):
        with desk.trader() as loop:
            loop.run(bars=10)
            return loop.standing.state, loop.standing.requested, loop._watch.days

    with quick_folder() as folder:
        twin = Desk(folder, rows=250, first=60)
        for bars in (100, 68):
            with twin.trader() as loop:
                loop.run(bars=bars)
        assert trimmed(week, "--keep-days", "1").returncode == 0
        (own, wanted, days), (other, asked, counted) = on(week), on(twin)
    assert own.equity.tolist() == other.equity.tolist()
    assert own.quantity.tolist() == other.quantity.tolist()
    assert (wanted.tolist(), days) == (asked.tolist(), counted)


def test_a_trim_needs_a_word_a_stopped_trader_and_something_old(week):
    size = (week.folder / NAME).stat().st_size
    silent = forked("trim", str(week.folder), "--keep-days", "2", cwd=week.folder)
    assert (silent.returncode, "[not-confirmed]" in silent.stderr) == (2, True)
    assert trimmed(week).stdout == "nothing is older than 90 days before the last decision\n"
    with held(week.folder / "trader.lock", verb="paper", wait_s=0.0):
        busy = trimmed(week, "--keep-days", "2")
    assert (busy.returncode, "[account-busy]" in busy.stderr) == (2, True)
    journal = Journal.reading(week.folder / NAME)
    assert journal.rows("SELECT count(*) FROM operator_actions") == [(0,)]
    journal.close()
    assert trimmed(week, "--keep-days", "1").returncode == 0
    assert (week.folder / NAME).stat().st_size < 0.6 * size
    nothing = forked("trim", "nowhere", "--yes", cwd=week.folder)
    assert (nothing.returncode, "[journal-missing]" in nothing.stderr) == (2, True)


def test_a_replay_goes_over_a_long_absence(tmp_path):
    """Whoever was away for longer than the burn-in is warmed up anew, in the replay as well."""
    desk = Desk(tmp_path)
    with desk.trader() as loop:
        loop.run(bars=4)
    for away in (3, 9):  # hours; the burn-in is 5 bars
        desk.clock.advance(3600.0 * away)
        with desk.trader() as loop:
            loop.run(bars=4)
    journal = Journal.reading(tmp_path / NAME)
    found = replay(journal, desk.agent)
    journal.close()
    assert found.difference is None
    assert found.decisions == 3 * 12
