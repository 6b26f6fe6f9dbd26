"""`stormsail bench vgs`: whether the gradient scaler does more than a lower learning rate."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    Jobs,
    Out,
    bench_console,
    check_folders,
    print_verdicts,
    write_json,
)

if TYPE_CHECKING:
    from stormsail.bench.learner.vgs import Line, Row
    from stormsail.cli.tables import Table


def vgs(
    rows: Annotated[Path, typer.Option(help="File of one line a finished run; it is continued.")],
    tasks: Annotated[str | None, typer.Option(help="Names with commas; default: all.")] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of each task.")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 1000,
    steps: Annotated[
        int | None, typer.Option(min=1, help="At most, of each run; no evidence.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="That evaluate each agent.")] = 128,
    jobs: Jobs = 1,
    judge: Annotated[
        bool, typer.Option("--judge", help="Train nothing; judge the rows that there are.")
    ] = False,
    configs: Annotated[Path, typer.Option(help="Folder of the shipped files.")] = Path("configs"),
    out: Out = None,
) -> None:
    """Learn with and without the gradient scaler, and at the learning rate that it amounts to."""
    from stormsail.bench import campaign
    from stormsail.bench.learner import vgs as bench

    check_folders(out, rows)
    console = bench_console()
    if judge:
        measured = [bench.from_json(fields) for fields in campaign.read_rows(rows)]
        bench.check_alike(measured)
    else:
        names = list(bench.TASKS) if tasks is None else [part.strip() for part in tasks.split(",")]
        numbers = range(first_seed, first_seed + seeds)
        planned = bench.jobs(names, numbers, steps=steps, episodes=episodes, configs=configs)
        with campaign.RowLog.open(rows) as log:

            def keep(row: "Row") -> None:
                log.append(asdict(row))
                console.print(_progress(row), highlight=False, soft_wrap=True)

            before = [bench.from_json(fields) for fields in log.lines]
            measured = bench.run_all(planned, before, workers=jobs, keep=keep)
        console.print(
            f"{len(measured)} of {len(planned)} runs; {len(before)} rows were there before"
        )
    if not measured:
        message = "`--rows` must hold a finished run; found none. Leave `--judge` out."
        raise typer.BadParameter(message)
    lines = bench.lines(measured)
    console.print(_table(lines))
    print_verdicts(console, bench.verdicts(lines))
    write_json(out, {"rows": [asdict(row) for row in measured]})


def _progress(row: "Row") -> str:
    score = row.reason if row.score is None else f"{row.score:.4g}"
    return (
        f"{row.task}, {row.variant}, seed {row.seed}: {score} with a mean factor of "
        f"{row.factor:.3f} after {row.seconds:.0f} s"
    )


def _table(lines: "list[Line]") -> "Table":
    from stormsail.bench.learner.vgs import in_errors
    from stormsail.cli.tables import Table

    heads = ("task", "variant", "score", "factor", "at floor", "less off", "less its rate")
    title = "mean ± standard error; in brackets their ratio"
    table = Table(*heads, "seeds", "failed", keys=2, title=title)
    for line in lines:
        gains = [
            "" if gain is None else f"{gain} ({in_errors(gain):+.1f})"
            for gain in (line.gain, line.over_rate)
        ]
        table.add_row(
            line.task,
            line.variant,
            str(line.score),
            f"{line.factor:.3f}",
            f"{line.at_floor:.2f}",
            *gains,
            str(len(line.score.values)),
            str(line.failed or ""),
        )
    return table
