"""`stormsail bench limits`: agents under a limit on stored bars, judged on later ones."""

from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.cli.bench.output import (
    Chart,
    Jobs,
    Out,
    bench_console,
    check_folders,
    exit_unless_held,
    print_verdicts,
    write_json,
)
from stormsail.cli.output_files import write_checked

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.risk.limits import Job, Row
    from stormsail.bench.risk.limits_verdicts import Summary
    from stormsail.cli.tables import Table


def limits(
    store: Annotated[
        Path | None, typer.Option(help="Folder of the bars; without one `--rows` is judged again.")
    ] = None,
    symbols: Annotated[
        str | None, typer.Option(help="Such as ADA/USDT,BNB/USDT; default: all of the store.")
    ] = None,
    train_end: Annotated[
        str, typer.Option(help="First day that is judged by; earlier bars are trained on, UTC.")
    ] = "2024-01-01",
    horizon: Annotated[Literal["week", "day"], typer.Option(help="Of an episode.")] = "week",
    limit: Annotated[
        float | None, typer.Option(help="On CVaR at 5 %, log growth; default -0.08 or -0.03.")
    ] = None,
    policy: Annotated[
        Literal["drawn", "likeliest"], typer.Option(help="Actions that are judged.")
    ] = "drawn",
    seeds: Annotated[int, typer.Option(min=1, help="How many, two agents each.")] = 5,
    seed_base: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps that an agent learns for.")] = 600_000,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="path=value for both agents; repeatable.")
    ] = None,
    jobs: Jobs = 1,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="File of finished seeds, a line each: what it holds is judged and not trained "
            "again, and every new one is added when it is done."
        ),
    ] = None,
    out: Out = None,
    chart: Chart = None,
) -> None:
    """Train agents with a limit on their tail on stored bars; judge them on later ones."""
    from stormsail.bench.risk import limits_verdicts

    check_folders(rows, out, chart)
    console = bench_console()
    if store is None:
        measured = _stored(rows)
    else:
        from stormsail.api.looks import open_by_verb
        from stormsail.bench.risk.limits import HORIZONS, Job
        from stormsail.cli.times import utc_time

        names = tuple(name.strip() for name in symbols.split(",")) if symbols else ()
        planned = [
            Job(
                seed=seed,
                steps=steps,
                store=str(store),
                symbols=names,
                train_end=utc_time("--train-end", train_end),
                horizon=horizon,
                limit=HORIZONS[horizon].limit if limit is None else limit,
                changes=tuple(settings or ()),
                greedy=policy == "likeliest",
            )
            for seed in range(seed_base, seed_base + seeds)
        ]
        # no run of a workspace: the ledger is the one beside the runs that `train` would write
        open_by_verb(
            Path("runs") / "limits", planned[0].settings(is_limited=True), by="bench limits"
        )
        measured = _measured(console, planned, rows, processes=jobs)
    verdicts = []
    for key, own in limits_verdicts.groups(measured).items():
        console.print(_table(str(key), own[0], limits_verdicts.summaries(own)))
        verdicts += limits_verdicts.verdicts(own)
    print_verdicts(console, verdicts)
    figures = {
        "rows": [row.as_dict() for row in measured],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    if chart is not None:
        write_checked(chart, limits_verdicts.chart(measured))
    exit_unless_held(verdicts)


def _stored(rows: Path | None) -> "list[Row]":
    """Return the rows of a file alone."""
    from stormsail.bench.campaign import read_rows
    from stormsail.bench.risk.limits import stored_rows

    stored = [] if rows is None else stored_rows(rows, read_rows(rows))
    if not stored:
        message = "`--store` or a file of rows must be given; found neither. Name a store to train."
        raise typer.BadParameter(message)
    return stored


def _measured(
    console: "Console", planned: "list[Job]", rows: Path | None, *, processes: int
) -> "list[Row]":
    """Return the rows of jobs, those of a file without training."""
    from stormsail.bench.campaign import RowLog
    from stormsail.bench.risk.limits import run_all

    with nullcontext() if rows is None else RowLog.open(rows) as kept:
        held = 0 if kept is None else len(kept.lines)
        words = f"{len(planned)} seeds, {processes} at a time; {held} finished rows in the file"
        console.print(words, highlight=False)
        return run_all(planned, processes=processes, kept=kept, say=partial(_print_row, console))


def _print_row(console: "Console", row: "Row") -> None:
    from stormsail.bench.risk.limits import LIMIT

    own = row.result(LIMIT)
    console.print(
        f"seed {row.seed}: mean {own.mean:.4f}, CVaR {own.cvar:.4f} "
        f"({own.cvar_low:.4f} to {own.cvar_high:.4f}), "
        f"exposure {own.exposure:.3f}, turnover {own.turnover:.2f}, "
        f"multiplier {row.multiplier:.2f}; trained in {row.seconds:.0f} s",
        soft_wrap=True,
        highlight=False,
    )


def _table(title: str, row: "Row", lines: "list[Summary]") -> "Table":
    from stormsail.cli.tables import Table

    heads = ("", "mean", "CVaR of 5 %", "interval of one", "apart", "held", "traded", "in")
    caption = (
        f"log growth of a {row.horizon} from {row.train_end} to {row.judged_to}, "
        f"{len(row.symbols)} symbols, {row.episodes} episodes in {row.blocks} blocks of time, "
        f"{row.apart} of them apart; mean over seeds ± half of its 95 % interval. Apart: CVaR of "
        "episodes that do not overlap. Held: mean weight. Traded: turnover of an episode. In: "
        "share of bars with a position. Last: seeds that keep the limit by the estimate, "
        "proven, not proven broken, and that trade at all."
    )
    table = Table(*heads, "limit kept", title=title, caption=caption, pad_edge=False)
    for line in lines:
        counts = f"{line.kept}, {line.proven}, {line.not_broken}, {line.trading} of {line.seeds}"
        table.add_row(
            line.name,
            str(line.mean),
            str(line.cvar),
            f"{line.cvar_low:.3f} to {line.cvar_high:.3f}",
            f"{line.apart_cvar:.3f}",
            f"{line.exposure:.3f}",
            f"{line.turnover:.2f}",
            f"{line.invested:.0%}",
            counts,
        )
    return table
