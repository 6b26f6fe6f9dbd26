"""`stormsail bench train`: environment steps a second of the learner, beside sb3-contrib."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stormsail.bench.learner.train import Row


def train(
    lstm: Annotated[str, typer.Option(help="Widths of the LSTM.")] = "64,256",
    environments: Annotated[int, typer.Option(min=1, help="B, side by side.")] = 16,
    steps: Annotated[int, typer.Option(min=2, help="T, rows of a rollout.")] = 128,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a rollout.")] = 4,
    minibatches: Annotated[int, typer.Option(min=1, help="Of one epoch.")] = 4,
    updates: Annotated[int, typer.Option(min=1, help="Of each way in each round.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="In which all ways take turns.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="Torch threads; 0 leaves them.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, tasks and actions.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Time whole updates on CartPole-v1 beside sb3-contrib's RecurrentPPO."""
    import torch
    from rich.console import Console

    from stormsail.bench.learner import train as bench
    from stormsail.bench.market.simulator import check_device, device_name

    check_device(device)
    sizes = bench.Sizes(environments, steps, epochs, minibatches)
    chosen = bench.widths(lstm)
    if threads:
        torch.set_num_threads(threads)
    rows: list[Row] = []
    for width in chosen:
        rows += bench.compare(
            width, sizes=sizes, updates=updates, rounds=rounds, device=device, seed=seed
        )
    found = bench.ratios(rows)
    title = (
        f"{bench.TASK}, {environments} environments, {steps} rows, {epochs} epochs of "
        f"{minibatches} minibatches, {rounds} rounds, {device_name(device)}"
    )
    console = Console()
    console.print(_table(rows, found, title=title))
    if not any(row.is_peer for row in rows):
        console.print(bench.NOT_INSTALLED, soft_wrap=True)
    if out is not None:
        listed = [
            {**asdict(row), "rate": row.rate, "ratio": ratio}
            for row, ratio in zip(rows, found, strict=True)
        ]
        out.write_text(json.dumps(listed))


def _table(rows: "list[Row]", ratios: list[float | None], *, title: str) -> "Table":
    from rich.table import Table

    from stormsail.bench.learner.train import PARTS

    heads = ("LSTM", "way", "steps/s", "slowest to fastest", "ratio", *(f"{p} ms" for p in PARTS))
    table = Table(*heads, title=title)
    for row, ratio in zip(rows, ratios, strict=True):
        table.add_row(
            str(row.width),
            row.way,
            f"{row.rate:,.0f}",
            f"{min(row.rates):,.0f} to {max(row.rates):,.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            *(f"{row.milliseconds[p]:.1f}" if row.milliseconds else "" for p in PARTS),
        )
    return table
