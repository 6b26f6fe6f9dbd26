"""Trials of a search in Optuna: durable in SQLite, and the same ones in memory, which decide.

A search that is killed at any moment must go on as if it had not been. So what is on the disk are
facts alone, each written in one transaction: a trial with all of its values, a score, an ending.
What follows from them, the next values (TPE, Bergstra et al. 2011) and whether a trial is pruned
(asynchronous successive halving, Li et al. 2020, arXiv:1810.05934), is decided by a study in memory
that is made from the facts. Optuna's pruner on the disk would write down that a trial has passed a
rung before it says whether it may go on, and a kill between the two would spare it.

The sampler of each trial has a seed of its own, so that it needs no state of one before.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from stormsail.algorithms.population.config import SearchedSetting, SweepConfig, is_whole
from stormsail.algorithms.population.jobs import Value
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.generators import Generators

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as OptunaTrial

STUDY = "study.db"
"""SQLite file in the folder of a search; `optuna.load_study` reads it under the name `NAME`."""

NAME = "search"

Ending = Literal["finished", "pruned", "diverged", "refused", "failed"]
"""`finished`: trained to the end. `pruned`: given up at a rung. `diverged`: kept diverging, or has
no finite fitness. `refused`: its values do not fit each other. `failed`: an error ended it."""

COUNTED: tuple[str, ...] = ("running", "finished", "pruned", "diverged")
"""States of what counts as a trial; without a result that was seen there was none."""

LEAST_TRIALS = 4
"""Finished trials below which importance is not asked for."""

_ENDING, _METRICS = "ending", "metrics"


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: from 0.
        values: of the searched settings, by path.
        state: `running`, or how it ended (`Ending`).
        scores: smoothed fitness by steps, in the order of the rungs.
        metrics: of the evaluation behind the last score.
        reason: why it did not finish.
    """

    number: int
    values: Mapping[str, Value]
    state: str
    scores: Mapping[int, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def fitness(self) -> float:
        """The last score; NaN before the first."""
        return list(self.scores.values())[-1] if self.scores else math.nan


class Study:
    """The trials of a search.

    Args:
        path: of the SQLite file, made where there is none.
        config: of the search.
        first_rung: steps of the first score.

    Raises:
        ConfigError: if Optuna is not installed.
        ArtifactError: if the file is damaged or cannot be written.
    """

    def __init__(self, path: Path, config: SweepConfig, *, first_rung: int) -> None:
        self._path, self._config, self._first_rung = path, config, first_rung
        self._optuna = _import_optuna()
        self._space = {
            name: self._distribution(name, searched) for name, searched in config.over.items()
        }
        direction = "maximize" if config.metric_mode == "max" else "minimize"
        samplers, pruners = self._optuna.samplers, self._optuna.pruners
        with self._storage_errors(), self._quiet():
            self._storage = self._optuna.storages.RDBStorage(_url(path))
            self._disk: OptunaStudy = self._optuna.create_study(
                storage=self._storage, study_name=NAME, direction=direction, load_if_exists=True,
                sampler=samplers.RandomSampler(seed=0), pruner=pruners.NopPruner(),
            )  # fmt: skip
            self._memory: OptunaStudy = self._optuna.create_study(
                direction=direction,
                sampler=samplers.RandomSampler(seed=0),
                pruner=pruners.SuccessiveHalvingPruner(
                    min_resource=first_rung, reduction_factor=config.reduction_factor
                ),
            )
            self._live: list[OptunaTrial] = []
            self._kept: list[OptunaTrial] = []
            self._trials: list[Trial] = []
            for saved in self._disk.get_trials(deepcopy=False):
                self._keep(saved)
                self._remember(saved)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def trials(self) -> tuple[Trial, ...]:
        """Return all trials by number."""
        return tuple(self._trials)

    def trial(self, number: int) -> Trial:
        """Return a trial as it stands."""
        return self._trials[number]

    def propose(self) -> Trial:
        """Begin a trial with new values, which are on the disk when this returns."""
        number = len(self._live)
        seed = int(Generators(self._config.seed).numpy(f"trial.{number}").integers(2**32))
        with self._quiet():
            self._memory.sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=self._config.startup_trials, seed=seed
            )
            live = self._memory.ask(fixed_distributions=self._space)
        self._live.append(live)
        with self._storage_errors():
            self._disk.add_trial(
                self._optuna.trial.create_trial(
                    state=self._optuna.trial.TrialState.RUNNING,
                    params=live.params,
                    distributions=self._space,
                )
            )
            self._keep(self._disk.get_trials(deepcopy=False)[number])
        return self._trials[number]

    def report(self, number: int, steps: int, score: float, metrics: Mapping[str, float]) -> None:
        """Write the score of a trial after so many steps."""
        with self._storage_errors():
            self._kept[number].set_user_attr(_METRICS, dict(metrics))
            self._kept[number].report(score, steps)
        self._live[number].report(score, steps)
        before = self._trials[number]
        scores = {**before.scores, steps: score}
        self._trials[number] = replace(before, scores=scores, metrics=dict(metrics))

    def is_pruned(self, number: int) -> bool:
        """Return whether a trial is to be given up at the rung of its last score."""
        return self._live[number].should_prune()

    def end(self, number: int, ending: Ending, reason: str = "") -> None:
        """Write how a trial ended; its fitness is its last score."""
        states = self._optuna.trial.TrialState
        state = {"finished": states.COMPLETE, "pruned": states.PRUNED, "diverged": states.PRUNED}
        final = state.get(ending, states.FAIL)
        before = self._trials[number]
        score = before.fitness if ending == "finished" else None
        with self._storage_errors():
            self._kept[number].set_user_attr(_ENDING, [ending, reason])
            self._disk.tell(number, score, final)
        self._memory.tell(number, score, final)
        self._trials[number] = replace(before, state=ending, reason=reason)

    def importance(self) -> dict[str, float]:
        """Return how much of the best trials' difference from all is due to each setting.

        PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255), over finished trials, the largest first;
        shares that add up to 1. Empty where fewer than `LEAST_TRIALS` finished, or all are alike.
        """
        complete = self._optuna.trial.TrialState.COMPLETE
        finished = self._memory.get_trials(deepcopy=False, states=(complete,))
        if len(finished) < LEAST_TRIALS or len({trial.value for trial in finished}) < 2:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
        shares = self._optuna.importance.get_param_importances(self._memory, evaluator=evaluator)
        return {path: float(share) for path, share in shares.items() if math.isfinite(share)}

    def _remember(self, saved: "FrozenTrial") -> None:
        """Repeat in memory what is known of a trial.

        The last score of a running trial is left to `is_pruned`: nobody knows whether it was asked.
        That of a finished one is at its end, where nobody asks.
        """
        states = self._optuna.trial.TrialState
        self._memory.add_trial(
            self._optuna.trial.create_trial(
                state=states.RUNNING, params=saved.params, distributions=saved.distributions
            )
        )
        added = self._memory.get_trials(deepcopy=False)[-1]
        live = self._optuna.trial.Trial(self._memory, added._trial_id)
        self._live.append(live)
        steps = sorted(saved.intermediate_values)
        for step in steps:
            live.report(saved.intermediate_values[step], step)
            if step != steps[-1] or saved.state not in (states.RUNNING, states.COMPLETE):
                live.should_prune()
        if saved.state.is_finished():
            score = saved.value if saved.state == states.COMPLETE else None
            self._memory.tell(saved.number, score, saved.state)

    def _keep(self, saved: "FrozenTrial") -> None:
        """Remember a trial of the disk: the driver alone writes there, so nothing is read twice."""
        self._kept.append(self._optuna.trial.Trial(self._disk, saved._trial_id))
        self._trials.append(_trial(saved))

    def _distribution(self, path: str, searched: SearchedSetting) -> "BaseDistribution":
        kinds = self._optuna.distributions
        made: BaseDistribution
        if searched.values is not None:
            made = kinds.CategoricalDistribution(searched.values)
        elif is_whole(path):
            low, high = round(searched.low), round(searched.high)
            made = kinds.IntDistribution(low, high, log=searched.is_log_scale)
        else:
            log = searched.is_log_scale
            made = kinds.FloatDistribution(searched.low, searched.high, log=log)
        return made

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep Optuna's own lines off the terminal, and its settings as they were."""
        log = self._optuna.logging
        before = log.get_verbosity()
        log.set_verbosity(log.WARNING)
        try:
            yield
        finally:
            log.set_verbosity(before)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Say in words what SQLite refuses."""
        import sqlalchemy.exc

        refusals = (
            self._optuna.exceptions.StorageInternalError,
            sqlalchemy.exc.SQLAlchemyError,
            RuntimeError,  # tables of another version of Optuna
        )
        try:
            yield
        except refusals as error:
            cause = error.__cause__ or error
            raise ArtifactError(
                "artifact-unreadable",
                wrong=f"{self._path} must be the study of a search that can be read and written",
                found=str(getattr(cause, "orig", None) or cause).splitlines()[0],
                remedy="Free space on the disk or restore the file from a copy, and repeat the "
                "command; or search in another folder.",
            ) from error


def _trial(saved: "FrozenTrial") -> Trial:
    attributes: Mapping[str, Any] = saved.user_attrs
    ending, reason = "running", ""
    if saved.state.is_finished():
        ending, reason = attributes.get(_ENDING, ("failed", "it ended outside of this search"))
    return Trial(
        number=saved.number,
        values=dict(saved.params),
        state=ending,
        scores={
            step: saved.intermediate_values[step] for step in sorted(saved.intermediate_values)
        },
        metrics=dict(attributes.get(_METRICS, {})),
        reason=reason,
    )


def _url(path: Path) -> str:
    """Return the address of a SQLite file, whatever signs its path has."""
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(path.resolve())).render_as_string()


def _import_optuna() -> Any:  # noqa: ANN401 - a module whose parts are looked up
    """Return Optuna; here, because it takes a second and only a search needs it.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import optuna
        import sqlalchemy  # noqa: F401 - of the same extra, needed by the storage
    except ImportError as error:
        raise ConfigError(
            "missing-extra",
            wrong="`stormsail search` needs the package optuna",
            found="no such package in this environment",
            remedy="Run `pip install 'stormsail[search]'`.",
        ) from error
    return optuna


def best_of(trials: tuple[Trial, ...], *, mode: str) -> Trial | None:
    """Return the finished trial with the best fitness, the first of equals; None without any."""
    sign: Callable[[float], float] = (lambda x: -x) if mode == "max" else (lambda x: x)
    finished = [trial for trial in trials if trial.state == "finished"]
    return min(finished, key=lambda trial: (sign(trial.fitness), trial.number), default=None)
