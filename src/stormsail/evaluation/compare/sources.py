"""What is set side by side: the folder of a run, a backtest or a validation, read to one form.

A run is read from its own files alone (`config.toml`, `manifest.json`, `metrics.parquet`,
`events.jsonl`, `process.jsonl`), never from its checkpoints, so a run that still trains can be
compared too. Backtests and validations are artifacts: every byte is verified before it is believed.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents
from stormsail.core.files.artifact import verify_artifact
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.evaluation.report.results import (
    Document,
    Result,
    column,
    items,
    mapping,
    number,
    read_results,
    read_run,
)
from stormsail.evaluation.stats.statement import Statement
from stormsail.market.bars import iso

Kind = Literal["run", "backtest", "validation"]

_MANIFEST = "manifest.json"
_MAX_BYTES = 64 << 20
_COST_PATHS = ("market.costs", "training.task.market.costs")


class Curve(NamedTuple):
    """A line over time or over updates."""

    x: NDArray[np.int64]
    """UTC milliseconds; for a run, updates."""
    y: NDArray[np.float64]


class Reason(NamedTuple):
    """One rule of a verdict, and whether it holds."""

    name: str
    holds: bool | None
    """None where it cannot be told."""
    words: str


class Verdict(NamedTuple):
    """What a validation came to."""

    decision: str
    words: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, eq=False)  # arrays do not compare to one truth value
class Entry:
    """One of the things compared.

    Attributes:
        name: what it is called beside the others.
        path: its folder.
        kind: what it is.
        terms: what its figures depend on and must share with others' to be compared: `interval`,
            `symbols`, `span`, `bars`, `data`, `costs`, `start_equity`, and for a run `task`.
        figures: by name, each with its interval and data.
        settings: every setting by its path; what a validation passes on to its backtests has the
            path that it has in a backtest, its own begin with `validation.`, and settings of
            training with `training.`, those of a run as well.
        hashes: by name; None where none was written.
        notes: what a reader must know of this one alone, in words.
        verdict: of a validation.
        curve: equity; for a run, the score of each validation.
        code_version: of the package that wrote it.
    """

    name: str
    path: Path
    kind: Kind
    terms: Mapping[str, JsonValue]
    figures: Mapping[str, Statement]
    settings: Mapping[str, JsonValue]
    hashes: Mapping[str, str | None]
    notes: tuple[str, ...] = ()
    verdict: Verdict | None = None
    curve: Curve | None = None
    code_version: str = ""

    def sections(self) -> set[str]:
        """Return the first parts of the paths of its settings.

        A market that is nothing is left out: then the agent's own one is meant.
        """
        found = {path.partition(".")[0] for path in self.settings}
        return found - ({"market"} if self.settings.get("market", 0) is None else set())


def read_entry(path: Path | str, *, name: str) -> Entry:
    """Return a run, a backtest or a validation in the form in which they are compared.

    Args:
        path: its folder.
        name: what to call it.

    Raises:
        ArtifactError: if it is missing, damaged, or something else.
    """
    path = Path(path)
    told = _manifest(path)
    kind = told.get("kind")
    if kind == "run":
        return _run(path, name, told)
    if kind not in ("backtest", "validation"):
        raise ArtifactError(
            "artifact-kind",
            wrong=f"{path} must be a run, a `backtest` or a `validation`",
            found=f"`{kind}`",
            remedy="Pass the folder of a run, or what `stormsail backtest` or `stormsail validate` "
            "wrote.",
        )
    (result,) = read_results([path])
    read = _backtest if kind == "backtest" else _validation
    return read(path, name, result)


def flat(data: Document, above: str = "") -> dict[str, JsonValue]:
    """Return the leaves of nested tables by their paths, `market.costs.taker_fee`."""
    found: dict[str, JsonValue] = {}
    for name, value in data.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found


def statement_of(document: JsonValue) -> Statement | None:
    """Return the statement that `Statement.document` wrote; None for anything else."""
    if not isinstance(document, dict) or "needed" not in document:
        return None
    value, low, high = (_finite(document.get(name)) for name in ("value", "low", "high"))
    needed, found = (_whole(document.get(name)) for name in ("needed", "found"))
    unit, reason = (str(document.get(name) or "") for name in ("unit", "reason"))
    if found < needed:
        value = None
    return Statement(value, low, high, needed=needed, found=found, unit=unit, why=reason)


# ------------------------------------------------------------------ kinds


def _backtest(path: Path, name: str, result: Result) -> Entry:
    told = result.document
    settings = flat(mapping(told.get("settings")))
    return Entry(
        name=name,
        path=path,
        kind="backtest",
        terms={
            **_market_terms(told, settings),
            "seen": bool(told.get("overlaps_training")),
            "chosen_on": bool(told.get("overlaps_validation")),
        },
        figures=_statements(result.metrics),
        settings=settings,
        hashes=_hashes(told, path),
        notes=tuple(_backtest_notes(told)),
        curve=Curve(result.ts, result.total),
        code_version=str(told.get("code_version", "")),
    )


def _backtest_notes(told: Document) -> list[str]:
    notes = []
    if told.get("overlaps_training"):
        notes.append("its span overlaps the agent's training span: this is no test of it")
    if told.get("overlaps_validation"):
        notes.append("its span overlaps the bars on which the agent was chosen: it flatters")
    if unseen := _listed(told.get("unseen_symbols")):
        notes.append(f"not trained on: {unseen}")
    if liquidated := _whole(told.get("liquidations")):
        notes.append(f"liquidations: {liquidated}")
    if stopped := _listed(told.get("stopped_symbols")):
        notes.append(f"stopped before the end: {stopped}")
    return notes


def _validation(path: Path, name: str, result: Result) -> Entry:
    told = result.document
    own = dict(mapping(told.get("settings")))
    settings = flat(mapping(own.pop("backtest", None)))
    settings |= flat(own, "validation.") | flat(mapping(told.get("training")), "training.")
    return Entry(
        name=name,
        path=path,
        kind="validation",
        terms={
            **_market_terms(told, settings),
            "folds": [mapping(one).get("test") for one in items(told.get("folds"))],
            "seeds": told.get("seeds"),
        },
        figures=_statements(result.metrics),
        settings=settings,
        hashes=_hashes(told, path),
        notes=tuple(_validation_notes(told)),
        verdict=_verdict(told.get("verdict")),
        curve=Curve(result.ts, result.total),
        code_version=str(told.get("code_version", "")),
    )


def _validation_notes(told: Document) -> list[str]:
    tests = [mapping(one) for one in items(told.get("self_tests"))]
    notes = [
        f"self-test failed: {one.get('name')}, {one.get('words')}"
        for one in tests
        if one.get("holds") is False
    ]
    runs = [mapping(one) for one in items(told.get("runs"))]
    failed = sum(one.get("status") == "failed" for one in runs)
    if failed:
        notes.append(f"trainings that failed: {failed} of {len(runs)}")
    openings = _whole(mapping(told.get("test_span")).get("openings"))
    if openings:
        notes.append(f"times that its final test span was opened: {openings}")
    final = _verdict(mapping(told.get("test")).get("verdict"))
    if final is not None:
        notes.append(f"verdict on the final test span alone: {final.decision}")
    return notes


def _verdict(value: JsonValue) -> Verdict | None:
    if not isinstance(value, dict):
        return None
    given = [mapping(one) for one in items(value.get("reasons"))]
    reasons = tuple(
        Reason(str(one.get("name")), _truth(one.get("holds")), str(one.get("words", "")))
        for one in given
    )
    return Verdict(str(value.get("decision", "")), str(value.get("words", "")), reasons)


def _run(path: Path, name: str, told: Document) -> Entry:
    settings = flat(_config(path), "training.")
    run = read_run(path, name=name)
    looks = [one for one in run.events if one.get("kind") == "trial"]
    rows = run.metrics.num_rows
    return Entry(
        name=name,
        path=path,
        kind="run",
        terms=_run_terms(told, settings),
        figures={
            **_look_figures(looks),
            "episode_return": _last(run.metrics, "rollout/episode_return_mean"),
            "updates": _exact(rows),
            "steps": _last(run.metrics, "train/env_steps"),
            "alarms": _exact(len(run.alarms())),
        },
        settings=settings,
        hashes={
            "data": _text(told.get("bound_data")),
            "config": _text(told.get("config_hash")),
            "features": _text(told.get("bound_feature_schema")),
        },
        notes=tuple(_run_notes(path)),
        curve=_scores(looks),
        code_version=str(told.get("code_version", "")),
    )


def _run_terms(told: Document, settings: Document) -> dict[str, JsonValue]:
    """Return what the scores of a run depend on; the span is that of its validations."""
    bounds = [iso(_whole(one)) for one in items(told.get("bound_validation_span"))]
    return {
        "task": told.get("bound_task") or settings.get("training.task.name"),
        "interval": told.get("bound_interval"),
        "symbols": told.get("bound_symbols"),
        "span": cast("JsonValue", bounds or None),
        "data": told.get("bound_data"),
        "costs": told.get("bound_costs"),
        "episode_bars": told.get("bound_episode_bars"),
        "episodes": settings.get("training.validation.episodes"),
    }


def _look_figures(looks: Sequence[Document]) -> dict[str, Statement]:
    known = [(_finite(one.get("score")), _whole(one.get("update"))) for one in looks]
    scores = [(score, update) for score, update in known if score is not None]
    if not scores:
        none = Statement(None, needed=1, found=0, unit="validations")
        return {"best_score": none, "last_score": none, "validations": _exact(len(looks))}
    score, update = max(scores, key=lambda pair: pair[0])
    return {
        "best_score": Statement(score, needed=1, found=len(scores), unit="validations"),
        "best_update": _exact(update),
        "last_score": Statement(scores[-1][0], needed=1, found=len(scores), unit="validations"),
        "validations": _exact(len(looks)),
    }


def _last(metrics: pa.Table, name: str) -> Statement:
    """Return the last number of a metric."""
    values = column(metrics, name) if name in metrics.column_names else np.empty(0)
    known = values[np.isfinite(values)]
    last = float(known[-1]) if known.size else None
    return Statement(last, needed=1, found=int(known.size), unit="updates")


def _scores(looks: Sequence[Document]) -> Curve | None:
    known = [(_whole(one.get("update")), _finite(one.get("score"))) for one in looks]
    points = [(update, score) for update, score in known if score is not None]
    if not points:
        return None
    updates, scores = zip(*points, strict=True)
    return Curve(np.array(updates, np.int64), np.array(scores, np.float64))


def _run_notes(path: Path) -> list[str]:
    """Say where a run stands that has not finished."""
    file = path / "process.jsonl"
    lines = _read(file).splitlines() if file.is_file() else []
    try:
        last = mapping(documents.decode(lines[-1])).get("kind") if lines else "nothing is known"
    except DocumentError:
        last = "its log ends within a line"
    return [] if last == "finished" else [f"the run has not finished: {last}"]


# ------------------------------------------------------------------ parts


def _market_terms(told: Document, settings: Document) -> dict[str, JsonValue]:
    costs: dict[str, JsonValue] = {}
    for path in _COST_PATHS:
        below = f"{path}."
        costs = costs or {
            name.removeprefix(below): one
            for name, one in settings.items()
            if name.startswith(below)
        }
    return {
        "interval": told.get("interval"),
        "symbols": told.get("symbols"),
        "span": [told.get("first_bar"), told.get("end")],
        "data": mapping(told.get("hashes")).get("data"),
        "costs": costs or None,
        "start_equity": told.get("start_equity"),
    }


def _hashes(told: Document, path: Path) -> dict[str, str | None]:
    named = {name: _text(one) for name, one in mapping(told.get("hashes")).items()}
    return {**named, "orders": _text(told.get("order_hash")), "folder": verify_artifact(path)}


def _statements(metrics: Document) -> dict[str, Statement]:
    read = {name: statement_of(one) for name, one in metrics.items()}
    return {name: one for name, one in read.items() if one is not None}


def _manifest(path: Path) -> Document:
    file = path / _MANIFEST
    if not file.is_file():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must be the folder of a run, a backtest or a validation",
            found="no such folder" if not path.exists() else f"no `{_MANIFEST}` in it",
            remedy="Check the path.",
        )
    try:
        return mapping(documents.decode(_read(file)))
    except DocumentError as error:
        raise _damaged(file, str(error)) from error


def _config(path: Path) -> Document:
    file = path / "config.toml"
    try:
        return tomllib.loads(_read(file).decode("utf-8"))
    except ValueError as error:
        raise _damaged(file, str(error)) from error


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _damaged(file, str(error.strerror or error)) from error
    if len(data) > _MAX_BYTES:
        raise _damaged(file, f"more than {_MAX_BYTES >> 20} MiB")
    return data


def _damaged(file: Path, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{file} must be as it was written",
        found=found,
        remedy="Use another copy, or make it again.",
    )


def _listed(value: JsonValue) -> str:
    return ", ".join(str(one) for one in items(value))


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _truth(value: JsonValue) -> bool | None:
    return value if isinstance(value, bool) else None


def _finite(value: JsonValue) -> float | None:
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def _whole(value: JsonValue) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _exact(count: int) -> Statement:
    return Statement(float(count))
