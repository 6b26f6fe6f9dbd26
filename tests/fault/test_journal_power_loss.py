"""Power loss under the journal: what was not forced to the disk may be there, torn, or not at all.

A trader runs under `strace`, which writes down every write and every sync of its journal. A disk is
then cut off after a drawn call: each file is what its last sync left, and of every later write each
sector of 512 bytes is there or not. The journal that is opened from this must hold every commit
that had returned, no half of another, and a trader must recover from it to the venue's own books.
"""

import copy
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from execution_lab import Desk, quick_folder
from fault.journal_writer import BARS, traded
from fault.test_execution_kills import check_books
from stormsail.execution.journal import NAME, Journal

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

SECTOR = 512
COUNTED = ("intents", "orders", "fills", "decisions", "equity", "bars", "events", "memories")
CALLS = "pwrite64,write,fsync,fdatasync,ftruncate,unlink"
CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
VENUE = ("cash", "held", "book", "fills", "hidden", "requests", "cancels", "_ids", "_triggered")


class Moment:
    """What was true at a boundary: rows on disk, and the venue."""

    def __init__(self, desk):
        journal = Journal.reading(desk.folder / NAME)
        self.rows = contents(journal)
        journal.close()
        self.now_ns = desk.clock.now_ns()
        self.venue = {name: copy.deepcopy(getattr(desk.venue, name)) for name in VENUE}


def contents(journal):
    """Return the number of rows of each table, and the bar of the checkpoint."""
    counts = [journal.rows(f"SELECT count(*) FROM {name}")[0][0] for name in COUNTED]  # noqa: S608
    saved = journal.checkpoint()
    return (*counts, None if saved is None else saved[0])


def unescaped(text):
    return bytes.fromhex(text.replace("\\x", ""))


def traced(folder, log, bars):
    """Trade under strace; return boundaries, writes, cuts and syncs in their order."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ("strace", "-f", "-y", "-xx", "-s", "70000", "-e", f"trace={CALLS}", "-o", str(log))
    writer = Path(__file__).with_name("journal_writer.py")
    program = (sys.executable, str(writer), str(folder), str(bars))
    done = subprocess.run((*words, *program), env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    events = []
    for line in log.read_text().splitlines():
        found = CALL.match(line)
        if found is None or int(found[3]) < 0:
            continue
        name, told = found[1], found[2]
        if name == "unlink":
            events.append(("unlink", path_of(told.strip('"'))))
            continue
        number, _, rest = told.partition("<")
        path, _, rest = rest.partition(">")
        path = path_of(path)
        if name == "write" and int(number) == 1:
            events.append(("boundary",))
        elif NAME not in path:
            continue
        elif name in ("fsync", "fdatasync"):
            events.append(("sync", path))
        elif name == "ftruncate":
            events.append(("cut", path, int(rest.strip(", "))))
        elif name == "pwrite64":
            data, _, offset = rest.lstrip(", ").partition('", ')
            events.append(("write", path, int(offset.split(", ")[1]), unescaped(data.strip('"'))))
        else:
            raise AssertionError(line[:200])
    return events


def path_of(text):
    return Path(unescaped(text).decode() if text.startswith("\\x") else text).name


def written(data, offset, new):
    data = data.ljust(offset, b"\0")
    return data[:offset] + new + data[offset + len(new) :]


class Disk:
    """Files as the last sync left them, and what was changed since."""

    def __init__(self):
        self.durable, self.pending = {}, {}

    def take(self, event):
        kind, path, *rest = event
        if kind == "sync":
            self.durable[path] = self.whole(path)
            self.pending[path] = []
        elif kind == "unlink":
            self.durable.pop(path, None)
            self.pending.pop(path, None)
        else:
            self.pending.setdefault(path, []).append((kind, *rest))

    def whole(self, path):
        data = self.durable.get(path, b"")
        for kind, offset, *new in self.pending.get(path, []):
            data = written(data, offset, new[0]) if kind == "write" else data[:offset]
        return data

    def lost(self, rng):
        """Return the files after a power loss: unsynced sectors are there by chance."""
        files = {}
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for path in {*self.durable, *self.pending}:
            data = self.durable.get(path, b"")
            last = len(self.pending.get(path, [])) if rng.random() < 0.5 else None
            upto = None if last is None else int(rng.integers(0, last + 1))
            for kind, offset, *new in self.pending.get(path, [])[:upto]:
                if kind == "cut":
                    data = data[:offset] if rng.random() < share else data
                    continue
                at, end = offset, offset + len(new[0])
                while at < end:  # sectors are those of the disk, not of the write
                    stop = min(end, (at // SECTOR + 1) * SECTOR)
                    if rng.random() < share:
                        data = written(data, at, new[0][at - offset : stop - offset])
                    at = stop
            files[path] = data
        return files


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("traced"), BARS)


def record(place, bars):
    events = traced(place, place / "calls.log", bars)
    moments = []
    with quick_folder() as folder:
        traded(folder, lambda desk: moments.append(Moment(desk)), bars=bars)
    assert sum(event == ("boundary",) for event in events) == len(moments) > 100
    return events, moments, bars


def crash(recorded, at, seed, *, recover):
    """Cut the disk off after a call; open what is left, and let a trader recover from it."""
    events, moments, _bars = recorded
    disk, done = Disk(), 0
    for event in events[:at]:
        if event == ("boundary",):
            done += 1
        else:
            disk.take(event)
    if done == 0:
        return
    with quick_folder() as folder:
        for name, data in disk.lost(np.random.default_rng(seed)).items():
            (folder / name).write_bytes(data)
        desk = Desk(folder, symbols=2)
        moment = moments[done - 1]
        desk.clock.set_now(moment.now_ns)
        for name, value in moment.venue.items():
            setattr(desk.venue, name, copy.deepcopy(value))
        journal = desk.journal("live")
        assert journal.rows("PRAGMA integrity_check") == [("ok",)]
        # everything that was committed, or that and the whole of what was being committed
        later = (own.rows for own in moments[done:] if own.rows != moment.rows)
        assert contents(journal) in (moment.rows, next(later, moment.rows)), (at, seed)
        journal.close()
        if recover:
            desk.clock.advance(30.0)
            with desk.trader("live") as loop:
                loop.run(bars=2)
                loop.accounts.settle()
            check_books(desk)


def points(recorded, count, seed):
    """Return drawn calls, most of them between a write and its sync."""
    events = recorded[0]
    inside = [k for k, (one, _) in enumerate(pairwise(events), 1) if one[0] == "write"]
    rng = np.random.default_rng(seed)
    return rng.choice(inside, count).tolist()


@pytest.mark.spec("R2 R21")
@pytest.mark.parametrize("part", range(4))
def test_a_power_loss_costs_no_commit_and_leaves_no_half(recorded, part):
    for number, at in enumerate(points(recorded, 75, part)):
        crash(recorded, at, 1000 * part + number, recover=number % 5 == 0)


def test_the_trace_syncs_each_commit_before_it_returns(recorded):
    events, moments, _bars = recorded
    written, commits = set(), 0
    for event in events:
        if event[0] == "write":
            written.add(event[1])
        elif event[0] == "sync":
            written.discard(event[1])
        elif event == ("boundary",):
            commits += 1
            assert f"{NAME}-wal" not in written, f"boundary {commits} returned before its sync"
    changes = sum(one.rows != other.rows for one, other in pairwise(moments))
    assert sum(event == ("sync", f"{NAME}-wal") for event in events) >= changes > 30
    # a checkpoint writes into the database itself; the last one is that of the end
    assert any(event[:2] == ("write", NAME) for event in events)


@pytest.mark.campaign
@pytest.mark.spec("R2 R21")
@pytest.mark.parametrize("part", range(20))
def test_five_thousand_power_losses(tmp_path_factory, part):
    made = record(tmp_path_factory.mktemp("traced"), 60)
    for number, at in enumerate(points(made, 250, 100 + part)):
        crash(made, at, 1000 * part + number, recover=number % 5 == 0)
