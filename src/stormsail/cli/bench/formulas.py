"""`stormsail bench`: measure on this machine; every figure is a ratio from one run."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure speed on this machine, as ratios from one run.")


@app.callback(invoke_without_command=True)
def _which(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def functional(
    steps: Annotated[int, typer.Option(min=1, help="T, rows of the rollout.")] = 128,
    environments: Annotated[int, typer.Option(min=1, help="B, columns of it.")] = 1024,
    quantiles: Annotated[int, typer.Option(min=2, help="N, and K for laws.")] = 32,
    threads: Annotated[int, typer.Option(min=0, help="Torch threads; 0 leaves them.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the rows as JSON.")] = None,
) -> None:
    """Time the hot formulas beside a plain Python loop over time and environments."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from stormsail.bench.formulas.functional import Rollout, rows

    if out is not None and not out.parent.is_dir():
        message = f"the folder of `--out` must exist; found no {out.parent}. Make it first."
        raise typer.BadParameter(message)
    if threads:
        torch.set_num_threads(threads)
    rollout = Rollout.draw(steps=steps, environments=environments, quantiles=quantiles, seed=seed)
    title = f"T={steps}, B={environments}, N={quantiles}, CPU, {torch.get_num_threads()} threads"
    table = Table("function", "ms", "loop ms", "times faster", "largest difference", title=title)
    measured = []
    for row in rows(rollout):
        measured.append(row)
        table.add_row(
            row.name,
            f"{row.milliseconds:.2f}",
            f"{row.reference_milliseconds:.0f}",
            f"{row.ratio:.0f}",
            f"{row.largest_difference:.1e}",
        )
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in measured]))
