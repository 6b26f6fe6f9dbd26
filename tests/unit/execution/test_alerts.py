"""Alerts: what is sent, what waits, and that trading never notices."""

import ast
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stormsail
from stormsail.core.clock import ManualClock
from stormsail.core.errors import ConfigError
from stormsail.execution.operator.alerts import (
    COOLDOWN_SECONDS,
    LONGEST,
    Alert,
    AlertFilter,
    Alerts,
)

# one of apprise's services imports a module that Python is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class Receiver(http.server.ThreadingHTTPServer):
    """A service on this machine that keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, str]] = []
        self.status = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                receiver.bodies.append(json.loads(self.rfile.read(length)))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"json://operator:canary-secret@127.0.0.1:{self.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_first_of_a_kind_goes_at_once_and_the_rest_are_counted() -> None:
    clock = ManualClock()
    lines = AlertFilter(clock)
    assert lines.line(Alert("stale", "bars are  old\nby 3 h")) == "bars are old by 3 h"
    assert [lines.line(Alert("stale", "again")) for _ in range(4)] == [None] * 4
    assert lines.line(Alert("killed", "kill switch")) == "kill switch"
    clock.advance(COOLDOWN_SECONDS - 0.001)
    assert lines.line(Alert("stale", "again")) is None
    clock.advance(0.001)
    assert lines.line(Alert("stale", "old")) == "old (and 5 more of this kind)"


def test_a_long_line_is_cut_and_keeps_the_count() -> None:
    clock = ManualClock()
    lines = AlertFilter(clock)
    assert lines.line(Alert("a", "x" * 500)) == "x" * LONGEST
    lines.line(Alert("a", "y"))
    clock.advance(COOLDOWN_SECONDS)
    suffix = " (and 1 more of this kind)"
    assert lines.line(Alert("a", "x" * 500)) == "x" * (LONGEST - len(suffix)) + suffix


def test_a_service_gets_one_line_for_each_event(receiver: Receiver) -> None:
    failures: list[str] = []
    with Alerts(
        [receiver.address], title="run a", clock=ManualClock(), on_failure=failures.append
    ) as alerts:
        alerts.send(Alert("halted", "HALTED: daily loss"))
        alerts.send(Alert("halted", "HALTED: daily loss"))
        alerts.send(Alert("stale", "no bar for 3 h"))
    assert [(body["title"], body["message"]) for body in receiver.bodies] == [
        ("run a", "HALTED: daily loss"),
        ("run a", "no bar for 3 h"),
    ]
    assert failures == []


def test_a_service_that_refuses_is_reported_without_its_password(receiver: Receiver) -> None:
    receiver.status = 500
    failures: list[str] = []
    with Alerts(
        [receiver.address], title="run a", clock=ManualClock(), on_failure=failures.append
    ) as alerts:
        alerts.send(Alert("halted", "HALTED"))
    assert len(failures) == 1
    assert failures[0].endswith("did not take the alert: HALTED")
    assert "canary-secret" not in failures[0] + "".join(alerts.names)


def test_a_test_says_which_service_took_it(receiver: Receiver) -> None:
    alerts = Alerts([receiver.address], title="t", clock=ManualClock(), on_failure=str)
    assert list(alerts.test().values()) == [True]
    assert receiver.bodies[0]["message"] == "test of alerts: all is well"


def test_without_services_nothing_is_started() -> None:
    before = threading.active_count()
    with Alerts([], title="t", clock=ManualClock(), on_failure=str) as alerts:
        alerts.send(Alert("a", "b"))
        assert threading.active_count() == before


@pytest.mark.refusal
def test_an_address_that_nobody_knows_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="must be an address that apprise knows") as refused:
        Alerts(["nonsense://canary-secret"], title="t", clock=ManualClock(), on_failure=str)
    assert "canary-secret" not in str(refused.value)


# Documentation


def _names_of(call: ast.Call, function: ast.AST) -> set[str]:
    """Return the names that a call of `tell` may pass."""
    first = call.args[0]
    places = [first]
    if isinstance(first, ast.Name):
        targets = [
            (target, node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        for target, value in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=True)
            else:
                pairs = iter([(target, value)])
            places += [
                own for name, own in pairs if isinstance(name, ast.Name) and name.id == first.id
            ]
    found = set()
    for place in places:
        own = [place.body, place.orelse] if isinstance(place, ast.IfExp) else [place]
        found |= {
            str(node.value)
            for node in own
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found


def _alarms() -> set[str]:
    """Return the names of all events that the package tells as alarms, or may."""
    found = set()
    for path in Path(stormsail.__file__).parent.joinpath("execution").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if not (named and node.func.attr == "tell" and len(node.args) >= 3):
                    continue
                severe = not isinstance(node.args[2], ast.Constant)
                if severe or node.args[2].value == "alarm":
                    found |= _names_of(node, function)
    return found


def test_every_alert_stands_in_the_operators_page_with_its_remedy() -> None:
    alarms = _alarms()
    assert {"killed", "liquidated", "order-unknown", "predicted-tail", "ended"} <= alarms
    page = Path(__file__).parents[3].joinpath("docs", "operating.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    remedies = {name.strip(" `"): row[3] for row in rows for name in row[1].split(",")}
    alarms -= {"order-refused"}  # a warning: a limit that works is no emergency
    missing = sorted(name for name in alarms if not remedies.get(name, "").strip())
    assert missing == []
