"""`stormsail bench population`: a population beside fixed draws of the same search and budget."""

import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    FirstSeed,
    Jobs,
    Out,
    Settings,
    bench_console,
    check_folders,
    exit_unless_held,
    print_verdicts,
    write_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.learner.population import PopulationRow, Summary
    from stormsail.cli.tables import Table


def population(
    seeds: Annotated[int, typer.Option(min=1, help="Repeats, each with a world of its own.")] = 5,
    seed_base: FirstSeed = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each member.")] = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    workers: Annotated[
        int,
        typer.Option(
            min=1, help="Processes in which the members of each of these train at a time."
        ),
    ] = 1,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="File of finished arms, a line each: what it holds is not trained again, and "
            "every new one is added when it is done."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the members: an interrupted arm goes on there; default: a temporary "
            "one, and the arm is trained again."
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Train populations and their fixed draws; exit 1 if no gain on the median is proven."""
    from dataclasses import asdict

    from stormsail.algorithms.fit import Interrupted
    from stormsail.bench.campaign import RowLog
    from stormsail.bench.learner import population as bench
    from stormsail.bench.resumed import run_missing
    from stormsail.cli.learning.train import BY_SIGNAL

    check_folders(rows, out, folder)
    console = bench_console()
    repeats = range(seed_base, seed_base + seeds)
    planned = bench.jobs(
        repeats, steps=steps, common=settings or [], folder=folder, workers=workers
    )
    try:
        with nullcontext() if rows is None else RowLog.open(rows) as log:
            say = partial(_print_done, console)
            done = run_missing(
                bench.run, planned, row=bench.PopulationRow, processes=jobs, log=log, say=say
            )
    except KeyboardInterrupt as error:
        number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
        typer.echo("stormsail: interrupted; the same command goes on.", err=True)
        raise typer.Exit(BY_SIGNAL + number) from None
    measured = [row for each in done for row in each]
    line = bench.summary(measured)
    verdicts = bench.verdicts(line)
    console.print(_table(line))
    print_verdicts(console, verdicts)
    figures = {
        "rows": [row._asdict() for row in measured],
        "summary": line._asdict(),
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    exit_unless_held(verdicts)


def _print_done(console: "Console", rows: "list[PopulationRow]") -> None:
    for row in rows:
        values = ", ".join(f"{path} {_value(value)}" for path, value in row.values.items())
        words = (
            f"{row.arm}, seed {row.seed}: chosen {row.best:.3f}, median {row.median:.3f}, "
            f"{row.copies} copies; member {row.chosen} with {values}"
        )
        console.print(words, soft_wrap=True, highlight=False)


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(line: "Summary") -> "Table":
    from stormsail.cli.tables import Table

    repeats = len(line.gain.values)
    title = f"Sharpe ratio a year on unseen bars ± half of its 95 % interval over {repeats} repeats"
    table = Table("", "best by fitness", "median of the members", title=title)
    table.add_row("population", str(line.best), str(line.members))
    table.add_row("fixed draws", str(line.fixed_best), str(line.fixed_median))
    table.add_row("population's best less", str(line.gain_on_best), str(line.gain))
    return table
