"""`ss.backtest`, `ss.validate` and `ss.report`: judge an agent, a way to train, and tell it."""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.fit import fitter
from stormsail.algorithms.run.tasks import market_panel
from stormsail.algorithms.run.trials import LEDGER
from stormsail.algorithms.train_ahead import train_ahead
from stormsail.algorithms.trainer import Run
from stormsail.api.agent import Agent
from stormsail.api.data import BarSource, load_bars
from stormsail.api.looks import looking, trial_ledger
from stormsail.api.settings import changed, check_clock, is_whole, training_config
from stormsail.core.arguments import check_type, wrong_type
from stormsail.core.clock import Clock, SystemClock
from stormsail.core.errors import ArgumentError, RangeError
from stormsail.core.files.atomic import check_free
from stormsail.core.files.paths import given_path
from stormsail.core.threads import torch_threads
from stormsail.evaluation.engine.config import BacktestConfig
from stormsail.evaluation.engine.files import write_backtest
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import backtest as trade
from stormsail.evaluation.report.folders import report_of
from stormsail.evaluation.report.html import write_page
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.evaluation.walk_forward.files import write_agent, write_validation
from stormsail.evaluation.walk_forward.run import Progress, Validation
from stormsail.evaluation.walk_forward.run import validate as walk_forward
from stormsail.market.panel import Panel
from stormsail.modules import Agent as BaseAgent

Reportable: TypeAlias = Backtest | Validation | Run | Path | str
"""What a report tells of: a result, a run, or the folder of one."""


class SealedBarsWarning(UserWarning):
    """A backtest trades bars that a validation keeps sealed."""


def backtest(
    agent: BaseAgent | Path | str,
    bars: BarSource,
    config: BacktestConfig | None = None,
    *,
    symbols: str | Sequence[str] | None = None,
    out: Path | str | None = None,
    workspace: Path | str | None = None,
    **settings: object,
) -> Backtest:
    """Let an agent trade a span of bars once, by the rules of its training.

    Bars that a validation keeps sealed are traded with a warning, and the trial ledger of the
    workspace records it.

    Args:
        agent: an agent, or the folder of one or of its run.
        bars: what `load_bars` takes or returns; a store is read at the agent's interval.
        config: which bars, which rules; None takes the defaults.
        symbols: which symbols of a store or file; None takes all.
        out: new folder for the results; None writes none.
        workspace: folder of the trial ledger; None takes the one beside the agent's run, or `runs`.
        **settings: changes of the configuration, such as `start="2024-01-01T00:00:00Z"`.

    Raises:
        ConfigError: if a setting does not fit, or bars, features or costs are not the agent's.
        ArtifactError: if the agent or the ledger cannot be read, or `out` is taken.
        DataError: if the span has no bars, or too few before it.
        ArgumentError: if an argument has another type.
    """
    place = None if out is None else given_path(out, name="out")
    if place is not None:
        check_free(place)
    if config is not None:
        check_type(
            config,
            BacktestConfig,
            name="config",
            must="a `BacktestConfig`",
            remedy='Pass settings by name, such as `start="2024-01-01T00:00:00Z"`.',
        )
    trader = agent if isinstance(agent, BaseAgent) else Agent.load(agent)
    folder = trader.folder if isinstance(trader, Agent) else None
    named = None if workspace is None else given_path(workspace, name="workspace")
    ledger = trial_ledger(folder or Path("runs") / "agent", named)
    interval = trader.binding.values.get("interval")
    wanted = interval if isinstance(interval, str) and not isinstance(bars, Panel) else None
    panel = load_bars(bars, symbols=symbols, interval=wanted)
    chosen = changed(config or BacktestConfig(), settings)
    # small batches gain nothing from threads, and one thread gives the same bytes on any machine
    with torch_threads(1), looking(ledger, folder, panel, chosen, _warn) as look:
        result = trade(trader, panel, chosen)
        if look is not None:
            look.sharpe_per_bar = result.metrics.sharpe_per_bar.value
            look.bars = len(result.returns)
    if place is not None:
        write_backtest(place, result)
    return result


def _warn(words: str) -> None:
    warnings.warn(words, SealedBarsWarning, stacklevel=5)  # the caller of `backtest`


def validate(
    config: TrainConfig | Path | str | None = None,
    rules: ValidationConfig | Mapping[str, object] | None = None,
    *,
    out: Path | str | None = None,
    workspace: Path | str = "runs",
    name: str | None = None,
    jobs: int = 1,
    explanations: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
    **settings: object,
) -> Validation:
    """Walk forward: train on the past, trade what follows, and test the result's significance.

    The same call continues where it was interrupted; finished trainings are used again.

    Args:
        config: of the trainings, as `train` takes it.
        rules: of the validation, or those that differ from the defaults: `{"folds": 3}`. Costs
            and actions are those of the training unless `backtest` states others.
        out: new folder for the results; the agent meant for trading goes into `<out>-agent`.
        workspace: folder of the runs and of the trial ledger.
        name: of its folder of runs; None takes `<name of the file>-validation`.
        jobs: trainings at a time, each in a process of its own; the result is the same.
        explanations: why a result is good that is too good to be true, by name of the rule.
        on_progress: called before each step.
        clock: for the times of events; None takes the system's.
        **settings: changes of the configuration of the trainings, as in `train`.

    Raises:
        ConfigError: if settings do not fit, or the final test span was opened before.
        DataError: if there are too few bars, and it says how many are needed.
        ArtifactError: if `out` is taken, or a run or the ledger cannot be used.
        ArgumentError: if nothing says what to validate, or an argument has another type.
        RangeError: if `jobs` is no whole number of at least 1.
    """
    kept = None if out is None else given_path(out, name="out")
    if kept is not None:
        check_free(kept)
        check_free(_agent_folder(kept))
    _check_validation(config, settings, name=name, jobs=jobs, explanations=explanations)
    if clock is not None:
        check_clock(clock)
    if on_progress is not None:
        check_type(
            on_progress,
            Callable,  # type: ignore[arg-type]  # an abstract class, which `isinstance` takes
            name="on_progress",
            must="a function of a `Progress`",
            remedy="Write for example `on_progress=print`.",
        )
    training = training_config(config, settings)
    stem = Path(config).stem if isinstance(config, str | Path) else training.task.name
    title, place = name or f"{stem}-validation", given_path(workspace, name="workspace")
    watch = SystemClock() if clock is None else clock
    with torch_threads(1):  # a training has the threads of its own settings
        fit = fitter(training, workspace=place, name=title, clock=watch)
        result = walk_forward(
            market_panel(training),
            _validation_rules(training, rules),
            fit=fit,
            ahead=None if jobs == 1 else partial(train_ahead, fit, jobs=jobs),
            ledger=TrialLedger(place / LEDGER, clock=watch),
            name=title,
            training=derive(training).model_dump(mode="json"),
            explanations=explanations,
            on_progress=on_progress,
        )
    if kept is not None:
        write_validation(kept, result)
        write_agent(_agent_folder(kept), result)
    return result


def _check_validation(
    config: object,
    settings: Mapping[str, object],
    *,
    name: object,
    jobs: object,
    explanations: object,
) -> None:
    """Refuse arguments of `validate` that cannot be meant.

    Raises:
        ArgumentError: if nothing says what to validate, or one has another type.
        RangeError: if `jobs` is no whole number of at least 1.
    """
    if config is None and not settings:
        raise ArgumentError(
            "missing-argument",
            wrong="`ss.validate` must be told what to validate",
            found="neither a configuration nor a setting",
            remedy='Write for example `ss.validate("my.toml", {"folds": 3})`.',
        )
    if name is not None:
        remedy = 'Write for example `name="longer"`.'
        check_type(name, str, name="name", must="text", remedy=remedy)
    if not isinstance(jobs, int) or not is_whole(jobs) or jobs < 1:
        raise RangeError(
            wrong="`jobs` must be a whole number of at least 1",
            found=repr(jobs),
            remedy="Pass the number of trainings that go side by side.",
        )
    if explanations is not None:
        check_type(
            explanations,
            Mapping,
            name="explanations",
            must="a dictionary of texts by rule",
            remedy='Write for example `explanations={"clairvoyant": "why"}`.',
        )


def _agent_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}-agent")


def _validation_rules(
    training: TrainConfig, rules: ValidationConfig | Mapping[str, object] | None
) -> ValidationConfig:
    """Return the rules with the market of the training, where they do not state another."""
    market = training.task.market.model_dump(mode="json")
    if isinstance(rules, ValidationConfig):
        return rules if rules.backtest.market else changed(rules, {"backtest.market": market})
    if rules is not None and not isinstance(rules, Mapping):
        raise wrong_type(
            rules,
            name="rules",
            must="a `ValidationConfig`, or a dictionary of what differs from one",
            remedy='Write for example `{"folds": 3}`.',
        )
    base = ValidationConfig.from_mapping({"backtest": {"market": market}})
    return changed(base, rules or {})


def report(
    results: Reportable | Sequence[Reportable], out: Path | str, *, runs: Sequence[Reportable] = ()
) -> Path:
    """Write one self-contained HTML page: the verdict first, then metrics, charts and evidence.

    Args:
        results: backtests, validations and runs, or folders of these, of populations and of
            attacks; several are shown side by side.
        out: file to write; it is replaced where it exists.
        runs: further runs, for their curves and alarms.

    Returns:
        The path of the page.

    Raises:
        ArtifactError: if a folder is missing, damaged, or something else.
        DataError: if the metrics of a run cannot be read, or the page cannot be written.
        ArgumentError: if something else is passed.
    """
    page = given_path(out, name="out")
    single = isinstance(results, Backtest | Validation | Run | Path | str)
    listed: Sequence[Reportable] = [results] if single else _listed(results, "results")  # type: ignore[list-item]
    further = _listed(runs, "runs")
    with tempfile.TemporaryDirectory() as place:
        folders = [_saved(each, Path(place), number) for number, each in enumerate(listed, start=1)]
        trained = [_saved(each, Path(place), 0) for each in further]
        write_page(page, report_of(folders, trained))
    return page


def _listed(values: object, name: str) -> list[Any]:
    """Return a list of what a report is to tell of."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise wrong_type(
            values,
            name=name,
            must="a list of backtests, validations, runs, or folders of these",
            remedy=f"Write for example `{name}=[run]`.",
        )
    return list(values)


def _saved(result: Reportable, place: Path, number: int) -> Path:
    """Return the folder of a result; one that was not saved is written into a temporary one."""
    if isinstance(result, str | Path):
        return given_path(result, name="results")
    if isinstance(result, Run):
        return result.path
    if isinstance(result, Backtest):
        folder = place / f"backtest-{number}"
        write_backtest(folder, result)
        return folder
    if isinstance(result, Validation):
        folder = place / f"validation-{number}"
        write_validation(folder, result)
        return folder
    raise ArgumentError(
        "artifact-kind",
        wrong="a report must tell of backtests, validations, runs, or folders of these",
        found=f"a value of the type {type(result).__name__}",
        remedy="Pass what `ss.backtest`, `ss.validate` or `ss.train` returns, or a path.",
    )
