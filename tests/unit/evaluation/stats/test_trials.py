"""A ledger that only grows: every damage is named, no trial is forgotten."""

import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import ArgumentError, ArtifactError, ChoiceError, RangeError
from stormsail.evaluation.stats.trials import TrialLedger

TIME_NS = 1_700_000_000_000_000_000


def ledger_in(folder):
    return TrialLedger(folder / "trials.jsonl", clock=ManualClock(TIME_NS))


def add(ledger, kind="validation", name="rule", sharpe=0.01, status="finished", data="d1", **extra):
    return ledger.record(
        kind,
        name,
        config_hash="c1",
        data_hash=data,
        sharpe_per_bar=sharpe,
        bars=100,
        status=status,
        extra=extra,
    )


@pytest.fixture
def ledger(tmp_path):
    return ledger_in(tmp_path)


def test_a_record_comes_back_as_it_was_written(ledger):
    written = add(ledger, name="momentum 24", sharpe=0.0182, fold=3, seeds=[1, 2])
    (read,) = ledger.read().trials
    assert read == written
    assert (read.number, read.time_ns, read.kind, read.name) == (
        1, TIME_NS, "validation", "momentum 24",
    )  # fmt: skip
    assert (read.sharpe_per_bar, read.bars, read.status) == (0.0182, 100, "finished")
    assert read.extra == {"fold": 3, "seeds": [1, 2]}


def test_every_line_holds_the_hash_of_the_one_before(ledger):
    first, second = add(ledger), add(ledger)
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert lines[0]["previous"] == "0" * 64
    assert lines[1]["previous"] == first.hash == lines[0]["hash"]
    assert lines[1]["hash"] == second.hash != first.hash
    head = ledger.path.with_name("trials.jsonl.head")
    assert head.read_text() == second.hash + "\n"


def test_no_ledger_yet_is_empty(ledger):
    assert ledger.read().trials == ()
    assert ledger.count() == 0
    assert ledger.sharpes().tolist() == []


def test_what_failed_is_a_trial_only_if_it_left_a_result(ledger):
    add(ledger, sharpe=0.02)
    add(ledger, sharpe=None, status="failed")
    add(ledger, kind="training", sharpe=-0.01, status="stopped")
    assert ledger.count() == 2
    add(ledger, kind="training", sharpe=0.03, status="failed")
    assert ledger.count() == 3
    assert ledger.sharpes().tolist() == [0.02, -0.01, 0.03]
    assert ledger.sharpes().dtype == np.float64


def test_what_failed_and_began_again_is_a_trial(ledger):
    for status, count in (("started", 1), ("failed", 0), ("started", 1), ("failed", 0)):
        add(ledger, kind="training", sharpe=None, status=status, run_key="a")
        assert ledger.count() == count


@pytest.mark.parametrize(
    ("status", "sharpe"), [("finished", 0.3), ("stopped", None), ("failed", 0.2)]
)
def test_a_failure_after_a_result_takes_nothing_back(ledger, status, sharpe):
    known = [] if sharpe is None else [sharpe]
    add(ledger, sharpe=None, status="started", run_key="a")
    add(ledger, sharpe=sharpe, status=status, run_key="a")
    add(ledger, sharpe=None, status="failed", run_key="a")
    assert (ledger.count(), ledger.sharpes().tolist()) == (1, known)
    add(ledger, sharpe=None, status="started", run_key="a")
    add(ledger, sharpe=None, status="failed", run_key="a")
    assert (ledger.count(), ledger.sharpes().tolist()) == (1, known)
    assert [(one.number, one.status) for one in ledger.read().counted()] == [(2, status)]


def test_a_backtest_on_sealed_bars_is_a_trial_and_an_opening(ledger):
    add(ledger, kind="backtest", sharpe=0.5)
    add(ledger, kind="test-opened", sharpe=None, data="d2")
    add(ledger, kind="validation", sharpe=0.1)
    add(ledger, kind="backtest", sharpe=None, status="failed")
    assert ledger.count() == 2
    assert ledger.sharpes().tolist() == [0.5, 0.1]
    assert ledger.scores().tolist() == pytest.approx([0.1 * np.sqrt(ledger.read().trials[2].bars)])
    assert ledger.count(kinds=("validation",)) == 1
    assert [trial.number for trial in ledger.openings()] == [1, 2]
    assert len(ledger.openings(data_hash="d2")) == 1
    assert ledger.read().head == ledger.read().trials[-1].hash


def test_trials_can_be_counted_on_one_set_of_bars(ledger):
    add(ledger, sharpe=0.1, data="d1")
    add(ledger, sharpe=0.2, data="d2")
    add(ledger, sharpe=None, data="d2", status="stopped")
    assert ledger.count(data_hash="d2") == 2
    assert ledger.sharpes(data_hash="d2").tolist() == [0.2]


def test_a_trial_that_began_and_ended_counts_once_with_its_end(ledger):
    add(ledger, kind="training", sharpe=None, status="started", run_key="a")
    assert (ledger.count(), ledger.sharpes().tolist()) == (1, [])
    add(ledger, kind="training", sharpe=None, status="started", run_key="b")
    add(ledger, kind="training", sharpe=None, status="failed", run_key="a")
    add(ledger, kind="training", sharpe=0.3, run_key="a")
    assert (ledger.count(), ledger.sharpes().tolist()) == (2, [0.3])
    counted = ledger.read().counted()
    assert [(one.number, one.status) for one in counted] == [(2, "started"), (4, "finished")]


def test_beginning_again_does_not_forget_how_a_trial_ended(ledger):
    add(ledger, kind="training", sharpe=0.3, run_key="a")
    add(ledger, kind="training", sharpe=None, status="started", run_key="a")
    assert (ledger.count(), ledger.sharpes().tolist()) == (1, [0.3])
    assert [one.number for one in ledger.read().of_run("a")] == [1, 2]
    assert ledger.read().of_run("b") == ()


def test_lines_of_other_kinds_or_without_a_key_stay_apart(ledger):
    add(ledger, kind="training", sharpe=0.1, run_key="a")
    add(ledger, kind="validation", sharpe=0.2, run_key="a")
    add(ledger, kind="training", sharpe=0.3)
    add(ledger, kind="training", sharpe=0.4)
    add(ledger, kind="training", sharpe=0.5, run_key=7)
    assert ledger.count() == 5
    assert ledger.sharpes().tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def tear(ledger, keep):
    """Leave the last line unfinished, as a process that died while writing would."""
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:keep])


def torn_ledger(folder):
    """Two whole lines, the head of the second, and a third that was never finished."""
    ledger = ledger_in(folder)
    add(ledger, sharpe=0.1)
    add(ledger, sharpe=0.2)
    head = ledger.path.with_name("trials.jsonl.head").read_bytes()
    add(ledger, sharpe=0.3)
    tear(ledger, 40)
    ledger.path.with_name("trials.jsonl.head").write_bytes(head)
    return ledger


def test_an_unfinished_line_is_reported_and_counts_as_a_trial(tmp_path):
    ledger = torn_ledger(tmp_path)
    records = ledger.read()
    assert (len(records.trials), records.torn) == (2, 40)
    assert ledger.count() == 3
    assert ledger.sharpes().tolist() == [0.1, 0.2]


def test_the_next_writer_closes_an_unfinished_line_and_says_so(tmp_path):
    ledger = torn_ledger(tmp_path)
    tail = ledger.path.read_bytes()[-40:]
    added = add(ledger, sharpe=0.4)
    records = ledger.read()
    assert records.torn == 0
    assert [trial.kind for trial in records.trials] == ["validation"] * 2 + ["repair", "validation"]
    repair = records.trials[2]
    assert repair.extra["bytes"] == 40
    assert repair.extra["begins"] == tail.decode()
    assert (added.number, records.trials[3]) == (4, added)
    assert ledger.count() == 4  # the lost trial is one of them
    assert ledger.count(data_hash="d2") == 1  # on whatever data it was
    assert ledger.sharpes().tolist() == [0.1, 0.2, 0.4]


def test_a_line_without_its_newline_is_unfinished(ledger):
    add(ledger)
    whole = ledger.path.read_bytes()
    ledger.path.with_name("trials.jsonl.head").unlink()
    ledger.path.write_bytes(whole[:-1])
    assert ledger.read().torn == len(whole) - 1
    assert ledger.count() == 1


def rewrite(ledger, change):
    lines = ledger.path.read_text().splitlines()
    ledger.path.write_text("".join(line + "\n" for line in change(lines)))


def edited(line, **values):
    return json.dumps({**json.loads(line), **values}, sort_keys=True, separators=(",", ":"))


DAMAGE = {
    "a number changed": (
        lambda s: [s[0], edited(s[1], sharpe_per_bar=0.9), *s[2:]],
        (2, "contents with another hash than the line's own"),
    ),
    "a line deleted": (
        lambda s: [s[0], *s[2:]],
        (2, "a line that does not follow the one before"),
    ),
    "the first line deleted": (
        lambda s: s[1:],
        (1, "a line that does not follow the one before"),
    ),
    "two lines swapped": (
        lambda s: [s[0], s[2], s[1], s[3]],
        (2, "a line that does not follow the one before"),
    ),
    "a line repeated": (
        lambda s: [s[0], s[0], *s[1:]],
        (2, "a line that does not follow the one before"),
    ),
    "the last line deleted": (
        lambda s: s[:-1],
        (4, "the end, although a later line was written"),
    ),
    "everything deleted": (
        lambda s: s[:0],
        (1, "the end, although a later line was written"),
    ),
    "a key added": (
        lambda s: [s[0], s[1], edited(s[2], more=1), s[3]],
        (3, "a document with other keys"),
    ),
    "a key said twice": (
        lambda s: [s[0], s[1], s[2][:-1] + ',"bars":1}', s[3]],
        (3, "text that is not JSON: it repeats the key 'bars'"),
    ),
    "a list": (lambda s: ["[]", *s[1:]], (1, "a document with other keys")),
}


@pytest.mark.refusal
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_its_line(ledger, kind):
    for sharpe in (0.1, 0.2, 0.3, 0.4):
        add(ledger, sharpe=sharpe)
    change, (line, found) = DAMAGE[kind]
    rewrite(ledger, change)
    with pytest.raises(ArtifactError) as caught:
        ledger.read()
    assert str(caught.value) == (
        f"line {line} of the trial ledger {ledger.path} must be as it was written; found {found}. "
        "Restore the ledger from a copy; without it the number of trials is unknown. "
        "[artifact-corrupt]"
    )
    before = ledger.path.read_bytes()
    with pytest.raises(ArtifactError, match=f"line {line} of"):
        add(ledger)
    assert ledger.path.read_bytes() == before


def test_a_line_of_another_ledger_is_noticed(tmp_path):
    ledger, other = ledger_in(tmp_path / "one"), ledger_in(tmp_path / "other")
    for sharpe in (0.1, 0.2):
        add(ledger, sharpe=sharpe)
        add(other, sharpe=10.0 * sharpe)
    lines, strange = ledger.path.read_bytes(), other.path.read_bytes()
    first = lines.splitlines(keepends=True)[0]
    ledger.path.write_bytes(first + strange.splitlines(keepends=True)[1])
    ledger.path.with_name("trials.jsonl.head").unlink()  # so that the chain alone must notice
    with pytest.raises(ArtifactError, match=r"line 2 of .* does not follow the one before"):
        ledger.read()


def test_a_writer_waits_for_the_one_who_holds_the_ledger(ledger):
    add(ledger)
    with ledger.path.open("rb") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(add, ledger)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        assert len(ledger.read().trials) == 1  # readers need no lock
        fcntl.flock(held, fcntl.LOCK_UN)
        assert waiting.result(timeout=30).number == 2


def test_a_ledger_that_vanished_is_noticed(ledger):
    add(ledger)
    ledger.path.unlink()
    with pytest.raises(ArtifactError, match="no ledger, although its last hash is known"):
        ledger.read()


def test_every_single_byte_is_guarded(ledger):
    add(ledger, sharpe=None, note="ä")
    whole = ledger.path.read_bytes()
    for place in range(len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        ledger.path.write_bytes(bytes(changed))
        with pytest.raises(ArtifactError):
            ledger.read()


def _writer(path, name, count):
    ledger = TrialLedger(path)
    for _ in range(count):
        add(ledger, name=name)


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "deep" / "trials.jsonl"
    # The lock belongs to an open file, so threads wait for one another as processes do.
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(_writer, path, f"w{k}", 12) for k in range(3)]:
            done.result()
    trials = TrialLedger(path).read().trials
    assert [trial.number for trial in trials] == list(range(1, 37))
    for k in range(3):
        assert sum(trial.name == f"w{k}" for trial in trials) == 12


def fill_the_disk(monkeypatch, after):
    """Let the next write keep `after` bytes and the one after that find no space."""
    calls, real = [], os.pwrite

    def write(descriptor, data, at):
        calls.append(len(data))
        if len(calls) == 1:
            return real(descriptor, bytes(data)[:after], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", write)
    return calls


def test_a_full_disk_leaves_no_half_line(ledger, monkeypatch):
    add(ledger)
    before = ledger.path.read_bytes()
    calls = fill_the_disk(monkeypatch, after=50)
    with pytest.raises(ArtifactError, match="No space left on device") as caught:
        add(ledger)
    monkeypatch.undo()
    assert caught.value.code == "artifact-write"
    assert calls[0] - calls[1] == 50
    assert ledger.path.read_bytes() == before
    assert ledger.read().torn == 0


@pytest.mark.parametrize("after", [0, 10, 39, 40, 41, 300, 600, 700])
def test_a_repair_that_dies_forgets_no_trial(tmp_path, monkeypatch, after):
    ledger = torn_ledger(tmp_path)
    fill_the_disk(monkeypatch, after=after)
    with pytest.raises(ArtifactError, match="No space left on device"):
        add(ledger, sharpe=0.4)
    monkeypatch.undo()
    assert ledger.count() >= 3
    assert ledger.sharpes().tolist()[:2] == [0.1, 0.2]
    add(ledger, sharpe=0.4)
    assert ledger.read().torn == 0
    assert ledger.count() >= 4
    assert ledger.sharpes().tolist()[:3] == [0.1, 0.2, 0.4]


def test_an_unfinished_line_longer_than_what_covers_it_leaves_nothing(tmp_path):
    ledger = ledger_in(tmp_path)
    add(ledger, sharpe=0.1)
    with ledger.path.open("ab") as file:
        file.write(b"x" * 5_000)
    add(ledger, sharpe=0.2)
    assert [trial.kind for trial in ledger.read().trials] == ["validation", "repair", "validation"]
    assert ledger.read().torn == 0
    assert b"xxxx\n" not in ledger.path.read_bytes()


def test_the_line_is_on_the_disk_before_the_head_names_it(ledger, monkeypatch):
    order = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor):
        order.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        real_sync(descriptor)

    def rename(*arguments, **places):
        order.append(("rename", arguments[1]))
        real_rename(*arguments, **places)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    add(ledger)
    assert order.index(("sync", "trials.jsonl")) < order.index(("rename", "trials.jsonl.head"))


@pytest.mark.refusal
def test_other_words_and_numbers_are_refused(ledger):
    with pytest.raises(ChoiceError) as caught:
        add(ledger, kind="guess")
    assert str(caught.value) == (
        "`kind` must be one of training, validation, backtest, test-opened; found 'guess'. "
        "Name what was run. [unknown-choice]"
    )
    with pytest.raises(ChoiceError, match="`kind` must be one of"):
        add(ledger, kind="repair")
    with pytest.raises(ChoiceError, match="`status` must be one of started, finished"):
        add(ledger, status="fine")
    for sharpe in (float("nan"), float("inf")):
        with pytest.raises(RangeError, match="a finite Sharpe ratio or None"):
            add(ledger, sharpe=sharpe)
    with pytest.raises(ArgumentError, match="`extra` must hold only what JSON can give back"):
        add(ledger, thing=object())
    assert not ledger.path.exists()


def test_an_extension_after_the_result_was_known_counts_once_more(ledger):
    def line(status, sharpe=None, **extra):
        add(ledger, kind="training", status=status, sharpe=sharpe, run_key="k", **extra)

    line("started")
    line("extended")  # only interrupted: the same look
    assert ledger.count() == 1
    line("finished", 0.01)
    assert (ledger.count(), ledger.sharpes().tolist()) == (1, [0.01])
    line("extended", looks=1)
    assert (ledger.count(), ledger.sharpes().tolist()) == (2, [0.01])
    line("finished", 0.02, looks=1)
    line("extended", looks=1)  # does not take the place of a line that tells an end
    assert (ledger.count(), ledger.sharpes().tolist()) == (2, [0.01, 0.02])
