"""`stormsail bench continual` and `stormsail bench shrinkage`: do the optimizers do their work."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.optimizers.continual import Comparison, Plan
    from stormsail.bench.optimizers.continual import Row as ContinualRow
    from stormsail.bench.optimizers.shrinkage import Row

DRAWN = {
    "independent": "noise independent, elements of G differ",
    "equal elements": "noise independent, elements of G equal",
    "opposite": "noise opposite, elements of G differ",
}
"""Cases of the chart, and what it calls them."""

Out = Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")]
Chart = Annotated[Path | None, typer.Option(help="Also draw them as SVG.")]
Quick = Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes; no evidence.")]


def continual(
    quick: Quick = False,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds; 0 is 10, or 2 if quick.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 2,
    out: Out = None,
    chart: Chart = None,
) -> None:
    """Learn many contradicting tasks in sequence, with every optimizer, with and without VGS."""
    from dataclasses import replace

    from rich.console import Console

    from stormsail.bench.optimizers import continual as bench

    _check_folders(out, chart)
    console = Console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    if seeds:
        plan = replace(plan, seeds=seeds)
    with bench.runner(workers) as runs:
        result = bench.compare(plan, runs, say=console.print)
    _print_continual(console, result, plan)
    if out is not None:
        out.write_text(json.dumps({"plan": asdict(plan), **asdict(result)}))
    if chart is not None:
        chart.write_text(_continual_chart(result, plan))


def shrinkage(
    quick: Quick = False,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds; 0 is 10, or 2 if quick.")] = 0,
    out: Out = None,
    chart: Chart = None,
) -> None:
    """Compare the factors of each statistic of VGS with the best ones, which are known here."""
    from dataclasses import replace

    from rich.console import Console

    from stormsail.bench.optimizers import shrinkage as bench

    _check_folders(out, chart)
    console = Console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    if seeds:
        plan = replace(plan, seeds=seeds)
    rows = bench.rows(plan)
    _print_shrinkage(console, rows)
    if out is not None:
        lines = [asdict(line) for line in bench.summary(rows)]
        out.write_text(json.dumps({"rows": [asdict(row) for row in rows], "summary": lines}))
    if chart is not None:
        chart.write_text(_shrinkage_chart(rows))


def _check_folders(*files: Path | None) -> None:
    """Refuse before the minutes of work, not after them."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            message = f"the folder of `{file.name}` must exist; found no {file.parent}. Make it."
            raise typer.BadParameter(message)


def _print_continual(console: "Console", result: "Comparison", plan: "Plan") -> None:
    from rich.table import Table

    from stormsail.bench.optimizers.continual_problem import KINDS

    for kind in KINDS:
        title = f"{kind}-permuted, {plan.sizes.tasks} tasks, {plan.seeds} seeds, ± standard error"
        heads = ("method", "rate", "knob", "accuracy", "first 10", "last 10", "dead units")
        table = Table(*heads, title=title)
        for row in result.rows:
            if row.kind == kind:
                table.add_row(*_continual_cells(row))
        console.print(table)
    table = Table("problem", "method", "less", "accuracy", title="on the same seeds")
    for one in result.differences:
        table.add_row(one.kind, one.variant, one.other, str(one.accuracy))
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


def _print_shrinkage(console: "Console", rows: "list[Row]") -> None:
    from rich.table import Table

    from stormsail.bench.optimizers.shrinkage import identities, summary

    names = list(dict.fromkeys(row.statistic for row in rows))
    table = Table("case", "NSR", "n", "best", *names, title="factor, mean over seeds")
    found = {(row.case, row.ratio, row.size, row.statistic): row for row in rows}
    for case, ratio, size in dict.fromkeys((row.case, row.ratio, row.size) for row in rows):
        own = [found[case, ratio, size, name] for name in names]
        factors = [f"{row.factor.mean:.4f}" for row in own]
        table.add_row(case, f"{ratio:g}", str(size), f"{own[0].best_factor:.4f}", *factors)
    console.print(table)
    table = Table("case", "statistic", "|c - c*|", "largest", "error above the best")
    for line in sorted(summary(rows), key=lambda one: one.case):
        numbers = (line.distance, line.worst, line.excess)
        table.add_row(line.case, line.statistic, *(f"{number:.3f}" for number in numbers))
    console.print(table)
    heads = ("NSR", "n", "variance by `total`", "over time", "of G over elements", "their sum")
    table = Table(*heads, title="law of total variance, independent noise")
    for both in identities(rows):
        numbers = (both.total, both.over_time, both.over_elements)
        cells = [f"{number:.4f}" for number in (*numbers, sum(numbers[1:]))]
        table.add_row(f"{both.ratio:g}", str(both.size), *cells)
    console.print(table)


def _shrinkage_chart(rows: "list[Row]") -> str:
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
