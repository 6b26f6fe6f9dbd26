"""`stormsail bench tails` and `frontier`: predicted tails, and what a limit on the tail costs."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    Chart,
    FirstSeed,
    Jobs,
    Out,
    Rows,
    Settings,
    bench_console,
    check_folders,
    exit_unless_held,
    finished_runs,
    print_verdicts,
    read_rows,
    write_json,
)
from stormsail.cli.output_files import checked_output, write_checked

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.risk.frontier import Row as AgentRow
    from stormsail.bench.risk.frontier_verdicts import Summary as FrontierSummary
    from stormsail.bench.risk.tails import Tail
    from stormsail.bench.risk.tails_verdicts import Summary as TailSummary
    from stormsail.cli.tables import Table


def tails(
    worlds: Annotated[
        str,
        typer.Option(
            help="Of chain, chain-skewed, garch-jump, ruin, two-modes, heavy-scales, "
            "garch-states and clustered, which is held out."
        ),
    ] = "chain,chain-skewed,garch-jump,ruin,two-modes,heavy-scales,garch-states",
    cases: Annotated[str, typer.Option(help="all, default, pictured, or none.")] = "all",
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="A further case: path=value settings with semicolons, and its name with a colon "
            "before them if it is to have one; may come again.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case.")] = 5,
    first_seed: FirstSeed = 0,
    jobs: Jobs = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of hours; no evidence.")
    ] = False,
    rows: Rows = None,
    out: Out = None,
    chart: Annotated[
        Path | None, typer.Option(help="Folder: also draw tails.svg and budget.svg there.")
    ] = None,
) -> None:
    """Train critics on worlds whose tails are known, and compare; exit 1 if a claim fails."""
    from stormsail.bench.risk import tails as bench
    from stormsail.bench.risk import tails_chart, tails_verdicts

    chosen = bench.named(worlds, cases, more or ())
    check_folders(out)
    _check_chart(chart, chosen[0])
    console = bench_console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    with finished_runs(rows) as log:
        if rows and log is None:
            measured = read_rows(rows, bench.Tail)
        else:
            planned = bench.jobs(*chosen, plan, range(first_seed, first_seed + seeds))
            measured = bench.measure_all(
                planned, processes=jobs, log=log, say=partial(_print_tails, console)
            )
    if chart is not None and not any(row.world == "chain" and row.values for row in measured):
        message = "`--rows` must hold the values of a chain for charts; found none. Measure it."
        raise typer.BadParameter(message)
    lines = tails_verdicts.summaries(measured)
    verdicts = [] if quick else tails_verdicts.verdicts(lines)
    _print_tables(console, lines, title=f"CVaR at 5 %, gamma {plan.gamma:g}")
    print_verdicts(console, verdicts)
    write_json(out, {"rows": [row._asdict() for row in measured]})
    if chart is not None:
        write_checked(chart / "tails.svg", tails_chart.distributions(measured))
        write_checked(chart / "budget.svg", tails_chart.budget())
    exit_unless_held(verdicts)


def _print_tails(console: "Console", rows: "list[Tail]") -> None:
    worst = max(rows, key=lambda row: abs(row.error))
    where = f" in {worst.state}" if worst.state else ""
    console.print(
        f"{worst.world}, {worst.case}, seed {worst.seed}: CVaR off by at most "
        f"{100.0 * worst.error:+.1f} %{where}",
        soft_wrap=True,
        highlight=False,
    )


def _print_tables(console: "Console", lines: "list[TailSummary]", *, title: str) -> None:
    """Print worlds with one distribution, then those with states, then their worst states."""
    from stormsail.bench.risk import tails_verdicts

    over_seeds = "mean ± standard deviation over seeds"
    whole = [line for line in lines if not line.state]
    states = [line for line in lines if line.state]
    if whole:
        console.print(_tails_table(f"{title}, {over_seeds}", whole))
    if states:
        console.print(_states_table(f"{title}, state by state, {over_seeds}", states))
        worst = tails_verdicts.worst_states(states)
        console.print(_states_table(f"{title}, the worst state of each world and case", worst))


def _check_chart(chart: Path | None, worlds: tuple[str, ...]) -> None:
    """Refuse charts that could not be drawn, before the work."""
    if chart is not None and not chart.is_dir():
        message = f"the folder of the pictures must exist; found no {chart}. Make it."
        raise typer.BadParameter(message)
    if chart is not None:
        for name in ("tails.svg", "budget.svg"):
            checked_output(chart / name)
    if chart is not None and "chain" not in worlds:
        message = f"`--worlds` must name chain for pictures; found {','.join(worlds)}. Add it."
        raise typer.BadParameter(message)


def _tails_table(title: str, rows: "list[TailSummary]") -> "Table":
    from stormsail.cli.tables import Table

    headings = (
        "world",
        "case",
        "seeds",
        "coverage error",
        "CVaR error",
        "of it resolution",
        "spread",
    )
    table = Table(*headings, keys=2, title=title)
    for row in rows:
        table.add_row(
            row.world,
            row.case,
            str(len(row.tails)),
            f"{row.coverage} points",
            f"{row.error} %",
            f"{row.resolution:.1f} %",
            f"{row.spread}",
        )
    return table


def _states_table(title: str, rows: "list[TailSummary]") -> "Table":
    from stormsail.cli.tables import Table

    headings = ("world", "case", "state", "event", "CVaR", "true", "mean", "true", "error")
    table = Table(*headings, "of it resolution", "bound", "within", keys=3, title=title)
    for row in rows:
        table.add_row(
            row.world,
            row.case,
            row.state,
            f"{row.tails[0].event:.1%}",
            str(row.cvar),
            f"{row.tails[0].true:.3g}",
            str(row.mean),
            f"{row.tails[0].true_mean:.3g}",
            f"{row.error} %",
            f"{row.resolution:.1f} %",
            f"{row.bound:g} %",
            f"{row.within} of {len(row.tails)}",
        )
    return table


def frontier(
    seeds: Annotated[int, typer.Option(min=1, help="Agents of each kind.")] = 5,
    first_seed: FirstSeed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps that each learns for.")] = 1_500_000,
    episodes: Annotated[int, typer.Option(min=40, help="That each is evaluated by.")] = 2048,
    gammas: Annotated[str, typer.Option(help="Discounts, with commas.")] = "0.99,0.999",
    limits: Annotated[
        str, typer.Option(help="On the CVaR of an episode, in log growth, with commas.")
    ] = "-0.2,-0.1,-0.05",
    warned: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of crashes that a warning precedes.")
    ] = 0.8,
    jobs: Jobs = 1,
    kinds: Annotated[
        str, typer.Option(help="Of free, limit, slack, infeasible, alpha, penalty and rule.")
    ] = "free,limit,slack,infeasible,alpha,penalty,rule",
    settings: Settings = None,
    rows: Rows = None,
    out: Out = None,
    chart: Chart = None,
) -> None:
    """Train agents with and without a limit on their tail; compare them on bars they never saw."""
    from stormsail.bench.options import changes, numbers
    from stormsail.bench.risk import frontier as bench
    from stormsail.bench.risk import frontier_verdicts

    check_folders(out, chart)
    console = bench_console()
    plan = bench.Plan(
        limits=numbers(limits, option="limits", example="0.5,0.25"),
        gammas=numbers(gammas, option="gammas", example="0.5,0.25"),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        steps=steps,
        episodes=episodes,
        warned=warned,
        changes=tuple(changes(settings or ()).items()),
    )
    planned = bench.jobs(plan, [kind.strip() for kind in kinds.split(",")])
    with finished_runs(rows) as log:
        if rows and log is None:
            measured = read_rows(rows, bench.Row)
        else:
            console.print(f"{len(planned)} agents, {jobs} at a time")
            measured = bench.run_all(
                planned, processes=jobs, log=log, say=partial(_print_agent, console)
            )
    verdicts = frontier_verdicts.verdicts(measured)
    console.print(_frontier_table(frontier_verdicts.summaries(measured)))
    print_verdicts(console, verdicts)
    figures = {
        "plan": asdict(plan),
        "rows": [row._asdict() for row in measured],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    if chart is not None:
        write_checked(chart, frontier_verdicts.chart(measured))
    exit_unless_held(verdicts)


def _print_agent(console: "Console", row: "AgentRow") -> None:
    limit = "" if row.limit is None else f", limit {row.limit}"
    console.print(
        f"{row.kind}{limit}, gamma {row.gamma:g}, seed {row.seed}: mean {row.mean:.4f}, "
        f"CVaR {row.cvar:.4f} ± {row.cvar_error:.4f}, multiplier {row.multiplier:.2f}",
        soft_wrap=True,
        highlight=False,
    )


def _frontier_table(lines: "list[FrontierSummary]") -> "Table":
    from stormsail.cli.tables import Table

    heads = ("kind", "setting", "gamma", "mean", "CVaR of the worst 5 %", "exposure")
    title = "log growth of an episode on unseen bars, mean over seeds ± half of its 95 % interval"
    columns = ("held by interval", "kept by estimate", "proven kept")
    table = Table(*heads, "multiplier", "largest", *columns, keys=3, title=title)
    for line in lines:
        table.add_row(
            line.key.kind,
            line.key.setting,
            f"{line.key.gamma:g}",
            str(line.mean),
            str(line.cvar),
            f"{line.exposure:.3f}",
            f"{line.multiplier:.2f}",
            f"{line.largest_multiplier:.2f}",
            *(
                "" if count is None else f"{count} of {line.seeds}"
                for count in (line.held_by_interval, line.kept_by_estimate, line.proven_kept)
            ),
        )
    return table
