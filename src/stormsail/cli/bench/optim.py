"""`stormsail bench optim`: the time of one optimizer step beside torch's AdamW."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def optim(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="Torch threads; 0 leaves them.")] = 2,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also measure the compiled pipeline.")
    ] = True,
    seconds: Annotated[float, typer.Option(min=0.01, help="Measured, for each way.")] = 2.0,
    scale: Annotated[float, typer.Option(min=0.01, help="Of each side of each tensor.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of network and noise.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Time a step of AdamW, UPGD and AdaptiveUPGD with the gradient scaler, 2 M parameters."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from stormsail.bench.market.simulator import check_device, compiler_found, device_name
    from stormsail.bench.optimizers import optim as bench

    check_device(device)
    if threads:
        torch.set_num_threads(threads)
    console = Console()
    if compiled and not compiler_found():
        console.print("no C++ compiler is found: nothing is compiled")
        compiled = False
    rows = bench.step_times(
        device=device, compiled=compiled, seconds=seconds, seed=seed, scale=scale
    )
    title = f"one step, float32, {device_name(device)}"
    reference = bench.REFERENCE[device.partition(":")[0]]
    table = Table("way", "µs", f"times {reference}", "warm-up s", title=title)
    for row in rows:
        table.add_row(
            row.way,
            f"{row.microseconds:,.1f}",
            f"{row.ratio:.2f}",
            f"{row.warmup_seconds:.1f}",
        )
    console.print(table)
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows]))
