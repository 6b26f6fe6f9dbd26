"""The verbs of trading, from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from backtest_lab import agent_for, panel, rules
from command_lab import forked
from stormsail.cli.trading.session import alone
from stormsail.core.clock import SystemClock
from stormsail.core.errors import ConfigError
from stormsail.core.files.artifact import write_artifact
from stormsail.execution.journal import NAME, Binding, Journal

pytest.importorskip("ccxt")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demonstration of six bars, fast."""
    place = tmp_path_factory.mktemp("demo")
    words = ("paper", "--venue", "loopback", "--demo", "--bars", "6", "--speed", "4000")
    return place, forked(*words, cwd=place)


def test_the_demonstration_needs_nothing(demo):
    place, done = demo
    assert done.returncode == 0, done.stderr
    assert "an agent that was never trained: it has no skill" in done.stdout
    assert done.stdout.count("ACTIVE equity") == 6
    assert done.stdout.splitlines()[-1].startswith("finished: 6 bars, equity ")
    assert (place / "trading" / "demo" / NAME).is_file()


def test_status_shows_a_stopped_account_and_ends_with_one(demo):
    place, _ = demo
    done = forked("status", "trading/demo", "--json", cwd=place)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["life"], found["kill_switch"]) == ("stopped", None)
    assert found["snapshot"]["bars"] >= 6
    assert {sleeve["symbol"] for sleeve in found["snapshot"]["sleeves"]} == {
        "BTC/USDT:USDT", "ETH/USDT:USDT",
    }  # fmt: skip
    assert "secret" not in done.stdout.lower()


def test_the_journal_replays_and_its_fills_are_the_simulators(demo):
    place, _ = demo
    done = forked("replay", "trading/demo", "--agent", "trading/demo/agent", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["difference"] is None
    assert found["decisions"] >= 12
    assert found["parity"]["decision_differences"] == 0
    assert all(abs(gap["worst_bp"]) < 1e-6 for gap in found["parity"]["fills"])


def test_stop_latches_and_only_rearm_with_words_lifts_it(demo):
    place, _ = demo
    assert forked("stop", "trading/demo", cwd=place).returncode == 0
    again = forked("paper", "--venue", "loopback", "--demo", "--bars", "1", cwd=place)
    assert again.returncode == 2
    assert again.stderr.rstrip().endswith("[kill-switch]")
    assert forked("status", "trading/demo", cwd=place).returncode == 1
    silent = forked("rearm", "trading/demo", cwd=place)
    assert (silent.returncode, "[not-confirmed]" in silent.stderr) == (2, True)
    done = forked("rearm", "trading/demo", "--words", "I looked", cwd=place)
    assert done.returncode == 0
    journal = Journal.reading(place / "trading" / "demo" / NAME)
    (action,) = journal.rows("SELECT action, words FROM operator_actions")
    journal.close()
    assert action == ("rearm", "I looked (stop: a person)")


def test_of_several_accounts_the_one_to_stop_must_be_named(tmp_path):
    """`stormsail stop` without a folder once tripped the paper account beside a live one."""
    for name in ("live", "paper"):
        folder = tmp_path / "trading" / name
        folder.mkdir(parents=True)
        binding = Binding(name, "x", name, "1h", "USDT")
        Journal(folder / NAME, binding, epoch="abcdef", now_ms=1).close()
        if name == "live":  # the only one so far
            assert forked("stop", cwd=tmp_path).returncode == 0
            assert (folder / "KILL").exists()
            assert forked("rearm", "--words", "a test", cwd=tmp_path).returncode == 0
    for words in (("stop", "--flatten"), ("rearm", "--words", "x")):
        done = forked(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr.rstrip().endswith("[usage]")) == (2, True)
        assert "trading/live, trading/paper" in done.stderr
    assert list(tmp_path.glob("trading/*/KILL")) == []
    done = forked("stop", "trading/live", "--flatten", cwd=tmp_path)
    assert "no trader of trading/live is running" in done.stdout
    assert [path.parent.name for path in tmp_path.glob("trading/*/KILL")] == ["live"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("paper",), "usage"),
        (("paper", "--demo"), "config-inconsistent"),
        (("paper", "nowhere"), "artifact-missing"),
        (("paper", "--venue", "loopback", "--demo", "--capital", "nan"), "config-value"),
        (("paper", "--venue", "loopback", "--demo", "--set", "limits.x=1"), "config-unknown-key"),
        (("status", "nowhere"), "journal-missing"),
        (("stop", "nowhere"), "journal-missing"),
        (("stop", "nowhere", "--flatten", "--cancel-only"), "usage"),
        (("rearm", "nowhere", "--words", "x"), "journal-missing"),
        (("replay", "nowhere", "--agent", "nowhere"), "artifact-missing"),
        (("live", "nowhere", "--capital", "100"), "artifact-missing"),
        (("live", "nowhere"), "usage"),
    ],
)
def test_bad_input_is_refused_in_words(tmp_path, words, code):
    done = forked(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(f"[{code}]"), done.stderr
    assert not (tmp_path / "nowhere").exists()


def agent_with(path, verdict=None, share=1.0):
    market = panel(60)
    own = agent_for(market, rules()).contents()
    documents = dict(own.documents)
    if verdict is not None:
        documents["validation"] = {"verdict": {"decision": verdict, "capital_share": share}}
    contents = type(own)(
        tensors=own.tensors, documents=documents, blobs=own.blobs, metadata=own.metadata
    )
    write_artifact(path, kind="agent", contents=contents)


@pytest.mark.parametrize(
    ("verdict", "accept", "code"),
    [
        (None, None, "agent-unproven"),
        ("not proven", None, "agent-unproven"),
        ("not proven", "fine", "agent-unproven"),
        ("not proven", "not proven:", "agent-unproven"),
        ("reject", "not proven: I insist", "agent-unproven"),
        ("not proven", "not proven: a small test", "secret-missing"),
        ("promote", None, "secret-missing"),
    ],
)
def test_live_needs_a_verdict_or_words(tmp_path, verdict, accept, code):
    agent_with(tmp_path / "agent", verdict)
    words = ["live", "agent", "--capital", "100"]
    done = forked(*words, *(["--accept", accept] if accept else []), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(f"[{code}]"), done.stderr
    assert not (tmp_path / "trading").exists()


def test_a_promoted_agent_trades_the_share_that_the_verdict_allows(tmp_path):
    from stormsail.cli.trading.live import checked_verdict

    agent_with(tmp_path / "agent", "promote", 0.25)
    assert checked_verdict(tmp_path / "agent", None) == ("promote", 0.25)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, None, True, "1.0"])
def test_a_verdict_that_allows_no_share_allows_no_trading(tmp_path, share):
    from stormsail.cli.trading.live import checked_verdict
    from stormsail.core.errors import ConfigError

    agent_with(tmp_path / "agent", "promote", share)
    with pytest.raises(ConfigError, match="must allow a share of the capital") as found:
        checked_verdict(tmp_path / "agent", "not proven: all the same")
    assert found.value.code == "agent-unproven"


@contextmanager
def trading(place):
    """Yield a trader in a process of its own, and its folder, once it trades."""
    words = ["paper", "--venue", "loopback", "--demo", "--speed", "2000"]
    folder = place / "trading" / "demo"
    (folder / "pulse.json").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "stormsail", *words],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        deadline = time.monotonic() + 90.0
        while not (folder / "pulse.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "no pulse"
            time.sleep(0.1)
        yield process, folder
    finally:
        process.kill()
        process.wait()


def test_two_traders_of_one_account_are_one_and_signals_end_it(tmp_path):
    with trading(tmp_path) as (process, folder):
        assert forked("status", "trading/demo", cwd=tmp_path).returncode == 0
        other = forked("paper", "--venue", "loopback", "--demo", "--bars", "1", cwd=tmp_path)
        assert other.returncode == 2
        assert other.stderr.rstrip().endswith("[account-busy]")
        assert f"process {process.pid}" in other.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert not (folder / "KILL").exists()
    with trading(tmp_path) as (process, folder):
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 1
        assert json.loads((folder / "KILL").read_text())["source"] == "signal"


@pytest.mark.spec("R21")
def test_of_a_hundred_double_starts_one_trades(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    clock = SystemClock()
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    with alone(first, "binance:1", "live", clock):
        for number in range(100):
            folder = (first, second)[number % 2]  # the same folder, or the same account
            with pytest.raises(ConfigError) as refused, alone(folder, "binance:1", "live", clock):
                pass
            assert refused.value.code == "account-busy"
        with alone(second, "binance:2", "live", clock):
            pass
    with alone(second, "binance:1", "live", clock):
        pass
