"""What the bench verbs share: console, options, files that are written and read, verdicts."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output, write_checked

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.campaign import RowLog
    from stormsail.bench.verdicts import Verdict

CLAIM_FAILED = 1
"""Exit status where a claim does not hold."""

Row = TypeVar("Row")


Out = Annotated[
    Path | None, typer.Option(callback=checked_output, help="Also write the figures as JSON.")
]
Chart = Annotated[Path | None, typer.Option(callback=checked_output, help="Also draw them as SVG.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Jobs = Annotated[int, typer.Option(min=1, max=4096, help="Processes of one thread each.")]
Quick = Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes; no evidence.")]
Rows = Annotated[
    list[Path] | None,
    typer.Option(
        help="File of finished runs, .jsonl, a line each: what it holds is judged and not trained "
        "again, and every new run is added when it is done. Or .json files that `--out` wrote, "
        "which are judged instead of training; may come again."
    ),
]
FirstSeed = Annotated[
    int,
    typer.Option(
        "--seed-base",
        "--first-seed",
        min=0,
        help="The first seed; fresh ones show what was fitted.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="path=value for every agent; may come again.")
]
Seconds = Annotated[float, typer.Option(min=0.01, help="Measured, for each way.")]
Threads = Annotated[int, typer.Option(min=0, help="Torch threads; 0 leaves them.")]


def check_folders(*files: Path | None) -> None:
    """Refuse files that could not be written, before the work and not after it.

    Raises:
        BadParameter: if the folder of a file does not exist.
    """
    for file in files:
        if file is not None and not file.parent.is_dir():
            message = f"the folder of `{file.name}` must exist; found no {file.parent}. Make it."
            raise typer.BadParameter(message)


def bench_console() -> "Console":
    """Return a console as wide as the terminal; `COLUMNS`, or else 80, without one."""
    from rich.console import Console

    return Console()


def write_json(out: Path | None, figures: object) -> None:
    """Publish figures, and write them where `--out` says so, in the form that `--rows` reads."""
    publish(**figures if isinstance(figures, dict) else {"rows": figures})
    if out is not None:
        write_checked(out, json.dumps(figures, default=_plain))


def _plain(value: Any) -> object:  # noqa: ANN401 - a value with a dictionary of its own
    return value.as_dict()


@contextmanager
def finished_runs(files: Sequence[Path] | None) -> "Iterator[RowLog | None]":
    """Open the file of finished runs that `--rows` names, if it names one.

    Raises:
        BadParameter: if another file stands beside it, or its folder does not exist.
        ArtifactError: if another process writes to it, or a line of it is no row.
    """
    from stormsail.bench.campaign import RowLog

    names = [file for file in files or () if file.suffix == ".jsonl"]
    if not names:
        yield None
        return
    if len(files or ()) > 1:
        message = (
            "`--rows` must be one .jsonl file of finished runs, or .json files that `--out` wrote; "
            f"found {', '.join(map(str, files or ()))}. Name one kind."
        )
        raise typer.BadParameter(message)
    check_folders(*names)
    with RowLog.open(names[0]) as log:
        yield log


def read_rows(files: Sequence[Path], row: Callable[..., Row]) -> list[Row]:
    """Return the rows of files that `--out` wrote, one file after the other.

    Args:
        files: JSON, each an object whose `rows` are objects.
        row: makes one of them from its fields; TypeError for fields that are not its own.

    Raises:
        BadParameter: if there is no such file, or one holds anything else.
    """
    return [read for file in files for read in _rows(file, row)]


def _rows(file: Path, row: Callable[..., Row]) -> list[Row]:
    from stormsail.bench.campaign import MOST_BYTES
    from stormsail.core.files.regular import open_regular

    try:
        with open_regular(file) as opened:
            return [row(**fields) for fields in json.loads(opened.read(MOST_BYTES))["rows"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = (
            f"`--rows` must be a file that `--out` of this command wrote; found {file}: {error}. "
            "Write one first."
        )
        raise typer.BadParameter(message) from error


def print_verdicts(console: "Console", verdicts: "Iterable[Verdict]") -> None:
    """Print each claim, whether it holds, and what was measured."""
    for verdict in verdicts:
        word = {True: "holds; ", False: "FAILS; ", None: ""}[verdict.passed]
        text = f"{verdict.claim}: {word}{verdict.measured}"
        console.print(text, soft_wrap=True, highlight=False)


def exit_unless_held(verdicts: "Iterable[Verdict]") -> None:
    """Exit with status 1 if a claim fails."""
    if any(verdict.passed is False for verdict in verdicts):
        raise typer.Exit(CLAIM_FAILED)
