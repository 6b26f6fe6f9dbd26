"""The command line under abuse: calls in this process or in a fork of it, and what every one owes.

A call in this process costs milliseconds where a fresh interpreter costs seconds of imports. A fork
of this process is used where the process itself matters: signals, limits, users, standard streams.
"""

import contextlib
import fcntl
import io
import os
import re
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from stormsail.cli.endings import run_command
from stormsail.cli.main import app
from stormsail.core.errors import ErrorCode

SECONDS = 20
"""No call may take longer."""

CODES = frozenset(get_args(ErrorCode))
_CODE = re.compile(r"\[([a-z-]+)\]$")
_FOREIGN = re.compile(r"Traceback \(most recent call last\)|^\w*(Error|Exception): ", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """Exit status of a call, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The last line of the complaint."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def code(self) -> str:
        """The code in brackets at the end of the complaint; empty where there is none."""
        found = _CODE.search(self.line)
        return found.group(1) if found else ""


class TooSlowError(BaseException):
    """A call did not end."""


@contextlib.contextmanager
def alarm(seconds: int = SECONDS) -> Iterator[list[int]]:
    """Raise in the midst of what takes too long; give the list of alarms so far."""
    rung: list[int] = []

    def ring(number: int, _frame: object) -> None:
        rung.append(number)
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield rung
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _streams() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    saved = sys.stdout, sys.stderr, sys.stdin
    sys.stdout = io.TextIOWrapper(out, "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, "utf-8", write_through=True)
    sys.stdin = io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        yield out, err
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.detach()
        sys.stdout, sys.stderr, sys.stdin = saved


def call(*arguments: object, cwd: Path) -> Result:
    """Run `stormsail` in this process, in a folder."""
    here = Path.cwd()
    os.chdir(cwd)
    try:
        with alarm() as rung, _streams() as (out, err):
            status = run_command(app, [str(word) for word in arguments])
        if rung:
            raise TooSlowError
    finally:
        os.chdir(here)
    return Result(status, out.getvalue().decode(), err.getvalue().decode())


def forked(
    *arguments: object,
    cwd: Path,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[int], Any] = lambda _: None,
    stdout: int | None = None,
    seconds: int = SECONDS,
) -> Result:
    """Run `stormsail` in a fork of this process.

    Args:
        arguments: of the command.
        cwd: its folder.
        before: called in the child first: limits, user, environment.
        after: called in the parent with the child's number: signals.
        stdout: descriptor that takes the place of the child's standard output.
        seconds: after which the child is killed, and the call fails.
    """
    words = [str(word) for word in arguments]
    pipes = [os.pipe() for _ in range(2)]
    for _, end in pipes:
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
    ready, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if child == 0:
        _child(words, cwd, before, tell, (pipes[0][1] if stdout is None else stdout, pipes[1][1]))
    try:
        os.close(tell)
        os.read(ready, 1)
        after(child)
        status = _waited(child, seconds)
        texts = [_drained(*pipe) for pipe in pipes]
    finally:
        os.close(ready)
        for start, _ in pipes:
            os.close(start)
    return Result(status, *texts)


def _drained(start: int, end: int) -> str:
    """Return what was written into a pipe."""
    os.close(end)
    os.set_blocking(start, False)
    parts = []
    with contextlib.suppress(BlockingIOError):  # a worker of the command may still hold it
        while part := os.read(start, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def _waited(child: int, seconds: int) -> int:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code  # as a shell reports it
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TooSlowError


def _child(
    words: list[str], cwd: Path, before: Callable[[], Any], tell: int, streams: tuple[int, int]
) -> None:
    """Run the command as a fresh process would, and end it; never return into the tests."""
    status = 99
    try:
        os.chdir(cwd)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((nothing, *streams)):
            os.dup2(source, target)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        for kind in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(kind, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        before()
        os.write(tell, b"!")
        status = run_command(app, words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:  # as `stormsail.__main__` has it
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - a traceback is what the tests look for
        traceback.print_exc()
    finally:
        os._exit(status)


def check(result: Result, status: int, codes: str | frozenset[str] = "") -> None:
    """Assert what every call owes: no traceback, its status, and one line of remedy.

    Args:
        result: of the call.
        status: exactly expected.
        codes: of the refusal, or those of which it is one; none where nothing was refused.
    """
    told = f"\nout: {result.out[-2000:]}\nerr: {result.err[-3000:]}"
    assert not _FOREIGN.search(result.err), told
    assert "Traceback" not in result.out, told
    assert result.status == status, told
    if not codes:
        assert not result.code, told
        return
    refusals = [line for line in result.err.splitlines() if line.startswith("stormsail: ")]
    assert len(refusals) == 1, told
    assert result.line == refusals[0], told
    assert result.code in CODES, told
    assert result.code in ({codes} if isinstance(codes, str) else codes), told
    assert len(result.line) < 4000, told


def limit(kind: int, size: int) -> Callable[[], None]:
    """Return what sets a limit of the process."""

    def apply() -> None:
        resource.setrlimit(kind, (size, size))

    return apply


_SEARCHED = ("--budget", 1, "--over", "ppo.n_epochs=int:1:2", "--set", "search.rungs=0")

INPUTS: dict[str, Callable[[str], tuple[object, ...]]] = {
    "train CONFIG": lambda bad: ("train", bad, "--out", "new"),
    "train --from": lambda bad: ("train", "cart.toml", "--out", "new", "--from", bad),
    "train store": lambda bad: ("train", "tiny.toml", "--out", "new", "--set", _store(bad)),
    "resume RUN": lambda bad: ("resume", bad),
    "population CONFIG": lambda bad: ("population", bad, "--out", "new"),
    "search CONFIG": lambda bad: ("search", bad, *_SEARCHED, "--out", "new"),
    "search store": lambda bad: (
        "search",
        "tiny.toml",
        *_SEARCHED,
        "--out",
        "new",
        "--set",
        _store(bad),
    ),
    "show PATH": lambda bad: ("show", bad),
    "init --store": lambda bad: ("init", "bars", "--store", bad, "--out", "new"),
    "backtest RUN": lambda bad: ("backtest", bad, "--data", "data", "--out", "new"),
    "backtest --data": lambda bad: ("backtest", "run", "--data", bad, "--out", "new"),
    "backtest --workspace": lambda bad: (
        *("backtest", "run", "--data", "data", "--out", "new", "--workspace", bad),
    ),
    "attack RUN": lambda bad: ("attack", bad, "--attacks", "random", "--episodes", 2),
    "attack --config": lambda bad: ("attack", "run/best", "--config", bad, "--episodes", 2),
    "validate CONFIG": lambda bad: ("validate", bad, "--out", "new"),
    "validate store": lambda bad: ("validate", "tiny.toml", "--out", "new", "--set", _store(bad)),
    "performance RESULT": lambda bad: ("performance", bad),
    "report RESULT": lambda bad: ("report", bad, "--out", "new.html"),
    "report --run": lambda bad: ("report", "judged", "--run", bad, "--out", "new.html"),
    "compare FOLDER": lambda bad: ("compare", "judged", bad),
    "import SOURCE": lambda bad: ("import", bad, "--store", "new", "--interval", "1h"),
    "import --terms": lambda bad: ("import", "--terms", bad, "--store", "data"),
    "check FILE": lambda bad: ("check", bad, "--interval", "1h", "--symbol", "AAA/USDT"),
    "check --store": lambda bad: ("check", "--store", bad),
    "check --reference": lambda bad: (
        *("check", "bars.csv", "--interval", "1h", "--symbol", "AAA/USDT", "--reference", bad),
    ),
    "check --features": lambda bad: ("check", "--features", bad),
    "check features store": lambda bad: ("check", "--features", "default", "--store", bad),
    "bench wicks": lambda bad: ("bench", "wicks", bad),
    "bench frontier --rows": lambda bad: ("bench", "frontier", "--rows", bad),
    "bench limits --rows": lambda bad: ("bench", "limits", "--rows", bad),
}
"""Calls that read what a path names."""

OUTPUTS: dict[str, Callable[[str], tuple[object, ...]]] = {
    "show --json-out": lambda bad: ("show", "run", "--json-out", bad),
    "init --out": lambda bad: ("init", "demo", "--out", bad),
    "report --out": lambda bad: ("report", "judged", "--out", bad),
    "compare --out": lambda bad: ("compare", "judged", "run", "--out", bad),
    "bench functional --out": lambda bad: (
        *("bench", "functional", "--steps", 2, "--environments", 2, "--quantiles", 4),
        *("--out", bad),
    ),
    "bench shrinkage --chart": lambda bad: ("bench", "shrinkage", "--quick", "--chart", bad),
    "bench vgs --rows": lambda bad: ("bench", "vgs", "--judge", "--rows", bad),
    "attack --chart": lambda bad: (
        *("attack", "run", "--attacks", "random", "--epsilons", "0.1", "--episodes", 2),
        *("--chart", bad),
    ),
    "attack --rows": lambda bad: (
        *("attack", "run", "--attacks", "random", "--epsilons", "0.1", "--episodes", 2),
        *("--rows", bad),
    ),
    "check --repair": lambda bad: (
        *("check", "bars.csv", "--interval", "1h", "--symbol", "AAA/USDT"),
        *("--repair", "sort", "--out", bad),
    ),
}
"""Calls that write the file that a path names."""

FOLDERS: dict[str, Callable[[str], tuple[object, ...]]] = {
    "search --out": lambda bad: ("search", "cart.toml", *_SEARCHED, "--out", bad),
    "configs --out": lambda bad: ("configs", "quickstart", "--out", bad),
    "train --out": lambda bad: ("train", "cart.toml", "--out", bad),
    "population --out": lambda bad: ("population", "crowd.toml", "--out", bad),
    "backtest --out": lambda bad: ("backtest", "run", "--data", "data", "--out", bad),
    "validate --out": lambda bad: ("validate", "tiny.toml", "--out", bad),
    "attack --out": lambda bad: (
        *("attack", "run", "--attacks", "random", "--epsilons", "0.1", "--episodes", 2),
        *("--out", bad),
    ),
    "performance --csv": lambda bad: ("performance", "judged", "--csv", bad),
    "synth --store": lambda bad: ("synth", "ar1", "--bars", 50, "--symbols", 1, "--store", bad),
    "import --store": lambda bad: (
        *("import", "bars.csv", "--interval", "1h", "--symbol", "AAA/USDT", "--store", bad),
    ),
}
"""Calls that write the folder that a path names."""

BAD = [
    "missing",
    "empty",
    "folder",
    "device",
    "zero",
    "full",
    "fifo",
    "socket",
    "loop",
    "dangling",
    "binary",
    "latin1",
    "huge",
    "json",
    "page",
    "parquet",
    "long",
    "inside",
]
"""Names of what `make_bad` makes."""


def _store(path: str) -> str:
    return f"task.data.store={path!r}".replace("'", '"')


def bad_paths() -> dict[str, str]:
    """Return the paths of what `make_bad` makes, relative to its folder."""
    devices = {"device": "/dev/null", "zero": "/dev/zero", "full": "/dev/full"}
    paths = {name: f"bad/{name}" for name in BAD} | devices
    return paths | {"long": "bad/" + "n" * 300, "inside": "bad/empty/inside"}


def make_bad(place: Path) -> None:
    """Make what no call expects, in the folder `bad`."""
    bad = place / "bad"
    bad.mkdir()
    (bad / "empty").touch()
    (bad / "folder").mkdir()
    os.mkfifo(bad / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(bad)  # the path of a socket may have 107 bytes
        server.bind("socket")
        os.chdir(here)
    (bad / "loop").symlink_to("loop")
    (bad / "dangling").symlink_to("nowhere")
    (bad / "binary").write_bytes(bytes(range(256)) * 16)
    (bad / "latin1").write_bytes("näme = 'Zürich'\nts,open\n1,ü\n".encode("latin-1"))
    with (bad / "huge").open("wb") as file:
        file.truncate(1 << 36)  # 64 GiB, none of them on the disk
    (bad / "json").write_text('{"rows": [1, 2], "a": null}')
    (bad / "page").write_text("<html><body>bars</body></html>\n")
    (bad / "parquet").write_bytes(b"PAR1" + bytes(64) + b"PAR1")
