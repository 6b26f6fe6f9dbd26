"""Saved results for tests of report and compare: a backtest that was run, a made-up validation."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backtest_lab import agent_for, panel, plain, rules
from simulator_lab import HOUR_MS, START_MS
from stormsail.core.clock import iso
from stormsail.core.files.artifact import Contents, write_artifact
from stormsail.core.generators import Generators
from stormsail.evaluation.calibration.document import calibration_of
from stormsail.evaluation.engine.files import FORMAT, write_backtest
from stormsail.evaluation.engine.result import Backtest
from stormsail.evaluation.engine.run import backtest
from stormsail.evaluation.robustness.baselines import run_baselines
from stormsail.evaluation.robustness.costs import break_even, cost_sweep
from stormsail.evaluation.robustness.significance import significance
from stormsail.evaluation.robustness.stress import figures_document
from stormsail.evaluation.stats.figures import bars_per_year
from stormsail.evaluation.stats.metrics import Flows, measure

HOURS_A_YEAR = 365 * 24


def passed(rows: int = 120, *, symbols: int = 3, seed: int = 0) -> tuple[Backtest, Any, Any]:
    """Return a backtest of an untrained agent, the agent and the bars."""
    bars = panel(rows, symbols=symbols)
    agent = agent_for(bars, seed=seed)
    return backtest(agent, bars, plain()), agent, bars


def significance_document(returns: np.ndarray, ts: np.ndarray) -> Any:
    return significance(
        returns,
        ts,
        per_year=bars_per_year(HOUR_MS),
        trial_sharpes=[0.01, 0.02, -0.01],
        trials=5,
        generator=Generators(7).numpy("luck"),
        repetitions=100,
    ).document()


def write_full_backtest(path: Path, *, rows: int = 500, symbols: int = 2, seed: int = 0) -> None:
    """Write a backtest with everything that a report can show.

    What takes long is not run: deciding anew stands for replaying, dear replays for stress.
    """
    result, _, bars = passed(rows, symbols=symbols, seed=seed)
    names = ("flat", "buy and hold", "momentum")
    baselines = run_baselines(bars, plain(market=rules().model_dump()), like=result, names=names)
    curves = {name.replace(" ", "_"): each.equity for name, each in baselines.items()}
    swept = cost_sweep(result, bars)
    replayed = {
        "sweep_bp": figures_document({f"{cost:g}": each for cost, each in swept.items()}),
        "break_even": break_even(result, bars, tolerance_bp=100.0).document(),
    }
    costs = {"replay": replayed, "decide": replayed}
    documents = {
        "baselines": figures_document(baselines),
        "costs": costs,
        "stress": figures_document({"spread x2": swept[20.0], "orders 1 bar late": swept[2.0]}),
        "calibration": calibration_of([result], gamma=0.5, conformal=True).document(),
        "significance": significance_document(result.returns, result.ts),
    }
    tables = {"baselines.parquet": pa.table({"ts": result.ts, **curves})}
    write_backtest(path, result, documents=documents, tables=tables)


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def validation_document(equity: np.ndarray, ts: np.ndarray, **changes: Any) -> dict[str, Any]:
    """Return a `validation.json` of two folds and two seeds, the second of which failed once."""
    measured = measure(equity, ts, bar_ms=HOUR_MS, flows=Flows()).document()
    figures = {name: each for name, each in measured.items() if isinstance(each, dict)}
    middle = len(ts) // 2
    days = [iso(int(ts[0])), iso(int(ts[middle])), iso(int(ts[-1]))]
    run = {"metrics": figures, "order_hash": "f" * 64, "agent": "a" * 64}
    good = {**run, "status": "finished", "reason": ""}
    failed = {"metrics": {}, "order_hash": None, "agent": None, "status": "failed"}
    return {
        "format": FORMAT,
        "code_version": "0.0.1",
        "verdict": {
            "decision": "not proven",
            "words": "It earned money, but chance alone could have done so.",
            "conditions": [],
            "explanations": {},
            "capital_share": 0.0,
            "reasons": [
                {
                    "name": "deflated Sharpe",
                    "holds": False,
                    "words": "Deflated Sharpe 0.61, needed 0.95.",
                    "value": 0.61,
                    "needed": 0.95,
                },
                {
                    "name": "earned",
                    "holds": True,
                    "words": "Total return +4.20 % after costs.",
                    "value": 0.042,
                    "needed": 0.0,
                },
                {
                    "name": "tail",
                    "holds": None,
                    "words": "Predicted tail: needs 200 windows, found 31.",
                    "value": None,
                    "needed": None,
                },
            ],
        },
        "symbols": ["AAA/USDT:USDT"],
        "interval": "1h",
        "bars": len(ts) - 1,
        "first_bar": days[0],
        "end": days[2],
        "embargo_bars": 64,
        "purged": "71 bars before each test window are left out of training.",
        "test_span": {"start": days[2], "end": days[2], "bars": 90, "opened": False, "openings": 0},
        "folds": [
            {"number": 1, "train": days[:2], "test": days[:2], "bars": middle},
            {"number": 2, "train": days[:2], "test": days[1:], "bars": len(ts) - 1 - middle},
        ],
        "seeds": [0, 1],
        "runs": [
            {**good, "fold": 1, "seed": 0},
            {**good, "fold": 1, "seed": 1},
            {**good, "fold": 2, "seed": 0},
            {**failed, "fold": 2, "seed": 1, "reason": "the loss was not finite"},
        ],
        "metrics": measured,
        "self_tests": [
            {"name": "oracle", "holds": True, "words": "the clairvoyant earned most"},
            {"name": "fees", "holds": True, "words": "doubled costs end with less"},
        ],
        "trials": {"count": 5, "with_sharpe": 3, "sharpe_std": 0.012},
        "hashes": {"data": "d" * 64, "config": "c" * 64},
        "settings": {"folds": 2, "seeds": [0, 1], "backtest": {"burn_in": 5, "capital": None}},
        "training": {"ppo": {"n_envs": 8}},
        "test": None,
        **changes,
    }


def write_made_validation(
    path: Path,
    *,
    bars: int = 600,
    drift: float = 0.0002,
    name: str = "AAA/USDT:USDT",
    **changes: Any,
) -> None:
    """Write a validation by hand: one symbol, two seeds, a price that waves."""
    ts = START_MS + HOUR_MS * np.arange(bars + 1)
    step = np.arange(bars)
    price = 100.0 * np.exp(0.05 * np.sin(step / 40.0) + 0.0001 * step)
    moves = drift + 0.004 * np.sin(step * 1.7) * (1.0 + (step // 150) % 2)
    seeds = [
        5_000.0 * np.exp(np.concatenate(([0.0], np.cumsum(moves + lag)))) for lag in (0.0, 1e-5)
    ]
    equity = seeds[0] + seeds[1]
    weight = np.where((step // 20) % 3 == 0, 0.0, np.where((step // 20) % 3 == 1, 1.0, -0.5))
    columns: dict[str, list[Any]] = {
        key: [] for key in ("ts", "symbol", "weight", "quantity", "fold", "seed")
    }
    for row in range(bars):
        for seed in (0, 1):
            columns["ts"].append(int(ts[row]))
            columns["symbol"].append(name)
            columns["weight"].append(float(weight[row]))
            columns["quantity"].append(float(weight[row] * seeds[seed][row + 1] / price[row]))
            columns["fold"].append(1 if row < bars // 2 else 2)
            columns["seed"].append(seed)
    turned = np.flatnonzero(np.diff(weight, prepend=0.0))
    trades = pa.table(
        {
            "ts": pa.array(ts[turned], pa.int64()),
            "symbol": [name] * len(turned),
            "side": ["buy" if weight[row] > weight[row - 1] else "sell" for row in turned],
            "quantity": np.full(len(turned), 40.0),
            "price": price[turned],
            "fee": np.full(len(turned), 2.0),
            "slippage": np.full(len(turned), 0.8),
            "reason": ["decision"] * len(turned),
            "fold": np.where(turned < bars // 2, 1, 2),
            "seed": np.zeros(len(turned), np.int64),
        }
    )
    document = validation_document(equity, ts, **{"symbols": [name], **changes})
    returns = equity[1:] / equity[:-1] - 1.0
    table = pa.table({"ts": ts, "total": equity, "seed_0": seeds[0], "seed_1": seeds[1]})
    write_artifact(
        path,
        kind="validation",
        contents=Contents(
            documents={
                "validation": document,
                "significance": significance_document(returns, ts),
            },
            blobs={
                "equity.parquet": _packed(table),
                "trades.parquet": _packed(trades),
                "decisions.parquet": _packed(pa.table(columns)),
            },
        ),
    )
