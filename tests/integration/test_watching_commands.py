"""`stormsail dashboard` and `stormsail alerts`, and a paper account with a dashboard beside it."""

import http.client
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from execution_lab import Desk
from stormsail.cli.main import app

# one of apprise's services imports a module that Python is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an account that has traded two bars and stopped."""
    desk = Desk(tmp_path_factory.mktemp("paper"))
    with desk.trader() as loop:
        loop.run(bars=2)
    return desk.folder


def test_a_dashboard_of_a_folder_shows_it_until_it_is_interrupted(folder: Path) -> None:
    words = [sys.executable, "-m", "stormsail", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", served.stdout.readline())
            assert found is not None
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
            connection.request("GET", "/health")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"STOPPED")
            connection.close()
        finally:
            served.send_signal(2)
            assert served.wait(20) == 130


@pytest.mark.refusal
def test_a_folder_that_is_no_account_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["dashboard", str(tmp_path)])
    assert done.exit_code != 0


@pytest.mark.refusal
def test_alerts_without_a_service_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORMSAIL_ALERTS", raising=False)
    done = CliRunner().invoke(app, ["alerts"])
    assert "there must be an alert service to test" in str(done.exception or done.output)


def test_a_service_that_cannot_be_reached_is_told_without_its_password(tmp_path: Path) -> None:
    file = tmp_path / "alerts"
    file.write_text("# phone\njson://me:canary-secret@127.0.0.1:9/hook\n")
    file.chmod(0o600)
    done = CliRunner().invoke(app, ["alerts", str(file)])
    assert done.exit_code == 1
    assert "NOT taken" in done.output
    assert "canary-secret" not in done.output


@pytest.mark.refusal
def test_a_file_of_services_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "alerts"
    file.write_text("json://127.0.0.1:9/hook\n")
    file.chmod(0o644)
    done = CliRunner().invoke(app, ["alerts", str(file)])
    assert "secret-exposed" in str(done.exception or done.output)


def test_an_alert_that_no_service_took_is_an_error_of_the_observer(tmp_path: Path) -> None:
    from stormsail.cli.trading.watching import AlertError, Watching
    from stormsail.core.clock import ManualClock
    from stormsail.execution.operator.status import Notice

    file = tmp_path / "alerts"
    file.write_text("json://user:pw@127.0.0.1:1/\n")
    file.chmod(0o600)
    alarm = Notice(1, "alarm", "killed", "by a test")
    with Watching(alerts=file).around(tmp_path, ManualClock()) as (observe,):
        observe(alarm)

        def later() -> None:
            for _ in range(2000):
                time.sleep(0.01)
                observe(Notice(1, "info", "ready", "x"))

        with pytest.raises(AlertError, match="did not take the alert: killed: by a test") as told:
            later()
    assert "pw" not in str(told.value)


def test_alerts_that_hang_do_not_keep_a_trader_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stormsail.core.clock import ManualClock
    from stormsail.execution.operator import alerts

    release = threading.Event()
    monkeypatch.setattr(alerts, "_notify", lambda *_: release.wait())
    monkeypatch.setattr(alerts, "CLOSING_SECONDS", 0.2)
    failures: list[str] = []
    made = alerts.Alerts(
        ["json://127.0.0.1:1/"], title="x", clock=ManualClock(), on_failure=failures.append
    )
    begun = time.monotonic()
    with made:
        for number in range(alerts.WAITING + 3):
            made.send(alerts.Alert(f"kind {number}", "x"))
    assert time.monotonic() - begun < 5.0
    assert "alerts were still being sent when trading ended" in failures
    release.set()
