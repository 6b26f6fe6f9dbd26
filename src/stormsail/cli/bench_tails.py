"""`stormsail bench tails`: predicted tails beside true ones."""

import json
from pathlib import Path
from typing import Annotated

import typer


def tails(
    worlds: Annotated[str, typer.Option(help="Of chain, chain-skewed and garch-jump.")] = (
        "chain,chain-skewed,garch-jump"
    ),
    cases: Annotated[str, typer.Option(help="all, or default for the default alone.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of hours; no evidence.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Train critics on worlds whose tails are known, and compare."""
    from rich.console import Console
    from rich.table import Table

    from stormsail.bench import tails as bench

    if out is not None and not out.parent.is_dir():
        message = f"the folder of `{out.name}` must exist; found no {out.parent}. Make it."
        raise typer.BadParameter(message)
    chosen = bench.named(worlds, cases)
    plan = bench.Plan.quick() if quick else bench.Plan()
    found = bench.measure_all(*chosen, plan, range(seeds), processes=jobs)
    title = f"CVaR at 5 %, gamma {plan.gamma:g}, mean ± standard deviation of {seeds} seeds"
    headings = ("world", "case", "coverage error", "CVaR error", "of it resolution", "spread")
    table = Table(*headings, title=title)
    for row in bench.summaries(found):
        table.add_row(
            row.world,
            row.case,
            f"{row.coverage} points",
            f"{row.error} %",
            f"{row.resolution:.1f} %",
            f"{row.spread}",
        )
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps([one._asdict() for one in found]))
