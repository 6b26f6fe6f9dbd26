"""Read a search from its folder: its trials, their values and scores, and what mattered.

`stormsail search` writes `search.json`; it is read here as a document, since evaluation lies below
the algorithms that write it, and without Optuna.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stormsail.core.errors import ArtifactError
from stormsail.core.files import atomic, documents
from stormsail.core.files.documents import (
    Document,
    DocumentError,
    JsonValue,
    items,
    mapping,
    number,
)

SEARCH = "search.json"
KIND = "search"

STATES = ("finished", "pruned", "diverged", "running", "refused", "failed")
TRIED = ("finished", "pruned", "diverged", "running")
"""States of what counts as a trial."""

MODES = ("max", "min")
Value = bool | int | float | str

_LIMIT = 1 << 28


@dataclass(frozen=True)
class Range:
    """What was searched of a setting.

    Attributes:
        low: least value of a range; None for a list.
        high: largest value.
        values: of a list.
        is_log_scale: whether the range is one of factors.
    """

    low: float | None
    high: float | None
    values: tuple[Value, ...]
    is_log_scale: bool

    def place(self, value: Value) -> float:
        """Return where a value lies between the ends, from 0 to 1."""
        if self.low is None or self.high is None:
            last = max(1, len(self.values) - 1)
            at = self.values.index(value) if value in self.values else 0
            return at / last if len(self.values) > 1 else 0.5
        low, high, own = self.low, self.high, float(value)
        if self.is_log_scale:
            low, high, own = math.log(low), math.log(high), math.log(max(own, 1e-300))
        return min(1.0, max(0.0, (own - low) / (high - low)))


@dataclass(frozen=True)
class SavedTrial:
    """One trial.

    Attributes:
        number: from 0.
        state: one of `STATES`.
        values: of the searched settings, by path.
        scores: smoothed fitness after so many steps, in order.
        metrics: of the evaluation behind the last score.
        reason: why it did not finish.
    """

    number: int
    state: str
    values: Mapping[str, Value]
    scores: tuple[tuple[int, float], ...]
    metrics: Mapping[str, float]
    reason: str

    @property
    def fitness(self) -> float:
        """The last score; NaN without any."""
        return self.scores[-1][1] if self.scores else math.nan

    @property
    def steps(self) -> int:
        """Steps at the last score."""
        return self.scores[-1][0] if self.scores else 0


@dataclass(frozen=True)
class SavedSearch:
    """A search.

    Attributes:
        name: for display.
        task: that was trained.
        mode: `max` where a large fitness is the better one, `min` where a small one is.
        rungs: steps after which trials are scored, the last at their end.
        over: searched settings by path.
        trials: by number.
        best: number of the best finished one; None without any.
        importance: share of each setting, the largest first; empty where it is not known.
    """

    name: str
    task: str
    mode: str
    rungs: tuple[int, ...]
    over: Mapping[str, Range]
    trials: tuple[SavedTrial, ...]
    best: int | None
    importance: Mapping[str, float]

    @property
    def counted(self) -> tuple[SavedTrial, ...]:
        """Trials that count as such."""
        return tuple(trial for trial in self.trials if trial.state in TRIED)

    def ranking(self) -> list[SavedTrial]:
        """Return trials from best to worst: those that came further first, then by fitness."""
        sign = -1.0 if self.mode == "max" else 1.0
        return sorted(
            self.counted,
            key=lambda trial: (
                -trial.steps,
                sign * trial.fitness if trial.scores else math.inf,
                trial.number,
            ),
        )


def is_search(path: Path) -> bool:
    """Return whether a folder holds a search."""
    return (path / SEARCH).is_file()


def read_document(path: Path) -> Document:
    """Return the document of a search as it is.

    Raises:
        ArtifactError: if it is missing or no JSON table.
    """
    try:
        with atomic.open_folder(path, follow=True) as folder:
            data = atomic.read_file(folder, SEARCH, limit=_LIMIT)
    except OSError as error:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"the folder of a search must hold a readable {path / SEARCH}",
            found=error.strerror or str(error),
            remedy="Pass the whole folder that `stormsail search` wrote.",
        ) from error
    try:
        document = documents.decode(data)
    except DocumentError as error:
        raise _error(path, str(error)) from error
    if not isinstance(document, dict):
        raise _error(path, "no table")
    return document


def read_search(path: Path | str, name: str = "") -> SavedSearch:
    """Return a search that `stormsail search` wrote, finished or not.

    Raises:
        ArtifactError: if its document is missing or damaged.
    """
    path = Path(path)
    document = read_document(path)
    try:
        return _search(document, name or path.resolve().name)
    except DocumentError as error:
        raise _error(path, str(error)) from error


def _search(document: Document, name: str) -> SavedSearch:
    if document.get("kind") != KIND or document.get("metric_mode") not in MODES:
        raise DocumentError(f"kind {document.get('kind')!r}, mode {document.get('metric_mode')!r}")
    over = {key: _range(mapping(entry)) for key, entry in mapping(document.get("over")).items()}
    if not over:
        raise DocumentError("no searched setting")
    trials = tuple(
        _trial(mapping(entry), place, over)
        for place, entry in enumerate(items(document.get("trials")))
    )
    shares = _numbers(mapping(document.get("importance")))
    best = document.get("best")
    if best is not None and not (type(best) is int and 0 <= best < len(trials)):
        raise DocumentError(f"{best!r} as the best of {len(trials)} trials")
    return SavedSearch(
        name=name,
        task=str(document.get("task")),
        mode=str(document.get("metric_mode")),
        rungs=tuple(_whole(steps) for steps in items(document.get("rungs"))),
        over=over,
        trials=trials,
        best=best if type(best) is int else None,
        importance=dict(sorted(shares.items(), key=lambda entry: (-entry[1], entry[0]))),
    )


def _range(entry: Document) -> Range:
    low, high, values = number(entry.get("min")), number(entry.get("max")), entry.get("values")
    listed = tuple(value for value in items(values) if isinstance(value, Value)) if values else ()
    if not listed and (low is None or high is None or low >= high):
        raise DocumentError(f"a range from {low!r} to {high!r}")
    return Range(low, high, listed, entry.get("is_log_scale") is True)


def _trial(entry: Document, place: int, over: Mapping[str, Range]) -> SavedTrial:
    state, values = entry.get("state"), mapping(entry.get("values"))
    if entry.get("number") != place or state not in STATES:
        raise DocumentError(f"trial {entry.get('number')!r} that is {state!r} at place {place}")
    known = {key: value for key, value in values.items() if isinstance(value, Value)}
    if set(known) != set(over):
        raise DocumentError(f"values of {sorted(known)} in place of {sorted(over)}")
    return SavedTrial(
        number=place,
        state=str(state),
        values={key: known[key] for key in over},
        scores=tuple(_score(items(score)) for score in items(entry.get("scores"))),
        metrics=_numbers(mapping(entry.get("metrics"))),
        reason=str(entry.get("reason", "")),
    )


def _score(pair: Sequence[JsonValue]) -> tuple[int, float]:
    score = number(pair[1]) if len(pair) == 2 else None
    if score is None:
        raise DocumentError(f"{list(pair)!r} in place of steps and a score")
    return _whole(pair[0]), score


def _numbers(table: Document) -> dict[str, float]:
    known = {key: number(value) for key, value in table.items()}
    return {key: value for key, value in known.items() if value is not None}


def _whole(value: JsonValue) -> int:
    if type(value) is not int or value < 0:
        raise DocumentError(f"{value!r} in place of a whole number")
    return value


def _error(path: Path, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path / SEARCH} must hold a search as this version writes it",
        found=problem,
        remedy="Repeat the command of the search, which writes it anew, or restore it from a copy.",
    )
