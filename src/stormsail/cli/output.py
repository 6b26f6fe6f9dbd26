"""Where a command's output goes: text for people, one JSON document for programs, or neither.

Every verb is registered by `add_command`, which gives it `--json`, `--json-out`, `--quiet` and
`--force`. A verb prints text as ever and calls `publish` with its figures; what becomes of both is
decided here:

| options          | stdout       | stderr                           |
|------------------|--------------|----------------------------------|
| none             | text         | progress, warnings, errors       |
| `--json`         | the document | text, progress, warnings, errors |
| `--quiet`        | nothing      | warnings, errors                 |
| `--json --quiet` | the document | warnings, errors                 |

`--json-out FILE` writes the same document to a file beside any of these.
"""

import dataclasses
import functools
import inspect
import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from contextvars import ContextVar
from datetime import date
from pathlib import Path
from typing import Annotated, TextIO

import typer

from stormsail import __version__
from stormsail.cli.output_files import Force, checked_output, write_checked
from stormsail.core.errors import StormsailError

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document to stdout, and text to stderr.")
]
JsonOut = Annotated[
    Path | None,
    typer.Option(
        "--json-out", callback=checked_output, help="Also write the JSON document to this file."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print warnings and errors only; no progress.")
]

OPTIONS = {
    "as_json": (Json, False),
    "json_out": (JsonOut, None),
    "quiet": (Quiet, False),
    "force": (Force, False),
}
"""Options of every verb: type and default, by the name of the parameter."""


@dataclasses.dataclass
class Output:
    """Output of one command."""

    quiet: bool = False
    figures: dict[str, object] = dataclasses.field(default_factory=dict)
    """What the JSON document holds beside `verb` and `version`."""
    emit: Callable[[], None] | None = None
    """Writes the document; None once it was written."""

    def write(self) -> None:
        """Write the document, once."""
        emit, self.emit = self.emit, None
        if emit is not None:
            emit()


_CURRENT: ContextVar[Output | None] = ContextVar("output", default=None)


def publish(**figures: object) -> None:
    """Add keys to the JSON document of the command that runs, if one does."""
    output = _CURRENT.get()
    if output is not None:
        output.figures |= figures


def publish_now(**figures: object) -> None:
    """Add keys to the JSON document and write it: for a command that runs until it is ended."""
    publish(**figures)
    output = _CURRENT.get()
    if output is not None:
        output.write()


def is_quiet() -> bool:
    """Return whether the command that runs shows no progress."""
    output = _CURRENT.get()
    return output is not None and output.quiet


def add_command(
    app: typer.Typer, function: Callable[..., None], name: str | None = None, *, group: str = ""
) -> None:
    """Register a verb with the options of all verbs.

    Args:
        app: where it is registered.
        function: the verb.
        name: on the command line; None takes that of the function.
        group: words before the name in the JSON document.
    """
    name = name or function.__name__
    app.command(name)(_reporting(function, f"{group} {name}".strip()))


def _reporting(function: Callable[..., None], verb: str) -> Callable[..., None]:
    """Return a verb that has the options of all verbs and obeys them."""

    @functools.wraps(function)
    def run(
        *, as_json: bool, json_out: Path | None, quiet: bool, force: bool, **arguments: object
    ) -> None:
        del force  # `checked_output` knows it
        output = Output(quiet)
        stream = sys.stdout if as_json else None
        output.emit = functools.partial(_emit, verb, output, stream, json_out)
        token = _CURRENT.set(output)
        try:
            with _text_elsewhere(as_json=as_json, quiet=quiet):
                _check_values(arguments | {"json_out": json_out})
                function(**arguments)
        except typer.Exit:  # a command's own "no" has figures, too
            output.write()
            raise
        except (StormsailError, typer.BadParameter) as error:
            output.figures["error"] = _error_document(error)
            output.write()
            raise
        else:
            output.write()
        finally:
            _CURRENT.reset(token)

    own = inspect.signature(function)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in OPTIONS.items()
    ]
    parameters = [*own.parameters.values(), *added]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = function.__annotations__ | {
        name: kind for name, (kind, _) in OPTIONS.items()
    }
    return run


_LARGEST = 2**63


def _check_values(arguments: Mapping[str, object]) -> None:
    """Refuse values that no verb can mean.

    Raises:
        typer.BadParameter: if one is an option, which stands where a value was forgotten, or a
            number that no counter of a machine holds.
    """
    for name, given in arguments.items():
        option = f"--{name.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str | Path) and str(value).startswith("--"):
                raise typer.BadParameter(
                    f"`{option}` must be followed by its value; found the option `{value}`. "
                    f"A file of that name is `./{value}`."
                )
            if isinstance(value, int) and abs(value) >= _LARGEST:
                raise typer.BadParameter(f"`{option}` must fit into 64 bits; found {value}.")


def _text_elsewhere(*, as_json: bool, quiet: bool) -> AbstractContextManager[object]:
    """Return a context in which what is printed to stdout goes to stderr or nowhere.

    A library that prints on its own is caught as well, so the document stands alone on stdout.
    """
    if quiet:
        return redirect_stdout(_Nowhere())
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


class _Nowhere(io.TextIOBase):
    """A stream that forgets what is written to it."""

    encoding = "utf-8"

    def write(self, text: str, /) -> int:
        """Count and forget."""
        return len(text)


def _error_document(error: "StormsailError | typer.BadParameter") -> dict[str, str]:
    """Return a refusal by its parts."""
    if isinstance(error, StormsailError):
        parts = {"wrong": error.wrong, "found": error.found, "remedy": error.remedy}
        return {"code": error.code, "message": str(error), **parts}
    return {"code": "usage", "message": error.message}


def _emit(verb: str, output: Output, stream: TextIO | None, file: Path | None) -> None:
    """Print the document to a stream, or write it to a file, or both."""
    if stream is None and file is None:
        return
    document = {"verb": verb, "version": __version__, **output.figures}
    text = json.dumps(plain(document), indent=2, allow_nan=False) + "\n"
    if file is not None:
        write_checked(file, text)
    if stream is not None:
        stream.write(text)
        stream.flush()


def plain(value: object) -> object:
    """Return a value in JSON's own types; a number that is not finite, which JSON lacks, as null.

    Records, named tuples and arrays become objects and lists; anything else becomes text.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    for method in ("as_dict", "document", "_asdict", "tolist"):
        if hasattr(value, method):
            return plain(getattr(value, method)())
    if dataclasses.is_dataclass(value):
        return {part.name: plain(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else str(value)
