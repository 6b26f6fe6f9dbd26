"""`stormsail bench learn`: does the shipped learner learn, task by task, beside other libraries."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stormsail.bench.learner.learn import Best, Row

WIDTH = 132
"""Of the table where there is no terminal whose width could be asked."""


def learn(
    tasks: Annotated[
        str | None, typer.Option(help="Names with commas, or TOML files; default: all shipped.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each task.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 2,
    episodes: Annotated[int, typer.Option(min=1, help="Greedy episodes of a judgement.")] = 128,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Also run stable-baselines3.")
    ] = True,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Compare optimizers with and without VGS instead.")
    ] = False,
    rates: Annotated[
        str | None, typer.Option(help="Learning rates of the ablation, with commas.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="path=value for every task.")
    ] = None,
    configs: Annotated[Path, typer.Option(help="Folder of the shipped files.")] = Path("configs"),
    out: Annotated[Path | None, typer.Option(help="Also write the rows as JSON.")] = None,
) -> None:
    """Learn reference tasks from their shipped settings and hold the scores to their bars."""
    from rich.console import Console

    from stormsail.bench.learner import learn as bench
    from stormsail.bench.learner.learn_peers import missing

    if out is not None and not out.parent.is_dir():
        message = f"the folder of `--out` must exist; found no {out.parent}. Make it first."
        raise typer.BadParameter(message)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    overrides = settings or []
    if ablation:
        lines = bench.ablation_lines(bench.rates(rates), configs=configs, overrides=overrides)
    else:
        absent = missing() if peers else []
        if absent:
            console.print(f"not installed, so there are no peers: {', '.join(absent)}")
        chosen = bench.names(tasks)
        lines = bench.reference_lines(
            chosen, configs=configs, overrides=overrides, peers=peers and not absent
        )
    numbers = range(first_seed, first_seed + seeds)
    rows = bench.measure(
        lines,
        numbers,
        workers=jobs,
        episodes=episodes,
        say=lambda words: console.print(words, highlight=False),
    )
    console.print(_table(rows, title=f"{seeds} seeds, {episodes} greedy episodes of each agent"))
    if ablation:
        console.print(_best_table(bench.best(lines, rows)))
    for row in rows:
        for reason in row.reasons:
            console.print(f"{row.name}: {reason}", highlight=False)
    if out is not None:
        out.write_text(json.dumps([_plain(row) for row in rows]))
    if any(row.passed is False and row.learner == bench.OURS for row in rows):
        raise typer.Exit(1)


def _table(rows: "list[Row]", *, title: str) -> "Table":
    from rich.table import Table

    varied = any(row.variant for row in rows)
    heads = ("task", "learner", "steps", "mean", "median", "min", "bar", "", "steps/s")
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(
            row.name,
            row.variant if varied else row.learner,
            f"{row.steps:,}",
            *(f"{value:,.4g}" for value in (row.mean, row.median, row.least)),
            row.bar,
            {True: "pass", False: "FAIL", None: ""}[row.passed],
            f"{row.steps_per_second:,.0f}",
        )
    return table


def _best_table(found: "list[Best]") -> "Table":
    from rich.table import Table

    heads = ("task", "variant", "best rate", "mean", "less the first, same seeds")
    table = Table(*heads, title="each variant at its best rate, ± standard error")
    for one in found:
        table.add_row(
            one.name,
            one.variant,
            f"{one.rate:g}",
            f"{one.mean:.4g} ± {one.error:.2g}",
            f"{one.gain:+.4g} ± {one.gain_error:.2g}",
        )
    return table


def _plain(row: "Row") -> dict[str, object]:
    """Return a row as JSON can hold it, which has no NaN."""
    return {key: _without_nan(value) for key, value in asdict(row).items()}


def _without_nan(value: object) -> object:
    if isinstance(value, tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
