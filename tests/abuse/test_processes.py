"""What only a process of its own can suffer: signals, streams, limits, users, terminals."""

import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from abuse_lab import INPUTS, call, check, forked, limit

CALLED = ("--set", "compile_update=false")  # a long run would be compiled first
LONG = ("train", "cart.toml", "--out", "long", "--set", "ppo.total_steps=100000000", *CALLED)
BENCH = ("bench", "functional", "--steps", 2, "--environments", 2, "--quantiles", 4)
PRINTING = {
    "version": ("--version",),
    "help": ("train", "--help"),
    "worlds": ("synth", "--list"),
    "configs": ("configs",),
    "init": ("init", "demo", "--out", "new.toml"),
    "show": ("show", "run"),
    "synth": ("synth", "ar1", "--bars", 50, "--symbols", 1, "--store", "new"),
    "import": ("import", "bars.csv", "--symbol", "AAA/USDT", "--interval", "1h", "--store", "new"),
    "check": ("check", "bars.csv", "--symbol", "AAA/USDT", "--interval", "1h"),
    "train": ("train", "cart.toml", "--out", "new"),
    "performance": ("performance", "judged"),
    "report": ("report", "judged", "--out", "new.html"),
    "compare": ("compare", "judged", "run"),
    "bench": BENCH,
}
"""Commands that print and end well in a second or so."""


def when(path: Path, number: int, times: int = 1, pause: float = 0.0):
    """Return what sends a signal to the child once a path is there."""

    def send(child: int) -> None:
        until = time.monotonic() + 50
        while not list(path.parent.glob(path.name)) and time.monotonic() < until:
            time.sleep(0.002)
        for _ in range(times):
            time.sleep(pause)
            try:
                os.kill(child, number)
            except ProcessLookupError:
                return

    return send


STAGES = {"start": ".", "folder": "long", "manifest": "long/manifest.json", "line": "trials.jsonl",
          "checkpoint": "long/checkpoints/0*", "best": "long/best"}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_training_at_every_stage(stage, number, status, place):
    result = forked(*LONG, cwd=place, after=when(place / STAGES[stage], number))
    check(result, status)
    if stage in ("checkpoint", "best"):
        words = ("--set", "ppo.total_steps=1", "--out", "long")
        assert call("train", "cart.toml", *words, cwd=place).code == "config-inconsistent"


@pytest.mark.parametrize("stage", ["start", "checkpoint"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGHUP, 129), (signal.SIGKILL, 137)])
def test_a_deadly_signal_is_silent(stage, number, status, place):
    result = forked(*LONG, cwd=place, after=when(place / STAGES[stage], number))
    check(result, status)


def test_a_second_interrupt_ends_at_once_and_says_what_is_kept(place):
    after = when(place / STAGES["checkpoint"], signal.SIGINT, times=3, pause=0.005)
    result = forked(*LONG, cwd=place, after=after)
    check(result, 130)
    assert "stormsail: " in result.err


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
@pytest.mark.parametrize(
    "words",
    [
        ("backtest", "run", "--data", "data", "--out", "new", "--stress", "--costs"),
        ("attack", "run", "--attacks", "learned", "--adversary-steps", 10**8, "--out", "new"),
        ("bench", "functional", "--steps", 4000, "--environments", 400),
        ("synth", "garch_jump", "--bars", 1_000_000, "--symbols", 9, "--store", "new"),
        ("population", "crowd.toml", "--out", "new", "--set", "ppo.total_steps=10000000", *CALLED),
        (
            "search",
            "cart.toml",
            "--out",
            "new",
            "--budget",
            9,
            "--over",
            "ppo.n_epochs=1,2",
            "--set",
            "ppo.total_steps=10000000",
            *CALLED,
        ),
        ("validate", "tiny.toml", "--out", "new", "--folds", 2, "--seeds", 2),
    ],
    ids=lambda words: words[0],
)
def test_an_interrupt_ends_a_command(words, delay, place):
    result = forked(*words, cwd=place, after=when(place, signal.SIGINT, pause=delay))
    check(result, 130)
    assert not (place / "new" / "manifest.json").exists() or words[0] == "population"


@pytest.mark.parametrize("name", PRINTING)
def test_a_closed_pipe_ends_a_command_quietly(name, place):
    start, end = os.pipe()
    os.close(start)
    try:
        result = forked(*PRINTING[name], cwd=place, stdout=end)
    finally:
        os.close(end)
    check(result, 128 + signal.SIGPIPE)
    assert "stormsail: " not in result.err


@pytest.mark.parametrize("name", PRINTING)
def test_a_full_output_device_is_told(name, place):
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        result = forked(*PRINTING[name], cwd=place, stdout=full)
    finally:
        os.close(full)
    check(result, 2, "artifact-write")
    assert "No space left on device" in result.line


def without_output() -> None:
    os.close(1)
    sys.stdout = None


@pytest.mark.parametrize("name", PRINTING)
def test_a_closed_output_is_no_failure(name, place):
    check(forked(*PRINTING[name], cwd=place, before=without_output), 0)


def without_home() -> None:
    for name in ("HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TERM"):
        os.environ.pop(name, None)


@pytest.mark.parametrize("name", PRINTING)
def test_without_a_home_a_command_works(name, place):
    check(forked(*PRINTING[name], cwd=place, before=without_home), 0)


def plain_ascii() -> None:
    os.environ.update(LC_ALL="C", LANG="C", PYTHONUTF8="0")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="ascii")


@pytest.mark.parametrize("name", PRINTING)
def test_a_locale_without_its_characters_is_no_failure(name, place):
    check(forked(*PRINTING[name], cwd=place, before=plain_ascii), 0)


def other_locale() -> None:
    os.environ.update(LC_ALL="tr_TR.UTF-8", LANG="de_DE.UTF-8", TZ="Asia/Kathmandu")
    time.tzset()


@pytest.mark.parametrize("name", PRINTING)
def test_another_locale_and_zone_change_nothing(name, place):
    first = forked(*PRINTING[name], cwd=place, before=other_locale)
    check(first, 0)


WRITING = {
    **{name: PRINTING[name] for name in ("synth", "import", "train", "report", "init")},
    "json": ("show", "run", "--json-out", "new.json"),
    "search": ("search", "cart.toml", "--budget", 1, "--over", "ppo.n_epochs=1,2", "--out", "new"),
    "backtest": ("backtest", "run", "--data", "data", "--out", "new"),
    "csv": ("performance", "judged", "--csv", "new"),
    "bench": (*BENCH, "--out", "new.json"),
    "compare": ("compare", "judged", "run", "--out", "new.html"),
}


@pytest.mark.parametrize("size", [0, 30])
@pytest.mark.parametrize("name", WRITING)
def test_a_file_that_may_not_grow_is_told(name, size, place):
    result = forked(*WRITING[name], cwd=place, before=limit(resource.RLIMIT_FSIZE, size))
    codes = frozenset({"artifact-write", "data-write", "data-unreadable", "data-busy"})
    check(result, 2, codes)
    assert "File too large" in result.line


@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk_is_told(name, place):
    full = place / "full"
    full.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(full))
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        words = [f"full/{word}" if str(word).startswith("new") else word for word in WRITING[name]]
        (full / "rest").write_bytes(bytes(8192))
        result = forked(*words, cwd=place)
    finally:
        subprocess.run(("umount", str(full)), check=True)
    check(result, 2, frozenset({"artifact-write", "data-write", "data-busy"}))
    assert "No space left on device" in result.line


def nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("slot", INPUTS)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_may_not_be_read_is_refused(slot, kind, place):
    place.chmod(0o755)
    (place / "file").write_text("seed = 1\n")
    (place / "folder").mkdir()
    for name in ("file", "folder"):
        (place / name).chmod(0)
    result = forked(*INPUTS[slot](kind), cwd=place, before=nobody)
    if slot.startswith("check") and result.status == 1:  # its own "no", about an unreadable file
        check(result, 1)
        return
    assert result.code not in ("unexpected", ""), result.err
    check(result, 2, result.code)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("name", WRITING)
def test_what_may_not_be_written_is_told(name, place):
    for entry in place.iterdir():
        if not entry.is_symlink():
            entry.chmod(0o755)
    place.chmod(0o555)
    result = forked(*WRITING[name], cwd=place, before=nobody)
    assert result.code not in ("unexpected", ""), result.err
    check(result, 2, result.code)


def little_memory(megabytes: int):
    def apply() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * os.sysconf("SC_PAGE_SIZE") + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    return apply


@pytest.mark.parametrize("megabytes", [0, 8])
@pytest.mark.parametrize(
    "words",
    [
        ("synth", "ar1", "--bars", 3_000_000, "--symbols", 4, "--store", "new"),
        ("train", "cart.toml", "--out", "new", "--set", "ppo.n_envs=400000",
         "--set", "ppo.batch_size=400000"),
        ("bench", "functional", "--steps", 2000, "--environments", 20000),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_lack_of_memory_is_told(words, megabytes, place):
    result = forked(*words, cwd=place, before=little_memory(megabytes))
    check(result, 2, "out-of-memory")


def test_two_trainings_in_one_folder_are_refused(place):
    seen = []

    def meanwhile(child: int) -> None:
        when(place / STAGES["checkpoint"], 0)(child)
        seen.append(call(*LONG, cwd=place))
        os.kill(child, signal.SIGTERM)

    check(forked(*LONG, cwd=place, after=meanwhile), 143)
    check(seen[0], 2, "run-busy")


def test_two_writers_of_one_file_of_rows_are_refused(place):
    with (place / "rows.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = ("attack", "run", "--attacks", "random", "--epsilons", "0.1", "--episodes", 2)
        check(call(*words, "--rows", "rows.jsonl", cwd=place), 2, "run-busy")


class Terminal:
    """A terminal of some columns: what is typed into it, and what it showed."""

    def __init__(self, columns: int, typed: bytes = b"") -> None:
        self.here, self.there = pty.openpty()
        fcntl.ioctl(self.there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.shown = b""
        os.write(self.here, typed)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self.here, 1 << 16)
            except OSError:  # the other end was closed
                return
            self.shown += part

    def enter(self) -> None:
        """Become the standard streams of the child."""
        for target in (0, 1, 2):
            os.dup2(self.there, target)
        os.environ.update(TERM="xterm", COLUMNS="")
        os.environ.pop("COLUMNS")

    def close(self) -> str:
        os.close(self.there)
        self._reader.join()
        os.close(self.here)
        return self.shown.decode()


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_a_narrow_terminal_keeps_bar_share_and_time_left(columns, place):
    terminal = Terminal(columns)
    words = ("train", "tiny.toml", "--out", "new")
    result = forked(*words, cwd=place, before=terminal.enter)
    shown = terminal.close()
    assert result.status == 0, shown
    assert "Traceback" not in shown
    lines = [line for line in shown.replace("\r", "\n").split("\n") if "%" in line]
    assert lines
    assert any("━" in line and "%" in line and ":" in line for line in lines), lines[-3:]


@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 2)])
def test_a_terminal_is_asked_before_a_file_is_replaced(answer, status, place):
    (place / "old.html").write_text("old")
    terminal = Terminal(100, answer)
    result = forked("report", "judged", "--out", "old.html", cwd=place, before=terminal.enter)
    shown = terminal.close()
    assert result.status == status, shown
    assert "old.html exists. Replace it?" in shown
    assert "Traceback" not in shown
    assert ((place / "old.html").read_text() == "old") == (status != 0)


def test_a_removed_working_directory_is_told(place):
    gone = place / "gone"
    gone.mkdir()
    result = forked("train", "x.toml", cwd=gone, before=gone.rmdir)
    check(result, 2, "config-unreadable")
    result = forked("synth", "--list", cwd=place, before=lambda: None)
    check(result, 0)
