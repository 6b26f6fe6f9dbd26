"""`stormsail bench robust`: robust training beside plain training, without and under attack."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    Jobs,
    Out,
    bench_console,
    check_folders,
    exit_unless_held,
    print_verdicts,
    write_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.robust.robust import RobustRow, Summary
    from stormsail.cli.tables import Table


def robust(
    tasks: Annotated[str, typer.Option(help="Names with commas.")] = "pendulum,regime",
    changes: Annotated[
        list[str] | None, typer.Option("--change", help="path=value of the robust agents.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="path=value of all agents.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Pairs of agents of each task.")] = 5,
    seed_base: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each training.")] = None,
    attacks: Annotated[
        str, typer.Option(help="Names with commas; the strongest counts.")
    ] = "mad,critic,pgd",
    epsilon: Annotated[
        float | None, typer.Option(help="Radius of the attacks; that of each task unless given.")
    ] = None,
    own_units: Annotated[
        bool,
        typer.Option(
            "--own-units",
            help="Measure the radius in standard deviations of each agent's own training.",
        ),
    ] = False,
    episodes: Annotated[int, typer.Option(min=2, help="Of each attack.")] = 128,
    adversary_steps: Annotated[
        int, typer.Option(min=1, help="Steps that a learned adversary is trained for.")
    ] = 200_000,
    jobs: Jobs = 1,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="File of finished agents, a line each: what it holds is not trained again, and "
            "every new one is added when it is done."
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Train agents with and without a change, attack both; exit 1 if the gain is not proven."""
    from dataclasses import asdict

    from stormsail.bench.campaign import RowLog
    from stormsail.bench.resumed import run_missing
    from stormsail.bench.robust import robust as bench
    from stormsail.bench.robust.attacks import Plan

    check_folders(rows, out)
    console = bench_console()
    planned = bench.jobs(
        [name.strip() for name in tasks.split(",")],
        range(seed_base, seed_base + seeds),
        changes or [],
        attacks=[name.strip() for name in attacks.split(",")],
        epsilon=epsilon,
        plan=Plan(episodes=episodes, adversary_steps=adversary_steps),
        steps=steps,
        common=settings or [],
        own_units=own_units,
    )
    with nullcontext() if rows is None else RowLog.open(rows) as log:
        say = partial(_print_done, console)
        done = run_missing(
            bench.run, planned, row=bench.RobustRow, processes=jobs, log=log, say=say
        )
    measured = [row for each in done for row in each]
    lines = bench.summaries(measured)
    verdicts = bench.verdicts(lines)
    console.print(_table(lines, seeds))
    print_verdicts(console, verdicts)
    figures = {
        "rows": [row._asdict() for row in measured],
        "summaries": [line._asdict() for line in lines],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    exit_unless_held(verdicts)


def _print_done(console: "Console", rows: "list[RobustRow]") -> None:
    for row in rows:
        under = ", ".join(
            f"{name} {value:.4g}" for name, value in zip(row.attacks, row.attacked, strict=True)
        )
        words = f"{row.task}, {row.variant}, seed {row.seed}: clean {row.clean:.4g}; {under}"
        console.print(words, soft_wrap=True, highlight=False)


def _table(lines: "list[Summary]", seeds: int) -> "Table":
    from stormsail.cli.tables import Table

    heads = ("task", "plain", "attacked", "changed", "attacked", "clean cost", "robust gain")
    title = f"mean return ± half of its 95 % interval over {seeds} seeds, paired differences"
    table = Table(*heads, title=title)
    for line in lines:
        table.add_row(line.task, *(str(value) for value in line[1:]))
    return table
