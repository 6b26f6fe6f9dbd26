"""The kernel kills a trader at a call on its files: the next one knows what the venue knows.

A session trades, restarts, is stopped by the kill switch with a position open, re-armed, and its
journal trimmed. A tracer kills it at the k-th call of a name, for each k until it completes. What
is left must be a whole journal, a switch that is tripped if it said so, and books that equal those
of the venue once another trader has started.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest

from execution_lab import Desk
from fault.short_session import VenueMemory, session
from fault.test_execution_kills import check_books

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

CALLS = {
    "pwrite64": 100, "write": 5, "fsync": 2, "fdatasync": 20, "ftruncate": 1, "rename": 2,
    "renameat": 1, "unlink": 1,
}  # fmt: skip
"""The least number of calls of each name that a session makes."""

SOME = (
    *(("pwrite64", number) for number in (60, 210, 235)),
    *(("fdatasync", number) for number in (1, 12, 33)),
    ("fsync", 1),
    ("renameat", 1),
    ("unlink", 1),
)
"""Calls that are tried by every run of the tests."""

ANY_TRACER = 0x59616D61, ctypes.c_ulong(-1)


def killed_at(account, call, number):
    """Trade a session whose process is killed at a call; return how it ended, and its venue."""
    memory = VenueMemory()
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(*ANY_TRACER, 0, 0, 0)  # else a sibling may not trace it
            os.close(go)
            os.read(ready, 1)
            session(account, memory)
            status = 0
        finally:
            os._exit(status)
    os.close(ready)
    kill = f"inject={call}:signal=SIGKILL:when={number}"
    words = ("strace", "-p", str(child), "-o", os.devnull, "-e", f"trace={call}", "-e", kill)
    with subprocess.Popen(words, stderr=subprocess.PIPE) as tracer:
        assert tracer.stderr is not None
        told = tracer.stderr.readline()
        os.close(go)  # the child goes on
        status = os.waitpid(child, 0)[1]
        tracer.wait(60)
    assert b"attached" in told, told
    assert status in {0, signal.SIGKILL}
    return status, memory


def recovered(account, memory):
    """Start another trader on what is left; compare it with what the venue knew at the death."""
    desk = Desk(account, symbols=1)
    phase = memory.take(desk)
    trip = desk.switch.read()
    assert trip is None or (trip.source, trip.way) == ("a test", "flatten"), "a torn switch"
    if phase == "tripped":
        assert trip is not None, "the switch had said that it is tripped"
    if phase in ("trading", "rearmed"):
        assert trip is None
    with closing(desk.journal("live")) as journal:
        assert journal.rows("PRAGMA integrity_check") == [("ok",)]
        assert journal.rows("PRAGMA foreign_key_check") == []
        known = {intent.client_id for intent in journal.intents()}
        assert {request.client_id for request in desk.venue.requests} <= known
    desk.clock.advance(30.0)
    with desk.trader("live", start=False) as loop:
        early = []
        desk.venue.kill = lambda _step: early.append(loop.gate.ready)
        loop.start()
        assert all(early), "an order before READY"
        if trip is not None:
            assert loop.run(bars=1) == "killed"
            assert not any(desk.venue.held.values()), "not flat"
            assert not any(order.status == "open" for order in desk.venue.book.values())
            desk.switch.rearm()
    desk.clock.advance(3600.0)
    with desk.trader("live") as loop:
        loop.run(bars=2)
        loop.accounts.settle()
    check_books(desk)
    return phase


def trial(folder, call, number):
    """Kill a session at a call and recover; return how it ended, and how far it had come."""
    account = folder / f"{call}-{number}"
    account.mkdir()
    status, memory = killed_at(account, call, number)
    phase = recovered(account, memory)
    shutil.rmtree(account)
    return status, phase


@pytest.mark.spec("R21")
def test_the_kernel_kills_a_trader_at_some_calls_and_the_next_one_equals_the_venue(tmp_path):
    phases = set()
    for call, number in SOME:
        status, phase = trial(tmp_path, call, number)
        assert status == signal.SIGKILL, f"{call} {number} was not reached"
        phases.add(phase)
    assert {"trading", "tripping", "tripped"} <= phases


@pytest.mark.campaign
@pytest.mark.spec("R21")
@pytest.mark.parametrize("call", CALLS)
def test_the_kernel_kills_a_trader_at_every_call_and_the_next_one_equals_the_venue(call, tmp_path):
    kills, status, phases = 0, -1, Counter()
    while status != 0:
        status, phase = trial(tmp_path, call, kills + 1)
        kills += status != 0
        phases[phase] += status != 0
    assert kills >= CALLS[call]
    # Read by scripts/campaign.py, which runs this with -s: one trial for each kill.
    sys.stdout.write(f"\n{kills} kills at {call}, every journal whole; {dict(phases)}\n")
