"""`stormsail validate`: walk-forward validation of a training configuration, with a verdict."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.completion import (
    complete_config,
    complete_setting,
    complete_validation_setting,
)
from stormsail.cli.output import publish
from stormsail.cli.plugins import Plugins, load_plugins
from stormsail.cli.start.files import CONFIG_HELP, config_file

if TYPE_CHECKING:
    from stormsail.algorithms.config import TrainConfig
    from stormsail.cli.judging.validate_display import Display
    from stormsail.core.clock import Clock
    from stormsail.evaluation.robustness.self_tests import SelfTest
    from stormsail.evaluation.walk_forward.config import ValidationConfig
    from stormsail.evaluation.walk_forward.run import Validation

REJECTED = 1
"""Exit status of the verdict `reject`; `promote` and `not proven` end with 0."""

BY_SIGNAL = 128
"""Added to the number of the signal that interrupted it, as a shell reports it."""


def validate(
    config: Annotated[Path, typer.Argument(help=CONFIG_HELP, autocompletion=complete_config)],
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the results; the agent goes into one beside it."),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Train nothing: say which Sharpe ratio would be found."),
    ] = False,
    folds: Annotated[int | None, typer.Option(min=1, help="Trainings one after another.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Trainings side by side.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(min=1, max=4096, help="Trainings at a time, each in a process of its own."),
    ] = 1,
    test_share: Annotated[
        float | None, typer.Option(help="Share of the newest bars that stays closed.")
    ] = None,
    open_test: Annotated[
        bool, typer.Option("--open-test", help="Test the closed bars, too; once and never again.")
    ] = False,
    learner_tests: Annotated[
        bool, typer.Option("--learner-tests", help="Learn two worlds with known answers first.")
    ] = False,
    workspace: Annotated[
        Path, typer.Option(help="Folder of the runs and of the trial ledger.")
    ] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Of its folder of runs; default: CONFIG-validation.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="path=value of the training.", autocompletion=complete_setting),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            help="path=value of the validation.",
            autocompletion=complete_validation_setting,
        ),
    ] = None,
    explain: Annotated[
        list[str] | None,
        typer.Option(help="rule=text: why a result is good that is too good to be true."),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Walk forward: train on the past, trade what follows, test whether the result is significant.

    The same command continues where it was interrupted; finished trainings are reused.
    """
    from stormsail.algorithms.fit import Interrupted
    from stormsail.algorithms.population.config import load_training
    from stormsail.algorithms.run.plugins import bring
    from stormsail.cli.learning.train import kept_words
    from stormsail.core.files.atomic import check_free

    if not plan:
        out = _needed(out)
        check_free(out)
        check_free(_agent_folder(out))
    load_plugins(plugin)
    config = config_file(config)
    training = bring(load_training(config, settings or []))
    options: dict[str, object] = {
        "folds": folds,
        "seeds": None if seeds is None else list(range(seeds)),
        "test_share": test_share,
        "open_test": open_test,
    }
    rules = _rules(training, options, overrides or [])
    place = _Place(workspace, name or f"{config.stem}-validation")
    if plan or out is None:
        _print_plan(training, rules, place)
        return
    written = _explanations(explain or [])
    try:
        with kept_words(place.kept):
            result = _validate(
                training,
                rules,
                place,
                jobs=jobs,
                learner_tests=learner_tests,
                explanations=written,
            )
    except Interrupted as ended:
        typer.echo("stormsail: interrupted and saved; the same command goes on.", err=True)
        raise typer.Exit(BY_SIGNAL + ended.signal) from None
    _conclude(result, out)


def _needed(out: Path | None) -> Path:
    if out is None:
        message = "`--out` must name a new folder for the results; found none. Or say `--plan`."
        raise typer.BadParameter(message)
    return out


def _agent_folder(out: Path) -> Path:
    """Return where the agent that is meant for trading is written."""
    return out.with_name(f"{out.name}-agent")


def _explanations(lines: list[str]) -> dict[str, str]:
    """Return explanations by rule, from `rule=text`."""
    from stormsail.evaluation.walk_forward.verdict import checked_explanations

    return checked_explanations({rule.strip(): text for rule, _, text in _split(lines)})


def _split(lines: list[str]) -> list[tuple[str, str, str]]:
    return [line.partition("=") for line in lines]


def _print_plan(training: "TrainConfig", rules: "ValidationConfig", place: "_Place") -> None:
    """Print which Sharpe ratio these settings would find."""
    from stormsail.algorithms.fit import fitter
    from stormsail.algorithms.run.tasks import market_panel
    from stormsail.algorithms.run.trials import LEDGER
    from stormsail.core.threads import torch_threads
    from stormsail.evaluation.stats.trials import TrialLedger
    from stormsail.evaluation.walk_forward.run import plan

    with torch_threads(1):
        power = plan(
            market_panel(training),
            rules,
            ledger=TrialLedger(place.workspace / LEDGER),
            gamma=training.ppo.gamma,
            check=fitter(training, workspace=place.workspace, name=place.name).check,
        )
    publish(plan=power)
    for line in power.summary:
        typer.echo(line)


class _Place:
    """Where a validation keeps its runs and its trials."""

    def __init__(self, workspace: Path, name: str) -> None:
        self.workspace, self.name = workspace, name

    @property
    def kept(self) -> str:
        """What is kept of it wherever it ends, in words."""
        return (
            f"finished trainings in {self.workspace / self.name} are used again by the same "
            "command, and nothing else was written"
        )


def _rules(
    training: "TrainConfig", options: dict[str, object], overrides: list[str]
) -> "ValidationConfig":
    """Return the settings: the market of the training, and what the command line changes."""
    from stormsail.core.config.overrides import apply_overrides
    from stormsail.evaluation.walk_forward.config import ValidationConfig

    data = {name: value for name, value in options.items() if value is not None}
    # costs drawn at random and feed faults belong to training; a backtest leaves them out itself
    data["backtest"] = {"market": training.task.market.model_dump(mode="json")}
    return ValidationConfig.from_mapping(apply_overrides(data, overrides))


def _validate(
    training: "TrainConfig",
    rules: "ValidationConfig",
    place: _Place,
    *,
    jobs: int,
    learner_tests: bool,
    explanations: dict[str, str],
) -> "Validation":
    """Run the validation under a display of its progress."""
    from functools import partial

    from stormsail.algorithms.config.derive import derive
    from stormsail.algorithms.fit import fitter
    from stormsail.algorithms.run.tasks import market_panel
    from stormsail.algorithms.run.trials import LEDGER
    from stormsail.algorithms.train_ahead import train_ahead
    from stormsail.cli.judging.validate_display import display
    from stormsail.core.clock import SystemClock
    from stormsail.core.threads import torch_threads
    from stormsail.evaluation.stats.trials import TrialLedger
    from stormsail.evaluation.walk_forward.run import validate as walk_forward

    clock = SystemClock()
    # small batches gain nothing from threads, and one thread gives the same bytes anywhere; a
    # training has those of its own settings
    with torch_threads(1), display(clock) as shown:
        fit = fitter(
            training,
            workspace=place.workspace,
            name=place.name,
            on_progress=shown.learned,
            clock=clock,
        )
        tests: tuple[SelfTest, ...] = ()
        if learner_tests:
            tests = _learner_tests(training, place, shown, clock)
        return walk_forward(
            market_panel(training),
            rules,
            fit=fit,
            ahead=None
            if jobs == 1
            else partial(train_ahead, fit, jobs=jobs, on_progress=shown.ahead),
            ledger=TrialLedger(place.workspace / LEDGER, clock=clock),
            name=place.name,
            training=derive(training).model_dump(mode="json"),
            more_self_tests=tests,
            explanations=explanations,
            on_progress=shown.began,
        )


def _learner_tests(
    training: "TrainConfig", place: _Place, shown: "Display", clock: "Clock"
) -> "tuple[SelfTest, ...]":
    from stormsail.algorithms.learner_tests import learner_tests

    return learner_tests(
        training,
        workspace=place.workspace,
        name=place.name,
        on_progress=shown.learned,
        clock=clock,
    )


def _conclude(result: "Validation", out: Path) -> None:
    """Save the results, print the verdict with its reasons, and exit accordingly."""
    from stormsail.cli.judging.validate_display import print_validation
    from stormsail.evaluation.walk_forward.files import (
        validation_document,
        write_agent,
        write_validation,
    )

    write_validation(out, result)
    agent = _agent_folder(out)
    saved = write_agent(agent, result)
    print_validation(result)
    publish(
        decision=result.verdict.decision,
        out=out,
        agent=agent if saved else None,
        validation=validation_document(result),
    )
    typer.echo(f"wrote {out}" + (f" and {agent}" if saved else ""))
    if result.verdict.decision == "reject":
        raise typer.Exit(REJECTED)
