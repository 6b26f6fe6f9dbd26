"""One request budget for an address: never over the limit, never a request in a ban."""

import json
import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from stormsail.core.clock import ManualClock, SystemClock
from stormsail.core.errors import DataError, RangeError, VenueError
from stormsail.execution.connection.rate_budget import RateBudget
from stormsail.execution.loopback.limits import Limits

T0_NS = 1_700_000_000 * 1_000_000_000


@pytest.fixture
def clock():
    return ManualClock(T0_NS)


@pytest.fixture
def budget(tmp_path, clock):
    made = RateBudget(tmp_path / "run" / "budget", limit=100, clock=clock, share=1.0)
    yield made
    made.close()
    made.close()


def refused(call):
    with pytest.raises(VenueError) as caught:
        call()
    return caught.value


def test_what_is_used_is_free_again_after_a_minute(budget, clock):
    budget.acquire(80.0)
    assert budget.used() == 0.8
    assert refused(lambda: budget.acquire(1.0)).code == "venue-rate-limit"
    clock.advance(61.0)
    assert refused(lambda: budget.acquire(1.0)).code == "venue-rate-limit"  # of the whole second
    clock.advance(1.0)
    budget.acquire(80.0)


def test_urgent_requests_have_a_reserve(budget):
    budget.acquire(80.0)
    budget.acquire(20.0, urgent=True)
    assert refused(lambda: budget.acquire(1.0, urgent=True)).code == "venue-rate-limit"


def test_patience_waits_exactly_as_long_as_is_needed(budget, clock):
    budget.acquire(80.0)
    clock.advance(10.0)
    before = clock.monotonic_ns()
    budget.acquire(10.0, patience_s=60.0)
    assert clock.monotonic_ns() - before == 52_001_000_000
    assert refused(lambda: budget.acquire(200.0, patience_s=500.0)).code == "venue-rate-limit"


def test_too_many_requests_silence_everybody_for_as_long_as_is_demanded(budget, tmp_path, clock):
    other = RateBudget(tmp_path / "run" / "budget", limit=100, clock=clock)
    other.quiet(7.0)
    other.close()
    assert refused(lambda: budget.acquire(1.0)).code == "venue-rate-limit"
    clock.advance(7.0)
    budget.acquire(1.0)


@pytest.mark.spec("D10")
def test_a_ban_outlasts_every_change_of_the_wall_clock(budget, clock):
    budget.ban(120.0)
    assert budget.banned_until_ms() == T0_NS // 1_000_000 + 120_000
    error = refused(lambda: budget.acquire(1.0, urgent=True))
    assert (error.code, error.found) == ("venue-ban", "a ban until 2023-11-14T22:15:20Z")
    for jump in (3600, -3600, 0):
        clock.set_now(T0_NS + jump * 1_000_000_000)
        assert refused(lambda: budget.acquire(1.0)).code == "venue-ban"
    clock.advance(120.0)
    budget.acquire(1.0)
    assert budget.banned_until_ms() is None


def test_a_ban_survives_a_restart_of_the_machine(budget, tmp_path, clock):
    clock.advance(1000.0)
    budget.ban(120.0)
    again = ManualClock(clock.now_ns())  # its monotonic clock begins at 0
    other = RateBudget(tmp_path / "run" / "budget", limit=100, clock=again)
    assert refused(lambda: other.acquire(1.0)).code == "venue-ban"
    again.advance(120.0)
    other.acquire(1.0)
    other.close()


def test_what_the_exchange_counted_is_taken_over(budget):
    budget.acquire(10.0)
    budget.observed(75)
    assert budget.used() == 0.75
    budget.observed(5)
    assert budget.used() == 0.75


@pytest.mark.spec("D10")
def test_what_another_process_writes_counts_at_once(budget, tmp_path, clock):
    other = RateBudget(tmp_path / "run" / "budget", limit=100, clock=clock, share=1.0)
    budget.acquire(30.0)
    other.acquire(30.0)
    assert budget.used() == other.used() == 0.6
    budget.acquire(20.0)
    assert other.used() == 0.8
    other.ban(60.0)
    assert refused(budget.check_ban).code == "venue-ban"
    other.close()


def test_a_question_about_the_budget_writes_nothing(budget, tmp_path, clock, monkeypatch):
    path = tmp_path / "run" / "budget"
    budget.acquire(30.0)
    before = path.read_bytes()
    clock.advance(1.0)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("its own record was read anew"))
    budget.check_ban()
    assert (budget.used(), budget.banned_until_ms()) == (0.3, None)
    assert path.read_bytes() == before
    budget.acquire(30.0)
    assert budget.used() == 0.6


def test_a_request_that_was_refused_uses_nothing(budget):
    budget.acquire(70.0)
    assert refused(lambda: budget.acquire(20.0)).code == "venue-rate-limit"
    assert budget.used() == 0.7


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"buckets": 3}', b"\xff\xfe", b'{"x": 1}'])
def test_a_record_that_cannot_be_read_costs_a_minute_and_no_ban(budget, tmp_path, clock, content):
    path = tmp_path / "run" / "budget"
    path.write_bytes(content)
    assert refused(lambda: budget.acquire(1.0)).code == "venue-rate-limit"
    clock.advance(62.0)
    budget.acquire(1.0)
    assert set(json.loads(path.read_bytes())) == {
        "buckets", "quiet_until_s", "banned_until_s", "banned_until_ms", "written_s"
    }  # fmt: skip


def test_the_file_belongs_to_its_user_alone(budget, tmp_path):
    assert (tmp_path / "run" / "budget").stat().st_mode & 0o777 == 0o600
    link = tmp_path / "run" / "link"
    link.symlink_to(tmp_path / "run" / "budget")
    with pytest.raises(DataError, match="request budget"):
        RateBudget(link, limit=1, clock=ManualClock())


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1, "share": 0.0}])
def test_a_budget_of_nothing_is_refused(tmp_path, wrong):
    with pytest.raises(RangeError):
        RateBudget(tmp_path / "x", clock=ManualClock(), **wrong)


def simulate(path, seed):
    """Three processes, a wall clock that jumps, and an exchange that bans now and then."""
    draw = np.random.Generator(np.random.PCG64([25, seed]))
    clock, limits = ManualClock(T0_NS), Limits("perp")
    offset = int(draw.integers(0, 60_000))
    traders = [RateBudget(path, limit=2400, clock=clock) for _ in range(3)]
    sent = 0
    for _ in range(120):
        trader = traders[int(draw.integers(3))]
        weight = int(draw.choice([1, 5, 20, 40, 200]))
        try:
            trader.acquire(
                weight, urgent=bool(draw.random() < 0.3), patience_s=float(draw.choice([0, 30]))
            )
        except VenueError:
            clock.advance(float(draw.uniform(0.0, 10.0)))
            continue
        exchange_ms = T0_NS // 1_000_000 + offset + clock.monotonic_ns() // 1_000_000
        sent += 1
        assert limits.check(weight, exchange_ms, order=False) is None
        if draw.random() < 0.02:
            limits.banned_until = exchange_ms + 40_000
            trader.ban(40.0)
        clock.advance(float(draw.uniform(0.0, 1.0)))
        if draw.random() < 0.1:
            clock.set_now(clock.now_ns() + int(draw.integers(-600, 601)) * 1_000_000_000)
    for trader in traders:
        trader.close()
    assert (limits.during_ban, limits.refused) == (0, 0)
    assert sent > 20
    assert limits.peak <= 0.8 * 2400


@pytest.mark.spec("R25")
@pytest.mark.parametrize("seed", range(200))
def test_no_minute_of_the_exchange_is_over_its_limit_and_nothing_is_sent_in_a_ban(tmp_path, seed):
    simulate(tmp_path / "budget", seed)


@pytest.mark.campaign
@pytest.mark.spec("R25")
@pytest.mark.parametrize("first", range(1_000, 11_000, 1_000))
def test_nor_in_ten_thousand_simulations(tmp_path, first):
    for seed in range(first, first + 1_000):
        simulate(tmp_path / f"budget-{seed}", seed)


def spend(path, count):
    budget = RateBudget(Path(path), limit=10_000, clock=SystemClock(), share=1.0)
    for _ in range(count):
        budget.acquire(1.0)
    budget.close()


@pytest.mark.spec("D10")
def test_processes_share_one_budget(tmp_path):
    path = str(tmp_path / "budget")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=spend, args=(path, 300)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    budget = RateBudget(Path(path), limit=10_000, clock=SystemClock(), share=1.0)
    assert budget.used() == 0.09
    budget.close()


@pytest.mark.spec("D10")
def test_threads_share_one_budget(tmp_path):
    budget = RateBudget(tmp_path / "budget", limit=1000, clock=SystemClock(), share=1.0)
    plain = budget._read

    def slow():
        state = plain()
        time.sleep(0.001)  # another thread has time to read the same
        return state

    budget._read = slow
    threads = [
        threading.Thread(target=lambda: [budget.acquire(1.0) for _ in range(10)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.used() == 0.08
    budget.close()
