"""`stormsail population`: train a population; the same command continues an interrupted one."""

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stormsail.cli.completion import complete_config, complete_setting
from stormsail.cli.learning.display import log_lines, setting_lines
from stormsail.cli.output import publish
from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.start.files import config_file

if TYPE_CHECKING:
    from stormsail.algorithms.population.jobs import Engine
    from stormsail.algorithms.population.population import Standing


class StorageName(StrEnum):
    """How members' folders reach the nodes of a cluster."""

    SHARED = "shared"
    OBJECT_STORE = "object-store"


class EngineName(StrEnum):
    """Where members train."""

    IN_PROCESS = "in-process"
    PROCESSES = "processes"
    RAY = "ray"


def population(
    config: Annotated[
        Path,
        typer.Argument(
            help="TOML file with a section `population`, or the name of a shipped one.",
            autocompletion=complete_config,
        ),
    ],
    engine: Annotated[
        EngineName, typer.Option(help="Where members train.")
    ] = EngineName.IN_PROCESS,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster that runs already; for --engine ray.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="Processes, default one a core; in-process: threads, default 1.",
        ),
    ] = None,
    storage: Annotated[
        StorageName | None, typer.Option(help="How folders reach the nodes of a Ray cluster.")
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0.0, help="Cores of a member on a Ray cluster; default: 1.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0.0, help="Share of a GPU of a member on a Ray cluster.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the population; default: under `runs`.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="path=value, such as population.population_size=4.",
            autocompletion=complete_setting,
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Train a population whose members copy each other. The same command continues it."""
    from stormsail.algorithms.fit import Interrupted
    from stormsail.algorithms.population.config import load_run_file
    from stormsail.algorithms.population.population import LOG, train_population
    from stormsail.cli.learning.train import BY_SIGNAL, kept_words

    load_plugins(plugin)
    config = config_file(config)
    plan = load_run_file(config, settings or [])
    place = Path("runs") / f"{config.stem}-population" if out is None else out
    kept = (
        f"{place} keeps its finished rounds and the last checkpoint of each member, and the same "
        "command goes on"
    )
    try:
        with kept_words(kept), log_lines(LOG.name):
            made = _engine(
                engine, address=address, workers=workers, storage=storage, cpus=cpus, gpus=gpus
            )
            done = train_population(plan, out=place, engine=made, on_round=_show)
    except Interrupted as error:
        typer.echo("stormsail: interrupted and saved; the same command goes on.", err=True)
        raise typer.Exit(BY_SIGNAL + error.signal) from None
    last = done.rounds[-1].fitness if done.rounds else ()
    publish(
        population=done.path,
        rounds=len(done.rounds),
        fitness=last,
        best_member=done.best,
        best=done.best_folder,
    )
    typer.echo(f"{done.path}: {len(done.rounds)} rounds")
    if done.best_folder is not None:
        fitness = done.rounds[-1].fitness[done.best or 0]
        typer.echo(f"best member: {done.best_folder} with fitness {fitness:.6g}")


def _engine(name: EngineName, **options: object) -> "Engine":
    """Return an engine by its name.

    Raises:
        ConfigError: if an option is one of another engine.
    """
    from stormsail.core.errors import ConfigError

    of_engine = {
        EngineName.IN_PROCESS: ("workers",),
        EngineName.PROCESSES: ("workers",),
        EngineName.RAY: ("address", "storage", "cpus", "gpus"),
    }
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in of_engine[name]:
            owner = next(engine for engine, names in of_engine.items() if option in names)
            raise ConfigError(
                "config-inconsistent",
                wrong=f"`--{option}` must come with `--engine {owner}`",
                found=f"`--engine {name}`",
                remedy=f"Add `--engine {owner}`, or leave `--{option}` out.",
            )
    return _made(name, given)


def _made(name: EngineName, given: dict[str, Any]) -> "Engine":
    """Return the engine; each is imported only where it is asked for, as Ray is an extra."""
    if name is EngineName.RAY:
        from stormsail.algorithms.population.engines.ray import Ray

        return Ray(**given)
    if name is EngineName.PROCESSES:
        from stormsail.algorithms.population.engines.processes import Processes

        return Processes(**given)
    from stormsail.algorithms.population.engines.in_process import InProcess

    return InProcess(**given)


def _show(standing: "Standing") -> None:
    """Print a table of the members after a round."""
    from rich.console import Console

    from stormsail.cli.tables import Table

    round_ = standing.round
    table = Table(title=f"round {round_.number + 1} of {standing.rounds}")
    for title in ("member", "updates", "fitness", "smoothed", "values", "next", "seconds"):
        table.add_column(title, justify="left" if title in ("values", "next") else "right")
    for outcome, values, seconds in zip(
        round_.outcomes, standing.values, standing.seconds, strict=True
    ):
        coming = [decision for decision in round_.decisions if decision.member == outcome.member]
        table.add_row(
            f"{outcome.member:02d}",
            str(outcome.updates),
            _number(outcome.fitness),
            _number(round_.fitness[outcome.member]),
            # one below the other: a column each would be too narrow to read at 80 columns
            "\n".join(
                setting_lines((path.split(".")[-1], values[path]) for path in sorted(values))
            ),
            coming[0].reason if coming else "",
            f"{seconds:.1f}",
        )
    Console().print(table)


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.4g}"
