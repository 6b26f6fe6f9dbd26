"""Several processes write to one store at once: no row is lost, and who waits says for whom."""

import os
import warnings
from pathlib import Path

import pytest

from command_lab import _run as run_in_child
from stormsail.core.clock import SystemClock
from stormsail.core.files import lock
from stormsail.market.interval import Interval
from stormsail.market.store import LOCK, Store

M = 300_000
START = 1_609_459_200_000
LENGTH = Interval.parse("5m")
BARS, RATES = "BTC/USDT", "BTC/USDT:USDT"


def bar(row: int) -> str:
    first, last = 100 + row % 5, 100 + (row + 1) % 5
    return f"{START + row * M},{first},{max(first, last) + 1},{min(first, last) - 1},{last},10\n"


def bars(path: Path, rows: range) -> Path:
    path.write_text("ts,open,high,low,close,volume\n" + "".join(map(bar, rows)))
    return path


def rates(path: Path, rows: range) -> Path:
    lines = (f"{START + row * 96 * M},0.0001\n" for row in rows)
    path.write_text("ts,funding_rate\n" + "".join(lines))
    return path


class Command:
    """A command in a process of its own that has loaded everything and starts when told."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.files = [(folder / f"{id(self)}.{end}").open("w+") for end in ("out", "err")]
        gate, self.gate = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.child = os.fork()
        if self.child == 0:
            os.close(self.gate)
            os.read(gate, 1)
            run_in_child([*map(str, words)], *self.files, folder)
        os.close(gate)

    def start(self) -> None:
        os.close(self.gate)

    def end(self) -> str:
        """Return what was printed, after the command has ended well."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        texts = []
        for file in self.files:
            with file:
                file.seek(0)
                texts.append(file.read())
        assert code == 0, texts[1]
        return texts[0]


def together(folder: Path, *commands: tuple[object, ...]) -> None:
    """Run commands at the same moment, each to a good end."""
    processes = [Command(folder, *command) for command in commands]
    for process in processes:
        process.start()
    for process in processes:
        process.end()


def meet(folder: Path, pair: int, rows: int) -> None:
    """Let two imports of bars, or two of rates, or an import and `synth`, write to one store."""
    folder.mkdir()
    root, kind = folder / "data", pair % 4
    make, name = (rates, "BTCUSDT_funding") if kind == 1 else (bars, "BTCUSDT_5m")
    size = rows // 8 if kind == 1 else rows
    spans = (range(size), range(size, 2 * size), range(2 * size, 3 * size))
    for place, span in zip("abc", spans, strict=True):
        (folder / place).mkdir()
        make(folder / place / f"{name}.csv", span)
    together(folder, ("import", folder / "a", "--store", root))
    first = ("import", folder / "b", "--store", root)
    second = ("import", folder / "c", "--store", root)
    if kind == 3:
        second = (
            "synth",
            "ar1",
            "--bars",
            500,
            "--symbols",
            2,
            "--interval",
            "5m",
            "--store",
            root,
        )
    together(folder, *((first, second) if pair % 2 else (second, first)))
    store = Store(root)
    if kind == 1:
        kept = store.read_funding(RATES).ts
        assert kept.tolist() == [START + row * 96 * M for row in range(3 * size)]
        return
    kept = store.read(BARS, LENGTH).ts
    assert kept.tolist() == [START + row * M for row in range((2 if kind == 3 else 3) * size)]
    if kind == 3:
        assert len(store.read("AAA/USDT:USDT", LENGTH)) == len(store.read("BBB/USDT:USDT", LENGTH))
    assert not (root / LOCK).exists()


@pytest.mark.parametrize("pair", range(4))
def test_two_writers_at_once_lose_no_row(pair, tmp_path):
    meet(tmp_path / "pair", pair, rows=20_000)


@pytest.mark.campaign
@pytest.mark.parametrize("pair", range(200))
def test_two_hundred_pairs_of_writers_lose_no_row(pair, tmp_path):
    meet(tmp_path / "pair", pair, rows=4_000)


def test_an_import_waits_for_the_holder_and_keeps_what_that_wrote(tmp_path, monkeypatch):
    """Rows 0 to 9 are stored, the holder adds 10 to 19, the import 20 to 29."""
    waits, told = os.pipe()

    class TellingClock(SystemClock):
        def sleep(self, seconds: float) -> None:
            os.write(told, b".")
            super().sleep(seconds)

    monkeypatch.setattr(lock, "SystemClock", TellingClock)
    root = tmp_path / "data"
    for place, rows in (("a", range(10)), ("b", range(20)), ("c", range(20, 30))):
        (tmp_path / place).mkdir()
        bars(tmp_path / place / "BTCUSDT_5m.csv", rows)
    together(tmp_path, ("import", tmp_path / "a", "--store", root))
    together(tmp_path, ("import", tmp_path / "b", "--store", tmp_path / "other"))
    store = Store(root)
    command = Command(tmp_path, "import", tmp_path / "c", "--store", root)
    with store.writing("the holder"):
        command.start()
        assert os.read(waits, 1) == b"."  # it waits, and has written nothing
        assert len(store.read(BARS, LENGTH)) == 10
        store.write(Store(tmp_path / "other").read(BARS, LENGTH))
    assert "joined: 20 stored and 10 new bars" in command.end()
    assert store.read(BARS, LENGTH).ts.tolist() == [START + row * M for row in range(30)]
