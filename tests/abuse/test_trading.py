"""Accounts of traders: damaged, foreign, half deleted; arguments that do not fit; no user."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import time

import pytest

from abuse_lab import SECONDS, call, check, forked

pytest.importorskip("ccxt")
pytest.importorskip("starlette")

DEMO = ("paper", "--venue", "loopback", "--demo", "--bars", 1, "--speed", 4000)
ACCOUNT = "trading/demo"


@pytest.fixture(scope="module")
def traded(tmp_path_factory):
    """Return a folder in which the demonstration traded a bar."""
    place = tmp_path_factory.mktemp("traded")
    check(call(*DEMO, cwd=place), 0)
    return place


@pytest.fixture
def account(traded, place):
    """Return a copy of the account, to be damaged, beside the sample."""
    shutil.copytree(traded / "trading", place / "trading")
    return place / ACCOUNT


def lose(table):
    """Return what deletes a table of a journal."""

    def damage(folder):
        with contextlib.closing(sqlite3.connect(folder / "journal.sqlite")) as database:
            database.execute(f"DROP TABLE {table}")
            database.commit()

    return damage


def filled_with(data):
    """Return what replaces a journal."""
    return lambda folder: (folder / "journal.sqlite").write_bytes(data)


DAMAGES = {
    "empty": filled_with(b""),
    "garbage": filled_with(b"garbage" * 99),
    "no meta": lose("meta"),
    "no decisions": lose("decisions"),
    "no events": lose("events"),
    "no actions": lose("operator_actions"),
}
READING = {
    "status": ("status", ACCOUNT),
    "rearm": ("rearm", ACCOUNT, "--words", "checked"),
    "trim": ("trim", ACCOUNT, "--yes"),
    "replay": ("replay", ACCOUNT, "--agent", f"{ACCOUNT}/agent"),
    "dashboard": ("dashboard", ACCOUNT, "--port", 0),
    "paper": DEMO,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("verb", READING)
def test_a_damaged_journal_is_refused_in_words(verb, damage, place, account):
    DAMAGES[damage](account)
    result = call(*READING[verb], cwd=place)
    check(result, 2, "journal-damaged")
    assert not (account / "KILL").exists()
    assert not list(place.glob("stormsail-error*"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_kill_switch_is_tripped_beside_a_damaged_journal(damage, place, account):
    DAMAGES[damage](account)
    result = call("stop", ACCOUNT, "--wait", 0, cwd=place)
    check(result, 2, "journal-damaged")
    assert result.out == "kill switch tripped: stop\n"
    assert json.loads((account / "KILL").read_text())["source"] == "stop"


def test_show_knows_an_account(place, account):
    result = call("show", ACCOUNT, cwd=place)
    check(result, 0)
    assert result.out.startswith(f"{ACCOUNT}: account\n  account: paper:binanceusdm\n  mode: paper")
    assert f"next: stormsail replay {ACCOUNT} --agent {ACCOUNT}/agent" in result.out
    file = call("show", f"{ACCOUNT}/journal.sqlite", "--json", "--quiet", cwd=place)
    found = json.loads(file.out)
    assert (found["kind"], found["facts"]["kill_switch"]) == ("account", "armed")
    check(call("stop", ACCOUNT, cwd=place), 0)
    assert "next: stormsail rearm" in call("show", ACCOUNT, cwd=place).out
    lose("meta")(account)
    damaged = call("show", ACCOUNT, cwd=place)
    check(damaged, 1)
    assert "[journal-damaged]" in damaged.out


def test_show_knows_a_folder_of_runs_and_accounts_from_a_store(place, account):
    result = call("show", ".", cwd=place)
    check(result, 0)
    assert result.out.startswith(".: workspace\n")
    assert "next: stormsail show run" in result.out
    assert "others: judged" in result.out
    trading = call("show", "trading", cwd=place)
    check(trading, 0)
    assert trading.out.splitlines()[-1] == f"next: stormsail show {account.relative_to(place)}"


def test_show_knows_a_parity_report(place, account):
    words = ("--agent", f"{ACCOUNT}/agent", "--out", "parity")
    check(call("replay", ACCOUNT, *words, cwd=place), 0)
    result = call("show", "parity", cwd=place)
    check(result, 0)
    assert result.out.startswith("parity: parity\n")
    assert "report" in result.out


NEW = ("--folder", "new")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("status", ACCOUNT, "--rows", 10**30), "usage", "--rows"),
        (("live", "run", "--capital", 1, "--venue", "moon"), "usage", "'binanceusdm'"),
        (("live", "run", "--capital", 1, "--venue", "loopback"), "usage", "--venue"),
        ((*DEMO, *NEW, "--symbols", ""), "data-symbol", "BASE/QUOTE"),
        ((*DEMO, *NEW, "--capital", "inf"), "config-value", "a finite number greater than 0"),
        ((*DEMO, "cart", *NEW), "config-inconsistent", "one of the task `CartPole-v1`"),
        (("paper", "cart"), "config-inconsistent", "trained on a market"),
        (("alerts", "nowhere"), "secret-missing", "No such file or directory. Name a regular"),
        (("alerts", "bars.csv"), "secret-exposed", "found a symbolic link. Name a regular file"),
        (("alerts", "bad/fifo"), "secret-exposed", "no regular file of this user. Name"),
        (("paper", "run", "--calibration", "judged"), "config-inconsistent", "found other levels"),
    ],
    ids=str,
)
def test_arguments_of_trading_that_do_not_fit_are_refused(words, code, said, place, account):
    result = call(*words, cwd=place)
    check(result, 2, code)
    assert said in result.line


@pytest.mark.parametrize(
    "words",
    [("fetch", "BTC/USDT", "--since", "2024-01-01"), (*DEMO, *NEW)],
    ids=["fetch", "paper"],
)
def test_a_missing_extra_is_named_without_another_verb(words, place, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "ccxt"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ccxt", None)
    result = call(*words, cwd=place)
    check(result, 2, "missing-extra")
    assert "a connection to an exchange needs the package ccxt" in result.line
    assert "stormsail[exchange]" in result.line


@pytest.mark.parametrize("data", [b"\xff{", b"{", b'{"a":' + b"[" * 99_999, b"NaN"])
def test_a_calibration_that_is_no_document_is_refused(data, place):
    (place / "own").mkdir()
    (place / "own" / "calibration.json").write_bytes(data)
    result = call("paper", "run", "--calibration", "own", cwd=place)
    check(result, 2, "artifact-document")
    assert "own/calibration.json must be a calibration" in result.line


@pytest.mark.parametrize(
    ("chain", "key", "said"),
    [("nowhere", "bars.csv", "No such file"), ("bars.csv", "bars.csv", "PEM")],
)
def test_a_certificate_that_is_none_is_refused_before_serving(chain, key, said, place, account):
    files = ("--certificate", chain, "--key", key)
    result = call("dashboard", ACCOUNT, "--address", "0.0.0.0", *files, "--port", 0, cwd=place)  # noqa: S104
    check(result, 2, "config-value")
    assert said in result.line
    assert "without a password" in result.line


def test_the_document_of_a_dashboard_is_there_while_it_serves(place, account):
    file = place / "page.json"

    def interrupt(child):
        until = time.monotonic() + SECONDS
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(child, signal.SIGINT)

    words = ("--port", 0, "--json", "--json-out", "page.json")
    result = forked("dashboard", ACCOUNT, *words, cwd=place, after=interrupt)
    check(result, 130)
    document = json.loads(result.out)
    assert document["url"].startswith("http://127.0.0.1:")
    assert json.loads(file.read_text()) == document


def test_a_user_without_name_and_home_can_stop_and_rearm(place, account):
    def forget():
        for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_STATE_HOME"):
            os.environ.pop(name, None)
        if os.getuid() == 0:
            for folder in (place, place / "trading", account):
                os.chown(folder, 54_321, -1)
            for file in account.iterdir():
                os.chown(file, 54_321, -1)
            os.setuid(54_321)

    if os.getuid() != 0:
        pytest.skip("only root becomes a user that the system does not know")
    for folder in (place, *place.parents):  # which pytest makes for their owner alone
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    check(forked("stop", ACCOUNT, cwd=place, before=forget), 0)
    check(forked("rearm", ACCOUNT, "--words", "checked", cwd=place, before=forget), 0)
    status = json.loads(call("status", ACCOUNT, "--json", "--quiet", cwd=place).out)
    assert (status["actions"][0]["who"], status["kill_switch"]) == ("user 54321", None)
    check(forked("trim", ACCOUNT, "--keep-days", 1, cwd=place, before=forget), 0)
