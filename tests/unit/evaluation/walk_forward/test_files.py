"""A validation as files: what is in them, what comes back, and the same bytes elsewhere."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stormsail.core.clock import iso
from stormsail.core.files.artifact import encode_artifact, read_artifact
from stormsail.evaluation import validate
from stormsail.evaluation.saved import read_result
from stormsail.evaluation.walk_forward.files import (
    KIND,
    contents_of,
    write_agent,
    write_validation,
)
from stormsail.modules import Agent
from validation_lab import fitter, settings, world

ROWS = 200
RULES = settings(folds=2, costs=False, seeds=(3, 7))


@pytest.fixture(scope="module")
def result():
    bars = world(ROWS, symbols=2)
    return validate(bars, RULES, fit=fitter(bars), training={"steps": 5})


def test_what_is_written_comes_back(result, tmp_path):
    write_validation(tmp_path / "out", result)
    saved = read_result(tmp_path / "out")
    main, pooled = saved.document, result.judgement.pooled
    assert saved.equity.column_names == ["ts", "total", "seed_3", "seed_7"]
    assert saved.equity["total"].to_pylist() == pooled.equity.tolist()
    assert saved.equity["seed_7"].to_pylist() == pooled.seed_equity[:, 1].tolist()
    assert saved.tables["baselines.parquet"].column_names == [
        "ts", "flat", "buy_and_hold", "equal_weight", "momentum", "volatility_target", "random",
        "clairvoyant",
    ]  # fmt: skip
    assert sorted(saved.documents) == ["baselines", "calibration", "performance", "significance"]
    assert main["verdict"] == result.verdict.document()
    assert main["seeds"] == [3, 7]
    assert main["training"] == {"steps": 5}
    assert main["settings"]["folds"] == 2
    assert main["hashes"] == {"data": result.data_hash, "config": RULES.config_hash()}
    assert main["metrics"]["total_return"]["value"] == pytest.approx(pooled.total_return)
    assert main["test"] is None
    assert main["test_span"]["opened"] is False


def test_the_verdict_rests_on_the_figures_that_are_written(tmp_path):
    bars = world(300)
    validation = validate(bars, settings(folds=2), fit=fitter(bars, gamma=0.1))
    write_validation(tmp_path / "out", validation)
    saved = read_result(tmp_path / "out")
    value = {reason.name: reason.value for reason in saved.verdict.reasons}
    tested = saved.documents["significance"]
    assert value["deflated Sharpe"] == tested["deflated"]["value"]
    assert value["mean return"] == tested["intervals"]["mean_return"]["low"]
    assert value["no proven loss"] == tested["intervals"]["mean_return"]["high"]
    compared = tested["comparisons"]
    assert sorted(compared) == ["buy and hold", "momentum", "volatility target"]
    probabilities = [one["p_value"]["value"] for one in compared.values()]
    assert value["baselines"] == (None if None in probabilities else max(probabilities))
    assert tested["overfitting"]["value"] is not None
    assert value["return"] == saved.document["metrics"]["total_return"]["value"]
    costs = saved.documents["costs"]
    even = costs["replay"]["break_even"]
    assert value["costs"] == (even["low_bp"] if even["cost_bp"] is None else even["cost_bp"])
    assert validation.judgement.costs.charged_bp == costs["charged_bp"]
    tail = saved.documents["calibration"]["tail"]
    (condition,) = saved.verdict.conditions
    assert (condition.name, condition.holds) == ("tail", None)
    assert condition.value == tail["gap"]["found"] < tail["gap"]["needed"]
    assert saved.verdict == validation.verdict
    assert saved.document["trials"]["count"] == tested["trials"]
    sweep = validation.judgement.costs.sweep
    assert {name: one["final_equity"] for name, one in costs["replay"]["sweep_bp"].items()} == {
        f"{cost:g}": float(pooled.equity[-1]) for cost, pooled in sweep.items()
    }


def test_the_agent_for_trading_carries_the_verdict(result, tmp_path):
    assert write_agent(tmp_path / "agent", result)
    artifact = read_artifact(tmp_path / "agent", kind="agent")
    written = artifact.documents["validation"]
    assert written["verdict"] == result.verdict.document()
    # the first seed of the last fold, by its number
    assert (written["fold"], written["seed"]) == (1, 3)
    train = result.plan.folds[1].train
    assert written["trained_on"] == [iso(train.start_ms), iso(train.end_ms)]
    assert written["data"] == result.data_hash
    agent = Agent.load(tmp_path / "agent")
    own = result.for_trading.agent
    assert agent.binding.values == own.binding.values
    for name, tensor in own.state_dict().items():
        assert torch.equal(agent.state_dict()[name], tensor), name


def test_the_document_has_the_keys_that_readers_rely_on(result):
    main = contents_of(result).documents["validation"]
    assert set(main) == {
        "format", "code_version", "verdict", "symbols", "interval", "bars", "first_bar", "end",
        "start_equity", "final_equity", "order_hash", "embargo_bars", "purged", "test_span",
        "folds", "seeds", "for_trading", "runs", "metrics", "self_tests", "trials", "hashes",
        "settings", "training", "test", "paths", "instruments", "assumptions",
    }  # fmt: skip
    assert set(main["verdict"]) == {
        "decision", "words", "reasons", "conditions", "explanations", "capital_share",
    }  # fmt: skip
    assert set(main["verdict"]["reasons"][0]) == {"name", "holds", "words", "value", "needed"}
    assert set(main["folds"][0]) == {"number", "train", "test", "bars", "return"}
    assert [one["bars"] for one in main["folds"]] == [36, 36]
    assert set(main["runs"][0]) == {
        "fold", "seed", "metrics", "order_hash", "agent", "policy", "status", "reason",
    }  # fmt: skip
    assert main["purged"] == (
        "12 bars before each test are left out of its training: 6 that features look back, 5 of "
        "burn-in, and those for the last fill"
    )


def test_every_trade_and_decision_names_its_fold_and_seed(result, tmp_path):
    write_validation(tmp_path / "out", result)
    saved = read_result(tmp_path / "out")
    trades = saved.trades.to_pandas()
    decisions = saved.decisions.to_pandas()
    for run in result.runs:
        number, seed = run.fold.number, run.seed
        own = trades[(trades.fold == number) & (trades.seed == seed)]
        assert own.quantity.tolist() == [one.quantity for one in run.backtest.trades]
        mine = decisions[(decisions.fold == number) & (decisions.seed == seed)]
        assert mine.decided.tolist() == run.backtest.bars["decided"].reshape(-1).tolist()
    assert len(trades) == result.judgement.pooled.trades
    assert len(decisions) == sum(2 * len(run.backtest.returns) for run in result.runs)


def test_a_validation_without_any_agent_is_written_all_the_same(tmp_path):
    def fit(*_):
        raise RuntimeError("no")

    bars = world(ROWS)
    write_validation(tmp_path / "out", validate(bars, settings(folds=2), fit=fit))
    saved = read_result(tmp_path / "out")
    assert [one["status"] for one in saved.document["runs"]] == ["failed"] * 4
    assert (len(saved.trades), len(saved.decisions)) == (0, 0)
    assert set(saved.equity["total"].to_pylist()) == {20_000.0}
    costs = saved.documents["costs"]["replay"]["break_even"]
    assert costs["reason"] == "nothing was traded, so no cost matters"


SCRIPT = """
import hashlib, sys
from stormsail.core.files.artifact import encode_artifact
from stormsail.evaluation import validate
from stormsail.evaluation.walk_forward.files import KIND, contents_of
from test_files import RULES, ROWS
from validation_lab import fitter, world
bars = world(ROWS, symbols=2)
found = validate(bars, RULES, fit=fitter(bars), training={"steps": 5})
files = encode_artifact(kind=KIND, contents=contents_of(found))
print({name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())})
"""


def test_another_process_writes_the_same_bytes(result):
    here = Path(__file__).parent
    paths = f"import sys; sys.path[:0] = {[str(here), str(here.parents[2])]!r}\n"
    run = subprocess.run(
        [sys.executable, "-c", paths + SCRIPT], capture_output=True, text=True, check=True
    )
    files = encode_artifact(kind=KIND, contents=contents_of(result))
    mine = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    assert run.stdout.strip() == str(mine)
