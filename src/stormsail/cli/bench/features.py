"""`stormsail bench features`: a million bars of every default feature, beside other libraries."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def features(
    bars: Annotated[int, typer.Option(min=2000, help="Bars of the history.")] = 1_000_000,
    threads: Annotated[int, typer.Option(min=0, help="Torch threads; 0 leaves them.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the bars.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the rows as JSON.")] = None,
) -> None:
    """Time the default features beside TA-Lib, pandas and numpy on the same bars."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from stormsail.bench.market.features import history, rows, total

    if threads:
        torch.set_num_threads(threads)
    data = history(bars, seed=seed)
    title = f"{bars} bars, float64, CPU, {torch.get_num_threads()} threads"
    table = Table("column", "ms", "peer", "peer ms", "ratio", "largest difference", title=title)
    measured = []
    for library, row in rows(data):
        measured.append((library, row))
        table.add_row(
            row.name,
            f"{row.milliseconds:.0f}",
            library,
            f"{row.reference_milliseconds:.0f}",
            f"{row.ratio:.1f}",
            f"{row.largest_difference:.1e}",
        )
    console = Console()
    console.print(table)
    sums = total(data, [row for _, row in measured])
    console.print(
        f"{sums.columns} columns at once: {sums.seconds:.2f} s; "
        f"peers of {sums.peer_columns}, one after another: {sums.peer_seconds:.2f} s; "
        f"ratio {sums.peer_seconds / sums.seconds:.1f}"
    )
    for library in sums.missing:
        console.print(f"{library} is not installed: its columns have no peer here")
    if out is not None:
        listed = [{**asdict(row), "peer": library} for library, row in measured]
        out.write_text(json.dumps({"columns": listed, "total": asdict(sums)}))
