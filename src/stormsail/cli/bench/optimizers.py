"""`stormsail bench optim`, `continual` and `shrinkage`: speed and learning of the optimizers."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    Chart,
    Device,
    Jobs,
    Out,
    Quick,
    Seconds,
    Threads,
    check_folders,
    write_json,
)
from stormsail.cli.output_files import write_checked

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.optimizers.continual import Comparison, Plan
    from stormsail.bench.optimizers.continual import Row as ContinualRow
    from stormsail.bench.optimizers.shrinkage import Row as ShrinkageRow

DRAWN = {
    "independent": "noise independent, elements of G differ",
    "equal elements": "noise independent, elements of G equal",
    "opposite": "noise opposite, elements of G differ",
}
"""Cases of the shrinkage chart, and their titles."""


def optim(
    device: Device = "cpu",
    threads: Threads = 2,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also measure the compiled pipeline.")
    ] = True,
    seconds: Seconds = 2.0,
    scale: Annotated[float, typer.Option(min=0.01, help="Of each side of each tensor.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of network and noise.")] = 0,
    out: Out = None,
) -> None:
    """Time a step of AdamW, UPGD and AdaptiveUPGD with the gradient scaler, 2 M parameters."""
    import torch
    from rich.console import Console

    from stormsail.bench import device as devices
    from stormsail.bench.optimizers import optim as bench
    from stormsail.cli.tables import Table

    check_folders(out)
    devices.check_device(device)
    if threads:
        torch.set_num_threads(threads)
    console = Console()
    if compiled and not devices.compiler_found():
        console.print("no C++ compiler is found: nothing is compiled")
        compiled = False
    rows = bench.step_times(
        device=device, compiled=compiled, seconds=seconds, seed=seed, scale=scale
    )
    title = f"one step, float32, {devices.device_name(device)}"
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
    write_json(out, [asdict(row) for row in rows])


def continual(
    quick: Quick = False,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds; 0 is 10, or 2 if quick.")] = 0,
    workers: Jobs = 2,
    out: Out = None,
    chart: Chart = None,
) -> None:
    """Learn many contradicting tasks in sequence, with every optimizer, with and without VGS."""
    from rich.console import Console

    from stormsail.bench.optimizers import continual as bench

    check_folders(out, chart)
    console = Console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    plan = replace(plan, seeds=seeds or plan.seeds)
    with bench.runner(workers) as runs:
        result = bench.compare(plan, runs, say=console.print)
    _print_continual(console, result, plan)
    write_json(out, {"plan": asdict(plan), **asdict(result)})
    if chart is not None:
        write_checked(chart, _continual_chart(result, plan))


def shrinkage(
    quick: Quick = False,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds; 0 is 10, or 2 if quick.")] = 0,
    out: Out = None,
    chart: Chart = None,
) -> None:
    """Compare the factors of each statistic of VGS with the best ones, which are known here."""
    from rich.console import Console

    from stormsail.bench.optimizers import shrinkage as bench

    check_folders(out, chart)
    console = Console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    plan = replace(plan, seeds=seeds or plan.seeds)
    rows = bench.rows(plan)
    _print_shrinkage(console, rows)
    lines = [asdict(line) for line in bench.summary(rows)]
    write_json(out, {"rows": [asdict(row) for row in rows], "summary": lines})
    if chart is not None:
        write_checked(chart, _shrinkage_chart(rows))


def _print_continual(console: "Console", result: "Comparison", plan: "Plan") -> None:
    from stormsail.bench.optimizers.continual_problem import KINDS
    from stormsail.cli.tables import Table

    for kind in KINDS:
        title = f"{kind}-permuted, {plan.sizes.tasks} tasks, {plan.seeds} seeds, ± standard error"
        heads = ("method", "rate", "knob", "accuracy", "first 10", "last 10", "dead units")
        table = Table(*heads, title=title)
        for row in result.rows:
            if row.kind == kind:
                table.add_row(*_continual_cells(row))
        console.print(table)
    table = Table("problem", "method", "less", "accuracy", keys=3, title="on the same seeds")
    for less in result.differences:
        table.add_row(less.kind, less.variant, less.other, str(less.accuracy))
    console.print(table)


def _continual_cells(row: "ContinualRow") -> list[str]:
    setting, method = row.choice.setting, row.variant.method
    knob = "" if setting.knob is None else f"{method.knob} {setting.knob:g}"
    rate = f"{setting.rate:g}{' (edge)' if row.choice.at_edge else ''}"
    figures = (row.accuracy, row.first, row.late, row.dead)
    return [row.variant.name, rate, knob, *map(str, figures)]


def _continual_chart(result: "Comparison", plan: "Plan") -> str:
    from stormsail.bench.chart import COLOURS, Line, Panel, draw, smoothed
    from stormsail.bench.optimizers.continual_problem import KINDS

    names = [method.name for method in plan.methods]
    panels = []
    for kind in KINDS:
        lines = []
        for row in result.rows:
            if row.kind == kind:
                curve = enumerate(smoothed(row.curve, 5), start=1)
                fresh = row.variant.fresh
                colour = COLOURS[-1] if fresh else COLOURS[names.index(row.variant.method.name)]
                dashed = row.variant.scaled or fresh
                lines.append(Line(row.variant.name, tuple(curve), colour, dashed))
        tasks = plan.sizes.tasks
        panels.append(
            Panel(
                title=f"{kind}-permuted",
                horizontal="task",
                vertical="online accuracy",
                lines=tuple(lines),
                vertical_range=(0.0, 1.0),
                horizontal_ticks=tuple(tasks * part / 4 for part in range(5)),
                vertical_ticks=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            )
        )
    note = f"mean of {plan.seeds} seeds, each point the mean of the last 5 tasks"
    return draw(panels, note=note)


def _print_shrinkage(console: "Console", rows: "list[ShrinkageRow]") -> None:
    from stormsail.bench.optimizers.shrinkage import identities, summary
    from stormsail.cli.tables import Table

    names = list(dict.fromkeys(row.statistic for row in rows))
    table = Table("case", "NSR", "n", "best", *names, keys=3, title="factor, mean over seeds")
    by_key = {(row.case, row.ratio, row.size, row.statistic): row for row in rows}
    for case, ratio, size in dict.fromkeys((row.case, row.ratio, row.size) for row in rows):
        own = [by_key[case, ratio, size, name] for name in names]
        factors = [f"{row.factor.mean:.4f}" for row in own]
        table.add_row(case, f"{ratio:g}", str(size), f"{own[0].best_factor:.4f}", *factors)
    console.print(table)
    table = Table("case", "statistic", "|c - c*|", "largest", "error above the best", keys=2)
    for line in sorted(summary(rows), key=lambda summary: summary.case):
        numbers = (line.distance, line.worst, line.excess)
        table.add_row(line.case, line.statistic, *(f"{number:.3f}" for number in numbers))
    console.print(table)
    heads = ("NSR", "n", "variance by `total`", "over time", "of G over elements", "their sum")
    table = Table(*heads, keys=2, title="law of total variance, independent noise")
    for both in identities(rows):
        numbers = (both.total, both.over_time, both.over_elements)
        cells = [f"{number:.4f}" for number in (*numbers, sum(numbers[1:]))]
        table.add_row(f"{both.ratio:g}", str(both.size), *cells)
    console.print(table)


def _shrinkage_chart(rows: "list[ShrinkageRow]") -> str:
    from stormsail.bench.chart import COLOURS, Line, Panel, draw

    names = list(dict.fromkeys(row.statistic for row in rows))
    largest = max(row.size for row in rows)
    panels = []
    for case in dict.fromkeys(row.case for row in rows if row.case in DRAWN):
        own = [r for r in rows if r.case == case and r.size == largest and r.ratio > 0]
        ratios = tuple(sorted({row.ratio for row in own}))
        best = tuple((ratio, 1.0 / (1.0 + ratio)) for ratio in ratios)
        lines = []
        for name, colour in zip(names, COLOURS, strict=False):
            points = tuple((row.ratio, row.factor.mean) for row in own if row.statistic == name)
            lines.append(Line(name, points, colour))
        lines.append(Line("1 / (1 + NSR)", best, COLOURS[-1], dashed=True))
        panels.append(
            Panel(
                title=DRAWN[case],
                horizontal="noise-to-signal ratio",
                vertical="factor",
                lines=tuple(lines),
                vertical_range=(1e-3, 1.0),
                horizontal_ticks=ratios if len(ratios) > 1 else (0.1, 10.0),
                vertical_ticks=(0.001, 0.01, 0.1, 1.0),
                logarithmic=True,
            )
        )
    note = f"{largest} elements, mean over seeds; alpha = 1, no floor"
    return draw(panels, note=note)
