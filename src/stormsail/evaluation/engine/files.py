"""A backtest as files: an artifact of three Parquet tables and one summary, the same bytes always.

`equity.parquet`   one row a mark: `ts` (UTC ms, close of the bar), `total`, and a column a symbol.
`trades.parquet`   one row a fill, liquidation or delisting: time, symbol, side, quantity, price,
                   fee, slippage, reason.
`decisions.parquet` one row a decision and symbol: the weight decided, the weight requested of the
                   risk gate and its reason, what the bar did to the account, and the critic's
                   predictions.
`summary.json`     figures, hashes of data, configuration and agent, and the hash of the orders.

Nothing in them depends on time, place or process. The artifact is written whole or not at all and
never over another (`core.artifact`).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stormsail import __version__
from stormsail.core.clock import iso
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.core.files.documents import JsonValue
from stormsail.evaluation.engine.result import Backtest, trades_table
from stormsail.functional.risk_gate import Reason

KIND = "backtest"
SUMMARY = "summary"
EQUITY, TRADES, DECISIONS = "equity.parquet", "trades.parquet", "decisions.parquet"
FORMAT = 2
"""Version of the saved tables and documents, of backtests and of validations."""
_LEFT_OUT = ("cash", "equity")


def summary_of(backtest: Backtest) -> dict[str, JsonValue]:
    """Return what a reader wants first, as plain data."""
    span = backtest.span
    return {
        "format": FORMAT,
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
        "stopped_symbols": list(backtest.stopped_symbols),
        "delisted_symbols": list(backtest.delisted_symbols),
        "policy": backtest.config.policy,
        "order_hash": backtest.order_hash,
        "hashes": {name: backtest.notes.get(name) for name in ("data", "config", "agent")},
        "unseen_symbols": backtest.notes.get("unseen_symbols", []),
        "overlaps_training": backtest.notes.get("overlaps_training"),
        "overlaps_validation": backtest.notes.get("overlaps_validation"),
        "assumptions": backtest.notes.get("assumptions"),
        "instruments": backtest.notes.get("instruments", {}),
        "metrics": backtest.metrics.document(),
        "settings": backtest.config.model_dump(mode="json"),
    }


def equity_table(backtest: Backtest) -> pa.Table:
    """Return equity by mark, of all and of each symbol."""
    columns = {"ts": backtest.ts, "total": backtest.equity}
    return pa.table(columns | dict(zip(backtest.symbols, backtest.sleeves.T, strict=True)))


def decisions_table(backtest: Backtest) -> pa.Table:
    """Return one row a decision and symbol, by time and then by symbol.

    `ts` is the close at which it was decided. A weight of null holds the position.
    """
    count, symbols = backtest.weights.shape
    names = np.array([reason.name.lower() for reason in Reason])
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
        summary["distribution_support"] = [float(value) for value in backtest.distribution_support]
    summary["distribution_kind"] = backtest.distribution_kind
    own = {
        EQUITY: equity_table(backtest),
        TRADES: trades_table(backtest.trades),
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


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file, the same for the same table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
