"""`stormsail bench markets`: markets whose best answer is known, and how near the learner comes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stormsail.bench.learner.markets import Outcome, Verdict

MISSED = 1
"""Exit status where a market's claim does not hold."""


def markets(
    worlds: Annotated[
        str, typer.Option(help="Which, with commas: oracle,ar1,noise,noise-with-fees.")
    ] = "oracle,ar1,noise,noise-with-fees",
    seeds: Annotated[int, typer.Option(min=1, help="Agents of each, each in its own world.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    configs: Annotated[Path, typer.Option(help="Folder of the configurations.")] = Path(
        "configs/markets"
    ),
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Learn in markets with a known answer; compare with the best policy, out of sample."""
    from rich.console import Console

    from stormsail.bench.learner import markets as bench

    if out is not None and not out.parent.is_dir():
        message = f"the folder of `--out` must exist; found no {out.parent}. Make it first."
        raise typer.BadParameter(message)
    console = Console()
    asked = [name.strip() for name in worlds.split(",") if name.strip()]
    planned = bench.load(configs, asked, seeds=seeds)
    console.print(f"{len(planned)} agents, {jobs} at a time")
    outcomes = bench.run_all(planned, workers=jobs, say=lambda one: _say(console, one))
    verdicts = bench.verdicts(outcomes)
    _print(console, outcomes, verdicts)
    if out is not None:
        figures = {
            "outcomes": [_figures(outcome) for outcome in outcomes],
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        out.write_text(json.dumps(figures))
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(MISSED)


def _say(console: "Console", outcome: "Outcome") -> None:
    earned = 1e4 * outcome.agent.log_growth
    console.print(
        f"{outcome.market}, seed {outcome.seed}: {earned:.2f} basis points a bar after "
        f"{outcome.steps} steps in {outcome.seconds:.0f} s",
        soft_wrap=True,
    )


def _figures(outcome: "Outcome") -> dict[str, object]:
    shares = {
        "share": None if outcome.informed is None else outcome.share,
        "clairvoyant_share": outcome.clairvoyant_share,
        "turnover_share": outcome.turnover_share,
    }
    return {**asdict(outcome), **shares}


def _print(console: "Console", outcomes: "list[Outcome]", verdicts: "list[Verdict]") -> None:
    from rich.table import Table

    heads = ("market", "seed", "agent", "best")
    title = "log growth, basis points a bar, out of sample"
    growth = Table(*heads, "share", "hindsight", "share", title=title)
    turnover = Table(*heads, "chance", "share", title="turnover a bar, in units of equity")
    for one in outcomes:
        best = one.informed
        growth.add_row(
            one.market,
            str(one.seed),
            f"{1e4 * one.agent.log_growth:.2f}",
            "0" if best is None else f"{1e4 * best.log_growth:.2f}",
            "" if best is None else f"{one.share:.1%}",
            f"{1e4 * one.clairvoyant.log_growth:.2f}",
            f"{one.clairvoyant_share:.1%}",
        )
        turnover.add_row(
            one.market,
            str(one.seed),
            f"{one.agent.turnover:.4f}",
            "0" if best is None else f"{best.turnover:.4f}",
            f"{one.chance.turnover:.4f}",
            f"{one.turnover_share:.2%}",
        )
    console.print(growth)
    console.print(turnover)
    worst = max(one.ledger_difference for one in outcomes)
    console.print(f"dynamic programme and simulator differ by at most {worst:.1e} an episode")
    for verdict in verdicts:
        word = "holds" if verdict.passed else "FAILS"
        console.print(f"{verdict.market}: {verdict.claim}: {word}; {verdict.found}", soft_wrap=True)
