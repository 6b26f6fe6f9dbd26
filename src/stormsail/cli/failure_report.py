"""Report file of an error that nobody foresaw: what a maintainer needs, and no secret.

It holds versions, the verb, the kind and text of the error and the calls that led there. It holds
no value of an option or of the environment, no variable of the code, no line of code that is not
this package's or an installed one's, and no path below the user's home.
"""

import contextlib
import os
import platform
import re
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from stormsail import __version__
from stormsail.core.clock import SystemClock, iso
from stormsail.core.errors import InvariantError
from stormsail.core.steps import stage

PACKAGES = ("torch", "numpy", "pyarrow", "pydantic", "gymnasium", "typer", "rich")
"""Packages whose versions a report names."""

_LEAST = 6
"""Shortest value of the environment that is hidden; shorter ones are words such as `1` or `C`."""

_TOKEN = re.compile(
    r"""(?ix) \b(api[_-]?key|secret|token|password|passwd|authorization|bearer)\b
    (["']?\s*[=:]\s*["']?|\s+)\S+"""
)


def unexpected(verb: str, error: BaseException) -> InvariantError:
    """Write the report of an error and return the line that names it."""
    where = _innermost(error)
    doing = f" during `{stage()}`" if stage() else ""
    try:
        kept = f"Please report it with {_written(verb, error)}, after reading it yourself."
    except OSError as refused:
        kept = f"No report could be written ({refused.strerror}); please say how it came about."
    return InvariantError(
        "unexpected",
        wrong=f"`{verb}` must end in words of its own",
        found=f"{type(error).__name__}{where}{doing}",
        remedy=f"This is a bug. {kept}",
    )


def report_text(verb: str, error: BaseException, *, environment: Mapping[str, str]) -> str:
    """Return the report of an error.

    Args:
        verb: of the command line.
        error: what nobody foresaw.
        environment: variables whose values must not be in it.
    """
    lines = [
        f"stormsail {__version__}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}",
        ", ".join(_versions()),
        f"verb: {verb}",
        f"step: {stage() or 'not announced'}",
        "",
        *_chain(error),
    ]
    return _redacted("\n".join(lines), environment) + "\n"


def _written(verb: str, error: BaseException) -> Path:
    """Write the report into the working directory, or where temporary files go."""
    time = re.sub(r"\D", "", iso(SystemClock().now_ns() // 1_000_000, timespec="seconds"))
    name = f"stormsail-error-{time}-{os.getpid()}.txt"
    data = report_text(verb, error, environment=os.environ).encode("utf-8", "backslashreplace")
    try:
        return _new_file(Path(name).absolute(), data)
    except OSError:  # no folder, no permission, no space
        return _new_file(Path(tempfile.gettempdir()) / name, data)


def _new_file(path: Path, data: bytes) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return path


def _working_directory() -> Iterator[str]:
    """Yield the working directory, unless it was removed."""
    with contextlib.suppress(OSError):
        yield str(Path.cwd())


def _versions() -> Iterator[str]:
    """Yield the packages that were in use, with their versions."""
    for package in PACKAGES:
        version = getattr(sys.modules.get(package), "__version__", None)
        yield f"{package} {version}" if version else f"{package} not loaded"


def _chain(error: BaseException) -> list[str]:
    """Return an error and those that led to it, the first one first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = [*_chain(cause), "", "which led to:", ""] if cause is not None else []
    text = f"{type(error).__name__}: {error}"
    return [*before, *_calls(error), text]


def _calls(error: BaseException) -> Iterator[str]:
    """Yield the calls that led to an error; a run of equal ones, as in a recursion, once."""
    last, times = "", 0
    for frame in traceback.extract_tb(error.__traceback__):
        place, ours = _place(frame.filename)
        line = f"  {place}:{frame.lineno} {frame.name}" + (f": {frame.line}" if ours else "")
        if line == last:
            times += 1
            continue
        if times:
            yield f"  ... {times} more of the same"
        yield line
        last, times = line, 0
    if times:
        yield f"  ... {times} more of the same"


def _place(file: str) -> tuple[str, bool]:
    """Return a source file as imports know it, and whether its lines may be shown.

    Only files of this package and of installed ones may: a line of the user's own may hold a key.
    """
    path = Path(file)
    package = Path(__file__).parents[1]
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    if path.is_relative_to(package):
        return str(Path(package.name) / path.relative_to(package)), True
    for folder in sorted(installed, key=lambda each: -len(each.parts)):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder)), True
    return path.name, False


def _innermost(error: BaseException) -> str:
    """Return the last module of this package in which an error was seen."""
    places = [_place(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    own = [place for place, _ in places if place.startswith("stormsail" + os.sep)]
    return f" in {own[-1]}" if own else ""


def _redacted(text: str, environment: Mapping[str, str]) -> str:
    """Return a text without values of the environment, secrets and paths below home."""
    home_folder = os.path.expanduser("~")  # noqa: PTH111 - pathlib's form fails without a home
    homes = {home_folder, environment.get("HOME", ""), *_working_directory()}
    for home in sorted((home for home in homes if len(home) > 1), key=len, reverse=True):
        text = re.sub(re.escape(home) + r"(?:[/\\][^\s'\"`:,;)\]]*)?", "<path>", text)
    for name, value in sorted(environment.items(), key=lambda pair: -len(pair[1])):
        if len(value) >= _LEAST and value not in (sys.prefix, sys.executable):
            text = text.replace(value, f"<${name}>")
    return _TOKEN.sub(r"\1\2<secret>", text)
