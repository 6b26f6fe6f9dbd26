"""How a command ends: exit statuses, and one line in words for whatever stopped it.

`docs/exit_codes.md` lists the statuses. No exception leaves `run_command`, so no traceback reaches
a user: what nobody foresaw is written to a report file instead (`cli.failure_report`).
"""

import contextlib
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from stormsail.core.errors import (
    ArtifactError,
    ConfigError,
    InvariantError,
    StormsailError,
)

REFUSED = 2
"""Exit status of a refusal; 1 is a command's own "no", 0 its "yes"."""

UNEXPECTED = 70
"""Exit status of what nobody foresaw: EX_SOFTWARE of sysexits.h."""

BY_SIGNAL = 128
"""Added to the number of a signal, as a shell reports it."""

COMPLETION = "_STORMSAIL_COMPLETE"
"""Variable of the environment by which a shell asks for completions."""

# `ClickException`, of click or, in newer versions of typer, of its own copy.
_CommandLineError: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|unable to allocate"
    r"|not enough memory|allocat\w* .*bytes|can't start new thread|std::bad_alloc"
    r"|storage size calculation overflowed|malloc of size .* failed|bad allocation"
    r"|failed to map segment|could not (create|execute) a primitive",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def run_command(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Args:
        app: the verbs.
        arguments: after the name of the program; None takes those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _encodable_output():
            status = _invoked(app, words)
            try:
                _flush()
            except OSError:
                if status in (0, 1):  # otherwise one line has said already what stopped it
                    raise
                _silence()
            return status
    except BrokenPipeError:  # the reader has gone, as `head` does: nobody is left to be told
        _silence()
        return BY_SIGNAL + signal.SIGPIPE
    except OSError as error:  # standard output on a full disk, and perhaps standard error, too
        _silence()
        with contextlib.suppress(OSError):
            os.write(2, f"stormsail: {_unwritten(error)}\n".encode())
        return REFUSED


def _invoked(app: typer.Typer, words: list[str]) -> int:
    """Run the command and return its status; say in one line what stopped it."""
    verb = "stormsail"
    try:
        _check_text(words)
        command = typer.main.get_command(app)
        verb = _verb(command, words)
        with command.make_context("stormsail", words) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return _complained("stormsail: no answer; nothing was written.", BY_SIGNAL + signal.SIGINT)
    except KeyboardInterrupt:
        return _complained(f"stormsail: `{verb}` was interrupted.", BY_SIGNAL + signal.SIGINT)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends by itself
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, no traceback reaches a user
        return _stopped(verb, error)
    return 0


def _stopped(verb: str, error: BaseException) -> int:
    """Say what stopped a command; return the exit status.

    Raises:
        OSError: if the output itself is what failed; `run_command` knows what can still be said.
    """
    if isinstance(error, _CommandLineError):
        return _usage(verb, error)
    streams = (errno.EPIPE, *_NO_SPACE)
    if isinstance(error, OSError) and error.filename is None and error.errno in streams:
        raise error
    refusal = _refusal(verb, error)
    if refusal is not None:
        return _complained(f"stormsail: {refusal}", REFUSED)
    from stormsail.cli.failure_report import unexpected

    return _complained(f"stormsail: {unexpected(verb, error)}", UNEXPECTED)


def _refusal(verb: str, error: BaseException) -> StormsailError | None:
    """Return the refusal that an exception amounts to; None for what nobody foresaw."""
    if isinstance(error, InvariantError):
        return None
    if isinstance(error, StormsailError):
        return error
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return _unwritten(error)
    if _lacks_memory(error):
        return ConfigError(
            "out-of-memory",
            wrong=f"`{verb}` must find the memory that it asks for",
            found=f"less on this machine ({_one_line(str(error)) or type(error).__name__})",
            remedy="Lower the sizes that were asked for, or end other programs.",
        )
    if isinstance(error, OSError) and error.filename is not None:
        return ArtifactError(
            "file-unusable",
            wrong=f"`{verb}` must be able to use {_name(error.filename)}",
            found=error.strerror or type(error).__name__,
            remedy="Check the path, its kind and its permissions.",
        )
    return None


def _lacks_memory(error: BaseException) -> bool:
    """Return whether an allocation failed; torch and a loader of libraries say so in words."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    return (
        isinstance(error, RuntimeError | ImportError) and _NO_MEMORY.search(str(error)) is not None
    )


def _unwritten(error: OSError) -> ArtifactError:
    place = "the output" if error.filename is None else _name(error.filename)
    return ArtifactError(
        "artifact-write",
        wrong=f"{place} must be written completely",
        found=error.strerror or type(error).__name__,
        remedy="Free space on that device, or write to another one.",
    )


def _usage(verb: str, error: Any) -> int:  # noqa: ANN401 - of click or of typer's copy
    """Say what is wrong with the words of a command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        if text := error.format_message():  # typer has printed it already where it is empty
            typer.echo(text)
        return REFUSED
    known = "stormsail" if verb == "stormsail" else f"stormsail {verb}"
    words = _one_line(error.format_message()).rstrip(".")
    return _complained(
        f"stormsail: `{known}` must be given what it takes; found {words[:1].lower()}{words[1:]}. "
        f"`{known} --help` shows it. [usage]",
        REFUSED,
    )


def _check_text(words: Sequence[str]) -> None:
    """Refuse arguments that are no text: they would come back in files that must be UTF-8.

    Raises:
        ConfigError: if the bytes of one are not in the encoding of the locale.
    """
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(
                "usage",
                wrong="every argument must be text in UTF-8",
                found=f"`{_name(word)}`",
                remedy="Rename the file or folder, or reach it through a link with such a name.",
            ) from None


def _verb(command: Any, words: Sequence[str]) -> str:  # noqa: ANN401 - of click or of typer's copy
    """Return the verb of a command line, such as `bench functional`."""
    names = []
    for word in words:
        inner = getattr(command, "commands", {})
        if word in inner:
            names.append(word)
            command = inner[word]
        elif not word.startswith("-"):
            break
    return " ".join(names) or "stormsail"


def _complained(line: str, status: int) -> int:
    typer.echo(_one_line(line), err=True)
    return status


def _one_line(text: str) -> str:
    """Return a text on one line, without characters that a terminal would obey."""
    joined = re.sub(r"\s*[\r\n]+\s*", " ", text.strip())
    return _CONTROL.sub(lambda match: repr(match.group())[1:-1], joined)


def _name(path: object) -> str:
    """Return a file name as it can be printed."""
    text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@contextlib.contextmanager
def _encodable_output() -> Iterator[None]:
    """Print what a locale has no character for as an escape, instead of failing."""
    changed = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
            changed.append(stream)
    try:
        yield
    finally:
        for stream in changed:
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="strict")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _silence() -> None:
    """Let what is still buffered go nowhere, since the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            descriptor = stream.fileno()
            if stream is sys.stdout or not _writable(descriptor):
                os.dup2(nowhere, descriptor)
            stream.flush()
    os.close(nowhere)


def _writable(descriptor: int) -> bool:
    try:
        os.write(descriptor, b"")
    except OSError:
        return False
    return True
