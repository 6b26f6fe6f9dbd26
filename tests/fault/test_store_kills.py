"""The store under kills and failing disks: the old file or the new one, and a second run heals."""

import errno
import os
import shutil
import signal
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from fault.faulty_os import ERRORS, FaultyOs, fail_at, kill_at, never
from stormsail.core.errors import DataError
from stormsail.core.files import atomic, lock
from stormsail.market.bars import Bars
from stormsail.market.importers import import_files
from stormsail.market.interval import Interval
from stormsail.market.store import LOCK, Store

HOUR = Interval.parse("1h")
START = 1_609_459_200_000


def csv(rows: int, level: float) -> str:
    lines = ["ts,open,high,low,close,volume"]
    for i in range(rows):
        price = level + i % 7
        lines.append(f"{START + i * 3_600_000},{price},{price + 2},{price - 2},{price + 1},{i + 1}")
    return "\n".join(lines) + "\n"


def run(source: Path, root: Path) -> None:
    """What `stormsail import` does once its arguments are read."""
    store = Store(root)
    for imported in import_files([source]):
        assert isinstance(imported.data, Bars)
        store.write(imported.data)


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def visible(root: Path) -> dict[str, bytes]:
    """Return the files of a store without what a dead writer may leave: parts and its lock."""
    left = tree(root).items()
    return {name: data for name, data in left if "/.tmp-" not in name and name != LOCK}


@pytest.fixture
def sources(tmp_path):
    """An old and a new edition of one symbol's file."""
    paths = []
    for edition, rows in (("old", 48), ("new", 72)):
        path = tmp_path / edition / "BTCUSDT_1h.csv"
        path.parent.mkdir()
        path.write_text(csv(rows, 100.0))
        paths.append(path)
    return paths


@pytest.fixture(params=["replaced", "first"])
def template(request, sources, tmp_path):
    """A store that holds the old edition, or nothing yet."""
    root = tmp_path / "template"
    root.mkdir()
    if request.param == "replaced":
        run(sources[0], root)
    return root


def import_and_die(source: Path, root: Path, fault) -> int:
    pa.set_cpu_count(1)  # a forked child has none of its parent's threads
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            atomic.os = lock.os = FaultyOs(fault)
            bars = Store(root)
            bars.write(READY[source])
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


READY: dict[Path, Bars] = {}
"""Bars read before the fork: Arrow's reader threads do not live in the child."""


@pytest.mark.parametrize("tear", [False, True])
def test_every_kill_leaves_the_old_or_the_new_file_and_a_second_run_heals(
    tear, template, sources, tmp_path
):
    old, (_, new) = tree(template), sources
    READY[new] = import_files([new])[0].data  # type: ignore[assignment]
    run(new, tmp_path / "whole")
    expected = tree(tmp_path / "whole")
    number, status, changed = 0, -1, []
    while status != 0:
        number += 1
        root = tmp_path / f"n{number}"
        shutil.copytree(template, root)
        status = import_and_die(new, root, kill_at(number, tear=tear))
        assert status in {0, signal.SIGKILL}
        now = visible(root)
        assert now in (old, expected)
        changed.append(now == expected)
        run(new, root)
        assert tree(root) == expected  # nothing of the dead writer is left either
        shutil.rmtree(root)
    assert changed == sorted(changed)  # the change happens at one call, and lasts
    assert changed[0] is False
    assert changed[-1] is True
    assert number > 8


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_no_failing_call_is_silent_or_costs_the_old_file(
    code, forever, template, sources, tmp_path, monkeypatch
):
    old, (_, new) = tree(template), sources
    run(new, tmp_path / "whole")
    expected = tree(tmp_path / "whole")
    recorder = FaultyOs(never)
    shutil.copytree(template, tmp_path / "count")
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", recorder)
        run(new, tmp_path / "count")
    for number in range(1, len(recorder.calls) + 1):
        root = tmp_path / f"n{number}"
        shutil.copytree(template, root)
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "os", FaultyOs(fail_at(number, code, forever=forever)))
            with pytest.raises(DataError) as caught:
                run(new, root)
        assert caught.value.code == "data-write"
        now = visible(root)
        assert now in (old, expected)
        run(new, root)
        assert tree(root) == expected


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_a_lock_that_cannot_be_taken_is_said_and_nothing_is_written(
    code, sources, tmp_path, monkeypatch
):
    root = tmp_path / "data"
    run(sources[0], root)
    before = tree(root)
    recorder = FaultyOs(never)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "os", recorder)
        run(sources[0], root)
    assert recorder.calls == ["open", "fstat", "fstat", "close"]
    for number in (1, 2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(lock, "os", FaultyOs(fail_at(number, code, forever=False)))
            with pytest.raises(DataError) as caught:
                run(sources[1], root)
        assert caught.value.code == "data-write"
        assert visible(root) == before
    with monkeypatch.context() as patch:  # once the bars are stored, a lock is no failure
        patch.setattr(lock, "os", FaultyOs(fail_at(4, code, forever=False)))
        run(sources[0], root)
    assert tree(root) == before


@pytest.mark.refusal
def test_a_full_disk_says_so(sources, tmp_path, monkeypatch):
    root = tmp_path / "data"
    run(sources[0], root)
    before = tree(root)

    def full(name, _number, _args):
        if name == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "os", FaultyOs(full))
        with pytest.raises(DataError) as caught:
            run(sources[1], root)
    assert str(caught.value) == (
        f"{root}/BTC-USDT/1h.parquet must be written completely before it counts as stored; "
        "found [Errno 28] No space left on device. Free space or permissions and run it again; "
        "what was stored is untouched. [data-write]"
    )
    assert tree(root) == before
