"""`stormsail search`: search the settings of a training; the same command continues it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.completion import complete_config, complete_setting
from stormsail.cli.learning.display import log_lines, setting_lines
from stormsail.cli.output import is_quiet, publish
from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.start.files import config_file

if TYPE_CHECKING:
    from stormsail.algorithms.sweep.search import SearchRun
    from stormsail.algorithms.sweep.study import Trial

SHOWN = 10
"""Trials in the table at the end."""


def search(
    config: Annotated[
        Path,
        typer.Argument(
            help="TOML file of the trainings, or the name of a shipped one.",
            autocompletion=complete_config,
        ),
    ],
    budget: Annotated[int, typer.Option(help="Trials in all; more than before goes on.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="Searched setting: path=log:LOW:HIGH, path=float:LOW:HIGH, path=int:LOW:HIGH or "
            "path=VALUE,VALUE; may be repeated, and adds to the section `search`.",
            autocompletion=complete_setting,
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Processes that train side by side, one thread each.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the search; default: under `runs`.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="path=value, the same for all trials.",
            autocompletion=complete_setting,
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Search settings by TPE, with ASHA pruning. The same command continues it."""
    from stormsail.algorithms.fit import Interrupted
    from stormsail.algorithms.population.config import load_run_file
    from stormsail.algorithms.sweep.search import LOG
    from stormsail.algorithms.sweep.search import search as find
    from stormsail.cli.learning.train import BY_SIGNAL, kept_words

    load_plugins(plugin)
    config = config_file(config)
    plan = load_run_file(config, settings or [])
    place = Path("runs") / f"{config.stem}-search" if out is None else out
    pairs = (text.partition("=") for text in over or [])
    wishes = {path.strip(): text for path, _, text in pairs}
    kept = (
        f"{place} keeps its trials and the last checkpoint of each that was running, and the same "
        "command goes on"
    )
    try:
        with kept_words(kept), log_lines(LOG.name):
            done = find(plan, budget=budget, over=wishes, out=place, jobs=jobs, on_trial=_line)
    except Interrupted as error:
        typer.echo("stormsail: interrupted and saved; the same command goes on.", err=True)
        raise typer.Exit(BY_SIGNAL + error.signal) from None
    _finish(done, (*plan.plugins, *(plugin or [])))


def _finish(done: "SearchRun", plugins: Sequence[str]) -> None:
    """Print the best trials, what mattered, and where everything lies.

    Args:
        done: the search.
        plugins: that it was given, which whoever trains its best trial must bring again.
    """
    from rich.console import Console

    from stormsail.core.plugins import option

    publish(
        search=done.path,
        trials=[vars(trial) for trial in done.trials],
        counted=len(done.counted),
        best_trial=None if done.best is None else done.best.number,
        best=done.best_config,
        importance=dict(done.importance),
        report=done.report,
    )
    Console().print(_table(done))
    if done.importance:
        shares = ", ".join(f"{path} {share:.0%}" for path, share in done.importance.items())
        typer.echo(f"importance: {shares}")
    counted = len(done.counted)
    typer.echo(f"{done.path}: {counted} trial{'s' * (counted != 1)}, each in the trial ledger")
    if done.best is not None:
        again = " ".join(["stormsail train", str(done.best_config), *map(option, plugins)])
        typer.echo(
            f"best: trial {done.best.number} with fitness {done.best.fitness:.6g}; train it with "
            f"`{again}`"
        )
    else:
        typer.echo("best: no trial has finished")
    typer.echo(f"page: {done.report}")


def _table(done: "SearchRun") -> object:
    from stormsail.cli.tables import Table
    from stormsail.evaluation.searches import read_search

    ranking = read_search(done.path).ranking()
    table = Table(title=f"best {min(SHOWN, len(ranking))} of {len(ranking)} trials")
    for title in ("trial", "state", "steps", "fitness", "values"):
        left = title in ("state", "values")
        table.add_column(title, justify="left" if left else "right")
    for trial in ranking[:SHOWN]:
        table.add_row(
            str(trial.number),
            trial.state,
            str(trial.steps),
            f"{trial.fitness:.4g}" if trial.scores else "unknown",
            # one below the other: a column each would be too narrow to read at 80 columns
            "\n".join(setting_lines(trial.values.items())),
        )
    return table


def _line(trial: "Trial") -> None:
    """Print a trial that has ended."""
    if is_quiet():
        return
    values = ", ".join(setting_lines(trial.values.items()))
    score = f" with fitness {trial.fitness:.4g}" if trial.scores else ""
    reason = f" ({trial.reason})" if trial.reason else ""
    typer.echo(f"trial {trial.number}: {trial.state}{score}{reason}; {values}", err=True)
