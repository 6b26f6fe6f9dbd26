"""The driver of a search: trials one after the other or side by side, and the files about them.

`trial-<number>` are the run folders. `config.toml` holds what trials have in common and the search,
`study.db` the trials (Optuna, SQLite), `search.json` the same ones for readers, `best.toml` the
configuration of the best one, `report.html` the page about them.
"""

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from stormsail import __version__
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import (
    RunFile,
    SearchedSetting,
    SweepConfig,
    load_run_file,
    with_values,
)
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.algorithms.population.jobs import Job, Outcome, StreamingEngine
from stormsail.algorithms.run.folder import differences
from stormsail.algorithms.run.plugins import bring, load_saved, require_plugins
from stormsail.algorithms.sweep.checks import check_seal, check_sweep
from stormsail.algorithms.sweep.over import with_over
from stormsail.algorithms.sweep.study import COUNTED, STUDY, Ending, Study, Trial, best_of
from stormsail.algorithms.sweep.trial import (
    CONFIG,
    Segment,
    advance,
    close_trial,
    ledger_of,
    rung_steps,
    saved_steps,
    trained_config,
    trial_folder,
    trial_folders,
)
from stormsail.core.config import toml
from stormsail.core.errors import ArtifactError, ConfigError, RangeError, StormsailError
from stormsail.core.files import atomic, documents
from stormsail.core.files.artifact import write_error
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.searches import KIND, SEARCH, read_document, read_search
from stormsail.functional import population as rules

LOG = logging.getLogger("stormsail.search")

BEST, REPORT = "best.toml", "report.html"
FORMAT = 1

MOST_REFUSED = 50
"""Trials in a row whose values are refused before a search gives up: its space hardly fits."""

MOST_FAILED = 3
"""Trials in a row that fail before a search gives up: it is not the values."""

OnTrial = Callable[[Trial], None]
"""Called with each trial that has ended."""


@dataclass(frozen=True)
class SearchRun:
    """Result of a search.

    Attributes:
        path: its folder.
        trials: all of them by number, those included that were refused or failed.
        best: the finished one with the best fitness; None where none finished.
        importance: share of each setting in what makes the best trials different (PED-ANOVA); empty
            where too few finished.
    """

    path: Path
    trials: tuple[Trial, ...]
    best: Trial | None
    importance: Mapping[str, float]

    @property
    def counted(self) -> tuple[Trial, ...]:
        """Trials that count as such in the trial ledger."""
        return tuple(trial for trial in self.trials if trial.state in COUNTED)

    @property
    def best_config(self) -> Path | None:
        """File with the configuration of the best trial, which trains as it is."""
        return None if self.best is None else self.path / BEST

    @property
    def best_folder(self) -> Path | None:
        """Run folder of the best trial."""
        return None if self.best is None else trial_folder(self.path, self.best.number)

    @property
    def report(self) -> Path:
        """Page about the search."""
        return self.path / REPORT


def search(
    config: RunFile | TrainConfig | Path | str,
    *,
    budget: int,
    out: Path | str,
    over: Mapping[str, SearchedSetting | str] | None = None,
    jobs: int = 1,
    on_trial: OnTrial | None = None,
) -> SearchRun:
    """Search the settings of a training, or continue a search: the same call does both.

    Values are proposed by TPE and trials pruned by asynchronous successive halving (ASHA), by the
    fitness of a population (`population.fitness`) on the evaluation span. Every trial is a run of
    its own and a line in the trial ledger of the workspace. With one job the same seed gives the
    same trials, interrupted or not.

    Args:
        config: of the trainings, with a section `search` where it is a file or its contents. Its
            `plugins` are run.
        budget: trials in all; a larger one than before goes on with more of them. Those that are
            refused or fail do not count.
        out: folder of the search.
        over: more searched settings by path, each a `SearchedSetting` or text as on the command
            line, such as `log:1e-5:1e-2` or `lstm,gru`.
        jobs: processes that train side by side, each with one thread of torch; 1 is this process.
        on_trial: called with each trial that has ended.

    Raises:
        ConfigError: if a setting is unknown or cannot be searched, Optuna is not installed, or the
            folder holds a search with other settings.
        RangeError: if `budget` or `jobs` is below 1.
        ArtifactError: if the folder is in use, foreign, damaged or of another version, or needs
            plug-ins that are not loaded.
        StormsailError: with the code `trial-failed`, if trial after trial fails or is refused.
        Interrupted: if a signal came; the same call goes on.
    """
    for name, number in (("budget", budget), ("jobs", jobs)):
        if number < 1:
            raise RangeError(
                wrong=f"`{name}` must be at least 1", found=str(number), remedy="Use 1 or more."
            )
    given = _plan(config, over or {})
    engine = InProcess() if jobs == 1 else Processes(workers=jobs)
    with contextlib.closing(engine), _alone(Path(out)) as root:
        _begin(root, given)
        with Study(root / STUDY, _sweep(given), first_rung=rung_steps(given)[0]) as study:
            return _Driver(root, given, study, engine, on_trial).run(budget)


class _Driver:
    """A search in its folder, locked by this process."""

    def __init__(
        self,
        root: Path,
        plan: RunFile,
        study: Study,
        engine: StreamingEngine,
        on_trial: OnTrial | None,
    ) -> None:
        self.root, self.plan, self.study = root, plan, study
        self.engine, self.on_trial = engine, on_trial
        self.base, self.sweep, self.rungs = plan.training(), _sweep(plan), rung_steps(plan)
        self.budget = 0
        self._ready: deque[Segment] = deque()
        self._refused = self._failed = 0
        self._best_written: int | None = None

    def run(self, budget: int) -> SearchRun:
        self.budget = budget
        for trial in self.study.trials():
            if trial.state == "running":
                self._announce(trial)
                self._go_on(trial)
        for job, result in self.engine.stream(advance, self._next):
            self._take(job, result)
        self._write(self._result())
        # here, because charts and statistics take a second to import
        from stormsail.evaluation.report.html import write_page
        from stormsail.evaluation.report.page import report_page

        write_page(self.root / REPORT, report_page([], searches=[read_search(self.root)]))
        return self._result()

    def _announce(self, trial: Trial) -> None:
        """Say of a trial that a process left behind whether it goes on or begins again."""
        steps = saved_steps(self.root, trial.number)
        if steps:
            LOG.info("Trial %d goes on from its checkpoint of %d steps.", trial.number, steps)
        else:
            LOG.info("Trial %d is trained again: it has no checkpoint yet.", trial.number)

    def _next(self) -> Segment | None:
        """Return the next piece of work: of a trial that trains on, else of a new one."""
        while not self._ready:
            counted = sum(trial.state in COUNTED for trial in self.study.trials())
            if counted >= self.budget:
                return None
            trial = self.study.propose()
            try:
                with_values(self.base, trial.values)
            except ConfigError as error:
                self._refuse(trial.number, error)
            else:
                self._go_on(trial)
        return self._ready.popleft()

    def _take(self, job: Job, result: Outcome | Exception) -> None:
        """Write down what came of a piece of work, and decide how the trial goes on."""
        number = job.member
        if isinstance(result, ConfigError):
            self._refuse(number, result)
            return
        if isinstance(result, Exception):
            self._failed += 1
            self._end(number, "failed", str(result))
            if self._failed >= MOST_FAILED:
                raise _given_up(
                    self.root, f"{self._failed} failed trials in a row", result
                ) from result
            return
        if result.stopped or not math.isfinite(result.fitness):
            words = "kept diverging" if result.stopped else "has no finite fitness"
            self._end(number, "diverged", words)
            return
        trial = self.study.trial(number)
        score = smoothed(result.fitness, trial.fitness, beta=self.sweep.fitness_smoothing)
        self.study.report(number, job.target, score, result.metrics)
        self._go_on(self.study.trial(number))

    def _go_on(self, trial: Trial) -> None:
        """Hand in the way to the next rung; or end a trial that has done or lost enough."""
        number, rung = trial.number, len(trial.scores)
        if rung == len(self.rungs):
            self._end(number, "finished")
            return
        if trial.scores and self.study.is_pruned(number):
            reason = f"pruned after {self.rungs[rung - 1]} steps"
            close_trial(self.root, self.base, number, trial.values, reason)
            self._end(number, "pruned", reason)
            return
        self._ready.append(
            Segment(
                member=number,
                round=rung,
                root=self.root,
                target=self.rungs[rung],
                values=dict(trial.values),
                was_seen=bool(trial.scores),
            )
        )

    def _refuse(self, number: int, error: ConfigError) -> None:
        self._refused += 1
        self._end(number, "refused", error.wrong)
        if self._refused >= MOST_REFUSED:
            count = f"{self._refused} in a row whose values are refused"
            raise _given_up(self.root, count, error) from error

    def _end(self, number: int, ending: Ending, reason: str = "") -> None:
        self.study.end(number, ending, reason)
        if ending in COUNTED:
            self._failed = self._refused = 0
        trials = self.study.trials()
        best = best_of(trials, mode=self.sweep.metric_mode)
        self._write(SearchRun(self.root, trials, best, {}))  # importance is asked for at the end
        if self.on_trial is not None:
            self.on_trial(self.study.trial(number))

    def _result(self) -> SearchRun:
        trials = self.study.trials()
        best = best_of(trials, mode=self.sweep.metric_mode)
        return SearchRun(self.root, trials, best, self.study.importance())

    def _write(self, result: SearchRun) -> None:
        """Write what is known so far, for readers without Optuna, and the best configuration."""
        files = {SEARCH: documents.encode_readable(_document(self.plan, result))}
        if result.best is not None and result.best.number != self._best_written:
            best = trained_config(self.root, result.best.number)
            files[BEST] = best.to_toml().encode("utf-8")
            self._best_written = result.best.number
        _replace(self.root, files)


def smoothed(raw: float, before: float, *, beta: float) -> float:
    """Return a fitness smoothed over rungs as that of a population is over rounds."""
    both = torch.tensor([[raw], [before]], dtype=torch.float64)
    return float(rules.smoothed(both[0], both[1], beta=beta))


def _sweep(plan: RunFile) -> SweepConfig:
    return SweepConfig() if plan.search is None else plan.search


def _plan(
    given: RunFile | TrainConfig | Path | str, over: Mapping[str, SearchedSetting | str]
) -> RunFile:
    """Return the configuration of a search, without a population; its plug-ins are run."""
    file = bring(load_run_file(given) if isinstance(given, Path | str) else given)
    sweep = (_sweep(file) if isinstance(file, RunFile) else SweepConfig()).model_dump()
    texts = [f"{path}={wish}" for path, wish in over.items() if isinstance(wish, str)]
    tables = {path: wish.model_dump() for path, wish in over.items() if not isinstance(wish, str)}
    sweep["over"] = with_over({**sweep["over"], **tables}, texts)
    base = file.training() if isinstance(file, RunFile) else file
    return RunFile.from_mapping({**base.model_dump(), "search": sweep})


def _begin(root: Path, plan: RunFile) -> None:
    """Check a new search and write its configuration; refuse a folder of another one."""
    if (root / CONFIG).is_file():
        _check_same(root, plan)
        for trial in trial_folders(root):
            require_plugins(trial)
        return
    others = sorted(path.name for path in root.iterdir() if path.name != SEARCH)
    if others:
        raise ArtifactError(
            "artifact-exists",
            wrong=f"{root} must be a new folder, or that of a search",
            found=f"`{others[0]}` and no `{CONFIG}` in it",
            remedy="Choose another folder; nothing is ever overwritten.",
        )
    base = plan.training()
    check_sweep(base, _sweep(plan))
    check_seal(base, ledger_of(root))
    empty = SearchRun(root, (), None, {})
    _replace(root, {SEARCH: documents.encode_readable(_document(plan, empty))})
    _replace(root, {CONFIG: plan.to_toml().encode("utf-8")})


def _check_same(root: Path, plan: RunFile) -> None:
    """Refuse to go on with other settings, or with the search of another version."""
    document = read_document(root)
    wanted: dict[str, JsonValue] = {"kind": KIND, "format": FORMAT, "code_version": __version__}
    for name, value in wanted.items():
        if document.get(name) != value:
            raise ArtifactError(
                "artifact-mismatch",
                wrong=f"`{name}` of the search in {root} must be {toml.shown(value)}",
                found=toml.shown(document.get(name)),
                remedy="Go on with the version that it was begun with, or search in another "
                "folder.",
            )
    changed = differences(load_saved(RunFile, root / CONFIG), plan)
    if changed:
        raise ConfigError(
            "config-inconsistent",
            wrong=f"{', '.join(f'`{name}`' for name, _, _ in changed)} must stay what the search "
            f"in {root} was begun with",
            found=", ".join(
                f"`{name}` {toml.shown(new)} instead of {toml.shown(old)}"
                for name, old, new in changed
            ),
            remedy="Repeat the command that began it, or give the new search another folder.",
        )


def _document(plan: RunFile, result: SearchRun) -> dict[str, JsonValue]:
    """Return a search as plain data, without times: two equal searches have the same bytes."""
    sweep = _sweep(plan)
    return {
        "kind": KIND,
        "format": FORMAT,
        "code_version": __version__,
        "task": plan.task.name,
        "metric_mode": sweep.metric_mode,
        "rungs": list(rung_steps(plan)),
        "over": {path: searched.model_dump(mode="json") for path, searched in sweep.over.items()},
        "trials": [
            {
                "number": trial.number,
                "state": trial.state,
                "values": dict(trial.values),
                "scores": [[steps, score] for steps, score in trial.scores.items()],
                "metrics": {name: _known(value) for name, value in trial.metrics.items()},
                "reason": trial.reason,
            }
            for trial in result.trials
        ],
        "best": None if result.best is None else result.best.number,
        "importance": dict(result.importance),
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _replace(root: Path, files: Mapping[str, bytes]) -> None:
    try:
        with atomic.open_folder(root, follow=True) as folder:
            for name, data in files.items():
                atomic.replace_file(folder, name, data)
    except OSError as error:
        raise write_error(root, error) from error


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[Path]:
    """Hold the folder of a search; one that is refused before its start is removed again."""
    made = [place for place in (root, *root.parents) if not place.is_dir()]
    try:
        with contextlib.ExitStack() as stack:
            _lock(root, stack)
            yield root
    finally:
        for place in made:
            with contextlib.suppress(OSError):  # not empty: it holds a search
                place.rmdir()


def _lock(root: Path, stack: contextlib.ExitStack) -> None:
    try:
        atomic.make_folders(root)
        atomic.remove_leftovers(stack.enter_context(atomic.locked_folder(root)))
    except atomic.FolderBusyError as error:
        raise ArtifactError(
            "run-busy",
            wrong=f"one process at a time must drive the search in {root}",
            found="another one that does so now",
            remedy="Wait for it or stop it, or give this search a folder of its own.",
        ) from error
    except OSError as error:
        raise write_error(root, error) from error


def _given_up(root: Path, count: str, last: Exception) -> StormsailError:
    words = f"{last.wrong}; found {last.found}" if isinstance(last, StormsailError) else str(last)
    return StormsailError(
        "trial-failed",
        wrong=f"the search in {root} must find values that can be trained with",
        found=f"{count}, the last one because {words}",
        remedy="Remove the cause or narrow the search, and repeat the command: what is done is "
        "kept.",
    )
