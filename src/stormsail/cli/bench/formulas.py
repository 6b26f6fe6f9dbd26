"""`stormsail bench functional`: time the formulas beside plain loops."""

from dataclasses import asdict
from typing import Annotated

import typer

from stormsail.cli.bench.output import Out, Threads, check_folders, write_json


def functional(
    steps: Annotated[int, typer.Option(min=1, help="T, rows of the rollout.")] = 128,
    environments: Annotated[int, typer.Option(min=1, help="B, columns of it.")] = 1024,
    quantiles: Annotated[int, typer.Option(min=2, help="N, and K for distributions.")] = 32,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    out: Out = None,
) -> None:
    """Time the hot formulas beside a plain Python loop over time and environments."""
    import torch
    from rich.console import Console

    from stormsail.bench.formulas.functional import Rollout, rows
    from stormsail.cli.tables import Table

    check_folders(out)
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
    write_json(out, [{**asdict(row), "ratio": row.ratio} for row in measured])
