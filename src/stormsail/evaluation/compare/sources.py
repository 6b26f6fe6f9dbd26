"""Entries of a comparison: a run, a backtest or a validation, read from its folder to one form.

A run is read from its own files alone (`config.toml`, `manifest.json`, `metrics.parquet`,
`events.jsonl`, `process.jsonl`), never from its checkpoints, so a run that still trains can be
compared too. Backtests and validations are read by `evaluation.saved`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stormsail.core.clock import iso
from stormsail.core.errors import ArtifactError
from stormsail.core.files import documents
from stormsail.core.files.documents import DocumentError, JsonValue
from stormsail.core.files.regular import open_regular
from stormsail.evaluation.saved import (
    RUN,
    Document,
    Result,
    column,
    flat,
    items,
    kind_of,
    mapping,
    number,
    read_result,
    read_run,
    truth,
)
from stormsail.evaluation.stats.statement import Statement
from stormsail.evaluation.walk_forward.verdict import Verdict

Kind = Literal["run", "backtest", "validation"]

_MAX_BYTES = 64 << 20
_COST_PATHS = ("market.costs", "training.task.market.costs")


class Curve(NamedTuple):
    """A line over time or over updates."""

    x: NDArray[np.int64]
    """UTC milliseconds; for a run, updates."""
    y: NDArray[np.float64]


@dataclass(frozen=True, eq=False)  # arrays do not compare to one truth value
class Entry:
    """One run, backtest or validation of a comparison.

    Attributes:
        name: display name.
        path: its folder.
        kind: what it is.
        terms: what its figures depend on and must share with others' to be compared: `interval`,
            `symbols`, `span`, `bars`, `data`, `costs`, `start_equity`, and for a run `task`.
        figures: by name, each with its interval and data.
        settings: every setting by its path; what a validation passes on to its backtests has the
            path that it has in a backtest, its own begin with `validation.`, and settings of
            training with `training.`, those of a run as well.
        hashes: by name; None where none was written.
        notes: warnings about this entry alone.
        verdict: of a validation.
        curve: equity; for a run, the evaluation scores.
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
        heads = {path.partition(".")[0] for path in self.settings}
        return heads - ({"market"} if self.settings.get("market", 0) is None else set())


def read_entry(path: Path | str, *, name: str) -> Entry:
    """Return a run, a backtest or a validation as an entry of a comparison.

    Raises:
        ArtifactError: if it is missing, damaged, or something else.
        DataError: if metrics or events of a run cannot be read.
    """
    path = Path(path)
    return _run(path, name) if kind_of(path) == RUN else _result(path, read_result(path, name))


# ------------------------------------------------------------------ results


def _result(path: Path, result: Result) -> Entry:
    document = result.document
    settings, terms, notes = (_backtest if result.kind == "backtest" else _validation)(result)
    hashes = {name: _text(value) for name, value in mapping(document.get("hashes")).items()}
    return Entry(
        name=result.name,
        path=path,
        kind=cast("Kind", result.kind),
        terms={**_market_terms(document, settings), **terms},
        figures=result.metrics,
        settings=settings,
        hashes={**hashes, "orders": _text(document.get("order_hash")), "folder": result.digest},
        notes=tuple(notes),
        verdict=result.verdict,
        curve=Curve(result.ts, result.total),
        code_version=str(document.get("code_version")),
    )


def _backtest(result: Result) -> tuple[Document, Document, list[str]]:
    """Return settings, terms and notes of a backtest."""
    document = result.document
    seen, chosen_on = document.get("overlaps_training"), document.get("overlaps_validation")
    notes = []
    if seen:
        notes.append("its span overlaps the agent's training span: this is no test of it")
    if chosen_on:
        notes.append("its span overlaps the bars on which the agent was chosen: it flatters")
    if unseen := _listed(document.get("unseen_symbols")):
        notes.append(f"not trained on: {unseen}")
    if liquidated := _whole(document.get("liquidations")):
        notes.append(f"liquidations: {liquidated}")
    if stopped := _listed(document.get("stopped_symbols")):
        notes.append(f"stopped before the end: {stopped}")
    if delisted := _listed(document.get("delisted_symbols")):
        notes.append(f"delisted before the end: {delisted}")
    settings = flat(mapping(document.get("settings")))
    policy = document.get("policy", _former_policy(settings))
    terms: Document = {"seen": bool(seen), "chosen_on": bool(chosen_on), "policy": policy}
    return settings, terms, notes


def _former_policy(settings: Document) -> str | None:
    """Return the policy of a result that names none: earlier versions set `greedy` outright."""
    greedy = truth(settings.get("greedy"))
    return None if greedy is None else ("greedy" if greedy else "sampled")


def _validation(result: Result) -> tuple[Document, Document, list[str]]:
    """Return settings, terms and notes of a validation."""
    document = result.document
    own = dict(mapping(document.get("settings")))
    settings = flat(mapping(own.pop("backtest", None)))
    settings |= flat(own, "validation.") | flat(mapping(document.get("training")), "training.")
    terms: Document = {
        "folds": [mapping(fold).get("test") for fold in items(document.get("folds"))],
        "seeds": document.get("seeds"),
        "policy": _policies(document) or _former_policy(settings),
    }
    failed = [test for test in result.self_tests if test.holds is False]
    notes = [f"self-test failed: {test.name}, {test.words}" for test in failed]
    status = [mapping(run).get("status") for run in items(document.get("runs"))]
    if "failed" in status:
        notes.append(f"trainings that failed: {status.count('failed')} of {len(status)}")
    if openings := _whole(mapping(document.get("test_span")).get("openings")):
        notes.append(f"times that its final test span was opened: {openings}")
    if result.final_verdict is not None:
        notes.append(f"verdict on the final test span alone: {result.final_verdict.decision}")
    return settings, terms, notes


def _policies(document: Document) -> str | None:
    """Return the policies by which the agents of a validation traded, such as `greedy, sampled`."""
    policies = {mapping(run).get("policy") for run in items(document.get("runs"))}
    return ", ".join(sorted(policy for policy in policies if isinstance(policy, str))) or None


def _market_terms(document: Document, settings: Document) -> dict[str, JsonValue]:
    costs: dict[str, JsonValue] = {}
    for path in _COST_PATHS:
        below = f"{path}."
        costs = costs or {
            name.removeprefix(below): value
            for name, value in settings.items()
            if name.startswith(below)
        }
    return {
        "interval": document.get("interval"),
        "symbols": document.get("symbols"),
        "span": [document.get("first_bar"), document.get("end")],
        "data": mapping(document.get("hashes")).get("data"),
        "costs": costs or None,
        "start_equity": document.get("start_equity"),
    }


# ------------------------------------------------------------------ runs


def _run(path: Path, name: str) -> Entry:
    manifest = mapping(documents.decode(_read(path / "manifest.json")))
    settings = flat(_config(path), "training.")
    run = read_run(path, name=name)
    evaluations = run.evaluations()
    return Entry(
        name=name,
        path=path,
        kind="run",
        terms=_run_terms(manifest, settings),
        figures={
            **_evaluation_figures(evaluations),
            "episode_return": _last(run.metrics, "rollout/episode_return_mean"),
            "updates": _exact(run.metrics.num_rows),
            "steps": _last(run.metrics, "train/env_steps"),
            "alarms": _exact(len(run.alarms())),
        },
        settings=settings,
        hashes={
            "data": _text(manifest.get("bound_data")),
            "config": _text(manifest.get("config_hash")),
            "features": _text(manifest.get("bound_feature_schema")),
        },
        notes=(*_run_notes(path), *_policy_notes(evaluations)),
        curve=_scores(evaluations),
        code_version=str(manifest.get("code_version", "")),
    )


def _run_terms(manifest: Document, settings: Document) -> dict[str, JsonValue]:
    """Return what the scores of a run depend on; the span is that of its evaluations."""
    bounds = [iso(_whole(bound)) for bound in items(manifest.get("bound_validation_span"))]
    return {
        "task": manifest.get("bound_task") or settings.get("training.task.name"),
        "interval": manifest.get("bound_interval"),
        "symbols": manifest.get("bound_symbols"),
        "span": cast("JsonValue", bounds or None),
        "data": manifest.get("bound_data"),
        "costs": manifest.get("bound_costs"),
        "episode_bars": manifest.get("bound_episode_bars"),
        "episodes": settings.get("training.validation.episodes"),
    }


def _scored(evaluations: Sequence[Document]) -> list[Document]:
    """Return the evaluations that have a score."""
    return [event for event in evaluations if number(event.get("score")) is not None]


def _score(event: Document) -> float:
    return number(event.get("score")) or 0.0


def _best(evaluations: Sequence[Document]) -> Document:
    """Return the evaluation of the agent that was kept; an empty one before the first."""
    return next((event for event in reversed(evaluations) if event.get("best") is True), {})


def _evaluation_figures(evaluations: Sequence[Document]) -> dict[str, Statement]:
    scored, count = _scored(evaluations), _exact(len(evaluations))
    if not scored or not _best(scored):
        none = Statement(None, needed=1, found=0, unit="evaluations")
        return {"best_score": none, "last_score": none, "evaluations": count}
    best, last = (
        Statement(
            _score(event),
            number(event.get("score_low")),
            number(event.get("score_high")),
            needed=1,
            found=len(scored),
            unit="evaluations",
        )
        for event in (_best(scored), scored[-1])
    )
    return {
        "best_score": best,
        "best_update": _exact(_whole(_best(scored).get("update"))),
        "last_score": last,
        "evaluations": count,
    }


def _scores(evaluations: Sequence[Document]) -> Curve | None:
    scored = _scored(evaluations)
    if not scored:
        return None
    updates = [_whole(event.get("update")) for event in scored]
    return Curve(np.array(updates, np.int64), np.array(list(map(_score, scored)), np.float64))


def _last(metrics: pa.Table, name: str) -> Statement:
    """Return the last number of a metric."""
    values = column(metrics, name) if name in metrics.column_names else np.empty(0)
    known = values[np.isfinite(values)]
    last = float(known[-1]) if known.size else None
    return Statement(last, needed=1, found=int(known.size), unit="updates")


def _run_notes(path: Path) -> list[str]:
    """Return where a run stands that has not finished."""
    file = path / "process.jsonl"
    lines = _read(file).splitlines() if file.is_file() else []
    try:
        last = mapping(documents.decode(lines[-1])).get("kind") if lines else "nothing is known"
    except DocumentError:
        last = "its log ends within a line"
    return [] if last == "finished" else [f"the run has not finished: {last}"]


def _policy_notes(evaluations: Sequence[Document]) -> list[str]:
    """Return that the best agent was judged by its sampled policy, where it was."""
    sampled = _best(evaluations).get("policy") == "sampled"
    return ["its best agent was judged by the sampled policy"] if sampled else []


def _config(path: Path) -> Document:
    file = path / "config.toml"
    try:
        return tomllib.loads(_read(file).decode("utf-8"))
    except ValueError as error:
        raise _damaged(file, str(error)) from error


def _read(file: Path) -> bytes:
    try:
        with open_regular(file) as opened:
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
    return ", ".join(str(item) for item in items(value))


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: JsonValue) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _exact(count: int) -> Statement:
    return Statement(float(count))
