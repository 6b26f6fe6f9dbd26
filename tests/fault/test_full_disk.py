"""A disk that is full: nothing is sent, stops stand, and trading goes on once there is room.

The disk is a real one: a file system in memory of a fixed size, mounted for the test.
"""

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest
import typer

from execution_lab import quick_folder
from live_lab import CAPITAL, LiveDesk, settings
from stormsail.cli.trading.session import Account, alone, trade
from stormsail.cli.trading.watching import Watching
from stormsail.core.clock import SystemClock
from stormsail.core.errors import ConfigError, VenueError
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.journal import NAME, Binding, Journal
from stormsail.execution.journal.files import NoRoomError
from stormsail.execution.kill_switch import KillSwitch
from stormsail.execution.operator.status import Notice

BINDING = Binding("a", "v", "paper", "15m", "USDT")


@pytest.fixture(autouse=True)
def thawed(monkeypatch):
    """Keep the collector of this process as it is: it goes on to other tests."""
    monkeypatch.setattr(gc, "freeze", lambda: None)


@pytest.fixture
def disk(tmp_path):
    """A disk of 16 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place))
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(("umount", "-l", str(place)), check=True)


def fill(disk, spare=0):
    """Take all the room there is, but for some bytes."""
    rest = disk / "rest"
    with rest.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    if spare:
        os.truncate(rest, rest.stat().st_size - spare)


def free(disk):
    (disk / "rest").unlink()


class Watch:
    """Fills the disk at a bar, looks at the exchange while nothing can be written, and frees it."""

    def __init__(self, desk, disk, at, spare):
        self.desk, self.disk, self.at, self.spare = desk, disk, at, spare
        self.bars, self.alarms, self.orders, self.stops, self.left_ms = 0, [], [], [], []
        self._plain = desk.clock.sleep
        self._waits = 0
        desk.clock.sleep = self.sleep

    def __call__(self, message):
        if not isinstance(message, Notice):
            self.bars += 1
            if self.bars == self.at:
                fill(self.disk, self.spare)
        elif message.name == "disk-full":
            self.alarms.append(message)

    def sleep(self, seconds):
        self._plain(seconds)
        if not self.alarms or not (self.disk / "rest").exists():
            return
        self._waits += 1
        self.orders.append(len(self.desk.book.orders))
        self.stops.append(tuple(own.client_id for own in self.desk.stops()))
        self.left_ms.append(min(self.desk.book.countdowns.values()) - self.desk.book.now_ms)
        if self._waits == 36:  # in the wait of 20 seconds, which is longer than the countdown
            free(self.disk)


def account(desk, folder, watch, **changes):
    class Seen(Watching):
        @contextmanager
        def around(self, _folder, _clock):
            yield (watch,)

    return Account(
        desk.agent,
        desk.venue,
        "live",
        folder,
        settings(**changes),
        tuple(desk.symbols),
        CAPITAL,
        desk.clock,
        bars=12,
        watching=Seen(),
    )


@pytest.mark.spec("R4 R24")
@pytest.mark.parametrize("spare", [0, 40_960])
def test_a_trader_waits_for_room_sends_nothing_meanwhile_and_goes_on(disk, spare, capsys):
    with quick_folder() as other:
        desk = LiveDesk(other, "perp", symbols=2)
        folder = disk / "account"
        watch = Watch(desk, disk, at=6, spare=spare)
        trade(account(desk, folder, watch, protection__dead_man_s=16.0))
    assert "finished: " in capsys.readouterr().out
    assert watch.alarms
    assert all("full" in own.words or "disk" in own.words for own in watch.alarms)
    assert len(set(watch.orders)) == 1, "something was sent that is in no journal"
    assert len(set(watch.stops)) == 1, "a stop was touched"
    journal = Journal.reading(folder / NAME)
    assert journal.rows("PRAGMA integrity_check") == [("ok",)]
    told = [row[0] for row in journal.rows("SELECT name FROM events ORDER BY id")]
    assert told.count("disk-room") == 1
    decided = journal.rows("SELECT count(DISTINCT ts) FROM decisions")[0][0]
    known = {row[0] for row in journal.rows("SELECT client_id FROM intents")}
    journal.close()
    assert decided == 12
    names = {order.client_id for order in desk.book.orders}
    assert {name for name in names if not name.startswith("algo_")} <= known  # stops that fired
    assert len(watch.left_ms) == 36
    assert min(watch.left_ms) >= 8_000, "a countdown was about to run out while it waited"
    assert desk.stops(), "no stop"


def test_ctrl_c_ends_a_trader_that_waits(disk, capsys):
    with quick_folder() as other:
        desk = LiveDesk(other, "perp", symbols=1)
        watch = Watch(desk, disk, at=2, spare=0)
        plain = desk.clock.sleep

        def sleep(seconds):
            plain(seconds)
            if watch.alarms:
                signal.raise_signal(signal.SIGTERM)

        desk.clock.sleep = sleep
        with pytest.raises(typer.Exit) as ended:
            trade(account(desk, disk / "account", watch, protection__dead_man_s=16.0))
    assert ended.value.exit_code == 128 + signal.SIGTERM
    assert "left: " in capsys.readouterr().out


@pytest.mark.parametrize("spare", [0, 4096, 16_384])
def test_a_journal_on_a_full_disk_is_not_called_damaged(disk, spare):
    opened = lambda: Journal(disk / NAME, BINDING, epoch="e", now_ms=1)  # noqa: E731
    opened().close()
    fill(disk, spare)
    for way in (opened, lambda: Journal.reading(disk / NAME)):
        with pytest.raises(NoRoomError, match="Free space") as found:
            way().close()
        assert found.value.code == "data-write"
    free(disk)
    opened().close()


def test_a_new_journal_on_a_full_disk_is_made_once_there_is_room(disk):
    fill(disk)
    with pytest.raises(NoRoomError):
        Journal(disk / NAME, BINDING, epoch="e", now_ms=1)
    free(disk)
    Journal(disk / NAME, BINDING, epoch="e", now_ms=1).close()


@pytest.mark.spec("R23")
@pytest.mark.parametrize("way", ["stop", "flatten"])
def test_the_kill_switch_is_tripped_on_a_full_disk_and_says_no_more_than_it_keeps(disk, way):
    switch = KillSwitch(disk, SystemClock())
    fill(disk)
    made = switch.trip(source="a test", words="x" * 100, way=way)
    assert switch.tripped()
    assert made == switch.read()
    assert made.way == "stop"
    free(disk)
    again = switch.trip(source="a test", words="now with room", way="flatten")
    assert again.way == "flatten"
    assert switch.read() == again


def test_a_request_budget_that_cannot_be_written_sends_nothing_and_says_so(disk):
    fill(disk)
    budget = RateBudget(disk / "budget", limit=100, clock=SystemClock())
    with pytest.raises(VenueError, match="No space left on device") as found:
        budget.acquire(1.0)
    assert found.value.code == "venue-rate-limit"
    free(disk)
    budget.acquire(1.0)
    assert budget.used() > 0.0
    fill(disk)
    budget.acquire(1.0)  # its record has its place: no more room is needed
    budget.close()


def test_a_full_disk_lets_one_trader_alone_begin(disk):
    fill(disk)
    with (
        alone(disk, "paper:x", "paper", SystemClock()),
        pytest.raises(ConfigError, match="one trader alone") as found,
        alone(disk, "paper:x", "paper", SystemClock()),
    ):
        pass
    assert found.value.code == "account-busy"


def test_the_command_waits_for_room_and_goes_on(disk, tmp_path):
    folder = disk / "demo"
    words = (
        "paper",
        "--venue",
        "loopback",
        "--demo",
        "--folder",
        str(folder),
        "--bars",
        "8",
        "--speed",
        "5000",
    )
    command = (sys.executable, "-m", "stormsail", *words)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as trader:
        lines = iter(trader.stderr.readline, "")
        try:
            while not (folder / "pulse.json").exists():
                assert trader.poll() is None
                time.sleep(0.02)
            fill(disk)
            line = next(line for line in lines if "disk-full" in line)
            free(disk)
            rest = list(lines)
        except BaseException:
            trader.kill()
            raise
    assert trader.returncode == 0, rest
    assert "Free space on that device" in line
    journal = Journal.reading(folder / NAME)
    assert journal.rows("PRAGMA integrity_check") == [("ok",)]
    told = [row[0] for row in journal.rows("SELECT name FROM events ORDER BY id")]
    journal.close()
    assert "disk-room" in told
