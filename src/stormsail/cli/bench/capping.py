"""`stormsail bench capping`: limits on the tail beside Return Capping, in its betting game."""

from dataclasses import asdict
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
    from collections.abc import Sequence

    from stormsail.bench.bets.return_capping import Row
    from stormsail.cli.tables import Table


def capping(
    rows: Annotated[Path, typer.Option(help="File of one line a finished agent; it is continued.")],
    seeds: Annotated[int, typer.Option(min=1, help="Of three agents each.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="That each learns for.")] = 500_000,
    change: Annotated[
        list[str] | None,
        typer.Option(help="Setting of agents with a limit, path=value; may come again."),
    ] = None,
    common: Annotated[
        list[str] | None, typer.Option(help="Setting of all agents, path=value; may come again.")
    ] = None,
    jobs: Jobs = 1,
    judge: Annotated[
        bool, typer.Option("--judge", help="Train nothing; judge the rows of these settings.")
    ] = False,
    out: Out = None,
) -> None:
    """Hold agents to a CVaR, and compare with capped returns; exit 1 if a claim fails."""
    from stormsail.bench import campaign
    from stormsail.bench.bets import return_capping as bench

    check_folders(out, rows)
    console = bench_console()
    plan = bench.Plan(steps=steps, changes=tuple(change or ()), common=tuple(common or ()))
    if judge:
        before = [bench.from_json(fields) for fields in campaign.read_rows(rows)]
        measured = bench.complete(plan, before)
    else:
        with campaign.RowLog.open(rows) as log:

            def keep(fresh: "Sequence[Row]") -> None:
                for row in fresh:
                    log.append(row._asdict())
                    console.print(_progress(row), highlight=False, soft_wrap=True)

            before = [bench.from_json(fields) for fields in log.lines]
            numbers = range(first_seed, first_seed + seeds)
            measured = bench.run_all(plan, numbers, before, processes=jobs, keep=keep)
    console.print(_table(measured))
    verdicts = bench.verdicts(measured)
    print_verdicts(console, verdicts)
    figures = {
        "rows": [row._asdict() for row in measured],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    exit_unless_held(verdicts)


def _progress(row: "Row") -> str:
    limit = "" if row.limit is None else f", limit {row.limit:.2f}"
    return f"{row.kind}{limit}, seed {row.seed}: mean {row.mean:.2f}, CVaR {row.cvar:.2f}"


def _table(rows: "Sequence[Row]") -> "Table":
    from stormsail.cli.tables import Table

    heads = ("agent", "seed", "limit", "mean", "best mean", "CVaR", "largest CVaR", "kept")
    title = "return of the betting game in tokens, exact; CVaR of the worst 20 %"
    table = Table(*heads, "greedy mean", "greedy CVaR", "cap or multiplier", keys=2, title=title)
    for row in sorted(rows, key=lambda row: (row.kind, row.seed)):
        table.add_row(
            row.kind,
            str(row.seed),
            "" if row.limit is None else f"{row.limit:.2f}",
            f"{row.mean:.2f}",
            "" if row.best is None else f"{row.best:.2f}",
            f"{row.cvar:.2f}",
            f"{row.most:.2f}",
            {True: "yes", False: "no", None: ""}[row.kept],
            f"{row.greedy_mean:.2f}",
            f"{row.greedy_cvar:.2f}",
            "" if row.level is None else f"{row.level:.2f}",
        )
    return table
