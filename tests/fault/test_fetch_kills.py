"""A fetch is killed at each request and at each file-system call: the next one ends the same."""

import os
import random
import signal
import warnings
from pathlib import Path

import pytest

from fault.faulty_os import FaultyOs, kill_at, never
from stormsail.core.clock import ManualClock
from stormsail.core.files import atomic
from stormsail.core.generators import Generators
from stormsail.execution.loopback import Exchange, Fault, Loopback, candles, rates
from stormsail.execution.loopback.tape import HOUR
from stormsail.market.fetch.bars import PAGES_PER_PART, fetch_bars
from stormsail.market.fetch.client import connect
from stormsail.market.fetch.funding import fetch_funding
from stormsail.market.interval import Interval
from stormsail.market.store import Store

START = 1_609_459_200_000
BARS, PAGE = 60, 4
PAGES = BARS // PAGE
H1 = Interval.parse("1h")
PERP = "BTC/USDT:USDT"


@pytest.fixture
def venue():
    with Loopback() as server:
        rows = candles(1, BARS, start=START)
        server.perp["BTCUSDT", "1h"] = rows[:31] + rows[33:]  # with a hole that must be confirmed
        server.funding["BTCUSDT"] = rates(2, 8, start=START)
        yield server


class Fetcher:
    """The same fetch again and again, here or in a child that is killed."""

    def __init__(self, venue: Exchange) -> None:
        self.venue = venue
        self.client = connect("binanceusdm", [PERP], base_url=venue.url, timeout_s=10.0)
        self.client.enableRateLimit = False
        self.client.load_markets()

    def fetch(self, root: Path, *, first: int = 0, last: int = BARS):
        clock = ManualClock((START + last * HOUR) * 1_000_000)
        return fetch_bars(
            self.client,
            Store(root),
            PERP,
            H1,
            since_ms=START + first * HOUR,
            clock=clock,
            generator=Generators(0).numpy("fetch"),
            page=PAGE,
        )

    def funding(self, root: Path, *, first: int = 0):
        clock = ManualClock((START + BARS * HOUR) * 1_000_000)
        generator = Generators(0).numpy("fetch")
        return fetch_funding(
            self.client,
            Store(root),
            PERP,
            since_ms=START + first * HOUR,
            clock=clock,
            generator=generator,
            page=2,
        )

    def killed(self, call, *, request: tuple[int, str] | None = None, fault=never) -> int:
        """Run `call` in a child; return its wait status."""
        self.client.session.close()  # a kept connection would be shared with the child
        self.venue.reset()
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)
                os.read(reading, 1)  # until the parent knows whom to kill
                atomic.os = FaultyOs(fault)
                call()
            finally:
                os._exit(0)

        def strike(group: str, number: int, moment: str) -> None:
            if group == "data" and (number, moment) == request:
                os.kill(child, signal.SIGKILL)

        self.venue.on_request = strike
        os.write(writing, b"x")
        os.close(reading)
        os.close(writing)
        status = os.waitpid(child, 0)[1]
        assert status in {0, signal.SIGKILL}
        self.venue.reset()
        return status


@pytest.fixture
def fetcher(venue):
    return Fetcher(venue)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b""
        for path in root.rglob("*")
    }


def assert_readable(root: Path) -> None:
    """Whatever happened, the store is whole: no file, or one that can be read."""
    store = Store(root)
    if store.path(PERP, H1).exists():
        assert set(store.read(PERP, H1).ts.tolist()) <= {START + n * HOUR for n in range(BARS)}


@pytest.fixture
def whole(fetcher, tmp_path):
    """The store of a fetch that nobody interrupted."""
    done = fetcher.fetch(tmp_path / "whole")
    assert (done.rows, [gap.count for gap in done.gaps]) == (BARS - 2, [2])
    return contents(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_each_request_costs_a_few_pages_and_changes_nothing(
    moment, fetcher, whole, tmp_path
):
    requests = len(fetcher.venue.of_group("data"))
    assert requests == PAGES + 1  # one page has a hole
    for number in range(1, requests + 1):
        root = tmp_path / f"{number}"
        status = fetcher.killed(lambda root=root: fetcher.fetch(root), request=(number, moment))
        assert status == signal.SIGKILL or number == requests
        assert_readable(root)
        fetcher.fetch(root)
        assert contents(root) == whole
        again = len(fetcher.venue.of_group("data"))
        assert again <= requests - number + 1 + PAGES_PER_PART + 2  # and one bar for the seam


def test_a_kill_at_each_file_system_call_changes_nothing(fetcher, tmp_path):
    fetcher.fetch(tmp_path / "whole", last=40)  # ten pages: a part and a rest
    whole, number, status = contents(tmp_path / "whole"), 0, -1
    while status != 0 and number < 500:
        number += 1
        root = tmp_path / f"{number}"
        status = fetcher.killed(
            lambda root=root: fetcher.fetch(root, last=40), fault=kill_at(number, tear=True)
        )
        assert_readable(root)
        fetcher.fetch(root, last=40)
        assert contents(root) == whole
    assert 30 < number < 500


def test_kills_while_both_ends_are_fetched_change_nothing(fetcher, tmp_path):
    begun = tmp_path / "begun"
    fetcher.fetch(begun, first=35, last=45)
    middle = contents(begun)

    def prepared(name: str) -> Path:
        for file, data in middle.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if data:
                path.write_bytes(data)
        return tmp_path / name

    fetcher.venue.reset()
    fetcher.fetch(prepared("whole"))
    whole, requests = contents(tmp_path / "whole"), len(fetcher.venue.of_group("data"))
    for number in range(1, requests, 2):
        root = prepared(f"{number}")
        assert fetcher.killed(lambda root=root: fetcher.fetch(root), request=(number, "before"))
        kept = Store(root).path(PERP, H1).read_bytes()
        assert kept == middle["BTC-USDT_USDT/1h.parquet"]
        fetcher.fetch(root)
        assert contents(root) == whole


def _many_kills(fetcher: Fetcher, whole: dict[str, bytes], tmp_path: Path, seed: int) -> int:
    """Kill one fetch again and again at random requests, among faults; return how often."""
    draw, root, kills = random.Random(seed), tmp_path / f"seed-{seed}", 0
    for _ in range(30):
        status = fetcher.killed(
            lambda: fetcher.fetch(root),
            request=(draw.randint(1, 14), draw.choice(("before", "after"))),
        )
        assert_readable(root)
        kills += status == signal.SIGKILL
        if status == 0:
            break
    fetcher.venue.script = {
        ("data", draw.randint(1, 5)): Fault("reset"),
        ("data", 6): Fault("torn"),
    }
    fetcher.fetch(root)
    assert contents(root) == whole
    return kills


def test_a_fetch_that_is_killed_again_and_again_ends_the_same(fetcher, whole, tmp_path):
    assert sum(_many_kills(fetcher, whole, tmp_path, seed) for seed in range(3)) >= 6


@pytest.mark.campaign
def test_hundreds_of_fetches_that_are_killed_again_and_again_end_the_same(fetcher, whole, tmp_path):
    kills = sum(_many_kills(fetcher, whole, tmp_path, seed) for seed in range(3, 200))
    assert kills >= 400  # two a fetch; the draws give more, some fall behind the end


def test_a_kill_at_each_request_for_funding_changes_nothing(fetcher, tmp_path):
    fetcher.funding(tmp_path / "whole")
    whole, requests = contents(tmp_path / "whole"), len(fetcher.venue.of_group("data"))
    assert requests == 5  # 8 rates by twos, and the empty page behind them
    for number in range(1, requests + 1):
        root = tmp_path / f"{number}"
        assert fetcher.killed(lambda root=root: fetcher.funding(root), request=(number, "before"))
        fetcher.funding(root)
        assert contents(root) == whole


def test_a_kill_while_older_funding_is_fetched_leaves_no_break(fetcher, tmp_path):
    fetcher.funding(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    for number in range(1, 6):
        root = tmp_path / f"{number}"
        fetcher.funding(root, first=48)
        assert fetcher.killed(lambda root=root: fetcher.funding(root), request=(number, "before"))
        times = Store(root).read_funding(PERP).ts
        assert set((times[1:] - times[:-1]).tolist()) <= {8 * HOUR}
        fetcher.funding(root)
        assert contents(root) == whole
