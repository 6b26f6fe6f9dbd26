"""Services that show a run, such as MLflow or W&B: one small protocol, and how a run feeds them.

A logger is shown what the run has saved: rows of `metrics.parquet` are handed over after each
checkpoint and at the end. So a kill loses nothing and repeats nothing, and a logger that was added
or had failed gets what it missed. `loggers.json` in the folder of the run keeps, for each logger,
the id of its run and how many rows it has.

A logger changes nothing that is computed and is no part of the configuration. Whatever it raises,
the training goes on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from stormsail.core.errors import ChoiceError
from stormsail.core.files import atomic, documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.monitors.alarms import ALARM_NAMES, warn
from stormsail.monitors.sinks import MetricsFile

FILE = "loggers.json"
"""In the folder of a run."""

STEP = "train/env_steps"
"""Metric that is the step of a row."""

_ROWS = 64
"""Most rows of one call."""

_ATTEMPTS = 3
"""Failures in a row after which a logger is left alone until the run is resumed."""

_MAX_BYTES = 1 << 20

Setting = str | int | float | bool | None
Row = tuple[int, dict[str, float]]
"""Environment steps, and every metric that is known."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class LoggedRun:
    """A run, as it is introduced to a logger."""

    name: str
    path: Path
    parameters: Mapping[str, Setting]
    """Every setting by its dotted name."""
    tags: Mapping[str, str]
    """Version, seed and hash of the configuration."""


@dataclass(frozen=True)
class Ending:
    """How a run, or a part of it in one process, ended."""

    status: Literal["finished", "interrupted", "stopped", "failed"]
    reason: str = ""
    """Why it did not finish."""
    best_agent: Path | None = None
    """Folder of the artifact; None where no agent was evaluated."""
    best_score: float | None = None
    alarms: tuple[str, ...] = ()
    """Names of all alarms that were raised in the run."""


class MetricsLogger(Protocol):
    """A service that shows runs. Implement it to add one; it may raise anything.

    `start` is called once in each process, before anything else, then `write` any number of times,
    `finish` once.
    """

    name: str
    """In `loggers.json`, so it must not change between processes."""

    def start(self, run: LoggedRun, run_id: str | None) -> str:
        """Begin a run, or continue that with the id; return its id."""
        ...

    def write(self, rows: Sequence[Row]) -> None:
        """Add the metrics of some updates; unknown ones are left out of a row."""
        ...

    def finish(self, ending: Ending) -> None:
        """Say how the run ended; return once everything is delivered."""
        ...


class Loggers:
    """All loggers of a run.

    Args:
        loggers: each with a name of its own.
        run: how it is introduced.
        on_failure: called with the name of a logger and what it raised, the first time.

    Raises:
        ChoiceError: if two loggers have the same name.
    """

    def __init__(
        self,
        loggers: Sequence[MetricsLogger],
        run: LoggedRun,
        *,
        on_failure: Callable[[str, str], None],
    ) -> None:
        names = [logger.name for logger in loggers]
        if len(set(names)) < len(names):
            raise ChoiceError(
                wrong="each logger of a run must have a name of its own",
                found=", ".join(f"`{name}`" for name in names),
                remedy="Pass each of them once.",
            )
        self._loggers, self._run, self._on_failure = tuple(loggers), run, on_failure
        self._failures = dict.fromkeys(names, 0)
        """Failures in a row, of each."""
        self._warned: set[str] = set()
        self._started: set[str] = set()
        self._ids: dict[str, str] = {}
        self._rows: dict[str, int] = {}
        """Rows that each has."""
        if loggers:
            self._read()

    def send(self, metrics: MetricsFile) -> None:
        """Hand over every row that a logger does not have yet; start it before, if need be."""
        for logger in self._loggers:
            if self._failures[logger.name] < _ATTEMPTS:
                self._guarded(logger, self._deliver, metrics)

    def rewind(self, rows: int) -> None:
        """Forget the rows from this number on: the run went back there and does them again."""
        self._rows = {name: min(known, rows) for name, known in self._rows.items()}

    def finish(self, metrics: MetricsFile, ending: Ending) -> None:
        """Hand over the rest and say how the run ended."""
        self.send(metrics)
        self._end(ending)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Say that the run failed if anything is raised inside."""
        try:
            yield
        except BaseException as error:
            self._end(Ending("failed", f"{type(error).__name__}: {error}"))
            raise

    def _end(self, ending: Ending) -> None:
        for logger in self._loggers:
            if logger.name in self._started:
                self._guarded(logger, lambda logger: logger.finish(ending))
        self._started.clear()

    def _deliver(self, logger: MetricsLogger, metrics: MetricsFile) -> None:
        name = logger.name
        if name not in self._started:
            self._ids[name] = logger.start(self._run, self._ids.get(name))
            self._started.add(name)
            self._write()
        while (first := self._rows.get(name, 0)) < len(metrics):
            last = min(first + _ROWS, len(metrics))
            logger.write([_known(metrics.row(place)) for place in range(first, last)])
            self._rows[name] = last
            self._write()

    def _guarded(
        self, logger: MetricsLogger, action: Callable[..., None], *arguments: object
    ) -> None:
        """Call; whatever a service raises must not end a training."""
        name = logger.name
        try:
            action(logger, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever a service raises
            self._failures[name] += 1
            self._report(name, f"{type(error).__name__}: {error}".split("\n")[0])
        else:
            self._failures[name] = 0

    def _report(self, name: str, problem: str) -> None:
        """Warn of a failure once, and once more when the logger is left alone."""
        if name not in self._warned:
            self._warned.add(name)
            self._on_failure(name, problem)
            warn(
                f"{self._run.name}: the logger `{name}` failed, and the training goes on without "
                f"it; what it misses is sent with the next checkpoint ({problem})"
            )
        elif self._failures[name] == _ATTEMPTS:
            warn(
                f"{self._run.name}: the logger `{name}` failed {_ATTEMPTS} times in a row and is "
                f"left alone; resume the run with it to send what it missed ({problem})"
            )

    def _read(self) -> None:
        """Read what earlier processes knew; a damaged file is as good as none, but warned of."""
        try:
            with atomic.open_folder(self._run.path, follow=True) as folder:
                if not atomic.exists(folder, FILE):
                    return
                saved = documents.decode(atomic.read_file(folder, FILE, limit=_MAX_BYTES))
            ids, rows = _parsed(saved)
        except (OSError, DocumentError, ValueError) as error:
            warn(f"{self._run.name}: `{FILE}` is damaged, so loggers begin new runs ({error})")
            return
        self._ids, self._rows = ids, rows

    def _write(self) -> None:
        state: dict[str, JsonValue] = {
            name: {"id": run_id, "rows": self._rows.get(name, 0)}
            for name, run_id in self._ids.items()
        }
        with atomic.open_folder(self._run.path, follow=True) as folder:
            atomic.replace_file(folder, FILE, documents.encode_readable(state))


def raised_alarms(metrics: MetricsFile) -> tuple[str, ...]:
    """Return the names of all alarms that some row shows."""
    return tuple(
        name for name in ALARM_NAMES if any(value != 0.0 for value in metrics.column(name))
    )


def flattened(data: Mapping[str, object], above: str = "") -> dict[str, Setting]:
    """Return nested settings by their dotted names; what is no plain value becomes text."""
    settings: dict[str, Setting] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            settings |= flattened(value, f"{above}{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            settings[above + name] = value
        else:
            settings[above + name] = str(value)
    return settings


def _known(row: Mapping[str, float]) -> Row:
    known = {name: value for name, value in row.items() if value == value}  # no NaN
    return int(row[STEP]), known


def _parsed(saved: JsonValue) -> tuple[dict[str, str], dict[str, int]]:
    """Return ids and rows by logger.

    Raises:
        ValueError: if the document is not one that `Loggers` writes.
    """
    ids: dict[str, str] = {}
    rows: dict[str, int] = {}
    for name, entry in saved.items() if isinstance(saved, dict) else [("", saved)]:
        run_id, count = (
            (entry.get("id"), entry.get("rows")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(run_id, str) or type(count) is not int:
            raise ValueError(f"the entry `{name}` has no id and number of rows")
        ids[name], rows[name] = run_id, count
    return ids, rows
