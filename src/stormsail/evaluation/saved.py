"""Read saved results from their folders: backtests, validations and training runs.

`engine/files.py` writes backtests and `walk_forward/files.py` writes validations, both as artifacts
with the same three tables. This module alone reads them: either becomes a `Result`, and the same
damage has the same error code wherever it is met.

| damage                                                           | code                |
|------------------------------------------------------------------|---------------------|
| no such folder                                                   | `artifact-missing`  |
| a file is missing, in excess, or not listed in the manifest      | `artifact-files`    |
| the manifest is damaged                                          | `artifact-manifest` |
| a file has another checksum, or a table is not Parquet           | `artifact-corrupt`  |
| a document is not JSON; a key or a column is missing             | `artifact-document` |
| the folder holds something else: an agent, a run                 | `artifact-kind`     |
| another version of the format wrote it                           | `artifact-version`  |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormsail.core.errors import ArtifactError, DataError
from stormsail.core.files import documents
from stormsail.core.files.artifact import Artifact, read_artifact
from stormsail.core.files.documents import Document as Document
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.documents import items as items
from stormsail.core.files.documents import mapping as mapping
from stormsail.core.files.documents import number as number
from stormsail.core.files.regular import open_regular
from stormsail.evaluation.attack import files as attack_files
from stormsail.evaluation.engine import files as backtest_files
from stormsail.evaluation.engine.files import DECISIONS, EQUITY, FORMAT, TRADES
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.figures import Array, returns_of
from stormsail.evaluation.stats.frames import Frames
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward import files as validation_files
from stormsail.evaluation.walk_forward.verdict import ORDER, Reason, Verdict

Times = NDArray[np.int64]
MAIN = {
    backtest_files.KIND: backtest_files.SUMMARY,
    validation_files.KIND: validation_files.DOCUMENT,
}
"""Kinds of results, each with the name of its main document."""

RUN = "run"
"""Kind of the folder of a training run."""

_MANIFEST = "manifest.json"
_MOST_BYTES = 1 << 26

_KEYS: Mapping[str, type] = {
    "code_version": str, "end": str, "first_bar": str, "hashes": dict, "interval": str,
    "metrics": dict, "settings": dict, "symbols": list,
}  # fmt: skip
_VALIDATION_KEYS: Mapping[str, type] = {
    "folds": list, "runs": list, "seeds": list, "self_tests": list, "test_span": dict,
    "verdict": dict,
}  # fmt: skip
_FORMS: Mapping[type, str] = {str: "text", dict: "table", list: "list"}
_COLUMNS = {
    EQUITY: ("ts", "total"),
    TRADES: ("ts", "symbol", "side", "quantity", "price", "fee", "slippage", "reason"),
    DECISIONS: ("ts", "symbol", "weight", "quantity"),
    validation_files.BASELINES: ("ts",),
}


@dataclass(frozen=True, eq=False)  # arrays do not compare to one truth value
class Result:
    """One saved backtest or validation."""

    name: str
    """Display name."""
    kind: str
    """`backtest` or `validation`."""
    document: Document
    """`summary.json` or `validation.json`."""
    equity: pa.Table
    trades: pa.Table
    decisions: pa.Table
    documents: Document
    """Further documents: `baselines`, `calibration`, `costs`, `performance`,
    `significance`, `stress`."""
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    """Further tables by file name: `baselines.parquet`."""
    verdict: Verdict | None = None
    """The verdict of a validation; None for a backtest."""
    final_verdict: Verdict | None = None
    """The verdict on the final test span alone; None while that span is closed."""
    digest: str = ""
    """SHA-256 of the whole folder."""

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
        return returns_of(self.total)

    @property
    def frames(self) -> Frames:
        """The result as pandas frames and CSV files, with its baselines as benchmarks."""
        table = self.tables.get(validation_files.BASELINES)
        names = [] if table is None else [name for name in table.column_names if name != "ts"]
        return Frames(
            self.ts,
            self.total,
            self.bar_ms,
            self.trades,
            benchmarks={name.replace("_", " "): column(table, name) for name in names},
            performance=self.part("performance") or {},
        )

    @property
    def metrics(self) -> dict[str, Statement]:
        """Metrics by name."""
        read = {key: statement_of(value) for key, value in self._metrics().items()}
        return {key: statement for key, statement in read.items() if statement is not None}

    @property
    def bar_ms(self) -> int:
        """Length of a bar in milliseconds."""
        length = self._metrics().get("bar_ms")
        return length if isinstance(length, int) else int(np.diff(self.ts).min(initial=1 << 62))

    @property
    def symbols(self) -> list[str]:
        """The symbols that were traded."""
        return [str(symbol) for symbol in items(self.document.get("symbols"))]

    @property
    def self_tests(self) -> list[SelfTest]:
        """The self-tests of a validation."""
        return [
            SelfTest(str(row.get("name")), truth(row.get("holds")), str(row.get("words", "")))
            for row in map(mapping, items(self.document.get("self_tests")))
        ]

    def part(self, name: str) -> Document | None:
        """Return a further document, or None where it was not measured."""
        document = self.documents.get(name)
        return document if isinstance(document, dict) else None

    def _metrics(self) -> Document:
        return mapping(self.document.get("metrics"))


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Return the results in folders, each with a short name of its own.

    Raises:
        ArtifactError: if one is missing, damaged, or something else.
    """
    return [read_result(path, name) for path, name in zip(paths, names_of(paths), strict=True)]


def read_result(path: Path | str, name: str = "") -> Result:
    """Return a saved backtest or validation, verified against its checksums.

    Its display name is by default that of the folder.

    Raises:
        ArtifactError: if it is missing, damaged, or something else; the table above has the codes.
    """
    path = Path(path)
    if kind_of(path) == RUN:  # its manifest is no artifact's
        raise _kind_error(path, RUN)
    artifact = read_artifact(path)
    if artifact.kind not in MAIN:
        raise _kind_error(path, artifact.kind)
    further = dict(artifact.documents)
    document = further.pop(MAIN[artifact.kind], None)
    if not isinstance(document, dict) or not {EQUITY, TRADES, DECISIONS} <= set(artifact.blobs):
        raise ArtifactError(
            "artifact-files",
            wrong=f"{path} must hold `{MAIN[artifact.kind]}.json` and the tables {EQUITY}, "
            f"{TRADES} and {DECISIONS}",
            found=f"{sorted([*artifact.documents, *artifact.blobs])}",
            remedy=f"Use another copy, or run the {artifact.kind} again.",
        )
    if document.get("format") != FORMAT:
        raise ArtifactError(
            "artifact-version",
            wrong=f"the {artifact.kind} in {path} must have the format {FORMAT}",
            found=f"{document.get('format')!r}",
            remedy=f"Run the {artifact.kind} again, or read it with the version that wrote it.",
        )
    tables = {file: _table(artifact, file) for file in artifact.blobs}
    equity, trades, decisions = (tables.pop(file) for file in (EQUITY, TRADES, DECISIONS))
    result = Result(
        name=name or path.name,
        kind=artifact.kind,
        document=document,
        equity=equity,
        trades=trades,
        decisions=decisions,
        documents=further,
        tables=tables,
        verdict=_verdict(path, document.get("verdict")),
        final_verdict=_verdict(path, mapping(document.get("test")).get("verdict")),
        digest=artifact.digest,
    )
    _check_document(path, result)
    return result


@dataclass(frozen=True)
class SavedAttack:
    """A saved robustness curve."""

    name: str
    """Display name."""
    document: Document
    """`attack.json`."""


def read_attack(path: Path | str, name: str = "") -> SavedAttack:
    """Return a robustness curve that `stormsail attack` wrote, verified against its checksums.

    Raises:
        ArtifactError: if it is missing, damaged, or something else; the table above has the codes.
    """
    path = Path(path)
    artifact = read_artifact(path, kind=attack_files.KIND)
    file = f"{attack_files.DOCUMENT}.json"
    document = mapping(artifact.documents.get(attack_files.DOCUMENT))
    if document.get("format") != attack_files.FORMAT:
        raise ArtifactError(
            "artifact-version",
            wrong=f"`{file}` of {path} must have the format {attack_files.FORMAT}",
            found=f"{document.get('format')!r}",
            remedy="Attack the agent again, or read it with the version that wrote it.",
        )
    if not items(document.get("points")) or not mapping(document.get("settings")):
        raise _document_error(path, file, "no points or no settings")
    return SavedAttack(name or path.name, document)


PARITY = "parity"
"""Kind and document of a parity report."""


@dataclass(frozen=True)
class SavedParity:
    """A traded account beside the backtest of the same bars, as `stormsail replay` saved it."""

    name: str
    """Display name."""
    document: Document
    """`parity.json`."""


def read_parity(path: Path | str, name: str = "") -> SavedParity:
    """Return a parity report, verified against its checksums.

    Raises:
        ArtifactError: if it is missing, damaged, or something else; the table above has the codes.
    """
    path = Path(path)
    document = mapping(read_artifact(path, kind=PARITY).documents.get(PARITY))
    if not isinstance(document.get("decisions"), int):
        raise _document_error(path, f"{PARITY}.json", "no count of decisions")
    return SavedParity(name or path.name, document)


def kind_of(path: Path) -> str | None:
    """Return the kind that the manifest of a folder names; None where there is no readable one."""
    try:
        with open_regular(path / _MANIFEST) as file:
            kind = mapping(documents.decode(file.read(_MOST_BYTES))).get("kind")
    except (OSError, DocumentError):
        return None
    return kind if isinstance(kind, str) else None


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return short names of folders: the last part, and more of it where two are the same."""
    parts = [[p for p in path.parts if p not in ("/", ".", "..")] or ["."] for path in paths]
    for depth in range(1, max((len(part) for part in parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(part)} ({place})" for place, part in enumerate(parts, start=1)]


def _kind_error(path: Path, kind: str) -> ArtifactError:
    return ArtifactError(
        "artifact-kind",
        wrong=f"{path} must be the folder of a `backtest` or a `validation`",
        found=f"`{kind}`",
        remedy="Pass what `stormsail backtest` or `stormsail validate` wrote with `--out`; runs "
        "are taken by `stormsail compare` and `stormsail report --run`.",
    )


def _table(artifact: Artifact, file: str) -> pa.Table:
    try:
        table = pq.read_table(pa.BufferReader(artifact.blobs[file]))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArtifactError(
            "artifact-corrupt",
            wrong=f"`{file}` of {artifact.path} must be a Parquet table",
            found=str(error).split("\n")[0],
            remedy=f"Use another copy, or run the {artifact.kind} again.",
        ) from error
    # a validation in which no training finished has tables of trades with few columns and no rows
    absent = set(_COLUMNS.get(file, ())) - set(table.column_names)
    if absent and (table.num_rows or file == EQUITY):
        raise _document_error(artifact.path, file, f"no column `{min(absent)}`")
    if file == EQUITY and not (table.num_rows and np.isfinite(column(table, "total")).all()):
        raise _document_error(artifact.path, file, "no equity, or one that is not finite")
    return table


def _check_document(path: Path, result: Result) -> None:
    """Refuse a result whose main document lacks what its readers rely on."""
    is_validation = result.kind == validation_files.KIND
    for key, form in {**_KEYS, **(_VALIDATION_KEYS if is_validation else {})}.items():
        if not isinstance(result.document.get(key), form):
            file = f"{MAIN[result.kind]}.json"
            raise _document_error(path, file, f"no {_FORMS[form]} `{key}`")
    absent = set() if is_validation else set(result.symbols) - set(result.equity.column_names)
    if absent:
        raise _document_error(path, EQUITY, f"no column `{min(absent)}`")


def _verdict(path: Path, value: JsonValue) -> Verdict | None:
    """Return a verdict that `Verdict.document` wrote; None where there is none."""
    if value is None:
        return None
    decision = mapping(value).get("decision")
    if decision not in ORDER:
        file = f"{validation_files.DOCUMENT}.json"
        raise _document_error(path, file, f"the decision {decision!r} of a verdict")
    written = mapping(value)
    explained = mapping(written.get("explanations"))
    return Verdict(
        decision,
        str(written.get("words", "")),
        _reasons(written.get("reasons")),
        _reasons(written.get("conditions")),
        {name: str(text) for name, text in explained.items()},
        number(written.get("capital_share")) or 0.0,
    )


def _reasons(rows: JsonValue) -> tuple[Reason, ...]:
    return tuple(
        Reason(
            str(row.get("name")),
            truth(row.get("holds")),
            str(row.get("words", "")),
            number(row.get("value")),
            number(row.get("needed")),
        )
        for row in map(mapping, items(rows))
    )


def _document_error(path: Path, file: str, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"`{file}` of {path} must be as this version writes it",
        found=found,
        remedy="Use another copy, or run it again.",
    )


# ------------------------------------------------------------------ training runs


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """Metrics and events of a training run."""

    name: str
    metrics: pa.Table
    """One row an update."""
    events: tuple[Document, ...]
    """In order: alarms, evaluations of the agent (`trial`), and whatever else happened."""

    def alarms(self) -> list[Document]:
        """Return the alarms, in order."""
        return [event for event in self.events if event.get("kind") == "alarm"]

    def evaluations(self) -> list[Document]:
        """Return the evaluations of the agent during training, in order."""
        return [event for event in self.events if event.get("kind") == "trial"]


def read_run(path: Path, *, name: str) -> TrainingRun:
    """Return metrics and events of the folder of a training run.

    Raises:
        DataError: if `metrics.parquet` is missing or damaged, or an event is not JSON.
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
        lines = file.read(_MOST_BYTES).split(b"\n")
    # the last piece is empty, or a line that a running training has not finished
    for row, line in enumerate(lines[:-1], start=1):
        try:
            event = documents.decode(line)
        except DocumentError as error:
            raise DataError(
                "data-unreadable",
                wrong=f"line {row} of {path} must be strict JSON",
                found=str(error),
                remedy="Put the file back, or leave the run out.",
            ) from error
        if isinstance(event, dict):
            yield event


# ------------------------------------------------------------------ values


def statement_of(value: JsonValue) -> Statement | None:
    """Return the statement that `Statement.document` wrote; None for anything else."""
    document = mapping(value)
    if "value" not in document:
        return None
    needed, count = (int(number(document.get(key)) or 0) for key in ("needed", "found"))
    estimate, low, high = (number(document.get(key)) for key in ("value", "low", "high"))
    return Statement(
        estimate if count >= needed else None,
        low,
        high,
        needed=needed,
        found=count,
        unit=str(document.get("unit") or "bars"),
        why=str(document.get("reason") or ""),
    )


def flat(data: Document, above: str = "") -> dict[str, JsonValue]:
    """Return the leaves of nested tables by their paths, `market.costs.taker_fee`."""
    leaves: dict[str, JsonValue] = {}
    for name, value in data.items():
        if isinstance(value, dict) and value:
            leaves |= flat(value, f"{above}{name}.")
        else:
            leaves[above + name] = value
    return leaves


def column(table: pa.Table, name: str) -> Array:
    """Return a column as float64, NaN where it is null."""
    return np.asarray(table[name].to_numpy(), np.float64)


def texts(table: pa.Table, name: str) -> NDArray[np.str_]:
    """Return a column of texts."""
    return np.array([str(text) for text in table[name].to_pylist()], dtype=np.str_)


def truth(value: JsonValue) -> bool | None:
    """Return a truth value, or None where it is something else."""
    return value if isinstance(value, bool) else None
