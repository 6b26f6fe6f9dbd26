"""A trader that dies at any boundary: the next one knows every order (R21, R24, R27)."""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from decimal import Decimal, localcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from execution_lab import EXACT, Desk, Killed, config, quick_folder
from stormsail.execution.config import Feed
from stormsail.execution.journal import NAME, Journal
from stormsail.execution.reconcile import filled_quantity
from stormsail.execution.replay import replay

FAULTS = (None, None, None, "lost", "silent", "late", "refuse", "half")
VISIBLE_AFTER_S = Feed().visible_after_s


class Boundaries:
    """Counts the boundaries of a run, and ends the process at one of them."""

    def __init__(self, at=None):
        self.count, self.at = 0, at

    def __call__(self, _step):
        self.count += 1
        if self.at is not None and self.count == self.at:
            raise Killed


@contextmanager
def at_boundaries(monkeypatch, desk, hook):
    """Call a hook before each commit, after it, and before and after each request."""
    plain = Journal.transaction

    @contextmanager
    def watched(self):
        outer = not self._database.in_transaction
        with plain(self):
            yield
            if outer:
                hook("commit")
        if outer:
            hook("committed")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "transaction", watched)
        desk.venue.kill = hook
        yield
    desk.venue.kill = lambda _step: None


def check_books(desk):
    """Compare the journal with the venue's own ledger, to the unit."""
    journal = Journal.reading(desk.folder / NAME)
    try:
        intents = {intent.client_id: intent for intent in journal.intents()}
        assert set(desk.venue.book) <= set(intents), "an order that no intent explains"
        assert journal.unsettled() == []
        for name, order in desk.venue.book.items():
            assert intents[name].filled == order.filled, name
        for symbol, held in desk.venue.held.items():
            assert filled_quantity(journal, symbol) == held, symbol
        names = [request.client_id for request in desk.venue.requests]
        assert len(names) == len(set(names)), "an order was sent twice"
        cash = Decimal(10) ** 9
        with localcontext(prec=EXACT):  # else the order in which fills became known rounds it
            for trade in journal.fills_after(0):
                signed = trade.quantity if trade.side == "buy" else -trade.quantity
                cash -= signed * trade.price + trade.fee
        assert cash == desk.venue.cash
    finally:
        journal.close()


def faulty(desk, rng):
    """Let requests go wrong for a while."""
    drawn = {}

    def fault(request):
        key = request.client_id
        return drawn.setdefault(key, FAULTS[int(rng.integers(len(FAULTS)))])

    desk.venue.fault = fault


def trial(monkeypatch, seed, *, stops):
    """Kill a trader once or twice at drawn boundaries; start again; compare."""
    rng = np.random.default_rng(seed)
    with quick_folder() as folder:
        desk = Desk(folder, symbols=1, stops=stops)
        if seed % 4 > 1:  # the market takes an order in parts
            desk.venue.market_max = Decimal(40)
        faulty(desk, rng)
        for _ in range(int(rng.integers(1, 3))):
            hook = Boundaries(at=int(rng.integers(1, 45)))
            with at_boundaries(monkeypatch, desk, hook):
                try:
                    with desk.trader("live") as loop:
                        loop.run(bars=3)
                except Killed:
                    pass
            longest = 10.0 if rng.random() < 0.5 else 7200.0
            desk.clock.advance(float(rng.uniform(0.1, longest)))
        desk.venue.fault = lambda _request: None
        before = desk.clock.monotonic_ns()
        sent = len(desk.venue.requests)
        with desk.trader("live", start=False) as loop:
            ready = []
            desk.venue.kill = lambda _step: ready.append(loop.gate.ready)
            loop.start()
            assert all(ready), "an order before READY"
            assert desk.clock.monotonic_ns() - before <= 5e9
            loop.run(bars=2)
            desk.clock.advance(VISIBLE_AFTER_S)  # what the venue never got is unknown for so long
            loop.accounts.settle()
        check_books(desk)
        return len(desk.venue.requests) - sent


@pytest.mark.spec("R21")
@pytest.mark.parametrize("part", range(4))
def test_a_restart_equals_the_venue_wherever_the_trader_died(monkeypatch, part):
    for seed in range(50 * part, 50 * part + 50):
        trial(monkeypatch, seed, stops=seed % 2 == 0)


@pytest.mark.campaign
@pytest.mark.spec("R21")
@pytest.mark.parametrize("first", range(1_000, 6_000, 250))
def test_a_restart_equals_the_venue_in_five_thousand_deaths(monkeypatch, first):
    for seed in range(first, first + 250):
        trial(monkeypatch, seed, stops=seed % 2 == 0)


def exposed(desk):
    """Return whether the venue holds a position that no stop of its book protects."""
    for symbol, held in desk.venue.held.items():
        if not held:
            continue
        side = "sell" if held > 0 else "buy"
        covered = sum(
            order.quantity
            for order in desk.venue.book.values()
            if order.symbol == symbol
            and order.type == "stop"
            and order.status == "open"
            and order.side == side
        )
        if covered < abs(held):
            return True
    return False


def death(monkeypatch, at, **market):
    """Kill a trader at a boundary; return whether it died, and whether the venue holds anything."""
    with quick_folder() as folder:
        desk = Desk(folder, symbols=1, **market)
        hook, died = Boundaries(at=at), False
        with at_boundaries(monkeypatch, desk, hook):
            try:
                with desk.trader("live") as loop:
                    loop.run(bars=4)
            except Killed:
                died = True
        assert not exposed(desk), f"boundary {at}"
        return died, bool(desk.venue.held[desk.symbols[0]])


@pytest.mark.spec("R24")
def test_a_position_is_protected_whenever_the_trader_dies(monkeypatch):
    deaths, positions = np.sum([death(monkeypatch, at) for at in range(1, 51)], axis=0)
    assert deaths == 50
    assert positions > 20


@pytest.mark.campaign
@pytest.mark.spec("R24")
def test_a_position_is_protected_in_a_thousand_deaths(monkeypatch):
    ends = [
        death(monkeypatch, at, seed=seed, first=first)
        for seed in (3, 4)
        for first in range(60, 71)
        for at in range(1, 51)
    ]
    deaths, positions = np.sum(ends, axis=0)
    sys.stdout.write(f"\n{deaths} deaths, {positions} of them with a position\n")
    assert deaths >= 1_000
    assert positions > 300


def test_a_position_without_a_stop_in_time_is_closed():
    with quick_folder() as folder:
        desk = Desk(folder, symbols=1)
        desk.venue.fault = lambda request: "refuse" if request.type == "stop" else None
        with desk.trader("live") as loop:
            loop.run(bars=1)
        assert desk.venue.held[desk.symbols[0]] == 0
        legs = [request.type for request in desk.venue.requests]
        assert legs.count("market") == 2  # in, and out again
        names = [notice.name for notice in desk.seen if hasattr(notice, "severity")]
        assert "unprotected" in names


def test_a_countdown_is_renewed_after_a_quarter_of_it():
    with quick_folder() as folder:
        desk = Desk(folder, symbols=1)
        settings = config(protection__dead_man_s=120.0, feed__poll_s=10.0)
        with desk.trader("live", settings) as loop:
            loop.run(bars=2)
        gaps = np.diff(desk.venue.renewed)
        assert len(gaps) > 100
        assert gaps.max() <= 30_000


def test_a_sigkill_of_a_real_process_leaves_a_journal_that_replays(tmp_path):
    pauses, bars = (0.15, 0.25, 0.4), 40
    # On a fast machine a child may trade all of its bars before it is killed.
    desk = Desk(tmp_path, rows=60 + len(pauses) * bars + 10, symbols=1)
    for pause in pauses:
        child = os.fork()
        if child == 0:
            try:
                with desk.trader() as loop:
                    loop.run(bars=bars)
            finally:
                os._exit(0)
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        journal = Journal.reading(tmp_path / NAME) if (tmp_path / NAME).exists() else None
        if journal is None:
            continue
        saved = journal.checkpoint()
        journal.close()
        if saved is not None:  # the child's virtual clock died with it
            desk.clock.set_now((saved[0] + desk.length + 1000) * 1_000_000)
    with desk.trader() as loop:
        loop.run(bars=2)
    journal = Journal.reading(tmp_path / NAME)
    found = replay(journal, desk.agent)
    journal.close()
    assert found.difference is None
    assert found.decisions >= 2


class Figures(NamedTuple):
    """What the process held, and when."""

    day: float
    hour: float
    kilobytes: int
    descriptors: int
    threads: int
    journal: int


def figures(day, started, journal):
    """Return memory in kilobytes, open descriptors and threads of this process."""
    status = Path("/proc/self/status").read_text()
    kilobytes = int(status.split("VmRSS:")[1].split()[0])
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    hour = (time.process_time() - started) / 3600.0  # others may use the machine
    size = journal.stat().st_size
    return Figures(day, hour, kilobytes, descriptors, threading.active_count(), size)


def forget(desk, names, older_ms):
    """Compare the books, in a child so that this leaves nothing here; then drop what is settled.

    The venue of the tests is in this process: what it remembers is not the trader's memory.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check_books(desk)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "journal and venue differ"
    venue = desk.venue
    with names.open("a") as file:
        file.writelines(f"{request.client_id}\n" for request in venue.requests)
    venue.book = {
        name: order
        for name, order in venue.book.items()
        if order.status == "open" or order.updated_ms >= older_ms
    }
    venue.fills = [fill for fill in venue.fills if fill.ts_ms >= older_ms]
    venue.hidden = {name: ts for name, ts in venue.hidden.items() if name in venue.book}
    venue.requests, venue.cancels, venue.renewed = [], [], []
    desk.seen.clear()


def soak(minutes, seed=0):
    """Trade bars of a minute under faults and restarts; return what the process held over time."""
    rng = np.random.default_rng(seed)
    started = time.process_time()
    with quick_folder() as folder:
        desk = Desk(folder, rows=minutes + 1_600, symbols=1, interval="1m", first=1_500)
        measured, left = [], minutes
        names, looked = folder / "names", 0
        while left > 0:
            faulty(desk, rng)
            bars = min(int(rng.integers(5, 80)), left)
            with desk.trader("live") as loop:
                loop.run(bars=bars)
            desk.venue.fault = lambda _request: None
            desk.venue.down = False
            left -= bars
            day = (minutes - left) / 1_440
            measured.append(figures(day, started, folder / NAME))
            if int(day) > looked:
                looked = int(day)
                desk.clock.advance(120.0)
                with desk.trader("live") as loop:
                    loop.accounts.settle()
                forget(desk, names, desk.venue.now_ms() - 3_600_000)
        desk.clock.advance(120.0)
        with desk.trader("live") as loop:
            loop.accounts.settle()
        check_books(desk)
        sent = names.read_text().split() if looked else []
        assert len(sent) == len(set(sent)), "an order was sent twice"
        return measured


@pytest.mark.spec("R27")
def test_a_day_under_faults_leaks_nothing():
    soak(60)
    measured = soak(1_440, seed=1)
    memory = [own.kilobytes for own in measured]
    assert len(measured) > 20
    assert len({(own.descriptors, own.threads) for own in measured}) == 1
    assert memory[-1] - memory[0] < 30_000  # kilobytes; caches of the first day included


def slope(measured, clock):
    """Return the slope of memory by days, and half of its 95 % interval, in MB per unit.

    One mean for each day: what follows within a day is not independent.
    """
    days = {}
    for own in measured:
        days.setdefault(int(own.day - 1e-9), []).append((getattr(own, clock), own.kilobytes / 1e3))
    x, y = np.array([np.mean(own, axis=0) for own in days.values()]).T
    x = x - x.mean()
    rate = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - rate * x
    error = np.sqrt((rest**2).sum() / (len(x) - 2) / (x * x).sum())
    return rate, float(stats.t.ppf(0.975, len(x) - 2) * error)


@pytest.mark.campaign
@pytest.mark.spec("R27")
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_month_under_faults_leaks_nothing(seed):
    soak(60)
    measured = soak(30 * 1_440, seed=seed)
    later = [own for own in measured if own.day > 2]  # caches fill in the first two days
    lines = [f"{own.day:.2f} {own.kilobytes} {own.journal}" for own in measured[::20]]
    (day, of_day), (hour, of_hour) = slope(later, "day"), slope(later, "hour")
    words = f"{len(measured)} sessions, {measured[-1].hour * 60:.1f} minutes, memory "
    words += (
        f"{day:+.4f} ± {of_day:.4f} MB a day of bars, {hour:+.2f} ± {of_hour:.2f} an hour of ours"
    )
    sys.stdout.write("\n".join(["", *lines, words, ""]))
    assert len({(own.descriptors, own.threads) for own in later}) == 1
    assert measured[-1].hour <= 1.0
    assert hour + of_hour <= 1.0 or day + of_day <= 0.05
