"""A backtest as files: an artifact of three Parquet tables and one summary, the same bytes always.

`equity.parquet`   one row a mark: `ts` (UTC ms, close of the bar), `total`, and a column a symbol.
`trades.parquet`   one row a fill or liquidation: time, symbol, side, quantity, price, fee,
                   slippage, reason.
`decisions.parquet` one row a decision and symbol: what was decided, what the gate let through and
                   why, what the bar did to the account, and what the critic had predicted.
`summary.json`     figures, hashes of data, configuration and agent, and the hash of the orders.

Nothing in them depends on time, place or process. The artifact is written whole or not at all and
never over another (`core.artifact`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stormsail import __version__
from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import Contents, read_artifact, write_artifact
from stormsail.core.files.documents import JsonValue, plain
from stormsail.evaluation.engine.result import Backtest, Trade
from stormsail.evaluation.stats.metrics import document_of
from stormsail.functional.risk_gate import Reason
from stormsail.market.bars import iso

KIND = "backtest"
SUMMARY = "summary"
EQUITY, TRADES, DECISIONS = "equity.parquet", "trades.parquet", "decisions.parquet"
_FORMAT = 1
_LEFT_OUT = ("cash", "equity")


def summary_of(backtest: Backtest) -> dict[str, JsonValue]:
    """Return what a reader wants first, as plain data."""
    span = backtest.span
    return {
        "format": _FORMAT,
        "code_version": __version__,
        "symbols": list(backtest.symbols),
        "interval": str(backtest.interval),
        "first_bar": iso(span.start_ms),
        "end": iso(span.end_ms),
        "bars": len(backtest.returns),
        "start_equity": float(backtest.equity[0]),
        "final_equity": float(backtest.equity[-1]),
        "trades": len(backtest.trades),
        "liquidations": int(backtest.flags["liquidated"].sum()),
        "blocked_orders": int(backtest.flags["blocked"].sum()),
        "stopped_symbols": [
            symbol
            for column, symbol in enumerate(backtest.symbols)
            if bool(backtest.flags["stopped"][:, column].any())
        ],
        "order_hash": backtest.order_hash,
        "hashes": {name: backtest.notes.get(name) for name in ("data", "config", "agent")},
        "unseen_symbols": backtest.notes.get("unseen_symbols", []),
        "overlaps_training": backtest.notes.get("overlaps_training"),
        "overlaps_validation": backtest.notes.get("overlaps_validation"),
        "metrics": plain(document_of(backtest.metrics)),
        "settings": backtest.config.model_dump(mode="json"),
    }


def equity_table(backtest: Backtest) -> pa.Table:
    """Return equity by mark, of all and of each symbol."""
    columns = {"ts": backtest.ts, "total": backtest.equity}
    return pa.table(columns | dict(zip(backtest.symbols, backtest.sleeves.T, strict=True)))


def trades_table(backtest: Backtest) -> pa.Table:
    """Return one row a trade."""
    kinds = [pa.int64(), pa.string(), pa.string(), *[pa.float64()] * 4, pa.string()]
    names = ("ts", *Trade._fields[1:])
    columns = list(zip(*backtest.trades, strict=True)) or [()] * len(names)
    return pa.table(
        {
            name: pa.array(column, kind)
            for name, column, kind in zip(names, columns, kinds, strict=True)
        }
    )


def decisions_table(backtest: Backtest) -> pa.Table:
    """Return one row a decision and symbol, by time and then by symbol.

    `ts` is the close at which it was decided. A weight of null holds the position.
    """
    count, symbols = backtest.bars["asked"].shape
    names = np.array([one.name.lower() for one in Reason])
    names[int(Reason.NONFINITE)] = "hold"
    columns: dict[str, pa.Array] = {
        "ts": pa.array(np.repeat(backtest.ts[:-1], symbols)),
        "symbol": pa.array(list(backtest.symbols) * count, pa.string()),
    }
    for name, table in backtest.bars.items():
        if name not in _LEFT_OUT:
            columns[name] = pa.array(table.reshape(-1), from_pandas=True)  # NaN becomes null
    for name, flag in backtest.flags.items():
        columns[name] = pa.array(flag.reshape(-1))
    columns["reason"] = pa.array(names[backtest.reasons.reshape(-1)].tolist(), pa.string())
    if backtest.value is not None and backtest.distribution is not None:
        width = backtest.distribution.shape[-1]
        columns["value"] = pa.array(backtest.value.reshape(-1))
        flat = pa.array(backtest.distribution.reshape(-1))
        columns["distribution"] = pa.FixedSizeListArray.from_arrays(flat, width)
    return pa.table(columns)


def contents_of(
    backtest: Backtest, documents: Mapping[str, JsonValue], tables: Mapping[str, pa.Table]
) -> Contents:
    """Return the files of a backtest, with further documents and tables beside them."""
    summary = summary_of(backtest)
    if backtest.distribution_support is not None:
        summary["distribution_support"] = [float(one) for one in backtest.distribution_support]
    summary["distribution_kind"] = backtest.distribution_kind
    own = {
        EQUITY: equity_table(backtest),
        TRADES: trades_table(backtest),
        DECISIONS: decisions_table(backtest),
    }
    return Contents(
        documents={SUMMARY: summary, **documents},
        blobs={name: table_bytes(table) for name, table in {**own, **tables}.items()},
        metadata={"order_hash": backtest.order_hash, "code_version": __version__},
    )


def write_backtest(
    path: Path | str,
    backtest: Backtest,
    *,
    documents: Mapping[str, JsonValue] | None = None,
    tables: Mapping[str, pa.Table] | None = None,
) -> None:
    """Write a backtest into a new folder: afterwards it is there completely, or not at all.

    Args:
        path: folder that does not exist yet.
        backtest: what is written.
        documents: further plain data by name, such as `costs`.
        tables: further tables by file name, such as `baselines.parquet`.

    Raises:
        ArtifactError: if the path is taken or the disk refuses.
    """
    write_artifact(path, kind=KIND, contents=contents_of(backtest, documents or {}, tables or {}))


@dataclass(frozen=True, eq=False)
class SavedBacktest:
    """What was read back, verified against its hashes."""

    summary: Mapping[str, JsonValue]
    equity: pa.Table
    trades: pa.Table
    decisions: pa.Table
    documents: Mapping[str, JsonValue]
    """Further plain data by name."""
    tables: Mapping[str, pa.Table]
    """Further tables by file name."""


def read_backtest(path: Path | str) -> SavedBacktest:
    """Return a saved backtest.

    Raises:
        ArtifactError: if it is missing, damaged, or something else.
    """
    artifact = read_artifact(path, kind=KIND)
    documents = dict(artifact.documents)
    summary = documents.pop(SUMMARY, None)
    tables = {name: _table(path, name, data) for name, data in artifact.blobs.items()}
    if not isinstance(summary, dict) or not {EQUITY, TRADES, DECISIONS} <= set(tables):
        raise _damaged(path, f"only {sorted([*artifact.documents, *artifact.blobs])}")
    equity, trades, decisions = (tables.pop(name) for name in (EQUITY, TRADES, DECISIONS))
    return SavedBacktest(summary, equity, trades, decisions, documents, tables)


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file, the same for the same table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(path: Path | str, name: str, data: bytes) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, f"`{name}` that cannot be read, {error}") from error


def _damaged(path: Path | str, found: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path} must hold the summary and the tables of a backtest",
        found=found,
        remedy="Run the backtest again.",
    )
