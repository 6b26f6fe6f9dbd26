"""The dashboard's surface: what it shows, and that nobody without the token changes anything."""

import http.client
import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dashboard_lab import START, TOKEN, VIEW, Desk, dashboard
from stormsail.core.clock import ManualClock
from stormsail.core.errors import ConfigError, DataError, VenueError
from stormsail.execution.operator.dashboard.guard import (
    LOCKED_SECONDS,
    WRONG_TOKENS,
    Guard,
    allowed_hosts,
    is_loopback,
)
from stormsail.execution.operator.dashboard.server import Dashboard
from stormsail.execution.operator.dashboard.token import load_or_create_token

PATHS = ("/", "/page.css", "/page.js", "/api/state", "/api/stream", "/health", "/api/kill", "/x")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Desk, Dashboard]]:
    desk = Desk()
    with dashboard(desk) as page:
        yield desk, page


@pytest.fixture
def desk(running: tuple[Desk, Dashboard]) -> Iterator[Desk]:
    desk, _ = running
    yield desk
    desk.shown, desk.problem, desk.killed[:] = VIEW, None, []
    desk.clock.advance(LOCKED_SECONDS)


def ask(page: Dashboard, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return status and the first kilobyte of the answer; a stream is not read to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read1(1024).decode()
    finally:
        connection.close()


@pytest.mark.spec("R29")
def test_no_attacker_changes_anything_by_any_route_and_method(
    running: tuple[Desk, Dashboard], desk: Desk
) -> None:
    _, page = running
    own = f"127.0.0.1:{page.port}"
    attackers = {
        "nobody": {},
        "wrong token": {"Authorization": "Bearer " + "x" * 43},
        "foreign host": {"Host": f"evil.example:{page.port}", **BEARER},
        "rebound host": {"Host": "evil.example", **BEARER},
        "foreign origin": {"Host": own, "Origin": "http://evil.example", **BEARER},
        "null origin": {"Host": own, "Origin": "null", **BEARER},
    }
    kinds: dict[str, set[int]] = {}
    for (name, headers), path, method in product(attackers.items(), PATHS, METHODS):
        status, text = ask(page, method, path, headers)
        kinds.setdefault(name, set()).add(status)
        assert status != 200 or method in ("GET", "HEAD"), (name, method, path)
        assert TOKEN not in text
        assert desk.killed == []
    assert kinds["foreign host"] == kinds["rebound host"] == {421}
    assert kinds["foreign origin"] == kinds["null origin"] == {403}


@pytest.mark.spec("R29")
def test_only_a_post_with_the_token_trips_the_kill_switch(
    running: tuple[Desk, Dashboard], desk: Desk
) -> None:
    _, page = running
    for method in METHODS:
        if method != "POST":
            ask(page, method, "/api/kill", BEARER)
    assert desk.killed == []
    status, text = ask(page, "POST", "/api/kill", BEARER)
    assert (status, desk.killed) == (200, ["dashboard"])
    assert "only `stormsail rearm` undoes it" in text
    assert ask(page, "GET", "/health", {}) == (200, "KILLED")


def test_every_answer_carries_the_safety_headers(running: tuple[Desk, Dashboard]) -> None:
    _, page = running
    for path, headers in product(("/", "/api/state", "/x"), ({}, {"Host": "evil.example"})):
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.getheader("x-frame-options") == "DENY"
        assert answer.getheader("cache-control") == "no-store"
        assert str(answer.getheader("content-security-policy")).startswith("default-src 'none'")
        assert answer.getheader("server") is None
        connection.close()


def test_the_state_is_the_view_and_what_is_not_finite_is_null(
    running: tuple[Desk, Dashboard], desk: Desk
) -> None:
    _, page = running
    desk.shown = replace(VIEW, curve_ms=(START,), curve_equity=(1.5,))
    document = json.loads(ask(page, "GET", "/api/state", {})[1] or "null")
    assert document["curve_ms"] == [START]
    assert document["curve_equity"] == [1.5]
    assert document["tail"] == {
        "horizon": "24 h",
        "alpha": 0.05,
        "predicted": -0.092,
        "realised": None,
        "windows": 3,
        "limit": -0.1,
    }


def test_the_stream_sends_a_change_and_not_the_same_state_twice(
    running: tuple[Desk, Dashboard], desk: Desk
) -> None:
    _, page = running
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", "/api/stream")
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
    first = answer.readline().decode()
    assert json.loads(first.removeprefix("data: "))["state"] == "ACTIVE"
    assert answer.readline() == b"\n"
    assert answer.readline() == b": same\n"
    desk.shown = replace(VIEW, state="REDUCING")
    lines = [answer.readline().decode() for _ in range(8)]
    sent = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data")]
    assert [document["state"] for document in sent] == ["REDUCING"]
    connection.close()


def test_health_tells_a_loop_that_hangs(running: tuple[Desk, Dashboard], desk: Desk) -> None:
    _, page = running
    assert ask(page, "GET", "/health", {}) == (200, "ACTIVE")
    desk.shown = replace(VIEW, health=replace(VIEW.health, heartbeat_age_s=15.1))
    assert ask(page, "GET", "/health", {}) == (503, "the loop has not turned for 15 s")


FULL = DataError("data-write", wrong="it must be\nwritten", found="a full disk", remedy="Free it.")


@pytest.mark.parametrize("path", ["/health", "/api/state"])
def test_an_account_that_cannot_be_read_is_told_in_words(
    running: tuple[Desk, Dashboard], desk: Desk, path: str
) -> None:
    _, page = running
    desk.problem = FULL
    assert ask(page, "GET", path, {}) == (503, str(FULL))
    desk.problem = None
    assert ask(page, "GET", path, {})[0] == 200


def test_the_stream_tells_what_cannot_be_read_and_goes_on(
    running: tuple[Desk, Dashboard], desk: Desk
) -> None:
    _, page = running
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", "/api/stream")
    answer = connection.getresponse()
    lines = iter(answer.readline, b"")
    before = next(line for line in lines if line.startswith(b"data"))
    desk.problem = FULL
    assert next(line for line in lines if line.startswith(b"event")) == b"event: problem\n"
    told = next(lines)
    assert json.loads(told.removeprefix(b"data: ")) == str(FULL)
    desk.problem = None
    assert next(line for line in lines if line.startswith(b"data")) == before
    connection.close()


def guard(clock: ManualClock, *, open_reading: bool = True) -> Guard:
    hosts = allowed_hosts("127.0.0.1", 80)
    return Guard(token=TOKEN, hosts=hosts, scheme="http", open_reading=open_reading, clock=clock)


def told(guard: Guard, bearer: str | None, *, method: str = "POST", address: str = "a") -> int:
    refusal = guard.refusal(
        method=method, host="localhost:80", origin=None, bearer=bearer, address=address
    )
    return 0 if refusal is None else refusal.status


def test_wrong_tokens_lock_one_address_out_for_a_minute() -> None:
    clock = ManualClock()
    guarded = guard(clock)
    assert [told(guarded, "wrong") for _ in range(WRONG_TOKENS)] == [401] * WRONG_TOKENS
    assert told(guarded, TOKEN) == 429
    assert told(guarded, TOKEN, address="b") == 0
    clock.advance(LOCKED_SECONDS - 0.001)
    assert told(guarded, TOKEN) == 429
    clock.advance(0.001)
    assert told(guarded, TOKEN) == 0


def test_a_right_token_forgets_the_wrong_ones() -> None:
    guarded = guard(ManualClock())
    for _ in range(3):
        assert [told(guarded, "wrong") for _ in range(WRONG_TOKENS - 1)] == [401] * 4
        assert told(guarded, TOKEN) == 0


def test_reading_needs_the_token_where_other_machines_can_ask() -> None:
    assert told(guard(ManualClock()), None, method="GET") == 0
    assert told(guard(ManualClock(), open_reading=False), None, method="GET") == 401
    assert told(guard(ManualClock(), open_reading=False), TOKEN, method="GET") == 0


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("192.168.1.5", False),
        ("example.com", False),
    ],
)
def test_which_addresses_are_this_machine_alone(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.refusal
def test_other_machines_are_refused_without_a_certificate() -> None:
    desk = Desk()
    with pytest.raises(ConfigError, match=r"must be encrypted; found the address 0\.0\.0\.0"):
        Dashboard(desk.view, desk.kill, TOKEN, address="0.0.0.0")  # noqa: S104


@pytest.mark.refusal
def test_a_port_in_use_is_refused_in_words(running: tuple[Desk, Dashboard]) -> None:
    desk, page = running
    with pytest.raises(VenueError, match="Choose another port"):
        Dashboard(desk.view, desk.kill, TOKEN, port=page.port).__enter__()


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    token = load_or_create_token(tmp_path)
    path = tmp_path / "dashboard.token"
    assert (len(token), stat.S_IMODE(path.stat().st_mode)) == (43, 0o600)
    assert load_or_create_token(tmp_path) == token
    assert load_or_create_token(tmp_path) != load_or_create_token(_other(tmp_path))


def _other(folder: Path) -> Path:
    other = folder / "other"
    other.mkdir()
    return other


@pytest.mark.refusal
def test_a_token_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    load_or_create_token(tmp_path)
    path = tmp_path / "dashboard.token"
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0640"):
        load_or_create_token(tmp_path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="found 5 characters"):
        load_or_create_token(tmp_path)
