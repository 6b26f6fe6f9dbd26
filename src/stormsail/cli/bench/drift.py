"""`stormsail bench drift`: statistics of observations that stay during a rollout, or do not."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stormsail.bench.learner.drift import Plan, Row

LABELS = {
    "mean_drift_first": "shift of means in rollout 2, deviations",
    "mean_drift_last": "the same, last quarter of updates",
    "std_drift_first": "relative change of deviations in rollout 2",
    "std_drift_last": "the same, last quarter",
    "norm_before": "norm of h before resets, last quarter",
    "norm_after": "after resets",
    "score": "validation score at the end",
}


def drift(
    seeds: Annotated[int, typer.Option(min=0, help="Seeds; 0 is 5, or 2 if quick.")] = 0,
    updates: Annotated[int, typer.Option(min=0, help="Updates; 0 is 49, or 4 if quick.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes; no evidence.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Learn a market with observation statistics frozen during rollouts, and with moving ones."""
    from dataclasses import replace

    from rich.console import Console

    from stormsail.bench.learner import drift as bench

    if out is not None and not out.parent.is_dir():
        message = f"the folder of `{out.name}` must exist; found no {out.parent}. Make it."
        raise typer.BadParameter(message)
    if updates == 1:
        raise typer.BadParameter("`--updates` must be 2 or more; found 1. Drift needs a before.")
    console = Console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    plan = replace(plan, seeds=seeds or plan.seeds, updates=updates or plan.updates)
    outcomes = bench.compare(plan, jobs=jobs, say=console.print)
    rows = bench.rows(outcomes)
    console.print(_table(rows, plan))
    if out is not None:
        figures = {"plan": asdict(plan), "rows": [asdict(row) for row in rows]}
        out.write_text(json.dumps({**figures, "outcomes": [asdict(one) for one in outcomes]}))


def _table(rows: "list[Row]", plan: "Plan") -> "Table":
    from rich.table import Table

    title = f"{plan.updates} updates, {plan.seeds} seeds, mean ± standard deviation over seeds"
    table = Table("", *(row.name for row in rows), title=title)
    for name, label in LABELS.items():
        table.add_row(label, *(str(getattr(row, name)) for row in rows))
    return table
