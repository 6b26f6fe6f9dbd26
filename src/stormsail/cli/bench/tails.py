"""`stormsail bench tails`: predicted tails beside true ones."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.risk.frontier_verdicts import Verdict
    from stormsail.bench.risk.tails_verdicts import Summary

MISSED = 1
"""Exit status where a claim does not hold."""

WIDTH = 132
"""Of the table where there is no terminal whose width could be asked."""


def tails(
    worlds: Annotated[str, typer.Option(help="Of chain, chain-skewed and garch-jump.")] = (
        "chain,chain-skewed,garch-jump"
    ),
    cases: Annotated[str, typer.Option(help="all, default, or pictured.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of hours; no evidence.")
    ] = False,
    rows: Annotated[
        list[Path] | None,
        typer.Option(help="Judge what `--out` wrote before, instead of training; may come again."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
    chart: Annotated[
        Path | None, typer.Option(help="Folder: also draw tails.svg and budget.svg there.")
    ] = None,
) -> None:
    """Train critics on worlds whose tails are known, and compare; exit 1 if a claim fails."""
    from rich.console import Console

    from stormsail.bench.risk import tails as bench
    from stormsail.bench.risk import tails_chart, tails_verdicts
    from stormsail.cli.bench.rows import read_rows

    chosen = bench.named(worlds, cases)
    _check(out, chart, chosen[0])
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    plan = bench.Plan.quick() if quick else bench.Plan()
    if not rows:
        found = bench.measure_all(*chosen, plan, range(seeds), processes=jobs)
    else:
        found = read_rows(rows, bench.Tail)
        if chart is not None and not any(one.world == "chain" and one.values for one in found):
            message = "`--rows` must hold the law of a chain for pictures; found none. Measure one."
            raise typer.BadParameter(message)
    lines = tails_verdicts.summaries(found)
    verdicts = [] if quick else tails_verdicts.verdicts(lines)
    title = f"CVaR at 5 %, gamma {plan.gamma:g}, mean ± standard deviation over seeds"
    _print(console, title, lines, verdicts)
    if out is not None:
        out.write_text(json.dumps({"rows": [one._asdict() for one in found]}))
    if chart is not None:
        (chart / "tails.svg").write_text(tails_chart.laws(found))
        (chart / "budget.svg").write_text(tails_chart.budget())
    if any(verdict.passed is False for verdict in verdicts):
        raise typer.Exit(MISSED)


def _check(out: Path | None, chart: Path | None, worlds: tuple[str, ...]) -> None:
    """Refuse before the work what could not be written after it."""
    if out is not None and not out.parent.is_dir():
        message = f"the folder of `{out.name}` must exist; found no {out.parent}. Make it."
        raise typer.BadParameter(message)
    if chart is not None and not chart.is_dir():
        message = f"the folder of the pictures must exist; found no {chart}. Make it."
        raise typer.BadParameter(message)
    if chart is not None and "chain" not in worlds:
        message = f"`--worlds` must name chain for pictures; found {','.join(worlds)}. Add it."
        raise typer.BadParameter(message)


def _print(
    console: "Console", title: str, rows: "list[Summary]", verdicts: "list[Verdict]"
) -> None:
    from rich.table import Table

    headings = (
        "world",
        "case",
        "seeds",
        "coverage error",
        "CVaR error",
        "of it resolution",
        "spread",
    )
    table = Table(*headings, title=title)
    for row in rows:
        table.add_row(
            row.world,
            row.case,
            str(len(row.tails)),
            f"{row.coverage} points",
            f"{row.error} %",
            f"{row.resolution:.1f} %",
            f"{row.spread}",
        )
    console.print(table)
    for verdict in verdicts:
        word = "holds; " if verdict.passed else "FAILS; "
        console.print(f"{verdict.claim}: {word}{verdict.found}", soft_wrap=True, highlight=False)
