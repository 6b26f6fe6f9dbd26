"""`stormsail bench learn`, `markets`, `train` and `drift`: how well and how fast PPO learns."""

import itertools
import math
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.bench.output import (
    CLAIM_FAILED,
    Device,
    Jobs,
    Out,
    Quick,
    Threads,
    bench_console,
    check_folders,
    exit_unless_held,
    print_verdicts,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from stormsail.bench.learner.bounds import Ceilings
    from stormsail.bench.learner.drift import Plan as DriftPlan
    from stormsail.bench.learner.drift import Row as DriftRow
    from stormsail.bench.learner.learn import Best
    from stormsail.bench.learner.learn import Row as LearnRow
    from stormsail.bench.learner.learn_pairs import Gain
    from stormsail.bench.learner.learn_rows import RowFile
    from stormsail.bench.learner.markets import Outcome as MarketOutcome
    from stormsail.bench.learner.train import Row as SpeedRow
    from stormsail.bench.learner.twins import Held
    from stormsail.cli.tables import Table

DRIFT_LABELS = {
    "mean_drift_first": "shift of means in rollout 2, deviations",
    "mean_drift_last": "the same, last quarter of updates",
    "std_drift_first": "relative change of deviations in rollout 2",
    "std_drift_last": "the same, last quarter",
    "norm_before": "norm of h before resets, last quarter",
    "norm_after": "after resets",
    "score": "evaluation score at the end",
}


def learn(
    tasks: Annotated[
        str | None, typer.Option(help="Names with commas, or TOML files; default: all references.")
    ] = None,
    bare: Annotated[
        str | None,
        typer.Option(help="Tasks with default settings and their steps: gym:CartPole-v1=100000,…"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each task.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    jobs: Jobs = 2,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each policy.")] = 128,
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
    change: Annotated[
        str | None,
        typer.Option(help="path=value: train bare tasks with and without it, and compare pairs."),
    ] = None,
    configs: Annotated[Path, typer.Option(help="Folder of the shipped files.")] = Path("configs"),
    kept: Annotated[
        Path | None,
        typer.Option(
            "--rows",
            help="File of finished runs, a line each: what it holds is judged and not trained "
            "again, and every new run is added when it is done.",
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Learn reference tasks from their shipped settings and hold the scores to their bars."""
    from stormsail.bench.learner import learn as bench
    from stormsail.bench.learner.learn_pairs import gains, paired_lines

    check_folders(out, kept)
    console = bench_console()
    overrides = settings or []
    if change is not None:
        lines = paired_lines(bench.bare_tasks(bare or ""), change, overrides=overrides)
    elif ablation:
        lines = bench.ablation_lines(bench.rates(rates), configs=configs, overrides=overrides)
    else:
        beside = peers and not _peers_missing(console)
        lines = []
        if bare is not None:
            lines += bench.bare_lines(bench.bare_tasks(bare), overrides=overrides, peers=beside)
        if bare is None or tasks is not None:
            chosen = bench.names(tasks)
            lines += bench.reference_lines(
                chosen, configs=configs, overrides=overrides, peers=beside
            )
    numbers = range(first_seed, first_seed + seeds)
    with _kept_rows(console, kept) as file:
        rows = bench.measure(
            lines,
            numbers,
            workers=jobs,
            episodes=episodes,
            kept=file,
            say=lambda words: console.print(words, highlight=False),
        )
    console.print(_learn_table(rows, title=f"{seeds} seeds, {episodes} episodes of each agent"))
    if ablation:
        console.print(_best_table(bench.best(lines, rows)))
    for row in rows:
        for reason in row.reasons:
            console.print(f"{row.name}: {reason}", highlight=False)
    if change is not None:
        worth = gains(rows, change)
        console.print(_gain_table(worth))
        write_json(out, [_without_nan(part.as_dict()) for part in worth])
        return
    write_json(out, [_without_nan(asdict(row)) for row in rows])
    if any(row.passed is False and row.learner == bench.OURS for row in rows):
        raise typer.Exit(CLAIM_FAILED)


def _peers_missing(console: "Console") -> bool:
    """Return whether a library of the peers is not installed, and say so."""
    from stormsail.bench.learner.learn_peers import missing

    absent = missing()
    if absent:
        console.print(f"not installed, so there are no peers: {', '.join(absent)}")
    return bool(absent)


@contextmanager
def _kept_rows(console: "Console", path: Path | None) -> "Iterator[RowFile | None]":
    """Open the file of finished runs, and say what it holds."""
    from stormsail import __version__
    from stormsail.bench.learner.learn_rows import RowFile

    if path is None:
        yield None
        return
    with RowFile.open(path) as file:
        versions = {row["version"] for row in file.rows.values()} - {__version__}
        by = f", some by version {', '.join(sorted(versions))}" if versions else ""
        console.print(f"{path} holds {len(file.rows)} finished runs{by}", highlight=False)
        yield file


def _learn_table(rows: "list[LearnRow]", *, title: str) -> "Table":
    from stormsail.cli.tables import Table

    varied = any(row.variant for row in rows)
    heads = ("task", "learner", "steps", "mean", "median", "min", "bar", "", "sampled", "steps/s")
    table = Table(*heads, keys=2, title=title)
    for row in rows:
        table.add_row(
            row.name,
            row.variant if varied else row.learner,
            f"{row.steps:,}",
            *(f"{value:,.4g}" for value in (row.mean, row.median, row.least)),
            row.bar,
            {True: "pass", False: "FAIL", None: ""}[row.passed],
            f"{row.policies.count('sampled')} of {len(row.policies)}",
            f"{row.steps_per_second:,.0f}",
        )
    return table


def _gain_table(gains: "list[Gain]") -> "Table":
    from stormsail.cli.tables import Table

    heads = ("task", "before", "after", "gain", "95 % interval", "p of no loss")
    table = Table(*heads, title=f"{gains[0].change}, the same seeds" if gains else None)
    for part in gains:
        table.add_row(
            part.name,
            f"{part.before:.4g}",
            f"{part.after:.4g}",
            f"{part.gain:+.4g}",
            f"{part.low:+.4g} to {part.high:+.4g}",
            f"{part.p_worse:.3f}",
        )
    return table


def _best_table(variants: "list[Best]") -> "Table":
    from stormsail.cli.tables import Table

    heads = ("task", "variant", "best rate", "mean", "less the first, same seeds")
    table = Table(*heads, keys=2, title="each variant at its best rate, ± standard error")
    for best in variants:
        table.add_row(
            best.name,
            best.variant,
            f"{best.rate:g}",
            f"{best.score.mean:.4g} ± {best.score.standard_error:.2g}",
            f"{best.gain.mean:+.4g} ± {best.gain.standard_error:.2g}",
        )
    return table


def _without_nan(value: object) -> object:
    """Return a value as JSON can hold it, which has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def markets(
    worlds: Annotated[
        str, typer.Option(help="Which, with commas: oracle,ar1,noise,noise-with-fees.")
    ] = "oracle,ar1,noise,noise-with-fees",
    seeds: Annotated[int, typer.Option(min=1, help="Agents of each, each in its own world.")] = 5,
    jobs: Jobs = 1,
    configs: Annotated[Path, typer.Option(help="Folder of the configurations.")] = Path(
        "configs/markets"
    ),
    out: Out = None,
) -> None:
    """Learn in markets with a known answer; compare with the best policy, out of sample."""
    from rich.console import Console

    from stormsail.bench.learner import markets as bench

    check_folders(out)
    console = Console()
    names = [name.strip() for name in worlds.split(",") if name.strip()]
    planned = bench.load(configs, names, seeds=seeds)
    console.print(f"{len(planned)} agents, {jobs} at a time")
    outcomes = bench.run_all(planned, workers=jobs, say=partial(_print_outcome, console))
    verdicts = bench.verdicts(outcomes)
    _print_markets(console, outcomes)
    print_verdicts(console, verdicts)
    figures = {
        "outcomes": [_market_figures(outcome) for outcome in outcomes],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    write_json(out, figures)
    exit_unless_held(verdicts)


def _print_outcome(console: "Console", outcome: "MarketOutcome") -> None:
    growth = 1e4 * outcome.agent.log_growth
    console.print(
        f"{outcome.market}, seed {outcome.seed}: {growth:.2f} basis points a bar after "
        f"{outcome.steps} steps in {outcome.seconds:.0f} s",
        soft_wrap=True,
    )


def _market_figures(outcome: "MarketOutcome") -> dict[str, object]:
    shares = {
        "share": None if outcome.informed is None else outcome.share,
        "clairvoyant_share": outcome.clairvoyant_share,
        "turnover_share": outcome.turnover_share,
    }
    return {**asdict(outcome), **shares}


def _print_markets(console: "Console", outcomes: "list[MarketOutcome]") -> None:
    from stormsail.cli.tables import Table

    heads = ("market", "seed", "agent", "best")
    title = "log growth, basis points a bar, out of sample"
    growth = Table(*heads, "share", "hindsight", "share", keys=2, title=title)
    turnover = Table(*heads, "chance", "share", keys=2, title="turnover a bar, in units of equity")
    for outcome in outcomes:
        best = outcome.informed
        growth.add_row(
            outcome.market,
            str(outcome.seed),
            f"{1e4 * outcome.agent.log_growth:.2f}",
            "0" if best is None else f"{1e4 * best.log_growth:.2f}",
            "" if best is None else f"{outcome.share:.1%}",
            f"{1e4 * outcome.clairvoyant.log_growth:.2f}",
            f"{outcome.clairvoyant_share:.1%}",
        )
        turnover.add_row(
            outcome.market,
            str(outcome.seed),
            f"{outcome.agent.turnover:.4f}",
            "0" if best is None else f"{best.turnover:.4f}",
            f"{outcome.chance.turnover:.4f}",
            f"{outcome.turnover_share:.2%}",
        )
    console.print(growth)
    console.print(turnover)
    worst = max(outcome.ledger_difference for outcome in outcomes)
    console.print(f"dynamic programming and simulator differ by at most {worst:.1e} an episode")


def train(
    task: Annotated[str, typer.Option(help="cartpole or market, or both.")] = "cartpole,market",
    lstm: Annotated[str, typer.Option(help="Widths of the LSTM.")] = "64,256",
    environments: Annotated[
        str | None, typer.Option(help="B, side by side, several with commas; default: by task.")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="T, rows of a rollout; 0: by task.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a rollout.")] = 4,
    minibatches: Annotated[int, typer.Option(min=1, help="Of one epoch.")] = 4,
    updates: Annotated[int, typer.Option(min=1, help="Of each way in each round.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="In which all ways take turns.")] = 5,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Also run other learners.")
    ] = True,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="path=value for ours; may come again.")
    ] = None,
    jax_half: Annotated[
        bool | None,
        typer.Option("--jax-bf16/--jax-float32", help="Products of JAX; default: bf16 on a GPU."),
    ] = None,
    device: Device = "cpu",
    threads: Threads = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, tasks and actions.")] = 0,
    out: Out = None,
) -> None:
    """Time whole updates beside sb3-contrib's RecurrentPPO and JAX; say what bounds them."""
    import torch

    from stormsail.bench import device as devices
    from stormsail.bench.learner import bounds, twins
    from stormsail.bench.learner import train as bench
    from stormsail.bench.options import whole_numbers

    check_folders(out)
    devices.check_device(device)
    tasks = bench.chosen_tasks(task)
    widths = whole_numbers(lstm, option="lstm", example="64,256")
    if threads:
        torch.set_num_threads(threads)
    half = device != "cpu" if jax_half is None else jax_half
    console = bench_console()
    console.print(
        f"{devices.device_name(device)}, {epochs} epochs of {minibatches} minibatches, "
        f"{rounds} rounds of {updates} updates; ratios are to the fastest peer of the same sizes",
        soft_wrap=True,
        highlight=False,
    )
    top = bounds.ceilings(device)
    rows: list[SpeedRow] = []
    skipped: dict[str, str] = {}
    for name in tasks:
        usual = bench.usual_sizes(name, device)
        batches = (
            (usual.environments,)
            if environments is None
            else whole_numbers(environments, option="environments", example="16,64")
        )
        of_task: list[SpeedRow] = []
        for width, batch in itertools.product(widths, batches):
            comparison = bench.compare(
                width,
                task=name,
                sizes=bench.Sizes(batch, steps or usual.steps, epochs, minibatches),
                updates=updates,
                rounds=rounds,
                device=device,
                seed=seed,
                settings=settings or (),
                half=half,
                peers=peers,
            )
            of_task += comparison.rows
            skipped |= {f"{name}: {way}": reason for way, reason in comparison.skipped.items()}
        for table in _train_tables(of_task, top, title=f"{name}, {steps or usual.steps} rows"):
            console.print(table)
        rows += of_task
    for way, reason in skipped.items():
        console.print(f"{way}: {reason}", soft_wrap=True, highlight=False)
    held = [twins.measure(each, device=device) for each in twins.guards(device)]
    if held:
        console.print(_guard_table(held))
    ratios = zip(rows, bench.ratios(rows), bench.ratios(rows, processor=True), strict=True)
    figures = [
        {**row.document(), "ratio": ratio, "processor_ratio": processor}
        for row, ratio, processor in ratios
    ]
    write_json(
        out,
        {
            "rows": figures,
            "ceilings": asdict(top),
            "skipped": skipped,
            "guards": [{**asdict(guard), "holds": guard.holds} for guard in held],
        },
    )
    if not all(guard.holds for guard in held):
        raise typer.Exit(CLAIM_FAILED)


def _train_tables(rows: "list[SpeedRow]", top: "Ceilings", *, title: str) -> "Iterator[Table]":
    """Yield three tables: speed, where an update goes, and what bounds its phases."""
    from stormsail.bench.learner.train import PARTS, ratios
    from stormsail.cli.tables import Table

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    keys = ("LSTM", "B", "way")
    heads = (*keys, "steps/s", "slowest to fastest", "ratio", "ratio, CPU time")
    speed = Table(*heads, keys=3, title=title)
    for row, ratio, processor in zip(rows, ratios(rows), ratios(rows, processor=True), strict=True):
        speed.add_row(
            str(row.width),
            str(row.environments),
            row.way,
            f"{row.rate:,.0f}",
            f"{min(row.rates):,.0f} to {max(row.rates):,.0f}",
            number(ratio, ".2f"),
            number(processor, ".2f"),
        )
    yield speed
    parts = Table(
        *keys,
        *(f"{part} ms" for part in PARTS),
        "upkeep",
        "calls",
        "MiB",
        keys=3,
        title="one update; upkeep: optimizer, alarms and metrics",
    )
    for row in rows:
        parts.add_row(
            str(row.width),
            str(row.environments),
            row.way,
            *(f"{row.milliseconds[part]:.1f}" if row.milliseconds else "" for part in PARTS),
            number(row.upkeep_share, ".1%"),
            "" if row.calls is None else f"{row.calls.launches:,}",
            number(row.peak_mib, ",.0f"),
        )
    yield parts
    heads = ("phase", "GFLOP", "GB", "GFLOP/s", "of matmul", "GB/s", "of copy")
    bound = Table(
        *keys,
        *heads,
        keys=4,
        title=f"bounds; here matmul does {top.operations / 1e9:,.0f} GFLOP/s, a copy "
        f"{top.bytes / 1e9:,.0f} GB/s",
    )
    for row in (row for row in rows if "Gymnasium" not in row.way):  # theirs is the same work
        for phase, needed in row.work.items():
            rate = row.achieved(phase)
            bound.add_row(
                str(row.width),
                str(row.environments),
                row.way,
                phase,
                f"{needed.operations / 1e9:,.2f}",
                f"{needed.bytes / 1e9:,.3f}",
                f"{rate.operations / 1e9:,.1f}",
                f"{rate.operations / top.operations:.1%}",
                f"{rate.bytes / 1e9:,.2f}",
                f"{rate.bytes / top.bytes:.1%}",
            )
    yield bound


def _guard_table(held: "list[Held]") -> "Table":
    from stormsail.cli.tables import Table

    table = Table("guard", "time of its plain twin", "at most", "holds")
    for guard in held:
        table.add_row(
            guard.name, f"{guard.ratio:.2f}", f"{guard.bound:.2f}", "yes" if guard.holds else "no"
        )
    return table


def drift(
    seeds: Annotated[int, typer.Option(min=0, help="Seeds; 0 is 5, or 2 if quick.")] = 0,
    updates: Annotated[int, typer.Option(min=0, help="Updates; 0 is 49, or 4 if quick.")] = 0,
    jobs: Jobs = 1,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Learn a market with observation statistics frozen during rollouts, and with moving ones."""
    from rich.console import Console

    from stormsail.bench.learner import drift as bench

    check_folders(out)
    if updates == 1:
        raise typer.BadParameter("`--updates` must be 2 or more; found 1. Drift needs a before.")
    console = Console()
    plan = bench.Plan.quick() if quick else bench.Plan()
    plan = replace(plan, seeds=seeds or plan.seeds, updates=updates or plan.updates)
    outcomes = bench.compare(plan, jobs=jobs, say=console.print)
    rows = bench.rows(outcomes)
    console.print(_drift_table(rows, plan))
    figures = {"plan": asdict(plan), "rows": [asdict(row) for row in rows]}
    write_json(out, {**figures, "outcomes": [asdict(outcome) for outcome in outcomes]})


def _drift_table(rows: "list[DriftRow]", plan: "DriftPlan") -> "Table":
    from stormsail.cli.tables import Table

    title = f"{plan.updates} updates, {plan.seeds} seeds, mean ± standard deviation over seeds"
    table = Table("", *(row.name for row in rows), title=title)
    for name, label in DRIFT_LABELS.items():
        table.add_row(label, *(str(getattr(row, name)) for row in rows))
    return table
