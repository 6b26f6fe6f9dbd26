"""`stormsail bench bets`: limits on the tail in worlds whose best policy is known exactly."""

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

    from stormsail.bench.bets.bets import Row, Summary
    from stormsail.cli.tables import Table


def bets(
    worlds: Annotated[
        str | None, typer.Option(help="Names with commas, known or unseen; default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Agents of each world.")] = 5,
    seed_base: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    updates: Annotated[int, typer.Option(min=1, help="Of 64 episodes each.")] = 160,
    changes: Annotated[
        list[str] | None, typer.Option("--change", help="path=value for every world.")
    ] = None,
    jobs: Jobs = 1,
    kept: Annotated[
        Path | None,
        typer.Option(
            "--rows",
            help="File of finished runs, a line each: what it holds is not trained again, and "
            "every new run is added when it is done.",
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Train agents under limits on bets that are solved exactly; exit 1 if a claim fails."""
    from dataclasses import asdict

    from stormsail.bench.bets import bets as bench
    from stormsail.bench.campaign import RowLog

    check_folders(out, kept)
    console = bench_console()
    plan = bench.Plan(updates=updates, changes=tuple(changes or ()))
    planned = bench.jobs(bench.named(worlds), range(seed_base, seed_base + seeds), plan)
    with RowLog.open(kept) if kept is not None else nullcontext() as file:
        rows = bench.run_all(planned, processes=jobs, kept=file, say=partial(_print_run, console))
    verdicts = bench.verdicts(rows)
    title = (
        f"{updates} updates of {plan.n_envs} episodes, mean ± standard deviation over {seeds} seeds"
    )
    console.print(_table(title, bench.summaries(rows)))
    print_verdicts(console, verdicts)
    figures = {
        "plan": asdict(plan),
        "rows": [row._asdict() for row in rows],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    exit_unless_held(verdicts)


def _print_run(console: "Console", row: "Row") -> None:
    limit = f"limit {row.limit:g}" if row.limited else "no limit"
    word = "" if not row.limited else ", kept" if row.kept else ", BROKEN"
    error = f" ± {row.cvar_error:.2g}" if row.cvar_error > 1e-3 * abs(row.cvar) else ""
    console.print(
        f"{row.world}, {limit}, seed {row.seed}: mean {row.mean:.4g} of {row.best:.4g} "
        f"({row.share:.2f}), CVaR {row.cvar:.4g}{error}{word}, multiplier {row.multiplier:.3g}, "
        f"{row.seconds:.0f} s",
        soft_wrap=True,
        highlight=False,
    )


def _table(title: str, lines: "list[Summary]") -> "Table":
    from stormsail.cli.tables import Table

    heads = ("world", "limit", "best mean", "mean", "mean / best", "CVaR", "kept", "multiplier")
    table = Table(*heads, keys=2, title=title)
    for line in lines:
        table.add_row(
            line.world,
            f"{line.limit:g}" if line.limited else "none",
            f"{line.best:.4g}",
            str(line.mean),
            str(line.share),
            str(line.cvar),
            f"{line.kept} of {len(line.cvar.values)}" if line.limited else "",
            str(line.multiplier),
        )
    return table
