"""A validation as files: the pooled tables of its backtests, and its results as JSON.

`equity.parquet`    one row a mark: `ts`, `total`, and `seed_<n>`: what the agents of one seed made
                    of their first share, compounded on their own, so that the seeds do not add up
                    to the total, in which capital is divided anew at each fold.
`trades.parquet`    as of a backtest, with `fold` and `seed`.
`decisions.parquet` as of a backtest, with `fold` and `seed`.
`baselines.parquet` `ts`, and the equity of each baseline over the whole span.
`validation.json`   verdict, folds, runs, figures, self-tests, trials, settings.
`significance.json`, `calibration.json`, `baselines.json`, `costs.json`, `stress.json`,
`performance.json`  as of a backtest.

Nothing in them depends on time, place or process.
"""

from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa

from stormsail import __version__
from stormsail.core.clock import iso
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.core.files.documents import JsonValue, plain
from stormsail.evaluation.engine.files import (
    DECISIONS,
    EQUITY,
    FORMAT,
    TRADES,
    decisions_table,
    table_bytes,
)
from stormsail.evaluation.robustness.stress import figures_document
from stormsail.evaluation.walk_forward.judge import Judgement
from stormsail.evaluation.walk_forward.pool import Run, tables_by_run, trades_by_run
from stormsail.evaluation.walk_forward.run import Validation
from stormsail.evaluation.walk_forward.seal import Sealed
from stormsail.market.splits import Span
from stormsail.modules.agent import KIND as AGENT_KIND

KIND = "validation"
DOCUMENT = "validation"
BASELINES = "baselines.parquet"


def validation_document(validation: Validation) -> dict[str, JsonValue]:
    """Return the main document of a validation, as JSON."""
    judgement, plan = validation.judgement, validation.plan
    pooled = judgement.pooled
    bar = pooled.interval.milliseconds
    return {
        "format": FORMAT,
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
                "return": total,
            }
            for fold, total in zip(plan.folds, pooled.fold_returns, strict=True)
        ],
        "seeds": list(validation.config.seeds),
        "for_trading": trading_document(validation),
        **_results(judgement),
        "hashes": {"data": validation.data_hash, "config": validation.config.config_hash()},
        "settings": plain(validation.config.model_dump(mode="json")),
        "training": validation.training,
        "assumptions": validation.assumptions,
        "instruments": _instruments(judgement),
        "test": _final(validation.final, validation.config.alpha),
        "paths": None if validation.paths is None else validation.paths.document(),
    }


def further_documents(judgement: Judgement, alpha: float) -> dict[str, JsonValue]:
    """Return the further documents of a judgement by name, as JSON."""
    documents: dict[str, JsonValue] = {
        "significance": {
            **judgement.significance.document(),
            "comparisons": {
                name: comparison.document() for name, comparison in judgement.comparisons.items()
            },
        },
        "calibration": judgement.calibration.document(),
        "performance": judgement.performance.document(),
    }
    if judgement.baselines:
        documents["baselines"] = figures_document(judgement.baselines)
    if costs := judgement.costs:
        sweep: dict[str, JsonValue] = {
            f"{cost:g}": pooled.figures(alpha) for cost, pooled in costs.sweep.items()
        }
        documents["costs"] = {
            "replay": {"sweep_bp": sweep, "break_even": costs.break_even.document()},
            "charged_bp": costs.charged_bp,
        }
    if judgement.stress is not None:
        documents["stress"] = {
            name: pooled.figures(alpha) for name, pooled in judgement.stress.items()
        }
    return documents


def _instruments(judgement: Judgement) -> JsonValue:
    """Return the terms by which the symbols were traded, the same in every backtest."""
    notes = [run.backtest.notes for run in judgement.runs if run.backtest is not None]
    return notes[0].get("instruments", {}) if notes else {}


def _results(judgement: Judgement) -> dict[str, JsonValue]:
    return {
        "runs": [_run(run) for run in judgement.runs],
        "metrics": judgement.metrics.document(),
        "self_tests": [test.document() for test in judgement.self_tests],
        "trials": plain(asdict(judgement.trials)),
    }


def _run(run: Run) -> dict[str, JsonValue]:
    backtest = run.backtest
    metrics = {} if backtest is None else backtest.metrics.statements()
    return {
        "fold": run.fold.number,
        "seed": run.seed,
        "metrics": {name: statement.document() for name, statement in metrics.items()},
        "order_hash": None if backtest is None else backtest.order_hash,
        "agent": None if backtest is None else backtest.notes.get("agent"),
        "policy": None if backtest is None else backtest.config.policy,
        "status": "failed" if backtest is None else "finished",
        "reason": run.reason,
    }


def _final(final: Judgement | None, alpha: float) -> JsonValue:
    """Return the results of the final test span; null while it is closed."""
    if final is None:
        return None
    pooled = final.pooled
    return {
        **_results(final),
        "bars": len(pooled.returns),
        "order_hash": pooled.order_hash,
        "verdict": final.verdict.document(),
        "documents": further_documents(final, alpha),
        "equity": {"ts": pooled.ts.tolist(), "total": pooled.equity.tolist()},
    }


def write_validation(path: Path | str, validation: Validation) -> None:
    """Write a validation into a new folder: afterwards it is there completely, or not at all.

    Raises:
        ArtifactError: if the path is taken or the disk refuses.
    """
    write_artifact(path, kind=KIND, contents=contents_of(validation))


def trading_document(validation: Validation) -> JsonValue:
    """Return which agent is meant for trading, how it was trained and what was decided about it."""
    run = validation.for_trading
    if run is None:
        return None
    opened = validation.final is not None
    where = "everything before the final test span" if opened else f"fold {run.fold.number}"
    return {
        "seed": run.seed,
        "fold": run.fold.number,
        "trained_on": _pair(run.fold.train),
        "words": f"seed {run.seed} of the training on {where}, {run.fold.train}: chosen by its "
        "number, not by its result",
        "data": validation.data_hash,
        "sealed": Sealed(validation.symbols, validation.plan.final.test).document(),
        "verdict": validation.verdict.document(),
    }


def write_agent(path: Path | str, validation: Validation) -> bool:
    """Write the agent that is meant for trading, with verdict, conditions and explanations.

    It is an agent like any other, with the document `validation` beside its own; False where there
    is none.

    Raises:
        ArtifactError: if the path is taken or the disk refuses.
    """
    run = validation.for_trading
    if run is None or run.agent is None:
        return False
    own = run.agent.contents()
    documents = {**own.documents, DOCUMENT: trading_document(validation)}
    write_artifact(path, kind=AGENT_KIND, contents=replace(own, documents=documents))
    return True


def contents_of(validation: Validation) -> Contents:
    """Return the files of a validation."""
    judgement = validation.judgement
    tables = {
        EQUITY: _equity(validation),
        TRADES: trades_by_run(judgement.runs),
        DECISIONS: tables_by_run(judgement.runs, decisions_table),
    }
    if judgement.baselines:
        curves = {
            name.replace(" ", "_"): result.equity for name, result in judgement.baselines.items()
        }
        tables[BASELINES] = pa.table({"ts": judgement.pooled.ts, **curves})
    return Contents(
        documents={
            DOCUMENT: validation_document(validation),
            **further_documents(judgement, validation.config.alpha),
        },
        blobs={name: table_bytes(table) for name, table in tables.items()},
        metadata={"order_hash": judgement.pooled.order_hash, "code_version": __version__},
    )


def _equity(validation: Validation) -> pa.Table:
    pooled = validation.judgement.pooled
    names = [f"seed_{seed}" for seed in validation.config.seeds]
    seeds = dict(zip(names, pooled.seed_equity.T, strict=True))
    return pa.table({"ts": pooled.ts, "total": pooled.equity, **seeds})


def _pair(span: Span) -> list[JsonValue]:
    return [iso(span.start_ms), iso(span.end_ms)]
