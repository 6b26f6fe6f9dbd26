"""What a report is made of: saved backtests, saved validations and runs, read and checked.

A backtest and a validation lie in folders of the same tables; here they become one thing, a
`Result`, so that the rest of the report need not ask which it has, except for the verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormsail.core.errors import ArtifactError, DataError
from stormsail.core.files.artifact import Artifact, read_artifact
from stormsail.core.files.documents import DocumentError, JsonValue, decode
from stormsail.evaluation.stats.figures import Array

Times = NDArray[np.int64]
Document = Mapping[str, JsonValue]

KINDS = {"backtest": "summary", "validation": "validation"}
"""Kinds of folders that can be shown, each with the document that it must hold."""

_TABLES = ("equity.parquet", "trades.parquet", "decisions.parquet")
_EVENTS_LIMIT = 1 << 26


@dataclass(frozen=True, eq=False)  # arrays do not compare to one truth value
class Result:
    """One backtest or validation."""

    name: str
    """What the reader calls it."""
    kind: str
    """`backtest` or `validation`."""
    document: Document
    """`summary.json` or `validation.json`."""
    equity: pa.Table
    trades: pa.Table
    decisions: pa.Table
    documents: Document
    """Further plain data: `costs`, `stress`, `luck`, `calibration`, `baselines`."""
    tables: Mapping[str, pa.Table] = field(default_factory=dict)

    @property
    def ts(self) -> Times:
        """Close times of the marks, UTC milliseconds, [N + 1]."""
        return np.asarray(self.equity["ts"].to_numpy(), np.int64)

    @property
    def total(self) -> Array:
        """Equity of all accounts together, [N + 1]."""
        return column(self.equity, "total")

    @property
    def returns(self) -> Array:
        """Simple return of each bar, [N]; 0 after ruin."""
        before, after = self.total[:-1], self.total[1:]
        alive = before > 0.0
        return np.asarray(np.where(alive, after / np.where(alive, before, 1.0) - 1.0, 0.0))

    @property
    def metrics(self) -> Document:
        """Figures by name, each a statement as plain data."""
        return mapping(self.document.get("metrics"))

    @property
    def symbols(self) -> list[str]:
        """What was traded."""
        return [str(one) for one in items(self.document.get("symbols"))]

    @property
    def bar_ms(self) -> int:
        """Length of a bar in milliseconds."""
        told = self.metrics.get("bar_ms")
        return told if isinstance(told, int) else int(np.diff(self.ts).min(initial=1 << 62))

    def part(self, name: str) -> Document | None:
        """Return a further document, or None where it was not measured."""
        found = self.documents.get(name)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """Metrics and events of a training."""

    name: str
    metrics: pa.Table
    """One row an update."""
    events: tuple[Document, ...]
    """In order: alarms, looks at the agent, and whatever else happened."""

    def alarms(self) -> list[Document]:
        """Return the alarms, in order."""
        return [one for one in self.events if one.get("kind") == "alarm"]


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Return what lies in folders of backtests and validations, each under a name of its own.

    Raises:
        ArtifactError: if one is missing, damaged, or something else.
    """
    return [_result(path, name) for path, name in zip(paths, names_of(paths), strict=True)]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return short names of folders: the last part, and more of it where two are the same."""
    parts = [[one for one in path.parts if one not in ("/", ".", "..")] or ["."] for path in paths]
    for depth in range(1, max((len(one) for one in parts), default=0) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(one)} ({place})" for place, one in enumerate(parts, start=1)]


def _result(path: Path, name: str) -> Result:
    artifact = read_artifact(path)
    if artifact.kind not in KINDS:
        raise ArtifactError(
            "artifact-kind",
            wrong=f"{path} must be the folder of a `backtest` or a `validation`",
            found=f"`{artifact.kind}`",
            remedy="Pass what `stormsail backtest` or `stormsail validate` wrote with `--out`.",
        )
    main = artifact.documents.get(KINDS[artifact.kind])
    if not isinstance(main, dict) or not set(_TABLES) <= set(artifact.blobs):
        raise ArtifactError(
            "artifact-files",
            wrong=f"{path} must hold `{KINDS[artifact.kind]}.json` and {', '.join(_TABLES)}",
            found=f"only {sorted([*artifact.documents, *artifact.blobs])}",
            remedy="Use another copy, or run it again.",
        )
    tables = {file: _table(artifact, file) for file in artifact.blobs if file.endswith(".parquet")}
    equity, trades, decisions = (tables.pop(file) for file in _TABLES)
    rest = {key: value for key, value in artifact.documents.items() if value is not main}
    return Result(name, artifact.kind, main, equity, trades, decisions, rest, tables)


def _table(artifact: Artifact, name: str) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(artifact.blobs[name]))
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(
            "artifact-corrupt",
            wrong=f"`{name}` of {artifact.path} must be a Parquet table",
            found=str(error).split("\n")[0],
            remedy="Use another copy, or run it again.",
        ) from error


def read_run(path: Path, *, name: str) -> TrainingRun:
    """Return metrics and events of a run folder.

    Raises:
        DataError: if `metrics.parquet` is missing or damaged, or an event is no JSON.
    """
    try:
        with pq.ParquetFile(path / "metrics.parquet") as file:
            metrics = file.read()
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DataError(
            "data-unreadable",
            wrong=f"{path} must be the folder of a run with `metrics.parquet`",
            found=str(error).split("\n")[0],
            remedy="Pass the folder that `stormsail train` wrote with `--out`.",
        ) from error
    return TrainingRun(name, metrics, tuple(_events(path / "events.jsonl")))


def _events(path: Path) -> Iterator[Document]:
    """Yield the events of a run; a run that wrote none has no file."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        lines = file.read(_EVENTS_LIMIT).split(b"\n")
    # the last piece is empty, or a line that a running training has not finished
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event = decode(line)
        except DocumentError as error:
            raise DataError(
                "data-unreadable",
                wrong=f"line {number} of {path} must be strict JSON",
                found=str(error),
                remedy="Put the file back, or leave the run out.",
            ) from error
        if isinstance(event, dict):
            yield event


def column(table: pa.Table, name: str) -> Array:
    """Return a column as float64, NaN where it is null."""
    return np.asarray(table[name].to_numpy(), np.float64)


def texts(table: pa.Table, name: str) -> NDArray[np.str_]:
    """Return a column of texts."""
    return np.array([str(one) for one in table[name].to_pylist()], dtype=np.str_)


def mapping(value: JsonValue) -> Document:
    """Return a table of plain data; an empty one where it is something else."""
    return value if isinstance(value, dict) else {}


def items(value: JsonValue) -> Sequence[JsonValue]:
    """Return a list of plain data; an empty one where it is something else."""
    return value if isinstance(value, list) else []


def number(value: JsonValue) -> float | None:
    """Return a number, or None where it is something else."""
    return float(value) if isinstance(value, int | float) and type(value) is not bool else None
