"""`stormsail bench promotions`: how often the verdict promotes noise, and skill, by simulation."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    FirstSeed,
    Out,
    bench_console,
    check_folders,
    exit_unless_held,
    print_verdicts,
    write_json,
)

if TYPE_CHECKING:
    from stormsail.bench.promotions import Case


def promotions(
    processes: Annotated[
        str, typer.Option(help="Names with commas: normal, clustered, repeating, jumping.")
    ] = "clustered,repeating,jumping",
    runs: Annotated[int, typer.Option(min=1, help="Simulated validations of each case.")] = 100,
    seed_base: FirstSeed = 0,
    repetitions: Annotated[int, typer.Option(min=20, help="Resamples of each bootstrap.")] = 200,
    kept: Annotated[
        Path | None,
        typer.Option("--rows", help="File of finished runs, a line each; the rest is added."),
    ] = None,
    out: Out = None,
) -> None:
    """Simulate validations through the real verdict; exit 1 if a claim fails."""
    from dataclasses import asdict

    from stormsail.bench import promotions as bench
    from stormsail.bench.campaign import RowLog
    from stormsail.cli.tables import Table

    check_folders(out, kept)
    console = bench_console()
    planned = [
        (case, seed)
        for seed in range(seed_base, seed_base + runs)
        for case in _cases(processes.split(","))
    ]
    with RowLog.open(kept) if kept is not None else nullcontext() as file:
        rows = bench.simulate_all(planned, repetitions=repetitions, kept=file)
    rates = bench.rates(rows)
    table = Table("process", "years", "trials", "Sharpe ratio", "promoted", keys=3)
    for rate in rates:
        ratio = f"{rate.sharpe:.2f}" + (" (planned)" if rate.planned else "")
        share = f"{rate.promoted} of {rate.runs}"
        table.add_row(rate.process, f"{rate.bars / bench.YEAR:g}", f"{rate.trials:,}", ratio, share)
    console.print(table)
    claims = bench.verdicts(rates)
    print_verdicts(console, claims)
    write_json(out, {"rates": [asdict(rate) for rate in rates]})
    exit_unless_held(claims)


def _cases(processes: list[str]) -> "list[Case]":
    from stormsail.bench.promotions import YEAR, Case

    cases = []
    for process in processes:
        for years in (1, 3, 5):
            cases += [
                Case(process, sharpe, years * YEAR) for sharpe in (0.0, 0.5, 1.0, 2.0, 3.0, None)
            ]
        cases += [Case(process, 0.0, 3 * YEAR, trials) for trials in (10, 100, 1_000)]
        cases.append(Case(process, None, 5 * YEAR, 100))
    return cases
