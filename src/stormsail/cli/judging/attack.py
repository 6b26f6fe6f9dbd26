"""`stormsail attack`: return and CVaR of a trained agent whose observations are forged."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stormsail.api.agent_folders import BEST, agent_folder
from stormsail.cli.completion import complete_config
from stormsail.cli.output import publish
from stormsail.cli.output_files import checked_output, write_checked
from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.start.files import config_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from stormsail.algorithms.config import TrainConfig
    from stormsail.bench.robust.attacks import Job
    from stormsail.core.files.documents import JsonValue
    from stormsail.evaluation.attack.curve import AttackRow, Point
    from stormsail.evaluation.stats.tail_intervals import Estimate
    from stormsail.modules.agent import Agent


_NUMBER = 4
"""Bytes of a number of an observation."""


def attack(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of an agent.")],
    attacks: Annotated[
        str, typer.Option(help="Names with commas, from the cheapest to the dearest.")
    ] = "random,mad,critic,pgd,learned",
    epsilons: Annotated[
        str, typer.Option(help="Radii with commas, in standard deviations of a column.")
    ] = "0.05,0.1,0.2",
    norm: Annotated[Literal["linf", "l2"], typer.Option(help="Of the ball.")] = "linf",
    features: Annotated[
        list[str] | None,
        typer.Option(help="Column to forge, or a pattern; may come again. Default: all it may."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="Of each attack and radius.")] = 256,
    alpha: Annotated[
        float, typer.Option(help="Share of worst episodes in CVaR, above 0 and at most 1.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Of starts and attacks.")] = 0,
    adversary_steps: Annotated[
        int, typer.Option(min=1, help="Steps that a learned adversary is trained for.")
    ] = 200_000,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings of the agent's training, where no run stands around it.",
            autocompletion=complete_config,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=4096, help="Processes of one thread each.")] = 1,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="File of finished attacks, a line each: what it holds is not run again, and every "
            "new one is added when it is done."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the results, which `report` takes.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(callback=checked_output, help="Also draw the curves as SVG.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Forge what a trained agent observes; show return and CVaR against the size of the forgery."""
    from rich.console import Console

    from stormsail.api.looks import open_by_verb
    from stormsail.bench.campaign import RowLog
    from stormsail.bench.options import numbers
    from stormsail.bench.resumed import run_missing
    from stormsail.bench.robust import attacks as bench
    from stormsail.core.memory import check_memory
    from stormsail.evaluation.attack.curve import AttackRow, curve
    from stormsail.evaluation.attack.files import attack_document

    _check_options(alpha, out, rows, chart)
    load_plugins(plugin)
    folder = agent_folder(run)
    agent, settings = _subject(folder, config)
    check_memory(
        _NUMBER * episodes * (agent.spec.columns + agent.initial_memory(1).numel()),
        what="an attack",
        found=f"`--episodes` {episodes:,}",
        remedy="Lower `--episodes`.",
    )
    plan = bench.Plan(
        episodes=episodes,
        seed=seed,
        norm=norm,
        features=tuple(features or ()),
        adversary_steps=adversary_steps,
    )
    names = [name.strip() for name in attacks.split(",")]
    radii = numbers(epsilons, option="epsilons", example="0.05,0.1,0.2")
    planned = bench.jobs(str(folder), _digest(folder), settings, names, radii, plan)
    columns = _columns(settings, plan.features)
    open_by_verb(folder, settings, by="attack")
    console = Console()
    with nullcontext() if rows is None else RowLog.open(rows) as log:
        done = run_missing(
            bench.run,
            planned,
            row=AttackRow,
            processes=jobs,
            log=log,
            say=partial(_print_done, console),
        )
    clean, *attacked = (measured[0] for measured in done)
    points = curve(clean, attacked, alpha=alpha)
    _print_table(console, points, alpha=alpha, columns=len(columns))
    document = attack_document(points, _settings(planned[0], agent, alpha, columns))
    publish(**document, out=out)
    _write(document, points, alpha=alpha, out=out, chart=chart)


def _check_options(alpha: float, out: Path | None, *files: Path | None) -> None:
    """Refuse what would fail only after the work."""
    from stormsail.core.errors import RangeError
    from stormsail.core.files.atomic import check_free

    if not 0.0 < alpha <= 1.0:
        raise RangeError(
            wrong="`--alpha` must be above 0 and at most 1",
            found=repr(alpha),
            remedy="Pass the share of worst episodes, such as 0.05.",
        )
    if out is not None:
        check_free(out)
    for file in files:
        if file is not None and not file.parent.is_dir():
            message = f"the folder of `{file.name}` must exist; found no {file.parent}. Make it."
            raise typer.BadParameter(message)


def _subject(folder: Path, config: Path | None) -> "tuple[Agent, TrainConfig]":
    """Return an agent and the settings of its training, on the CPU."""
    from stormsail.algorithms.run.plugins import bring
    from stormsail.algorithms.run.tasks import binding
    from stormsail.core.plugins import require
    from stormsail.modules.agent import PLUGINS, Agent

    agent = Agent.load(folder)
    settings = bring(_training(folder, agent, config)).replace(device="cpu")
    require(agent.binding.values.get(PLUGINS), owner=f"the agent in {folder}")
    agent.binding.check(**binding(settings))
    return agent, settings


def _training(folder: Path, agent: "Agent", config: Path | None) -> "TrainConfig":
    """Return the settings of an agent's training: of a file, of its run, or of its task's name."""
    from stormsail.algorithms.config import TrainConfig
    from stormsail.algorithms.population.config import load_training
    from stormsail.algorithms.run.folder import read_config
    from stormsail.core.errors import ConfigError

    if config is not None:
        return load_training(config_file(config))
    run = folder.resolve().parent
    if folder.name == BEST and (run / "config.toml").is_file():
        return read_config(run)
    task = agent.binding.values.get("task")
    if isinstance(task, str):
        return TrainConfig.from_mapping({"task": {"name": task}})
    raise ConfigError(
        "config-inconsistent",
        wrong=f"the settings of the training of {folder} must be known, for its task and bars",
        found="no run around it and no name of a task in it",
        remedy="Pass `--config` with the file that it was trained from.",
    )


def _digest(folder: Path) -> str:
    from stormsail.core.files.artifact import verify_artifact

    return verify_artifact(folder)


def _columns(settings: "TrainConfig", features: "Sequence[str]") -> tuple[str, ...]:
    """Return the columns that are forged; refused before any episode is run."""
    from stormsail.algorithms.run.tasks import make_task
    from stormsail.core.task import close
    from stormsail.evaluation.attack.columns import forgeable_names

    task = make_task(settings, batch=1, purpose="evaluation")
    try:
        return forgeable_names(task, features)
    finally:
        close(task)


def _settings(
    job: "Job", agent: "Agent", alpha: float, columns: "Sequence[str]"
) -> "dict[str, JsonValue]":
    """Return what the figures depend on; no place of a folder is part of it."""
    plan = job.plan
    return {
        "agent": job.digest,
        "task": job.config.task.name,
        "policy": agent.judged_policy,
        "norm": plan.norm,
        "alpha": alpha,
        "episodes": plan.episodes,
        "seed": plan.seed,
        "adversary_steps": plan.adversary_steps,
        "columns": list(columns),
    }


def _print_done(console: "Console", rows: "Sequence[AttackRow]") -> None:
    for row in rows:
        mean = sum(row.returns) / len(row.returns)
        words = f"{row.attack} {row.epsilon:g}: mean return {mean:.6g}"
        console.print(words, soft_wrap=True, highlight=False)


def _print_table(
    console: "Console", points: "Sequence[Point]", *, alpha: float, columns: int
) -> None:
    from rich import box

    from stormsail.cli.tables import Table

    caption = (
        f"± 95 % interval; change: return minus the clean one of the same episodes; moved: "
        f"decisions that changed, of numbers the distance in their range. {columns} columns forged."
    )
    table = Table(keys=2, box=box.SIMPLE_HEAD, caption=caption, padding=(0, 1), pad_edge=False)
    heads = ("attack", "radius", "return", f"CVaR {alpha:.3g}", "change", "moved")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for point in points:
        table.add_row(
            point.attack,
            f"{point.epsilon:g}",
            _cell(point.mean),
            _cell(point.cvar),
            _cell(point.mean_change),
            f"{point.changed:.0%}",
        )
    console.print(table)


def _cell(estimate: "Estimate") -> str:
    half = 0.5 * (estimate.high - estimate.low)
    return f"{estimate.value:.4g} ±{half:.2g}" if half == half else f"{estimate.value:.4g}"


def _write(
    document: "dict[str, JsonValue]",
    points: "Sequence[Point]",
    *,
    alpha: float,
    out: Path | None,
    chart: Path | None,
) -> None:
    from stormsail.bench.robust import attacks as bench
    from stormsail.evaluation.attack.files import write_attack

    if chart is not None:
        note = f"{len(points)} points, 95 % intervals; radius 0: no attack"
        write_checked(chart, bench.chart(points, alpha=alpha, note=note))
    if out is not None:
        write_attack(out, document)
        typer.echo(f"wrote {out}")
