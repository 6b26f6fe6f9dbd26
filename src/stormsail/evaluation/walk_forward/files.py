"""A validation as files: the tables of a backtest, pooled, and what they come to.

`equity.parquet`    one row a mark: `ts`, `total`, and `seed_<n>`: what the agents of one seed made
                    of their first share, compounded on their own, so that the seeds do not add up
                    to the total, in which capital is divided anew at each fold.
`trades.parquet`    as of a backtest, with `fold` and `seed`.
`decisions.parquet` as of a backtest, with `fold` and `seed`.
`baselines.parquet` `ts`, and the equity of each rival over the whole span.
`validation.json`   verdict, folds, runs, figures, self-tests, trials, settings.
`luck.json`, `calibration.json`, `baselines.json`, `costs.json`, `stress.json` as of a backtest.

Nothing in them depends on time, place or process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stormsail import __version__
from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import Contents, read_artifact, write_artifact
from stormsail.core.files.documents import JsonValue, plain
from stormsail.evaluation.engine.files import (
    DECISIONS,
    EQUITY,
    TRADES,
    decisions_table,
    table_bytes,
    trades_table,
)
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.stats.metrics import document_of
from stormsail.evaluation.walk_forward.judge import Judgement, run_document
from stormsail.evaluation.walk_forward.run import Validation
from stormsail.market.bars import iso
from stormsail.market.splits import Span

KIND = "validation"
DOCUMENT = "validation"
BASELINES = "baselines.parquet"
_FORMAT = 1


def validation_document(validation: Validation) -> dict[str, JsonValue]:
    """Return what a validation comes to, as plain data."""
    judged, plan = validation.judged, validation.plan
    pooled = judged.pooled
    bar = pooled.interval.milliseconds
    return {
        "format": _FORMAT,
        "code_version": __version__,
        "verdict": validation.verdict.document(),
        "symbols": list(validation.symbols),
        "interval": str(pooled.interval),
        "bars": len(pooled.returns),
        "first_bar": iso(int(pooled.ts[0]) - bar),
        "end": iso(int(pooled.ts[-1])),
        "start_equity": float(pooled.equity[0]),
        "final_equity": float(pooled.equity[-1]),
        "order_hash": pooled.order_hash,
        "embargo_bars": plan.embargo,
        "purged": plan.purged,
        "test_span": {
            "start": iso(plan.final.test.start_ms),
            "end": iso(plan.final.test.end_ms),
            "bars": validation.final_bars,
            "opened": validation.final is not None,
            "openings": validation.openings,
        },
        "folds": [
            {
                "number": fold.number,
                "train": _pair(fold.train),
                "test": _pair(fold.test),
                "bars": (fold.test.end_ms - fold.test.start_ms) // bar,
                "return": earned,
            }
            for fold, earned in zip(plan.folds, pooled.folds, strict=True)
        ],
        "seeds": list(validation.config.seeds),
        **_judged(judged),
        "hashes": {"data": validation.data_hash, "config": validation.config.config_hash()},
        "settings": plain(validation.config.model_dump(mode="json")),
        "training": validation.training,
        "test": _final(validation.final),
    }


def _judged(judged: Judgement) -> dict[str, JsonValue]:
    return {
        "runs": [run_document(one) for one in judged.runs],
        "metrics": plain(document_of(judged.metrics)),
        "self_tests": [one.document() for one in judged.self_tests],
        "trials": {**judged.trials},
    }


def _final(final: Judgement | None) -> JsonValue:
    """Return what the final test span came to; null while it is closed."""
    if final is None:
        return None
    pooled = final.pooled
    return {
        **_judged(final),
        "bars": len(pooled.returns),
        "order_hash": pooled.order_hash,
        "verdict": final.verdict.document(),
        "documents": {**final.documents},
        "equity": {"ts": pooled.ts.tolist(), "total": pooled.equity.tolist()},
    }


def write_validation(path: Path | str, validation: Validation) -> None:
    """Write a validation into a new folder: afterwards it is there completely, or not at all.

    Raises:
        ArtifactError: if the path is taken or the disk refuses.
    """
    write_artifact(path, kind=KIND, contents=contents_of(validation))


def contents_of(validation: Validation) -> Contents:
    """Return the files of a validation."""
    judged = validation.judged
    tables = {
        EQUITY: _equity(validation),
        TRADES: _joined(judged, trades_table),
        DECISIONS: _joined(judged, decisions_table),
    }
    if judged.rivals:
        curves = {name.replace(" ", "_"): one.equity for name, one in judged.rivals.items()}
        tables[BASELINES] = pa.table({"ts": judged.pooled.ts, **curves})
    return Contents(
        documents={DOCUMENT: validation_document(validation), **judged.documents},
        blobs={name: table_bytes(table) for name, table in tables.items()},
        metadata={"order_hash": judged.pooled.order_hash, "code_version": __version__},
    )


def _equity(validation: Validation) -> pa.Table:
    pooled = validation.judged.pooled
    names = [f"seed_{seed}" for seed in validation.config.seeds]
    seeds = dict(zip(names, pooled.seeds.T, strict=True))
    return pa.table({"ts": pooled.ts, "total": pooled.equity, **seeds})


def _joined(judged: Judgement, table_of: Callable[[Backtest], pa.Table]) -> pa.Table:
    """Return the tables of all passes below one another, with fold and seed of each row."""
    tables = []
    for run in judged.runs:
        if run.backtest is not None:
            table = table_of(run.backtest)
            for name, value in (("fold", run.fold.number), ("seed", run.seed)):
                table = table.append_column(name, pa.array(np.full(len(table), value, np.int64)))
            tables.append(table)
    if not tables:
        empty = {name: pa.array([], pa.int64()) for name in ("ts", "fold", "seed")}
        return pa.table({**empty, "symbol": pa.array([], pa.string())})
    return pa.concat_tables(tables, promote_options="default")


@dataclass(frozen=True, eq=False)
class SavedValidation:
    """What was read back, verified against its hashes."""

    document: Mapping[str, JsonValue]
    """`validation.json`."""
    equity: pa.Table
    trades: pa.Table
    decisions: pa.Table
    documents: Mapping[str, JsonValue]
    """Further plain data by name."""
    tables: Mapping[str, pa.Table]
    """Further tables by file name."""


def read_validation(path: Path | str) -> SavedValidation:
    """Return a saved validation.

    Raises:
        ArtifactError: if it is missing, damaged, or something else.
    """
    artifact = read_artifact(path, kind=KIND)
    further = dict(artifact.documents)
    document = further.pop(DOCUMENT, None)
    tables = {name: _table(path, name, data) for name, data in artifact.blobs.items()}
    if not isinstance(document, dict) or not {EQUITY, TRADES, DECISIONS} <= set(tables):
        raise _damaged(path, f"only {sorted([*artifact.documents, *artifact.blobs])}")
    equity, trades, decisions = (tables.pop(name) for name in (EQUITY, TRADES, DECISIONS))
    return SavedValidation(document, equity, trades, decisions, further, tables)


def _pair(span: Span) -> list[JsonValue]:
    return [iso(span.start_ms), iso(span.end_ms)]


def _table(path: Path | str, name: str, data: bytes) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, f"`{name}` that cannot be read, {error}") from error


def _damaged(path: Path | str, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path} must hold the document and the tables of a validation",
        found=found,
        remedy="Run the validation again.",
    )
