"""`stormsail performance`: print the tables of a saved result, and write them as CSV."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

SHOWN = ("monthly", "yearly", "drawdowns", "benchmarks", "costs", "exposure", "regimes",
         "capacity", "folds")  # fmt: skip
"""Tables that are printed; those with a row a bar or a trade go to CSV alone."""

_SHARES = {
    "return", "total_return", "depth", "alpha", "alpha_low", "alpha_high", "tracking_error",
    "mean_return", "volatility", "max_drawdown", "value",
}  # fmt: skip
"""Columns that are shares of 1."""

_WHOLE = 1e4  # amounts from which on no digits behind the point are shown

DRAWDOWNS = 10
"""Largest drawdowns that are printed."""


def performance(
    result: Annotated[Path, typer.Argument(help="Folder of a backtest or a validation.")],
    benchmark: Annotated[
        str | None, typer.Option(help="Baseline to measure against; default: all that were run.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="New folder for all tables as CSV files.")
    ] = None,
) -> None:
    """Print monthly returns, drawdowns, alpha and beta, costs, regimes and capacity of a result."""
    from rich.console import Console

    from stormsail.evaluation.saved import read_result

    frames = read_result(result).frames
    if benchmark is not None:
        frames = frames.only(benchmark)
    console = Console(highlight=False)
    tables = frames.tables()
    for name in SHOWN:
        if name in tables:
            table = tables[name]
            if name == "drawdowns":
                table = table.slice(0, DRAWDOWNS)
            rows = [list(row.values()) for row in table.to_pylist()]
            _show(console, name, table.column_names, rows)
    for name in SHOWN:
        if name not in tables:
            console.print(f"{name}: not measured", markup=False)
    shown = {name: tables[name].to_pylist() for name in SHOWN if name in tables}
    publish(result=result, tables=shown, csv=csv)
    if csv is not None:
        files = frames.write_csv(csv)
        console.print(f"wrote {len(files)} tables into {csv}", markup=False, soft_wrap=True)


def _show(
    console: "Console", title: str, names: "Sequence[str]", rows: "Iterable[Sequence[object]]"
) -> None:
    from stormsail.cli.tables import Table

    table = Table(title=title, title_justify="left")
    for place, name in enumerate(names):
        table.add_column(name.replace("_", " "), justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in zip(names, row, strict=True)))
    console.print(table)


def _cell(name: str, value: object) -> str:
    if value is None or value != value:  # NaN: a ratio that has none
        return "-"
    if isinstance(value, float):
        form = "+.2%" if name in _SHARES else ",.0f" if abs(value) >= _WHOLE else ",.4g"
        return format(value, form)
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d %H:%M"))
    return str(value)
