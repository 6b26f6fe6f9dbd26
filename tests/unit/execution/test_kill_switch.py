import ast
import json
import threading
from pathlib import Path

import pytest

import stormsail
from stormsail.core.clock import ManualClock, SystemClock
from stormsail.core.errors import ConfigError
from stormsail.execution.kill_switch import NAME, KillSwitch

PACKAGE = Path(stormsail.__file__).parent


@pytest.fixture
def switch(tmp_path):
    return KillSwitch(tmp_path, ManualClock(1_700_000_000_000_000_000))


def test_it_is_armed_until_it_is_tripped(switch):
    assert not switch.tripped()
    assert switch.read() is None
    switch.check()


def test_a_trip_stays_for_every_later_process(switch, tmp_path):
    switch.trip(source="stop", words="enough", way="flatten")
    other = KillSwitch(tmp_path, ManualClock())
    assert other.tripped()
    trip = other.read()
    assert (trip.source, trip.words, trip.way) == ("stop", "enough", "flatten")
    assert trip.at == "2023-11-14T22:13:20Z"
    with pytest.raises(ConfigError, match="tripped by stop: enough") as refused:
        other.check()
    assert refused.value.code == "kill-switch"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"way": "sell all"}', b"\xff\xfe"])
def test_a_file_that_a_person_made_trips_it_whatever_it_says(switch, data):
    switch.path.write_bytes(data)
    assert switch.tripped()
    assert (switch.read().source, switch.read().way) == ("file", "stop")


def test_a_folder_or_a_dangling_link_of_that_name_trips_it(switch, tmp_path):
    switch.path.mkdir()
    assert switch.read().source == "file"
    switch.path.rmdir()
    switch.path.symlink_to(tmp_path / "nowhere")
    assert switch.tripped()


def test_a_second_trip_may_ask_for_more_and_never_for_less(switch):
    switch.trip(source="a", words="1", way="stop")
    switch.trip(source="b", words="2", way="flatten")
    assert switch.read().way == "flatten"
    switch.trip(source="c", words="3", way="stop")
    assert switch.read().source == "b"


def test_cancelling_stops_does_not_take_the_way_out_back(switch):
    switch.trip(source="a", words="1", way="cancel")
    switch.trip(source="b", words="2", way="flatten")
    assert switch.trip(source="c", words="3", way="cancel").source == "b"
    assert switch.read().way == "flatten"


def test_of_trips_at_the_same_moment_the_one_that_asks_for_most_counts(tmp_path):
    """Whoever reads that it is armed and writes `stop` must not write over a `flatten` between."""
    first = KillSwitch(tmp_path, SystemClock())
    plain, started, others = first.read, threading.Event(), []

    def read():
        seen = plain()
        started.set()
        others[0].join(0.1)  # the other tries to get between, and waits
        return seen

    def flatten():
        started.wait()
        KillSwitch(tmp_path, SystemClock()).trip(source="b", words="2", way="flatten")

    others.append(threading.Thread(target=flatten))
    others[0].start()
    first.read = read
    first.trip(source="a", words="1", way="stop")
    others[0].join()
    assert plain().way == "flatten"


def test_a_trip_inside_of_a_trip_does_not_wait_for_itself(tmp_path):
    """A signal may come while the switch is being tripped."""
    switch = KillSwitch(tmp_path, SystemClock())
    plain = switch.read

    def read():
        switch.read = plain
        switch.trip(source="signal", words="SIGUSR1")
        return plain()

    switch.read = read
    assert switch.trip(source="a", words="1").source == "signal"


def test_rearming_keeps_what_was_said(switch, tmp_path):
    switch.trip(source="stop", words="enough")
    assert switch.rearm().words == "enough"
    assert not switch.tripped()
    assert json.loads((tmp_path / f"{NAME}-rearmed").read_text())["words"] == "enough"
    assert switch.rearm() is None


def test_nothing_but_the_command_rearms():
    """M26: the earlier bot reset its switch when a stream reconnected."""
    callers = set()
    for path in PACKAGE.rglob("*.py"):
        if "rearm" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "rearm":
                callers.add(path.relative_to(PACKAGE).as_posix())
    assert callers == {"cli/trading/stop.py"}
    removes = {
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "execution").rglob("*.py")
        if "unlink" in path.read_text() and "kill" in path.read_text().lower()
    }
    assert removes <= {"execution/operator/status.py"}  # its own temporary file
