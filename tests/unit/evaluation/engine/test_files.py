"""A backtest as files: what is in them, that they are whole, and that they never differ."""

import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from backtest_lab import agent_for, panel, plain, rules
from simulator_lab import market, steady
from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import verify_artifact
from stormsail.evaluation.engine.files import write_backtest
from stormsail.evaluation.engine.run import agent_digest, backtest, replay
from stormsail.evaluation.saved import read_result

FILES = ["decisions.parquet", "equity.parquet", "manifest.json", "summary.json", "trades.parquet"]


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def result():
    bars = panel(120)
    return backtest(agent_for(bars), bars, plain())


def test_the_tables_hold_every_mark_trade_and_decision(result, tmp_path):
    write_backtest(tmp_path / "out", result)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    equity = pq.read_table(tmp_path / "out" / "equity.parquet")
    assert equity.column_names == ["ts", "total", *result.symbols]
    assert equity["ts"].to_pylist() == result.ts.tolist()
    assert equity["total"].to_pylist() == result.equity.tolist()
    assert equity[result.symbols[1]].to_pylist() == result.sleeves[:, 1].tolist()
    trades = pq.read_table(tmp_path / "out" / "trades.parquet")
    assert trades.column_names == [
        "ts", "symbol", "side", "quantity", "price", "fee", "slippage", "reason",
    ]  # fmt: skip
    assert [tuple(row.values()) for row in trades.to_pylist()] == [tuple(t) for t in result.trades]
    decisions = pq.read_table(tmp_path / "out" / "decisions.parquet")
    assert decisions.num_rows == len(result.returns) * 3
    assert decisions["ts"].to_pylist()[:4] == [result.ts[0]] * 3 + [result.ts[1]]
    assert decisions["symbol"].to_pylist()[:3] == list(result.symbols)
    assert decisions["quantity"].to_pylist() == result.bars["quantity"].reshape(-1).tolist()
    assert result.distribution is not None
    assert decisions["distribution"].to_pylist() == result.distribution.reshape(-1, 5).tolist()
    assert set(decisions["reason"].to_pylist()) <= {"none", "leverage"}


def test_the_summary_names_hashes_and_figures(result, tmp_path):
    write_backtest(tmp_path / "out", result, documents={"costs": {"a": 1}})
    saved = read_result(tmp_path / "out")
    summary = saved.document
    bars = panel(120)
    assert summary["hashes"] == {
        "data": bars.digest(),
        "config": result.config.config_hash(),
        "agent": agent_digest(agent_for(bars)),
    }
    assert summary["order_hash"] == result.order_hash
    assert summary["bars"] == len(result.returns) == 108
    assert summary["final_equity"] == result.equity[-1]
    assert summary["metrics"]["total_return"]["value"] == pytest.approx(result.total_return)
    assert summary["metrics"]["annual_return"]["value"] is None
    assert summary["metrics"]["annual_return"]["reason"].startswith("not enough data")
    assert summary["distribution_support"] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert saved.documents == {"costs": {"a": 1}}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["trades"] == len(
        result.trades
    )


def test_the_agents_hash_is_that_of_its_file(tmp_path):
    agent = agent_for(panel(40))
    agent.save(tmp_path / "agent")
    assert agent_digest(agent) == verify_artifact(tmp_path / "agent")


def test_the_same_backtest_gives_the_same_bytes(result, tmp_path):
    bars = panel(120)
    write_backtest(tmp_path / "one", result)
    write_backtest(tmp_path / "two", backtest(agent_for(bars), bars, plain()))
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    write_backtest(tmp_path / "three", backtest(agent_for(bars), bars, plain(burn_in=6)))
    assert digests(tmp_path / "one") != digests(tmp_path / "three")


def test_a_backtest_without_trades_can_be_written(tmp_path):
    bars = market(steady([100.0, 101.0, 102.0]))
    idle = replay(torch.zeros(3, 1), bars, plain(market=rules().model_dump()))
    write_backtest(tmp_path / "out", idle)
    saved = read_result(tmp_path / "out")
    assert saved.trades.num_rows == 0
    assert saved.document["order_hash"] == idle.order_hash
    assert saved.document["hashes"]["agent"] is None
    assert saved.document["metrics"]["sharpe"]["reason"].startswith("not enough data: needs")


def test_held_positions_and_forced_sales_are_told_in_words(tmp_path):
    bars = market(steady([100.0, 100.0, 60.0, 60.0, 60.0]))
    own = rules(leverage=1.0, stops__drawdown=0.3)
    weights = torch.tensor([[1.0], [np.nan], [1.0], [1.0], [1.0]])
    write_backtest(tmp_path / "out", replay(weights, bars, plain(market=own.model_dump())))
    saved = read_result(tmp_path / "out")
    assert saved.decisions["reason"].to_pylist()[1] == "hold"
    assert saved.decisions["requested"].to_pylist() == [1.0, None, 0.0, 0.0]
    assert saved.trades["reason"].to_pylist() == ["decision", "stop"]
    assert saved.document["stopped_symbols"] == ["AAA/USDT:USDT"]


@pytest.mark.refusal
def test_nothing_is_overwritten_and_damage_is_noticed(result, tmp_path):
    write_backtest(tmp_path / "out", result)
    with pytest.raises(ArtifactError, match="artifact-exists"):
        write_backtest(tmp_path / "out", result)
    trades = tmp_path / "out" / "trades.parquet"
    trades.write_bytes(trades.read_bytes()[:-1] + b"\0")
    with pytest.raises(ArtifactError, match="artifact-corrupt"):
        read_result(tmp_path / "out")
