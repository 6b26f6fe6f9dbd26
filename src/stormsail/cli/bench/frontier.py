"""`stormsail bench frontier`: what a limit on the tail costs, and whether it holds."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.risk.frontier import Row
    from stormsail.bench.risk.frontier_verdicts import Summary, Verdict

MISSED = 1
"""Exit status where a claim does not hold."""

WIDTH = 132
"""Of the table where there is no terminal whose width could be asked."""


def frontier(
    seeds: Annotated[int, typer.Option(min=1, help="Agents of each kind.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps that each learns for.")] = 1_500_000,
    gammas: Annotated[str, typer.Option(help="Discounts, with commas.")] = "0.99,0.999",
    limits: Annotated[
        str, typer.Option(help="On the CVaR of an episode, in log growth, with commas.")
    ] = "-0.2,-0.1,-0.05",
    warned: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of crashes that a warning precedes.")
    ] = 0.8,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    kinds: Annotated[
        str, typer.Option(help="Of free, limit, slack, infeasible, alpha, penalty and rule.")
    ] = "free,limit,slack,infeasible,alpha,penalty,rule",
    rows: Annotated[
        list[Path] | None,
        typer.Option(help="Judge what `--out` wrote before, instead of training; may come again."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Also draw the frontier as SVG.")] = None,
) -> None:
    """Train agents with and without a limit on their tail; judge them on bars they never saw."""
    from rich.console import Console

    from stormsail.bench.risk import frontier as bench
    from stormsail.bench.risk import frontier_verdicts
    from stormsail.cli.bench.rows import read_rows

    for file in (out, chart):
        if file is not None and not file.parent.is_dir():
            message = f"the folder of `{file.name}` must exist; found no {file.parent}. Make it."
            raise typer.BadParameter(message)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    plan = bench.Plan(
        limits=bench.numbers(limits, name="limits"),
        gammas=bench.numbers(gammas, name="gammas"),
        seeds=tuple(range(seeds)),
        steps=steps,
        warned=warned,
    )
    wanted = bench.jobs(plan, [kind.strip() for kind in kinds.split(",")])
    if not rows:
        console.print(f"{len(wanted)} agents, {jobs} at a time")
        found = bench.run_all(wanted, processes=jobs, say=lambda row: _say(console, row))
    else:
        found = read_rows(rows, bench.Row)
    verdicts = frontier_verdicts.verdicts(found)
    _print(console, frontier_verdicts.summaries(found), verdicts)
    if out is not None:
        figures = {
            "plan": asdict(plan),
            "rows": [row._asdict() for row in found],
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        out.write_text(json.dumps(figures))
    if chart is not None:
        chart.write_text(frontier_verdicts.chart(found))
    if any(verdict.passed is False for verdict in verdicts):
        raise typer.Exit(MISSED)


def _say(console: "Console", row: "Row") -> None:
    limit = "" if row.limit is None else f", limit {row.limit}"
    console.print(
        f"{row.kind}{limit}, gamma {row.gamma:g}, seed {row.seed}: mean {row.mean:.4f}, "
        f"CVaR {row.cvar:.4f} ± {row.cvar_error:.4f}, multiplier {row.multiplier:.2f}",
        soft_wrap=True,
        highlight=False,
    )


def _print(console: "Console", lines: "list[Summary]", verdicts: "list[Verdict]") -> None:
    from rich.table import Table

    heads = ("kind", "setting", "gamma", "mean", "CVaR of the worst 5 %", "exposure")
    title = "log growth of an episode on unseen bars, mean over seeds ± half of its 95 % interval"
    table = Table(*heads, "multiplier", "largest", "held", "reached", title=title)
    for line in lines:
        table.add_row(
            line.key.kind,
            line.key.setting,
            f"{line.key.gamma:g}",
            str(line.mean),
            str(line.cvar),
            f"{line.exposure:.3f}",
            f"{line.multiplier:.2f}",
            f"{line.largest_multiplier:.2f}",
            "" if line.held is None else f"{line.held} of {line.seeds}",
            "" if line.reached is None else f"{line.reached} of {line.seeds}",
        )
    console.print(table)
    for verdict in verdicts:
        word = {True: "holds; ", False: "FAILS; ", None: ""}[verdict.passed]
        console.print(f"{verdict.claim}: {word}{verdict.found}", soft_wrap=True, highlight=False)
